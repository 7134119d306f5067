//! Calls of a few operations, without the set's lock.
//!
//! A call freezes (locks) the words one after the other, in the order of the semaphores. Operations
//! on different semaphores do not depend on each other, so this order does not change whether all
//! are possible. If one is not possible, the call takes the set's lock to find out which one fails.
//!
//! A call never waits while it has a frozen (locked) word, so there is no deadlock:
//! - If another task has frozen a word, the call thaws its own words and begins again, a few times.
//! - If another call waits at one of the semaphores, the call takes the set's lock.
//!
//! Several operations on the same semaphore freeze its word only once.
//!
//! # Death of the task
//!
//! A call without the set's lock leaves a log, so that others can recover if its task dies:
//! 1. For each semaphore's word that it freezes (locks), the call writes a log, which contains the
//!    number of the call's first semaphore (`log`). It also stores all new words in `REDO`.
//! 2. One store to the log of the first semaphore commits the call.
//! 3. The call thaws the words, that of the first semaphore last.
//!
//! As long as any word of the call is frozen (locked), the log of the first semaphore tells whether
//! the call is committed.
//!
//! # Limits
//!
//! A call with `SEM_UNDO`, or with more than four operations, takes the set's lock.
//!
//! Source: semop(2); the rule of address order for locks.

use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::{IS_MODEL, hint};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::SemBuf;
use super::log::Log;
use super::set::{REDO, Set, WORD};
use super::word::Word;
use crate::shared::now_s;
use crate::task::Task;

/// The largest number of operations.
const SOPS_MAX: usize = 4;

/// The number of times that a call tries to freeze (lock) its words. A try fails if another task
/// has frozen or just changed one of the words. Between two tries the call spins `PAUSES` times,
/// for about as long as a freeze lasts.
const TRIES_MAX: u32 = if IS_MODEL { 2 } else { 16 };
const PAUSES: u32 = if IS_MODEL { 1 } else { 8 };

/// The reason why a call stops.
enum Not {
    /// The word is frozen, or another task has just changed it.
    Free,
    /// The operations of the call are not possible now. With an errno, the call fails. Without one,
    /// it takes the set's lock, to wait or to complete waiting calls.
    Possible(Option<Errno>),
}

/// For each frozen word: the number of the semaphore, the word before the freeze, and the new
/// value.
struct Frozen<'s> {
    set: Set<'s>,
    words: [(u16, Word, i32); SOPS_MAX],
    count: usize,
}

impl Task {
    /// Carries out a call of a few operations without the set's lock.
    ///
    /// # Errors
    ///
    /// Returns `Err(None)` if the call needs the set's lock.
    pub(super) fn semop_several(&self, set: Set<'_>, sops: &[SemBuf]) -> Result<(), Option<Errno>> {
        if sops.len() > SOPS_MAX || sops.iter().any(|sop| sop.is_undo()) {
            return Err(None);
        }
        let mut sorted = SmallVec::<[SemBuf; SOPS_MAX]>::from_slice(sops);
        let was_sorted = sops.is_sorted_by_key(|sop| sop.sem_num);
        if !was_sorted {
            sorted.sort_by_key(|sop| sop.sem_num);
        }
        let mut waits = None;
        for _ in 0..TRIES_MAX {
            let mut frozen = Frozen { set, words: [(0, Word(0), 0); SOPS_MAX], count: 0 };
            match sorted.iter().try_for_each(|sop| frozen.add(*sop, self.owner.index)) {
                Ok(()) => {
                    drop(waits);
                    frozen.commit(self.pid);
                    set.touch_otime(sops[0].sem_num, now_s());
                    return Ok(());
                }
                Err(Not::Possible(errno)) => {
                    frozen.give_up();
                    // Take the set's lock in two cases. If `sorted` has changed the order of the
                    // operations, the lock is needed to find the first one that fails. With
                    // `EAGAIN`, a dead task may have taken the units that the call needs.
                    let is_left = !was_sorted || (errno == Some(Errno::AGAIN) && set.may_be_owed());
                    return Err(errno.filter(|_| !is_left));
                }
                Err(Not::Free) => frozen.give_up(),
            }
            waits = waits.or_else(|| self.shared.contention.begin());
            for _ in 0..PAUSES {
                hint::spin_loop();
            }
        }
        Err(None)
    }
}

impl Frozen<'_> {
    /// Freezes the semaphore's word, and carries out one operation on the copy of its value.
    #[inline]
    fn add(&mut self, sop: SemBuf, owner: u32) -> Result<(), Not> {
        if self.count == 0 || self.words[self.count - 1].0 != sop.sem_num {
            self.freeze(sop.sem_num, owner)?;
        }
        let value = &mut self.words[self.count - 1].2;
        *value = sop.apply(*value).map_err(|errno| {
            let is_final = errno != Errno::AGAIN || sop.is_nowait();
            Not::Possible(is_final.then_some(errno))
        })?;
        Ok(())
    }

    /// Freezes one more word.
    #[inline]
    fn freeze(&mut self, num: u16, owner: u32) -> Result<(), Not> {
        let seen = self.set.word(num).map_err(|errno| Not::Possible(Some(errno)))?;
        if seen.is_frozen() {
            return Err(Not::Free);
        }
        if seen.waiters() != 0 {
            return Err(Not::Possible(None));
        }
        let (cell, next) = (&self.set.sem(num)[WORD], seen.freeze(owner));
        // ORDERING(ipc-word): AcqRel. As for a single operation.
        let swapped = cell.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
        swapped.map_err(|_| Not::Free)?;
        self.words[self.count] = (num, seen, seen.value());
        self.count += 1;
        Log::Several { first: self.words[0].0, is_committed: false }.write(&self.set, num, seen);
        Ok(())
    }

    /// Thaws all words without a change. The word that was frozen first is thawed last: its
    /// semaphore has the log, which recovery needs while any word is frozen.
    #[inline]
    fn give_up(&self) {
        self.words().for_each(|(num, before, _)| self.set.thaw(num, before));
    }

    /// Stores the new words, which also thaws them. The word of the first semaphore is stored last,
    /// because recovery reads in the log of this semaphore that the call is committed.
    #[inline]
    fn commit(&self, pid: u32) {
        let set = self.set;
        if self.count > 1 {
            for (num, before, value) in self.words() {
                let after = before.with(value, pid).thaw();
                // ORDERING(ipc-undo): Release. `Log::write` then makes this store valid for
                // recovery.
                set.sem(num)[REDO].store(after.0, Ordering::Release);
            }
            let (first, before, _) = self.words[0];
            Log::Several { first, is_committed: true }.write(&set, first, before);
        }
        self.words().for_each(|(num, before, value)| set.thaw(num, before.with(value, pid)));
    }

    /// Returns the frozen words in the order in which they must be thawed (unlocked): the last
    /// frozen one comes first.
    fn words(&self) -> impl Iterator<Item = (u16, Word, i32)> {
        self.words[..self.count].iter().rev().copied()
    }
}
