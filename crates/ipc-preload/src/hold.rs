//! The hold of a task (`corewalk_ipc::Backing`): a locked file that the task maps while it has
//! segments attached. Children inherit this mapping.
//!
//! A child has its parent's segments attached as soon as it runs. But nattch counts the child a
//! little later, or, after clone(2) through syscall(2), only at its first IPC call. If the parent
//! is killed before that, its hold is still mapped in the child. While any process has this hold
//! mapped, recovery does not subtract the dead parent's attaches from nattch.
//!
//! Once nattch counts the child, the child unmaps its parent's hold. A child that may not open the
//! directory of segments keeps its parent's hold mapped until it has detached its segments or ends.
//! If the parent is killed, nattch counts the parent's attaches for as long. So nattch may be too
//! high, but never too low.
//!
//! The hold is a mapping and not a descriptor, because some programs close all descriptors that
//! they did not open.
//!
//! # Locks
//!
//! The functions of this module run on one thread at a time. They run under the lock of attached
//! segments (`AttachLock`), before the process has a task, or while it has only one thread.
//!
//! Source: flock(2), mmap(2); Linux `fs/locks.c` (`locks_remove_file`).

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use corewalk_ipc::Task;
use libc::c_void;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use std::ptr;

/// The address of the mapped hold, or null. After a fork, this is the parent's hold until the child
/// has mapped its own.
static HOLD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Maps the hold of a task that attaches its first segment.
pub(crate) fn take(task: &Task) {
    // ORDERING: Relaxed. One thread at a time uses `HOLD`; see "Locks" above.
    if HOLD.load(Ordering::Relaxed).is_null() {
        // ORDERING: Relaxed. As above.
        HOLD.store(map(task).unwrap_or(ptr::null_mut()), Ordering::Relaxed);
    }
}

/// Replaces the parent's hold by the child's own. nattch must count the child already.
pub(crate) fn renew(task: &Task) {
    let Some(own) = map(task) else { return };
    // ORDERING: Relaxed. One thread at a time uses `HOLD`; see "Locks" above.
    unmap(HOLD.swap(own, Ordering::Relaxed));
}

/// Unmaps the hold when no segment is attached any more.
pub(crate) fn give_up() {
    // ORDERING: Relaxed. One thread at a time uses `HOLD`; see "Locks" above.
    unmap(HOLD.swap(ptr::null_mut(), Ordering::Relaxed));
}

/// Keeps the parent's hold mapped until the process ends. This is for a child that does not know
/// which segments it has attached.
pub(crate) fn leave() {
    // ORDERING: Relaxed. One thread at a time uses `HOLD`; see "Locks" above.
    HOLD.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Maps the hold of a task. Returns None if that fails. If the task is then killed, nattch drops
/// its attaches immediately, even if children still use the segments.
fn map(task: &Task) -> Option<*mut c_void> {
    let file = task.hold().ok()?;
    let flags = MapFlags::SHARED;
    // SAFETY: the call names no address, so it replaces no mapping in use. The pages of the mapped
    // file are never accessed, since only the existence of the mapping matters.
    unsafe { mmap(ptr::null_mut(), page_size(), ProtFlags::empty(), flags, file, 0) }.ok()
}

fn unmap(hold: *mut c_void) {
    if !hold.is_null() {
        // SAFETY: `map` has made the mapping, and its address was taken out of `HOLD`.
        let _unmapped = unsafe { munmap(hold, page_size()) };
    }
}
