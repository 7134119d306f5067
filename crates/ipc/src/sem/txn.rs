//! Transactions: changes of several semaphores and their adjustments, as one.
//!
//! A transaction changes semaphores under the set's lock. It freezes (locks) each word that it
//! reads, and works on copies. At its end it stores all changes, or thaws the words unchanged.
//!
//! Each word that the transaction reads stays frozen (locked) until the commit stores its new
//! value. A call without the set's lock that finds a frozen word waits or takes the lock. So no
//! other call sees that one word has changed and another one has not.
//!
//! If a change makes a waiting call possible, the same transaction also performs that call. So no
//! other call can come between an increment and the decrement that waited for it.
//!
//! # Order of the stores
//!
//! 1. The transaction writes the log. New words of semaphores go into `REDO` in the semaphores'
//!    cache lines. New undo adjustments go into the undo records. Outcomes of waiting calls go into
//!    their wait nodes.
//! 2. It sets `COMMITTING` in the set's cache line. It also sets `OWED` if it completes a waiting
//!    call successfully.
//! 3. It stores the undo adjustments, and then the words of the semaphores, which also thaws
//!    (unlocks) them. Then it stores the outcomes in the status words of the wait nodes.
//! 4. It clears `COMMITTING`.
//!
//! Release stores make other processes see these steps in this order. If the task dies before it
//! has set `COMMITTING`, recovery thaws (unlocks) the frozen words unchanged. If it dies later,
//! recovery stores the logged changes again (`recover`).
//!
//! A transaction that changes one word and nothing else needs no log: it makes a single store.
//!
//! Only the holder of the set's lock may wait while it keeps words frozen (locked). All other calls
//! thaw (unlock) their words before they wait. So no two tasks wait for each other.

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;
use smallvec::SmallVec;

use super::SemBuf;
use super::node::{Call, Completed, Node, Wakes, tell};
use super::set::{
    ALTER_LIST, COMMIT, COMMITTING, COMPLEX_COUNT, CONST_LIST, OWED, REDO, SETTINGS,
    SETTINGS_SHIFT, Set, SetGuard,
};
use super::undo;
use super::word::{ALTER, COMPLEX, Word, ZERO};
use crate::field::get;

/// The result of trying a call on the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The call was carried out.
    Done,
    /// The call has to wait. The number is the index of the operation that blocks it.
    Blocks(usize),
    /// The call cannot be carried out.
    Fails(Errno),
}

/// A word that the transaction has frozen.
pub(super) struct Frozen {
    num: u16,
    pub(super) before: Word,
    pub(super) value: i32,
    pub(super) pid: u32,
    /// The bits `ALTER`, `ZERO` and `COMPLEX` that the commit adds to the word, for calls that
    /// wait.
    pub(super) waiters: u64,
}

/// An adjustment that the transaction has read.
pub(super) struct Cell {
    record: u32,
    num: u16,
    before: i32,
    pub(super) adj: i32,
}

/// Changes under a set's lock. A drop without [`Txn::commit`] discards them.
pub(super) struct Txn<'g, 's> {
    pub(super) guard: &'g SetGuard<'s>,
    /// Sorted by number.
    pub(super) frozen: SmallVec<[Frozen; 4]>,
    /// Sorted by number and record.
    cells: SmallVec<[Cell; 4]>,
    /// The waiting calls that the transaction completes.
    pub(super) completed: Completed,
    /// Whether the transaction is a `SETVAL` or `SETALL`.
    pub(super) is_setting: bool,
}

impl<'g, 's> Txn<'g, 's> {
    pub(super) fn new(guard: &'g SetGuard<'s>) -> Self {
        let (frozen, cells, completed) = (SmallVec::new(), SmallVec::new(), Completed::new());
        Self { guard, frozen, cells, completed, is_setting: false }
    }

