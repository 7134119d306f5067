//! A set of semaphores: its place in the region, and the data that its lock protects.
//!
//! A set has one line per slot of its kind, and a range of lines with one semaphore each. So
//! operations on different semaphores write no common line. Only the holder of the set's lock
//! writes the line of the set. An operation of one step does not read it.
//!
//! Protected by the set's lock: the words below, the queues in the lines of the semaphores, the
//! undo records of the set, and its wait nodes while their calls wait. The word of a semaphore and
//! its undo cells belong to the task that has frozen the word.

use corewalk_base::Line;
use corewalk_base::futex::{Deadline, Scope};
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{hint, thread};
use rustix::io::Errno;

use super::recover::{recover, thaw_dead};
use super::word::{TAG_MASK, Word};
use crate::field::{get, low, put};
use crate::ids::{Ids, Kind, Object};
use crate::lock::{BEAT_NS, Held, Owner, Patience, Wait, lock_within};
use crate::namespace::Shared;
use crate::process::Identity;
use crate::task::{identity, task_line};
use crate::watch::TURN_NS;

// Words of a set's line.
pub(super) const LOCK: usize = 0;
/// The payload of the live set, or 0. A call compares the payload from its lookup with it.
pub(super) const LIVE: usize = 1;
/// All waiting calls that change a semaphore.
pub(super) const ALTER_LIST: usize = 2;
/// Waiting calls of several operations, all of which wait for zero.
pub(super) const CONST_LIST: usize = 3;
/// The number of waiting calls of several operations.
pub(super) const COMPLEX_COUNT: usize = 4;
/// The undo records of the set.
pub(super) const UNDO_LIST: usize = 5;
/// [`COMMITTING`], [`OWED`], and [`SETTINGS`].
pub(super) const COMMIT: usize = 6;
/// The ticket of the next waiting call, and the time of the last check for dead tasks.
pub(super) const TICKET: usize = 7;

// Bits of `COMMIT`.
/// A logged change is being stored.
pub(super) const COMMITTING: u64 = 1;
/// Waiting calls were granted their operations, and their tasks may have died before they returned.
/// The store that makes such a grant valid sets the bit. Recovery sets it too, since [`UNDO_LIST`]
/// was empty during it. A check that finds no such call clears it.
pub(super) const OWED: u64 = 2;
/// How often `SETVAL` or `SETALL` ran while [`OWED`] was set. It tells whether adjustments were
/// cleared after a grant.
pub(super) const SETTINGS: u64 = SETTINGS_MAX << SETTINGS_SHIFT;
const SETTINGS_MAX: u64 = (1 << 14) - 1;
const SETTINGS_SHIFT: u32 = 8;

// Words of a semaphore's line; 6 and 7 of the first are the pool's.
pub(super) const WORD: usize = 0;
/// The time of the last operation, with the tag of its set.
pub(super) const OTIME: usize = 1;
/// Waiting calls of a single decrement.
pub(super) const SEM_ALTER_LIST: usize = 2;
/// Waiting calls of a single wait for zero.
pub(super) const SEM_CONST_LIST: usize = 3;
/// The record of an operation without the set's lock, see `log`.
pub(super) const LOG: usize = 4;
/// The next word of the semaphore in a change of several, see `txn` and `several`.
pub(super) const REDO: usize = 5;

const BASE_BITS: u32 = 27;
const NSEMS_BITS: u32 = 16;
const TAG_SHIFT: u32 = BASE_BITS + NSEMS_BITS;

/// Reads of a frozen word before the thread yields, and yields before it sleeps. A freeze takes a
/// few dozen instructions, unless its owner has lost its processor.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 200 };
const YIELD_ROUNDS: u32 = if IS_MODEL { u32::MAX - 1 } else { 20 };

/// The bits of [`TICKET`] with the ticket. The others are milliseconds.
pub(super) const TICKET_BITS: u32 = 27;
pub(super) const TICKET_MASK: u64 = (1 << TICKET_BITS) - 1;

/// The shortest time between two close checks of a set's tasks, by all calls together.
const LOOK_MS: u64 = TURN_NS / 1_000_000 * 9 / 10;

/// The length of a sleep on a frozen word.
const NAP_NS: u64 = 50_000;

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

/// A set from a lookup. It may have been removed since.
#[derive(Clone, Copy)]
pub(super) struct Set<'s> {
    pub(super) shared: &'s Shared,
    pub(super) index: u32,
    pub(super) place: Place,
}

/// The held lock of a set, which is live.
pub(super) struct SetGuard<'s> {
    pub(super) set: Set<'s>,
    /// The task that holds the lock.
    pub(super) owner: Owner,
    /// None while the lock is being taken from a dead task.
    _held: Option<Held<'s>>,
}

impl<'s> Set<'s> {
    #[inline]
    pub(super) fn new(shared: &'s Shared, object: &Object) -> Self {
        Self { shared, index: object.index, place: Place::from_payload(object.payload) }
    }

