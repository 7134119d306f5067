//! The hold of a task that has segments attached: what tells others of its children before those are counted.
//!
//! A child has attached what its parent has from its first instruction, and is counted a little later; one that is made
//! without the C library (clone(2) by number) with its first call, if ever. If the parent is killed in between its attaches are
//! all that says so. They stay for as long as its hold does: a mapping of a locked file (`corewalk_ipc::Backing`), which every
//! child has too, and gives up once it is counted. A mapping and not a descriptor: programs close those that they do not know.
//!
//! A child that may not open the folder of the segments any more keeps its parent's hold. If the parent is killed it
//! counts on with the child: the number of attaches is too high then, and never too low.
//!
//! # Locks
//!
//! The lock of `shm`, or there is one thread.
//!
//! Source: flock(2), mmap(2); Linux `fs/locks.c` (`locks_remove_file`).

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use corewalk_ipc::Task;
use libc::c_void;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use std::ptr;

/// The mapping, or null; in a child its parent's until it has one.
static HOLD: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Takes the hold of a task, which is about to have something attached.
pub(crate) fn take(task: &Task) {
    // ORDERING: Relaxed. One thread at a time.
    if HOLD.load(Ordering::Relaxed).is_null() {
        // ORDERING: Relaxed. As above.
        HOLD.store(map(task).unwrap_or(ptr::null_mut()), Ordering::Relaxed);
    }
}

/// Takes the hold of a child that is counted, in place of its parent's.
pub(crate) fn renew(task: &Task) {
    let Some(own) = map(task) else { return };
    // ORDERING: Relaxed. One thread at a time.
    unmap(HOLD.swap(own, Ordering::Relaxed));
}

/// Gives the hold up: nothing is attached any more.
pub(crate) fn give_up() {
    // ORDERING: Relaxed. One thread at a time.
    unmap(HOLD.swap(ptr::null_mut(), Ordering::Relaxed));
}

/// Leaves the parent's hold to itself, in a child that has what its parent had attached and does not know what.
pub(crate) fn leave() {
    // ORDERING: Relaxed. One thread at a time.
    HOLD.store(ptr::null_mut(), Ordering::Relaxed);
}

/// Maps the hold of a task. Without one its children are as good as those of a kernel that counts them late.
fn map(task: &Task) -> Option<*mut c_void> {
    let file = task.hold().ok()?;
    let flags = MapFlags::SHARED;
    // SAFETY: no address is asked for, so no mapping in use is replaced; nobody ever looks at this one.
    unsafe { mmap(ptr::null_mut(), page_size(), ProtFlags::empty(), flags, file, 0) }.ok()
}

fn unmap(hold: *mut c_void) {
    if !hold.is_null() {
        // SAFETY: the mapping is one of `map`, and its address was taken out of `HOLD`.
        let _unmapped = unsafe { munmap(hold, page_size()) };
    }
}
