//! Semaphore sets: semget(2), semop(2), semctl(2).
//!
//! | module | has |
//! |---|---|
//! | `word` | the word of a semaphore: value, waiting calls, frozen, dead, tag, pid |
//! | `set` | where a set is in the region, and the data that its lock protects |
//! | `op` | semop: one compare-exchange if possible, otherwise the set's lock |
//! | `several` | several operations without the set's lock, if no call waits |
//! | `txn` | changes of several semaphores as one |
//! | `node` | a waiting call |
//! | `queue` | the order in which waiting calls are completed |
//! | `undo` | the adjustments of tasks |
//! | `log` | the record of an operation, which recovery uses if the task dies |
//! | `freeze` | freezing words under the lock, and the freezes of dead tasks |
//! | `recover` | the set's lock, and repair after the death of its holder |
//! | `reap` | cleanup of the freezes, waiting calls and undo records of a dead task |
//! | `ctl` | semget and semctl |
//!
//! Source: Linux `ipc/sem.c` for the semantics. The crate's documentation describes the design.

#[cfg(all(test, corewalk_crash))]
pub(crate) mod audit;
#[cfg(all(test, corewalk_crash))]
mod crash_models;
mod ctl;
mod freeze;
mod log;
#[cfg(all(test, corewalk_loom))]
pub(crate) mod models;
mod node;
mod op;
mod queue;
mod reap;
mod recover;
mod set;
mod several;
mod txn;
mod undo;
mod word;

pub(crate) use op::exit_sem;
pub(crate) use reap::{look_at_waits, reap, settle};
pub(crate) use recover::SETS;
pub(crate) use undo::Undos;

use rustix::io::Errno;

use crate::flags::SemFlags;
use crate::limits::SEMVMX;

pub use ctl::{
    GETALL, GETNCNT, GETPID, GETVAL, GETZCNT, SEM_INFO, SEM_STAT, SEM_STAT_ANY, SETALL, SETVAL,
    SemStat, SemTotals,
};

/// One operation of a semop(2) call, with the layout of `struct sembuf`.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{SemBuf, SemFlags};
///
/// let take = SemBuf::new(3, -1, SemFlags::NOWAIT | SemFlags::UNDO);
/// assert_eq!((take.sem_num, take.sem_op), (3, -1));
/// ```
#[doc(alias = "sembuf")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SemBuf {
    /// The number of the semaphore in its set.
    pub sem_num: u16,
    /// The number that the operation adds. If it is 0, the operation waits until the semaphore is
    /// zero.
    pub sem_op: i16,
    /// The flags of the operation: whether it may wait, and whether it is undone when the task
    /// ends.
    pub sem_flg: SemFlags,
}

impl SemBuf {
    /// Returns an operation.
    #[must_use]
    pub const fn new(sem_num: u16, sem_op: i16, sem_flg: SemFlags) -> Self {
        Self { sem_num, sem_op, sem_flg }
    }

    #[inline]
    fn is_undo(self) -> bool {
        self.sem_flg.contains(SemFlags::UNDO)
    }

    #[inline]
    fn is_nowait(self) -> bool {
        self.sem_flg.contains(SemFlags::NOWAIT)
    }

    #[inline]
    fn apply(self, value: i32) -> Result<i32, Errno> {
        match value + i32::from(self.sem_op) {
            ..0 => Err(Errno::AGAIN),
            1.. if self.sem_op == 0 => Err(Errno::AGAIN),
            result @ ..=SEMVMX => Ok(result),
            _ => Err(Errno::RANGE),
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
pub(crate) mod dead;
#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod stopped;
#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
