//! Repair of a semaphore set after a task has died in the middle of a change.
//!
//! A dead task can leave the set's lock, or semaphore words that it froze (locked) without that
//! lock (`freeze`). It can also leave a set that is only partly removed. If the last holder of a
//! set's lock has died, the next task that takes the lock repairs the set first.
//!
//! The words of the semaphores, the wait nodes and the undo records are authoritative. So is the
//! set's word `COMMIT`, which says whether the dead task's transaction had completed its logs.
//! Recovery rebuilds the queues of waiting calls and the list of undo records.
//!
//! Each step of recovery can be repeated with the same result. If the recovering task dies too, the
//! next task starts recovery again.
//!
//! Source: the essays of `txn`, `several` and `log`; `ARCHITECTURE.md`.

use corewalk_base::primitives::atomic::{Ordering, fence};
use rustix::io::Errno;

use super::freeze::settle;
use super::node::{Completed, TAKEN_BACK, Wakes, nodes_of, tell, wake};
use super::queue;
use super::set::{COMMIT, COMMITTING, LIVE, LOCK, OWED, SETTINGS, Set, SetGuard};
use super::undo;
use crate::field::{get, put};
use crate::ids::{Ids, Kind};
use crate::lock::{Owner, Wait, lock};

/// Semaphore sets, for the code that all kinds share.
pub(crate) const SETS: &Kind = &Kind {
    layout: |layout| layout.sem_ids,
    repair: |ids, object| Set::new(ids.shared, object).place.nsems.into(),
    end: end_slot,
    sweep: free_lost,
    may_ctl: |hook, cred, perm, cmd| hook.sem_semctl(cred, perm, cmd),
};

impl<'s> Set<'s> {
    /// Takes the set's lock. If the last holder of the lock has died, first completes or reverts
    /// its unfinished change.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the set was removed, even if its memory is not free yet. `EIO` if the holder is
    /// alive and does not release the lock.
    pub(super) fn lock(self, owner: Owner) -> Result<SetGuard<'s>, Errno> {
        let guard = self.lock_remains(owner, Wait::Long)?;
        guard.filter(|guard| guard.set.is_published()).ok_or(Errno::IDRM)
    }

    /// Like [`Set::lock`], but also locks a removed set whose memory is not free yet. Returns none
    /// if the set is freed and all its waiting calls have ended.
    pub(super) fn lock_remains(
        self,
        owner: Owner,
        wait: Wait,
    ) -> Result<Option<SetGuard<'s>>, Errno> {
        Ok(Some(self.lock_new(owner, wait)?).filter(|guard| guard.set.is_there()))
    }

    /// Takes the lock of the set's slot, whether or not the set exists. `semget` takes this lock
    /// before it publishes the set.
    pub(super) fn lock_new(self, owner: Owner, wait: Wait) -> Result<SetGuard<'s>, Errno> {
        let held = lock(self.shared, &self.line()[LOCK], owner, wait, || {
            let set = Set::at(self.shared, self.index);
            set.map_or(Ok(()), |set| recover(&SetGuard { set, owner, _held: None }))
        })?;
        Ok(SetGuard { set: self, owner, _held: Some(held) })
    }
}

impl SetGuard<'_> {
    /// Ends the waiting calls of a set that no lookup finds any more, and frees its memory.
    /// Analogous to Linux's `freeary`.
    ///
    /// The caller holds the lock of all semaphore sets. If the caller dies during this function,
    /// the next holder of that lock completes the work.
    ///
    /// If a stopped process has frozen (locked) a semaphore, the function only ends the waiting
    /// calls and returns false. The set's memory stays, because that process will store into it
    /// when it continues.
    pub(super) fn remove(self) -> (Wakes, bool) {
        let set = self.set;
        let is_whole = self.kill_all();
        let completed = queue::end_all(&self);
        if is_whole {
            // The words of the semaphores are dead already.
            undo::list(&self).iter().for_each(|record| undo::free(&self, record));
        }
        let wakes = tell(set.shared, completed);
        if !is_whole {
            return (wakes, false);
        }
        // Clear `LIVE` last. If this task dies before that, recovery still finds the set and
        // destroys it.
        put(self.field(LIVE), 0);
        let owner = self.owner;
        drop(self);
        set.shared.layout.sems.free(set.shared, set.place.base, owner);
        (wakes, true)
    }
}

