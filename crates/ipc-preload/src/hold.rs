//! The hold of a task: a locked file, which the task maps while it has segments attached.
//!
//! A killed task may have children that nattch does not count yet. Each child inherits the mapping
//! of the task's hold. So while any process has this hold mapped, recovery does not subtract the
//! dead task's attaches from nattch.
//!
//! A child has its parent's segments attached as soon as it runs. But nattch counts it a little
//! later, or, after clone(2) through syscall(2), at its first IPC call.
//!
//! A child unmaps its parent's hold (a locked file) once nattch counts the child. The hold
//! (`corewalk_ipc::Backing`) is a mapping and not a descriptor, because some programs close all
//! descriptors that they did not open.
//!
//! A child that may not open the directory of segments keeps the hold (the mapping of a locked
//! file) of its parent. If that parent is killed, nattch counts the parent's attaches until the
//! child ends. So nattch may be too high, but never too low.
//!
//! # Locks
//!
//! The functions of this module run on one thread at a time: under the lock of attached segments
//! (`AttachLock`), before the process has a task, or while it has only one thread.
//!
//! Source: flock(2), mmap(2); Linux `fs/locks.c` (`locks_remove_file`).

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use corewalk_ipc::Task;
use libc::c_void;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use std::ptr;

/// After a fork, a child has its parent's hold (a locked file) mapped here, until it has mapped its
/// own.
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

/// Leaves the parent's hold (a locked file) mapped until the process ends, since a child does not
/// know which segments it has attached.
pub(crate) fn leave() {
    // ORDERING: Relaxed. One thread at a time.
    HOLD.store(ptr::null_mut(), Ordering::Relaxed);
}

/// If the hold (a locked file) cannot be mapped and the task is killed, nattch drops its attaches
/// immediately, even if children use the segments.
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
