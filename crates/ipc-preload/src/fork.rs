//! Handles fork(2) in a process with shared-memory segments attached. The child has these segments
//! attached too, so nattch must count the child.
//!
//! A child may never make an IPC call, but nattch must count it all the same. For example,
//! PostgreSQL checks `shm_nattch` to prove that no process of a server is left.
//!
//! Fork handlers of the C library register the child before fork(2) returns in it. The parent waits
//! for the registration, so nattch counts parent and child when fork(2) returns in the parent.
//!
//! If no segment is attached, the parent does not wait. The child's first IPC call then notices the
//! fork and registers the child (module `process`).
//!
//! The parent waits at a pipe whose other end only the child has open. The end is closed when the
//! child is registered or dies, or if the fork fails. If the child is stopped, the wait ends after
//! [`WAIT_MAX_S`] seconds.
//!
//! A child that is made by clone(2) through syscall(2) runs no fork handler. Its first IPC call
//! registers it.
//!
//! If a parent is killed before its child is registered, nattch keeps counting the parent's
//! attaches until the child is registered (module `hold`).
//!
//! # Locks
//!
//! If the process is registered in the namespace, the forking thread takes the lock of attached
//! segments (`AttachLock`) before the fork and blocks all signals. After the fork it releases the
//! lock and unblocks the signals. The lock is needed even if nothing is attached yet, since another
//! thread may be about to attach.
//!
//! No fork handler of another library runs under the lock: the handler that was registered first
//! runs last before the fork, and first after it. This library is loaded before all others.
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

const WAIT_MAX_S: i64 = 30;

/// The state of a fork that is under way.
struct Forking {
    task: &'static Task,
    /// The read end and the write end of the pipe.
    pipe: Option<(OwnedFd, OwnedFd)>,
    _lock: AttachLock,
}

thread_local! {
    /// The fork that this thread is making. If the thread ends, its drop must not release the lock
    /// and close the pipe, so the value is a `ManuallyDrop`.
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
    // The parent waits at this pipe until nattch counts the child.
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
    // The drop of `forking` closes the child's end of the pipe, so the parent continues. It also
    // releases the lock of attached segments and unblocks the signals.
    drop(forking);
}
