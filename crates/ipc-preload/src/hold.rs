//! The hold: a locked file of a task with segments attached, which child processes inherit. While
//! any process has the hold, the recovery of the namespace does not subtract the task's attaches
//! from nattch, even if the task's process was killed. The attaches stand for children that are not
//! counted yet.
//!
//! A child has the segments of its parent attached from its first instruction on, and is counted a
//! little later. A child that a program makes by clone(2) through syscall(2) is counted at its
//! first call, if it makes one. If the parent is killed before the child is counted, only the
//! attaches of the parent stand for the child. They stay as long as any process has the parent's
//! hold.
//!
//! The hold is a mapping of a locked file (`corewalk_ipc::Backing`). Every child inherits the
//! mapping, and unmaps it once the child is counted. The hold is a mapping and not a descriptor,
//! because some programs close all descriptors that they did not open.
//!
//! A child that may not open the directory of segments keeps its parent's hold. If that parent is
//! killed, its attaches stay until the child ends. So nattch may be too high, and is never too low.
//!
//! # Locks
//!
//! All functions run under the lock of attached segments (`AttachLock`), or before the process has
//! a task, or while it has one thread.
//!
//! Source: flock(2), mmap(2); Linux `fs/locks.c` (`locks_remove_file`).

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use corewalk_ipc::Task;
use libc::c_void;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use std::ptr;

/// The address at which the hold (a locked file) is mapped, or null. In a child it is the parent's
/// hold, until the child has its own.
static HOLD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Maps the hold of a task that attaches its first segment.
pub(crate) fn take(task: &Task) {
    // ORDERING: Relaxed. One thread at a time.
    if HOLD.load(Ordering::Relaxed).is_null() {
        // ORDERING: Relaxed. As above.
        HOLD.store(map(task).unwrap_or(ptr::null_mut()), Ordering::Relaxed);
    }
}

/// Replaces the parent's hold, once the child is counted.
pub(crate) fn renew(task: &Task) {
    let Some(own) = map(task) else { return };
    // ORDERING: Relaxed. One thread at a time.
    unmap(HOLD.swap(own, Ordering::Relaxed));
}

/// Unmaps the hold when no segment is attached any more.
pub(crate) fn give_up() {
    // ORDERING: Relaxed. One thread at a time.
    unmap(HOLD.swap(ptr::null_mut(), Ordering::Relaxed));
}

/// Leaves the parent's hold (a locked file) mapped for good, for a child that does not know which
/// segments it has attached.
pub(crate) fn leave() {
    // ORDERING: Relaxed. One thread at a time.
    HOLD.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Maps the hold of a task, or returns none. Without a hold (a locked file that children inherit),
/// the attaches of a killed parent are removed at once, although a child may not be counted yet.
fn map(task: &Task) -> Option<*mut c_void> {
    let file = task.hold().ok()?;
    let flags = MapFlags::SHARED;
    // SAFETY: the call names no address, so it replaces no mapping in use. The pages of the hold
    // are never accessed.
    unsafe { mmap(ptr::null_mut(), page_size(), ProtFlags::empty(), flags, file, 0) }.ok()
}

fn unmap(hold: *mut c_void) {
    if !hold.is_null() {
        // SAFETY: `map` has made the mapping, and its address was taken out of `HOLD`.
        let _unmapped = unsafe { munmap(hold, page_size()) };
    }
}
