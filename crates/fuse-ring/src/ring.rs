//! FUSE over io_uring. Requests arrive, and replies leave, in memory that was registered with the
//! kernel.
//!
//! With reads of `/dev/fuse`, a server makes two system calls per request, and each copies data.
//! With a ring, one system call sends all finished replies and waits for the next requests.
//!
//! # How it works
//!
//! An *entry* is a header and a payload buffer. A REGISTER command tells the kernel about an entry,
//! and completes when a request is in it. The server writes the reply into the same entry. A
//! COMMIT_AND_FETCH command sends the reply, and completes with the next request.
//!
//! Each entry belongs to a queue, and the kernel has one queue per possible processor. The kernel
//! uses the rings only when each queue has an entry. A ring can serve several queues.
//!
//! [`FuseRing::wait`] also returns when another thread calls [`RingWaker::wake`], which writes to
//! an eventfd(2). The ring has a multishot poll command on that eventfd.
//!
//! FORGET and INTERRUPT never come through a ring, so a thread must also read `/dev/fuse`.
//!
//! # Invariants
//!
//! - F.1: an entry has at most one command in the kernel. From the time when the command is queued
//!   until the server reads its completion, `owner` is `Kernel` or `Registering`.
//! - F.2: the kernel accesses the memory of an entry only while its `owner` is `Kernel` or
//!   `Registering`. The methods access it only in the state `Taken`.
//! - F.3: the memory is unmapped only if no entry has a command in the kernel. After a ring is
//!   closed, a kernel thread cancels its commands later. So if a ring is dropped while it has
//!   commands, the pages are freed, but the address range stays reserved for ever.
//!
//! # Limits
//!
//! A ring must not be dropped before the FUSE connection ends. Otherwise the requests in its
//! entries, and later requests in its queues, never get a reply. Rings need Linux 6.14 or newer,
//! with the parameter `enable_uring` of the kernel module `fuse` set.
//!
//! Source: Linux `Documentation/filesystems/fuse/fuse-io-uring.rst`, `fs/fuse/dev_uring.c`,
//! `include/uapi/linux/fuse.h`; io_uring_setup(2).
#![expect(unsafe_code, reason = "the kernel reaches the memory of commands")]

mod memory;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::types::Fixed;
use io_uring::{IoUring, cqueue, opcode};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use self::memory::Memory;
use crate::device::check_is_fuse;

/// `FUSE_IO_URING_CMD_REGISTER`.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const COMMIT_AND_FETCH: u32 = 2;
const TRIES_MAX: u8 = 16;

/// Bytes of `struct fuse_in_header`.
const IN_HEADER_BYTES: usize = 40;
/// Bytes of `struct fuse_out_header`.
const OUT_HEADER_BYTES: usize = 16;

/// The registered files of a ring.
const DEVICE: Fixed = Fixed(0);
const WAKE: Fixed = Fixed(1);
/// The user data of the poll command on the waker's eventfd(2). The user data of any other command
/// is the index of an entry.
const WAKE_USER_DATA: u64 = u64::MAX;

type Ring = IoUring<Entry128, cqueue::Entry>;

/// An io_uring(7) with entries of a FUSE connection, for one thread.
///
/// A ring may be made on one thread and used on another thread. But all calls of
/// [`wait`](Self::wait) must come from one thread.
pub struct FuseRing {
    // Fields are dropped in order: the ring is closed before its memory is unmapped.
    ring: Ring,
    memory: Memory,
    entries: Box<[Entry]>,
    /// The entries in the state `Ready`, oldest request first.
    ready: VecDeque<u32>,
    /// How many entries are not `Dead`.
    live: usize,
    /// The error of the last entry that died.
    failure: Option<Errno>,
    is_started: bool,
    is_woken: bool,
    wake: Arc<OwnedFd>,
}

/// Wakes the thread that waits in [`FuseRing::wait`].
#[derive(Clone, Debug)]
pub struct RingWaker {
    wake: Arc<OwnedFd>,
}

/// The result of [`FuseRing::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// True if [`RingWaker::wake`] was called, and no earlier call of `wait` has reported that.
    pub is_woken: bool,
}

/// A token for one request. The server passes it to the ring to read the request and to reply.
///
/// If the server drops the token, the request is never answered.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a request must be answered"]
pub struct EntryId(u32);

