//! The log of an operation that has frozen (locked) a semaphore's word without the set's lock.
//!
//! The task that freezes (locks) a semaphore's word writes the log, which is the word `LOG` in the
//! cache line of the semaphore. The table shows what recovery does with the log of a dead task.
//!
//! | kind | content | recovery |
//! |---|---|---|
//! | single | the changed undo record, and the old adjustment | restores the old adjustment |
//! | several | the number of the call's first semaphore | follows the log of that semaphore |
//! | several, committed | only in the log of the first semaphore | stores the words from `REDO` |
//!
//! Recovery also thaws (unlocks) the semaphore's word. After a committed call of several operations
//! it stores the new word from `REDO`. Otherwise the word keeps its present value.
//!
//! `LOG` may still contain the log of an earlier operation. So a log contains a phase bit, which
//! must equal the phase bit of the frozen word. The store that thaws (unlocks) the word flips its
//! phase bit.
//!
//! The phase bit has its old value again after two operations. So each operation that freezes
//! (locks) the semaphore's word must write a log, even if the log is empty ([`Log::Void`]).

use super::set::{LOG, Set};
use super::word::Word;
use crate::field::get;
use corewalk_base::primitives::atomic::Ordering;

const VALID: u64 = 1 << 63;
const PHASE_SHIFT: u32 = 62;
const SEVERAL: u64 = 1 << 61;
const COMMITTED: u64 = 1 << 60;
const ADJ_SHIFT: u32 = 32;

/// The content of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    /// The log is void.
    Void,
    /// An adjustment is being changed.
    Single {
        /// The undo record.
        record: u32,
        /// The adjustment before.
        adj: i32,
    },
    /// The call changes several semaphores, and this word is one of them.
    Several {
        /// The first semaphore of the call.
        first: u16,
        /// Whether recovery must store the words in `REDO`.
        is_committed: bool,
    },
}

impl Log {
    pub(super) fn read(set: &Set<'_>, num: u16, word: Word) -> Self {
        let log = get(&set.sem(num)[LOG]);
        if log & VALID == 0 || log >> PHASE_SHIFT & 1 != word.phase() {
            return Self::Void;
        }
        if log & SEVERAL != 0 {
            return Self::Several { first: log as u16, is_committed: log & COMMITTED != 0 };
        }
        Self::Single { record: log as u32, adj: i32::from((log >> ADJ_SHIFT) as u16 as i16) }
    }

    /// Stores the log of semaphore `num`. The log gets the phase bit of `word`, the semaphore's
    /// present word. By this bit, recovery tells the log from that of an earlier operation.
    #[inline]
    pub(super) fn write(self, set: &Set<'_>, num: u16, word: Word) {
        let phase = VALID | word.phase() << PHASE_SHIFT;
        let log = match self {
            Self::Void => 0,
            Self::Single { record, adj } => {
                phase | u64::from(adj as i16 as u16) << ADJ_SHIFT | u64::from(record)
            }
            Self::Several { first, is_committed } => {
                let committed = if is_committed { COMMITTED } else { 0 };
                phase | SEVERAL | committed | u64::from(first)
            }
        };
        // ORDERING(ipc-undo): Release. Recovery reads this log after a death. Without this order,
        // it could see the log but not the words stored in `REDO`.
        set.sem(num)[LOG].store(log, Ordering::Release);
    }
}
