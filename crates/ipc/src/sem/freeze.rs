//! Freezing the words of semaphores under the set's lock, and ending the freezes of dead tasks.
//! Only the task that froze a word may change it.
//!
//! A task that finds a word frozen waits: it spins, yields, and then sleeps. If the task that froze
//! the word has died, the waiting task ends the freeze ([`thaw_dead`]). It completes or reverts the
//! operation of the dead task (`log`).
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

/// The number of times that a thread reads a frozen word before it starts to yield the processor,
/// and the number of yields before it sleeps. A freeze takes a few dozen instructions, unless the
/// freezing task is preempted.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 200 };
const YIELD_ROUNDS: u32 = if IS_MODEL { u32::MAX - 1 } else { 20 };

/// The length of a sleep on a frozen word.
const NAP_NS: u64 = 50_000;

impl SetGuard<'_> {
    /// Freezes the word of semaphore `num`. Returns the word before the freeze.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the set is gone. `EIO` if a live task does not thaw the word.
    pub(super) fn freeze(&self, num: u16) -> Result<Word, Errno> {
        let word = self.change(num, |word| word.freeze_locked(self.owner.index))?;
        // Clear the log. Otherwise recovery could take the log of an earlier freeze for the log of
        // this freeze.
        put(&self.set.sem(num)[LOG], 0);
        Ok(word)
    }

    /// Marks all semaphores of the set dead, except those that another task keeps frozen. Returns
    /// true if it has marked all.
    pub(super) fn kill_all(&self) -> bool {
        let mut patience = Patience::new(self.set.shared, Wait::Short);
        let mut kill = |num| self.exchange(num, Word::dead, &mut patience);
        // `EIDRM` means that the word has another tag or is dead: a hostile process has written it,
        // or a remover that died has marked it. So such a word counts as marked.
        let is_left = |num: &u16| !matches!(kill(*num), Ok(_) | Err(Errno::IDRM));
        (0..self.set.place.nsems as u16).filter(is_left).count() == 0
    }

    /// Replaces the word of semaphore `num`. Returns the word before.
    ///
    /// # Errors
    ///
    /// The errors of `freeze`.
    pub(super) fn change(&self, num: u16, next: impl Fn(Word) -> Word) -> Result<Word, Errno> {
        self.exchange(num, next, &mut Patience::new(self.set.shared, Wait::Long))
    }

    /// Replaces the word of semaphore `num`. If the word is frozen, waits for the end of the freeze
    /// first.
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
                // Only the holder of the set's lock freezes a word in the locked way
                // (`Word::freeze_locked`). This task holds the lock now, so the freezing task is
                // dead.
                let dead = match seen.is_frozen_locked() {
                    true => Some(identity(task_line(set.shared, seen.frozen_by()))),
                    false => pause(round, patience, word, seen)?,
                };
                // Read the word again after the check that the freezing task is dead, since that
                // task may have thawed the word before its death.
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

/// Waits a moment for the task that has frozen a word. Spins in the first rounds, yields the
/// processor in the next ones, and then sleeps. Returns the identity of the task if it has died.
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
        // The end of a freeze is a plain store that wakes no thread, so the sleep is short.
        patience.nap(word, seen.0, NAP_NS)?;
        if round.is_multiple_of((BEAT_NS / NAP_NS) as u32) {
            let (shared, owner) = (patience.shared, seen.frozen_by());
            let state = identity(task_line(shared, owner));
            return Ok(shared.is_over(owner, None).then_some(state));
        }
    }
    Ok(None)
}

/// Ends the freeze of a dead task. If the task had committed its call, stores the word that it
/// logged in `REDO`. Otherwise thaws the word with its present value.
pub(super) fn settle(set: Set<'_>, num: u16, seen: Word, is_committed: bool) {
    let redo = Word(get(&set.sem(num)[REDO]));
    if is_committed && redo.is_of(set.place.tag) && !redo.is_frozen() {
        // ORDERING(ipc-word): Release. As `Set::thaw`.
        set.sem(num)[WORD].store(redo.0, Ordering::Release);
        return;
    }
    // Make the log void. If the task died before it wrote a log, the present log belongs to an
    // earlier freeze. A void log cannot be taken for the log of the next freeze.
    Log::Void.write(&set, num, seen);
    let pid = set.shared.pid_of(seen.frozen_by());
    set.thaw(num, seen.with(seen.value(), pid));
}

/// Ends the operation of the dead task that froze semaphore `num`. The caller holds the set's lock.
///
/// This function ends all freezes of that task in the set. If its call had several operations, all
/// words of the call must get the same outcome. So the call's first semaphore comes last, since its
/// log tells whether the call is committed.
///
/// `dead` is the identity that the caller read in the task's line. If the line has another identity
/// by now, a later task may have the same number. Then the function leaves words alone that are
/// frozen under that number.
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
        // Read the identity after the word. A later task with the dead task's number stores its
        // identity before it freezes a word. So if the freeze belongs to the later task, this read
        // finds that task's identity.
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
