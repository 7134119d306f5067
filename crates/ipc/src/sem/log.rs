//! What an operation that has frozen a word without the set's lock says about itself.
//!
//! One word of the semaphore's line, which belongs to whoever has frozen the semaphore's word. If the task
//! dies, it says what is to be done:
//!
//! | kind | says | then |
//! |---|---|---|
//! | single | which adjustment is being changed, and what it was | the adjustment is put back |
//! | several | which of the semaphores involved is the first | what the first one says goes for all |
//! | several, committed | only of the first | the words become what is logged in `REDO` |
//!
//! In all cases but the last, the word is thawed with the value that it still has.
//!
//! A log belongs to a freeze if its phase is that of the frozen word. The phase turns at each end of a freeze, so
//! a log from the last but one would look like it: so every freeze writes this word, if only to make it void.
//!
//! Source: research on crash-safe undo.

use super::set::{LOG, Set};
use super::word::Word;
use crate::field::get;
use corewalk_base::primitives::atomic::Ordering;

const VALID: u64 = 1 << 63;
const PHASE_SHIFT: u32 = 62;
const SEVERAL: u64 = 1 << 61;
const COMMITTED: u64 = 1 << 60;
const ADJ_SHIFT: u32 = 32;

/// What a log says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Log {
    /// Nothing.
    Void,
    /// An adjustment is being changed.
    Single {
        /// The undo record.
        record: u32,
        /// What it was.
        adj: i32,
    },
    /// The word is one of several.
    Several {
        /// The first of them.
        first: u16,
        /// Whether all of them are to become what is logged.
        is_committed: bool,
    },
}

impl Log {
    /// Returns what is logged for the freeze that has left `word` in semaphore `num`.
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

    /// Logs this for the freeze of semaphore `num`, whose word was or is `word`.
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
        // ORDERING(ipc-undo): Release. The log is in place before what it speaks of is changed, and
        // after what it promises is there.
        set.sem(num)[LOG].store(log, Ordering::Release);
    }
}
