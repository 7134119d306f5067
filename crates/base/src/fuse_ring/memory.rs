//! The memory of the entries of a ring, which the kernel reads and writes.
//!
//! Each entry has one page for its header, and whole pages for its payload.
//!
//! # Invariants
//!
//! - M.1: `base` is the start of a readable and writable mapping of `entries` strides, until
//!   `abandon` is called.
//! - M.2: the address range is never mapped again for another use after `abandon`. A late write of
//!   the kernel then fails with `EFAULT`, and changes no memory.

use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::param::page_size;

/// Bytes of the request header or reply header of an entry, and of the fixed part of a request.
const PART_BYTES: usize = 128;

/// The number of buffers that a REGISTER command names: the header and the payload.
const BUFFERS: usize = 2;

/// The head of an entry. Its start is laid out like `struct fuse_uring_req_header`.
#[repr(C)]
pub(super) struct Head {
    /// `struct fuse_in_header` of a request, then `struct fuse_out_header` of the reply.
    pub(super) in_out: [u8; PART_BYTES],
    /// The fixed part of the request.
    pub(super) op_in: [u8; PART_BYTES],
    flags: u64,
    /// The number of the request for the commit.
    pub(super) commit_id: u64,
    /// Bytes of the payload, of the request and then of the reply.
    pub(super) payload_bytes: u32,
    padding: u32,
    reserved: u64,
    /// Where the kernel finds the header and the payload.
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
    /// Bytes from the start of an entry to the start of the next one.
    stride: usize,
    is_abandoned: bool,
}

impl Memory {
    /// Maps memory for `entries` entries with at least `payload_bytes` of payload each.
    ///
    /// # Errors
    ///
    /// `EINVAL` for no entries, or for sizes out of range. `ENOMEM` without address space.
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

    /// Returns the address and the length of the array of `struct iovec` for the REGISTER command
    /// of an entry.
    pub(super) fn buffers(&self, index: usize) -> (u64, u32) {
        let buffers = self.head_at(index).cast::<u8>().wrapping_add(HEADER_BYTES);
        (buffers.expose_provenance() as u64, BUFFERS as u32)
    }

    /// Returns the head of an entry, to write to it.
    ///
    /// # Safety
    ///
    /// The kernel must not own the entry as long as the reference lives.
    pub(super) unsafe fn head_mut(&mut self, index: usize) -> &mut Head {
        // SAFETY: `head_at` is inside the mapping and aligned (M.1). Any bits are a valid `Head`.
        // `&mut self` excludes other references, and the function contract excludes the kernel.
        unsafe { &mut *self.head_at(index) }
    }

    /// Returns the head and the payload of an entry.
    ///
    /// # Safety
    ///
    /// The kernel must not own the entry as long as the references live.
    pub(super) unsafe fn parts(&mut self, index: usize) -> (&Head, &mut [u8]) {
        let payload = self.payload_at(index);
        // SAFETY: the payload is inside the mapping and disjoint from all heads (M.1). `&mut self`
        // excludes other references, and the function contract excludes the kernel.
        let payload = unsafe { std::slice::from_raw_parts_mut(payload, self.payload_bytes) };
        // SAFETY: as in `head_mut`.
        let head = unsafe { &*self.head_at(index) };
        (head, payload)
    }

    /// Frees the memory and keeps the address range, because the kernel may still write to it.
    pub(super) fn abandon(&mut self) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
        let base: *mut c_void = self.base.as_ptr().cast();
        // SAFETY: the new mapping replaces exactly the mapping of `self` (M.1), and `&mut self`
        // proves that no reference into it is left. From here on no method may reach the memory;
        // the only caller is the drop of the ring.
        let _replaced = unsafe { mm::mmap_anonymous(base, self.len(), ProtFlags::empty(), flags) };
        // After an error the old mapping stays, which is as safe.
        self.is_abandoned = true;
    }

    fn len(&self) -> usize {
        self.entries * self.stride
    }

    /// Returns the address of the head of an entry. It is inside the mapping.
    fn head_at(&self, index: usize) -> *mut Head {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        self.base.as_ptr().wrapping_add(index * self.stride).cast()
    }

    /// Returns the address of the payload of an entry, with `payload_bytes` inside the mapping.
    fn payload_at(&self, index: usize) -> *mut u8 {
        self.head_at(index).cast::<u8>().wrapping_add(self.stride - self.payload_bytes)
    }
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Memory` is its only owner on
// this side.
unsafe impl Send for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: the range is the mapping of `map` (M.1). No reference into it is left, and the
        // kernel owns no entry, because otherwise the ring has called `abandon`.
        let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len()) };
        debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
    }
}
