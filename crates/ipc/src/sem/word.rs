//! The word of a semaphore: everything that one step of an operation has to agree on.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0-14 | value | `semval` |
//! | 15 | alter | a single decrement may wait here: who increments takes the set's lock |
//! | 16 | zero | a single wait for zero may be here: who reaches zero takes the set's lock |
//! | 17 | complex | a call of several operations may wait: who changes the value takes the set's lock |
//! | 18 | frozen | nobody but the task in `pid` changes the word, or the undo cells of the semaphore |
//! | 19 | dead | the set is gone |
//! | 20 | phase | turns at each end of a freeze; says which undo log belongs to this freeze |
//! | 21-41 | tag | which set the semaphore belongs to |
//! | 42-63 | pid | `sempid`; while frozen, the number of the task that froze it, and in the highest bit whether it did so under the set's lock |
//!
//! States: live (neither frozen nor dead) <-> frozen; live -> dead -> live with another tag, when
//! the line serves another set. A frozen word keeps value, bits and tag, so a freeze whose owner
//! died before it had done anything is taken back without knowing anything else, except who was
//! last: that is then the one who died.
//!
//! The tag is one more than the last tag of each line that the set takes, and not the generation of
//! the id: two sets in a row on one line have different indices and may have the same generation.
//!
//! The bits for waiters may be set for nobody (whoever takes the lock next clears them), but are
//! never clear while somebody waits: they are set by the store that ends the freeze in which the
//! waiter found that it has to wait (trap I5).

/// A copy of a semaphore's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

/// A decrement may wait.
pub(super) const ALTER: u64 = 1 << 15;
/// A wait for zero may be there.
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

/// Of the pid of a frozen word: the owner, and that it holds the set's lock.
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

    /// Returns true if the word belongs to a set with this tag that is still there.
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

    /// Returns true if a change by `op` to `result` may let somebody go on.
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

    /// Returns the word frozen by the task numbered `owner`, which holds the set's lock.
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

    /// Returns the word as the end of a freeze leaves it; `self` is the word before or after it.
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
