//! The status word of a waiting call. Its task sleeps on this word.
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | `DONE`: the call has an outcome |
//! | 8-23 | the errno of the outcome |
//! | 30 | `AWAKE`: the task polls and does not sleep yet |
//! | 31 | `INTERRUPTED`: the call must give up |
//! | 32-63 | of a receiver: the line of its message |
//!
//! A word of 0 means that the call waits. Calls at message queues have two more bits (`msg::node`).

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

use crate::field::errno_of;

/// The index of the status word in the first line of a node.
pub(crate) const STATUS: usize = 0;

/// The call has an outcome.
pub(crate) const DONE: u64 = 1;
/// Asks a waiting task to give up with `EINTR`.
pub(crate) const INTERRUPTED: u64 = 1 << 31;
/// The task of the call polls and does not sleep yet, so it needs no wake-up.
pub(crate) const AWAKE: u64 = 1 << 30;

const ERRNO_SHIFT: u32 = 8;
/// The bits of [`DONE`] and the errno.
pub(crate) const DONE_BITS: u64 = DONE | 0xffff << ERRNO_SHIFT;

/// Returns the status of a call with the outcome `errno`; 0 is success.
pub(crate) fn done(errno: i32) -> u64 {
    DONE | u64::from(errno.cast_unsigned() & 0xffff) << ERRNO_SHIFT
}

/// Returns the outcome in a status, or none if the call still waits.
pub(crate) fn outcome(status: u64) -> Option<Result<(), Errno>> {
    let errno = (status >> ERRNO_SHIFT & 0xffff) as i32;
    (status & DONE != 0).then(|| if errno == 0 { Ok(()) } else { Err(errno_of(errno)) })
}

/// Returns the status.
pub(crate) fn load(word: &AtomicU64) -> u64 {
    // ORDERING(ipc-status): Acquire. The task sees the work of the thread that has completed its
    // call.
    word.load(Ordering::Acquire)
}

/// Returns true if the call still waits: it has no outcome, and was neither asked to give up nor,
/// at a message queue, asked to check again. The task of such a call polls or sleeps.
pub(crate) fn is_waiting(word: &AtomicU64) -> bool {
    load(word) as u32 & !(AWAKE as u32) == 0
}

/// Returns true if the call can still be interrupted.
pub(crate) fn is_interruptible(word: &AtomicU64) -> bool {
    // ORDERING: Relaxed. Only a hint: the waiting task takes the lock before it gives up.
    word.load(Ordering::Relaxed) & (DONE | INTERRUPTED) == 0
}
