//! A few operations as one, without the set's lock.
//!
//! The words involved are frozen one after the other, in the order of the operations, which has to be that of
//! the semaphores. Whoever meets a word that is frozen, or for which somebody waits, lets go what it
//! has and takes the lock instead: it never waits while it has a word, so there is no cycle, and nobody who
//! waits is passed over. Tasks that use different semaphores of a set share no written line.
//!
//! Several operations on one semaphore in a row (wait for zero and add, the usual lock) are one
//! freeze.
//!
//! # What it refuses
//!
//! Undo, more than four operations, another order; and a region that is shared with other processes: what a
//! task that died had frozen could not be told from what it had changed already, since only
//! the log of a transaction says that.
//!
//! Source: semop(2); the rule of address order for locks.

use corewalk_sync::futex::Scope;
use corewalk_sync::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::SemBuf;
use super::set::{Set, WORD};
use super::word::Word;
use crate::namespace::{SEMVMX, now_s};
use crate::task::Task;

/// Operations of a call at most.
const SOPS_MAX: usize = 4;

/// Words that are frozen: number, word before, new value.
struct Frozen<'s> {
    set: Set<'s>,
    words: [(u16, Word, i32); SOPS_MAX],
    count: usize,
}

impl Task {
    /// Carries out a few operations; returns none if that needs the set's lock.
    pub(super) fn semop_several(&self, set: Set<'_>, sops: &[SemBuf]) -> Option<Result<(), Errno>> {
        let is_sorted = sops.is_sorted_by_key(|sop| sop.sem_num);
        let has_undo = sops.iter().any(|sop| sop.is_undo());
        if sops.len() > SOPS_MAX || !is_sorted || has_undo || self.shared.scope != Scope::Private {
            return None;
        }
        let mut frozen = Frozen { set, words: [(0, Word(0), 0); SOPS_MAX], count: 0 };
        for sop in sops {
            let outcome = frozen.add(*sop, self.index);
            if outcome != Some(Ok(())) {
                frozen.end(|before, _| before);
                return outcome;
            }
        }
        frozen.end(|before, value| before.with(value, self.pid));
        set.touch_otime(sops[0].sem_num, now_s());
        Some(Ok(()))
    }
}

impl Frozen<'_> {
    /// Carries out one operation on the copies; returns none if that needs the lock.
    #[inline]
    fn add(&mut self, sop: SemBuf, owner: u32) -> Option<Result<(), Errno>> {
        let is_last = self.count > 0 && self.words[self.count - 1].0 == sop.sem_num;
        if !is_last && let Err(refused) = self.freeze(sop.sem_num, owner) {
            return refused.map(Err);
        }
        let value = &mut self.words[self.count - 1].2;
        let result = *value + i32::from(sop.sem_op);
        if result < 0 || (sop.sem_op == 0 && *value != 0) {
            return sop.is_nowait().then_some(Err(Errno::AGAIN));
        }
        if result > SEMVMX {
            return Some(Err(Errno::RANGE));
        }
        *value = result;
        Some(Ok(()))
    }

    /// Freezes one more word.
    #[inline]
    fn freeze(&mut self, num: u16, owner: u32) -> Result<(), Option<Errno>> {
        let seen = self.set.word(num).map_err(Some)?;
        if seen.is_frozen() || seen.waiters() != 0 {
            return Err(None);
        }
        // ORDERING(ipc-word): AcqRel. As for a single operation.
        let swapped = self.set.sem(num)[WORD].compare_exchange(
            seen.0,
            seen.freeze(owner).0,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        swapped.map_err(|_| None)?;
        self.words[self.count] = (num, seen, seen.value());
        self.count += 1;
        Ok(())
    }

    /// Thaws all words with what `next` makes of the word before and the value.
    #[inline]
    fn end(&self, next: impl Fn(Word, i32) -> Word) {
        for (num, before, value) in &self.words[..self.count] {
            self.set.thaw(*num, next(*before, *value));
        }
    }
}
