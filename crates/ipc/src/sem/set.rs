//! A set of semaphores: its place in the region, and the data that its lock protects.
//!
//! Each slot of the kind has one line for its set. The semaphores have one line each, in a range of
//! lines. So operations on different semaphores write no common line. Only the holder of the set's
//! lock writes the line of the set. An operation that is one compare-exchange does not even read
//! that line.
//!
//! The set's lock protects the words of the set's line and the queues in the lines of the
//! semaphores. It also protects the undo records of the set, and its wait nodes while their calls
//! wait. The word of a semaphore and its undo cells belong to the task that has frozen the word.

use corewalk_base::Line;
use corewalk_base::futex::Scope;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

use super::word::{TAG_MASK, Word};
use crate::field::{get, low, put};
use crate::ids::{self, Object};
use crate::lock::{Held, Owner};
use crate::shared::Shared;

// Words of a set's line.
pub(super) const LOCK: usize = 0;
/// The word with the payload of the live set, or 0. A call that has taken the lock compares this
/// word with the payload that its lookup found.
pub(super) const LIVE: usize = 1;
/// The list of all waiting calls that change a semaphore. In a semaphore's line, the same word is
/// the list of waiting calls of a single decrement.
pub(super) const ALTER_LIST: usize = 2;
/// The list of waiting calls of several operations that all wait for zero. In a semaphore's line,
/// the same word is the list of waiting calls of a single wait for zero.
pub(super) const CONST_LIST: usize = 3;
/// The word with the number of waiting calls of several operations.
pub(super) const COMPLEX_COUNT: usize = 4;
/// The undo records of the set.
pub(super) const UNDO_LIST: usize = 5;
/// [`COMMITTING`], [`OWED`], and [`SETTINGS`].
pub(super) const COMMIT: usize = 6;
/// The word with the ticket of the next waiting call, and the time of the last check for dead
/// tasks.
pub(super) const TICKET: usize = 7;

// Bits of `COMMIT`.
/// A logged change is being stored.
pub(super) const COMMITTING: u64 = 1;
/// The bit of `COMMIT` that says: calls were granted, and their tasks may have died before they
/// returned. The store that makes such a grant valid sets the bit. Recovery sets the bit too, since
/// it empties [`UNDO_LIST`] for a moment. A check that finds no unacknowledged grant clears the
/// bit.
pub(super) const OWED: u64 = 2;
/// The bits of `COMMIT` that count how often `SETVAL` or `SETALL` ran while [`OWED`] was set. The
/// count tells whether adjustments were cleared after a grant.
pub(super) const SETTINGS: u64 = SETTINGS_MAX << SETTINGS_SHIFT;
const SETTINGS_MAX: u64 = (1 << 14) - 1;
pub(super) const SETTINGS_SHIFT: u32 = 8;

// The indices of words in the line of a semaphore, apart from [`ALTER_LIST`] and [`CONST_LIST`].
// Words 6 and 7 of the first line belong to the pool.
pub(super) const WORD: usize = 0;
/// The word with the time of the last operation, and the tag of its set.
pub(super) const OTIME: usize = 1;
/// The word with the log of an operation without the set's lock, see `log`.
pub(super) const LOG: usize = 4;
/// The redo log of a semaphore: the new word that a change of several semaphores is about to store,
/// see `txn` and `several`.
pub(super) const REDO: usize = 5;

const BASE_BITS: u32 = 27;
const NSEMS_BITS: u32 = 16;
const TAG_SHIFT: u32 = BASE_BITS + NSEMS_BITS;

/// The number of low bits of the word [`TICKET`] that have the ticket. The other bits have a time
/// in milliseconds.
pub(super) const TICKET_BITS: u32 = 27;
pub(super) const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

/// The place of a set in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) base: u32,
    pub(super) nsems: u32,
    pub(super) tag: u64,
}

impl Place {
    pub(super) fn payload(self) -> u64 {
        u64::from(self.base) | u64::from(self.nsems) << BASE_BITS | self.tag << TAG_SHIFT
    }

    #[inline]
    pub(super) fn from_payload(payload: u64) -> Self {
        Self {
            base: (payload & ((1 << BASE_BITS) - 1)) as u32,
            nsems: (payload >> BASE_BITS & ((1 << NSEMS_BITS) - 1)) as u32,
            tag: payload >> TAG_SHIFT & TAG_MASK,
        }
    }
}

/// A set that a lookup has found. It may have been removed since.
#[derive(Clone, Copy)]
pub(super) struct Set<'s> {
    pub(super) shared: &'s Shared,
    pub(super) index: u32,
    pub(super) place: Place,
}

