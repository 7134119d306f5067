//! A set of semaphores: where its parts are in shared memory, and the data that its lock protects.
//!
//! Each set and each semaphore has a cache line of its own, so operations on different semaphores
//! write no common line. Only the holder of the set's lock writes the set's line. An operation that
//! is a single compare-exchange does not even read the set's line.
//!
//! The set's lock protects:
//! - the set's line, and the queues of waiting calls in the semaphores' lines;
//! - the undo records of the set, and the wait nodes of calls that wait at the set.
//!
//! A task may freeze (lock) the word of a semaphore. Then only this task may change the word and
//! the semaphore's undo adjustments.

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
/// The payload of the set in this slot, or 0. It says where the set's semaphores are, and contains
/// the set's tag. A call that has taken the lock compares this word with the payload of its lookup,
/// since the set may have been removed in between.
pub(super) const LIVE: usize = 1;
/// The word with the ends of a list. In the set's line, the list has all waiting calls that change
/// a semaphore. In a semaphore's line, it has the single decrements that wait at the semaphore.
pub(super) const ALTER_LIST: usize = 2;
/// The word with the ends of a list. In the set's line, the list has the calls with several waits
/// for zero. In a semaphore's line, it has the single waits for zero at the semaphore.
pub(super) const CONST_LIST: usize = 3;
/// The word with the number of waiting calls of several operations.
pub(super) const COMPLEX_COUNT: usize = 4;
/// The word with the ends of the list of the set's undo records.
pub(super) const UNDO_LIST: usize = 5;
/// [`COMMITTING`], [`OWED`], and [`SETTINGS`].
pub(super) const COMMIT: usize = 6;
/// The ticket of the next waiting call (its number in the order of arrival), and the time of the
/// last check for dead tasks.
pub(super) const TICKET: usize = 7;

// Bits of `COMMIT`.
/// A logged change is being stored.
pub(super) const COMMITTING: u64 = 1;
/// A bit of `COMMIT`: a task may have died after another task completed its waiting call. A
/// transaction that completes a waiting call sets the bit. Recovery sets it too. A call that looks
/// for dead tasks clears the bit if no wait node of a completed call is left.
pub(super) const OWED: u64 = 2;
/// These bits of `COMMIT` count the `SETVAL` and `SETALL` calls made while [`OWED`] was set. These
/// two commands clear undo adjustments, even those of completed calls whose tasks have not returned
/// yet.
///
/// The wait node of a completed call has a copy of this count. If the set's count has changed
/// since, the undo adjustments of that call were cleared.
pub(super) const SETTINGS: u64 = SETTINGS_MAX << SETTINGS_SHIFT;
const SETTINGS_MAX: u64 = (1 << 14) - 1;
pub(super) const SETTINGS_SHIFT: u32 = 8;

// Indices of words in the cache line of a semaphore. [`ALTER_LIST`] and [`CONST_LIST`] are indices
// in this line, too. Words 6 and 7 of the first semaphore's line belong to the memory pool.
pub(super) const WORD: usize = 0;
/// The time of the last operation. Its high bits contain the tag (version number) of the set, so a
/// later set in the same memory ignores the time.
pub(super) const OTIME: usize = 1;
/// The word with the log of an operation that changes the semaphore without the set's lock (module
/// `log`).
pub(super) const LOG: usize = 4;
/// The redo log of the semaphore: the new word that a change of several semaphores is going to
/// store. Used with the set's lock by the module `txn`, and without it by `several`.
pub(super) const REDO: usize = 5;

const BASE_BITS: u32 = 27;
const NSEMS_BITS: u32 = 16;
const TAG_SHIFT: u32 = BASE_BITS + NSEMS_BITS;

/// The number of low bits of the word [`TICKET`] that contain the ticket. The other bits contain a
/// time in milliseconds.
pub(super) const TICKET_BITS: u32 = 27;
pub(super) const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

/// The contents of a set's payload: the first line of its semaphores, their number, and the set's
/// tag.
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

/// The held lock of a set. The set exists, or is being repaired, created or removed.
pub(super) struct SetGuard<'s> {
    pub(super) set: Set<'s>,
    /// The task that holds the lock.
    pub(super) owner: Owner,
    /// The held lock, or none while this thread repairs the set of a dead lock holder.
    pub(super) _held: Option<Held<'s>>,
}

impl<'s> Set<'s> {
    #[inline]
    pub(super) fn new(shared: &'s Shared, object: &Object) -> Self {
        Self { shared, index: object.index, place: Place::from_payload(object.payload) }
    }

    /// Returns the line of semaphore `num`, which must be below the number of semaphores.
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
        // ORDERING(ipc-word): Acquire. Each operation stores the word with Release. Without this
        // order, the caller could miss stores that tasks made before their operations on this
        // semaphore.
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

    /// Returns true if a dead process may have undo adjustments in the set, or a completed call
    /// from which its task has not returned.
    pub(super) fn may_be_owed(&self) -> bool {
        let line = self.line();
        // ORDERING(ipc-owed): Acquire. `recover` sets `OWED`, and after a Release fence empties the
        // list of undo records for a moment. Without this order, this thread could see the empty
        // list but miss `OWED`.
        let undo_list = line[UNDO_LIST].load(Ordering::Acquire);
        let is_any = undo_list != 0 || get(&line[COMMIT]) & OWED != 0;
        self.shared.scope == Scope::Shared && is_any
    }

    /// Returns true if the set's memory is not free yet. Lookups may not find the set any more.
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
        // ORDERING(ipc-word): Release. `Set::word` loads the word with Acquire. Without this order,
        // the next operation could miss stores that this task made while the word was frozen
        // (locked).
        self.sem(num)[WORD].store(next.thaw().0, Ordering::Release);
    }

    /// Records `now_s` as the time of an operation on semaphore `num`.
    #[inline]
    pub(super) fn touch_otime(&self, num: u16, now_s: u64) {
        // The set may be removed before the store below. The next set ignores the stored time,
        // because the stored word contains the tag (version number) of the old set.
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