/// A request in the memory of its entry.
#[derive(Debug)]
pub struct RingRequest<'r> {
    /// `struct fuse_in_header`.
    pub header: &'r [u8; IN_HEADER_BYTES],
    /// The fixed part of the request (such as `struct fuse_open_in`). If that part is shorter than
    /// 128 bytes, the rest of the array is zeroes, or bytes of older requests.
    pub op_in: &'r [u8; 128],
    /// The whole payload buffer of a ring entry. At its start is the payload of the request, which
    /// the body of the reply overwrites.
    pub payload: &'r mut [u8],
    /// How many bytes of the payload belong to the request.
    pub payload_len: usize,
}

/// An entry of a ring.
struct Entry {
    queue: u16,
    owner: Owner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The REGISTER command is queued or in the kernel.
    Registering { tries: u8 },
    /// The COMMIT_AND_FETCH command is queued or in the kernel.
    Kernel,
    /// A request has arrived.
    Ready,
    /// The caller has an [`EntryId`].
    Taken,
    /// The command of the entry has failed. The entry gets no more requests.
    Dead,
}

impl FuseRing {
    /// Makes a ring that serves the kernel's request queues in `queues`, with `depth` entries for
    /// each of them. An entry is a buffer for one request and its reply. The first
    /// [`wait`](Self::wait) registers the entries with the kernel.
    ///
    /// `device` is a descriptor of `/dev/fuse` that belongs to a FUSE connection. The server must
    /// have answered the INIT request before the first `wait` or `register`. `payload_bytes` must
    /// be at least 8192, at least `max_write` bytes, and at least `max_pages` pages (both from the
    /// INIT reply).
    ///
    /// # Errors
    ///
    /// `ENODEV` if `device` is no FUSE device. `EINVAL` if there are no entries, or if a size is
    /// out of range. `ENOMEM`. `EPERM` and other errors of io_uring_setup(2).
    pub fn new(
        device: BorrowedFd<'_>,
        queues: &[u16],
        depth: usize,
        payload_bytes: usize,
    ) -> io::Result<Self> {
        check_is_fuse(device)?;
        let count = queues.len().checked_mul(depth).ok_or(Errno::INVAL)?;
        let memory = Memory::map(count, payload_bytes)?;
        // The queue needs space for one command per entry, and for the poll of the eventfd.
        let commands = u32::try_from(count + 1).map_err(|_| Errno::INVAL)?;
        let ring = set_up(commands.next_power_of_two())?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        ring.submitter().register_files(&[device.as_raw_fd(), wake.as_raw_fd()])?;
        let entries = queues.iter().flat_map(|queue| {
            let entry = || Entry { queue: *queue, owner: Owner::Registering { tries: 0 } };
            std::iter::repeat_with(entry).take(depth)
        });
        let mut made = Self {
            ring,
            memory,
            entries: entries.collect(),
            ready: VecDeque::with_capacity(count),
            live: count,
            failure: None,
            is_started: false,
            is_woken: false,
            wake,
        };
        made.push_poll();
        for index in 0..count {
            made.push_register(index);
        }
        Ok(made)
    }

    /// Returns a waker for other threads.
    #[must_use]
    pub fn waker(&self) -> RingWaker {
        RingWaker { wake: Arc::clone(&self.wake) }
    }

