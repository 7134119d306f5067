//! semop(2) and semtimedop(2).
//!
//! A call looks up its set and checks ids, permissions and the security hook, without a lock and
//! without a store. Then one of four paths performs the operations:
//!
//! - If a single operation is possible, and no waiting call depends on it, it is one
//!   compare-exchange of the semaphore's word. The word also shows whether the set is still the one
//!   that the lookup found.
//! - A single operation with `SEM_UNDO` freezes the word with a compare-exchange, and thaws it with
//!   a store.
//! - A few operations without `SEM_UNDO` freeze and thaw each word in the same way (`several`).
//! - All other calls take the set's lock.
//!
//! Permissions may change between the check and the operation. It is enough that the call was
//! permitted when it began, as in Linux.
//!
//! Source: document 002; Linux `ipc/sem.c` (`do_semtimedop`); semop(2).

use corewalk_base::futex::{self, Deadline, Ended};
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::hint;
use rustix::io::Errno;
use std::time::Duration;

use super::SemBuf;
use super::log::Log;
use super::node::{self, Call, Completed, Node, Wakes};
use super::queue::{self, Changed};
use super::reap::{Concern, Gone, Reaper, tasks_of};
use super::set::{Set, WORD};
use super::txn::{Txn, Verdict};
use super::undo;
use super::word::Word;
use crate::handle::SemId;
use crate::ids::Object;
use crate::limits::{SEMAEM, SEMVMX};
use crate::lock::Wait;
use crate::perm::{READ, WRITE};
use crate::process::Look;
use crate::recover;
use crate::shared::now_s;
use crate::spin::Spin;
use crate::task::Task;
use crate::task_line::Absent;
use crate::watch::{self, Turn};

/// How often a call may lose a race for a word before it takes the lock.
const TRIES_MAX: u32 = if corewalk_base::primitives::IS_MODEL { 2 } else { 1000 };

/// How often a call reads a semaphore before it queues. All reads together take less than 1 us.
const LOOKS: u32 = 32;

