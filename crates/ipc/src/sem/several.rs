//! Calls of a few operations, without the set's lock.
//!
//! The call freezes the words one after the other, in the order of the semaphores. Operations on
//! different semaphores do not depend on each other, so their order does not change whether all are
//! possible. If one is not possible, the call takes the set's lock, and finds out under the lock
//! which operation fails.
//!
//! If a call finds a word frozen, it thaws its own words and begins again, a few times. If it finds
//! a word with a waiting call, it takes the lock. A call never waits while it has a frozen word. So
//! there is no deadlock, and no waiting call is skipped. Tasks that use different semaphores of a
//! set write no common line.
//!
//! Several operations on one semaphore, such as a wait for zero and an addition, need one freeze.
//!
//! # Death of the task
//!
//! The line of each frozen word has a log with the number of the call's first semaphore (`log`).
//! Once all new words are logged, one store in the line of the first semaphore commits them. The
//! word of the first semaphore is thawed last. So while any word is frozen, the log of the first
//! semaphore tells whether the call is committed.
//!
//! # Limits
//!
//! A call with undo, or with more than four operations, takes the lock.
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

/// The number of times that a call begins again after it met a frozen word, before it takes the
/// set's lock. Also the number of spins before each try: they take about as long as a freeze.
const TRIES_MAX: u32 = if IS_MODEL { 2 } else { 16 };
const PAUSES: u32 = if IS_MODEL { 1 } else { 8 };

/// The reason why a call stops.
enum Not {
    /// The word is frozen, or another task has just changed it.
    Free,
    /// The operations are not possible. The call fails with the errno, if there is one. Otherwise
    /// it needs the set's lock.
    Possible(Option<Errno>),
}

/// The words that a call has frozen: the number of the semaphore, the word before the freeze, and
/// the new value.
struct Frozen<'s> {
    set: Set<'s>,
    words: [(u16, Word, i32); SOPS_MAX],
    count: usize,
}

impl Task {
    /// Performs a call of a few operations, without the set's lock if possible.
    ///
    /// # Errors
    ///
    /// The errno of the call. If the call needs the set's lock, the error is none.
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
                    // `sorted` may have another order than the caller's operations, so another
                    // operation may be the first to fail. Also, a dead task may have units that the
                    // call needs. In both cases the call takes the set's lock.
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
    /// Carries out one operation on the copies.
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

    /// Thaws all words unchanged. The word that was frozen first comes last, since recovery reads
    /// the log of that semaphore.
    #[inline]
    fn give_up(&self) {
        self.words().for_each(|(num, before, _)| self.set.thaw(num, before));
    }

    /// Stores the new words. The word that was frozen first comes last, since the log of that
    /// semaphore says that the call is committed.
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

    /// Returns the frozen words in the order in which they must be thawed: the first frozen word
    /// comes last.
    fn words(&self) -> impl Iterator<Item = (u16, Word, i32)> {
        self.words[..self.count].iter().rev().copied()
    }
}