    /// Returns the number of live entries of the ring. After the end of the FUSE connection it is
    /// 0.
    ///
    /// An entry of the ring is live if it can still get requests, or if it contains a request that
    /// has no reply yet.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live
    }

    /// Returns the error of the last entry that died.
    ///
    /// `ENOTCONN` and `ECONNABORTED`: the connection has ended. `EOPNOTSUPP`: the kernel does not
    /// allow rings. `EINVAL`: the kernel has refused a queue or the payload size.
    #[must_use]
    pub fn failure(&self) -> Option<Errno> {
        self.failure
    }

    /// Registers the ring's entries with the kernel, and returns without waiting for a request.
    /// Without this call the first [`wait`](Self::wait) registers them. All calls of `register` and
    /// `wait` must come from one thread.
    ///
    /// Returns true if each queue of this ring has an entry. If a queue has none
    /// ([`failure`](Self::failure)), the kernel uses no ring at all.
    ///
    /// # Errors
    ///
    /// The errors of io_uring_enter(2). After an error, the kernel may not know some of the
    /// entries. It may hold back all requests until a later `register` or `wait` has registered
    /// these entries.
    pub fn register(&mut self) -> Result<bool, Errno> {
        self.enable().map_err(corewalk_base::errno_of)?;
        while !self.ring.submission().is_empty() {
            match self.ring.submit().map_err(corewalk_base::errno_of) {
                Ok(_) | Err(Errno::INTR | Errno::BUSY | Errno::AGAIN) => {}
                Err(error) => return Err(error),
            }
            // Handle the results. `collect` may queue the command of a refused entry again.
            self.collect();
        }
        let has_entry = |queue| {
            let of_queue = |entry: &&Entry| entry.queue == queue && entry.owner != Owner::Dead;
            self.entries.iter().any(|entry| of_queue(&entry))
        };
        Ok(self.entries.iter().all(|entry| has_entry(entry.queue)))
    }

    fn enable(&mut self) -> io::Result<()> {
        if !self.is_started {
            self.ring.submitter().register_enable_rings()?;
            self.is_started = true;
        }
        Ok(())
    }

    /// Sends the queued replies to the kernel. Then waits until a request arrives, another thread
    /// calls [`RingWaker::wake`], or an entry fails. A failed entry gets no more requests.
    ///
    /// Returns immediately if a request has arrived, or if all entries of the ring have failed. May
    /// also return without a request, for example after a signal.
    ///
    /// # Errors
    ///
    /// `EEXIST` if an earlier call of `wait` came from another thread. Other errors of
    /// io_uring_enter(2).
    pub fn wait(&mut self) -> io::Result<Waited> {
        self.enable()?;
        let has_news =
            !self.ready.is_empty() || self.live == 0 || !self.ring.completion().is_empty();
        if !has_news || !self.ring.submission().is_empty() {
            match self.ring.submit_and_wait(usize::from(!has_news)).map_err(corewalk_base::errno_of)
            {
                // After `EINTR`, `EBUSY` or `EAGAIN`, replies to the kernel may still be queued in
                // the ring. The next call of `wait` sends them.
                Ok(_) | Err(Errno::INTR | Errno::BUSY | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.collect();
        Ok(Waited { is_woken: std::mem::take(&mut self.is_woken) })
    }

    /// Returns the next entry with a request, oldest first.
    pub fn next_request(&mut self) -> Option<EntryId> {
        let index = self.ready.pop_front()?;
        self.entries[index as usize].owner = Owner::Taken;
        Some(EntryId(index))
    }

    /// Returns the request of an entry.
    ///
    /// # Panics
    ///
    /// Panics if `entry` comes from another ring, unless the entry with the same index of this ring
    /// is taken. In that case, the method returns the request of this ring's entry.
    pub fn request(&mut self, entry: &EntryId) -> RingRequest<'_> {
        let index = self.taken(entry);
        // SAFETY: the ring's entry is in the state `Taken`, so the kernel does not access its
        // memory (invariant F.2). Only `reply` ends this state. The references that this method
        // returns borrow `self`, so they end before any call of `reply`.
        let (head, payload) = unsafe { self.memory.parts(index) };
        let header = head.in_out.first_chunk().expect("a header is shorter");
        let payload_len = (head.payload_bytes as usize).min(payload.len());
        RingRequest { header, op_in: &head.op_in, payload, payload_len }
    }

    /// Queues the reply to the request in a ring entry. The next [`wait`](Self::wait) sends the
    /// reply to the kernel.
    ///
    /// `outcome` is an error, or the length of the reply's body in bytes. The body is at the start
    /// of the entry's payload.
    ///
    /// # Panics
    ///
    /// Panics if the reply's body is longer than the payload buffer of an entry. Also panics if
    /// `entry` comes from another ring, like [`request`](Self::request).
    pub fn reply(&mut self, entry: EntryId, outcome: Result<usize, Errno>) {
        let index = self.taken(&entry);
        let body = outcome.unwrap_or(0);
        assert!(body <= self.memory.payload_bytes(), "the body of a reply fits into the payload");
        let error = outcome.err().map_or(0, |errno| -errno.raw_os_error());
        // SAFETY: the entry is `Taken`, so the kernel does not own it (invariant F.2). The
        // reference ends before the command is queued.
        let head = unsafe { self.memory.head_mut(index) };
        let len = (OUT_HEADER_BYTES + body) as u32;
        // Do not write the bytes 8 to 15 of the entry's header. They hold the id of the request,
        // which the reply's header needs at the same place.
        head.in_out[..4].copy_from_slice(&len.to_ne_bytes());
        head.in_out[4..8].copy_from_slice(&error.to_ne_bytes());
        head.payload_bytes = body as u32;
        let commit_id = head.commit_id;
        self.entries[index].owner = Owner::Kernel;
        let command = self.command(index, COMMIT_AND_FETCH, commit_id).build();
        self.push(command.user_data(index as u64));
    }

    /// Returns the index of the entry whose request the caller has taken. Panics if this ring has
    /// no such entry.
    fn taken(&self, entry: &EntryId) -> usize {
        let index = entry.0 as usize;
        let owner = self.entries.get(index).map(|entry| entry.owner);
        assert_eq!(owner, Some(Owner::Taken), "the entry is of another ring");
        index
    }

    /// Handles all completions that have arrived.
    fn collect(&mut self) {
        loop {
            let Some(done) = self.ring.completion().next() else { return };
            if done.user_data() == WAKE_USER_DATA {
                self.is_woken = true;
                // If the completion lacks the flag `MORE`, the kernel has ended the poll, for
                // example because the completion queue was full. So start a new poll.
                if !cqueue::more(done.flags()) {
                    self.push_poll();
                }
            } else {
                self.complete(done.user_data() as usize, done.result());
            }
        }
    }

    /// Handles the completion of the command of an entry.
    fn complete(&mut self, index: usize, result: i32) {
        if result == 0 {
            self.entries[index].owner = Owner::Ready;
            self.ready.push_back(index as u32);
            return;
        }
        // A FUSE command has no positive result. Treat one as `EIO`.
        let errno = if result < 0 { Errno::from_raw_os_error(-result) } else { Errno::IO };
        match self.entries[index].owner {
            Owner::Registering { tries }
                if tries < TRIES_MAX && matches!(errno, Errno::AGAIN | Errno::INTR) =>
            {
                self.entries[index].owner = Owner::Registering { tries: tries + 1 };
                self.push_register(index);
            }
            _ => {
                self.entries[index].owner = Owner::Dead;
                self.failure = Some(errno);
                self.live -= 1;
            }
        }
    }

    fn push_poll(&mut self) {
        // A multishot poll completes once for each write to the eventfd, even if no thread ever
        // reads the eventfd. So no code reads it. Its counter only grows, but 64 bits never
        // overflow.
        let poll = opcode::PollAdd::new(WAKE, libc::POLLIN as u32).multi(true).build();
        self.push(Entry128::from(poll.user_data(WAKE_USER_DATA)));
    }

    fn push_register(&mut self, index: usize) {
        let (address, count) = self.memory.buffers(index);
        let command = self.command(index, REGISTER, 0).addr(Some(address)).build();
        let mut command = command.user_data(index as u64);
        // Set the field `len` of `struct io_uring_sqe`, the word at byte 24, through a pointer.
        // `UringCmd80` has no setter for it.
        const _: () = assert!(size_of::<Entry128>() == 128 && align_of::<Entry128>() >= 4);
        let len = (&raw mut command).cast::<u32>().wrapping_add(6);
        // SAFETY: the word is inside `command`, whose layout is that of `struct io_uring_sqe`, as
        // the kernel reads it.
        unsafe { len.write(count) };
        self.push(command);
    }

    /// Returns a command of the FUSE device with its `struct fuse_uring_cmd_req`.
    fn command(&self, index: usize, operation: u32, commit_id: u64) -> opcode::UringCmd80 {
        let mut request = [0; 80];
        request[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        request[16..18].copy_from_slice(&self.entries[index].queue.to_ne_bytes());
        opcode::UringCmd80::new(DEVICE, operation).cmd(request)
    }

    fn push(&mut self, command: Entry128) {
        // SAFETY: (1) A poll command names no memory. (2) All other commands name the memory of an
        // entry. That memory stays mapped until the command completes, or is abandoned (invariant
        // F.3). (3) Until then no reference to that memory is made, since the owner of the entry is
        // the kernel (invariant F.2).
        let pushed = unsafe { self.ring.submission().push(&command) };
        pushed.expect("the queue has space for one command per entry and the poll");
    }
}

/// Makes an io_uring(7) that is disabled at first. It belongs to the thread that enables it, so one
/// thread can make a ring for another thread.
///
/// With `DEFER_TASKRUN` the kernel writes requests into the ring's entries only while the ring's
/// thread waits in the kernel, and never interrupts that thread.
///
/// Measured time of a lookup (two clients, two rings, two processors): 18.5 us with
/// `DEFER_TASKRUN`, 19.4 us with `COOP_TASKRUN`, and 20.3 us with neither flag. Reads of
/// `/dev/fuse` took 25.0 us.
fn set_up(commands: u32) -> io::Result<Ring> {
    let deferring = Ring::builder()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(commands);
    match deferring {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            Ring::builder().setup_r_disabled().build(commands)
        }
        made => made,
    }
}

impl Drop for FuseRing {
    fn drop(&mut self) {
        let is_kernels =
            |entry: &Entry| matches!(entry.owner, Owner::Registering { .. } | Owner::Kernel);
        // Before `enable`, the kernel reads no commands of this ring. The kernel then does not know
        // the memory of the ring's entries, so the drop may unmap that memory.
        if self.is_started && self.entries.iter().any(is_kernels) {
            self.memory.abandon();
        }
    }
}

impl RingWaker {
    /// Makes the current or the next [`FuseRing::wait`] return. Does nothing if the ring was
    /// dropped.
    pub fn wake(&self) {
        let written = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        debug_assert!(written.is_ok(), "{written:?}");
    }
}

impl fmt::Debug for FuseRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FuseRing")
            .field("entries", &self.entries.len())
            .field("live", &self.live)
            .finish_non_exhaustive()
    }
}

