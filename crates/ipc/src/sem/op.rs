//! semop(2) and semtimedop(2).
//!
//! A call first looks up its set, and checks the permissions and the security hook, without a lock
//! and without a store to shared memory. Then it performs the operations in one of four ways.
//!
//! - A single operation that need not wait, and that no waiting call depends on, is one
//!   compare-exchange of the semaphore's word. The word also shows whether the set is still the one
//!   that the lookup found.
//! - A single operation with `SEM_UNDO` freezes (locks) the word with a compare-exchange, and thaws
//!   it with a store.
//! - A few operations without `SEM_UNDO` freeze and thaw each word in the same way (`several`).
//! - All other calls take the set's lock.
//!
//! As in Linux, a later change of the permissions does not stop a call that was permitted at its
//! begin.
//!
//! Source: document 002; Linux `ipc/sem.c` (`do_semtimedop`); semop(2).

use corewalk_base::futex::{self, Deadline, Ended};
use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::{IS_MODEL, hint};
use rustix::io::Errno;
use std::time::Duration;

use super::SemBuf;
use super::log::Log;
use super::node::{self, Call, Node, Wakes};
use super::queue::{self, Changed};
use super::reap::{Concern, Reaper, tasks_of};
use super::set::{Set, TICKET, TICKET_BITS, TICKET_MASK, WORD};
use super::txn::{Txn, Verdict};
use super::undo;
use super::word::Word;
use crate::field::{get, put, refuse_if};
use crate::handle::SemId;
use crate::lock::Wait;
use crate::perm::{READ, WRITE};
use crate::process::Look;
use crate::recover;
use crate::shared::now_s;
use crate::spin::Spin;
use crate::status::AWAKE;
use crate::task::Task;
use crate::task_line::Absent;
use crate::watch::{self, TURN_NS, Turn};

const TRIES_MAX: u32 = if IS_MODEL { 2 } else { 1000 };

/// Less than 1 us in all.
const LOOKS: u32 = 32;

/// The minimum time between two checks of a set for dead tasks, since a check may read `/proc`. The
/// set's record contains the time of the last check.
const LOOK_MS: u64 = TURN_NS / 1_000_000 * 9 / 10;