/// The held lock of a set. The set is live, or being repaired or removed.
pub(super) struct SetGuard<'s> {
    pub(super) set: Set<'s>,
    /// The task that holds the lock.
    pub(super) owner: Owner,
    /// The held lock. None while this thread repairs the set after it has taken the lock over from
    /// a dead task.
    pub(super) _held: Option<Held<'s>>,
}

impl<'s> Set<'s> {
    #[inline]
    pub(super) fn new(shared: &'s Shared, object: &Object) -> Self {
        Self { shared, index: object.index, place: Place::from_payload(object.payload) }
    }

    /// Returns the line of semaphore `num`. The number must be in range.
    #[inline]
    pub(super) fn sem(&self, num: u16) -> &'s Line {
        self.shared.region.line(self.place.base.wrapping_add(u32::from(num)))
    }

    /// Returns the present word of semaphore `num`.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the set is gone.
    #[inline]
    pub(super) fn word(&self, num: u16) -> Result<Word, Errno> {
        // ORDERING(ipc-word): Acquire. The caller sees the work that tasks did before their
        // operations on this semaphore.
        let word = Word(self.sem(num)[WORD].load(Ordering::Acquire));
        if word.is_of(self.place.tag) { Ok(word) } else { Err(Errno::IDRM) }
    }

    pub(super) fn line(&self) -> &'s Line {
        self.shared.region.line(self.shared.layout.sets + self.index)
    }

    /// Returns the set in slot `index`, if there is one.
    pub(super) fn at(shared: &'s Shared, index: u32) -> Option<Self> {
        let payload = get(&shared.region.line(shared.layout.sets + index)[LIVE]);
        (payload != 0).then(|| Set { shared, index, place: Place::from_payload(payload) })
    }

    /// Returns true if a dead process may have adjustments in the set, or a grant that its task has
    /// not acknowledged.
    pub(super) fn may_be_owed(&self) -> bool {
        let line = self.line();
        let is_any = get(&line[UNDO_LIST]) != 0 || get(&line[COMMIT]) & OWED != 0;
        self.shared.scope == Scope::Shared && is_any
    }

    /// Returns true if the slot still has this set, published or not.
    pub(super) fn is_there(&self) -> bool {
        get(&self.line()[LIVE]) == self.place.payload()
    }

    /// Returns true if a lookup can find the set.
    pub(super) fn is_published(&self) -> bool {
        let payload = ids::payload(self.shared, self.shared.layout.sem_ids, self.index);
        payload == Some(self.place.payload())
    }

    /// Returns true if the task numbered `task` holds the set's lock.
    pub(super) fn is_locked_by(&self, task: u32) -> bool {
        low(get(&self.line()[LOCK])) & !(1 << 31) == task + 1
    }

    /// Ends a freeze: stores the word `next` as not frozen.
    #[inline]
    pub(super) fn thaw(&self, num: u16, next: Word) {
        // ORDERING(ipc-word): Release. Pairs with `Set::word`: the next operation on this semaphore
        // sees the stores that this task made while the word was frozen.
        self.sem(num)[WORD].store(next.thaw().0, Ordering::Release);
    }

    /// Records `now_s` as the time of an operation on semaphore `num`.
    #[inline]
    pub(super) fn touch_otime(&self, num: u16, now_s: u64) {
        // This store of the time may come after the removal of the set. The time contains the tag
        // of the set, so the next set in these lines ignores it.
        let otime = self.place.tag << TAG_SHIFT | now_s & ((1 << TAG_SHIFT) - 1);
        let cell = &self.sem(num)[OTIME];
        if get(cell) != otime {
            put(cell, otime);
        }
    }

    /// Returns the time of the last operation in seconds, or 0.
    pub(super) fn otime(&self) -> u64 {
        let nums = 0..self.place.nsems as u16;
        let times = nums.map(|num| get(&self.sem(num)[OTIME]));
        let own = times.filter(|time| time >> TAG_SHIFT == self.place.tag);
        own.map(|time| time & ((1 << TAG_SHIFT) - 1)).max().unwrap_or(0)
    }
}

impl<'s> SetGuard<'s> {
    pub(super) fn field(&self, word: usize) -> &'s AtomicU64 {
        &self.set.line()[word]
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn place_survives_its_payload() {
        let place = Place { base: (1 << BASE_BITS) - 1, nsems: 32_000, tag: TAG_MASK };
        assert_eq!(Place::from_payload(place.payload()), place);
        let other = Place { base: 1, nsems: 1, tag: 1 };
        assert_eq!(Place::from_payload(other.payload()), other);
    }
}
