//! A few operations as one, without the set's lock.
//!
//! The words involved are frozen one after the other, in the order of the semaphores: operations on
//! different semaphores do not depend on each other, so whether all of them are possible does not depend on
//! their order, and a call that is not is left to the lock, which finds out what it fails by.
//! Whoever meets a word that is frozen lets go what it has and begins again, a few times; whoever
//! meets one for which somebody waits takes the lock. It never waits while it has a word, so there is no
//! cycle, and nobody who waits is passed over. Tasks that use different semaphores of a set share no written
//! line.
//!
//! Several operations on one semaphore (wait for zero and add, the usual lock) are one freeze.
//!
//! # A task that dies
//!
//! Each word that is frozen says so in its line, and which is the first of the call (`log`). Once all new words
//! are logged, one store in the line of the first makes them what counts. The first is thawed last, so
//! that as long as any word is frozen it says what is to become of it.
//!
//! # What it refuses
//!
//! Undo, and more than four operations.
//!
//! Source: semop(2); the rule of address order for locks.

use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::{IS_MODEL, hint};
use rustix::io::Errno;

use super::SemBuf;
use super::log::Log;
use super::set::{REDO, Set, WORD};
use super::word::Word;
use crate::namespace::{SEMVMX, now_s};
use crate::task::Task;

/// Operations of a call at most.
const SOPS_MAX: usize = 4;

/// Times that a call begins again before it takes the lock, and how long it leaves others alone
/// before: about as long as a freeze takes.
const TRIES_MAX: u32 = if IS_MODEL { 2 } else { 16 };
const PAUSES: u32 = if IS_MODEL { 1 } else { 8 };

/// Why a call is not carried out.
enum Not {
    /// A word is frozen, or has just been changed.
    Free,
    /// It fails with this, or needs the lock.
    Possible(Option<Errno>),
}

/// Words that are frozen: number, word before, new value.
struct Frozen<'s> {
    set: Set<'s>,
    words: [(u16, Word, i32); SOPS_MAX],
    count: usize,
}

impl Task {
    /// Carries out a few operations; returns none if that needs the set's lock.
    pub(super) fn semop_several(&self, set: Set<'_>, sops: &[SemBuf]) -> Option<Result<(), Errno>> {
        let has_undo = sops.iter().any(|sop| sop.is_undo());
        if sops.len() > SOPS_MAX || has_undo {
            return None;
        }
        let mut sorted = [SemBuf::default(); SOPS_MAX];
        let sorted = &mut sorted[..sops.len()];
        sorted.copy_from_slice(sops);
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
                    return Some(Ok(()));
                }
                Err(Not::Possible(errno)) => {
                    frozen.give_up();
                    // In another order another operation may be the first that fails; and somebody may have
                    // died with what this call wants.
                    let is_left = !was_sorted || (errno == Some(Errno::AGAIN) && set.may_be_owed());
                    return errno.filter(|_| !is_left).map(Err);
                }
                Err(Not::Free) => frozen.give_up(),
            }
            waits = waits.or_else(|| self.shared.contention.begin());
            for _ in 0..PAUSES {
                hint::spin_loop();
            }
        }
        None
    }
}

impl Frozen<'_> {
    /// Carries out one operation on the copies.
    #[inline]
    fn add(&mut self, sop: SemBuf, owner: u32) -> Result<(), Not> {
        let is_last = self.count > 0 && self.words[self.count - 1].0 == sop.sem_num;
        if !is_last {
            self.freeze(sop.sem_num, owner)?;
        }
        let value = &mut self.words[self.count - 1].2;
        let result = *value + i32::from(sop.sem_op);
        if result < 0 || (sop.sem_op == 0 && *value != 0) {
            return Err(Not::Possible(sop.is_nowait().then_some(Errno::AGAIN)));
        }
        if result > SEMVMX {
            return Err(Not::Possible(Some(Errno::RANGE)));
        }
        *value = result;
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
        // ORDERING(ipc-word): AcqRel. As for a single operation.
        let swapped = self.set.sem(num)[WORD].compare_exchange(
            seen.0,
            seen.freeze(owner).0,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        swapped.map_err(|_| Not::Free)?;
        let first = if self.count == 0 { num } else { self.words[0].0 };
        Log::Several { first, is_committed: false }.write(&self.set, num, seen);
        self.words[self.count] = (num, seen, seen.value());
        self.count += 1;
        Ok(())
    }

    /// Lets go of all words as they were; the first comes last.
    #[inline]
    fn give_up(&self) {
        self.words().for_each(|(num, before, _)| self.set.thaw(num, before));
    }

    /// Stores the new words; the first comes last.
    #[inline]
    fn commit(&self, pid: u32) {
        let set = self.set;
        if self.count > 1 {
            for (num, before, value) in self.words() {
                let after = before.with(value, pid).thaw();
                // ORDERING(ipc-undo): Release. See `Log::write`, which makes it valid.
                set.sem(num)[REDO].store(after.0, Ordering::Release);
            }
            let (first, before, _) = self.words[0];
            Log::Several { first, is_committed: true }.write(&set, first, before);
        }
        self.words().for_each(|(num, before, value)| set.thaw(num, before.with(value, pid)));
    }

    /// Returns the words that are frozen, the first one last.
    fn words(&self) -> impl Iterator<Item = (u16, Word, i32)> {
        self.words[..self.count].iter().rev().copied()
    }
}
