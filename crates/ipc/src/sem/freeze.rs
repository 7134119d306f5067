//! Freezing words under the set's lock, and the end of freezes by dead tasks.
//!
//! A task that meets a frozen word waits: it spins, yields, and then sleeps. If the task that froze
//! the word has died, the waiting task ends the freeze ([`thaw_dead`]). It completes the operation
//! of the dead task or takes it back (`log`).
//!
//! Source: the essays of `word`, `several` and `log`.

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{hint, thread};
use rustix::io::Errno;

use super::log::Log;
use super::set::{LOG, REDO, Set, SetGuard, WORD};
use super::undo;
use super::word::Word;
use crate::field::{get, put};
use crate::lock::{BEAT_NS, Patience, Wait};
use crate::process::Identity;
use crate::task_line::{identity, task_line};

/// Reads of a frozen word before the thread yields, and yields before it sleeps. A freeze takes a
/// few dozen instructions, unless its owner has lost its processor.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 200 };
const YIELD_ROUNDS: u32 = if IS_MODEL { u32::MAX - 1 } else { 20 };

/// The length of a sleep on a frozen word.
const NAP_NS: u64 = 50_000;

impl SetGuard<'_> {
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

/// Ends the freeze of a dead task. Stores the logged word if its commit is valid, or else the
/// present value.
pub(super) fn settle(set: Set<'_>, num: u16, seen: Word, is_committed: bool) {
    let redo = Word(get(&set.sem(num)[REDO]));
    if is_committed && redo.is_of(set.place.tag) && !redo.is_frozen() {
        // ORDERING(ipc-word): Release. As `Set::thaw`.
        set.sem(num)[WORD].store(redo.0, Ordering::Release);
        return;
    }
    // The log may belong to an earlier freeze, if the task died before it wrote one.
    Log::Void.write(&set, num, seen);
    let pid = set.shared.pid_of(seen.frozen_by());
    set.thaw(num, seen.with(seen.value(), pid));
}

/// Ends the operation of the dead task that froze semaphore `num`. The caller holds the set's lock.
///
/// The function ends all freezes of that task in the set. The words of a call of several operations
/// are ended together. The first semaphore of that call comes last, since its log tells whether the
/// call is committed.
///
/// `dead` is the identity in the task's line. If the line has another identity, another task may
/// have its number. Then the function leaves words frozen under that number alone.
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
        // Read the identity last. If a later task with this number froze the word, it stored its
        // identity before.
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
