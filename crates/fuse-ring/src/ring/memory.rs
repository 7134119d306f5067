//! The memory of the entries of a ring, which the kernel reads and writes.
//!
//! Each entry of the ring has one page for the header, followed by whole pages for the payload.
//!
//! # Invariants
//!
//! - M.1: until `abandon` is called, `base` is the start of a readable and writable mapping of
//!   `entries` times `stride` bytes.
//! - M.2: after `abandon`, the address range is never mapped again for another use. A late write of
//!   the kernel then fails with `EFAULT`, and changes no memory.

use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::param::page_size;

const PART_BYTES: usize = 128;

const BUFFERS: usize = 2;

/// The head of a ring entry. Its start is laid out like `struct fuse_uring_req_header`.
#[repr(C)]
pub(super) struct Head {
    /// `struct fuse_in_header` of a request, then `struct fuse_out_header` of the reply.
    pub(super) in_out: [u8; PART_BYTES],
    /// The fixed part of the request.
    pub(super) op_in: [u8; PART_BYTES],
    flags: u64,
    /// The kernel's number of the request. COMMIT_AND_FETCH must repeat it.
    pub(super) commit_id: u64,
    /// The length of the entry's payload in bytes. The kernel stores the length of the request's
    /// payload. The server replaces it by the length of the reply's payload.
    pub(super) payload_bytes: u32,
    padding: u32,
    reserved: u64,
    /// The address and length of the header, and of the payload. The kernel reads both when the
    /// entry is registered.
    buffers: [libc::iovec; BUFFERS],
}

/// Bytes of `struct fuse_uring_req_header`.
const HEADER_BYTES: usize = std::mem::offset_of!(Head, buffers);
const _: () = assert!(HEADER_BYTES == 288);

/// The memory of all entries of a ring.
pub(super) struct Memory {
    base: NonNull<u8>,
    entries: usize,
    payload_bytes: usize,
    stride: usize,
    is_abandoned: bool,
}

impl Memory {
    pub(super) fn map(entries: usize, payload_bytes: usize) -> io::Result<Self> {
        let page = page_size();
        let payload_bytes = payload_bytes.checked_next_multiple_of(page).ok_or(Errno::INVAL)?;
        let stride = payload_bytes.checked_add(page).ok_or(Errno::INVAL)?;
        let len = stride.checked_mul(entries).ok_or(Errno::INVAL)?;
        if len == 0 || payload_bytes == 0 || u32::try_from(payload_bytes).is_err() {
            return Err(Errno::INVAL.into());
        }
        // SAFETY: the address passed to mmap(2) is null, so the new mapping replaces no mapping in
        // use.
        let base = unsafe {
            mm::mmap_anonymous(
                null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mut memory = Self { base, entries, payload_bytes, stride, is_abandoned: false };
        for index in 0..entries {
            let iovec = |base: *mut u8, len| libc::iovec { iov_base: base.cast(), iov_len: len };
            let header = iovec(memory.head_at(index).cast(), HEADER_BYTES);
            let payload = iovec(memory.payload_at(index), payload_bytes);
            // SAFETY: the kernel does not know the memory yet.
            unsafe { memory.head_mut(index) }.buffers = [header, payload];
        }
        Ok(memory)
    }

    /// Returns the number of bytes of each payload.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    pub(super) fn buffers(&self, index: usize) -> (u64, u32) {
        let buffers = self.head_at(index).cast::<u8>().wrapping_add(HEADER_BYTES);
        (buffers.expose_provenance() as u64, BUFFERS as u32)
    }

    /// Returns the head of an entry, to write to it.
    ///
    /// # Safety
    ///
    /// While the returned reference lives, the kernel must have no command for this entry of the
    /// ring. Otherwise it could write to the head.
    pub(super) unsafe fn head_mut(&mut self, index: usize) -> &mut Head {
        // SAFETY: `head_at` is inside the mapping and aligned (invariant M.1). Any bits are a valid
        // `Head`. `&mut self` excludes other references, and the contract of `head_mut` excludes
        // the kernel.
        unsafe { &mut *self.head_at(index) }
    }

    /// Returns the head and the payload of an entry.
    ///
    /// # Safety
    ///
    /// While the returned references live, the kernel must have no command for this entry of the
    /// ring. Otherwise it could write to the head and the payload.
    pub(super) unsafe fn parts(&mut self, index: usize) -> (&Head, &mut [u8]) {
        let payload = self.payload_at(index);
        // SAFETY: the entry's payload is inside the mapping (invariant M.1) and overlaps no entry's
        // `Head`. `&mut self` excludes other references. The contract of `parts` excludes writes of
        // the kernel.
        let payload = unsafe { std::slice::from_raw_parts_mut(payload, self.payload_bytes) };
        // SAFETY: as in `head_mut`.
        let head = unsafe { &*self.head_at(index) };
        (head, payload)
    }

    /// Frees the pages that hold the heads and payloads of all entries. Keeps the address range
    /// reserved, because the kernel may still write to it (invariant M.2).
    pub(super) fn abandon(&mut self) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let base: *mut c_void = self.base.as_ptr().cast();
        // SAFETY: the call replaces exactly the mapping of the entries' memory (invariant M.1) by a
        // mapping without access. `&mut self` proves that no reference into that memory is left.
        // The ring calls `abandon` only in its `drop`, so no later method accesses the memory.
        let _replaced = unsafe { mm::mmap_anonymous(base, self.len(), ProtFlags::empty(), flags) };
        // If the call failed, the old mapping stays for ever, so no other use gets its addresses.
        self.is_abandoned = true;
    }

    fn len(&self) -> usize {
        self.entries * self.stride
    }

    /// Returns the address of the head of an entry. The whole head is inside the mapped memory.
    fn head_at(&self, index: usize) -> *mut Head {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        self.base.as_ptr().wrapping_add(index * self.stride).cast()
    }

    /// Returns the address of the payload of an entry. All its `payload_bytes` bytes are inside the
    /// mapping.
    fn payload_at(&self, index: usize) -> *mut u8 {
        self.head_at(index).cast::<u8>().wrapping_add(self.stride - self.payload_bytes)
    }
}

// SAFETY: a mapping belongs to the whole process, not to a thread. In this process only this
// `Memory` owns the mapping, so it may move to another thread.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: the range is the mapping that `map` made (invariant M.1). No reference into it is
        // left. The kernel has no command for an entry: otherwise the ring would have called
        // `abandon`, and this function would have returned above.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len()) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}
