//! The word of a semaphore. It contains all that the compare-exchange of an operation must check or
//! change.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0-14 | value | `semval` |
//! | 15 | alter | a single decrement may wait: an increment takes the set's lock |
//! | 16 | zero | a single wait for zero may exist: a change to zero takes the set's lock |
//! | 17 | complex | a call of several operations may wait: any change takes the set's lock |
//! | 18 | frozen | only the task in `pid` may change the word and the semaphore's undo cells |
//! | 19 | dead | the set is gone |
//! | 20 | phase | flips at each end of a freeze, so it tells which undo log is of this freeze |
//! | 21-41 | tag | the set of the semaphore |
//! | 42-63 | pid | `sempid`; in a frozen word see below |
//!
//! In a frozen (locked) word, the pid field contains the number of the task that froze the word.
//! The highest bit of the field says whether that task holds the set's lock.
//!
//! The word of a semaphore is in one of three states:
//! - Live: it can be frozen (locked) and thawed (unlocked).
//! - Frozen: it keeps its value, tag and other bits. So recovery can thaw the word of a dead task
//!   unchanged. Only the pid of the last operation is lost: `sempid` is then that of the dead task.
//! - Dead: its set was removed. A later set makes the word live again, with another tag.
//!
//! A new set gets cache lines that earlier sets have used, and that contain the tags (version
//! numbers) of those sets. The new set's tag is one more than the newest of them. So a late
//! operation on an earlier set notices the change.
//!
//! The generation of an id could not serve as the tag (version number) of a set. Sets in different
//! slots may have the same generation, and a line may pass from one slot's set to another's.
//!
//! While a call waits, its bit for waiting calls (`alter`, `zero` or `complex`) is always set. The
//! call first freezes (locks) the semaphore's word, and then finds that it must wait. The store
//! that thaws (unlocks) the word also sets the bit. No other task can change the word in between,
//! so no wake-up is lost (trap I5 in `traps.md`).

/// A copy of a semaphore's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

/// A decrement may wait.
pub(super) const ALTER: u64 = 1 << 15;
/// A wait for zero may exist.
pub(super) const ZERO: u64 = 1 << 16;
/// A call of several operations may wait.
pub(super) const COMPLEX: u64 = 1 << 17;
const FROZEN: u64 = 1 << 18;
const DEAD: u64 = 1 << 19;
const PHASE: u64 = 1 << 20;

const VALUE: u64 = (1 << 15) - 1;
const WAITERS: u64 = ALTER | ZERO | COMPLEX;
const TAG_SHIFT: u32 = 21;
const PID_SHIFT: u32 = 42;

/// The bits of a frozen (locked) word's pid field that contain the number of the task. `IS_LOCKED`
/// is set if the task holds the set's lock.
const OWNER: u32 = IS_LOCKED - 1;
const IS_LOCKED: u32 = 1 << 21;

/// Tags: 21 bits.
pub(super) const TAG_MASK: u64 = (1 << 21) - 1;

impl Word {
    /// Returns the word of a new semaphore.
    pub(super) fn new(tag: u64) -> Self {
        Self((tag & TAG_MASK) << TAG_SHIFT)
    }

    #[inline]
    pub(super) fn value(self) -> i32 {
        (self.0 & VALUE) as i32
    }