    /// Returns the line of semaphore `num`. The number is in range.
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
        // ORDERING(ipc-word): Acquire. Work before the last operation happens before this one.
        let word = Word(self.sem(num)[WORD].load(Ordering::Acquire));
        if word.is_of(self.place.tag) { Ok(word) } else { Err(Errno::IDRM) }
    }

    pub(super) fn line(&self) -> &'s Line {
        self.shared.region.line(self.shared.layout.sets + self.index)
    }

    /// Takes the set's lock for `owner`. If the last holder has died, its unfinished change is
    /// completed or taken back first.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the set was removed, also if remains of it are left. Every path checks this once
    /// it has the lock (trap I3). `EIO` if the holder is alive and does not let go.
    pub(super) fn lock(self, owner: Owner) -> Result<SetGuard<'s>, Errno> {
        let guard = self.lock_remains(owner, Wait::Long)?;
        if !guard.is_published() {
            return Err(Errno::IDRM);
        }
        Ok(guard)
    }

    /// As [`Set::lock`], but also locks a removed set with remains.
    ///
    /// # Errors
    ///
    /// `EIDRM` if no remains are left and all waiting calls have ended. `EIO` as above.
    pub(super) fn lock_remains(self, owner: Owner, wait: Wait) -> Result<SetGuard<'s>, Errno> {
        let guard = self.lock_new(owner, wait)?;
        if get(&self.line()[LIVE]) != self.place.payload() {
            return Err(Errno::IDRM);
        }
        Ok(guard)
    }

    /// Takes the lock of a set that is about to be published in this slot.
    pub(super) fn lock_new(self, owner: Owner, wait: Wait) -> Result<SetGuard<'s>, Errno> {
        let held = lock_within(self.shared, &self.line()[LOCK], owner, wait, || {
            let place = Place::from_payload(get(&self.line()[LIVE]));
            recover(&SetGuard { set: Set { place, ..self }, owner, _held: None })
        })?;
        Ok(SetGuard { set: self, owner, _held: Some(held) })
    }

    /// Returns the set in slot `index`, if there is one.
    pub(super) fn at(shared: &'s Shared, index: u32) -> Option<Self> {
        let set = Set { shared, index, place: Place::from_payload(0) };
        let payload = get(&set.line()[LIVE]);
        (payload != 0).then(|| Set { place: Place::from_payload(payload), ..set })
    }

    /// Returns true if a dead process may have adjustments in the set, or a grant that it did not
    /// return with.
    pub(super) fn may_be_owed(&self) -> bool {
        let line = self.line();
        let is_any = get(&line[UNDO_LIST]) != 0 || get(&line[COMMIT]) & OWED != 0;
        self.shared.scope == Scope::Shared && is_any
    }

    /// Returns true if a process may have died while it waited for semaphore `num`.
    pub(super) fn has_absent(&self, num: u16) -> bool {
        let waits = self.word(num).is_ok_and(|word| word.waiters() != 0);
        self.shared.scope == Scope::Shared && waits
    }

    /// Returns true if the slot still has this set. The set may not be published.
    pub(super) fn is_there(&self) -> bool {
        get(&self.line()[LIVE]) == self.place.payload()
    }

    /// Returns true if a lookup can find the set.
    pub(super) fn is_published(&self, owner: Owner) -> bool {
        let ids = Ids { shared: self.shared, kind: Kind::Sem, owner };
        ids.payload(self.index) == Some(self.place.payload())
    }

    /// Returns true if the task numbered `task` holds the set's lock.
    pub(super) fn is_locked_by(&self, task: u32) -> bool {
        low(get(&self.line()[LOCK])) & !(1 << 31) == task + 1
    }

    /// Ends a freeze with the word `next`, frozen or not.
    #[inline]
    pub(super) fn thaw(&self, num: u16, next: Word) {
        // ORDERING(ipc-word): Release. Stores under the freeze happen before the next operation on
        // this semaphore.
        self.sem(num)[WORD].store(next.thaw().0, Ordering::Release);
    }

    /// Records `now_s` as the time of an operation on semaphore `num`.
    #[inline]
    pub(super) fn touch_otime(&self, num: u16, now_s: u64) {
        // A late store for a removed set has that set's tag, so the next set ignores it.
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

    /// Returns true if a lookup can find the set.
    pub(super) fn is_published(&self) -> bool {
        self.set.is_published(self.owner)
    }

    /// Returns true if a close check of the set's tasks is due, and records its time.
    pub(super) fn is_time_to_look(&self, now: Deadline) -> bool {
        let ticket = get(self.field(TICKET));
        let now_ms = now.monotonic_ns / 1_000_000;
        let is_time =
            now_ms.wrapping_sub(ticket >> TICKET_BITS) & (u64::MAX >> TICKET_BITS) >= LOOK_MS;
        if is_time {
            put(self.field(TICKET), ticket & TICKET_MASK | now_ms << TICKET_BITS);
        }
        is_time
    }

    /// Returns 14 bits that change when `SETVAL` or `SETALL` clears adjustments.
    pub(super) fn settings(&self) -> u64 {
        settings_of(get(self.field(COMMIT)))
    }

    /// Clears [`OWED`]: no dead task has a grant left.
    pub(super) fn forget_owed(&self) {
        let commit = get(self.field(COMMIT));
        if commit & OWED != 0 {
            put(self.field(COMMIT), commit & !OWED);
        }
    }

    /// Freezes the word of semaphore `num`. Returns the word before the freeze.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the set is gone. `EIO` if another task keeps the word frozen.
    pub(super) fn freeze(&self, num: u16) -> Result<Word, Errno> {
        let word = self.exchange_long(num, |word| word.freeze_locked(self.owner.index))?;
        // Recovery must not take the log of an earlier freeze for one of this freeze.
        put(&self.set.sem(num)[LOG], 0);
        Ok(word)
    }

    /// Marks all semaphores dead, except those that another task keeps frozen. Returns true if none
    /// is left.
    pub(super) fn kill_all(&self) -> bool {
        let mut patience = Patience::new(self.set.shared, Wait::Short);
        let mut is_whole = true;
        for num in 0..self.set.place.nsems as u16 {
            // Another tag: a hostile word, or one that a dead remover has already ended.
            let killed = self.exchange(num, Word::dead, &mut patience);
            is_whole &= matches!(killed, Ok(_) | Err(Errno::IDRM));
        }
        is_whole
    }

    /// Sets the bits for waiting calls of semaphore `num`.
    ///
    /// # Errors
    ///
    /// Those of `freeze`.
    pub(super) fn add_waiters(&self, num: u16, waiters: u64) -> Result<Word, Errno> {
        self.exchange_long(num, |word| word.with_waiters(word.waiters() | waiters))
    }

    fn exchange_long(&self, num: u16, next: impl Fn(Word) -> Word) -> Result<Word, Errno> {
        self.exchange(num, next, &mut Patience::new(self.set.shared, Wait::Long))
    }

    /// Replaces the word of semaphore `num` once it is not frozen.
    fn exchange(
        &self,
        num: u16,
        next: impl Fn(Word) -> Word,
        patience: &mut Patience<'_>,
    ) -> Result<Word, Errno> {
        let set = self.set;
        let word = &set.sem(num)[WORD];
        let mut pause = Pause { round: 0, patience };
        let mut waits = None;
        loop {
            let seen = set.word(num)?;
            if seen.is_frozen() {
                waits = waits.or_else(|| set.shared.contention.begin());
                // Only the holder of the lock freezes a word like this, which is this task.
                let line = task_line(set.shared, seen.frozen_by());
                let dead = match seen.is_frozen_locked() {
                    true => Some(identity(line)),
                    false => pause.wait(word, seen)?,
                };
                // Read the word again after the check: the task may have thawed it before its
                // death.
                if let Some(dead) = dead.filter(|_| set.word(num) == Ok(seen)) {
                    thaw_dead(self, num, seen, dead);
                }
                continue;
            }
            // ORDERING(ipc-word): AcqRel. As in `word`, both ways.
            let swapped =
                word.compare_exchange(seen.0, next(seen).0, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_ok() {
                return Ok(seen);
            }
        }
    }
}

/// Returns [`SETTINGS`] of a word `COMMIT`, as a number.
pub(super) fn settings_of(commit: u64) -> u64 {
    (commit & SETTINGS) >> SETTINGS_SHIFT
}

/// Returns [`SETTINGS`] of a word `COMMIT`, after one more change of it.
pub(super) fn next_settings(commit: u64) -> u64 {
    ((commit & SETTINGS) + (1 << SETTINGS_SHIFT)) & SETTINGS
}

/// Waits for the owner of a freeze: spins, yields, and then sleeps.
struct Pause<'p, 's> {
    round: u32,
    patience: &'p mut Patience<'s>,
}

impl Pause<'_, '_> {
    /// Returns the owner's identity, if the owner has died.
    #[cold]
    fn wait(&mut self, word: &AtomicU64, seen: Word) -> Result<Option<Identity>, Errno> {
        self.round = self.round.saturating_add(1);
        if self.round < SPIN_ROUNDS {
            hint::spin_loop();
        } else if self.round < SPIN_ROUNDS + YIELD_ROUNDS {
            thread::yield_now();
        } else {
            // The end of a freeze is a plain store and wakes no thread, so the sleep has a limit.
            self.patience.nap(word, seen.0, NAP_NS)?;
            let rounds = (BEAT_NS / NAP_NS) as u32;
            let is_time = self.round.is_multiple_of(rounds);
            if is_time {
                let (shared, owner) = (self.patience.shared, seen.frozen_by());
                let state = identity(task_line(shared, owner));
                let is_dead = shared.is_over(owner, None);
                return Ok(Some(state).filter(|_| is_dead));
            }
        }
        Ok(None)
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