// Miri knows no io_uring.
#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use corewalk_testkit::require::{Need, has_fuse, skip};

    use super::*;

    fn unmounted(depth: usize) -> Option<FuseRing> {
        if !has_fuse() {
            return None;
        }
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("a device");
        match FuseRing::new(device.as_fd(), &[0, 1], depth, 8192) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                skip(Need::Machine, "no io_uring");
                None
            }
            ring => Some(ring.expect("a ring")),
        }
    }

    #[test]
    fn ring_of_an_unmounted_device_has_no_live_entry() {
        let Some(mut ring) = unmounted(3) else { return };
        assert_eq!((ring.live(), ring.failure()), (6, None));
        while ring.live() > 0 {
            ring.wait().expect("a ring");
        }
        assert!(ring.failure().is_some());
        assert_eq!(ring.next_request(), None);
        // A dead ring does not wait.
        assert_eq!(ring.wait().expect("a ring"), Waited { is_woken: false });
        ring.waker().wake();
    }

    #[test]
    fn ring_that_never_waited_is_dropped() {
        drop(unmounted(1));
    }

    #[test]
    fn entry_that_the_kernel_owns_is_refused() {
        let Some(mut ring) = unmounted(1) else { return };
        for index in [0, 1, 2, u32::MAX] {
            let mut request = || assert_eq!(ring.request(&EntryId(index)).payload_len, 0);
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut request));
            assert!(refused.is_err(), "{index}");
            let mut reply = || ring.reply(EntryId(index), Ok(0));
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut reply));
            assert!(refused.is_err(), "{index}");
        }
    }

    #[test]
    fn size_out_of_range_is_refused() {
        let Some(_) = unmounted(1) else { return };
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("a device");
        for (queues, depth, payload) in [(0, 1, 8192), (1, 0, 8192), (1, 1, 0), (2, 1, usize::MAX)]
        {
            let queues = [0, 1].get(..queues).expect("few");
            let made = FuseRing::new(device.as_fd(), queues, depth, payload);
            let errno = made.map_err(corewalk_base::errno_of).err();
            assert_eq!(errno, Some(Errno::INVAL), "{queues:?} {depth} {payload}");
        }
    }
}