    #[inline]
    pub(super) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT & TAG_MASK
    }

    #[inline]
    pub(super) fn pid(self) -> u32 {
        (self.0 >> PID_SHIFT) as u32
    }

    /// The removal of a set marks its words as dead. A dead word belongs to no set.
    #[inline]
    pub(super) fn is_of(self, tag: u64) -> bool {
        (self.0 ^ tag << TAG_SHIFT) & (TAG_MASK << TAG_SHIFT | DEAD) == 0
    }

    #[inline]
    pub(super) fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    #[inline]
    pub(super) fn waiters(self) -> u64 {
        self.0 & WAITERS
    }

    #[inline]
    pub(super) fn phase(self) -> u64 {
        self.0 >> 20 & 1
    }

    /// Returns true if an operation may make a waiting call possible. The operation adds `op`, and
    /// the new value is `result`.
    #[inline]
    pub(super) fn concerns(self, op: i32, result: i32) -> bool {
        let waiters = self.waiters();
        waiters != 0
            && op != 0
            && (waiters & COMPLEX != 0
                || (op > 0 && waiters & ALTER != 0)
                || (result == 0 && waiters & ZERO != 0))
    }

    /// Returns the word with another value and pid.
    #[inline]
    pub(super) fn with(self, value: i32, pid: u32) -> Self {
        let kept = self.0 & !(VALUE | u64::MAX << PID_SHIFT);
        Self(kept | u64::from(value.cast_unsigned()) & VALUE | u64::from(pid) << PID_SHIFT)
    }

    #[inline]
    pub(super) fn with_waiters(self, waiters: u64) -> Self {
        Self(self.0 & !WAITERS | waiters & WAITERS)
    }

    /// Returns the word frozen by the task numbered `owner`.
    #[inline]
    pub(super) fn freeze(self, owner: u32) -> Self {
        Self(self.with(self.value(), owner & OWNER).0 | FROZEN)
    }

    /// Returns the word frozen by a task that holds the set's lock.
    #[inline]
    pub(super) fn freeze_locked(self, owner: u32) -> Self {
        Self(self.with(self.value(), owner & OWNER | IS_LOCKED).0 | FROZEN)
    }

    /// Returns the number of the task that froze the word.
    pub(super) fn frozen_by(self) -> u32 {
        self.pid() & OWNER
    }

    /// Returns true if the word was frozen under the set's lock.
    pub(super) fn is_frozen_locked(self) -> bool {
        self.is_frozen() && self.pid() & IS_LOCKED != 0
    }

    /// Returns the word thawed, with a flipped phase bit (module `log`).
    #[inline]
    pub(super) fn thaw(self) -> Self {
        Self(self.0 & !FROZEN ^ PHASE)
    }

    /// Returns the word of a semaphore whose set is gone.
    pub(super) fn dead(self) -> Self {
        Self(self.0 & !(FROZEN | WAITERS | VALUE) | DEAD)
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let word = Word::new(TAG_MASK).with(32_767, (1 << 22) - 1);
        assert_eq!((word.value(), word.tag(), word.pid()), (32_767, TAG_MASK, (1 << 22) - 1));
        assert!(word.is_of(TAG_MASK) && !word.is_of(TAG_MASK - 1) && !word.is_frozen());
        let frozen = word.with_waiters(ALTER | ZERO | COMPLEX).freeze(5);
        assert!(frozen.is_frozen() && frozen.is_of(TAG_MASK));
        assert_eq!((frozen.value(), frozen.pid()), (32_767, 5));
        assert_eq!(frozen.waiters(), ALTER | ZERO | COMPLEX);
        let locked = word.freeze_locked(crate::layout::TASKS_MAX);
        assert!(locked.is_frozen_locked() && !frozen.is_frozen_locked());
        assert_eq!((locked.frozen_by(), frozen.frozen_by()), (crate::layout::TASKS_MAX, 5));
        let thawed = frozen.with(0, 9).with_waiters(0).thaw();
        assert_eq!(thawed, Word(Word::new(TAG_MASK).with(0, 9).0 | PHASE));
        assert!(!thawed.dead().is_of(TAG_MASK));
    }

    #[test]
    fn changes_concern_those_whom_they_may_let_go_on() {
        let word = |waiters| Word::new(1).with_waiters(waiters);
        assert!(!word(0).concerns(1, 1));
        assert!(word(ALTER).concerns(1, 1) && !word(ALTER).concerns(-1, 0));
        assert!(word(ZERO).concerns(-1, 0) && !word(ZERO).concerns(-1, 1));
        assert!(word(COMPLEX).concerns(1, 1) && word(COMPLEX).concerns(-1, 1));
        assert!(!word(ALTER | ZERO | COMPLEX).concerns(0, 0));
    }
}