/// Completes or reverts the unfinished change of a dead task, and rebuilds the set's queues and
/// lists. The caller has taken the set's lock from the dead task.
///
/// # Errors
///
/// `EIO` if another task keeps a semaphore's word frozen (locked). The next task that takes the
/// set's lock then repairs the set.
#[cold]
fn recover(guard: &SetGuard<'_>) -> Result<(), Errno> {
    let set = guard.set;
    let commit = get(guard.field(COMMIT));
    let is_committed = commit & COMMITTING != 0;
    // ORDERING(ipc-commit): Release. `undo::rebuild` empties the list of undo records for a moment.
    // Meanwhile `OWED` makes calls without the set's lock look for dead tasks.
    guard.field(COMMIT).store(commit | OWED, Ordering::Release);
    // ORDERING(ipc-owed): Release fence. Orders the store of `OWED` before the store that empties
    // the list of undo records. `Set::may_be_owed` loads the list with Acquire. Without this order,
    // it could see the empty list but miss `OWED`.
    fence(Ordering::Release);
    undo::rebuild(guard);
    for num in 0..set.place.nsems as u16 {
        if let Ok(word) = set.word(num)
            && word.is_frozen_locked()
        {
            for record in undo::list(guard).iter() {
                undo::settle_adj(set.shared, record, num, is_committed);
            }
            settle(set, num, word, is_committed);
        }
    }
    let wakes = tell(set.shared, settle_nodes(set, is_committed));
    // ORDERING(ipc-commit): Release. As in `Txn::commit`.
    guard.field(COMMIT).store(OWED | commit & SETTINGS, Ordering::Release);
    queue::rebuild(guard);
    queue::restore_bits(guard)?;
    // Woken tasks may have died. This thread holds the set's lock, so it must not clean up after
    // them. The bit `OWED` makes later calls do so.
    let _absent = wake(set.shared, &wakes);
    Ok(())
}

/// Returns the waiting calls that a committed transaction of the dead task completes. If the
/// transaction was not committed, clears its logged outcomes.
fn settle_nodes(set: Set<'_>, is_committed: bool) -> Completed {
    let mut completed = Completed::new();
    for (node, _) in nodes_of(set) {
        let Some(errno) = node.pending() else { continue };
        // A wait node that has an outcome keeps it, because its task may have returned from the
        // call. But if the logged outcome is `TAKEN_BACK`, the transaction was reverting a
        // completed call.
        let is_to_be_told = node.outcome().is_none() || errno == TAKEN_BACK;
        match (is_committed, is_to_be_told) {
            (true, true) => completed.push((node.line, errno)),
            (false, true) => node.set_pending(None),
            (_, false) => {}
        }
    }
    completed
}

/// Ends the waiting calls, and frees the set's memory. The caller holds the lock of all semaphore
/// sets.
fn end_slot(ids: Ids<'_>, index: u32) -> bool {
    let shared = ids.shared;
    let Some(set) = Set::at(shared, index) else { return true };
    match set.lock_remains(ids.owner, Wait::Short) {
        Ok(Some(guard)) => {
            let (wakes, is_whole) = guard.remove();
            // Woken tasks may have died. This thread need not clean up after them, since their
            // calls end with `EIDRM` and take no units.
            let _absent = wake(shared, &wakes);
            is_whole
        }
        left => left.is_ok(),
    }
}

/// Frees lines of semaphores that belong to no set. The caller holds the lock of all semaphore
/// sets.
pub(super) fn free_lost(ids: Ids<'_>) {
    let shared = ids.shared;
    let pool = shared.layout.sems;
    let (_, lost) = pool.collect_used(&shared.region, |line, index| {
        let set = (index < ids.slots()).then(|| Set::at(shared, index)).flatten();
        set.is_none_or(|set| set.place.base != line).then_some(line)
    });
    lost.into_iter().for_each(|line| pool.free(shared, line, ids.owner));
}
