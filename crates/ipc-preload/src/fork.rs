//! fork(2) with segments attached: the child has the segments attached too, and nattch counts it.
//!
//! Without segments, the child's first call notices the fork (`process`). A child with segments may
//! never make a call, and nattch must count it all the same. PostgreSQL takes `shm_nattch` as the
//! proof that no process of a server is left. So functions that the C library calls around a fork
//! register the child before fork(2) returns in it. The parent waits for the registration, so
//! nattch counts parent and child when fork(2) returns in the parent.
//!
//! The parent waits at a pipe whose other end only the child has open. The wait ends when the child
//! is registered or has died, or if the fork failed. If the child is stopped, the wait ends after
//! [`WAIT_MAX_S`] seconds. A child that a program makes by clone(2) through syscall(2) is
//! registered by its first call.
//!
//! A process without attached segments does not wait at a fork. If the parent is killed before its
//! child is counted, the parent's attaches stay counted until the child is counted (module `hold`).
//!
//! # Locks
//!
//! From before the fork to after it, the forking thread holds the lock of attached segments
//! (`AttachLock`) and blocks all signals. It does so even if nothing is attached yet, because
//! another thread may be about to attach. Fork handlers that are registered first run last before
//! the fork and first after it. This library is loaded before any library that might register fork
//! handlers. So no other library's fork handler runs under the lock.
//!
//! Source: pthread_atfork(3), fork(2); Linux `ipc/shm.c` (`shm_open`).

use corewalk_ipc::Task;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;

use crate::process::{self, AttachLock};
use crate::shm;

/// How long a parent waits for a child that is stopped, in seconds.
const WAIT_MAX_S: i64 = 30;

/// The state of a fork that is under way.
struct Forking {
    task: &'static Task,
    /// The read end and the write end of the pipe.
    pipe: Option<(OwnedFd, OwnedFd)>,
    _lock: AttachLock,
}

thread_local! {
    /// The fork that this thread makes, set from the fork handler `prepare` until `parent` or
    /// `child` runs. With `ManuallyDrop`, the end of the thread drops nothing.
    static FORKING: Cell<Option<ManuallyDrop<Forking>>> = const { Cell::new(None) };
}

/// Registers the fork handlers with the C library.
pub(crate) fn resolve() {
    if shm::is_on() {
        // SAFETY: the functions stay loaded: a preloaded library is never unloaded.
        let _registered = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

extern "C" fn prepare() {
    let Some(task) = process::own_task() else { return };
    let lock = AttachLock::take();
    // If nothing is attached, or no pipe can be made, the parent does not wait for the child.
    let pipe = (task.attached() != 0).then(|| pipe_with(PipeFlags::CLOEXEC));
    let pipe = pipe.and_then(Result::ok);
    FORKING.set(Some(ManuallyDrop::new(Forking { task, pipe, _lock: lock })));
}

extern "C" fn parent() {
    let Some(mut forking) = FORKING.take().map(ManuallyDrop::into_inner) else { return };
    let Some((from_child, to_parent)) = forking.pipe.take() else { return };
    drop(to_parent);
    let mut fds = [PollFd::new(&from_child, PollFlags::IN)];
    // All signals are blocked, so no signal interrupts the poll.
    let _waited = poll(&mut fds, Some(&Timespec { tv_sec: WAIT_MAX_S, tv_nsec: 0 }));
}

extern "C" fn child() {
    let Some(forking) = FORKING.take().map(ManuallyDrop::into_inner) else { return };
    if forking.task.attached() != 0 {
        process::register_child(forking.task);
    }
    // Dropping `forking` closes the pipe, so the parent continues. It also releases the lock of
    // attached segments, which unblocks the signals.
    drop(forking);
}
