//! The status word in the wait node of a waiting call. The task of the call sleeps on this word.
//!
//! | bits | meaning |
//! |---|---|
//! | 0 | `DONE`: the call has an outcome |
//! | 8-23 | the errno of the outcome |
//! | 30 | `AWAKE`: the task polls and does not sleep yet |
//! | 31 | `INTERRUPTED`: the call must give up |
//! | 32-63 | of a receiver: the line of its message |
//!
//! The status word is 0 while the task sleeps and has no reason to wake up. A call at a message
//! queue has two more bits (`msg::node`).

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

use crate::field::errno_of;

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

/// An `errno` of 0 is success.
pub(crate) fn done(errno: i32) -> u64 {
    DONE | u64::from(errno.cast_unsigned() & 0xffff) << ERRNO_SHIFT
}

pub(crate) fn outcome(status: u64) -> Option<Result<(), Errno>> {
    let errno = (status >> ERRNO_SHIFT & 0xffff) as i32;
    (status & DONE != 0).then(|| if errno == 0 { Ok(()) } else { Err(errno_of(errno)) })
}

/// Returns the status.
pub(crate) fn load(word: &AtomicU64) -> u64 {
    // ORDERING(ipc-status): Acquire. The thread that completes a call stores the status with
    // Release. Without this order, the task could miss stores made for its call.
    word.load(Ordering::Acquire)
}

/// Returns true if the call just waits. Such a call has no outcome, and no task has asked it to
/// give up or to check its queue again.
pub(crate) fn is_waiting(word: &AtomicU64) -> bool {
    load(word) as u32 & !(AWAKE as u32) == 0
}

/// Returns true if the call can still be interrupted.
pub(crate) fn is_interruptible(word: &AtomicU64) -> bool {
    // ORDERING: Relaxed. The returned value is only a hint, since the status word may change
    // immediately.
    word.load(Ordering::Relaxed) & (DONE | INTERRUPTED) == 0
}
