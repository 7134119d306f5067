//! To freeze the word of a semaphore is to lock it: only the task that froze the word may change
//! it. This module freezes words under the set's lock, and ends the freezes of dead tasks.
//!
//! A task that needs a frozen word waits: it spins, yields, and then sleeps. If the task that froze
//! the word has died, the waiting task thaws (unlocks) the word ([`thaw_dead`]). The log says
//! whether the dead task's operation must be completed or reverted (`log`).
//!
//! Source: the essays of `word`, `several` and `log`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{IS_MODEL, hint, thread};
use rustix::io::Errno;

use super::log::Log;
use super::set::{LOG, REDO, Set, SetGuard, WORD};
use super::undo;
use super::word::Word;
use crate::field::{get, put};
use crate::lock::{BEAT_NS, Patience, Wait};
use crate::process::Identity;
use crate::task_line::{identity, task_line};

/// The number of times that a task checks a frozen word before it yields the processor. A freeze
/// usually lasts for a few dozen instructions.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 200 };
const YIELD_ROUNDS: u32 = if IS_MODEL { u32::MAX - 1 } else { 20 };

/// The length of a sleep on a frozen word.
const NAP_NS: u64 = 50_000;

impl SetGuard<'_> {
    /// Freezes (locks) the word of semaphore `num`. Returns the word as it was before.
    pub(super) fn freeze(&self, num: u16) -> Result<Word, Errno> {
        let word = self.change(num, |word| word.freeze_locked(self.owner.index))?;
        // Clear `LOG`, which may contain the log of an earlier operation. If this task dies,
        // recovery could mistake the old log for that of this operation.
        put(&self.set.sem(num)[LOG], 0);
        Ok(word)
    }

    /// Marks the words of all semaphores as dead, when the set is removed. Skips words that another
    /// task keeps frozen (locked). Returns true if all words are marked.
    pub(super) fn kill_all(&self) -> bool {
        let mut patience = Patience::new(self.set.shared, Wait::Short);
        let mut kill = |num| self.exchange(num, Word::dead, &mut patience);
        // `EIDRM` means that there is nothing to mark: the semaphore's word is already dead, or a
        // hostile process has overwritten it.
        let is_left = |num: &u16| !matches!(kill(*num), Ok(_) | Err(Errno::IDRM));
        (0..self.set.place.nsems as u16).filter(is_left).count() == 0
    }

    /// Replaces the word of semaphore `num` by the result of `next`. Returns the old word.
    ///
    /// # Errors
    ///
    /// The errors of `freeze`.
    pub(super) fn change(&self, num: u16, next: impl Fn(Word) -> Word) -> Result<Word, Errno> {
        self.exchange(num, next, &mut Patience::new(self.set.shared, Wait::Long))
    }

    /// Like [`SetGuard::change`]. If another task has frozen (locked) the word, waits until it is
    /// thawed.
    fn exchange(
        &self,
        num: u16,
        next: impl Fn(Word) -> Word,
        patience: &mut Patience<'_>,
    ) -> Result<Word, Errno> {
        let set = self.set;
        let word = &set.sem(num)[WORD];
        let (mut round, mut waits) = (0_u32, None);
        loop {
            let seen = set.word(num)?;
            if seen.is_frozen() {
                waits = waits.or_else(|| set.shared.contention.begin());
                round = round.saturating_add(1);
                // This task holds the set's lock. A holder of that lock thaws (unlocks) its words
                // before it releases the lock, so the task that froze this word has died.
                let dead = match seen.is_frozen_locked() {
                    true => Some(identity(task_line(set.shared, seen.frozen_by()))),
                    false => pause(round, patience, word, seen)?,
                };
                // The dead task may have thawed (unlocked) the semaphore's word just before its
                // death. So read the word again, now that the death is known.
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

/// Spins, yields or sleeps, depending on `round`. If the task that keeps the word frozen has died,
/// returns its identity.
#[cold]
fn pause(
    round: u32,
    patience: &mut Patience<'_>,
    word: &AtomicU64,
    seen: Word,
) -> Result<Option<Identity>, Errno> {
    if round < SPIN_ROUNDS {
        hint::spin_loop();
    } else if round < SPIN_ROUNDS + YIELD_ROUNDS {
        thread::yield_now();
    } else {
        // A task thaws (unlocks) a word by a plain store, which does not wake a thread that sleeps
        // here. So each sleep must be short.
        patience.nap(word, seen.0, NAP_NS)?;
        if round.is_multiple_of((BEAT_NS / NAP_NS) as u32) {
            let (shared, owner) = (patience.shared, seen.frozen_by());
            let state = identity(task_line(shared, owner));
            return Ok(shared.is_over(owner, None).then_some(state));
        }
    }
    Ok(None)
}

/// Thaws (unlocks) the word of semaphore `num`, which a dead task had frozen. If the dead task had
/// committed its call, stores the new word from the redo log `REDO`. Otherwise keeps the present
/// value.
pub(super) fn settle(set: Set<'_>, num: u16, seen: Word, is_committed: bool) {
    let redo = Word(get(&set.sem(num)[REDO]));
    if is_committed && redo.is_of(set.place.tag) && !redo.is_frozen() {
        // ORDERING(ipc-word): Release. As `Set::thaw`.
        set.sem(num)[WORD].store(redo.0, Ordering::Release);
        return;
    }
    // Clear `LOG`. It may contain the log of an earlier operation. Recovery could mistake that for
    // the log of the next operation that freezes (locks) the semaphore's word.
    Log::Void.write(&set, num, seen);
    let pid = set.shared.pid_of(seen.frozen_by());
    set.thaw(num, seen.with(seen.value(), pid));
}

/// Completes or reverts the operation of the dead task that froze (locked) semaphore `num`. The
/// caller holds the set's lock.
///
/// The function thaws (unlocks) all semaphores of the set that the dead task has frozen. The log of
/// the first semaphore of the dead task's call tells whether the call is committed. This semaphore
/// is thawed last, so that all semaphores of the call get the same outcome.
///
/// A later task may have the dead task's number, and freeze (lock) words under it. `dead` is the
/// identity that the caller read in the dead task's record. If the record has another identity now,
/// the function leaves the words alone.
#[cold]
pub(super) fn thaw_dead(guard: &SetGuard<'_>, num: u16, seen: Word, dead: Identity) {
    let set = guard.set;
    if seen.is_frozen_locked() {
        settle(set, num, seen, false);
        return;
    }
    let task = seen.frozen_by();
    let frozen = |num| {
        let word = set.word(num).ok()?;
        let is_left = word.is_frozen() && !word.is_frozen_locked() && word.frozen_by() == task;
        // Read the task's record after the semaphore's word. A later task with this number stores
        // its identity there before it freezes (locks) a word. So if it has frozen this word, the
        // identity differs from `dead`.
        (is_left && identity(task_line(set.shared, task)) == dead).then_some(word)
    };
    for is_turn_of_first in [false, true] {
        for num in 0..set.place.nsems as u16 {
            let Some(word) = frozen(num) else { continue };
            let log = Log::read(&set, num, word);
            let is_first = matches!(log, Log::Several { first, .. } if first == num);
            if is_first != is_turn_of_first {
                continue;
            }
            let is_committed = match log {
                Log::Void => false,
                Log::Single { record, adj } => {
                    if undo::is_record_of(set.shared, record, task) == Some(set.index) {
                        undo::store_adj(set.shared, record, num, adj);
                    }
                    false
                }
                Log::Several { first, .. } => frozen(first).is_some_and(|word| {
                    let log = Log::read(&set, first, word);
                    log == Log::Several { first, is_committed: true }
                }),
            };
            settle(set, num, word, is_committed);
        }
    }
}