impl Task {
    /// Performs all operations as one atomic change. Waits until they are possible.
    ///
    /// # Errors
    ///
    /// - `E2BIG`: more operations than `SEMOPM`.
    /// - `EACCES`: the mode forbids it, and the task lacks `CAP_IPC_OWNER`.
    /// - `EAGAIN`: the call would have to wait, and the blocking operation has `IPC_NOWAIT`.
    /// - `EFBIG`: a semaphore's number is not below the number of semaphores.
    /// - `EIDRM`: the set was removed meanwhile.
    /// - `EIO`: a live process did not release the set's lock, or a frozen semaphore, for 10 s. The
    ///   end of a wait needs the lock too, so it can also return this error.
    /// - `EINTR`: a signal or [`Task::interrupt`] ended the wait.
    /// - `EINVAL`: there is no such set, or the call has no operations.
    /// - `ENOMEM`: the region has no space for an undo record or for the waiting call.
    /// - `ERANGE`: a value would exceed `SEMVMX`, or an adjustment `SEMAEM`.
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
        if sops.len() > self.shared.limits.semopm as usize {
            return Err(Errno::TOOBIG);
        }
        if sops.is_empty() {
            return Err(Errno::INVAL);
        }
        let object = self.sem_ids().obtain_object_check(semid.raw())?;
        let set = Set::new(&self.shared, &object);
        if let [sop] = sops {
            if u32::from(sop.sem_num) >= set.place.nsems {
                return Err(Errno::FBIG);
            }
            self.may_semop(&object, sop.sem_op != 0)?;
            if let Some(done) = self.semop_single(set, *sop) {
                return done;
            }
            let is_long =
                timeout.is_none_or(|timeout| timeout.as_nanos() > self.shared.spin_ns.into());
            if is_long
                && self.is_soon_possible(set, *sop)
                && let Some(done) = self.semop_single(set, *sop)
            {
                return done;
            }
        } else {
            if sops.iter().any(|sop| u32::from(sop.sem_num) >= set.place.nsems) {
                return Err(Errno::FBIG);
            }
            self.may_semop(&object, is_alter(sops))?;
            if let Some(done) = self.semop_several(set, sops) {
                return done;
            }
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

    fn may_semop(&self, object: &Object, is_alter: bool) -> Result<(), Errno> {
        self.permission(object, if is_alter { WRITE } else { READ })?;
        self.ask(|hook, cred| hook.sem_semop(cred, &object.perm(), is_alter))
    }

    /// Performs one operation in one step. Returns none if the operation needs the set's lock.
    #[inline]
    fn semop_single(&self, set: Set<'_>, sop: SemBuf) -> Option<Result<(), Errno>> {
        let record = if sop.is_undo() && sop.sem_op != 0 {
            undo::cached(set, &self.undos, self.owner.index)?
        } else {
            0
        };
        let cell = &set.sem(sop.sem_num)[WORD];
        for _ in 0..TRIES_MAX {
            let seen = match set.word(sop.sem_num) {
                Ok(seen) => seen,
                Err(errno) => return Some(Err(errno)),
            };
            if seen.is_frozen() {
                return None;
            }
            let op = i32::from(sop.sem_op);
            let (value, result) = (seen.value(), seen.value() + op);
            if result < 0 || (op == 0 && value != 0) {
                // A dead task may have the permit that this call needs. Then the slow path must
                // reap that task.
                let is_refused = sop.is_nowait() && !set.may_be_owed();
                return is_refused.then_some(Err(Errno::AGAIN));
            }
            if result > SEMVMX {
                return Some(Err(Errno::RANGE));
            }
            if seen.concerns(op, result) {
                return None;
            }
            let after = seen.with(result, self.pid);
            let next = if record == 0 { after } else { seen.freeze(self.owner.index) };
            // ORDERING(ipc-word): AcqRel. A later operation on this semaphore sees the work that
            // this task did before. The tag in the word shows that the set still exists.
            let swapped =
                cell.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
            if swapped.is_ok() {
                if record != 0 && !self.undo_single(set, sop, record, seen, after) {
                    return Some(Err(Errno::RANGE));
                }
                set.touch_otime(sop.sem_num, now_s());
                return Some(Ok(()));
            }
        }
        None
    }

    /// Returns true if an operation that has to wait becomes possible within the time that it takes
    /// to queue the call. A task on another processor often makes it possible in that time. Then
    /// neither task takes the set's lock.
    #[cold]
    pub(super) fn is_soon_possible(&self, set: Set<'_>, sop: SemBuf) -> bool {
        let is_possible = |word: Word| {
            let result = word.value() + i32::from(sop.sem_op);
            !word.is_frozen() && if sop.sem_op == 0 { result == 0 } else { result >= 0 }
        };
        let has_to_wait = !sop.is_nowait() && !set.word(sop.sem_num).is_ok_and(is_possible);
        if !has_to_wait || self.shared.spin_ns == 0 || !Spin::Instant.is_worth_it() {
            return false;
        }
        let is_frozen = set.word(sop.sem_num).is_ok_and(Word::is_frozen);
        let _waits = if is_frozen { self.shared.contention.begin() } else { None };
        let mut looks = (0..LOOKS).map(|_| {
            hint::spin_loop();
            set.word(sop.sem_num).is_ok_and(is_possible)
        });
        let is_soon = looks.any(|is_possible| is_possible);
        Spin::Instant.tell(is_soon);
        is_soon
    }

    /// Stores the adjustment and the word of an operation that has frozen the word. Returns false
    /// if the adjustment is out of range. In that case nothing has changed.
    #[inline]
    fn undo_single(&self, set: Set<'_>, sop: SemBuf, record: u32, seen: Word, after: Word) -> bool {
        let adj = undo::load_adj(&self.shared, record, sop.sem_num);
        let next = adj - i32::from(sop.sem_op);
        let is_in_range = (-SEMAEM - 1..=SEMAEM).contains(&next);
        if is_in_range {
            Log::Single { record, adj }.write(&set, sop.sem_num, seen);
            undo::store_adj(&self.shared, record, sop.sem_num, next);
        } else {
            Log::Void.write(&set, sop.sem_num, seen);
        }
        set.thaw(sop.sem_num, if is_in_range { after } else { seen });
        is_in_range
    }

    /// Performs a call under the set's lock, or queues it and waits.
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
                let completed = if is_alter(sops) && txn.has_waiters() {
                    queue::update(&mut txn, Changed::By(sops))?
                } else {
                    Completed::default()
                };
                let wakes = txn.commit(completed);
                set.touch_otime(sops[0].sem_num, now_s());
                drop(guard);
                self.wake(wakes);
                Ok(())
            }
            Verdict::Blocks(at) => {
                let watch = self.watch_until(deadline);
                let node = Node::alloc(&self.shared, call, at, (self.owner, watch.is_some()))?;
                if let Err(errno) = queue::enqueue(&mut txn, node, sops) {
                    node.free(self.owner);
                    return Err(errno);
                }
                let begun = self.begin_wait(node.line);
                txn.commit(Completed::default());
                drop(guard);
                let result = self.wait(set, node, (deadline, watch));
                if !self.end_wait(begun) {
                    return Err(Errno::INTR);
                }
                let result = if result == Err(Errno::IO) { node.leave() } else { Some(result) };
                match result {
                    Some(_) => node.free(self.owner),
                    // The node is still in its queues. A freed node could get a new user, which
                    // would be in these queues.
                    None => self.keep_wait(node.line),
                }
                result.unwrap_or(Err(Errno::IO))
            }
        }
    }

    /// Returns the time until which a wait polls before it sleeps. Returns none if polling is not
    /// useful, or if the wait's deadline comes first.
    pub(super) fn watch_until(&self, deadline: Deadline) -> Option<Deadline> {
        let spin_ns = self.shared.spin_ns;
        if spin_ns == 0 || !Spin::Queued.is_worth_it() {
            return None;
        }
        let end = Deadline { monotonic_ns: futex::now().monotonic_ns + spin_ns };
        (deadline > end).then_some(end)
    }

    /// Waits until the call of `node` is completed, or the call gives up.
    fn wait(
        &self,
        set: Set<'_>,
        node: Node<'_>,
        (deadline, watch): (Deadline, Option<Deadline>),
    ) -> Result<(), Errno> {
        if let Some(end) = watch {
            Spin::Queued.tell(node.watch(end));
        }
        let mut turn = Turn::first();
        loop {
            if self.is_copy() {
                return Err(Errno::INTR);
            }
            if let Some(outcome) = node.outcome() {
                return outcome;
            }
            if node.is_interrupted() {
                return self.give_up(set, node, Errno::INTR);
            }
            let end = turn.end(self.shared.scope, deadline);
            match futex::wait(node.status(), node.asleep(), end, self.shared.scope) {
                _ if self.is_copy() => {}
                Ended::TimedOut if end == deadline => {
                    return self.give_up(set, node, Errno::AGAIN);
                }
                Ended::Interrupted => return self.give_up(set, node, Errno::INTR),
                Ended::TimedOut => {
                    if turn.is_watcher(&self.shared) {
                        watch::look(&self.shared, self.owner);
                    }
                    self.end_if_gone(set, node)?;
                }
                Ended::Woken if IS_MODEL || node.outcome().is_some() => {}
                // The watcher also wakes a call whose set is gone, so check that.
                Ended::Woken => self.end_if_gone(set, node)?,
            }
        }
    }

    /// Ends the wait if the set is gone but the call was not told. This happens if the process that
    /// removed the set died, or could not finish the removal. If the set's lock cannot be taken,
    /// the wait continues.
    ///
    /// # Errors
    ///
    /// The outcome of the wait, if it is an error.
    fn end_if_gone(&self, set: Set<'_>, node: Node<'_>) -> Result<(), Errno> {
        if set.is_there() && set.is_published() {
            return Ok(());
        }
        if let Ok(ids) = self.sem_ids().lock() {
            ids.end_left_at(set.index);
        }
        match set.lock_remains(self.owner, Wait::Long) {
            Err(Errno::IDRM) => node.outcome().unwrap_or(Err(Errno::IDRM)),
            _ => Ok(()),
        }
    }

    /// Reaps dead tasks that have adjustments or grants in the set, as `concern` selects. Their
    /// permits may go to other dead tasks, which are then reaped too. Returns true if a task was
    /// reaped.
    #[cold]
    pub(super) fn look_after(&self, set: Set<'_>, concern: Concern) -> bool {
        // Each round reaps at least one task. So the number of tasks bounds the loop, whatever the
        // region contains.
        let rounds = 0..self.shared.layout.tasks_max;
        let reaped = rounds.take_while(|_| self.look_once(set, concern));
        reaped.count() != 0
    }

    fn look_once(&self, set: Set<'_>, concern: Concern) -> bool {
        let Ok(guard) = set.lock(self.owner) else { return false };
        let tasks = tasks_of(&guard, self.owner, concern);
        // A close check also detects that a pid was reused. It is expensive, so it is made only
        // from time to time.
        let is_close = guard.is_time_to_look(futex::now());
        let look = if is_close { Look::Close } else { Look::Quick };
        drop(guard);
        let gone = tasks.iter().filter(|task| self.shared.is_gone(**task, look));
        gone.filter(|task| recover::reap(&self.shared, self.owner, **task) == Ok(true)).count() != 0
    }

    /// Wakes the tasks of completed calls. If such a task has died, its grant is taken back. The
    /// caller holds no lock.
    pub(super) fn wake(&self, wakes: Wakes) {
        let absent = node::wake(&self.shared, &wakes);
        if !absent.is_empty() {
            recover::reap_absent(&self.shared, self.owner, absent);
        }
    }

    /// Removes the node from its queues and returns `errno`. If the call was completed meanwhile,
    /// returns its outcome instead.
    fn give_up(&self, set: Set<'_>, node: Node<'_>, errno: Errno) -> Result<(), Errno> {
        let guard = set.lock_remains(self.owner, Wait::Long);
        if let Some(outcome) = node.outcome() {
            return outcome;
        }
        queue::withdraw(&guard?, node);
        Err(errno)
    }
}

/// First ends the waits of the task that could not leave their queues. Then applies its
/// adjustments, set by set. Returns the tasks that got a grant by this and may have died.
///
/// # Errors
///
/// `EIO` if another task does not release a set's lock or a semaphore. Another task reaps the rest
/// after the process has ended.
pub(crate) fn exit_sem(task: &Task) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    for line in task.kept_waits(&task.shared.layout.waits) {
        absent.extend(own_reaper(task).end_node(line)?);
    }
    for record in task.undos.take().into_iter().rev() {
        absent.extend(own_reaper(task).end_record(record)?);
    }
    Ok(absent)
}

/// Returns a reaper with which a live task ends its own calls and adjustments.
fn own_reaper(task: &Task) -> Reaper<'_> {
    let gone = Gone { task: task.owner.index, pid: task.pid };
    Reaper { shared: &task.shared, owner: task.owner, gone }
}

fn is_alter(sops: &[SemBuf]) -> bool {
    sops.iter().any(|sop| sop.sem_op != 0)
}

fn deadline_after(timeout: Duration) -> Deadline {
    let ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let end = futex::now().monotonic_ns.saturating_add(ns);
    Deadline { monotonic_ns: end.min(Deadline::NEVER.monotonic_ns) }
}