    pub(super) fn set(&self) -> Set<'s> {
        self.guard.set
    }

    /// Returns true if the transaction grants a waiting call its operations.
    pub(super) fn has_granted(&self) -> bool {
        self.completed.iter().any(|(_, errno)| *errno == 0)
    }

    /// Returns the value of semaphore `num`. If this transaction has frozen the word, the value is
    /// that of the transaction's copy.
    pub(super) fn peek(&self, num: u16) -> Option<i32> {
        match self.find(num) {
            Ok(at) => Some(self.frozen[at].value),
            Err(_) => self.set().word(num).ok().map(Word::value),
        }
    }

    /// Sets the value and the pid of semaphore `num`.
    pub(super) fn set_value(&mut self, num: u16, value: i32, pid: u32) -> Result<(), Errno> {
        let frozen = self.frozen(num)?;
        (frozen.value, frozen.pid) = (value, pid);
        Ok(())
    }

    /// Carries out a call on this transaction's copies, if that is possible. Analogous to Linux's
    /// `perform_atomic_semop`.
    pub(super) fn perform(&mut self, call: Call<'_>) -> Verdict {
        for (at, sop) in call.sops.iter().enumerate() {
            let verdict = self.step(call, *sop, at).unwrap_or_else(Verdict::Fails);
            if verdict != Verdict::Done {
                // Revert in reverse order, since a semaphore may occur twice.
                for sop in call.sops[..at].iter().rev() {
                    // The words are frozen already, so this cannot fail.
                    let _reverted = self.add(call, *sop, -i32::from(sop.sem_op));
                }
                return verdict;
            }
        }
        for sop in call.sops {
            // The words are frozen already, so this cannot fail.
            if let Ok(frozen) = self.frozen(sop.sem_num) {
                frozen.pid = call.pid;
            }
        }
        Verdict::Done
    }

    /// Carries out one operation, if that is possible now.
    fn step(&mut self, call: Call<'_>, sop: SemBuf, at: usize) -> Result<Verdict, Errno> {
        match sop.apply(self.frozen(sop.sem_num)?.value) {
            Err(Errno::AGAIN) if !sop.is_nowait() => return Ok(Verdict::Blocks(at)),
            result => result?,
        };
        if sop.is_undo() {
            undo::adjusted(self.cell(call.undo, sop.sem_num)?.adj, sop)?;
        }
        self.add(call, sop, i32::from(sop.sem_op))?;
        Ok(Verdict::Done)
    }

    fn add(&mut self, call: Call<'_>, sop: SemBuf, op: i32) -> Result<(), Errno> {
        self.frozen(sop.sem_num)?.value += op;
        if sop.is_undo() {
            self.cell(call.undo, sop.sem_num)?.adj -= op;
        }
        Ok(())
    }

    /// Stores all changes, and thaws the words. Returns the tasks that the caller must wake after
    /// it has released the set's lock.
    pub(super) fn commit(mut self) -> Wakes {
        let complex = get(self.guard.field(COMPLEX_COUNT)) != 0;
        let set = self.set();
        let is_changed =
            |word: &&Frozen| (word.value, word.pid) != (word.before.value(), word.before.pid());
        let changed = self.frozen.iter().filter(is_changed).count();
        let has_cells = self.cells.iter().any(|cell| cell.before != cell.adj);
        let before = get(self.guard.field(COMMIT));
        // The count `SETTINGS` tells the tasks of completed calls that their undo adjustments were
        // cleared. Without `OWED` all of these tasks have returned, so the count need not change.
        let is_setting = self.is_setting && before & OWED != 0;
        let needs_log = changed > 1 || has_cells || !self.completed.is_empty() || is_setting;
        let settings = before.wrapping_add(u64::from(is_setting) << SETTINGS_SHIFT) & SETTINGS;
        let granted = if self.has_granted() { OWED } else { 0 };
        let after = before & OWED | granted | settings;
        if needs_log {
            self.log(set, complex, settings >> SETTINGS_SHIFT);
            // ORDERING(ipc-commit): Release. Recovery that sees `COMMITTING` sees the complete log.
            self.guard.field(COMMIT).store(COMMITTING | after, Ordering::Release);
        }
        for cell in self.cells.drain(..).filter(|cell| cell.before != cell.adj) {
            undo::store_adj(set.shared, cell.record, cell.num, cell.adj);
            undo::log_adj(set.shared, cell.record, cell.num, None);
        }
        for frozen in self.frozen.drain(..) {
            set.thaw(frozen.num, frozen.after(set, complex));
        }
        let wakes = tell(set.shared, std::mem::take(&mut self.completed));
        if needs_log {
            // ORDERING(ipc-commit): Release. Recovery reads this word after a death. Without this
            // order, it could see `COMMITTING` cleared before all changes are stored.
            self.guard.field(COMMIT).store(after, Ordering::Release);
        }
        wakes
    }

    fn log(&self, set: Set<'_>, complex: bool, settings: u64) {
        for frozen in &self.frozen {
            let after = frozen.after(set, complex);
            // ORDERING(ipc-commit): Release. The log must be visible before `COMMITTING`, see
            // `commit`.
            set.sem(frozen.num)[REDO].store(after.thaw().0, Ordering::Release);
        }
        for cell in self.cells.iter().filter(|cell| cell.before != cell.adj) {
            undo::log_adj(set.shared, cell.record, cell.num, Some(cell.adj));
        }
        for (line, errno) in &self.completed {
            Node { shared: set.shared, line: *line }.set_pending(Some((*errno, settings)));
        }
    }

    fn find(&self, num: u16) -> Result<usize, usize> {
        self.frozen.binary_search_by_key(&num, |frozen| frozen.num)
    }

    #[inline]
    pub(super) fn frozen(&mut self, num: u16) -> Result<&mut Frozen, Errno> {
        let at = match self.find(num) {
            Ok(at) => at,
            Err(at) => {
                let before = self.guard.freeze(num)?;
                let (value, pid) = (before.value(), before.pid());
                self.frozen.insert(at, Frozen { num, before, value, pid, waiters: 0 });
                at
            }
        };
        Ok(&mut self.frozen[at])
    }

    /// Returns the copy of an undo adjustment. First freezes (locks) the semaphore's word, which
    /// protects the adjustment.
    pub(super) fn cell(&mut self, record: u32, num: u16) -> Result<&mut Cell, Errno> {
        self.frozen(num)?;
        let key = (num, record);
        let at = match self.cells.binary_search_by_key(&key, |cell| (cell.num, cell.record)) {
            Ok(at) => at,
            Err(at) => {
                let before = undo::load_adj(self.guard.set.shared, record, num);
                self.cells.insert(at, Cell { record, num, before, adj: before });
                at
            }
        };
        Ok(&mut self.cells[at])
    }
}

impl Frozen {
    /// Returns the new word that the commit stores for this semaphore.
    fn after(&self, set: Set<'_>, complex: bool) -> Word {
        let line = set.sem(self.num);
        let bit = |list: usize, bit| if get(&line[list]) == 0 { 0 } else { bit };
        let old_complex = if complex { self.before.waiters() & COMPLEX } else { 0 };
        let waiters = bit(ALTER_LIST, ALTER) | bit(CONST_LIST, ZERO) | old_complex;
        self.before.with(self.value, self.pid).with_waiters(waiters | self.waiters)
    }
}

impl Drop for Txn<'_, '_> {
    fn drop(&mut self) {
        let set = self.set();
        for frozen in &self.frozen {
            set.thaw(frozen.num, frozen.before);
        }
    }
}