impl Task {
    /// Performs all operations as one atomic change. Waits until they are possible.
    ///
    /// # Errors
    ///
    /// - `E2BIG`: the call has more operations than `SEMOPM`.
    /// - `EACCES`: the set's mode forbids the call, and the task lacks `CAP_IPC_OWNER`.
    /// - `EAGAIN`: the call would have to wait, and the blocking operation has `IPC_NOWAIT`.
    /// - `EFBIG`: a semaphore's number is not below the number of semaphores.
    /// - `EIDRM`: the set was removed during the call.
    /// - `EIO`: a live process did not release the set's lock, or a frozen semaphore, for 10 s. The
    ///   end of a wait needs the lock too, so a call can also return this error after it has
    ///   waited.
    /// - `EINTR`: a signal or [`Task::interrupt`] ended the wait.
    /// - `EINVAL`: there is no such set, or the call has no operations.
    /// - `ENOMEM`: there is no memory for an undo record or for the waiting call.
    /// - `ERANGE`: a value would exceed `SEMVMX`, or an undo adjustment `SEMAEM`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600)?;
    /// task.semop(id, &[SemBuf::new(0, 2, SemFlags::empty())])?;
    /// // Both operations or none.
    /// let both = [SemBuf::new(0, -1, SemFlags::NOWAIT), SemBuf::new(1, -1, SemFlags::NOWAIT)];
    /// assert_eq!(task.semop(id, &both), Err(Errno::AGAIN));
    /// assert_eq!(task.sem_getall(id)?, [2, 0]);
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "sys_semtimedop")]
    #[doc(alias = "update_queue")]
    #[inline]
    pub fn semop(&self, semid: SemId, sops: &[SemBuf]) -> Result<(), Errno> {
        self.semtimedop(semid, sops, None)
    }

    /// Like [`Task::semop`], but waits at most for `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::semop`]. `EAGAIN` also if the timeout has passed.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    /// use rustix::io::Errno;
    /// use std::time::Duration;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// let take = [SemBuf::new(0, -1, SemFlags::empty())];
    /// let timeout = Some(Duration::from_millis(10));
    /// // No task increments the semaphore.
    /// assert_eq!(task.semtimedop(id, &take, timeout), Err(Errno::AGAIN));
    /// task.sem_setval(id, 0, 1)?;
    /// assert_eq!(task.semtimedop(id, &take, timeout), Ok(()));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "do_semtimedop")]
    #[doc(alias = "perform_atomic_semop")]
    pub fn semtimedop(
        &self,
        semid: SemId,
        sops: &[SemBuf],
        timeout: Option<Duration>,
    ) -> Result<(), Errno> {
        refuse_if(sops.len() > self.shared.limits.semopm as usize, Errno::TOOBIG)?;
        refuse_if(sops.is_empty(), Errno::INVAL)?;
        let object = self.sem_ids().obtain_object_check(semid.raw())?;
        let set = Set::new(&self.shared, &object);
        let (num_max, is_alter) = match sops {
            [sop] => (Some(sop.sem_num), sop.sem_op != 0),
            _ => (sops.iter().map(|sop| sop.sem_num).max(), is_alter(sops)),
        };
        refuse_if(num_max.is_some_and(|num| u32::from(num) >= set.place.nsems), Errno::FBIG)?;
        self.permission(&object, if is_alter { WRITE } else { READ })?;
        self.ask(|hook, cred| hook.sem_semop(cred, &object.perm(), is_alter))?;
        let is_long =
            || timeout.is_none_or(|timeout| timeout.as_nanos() > self.shared.spin_ns.into());
        let tried = match sops {
            [sop] => match self.semop_single(set, *sop) {
                Err(None) if is_long() && self.is_soon_possible(set, *sop) => {
                    self.semop_single(set, *sop)
                }
                tried => tried,
            },
            _ => self.semop_several(set, sops),
        };
        match tried {
            Ok(()) => return Ok(()),
            Err(Some(errno)) => return Err(errno),
            Err(None) => {}
        }
        let deadline = timeout.map_or(Deadline::NEVER, deadline_after);
        let done =
            recover::with_room(&self.shared, self.owner, || self.semop_locked(set, sops, deadline));
        let is_refused = done == Err(Errno::AGAIN) && set.may_be_owed();
        if is_refused && self.look_after(set, Concern::Values) {
            return self.semop_locked(set, sops, deadline);
        }
        done
    }

    /// Carries out a single operation without the set's lock. Returns `Err(None)` if the call must
    /// take the set's lock.
    #[inline]
    fn semop_single(&self, set: Set<'_>, sop: SemBuf) -> Result<(), Option<Errno>> {
        let record = if sop.is_undo() && sop.sem_op != 0 {
            undo::cached(set, &self.undos, self.owner.index).ok_or(None)?
        } else {
            0
        };
        let cell = &set.sem(sop.sem_num)[WORD];
        for _ in 0..TRIES_MAX {
            let seen = set.word(sop.sem_num)?;
            if seen.is_frozen() {
                return Err(None);
            }
            let result = match sop.apply(seen.value()) {
                // If the call may wait, take the set's lock. Also take it if `may_be_owed` returns
                // true: a dead task may have taken the units that the call needs, so first clean up
                // after it.
                Err(Errno::AGAIN) if !sop.is_nowait() || set.may_be_owed() => return Err(None),
                result => result?,
            };
            if seen.concerns(sop.sem_op.into(), result) {
                return Err(None);
            }
            let after = seen.with(result, self.pid);
            let next = if record == 0 { after } else { seen.freeze(self.owner.index) };
            // ORDERING(ipc-word): AcqRel. Every operation on this semaphore acquires and releases
            // its word. Without this order, a later operation could miss stores of this task.
            let swapped =
                cell.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_ok() {
                if record != 0 {
                    let adj = undo::load_adj(set.shared, record, sop.sem_num);
                    let next = undo::adjusted(adj, sop).inspect_err(|_| {
                        Log::Void.write(&set, sop.sem_num, seen);
                        set.thaw(sop.sem_num, seen);
                    })?;
                    Log::Single { record, adj }.write(&set, sop.sem_num, seen);
                    undo::store_adj(set.shared, record, sop.sem_num, next);
                    set.thaw(sop.sem_num, after);
                }
                set.touch_otime(sop.sem_num, now_s());
                return Ok(());
            }
        }
        Err(None)
    }

    /// Polls the semaphore for about as long as it takes to queue a call. Returns true if the
    /// operation becomes possible, so that the call need not take the set's lock.
    #[cold]
    pub(super) fn is_soon_possible(&self, set: Set<'_>, sop: SemBuf) -> bool {
        let is_possible =
            |word: Word| !word.is_frozen() && sop.apply(word.value()) != Err(Errno::AGAIN);
        let has_to_wait = !sop.is_nowait() && !set.word(sop.sem_num).is_ok_and(is_possible);
        if !has_to_wait || self.shared.spin_ns == 0 || !Spin::Instant.is_worth_it() {
            return false;
        }
        let is_frozen = set.word(sop.sem_num).is_ok_and(Word::is_frozen);
        let _waits = is_frozen.then(|| self.shared.contention.begin());
        let is_soon = (0..LOOKS).any(|_| {
            hint::spin_loop();
            set.word(sop.sem_num).is_ok_and(is_possible)
        });
        Spin::Instant.tell(is_soon);
        is_soon
    }

    #[cold]
    fn semop_locked(&self, set: Set<'_>, sops: &[SemBuf], deadline: Deadline) -> Result<(), Errno> {
        let guard = set.lock(self.owner)?;
        let has_undo = sops.iter().any(|sop| sop.is_undo());
        let undo = if has_undo { undo::find_alloc(&guard, &self.undos)? } else { 0 };
        let call = Call { sops, undo, pid: self.pid };
        let mut txn = Txn::new(&guard);
        match txn.perform(call) {
            Verdict::Fails(errno) => Err(errno),
            Verdict::Done => {
                if is_alter(sops) && txn.frozen.iter().any(|frozen| frozen.before.waiters() != 0) {
                    queue::update(&mut txn, Changed::By(sops))?;
                }
                let wakes = txn.commit();
                set.touch_otime(sops[0].sem_num, now_s());
                drop(guard);
                self.wake(wakes);
                Ok(())
            }
            Verdict::Blocks(at) => {
                let watch = self.watch_until(deadline);
                let node = Node::alloc(&self.shared, self.owner, call, at)?;
                put(node.status(), if watch.is_some() { AWAKE } else { 0 });
                queue::enqueue(&mut txn, node, sops).inspect_err(|_| node.free(self.owner))?;
                let outer = self.begin_wait(node.line);
                txn.commit();
                drop(guard);
                if let Some(end) = watch {
                    Spin::Queued.tell(node.watch(end));
                }
                let result = self.wait(set, node, deadline);
                refuse_if(!self.end_wait(node.line, outer), Errno::INTR)?;
                let result = if result == Err(Errno::IO) { node.leave() } else { Some(result) };
                match result {
                    Some(_) => node.free(self.owner),
                    // The wait node is still in the queues of the set. It stays allocated until the
                    // task ends, so that no other call gets a node that is in these queues.
                    None => self.waiting.enter(node.line),
                }
                result.unwrap_or(Err(Errno::IO))
            }
        }
    }

    /// Returns the time until which the call should poll, or none if it should not poll.
    pub(super) fn watch_until(&self, deadline: Deadline) -> Option<Deadline> {
        let spin_ns = self.shared.spin_ns;
        if spin_ns == 0 || !Spin::Queued.is_worth_it() {
            return None;
        }
        let end = Deadline { monotonic_ns: futex::now().monotonic_ns + spin_ns };
        (deadline > end).then_some(end)
    }

    /// Sleeps until the call has an outcome. The wait also ends by the timeout, a signal, or the
    /// removal of the semaphore set.
    fn wait(&self, set: Set<'_>, node: Node<'_>, deadline: Deadline) -> Result<(), Errno> {
        let mut turn = Turn::first();
        loop {
            refuse_if(self.is_copy(), Errno::INTR)?;
            if let Some(outcome) = node.outcome() {
                return outcome;
            }
            if node.is_interrupted() {
                return self.give_up(set, node, Errno::INTR);
            }
            let end = turn.end(self.shared.scope, deadline);
            match futex::wait(node.status(), node.asleep(), end, self.shared.scope) {
                _ if self.is_copy() => {}
                Ended::TimedOut if end == deadline => return self.give_up(set, node, Errno::AGAIN),
                Ended::Interrupted => return self.give_up(set, node, Errno::INTR),
                Ended::TimedOut => {
                    if turn.is_watcher(&self.shared) {
                        watch::look(&self.shared, self.owner);
                    }
                    self.end_if_gone(set, node)?;
                }
                Ended::Woken if IS_MODEL || node.outcome().is_some() => {}
                // The watcher (the waiting call that looks for dead tasks) may have woken this task
                // because the set is gone. So end the wait if it is gone.
                Ended::Woken => self.end_if_gone(set, node)?,
            }
        }
    }

    /// Ends the wait if the set is gone: its remover may have died before it stored outcomes for
    /// the waiting calls. If the set's lock cannot be taken, the wait continues.
    fn end_if_gone(&self, set: Set<'_>, node: Node<'_>) -> Result<(), Errno> {
        if set.is_there() && set.is_published() {
            return Ok(());
        }
        if let Ok(ids) = self.sem_ids().lock() {
            ids.end_left_at(set.index);
        }
        match set.lock_remains(self.owner, Wait::Long) {
            Ok(None) => node.outcome().unwrap_or(Err(Errno::IDRM)),
            _ => Ok(()),
        }
    }

    /// Reaps (cleans up after) dead tasks that have undo adjustments in the set or a completed
    /// call. With `Concern::Waits` also reaps dead tasks that wait. Reaping may complete calls of
    /// other dead tasks, which are then reaped too. Returns true if a task was reaped.
    #[cold]
    pub(super) fn look_after(&self, set: Set<'_>, concern: Concern) -> bool {
        // Each round reaps (cleans up after) at least one task, so the number of tasks bounds the
        // loop, even in a damaged namespace.
        let rounds = 0..self.shared.layout.tasks_max;
        rounds.take_while(|_| self.look_once(set, concern)).count() != 0
    }

    fn look_once(&self, set: Set<'_>, concern: Concern) -> bool {
        let Ok(guard) = set.lock(self.owner) else { return false };
        let tasks = tasks_of(&guard, concern);
        // `Look::Close` also detects reused pids. It reads `/proc`, so it is used at most once in
        // [`LOOK_MS`].
        let (ticket, now_ms) = (get(guard.field(TICKET)), futex::now().monotonic_ns / 1_000_000);
        let past_ms = now_ms.wrapping_sub(ticket >> TICKET_BITS) & (u64::MAX >> TICKET_BITS);
        let look = if past_ms >= LOOK_MS { Look::Close } else { Look::Quick };
        if look == Look::Close {
            put(guard.field(TICKET), ticket & TICKET_MASK | now_ms << TICKET_BITS);
        }
        drop(guard);
        let gone = tasks.iter().filter(|task| self.shared.is_gone(**task, look));
        gone.filter(|task| recover::reap(&self.shared, self.owner, **task) == Ok(true)).count() != 0
    }

    /// Wakes tasks, and reaps (cleans up after) those that have died. The caller must hold no lock.
    pub(super) fn wake(&self, wakes: Wakes) {
        recover::reap_absent(&self.shared, self.owner, node::wake(&self.shared, &wakes));
    }

    /// Ends a wait without success, and removes its wait node. Returns `errno`, or the outcome of
    /// the call if another task has already completed it.
    fn give_up(&self, set: Set<'_>, node: Node<'_>, errno: Errno) -> Result<(), Errno> {
        let guard = set.lock_remains(self.owner, Wait::Long);
        if let Some(outcome) = node.outcome() {
            return outcome;
        }
        queue::withdraw(&guard?.ok_or(Errno::IDRM)?, node);
        Err(errno)
    }
}

/// Cleans up when a task ends. First removes the wait nodes that failed calls of the task have left
/// in the queues. Then applies the undo adjustments, set by set. Returns the dead tasks whose calls
/// this completes.
///
/// # Errors
///
/// `EIO` if another task does not release a set's lock or thaw (unlock) a semaphore. After this
/// process has ended, another task completes the cleanup.
pub(crate) fn exit_sem(task: &Task) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    let reaper = Reaper { shared: &task.shared, owner: task.owner, gone: task.owner.index };
    for line in task.kept_waits(&task.shared.layout.waits) {
        absent.extend(reaper.end_node(line)?);
    }
    let records = std::mem::take(&mut *task.undos.records.lock());
    for record in records.into_iter().rev() {
        absent.extend(reaper.end_record(record)?);
    }
    Ok(absent)
}

fn is_alter(sops: &[SemBuf]) -> bool {
    sops.iter().any(|sop| sop.sem_op != 0)
}

fn deadline_after(timeout: Duration) -> Deadline {
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let end = futex::now().monotonic_ns.saturating_add(ns);
    Deadline { monotonic_ns: end.min(Deadline::NEVER.monotonic_ns) }
}
