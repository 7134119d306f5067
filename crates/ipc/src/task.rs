//! Tasks. A task stands for a process.
//!
//! All threads of a process share one task and its undo records. The undo adjustments are applied
//! when the task ends, not when a thread ends. A forked process registers a new task, which has no
//! undo records.
//!
//! [`Task::exit`] or a drop ends a task. Both need the last handle of the task, so no call of the
//! task runs at that time. So during a call, the task's undo record for a set exists as long as the
//! set.
//!
//! Source: semop(2) `SEM_UNDO`; Linux `exit_sem`.

use corewalk_base::futex;
use corewalk_base::primitives::Arc;
use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};
use corewalk_base::{CachePadded, Mutex};
use rustix::io::Errno;
use std::fmt;

use crate::field::{put, refuse_if};
use crate::file::is_in_other_pid_namespace;
use crate::ids::{Ids, Object};
use crate::limits::Limits;
use crate::lock::Owner;
use crate::msg::QUEUES;
use crate::perm::{Cred, CredCell};
use crate::pool::Pool;
use crate::process::{Look, Program};
use crate::recover;
use crate::sem::{SETS, Undos};
use crate::shared::Shared;
use crate::shm::SEGMENTS;
use crate::signals;
use crate::status::{INTERRUPTED, STATUS, is_interruptible, is_waiting};
use crate::task_line::{
    GENERATION, IMAGE, PID, PID_END, STATE, identity, next_generation, task_line,
};
use crate::waiting::Waiting;

/// The number of records after its own that a new task checks for dead tasks.
const REAPED_BESIDE: u32 = 2;

/// The number of task records that a process searches, after execve(2), for the tasks of its
/// previous program.
const FORMER_WITHIN: usize = 64;

/// A process in a namespace. Its threads share the task by reference.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags};
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let parent = namespace.register(Cred::root(), 1)?;
/// let child = namespace.register(Cred::root(), 2)?;
/// let id = parent.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
/// child.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)])?;
/// assert_eq!(parent.sem_getval(id, 0), Ok(1));
/// child.exit();
/// assert_eq!(parent.sem_getval(id, 0), Ok(0));
/// # Ok::<(), rustix::io::Errno>(())
/// ```
pub struct Task {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
    pub(crate) pid: u32,
    pub(crate) cred: CredCell,
    pub(crate) undos: Undos,
    /// Wait nodes of calls that wait, were just woken, or could not leave their queues.
    pub(crate) waiting: Waiting,
    /// The tasks that this process had before execve(2), see [`Task::adopt`].
    former: Vec<u32>,
    /// The memory of the task's last received message, kept for its next message, or 0. Many calls
    /// write this field, so it has its own cache lines.
    pub(crate) kept_message: CachePadded<AtomicU32>,
    /// The segments that the task has made and attached.
    pub(crate) shm: Mutex<crate::shm::Own>,
    /// The fork guard, see [`Task::tell_copies_by`].
    home: Option<&'static AtomicU32>,
}

impl Task {
    pub(crate) fn register(shared: Arc<Shared>, cred: Cred, pid: u32) -> Result<Self, Errno> {
        let is_shared = shared.scope == futex::Scope::Shared;
        let program = if is_shared { Program::own() } else { Program::PRIVATE };
        Self::register_as(shared, cred, pid, &program)
    }

    /// Like [`Task::register`], with the identity `program`.
    pub(crate) fn register_as(
        shared: Arc<Shared>,
        cred: Cred,
        pid: u32,
        program: &Program,
    ) -> Result<Self, Errno> {
        refuse_if(pid >= PID_END, Errno::INVAL)?;
        refuse_if(is_in_other_pid_namespace(&shared.region, program), Errno::XDEV)?;
        let owner = claim_line(&shared, pid, program);
        let owner = owner.or_else(|| take_over_line(&shared, pid, program)).ok_or(Errno::NOMEM)?;
        // Reap (clean up after) dead tasks whose records follow the new task's record: the next new
        // tasks need these records.
        for step in 1..=REAPED_BESIDE {
            let beside = (owner.index + step) % shared.layout.tasks_max;
            let _reaped = recover::reap(&shared, owner, beside);
        }
        let cred = CredCell::new(cred);
        let (undos, waiting) = (Undos::default(), Waiting::default());
        let (shm, former, kept_message) = (Mutex::default(), Vec::new(), CachePadded::default());
        Ok(Self { shared, owner, pid, cred, undos, waiting, shm, former, kept_message, home: None })
    }

    /// Takes over the tasks of the program that the process ran before execve(2). The calls of
    /// these old tasks have ended with the old program:
    /// - The undo adjustments of the old tasks stay until the new task ends.
    /// - The records of the old tasks get a new generation, so their locks count as locks of dead
    ///   tasks.
    pub(crate) fn adopt(mut self) -> Result<Self, Errno> {
        if self.shared.scope == futex::Scope::Private {
            return Ok(self);
        }
        let own = identity(task_line(&self.shared, self.owner.index));
        let is_former = |index: &u32| {
            *index != self.owner.index && identity(task_line(&self.shared, *index)) == own
        };
        let lines = lines_for(&self.shared, self.pid).take(FORMER_WITHIN);
        self.former = lines.filter(is_former).collect();
        for index in &self.former {
            let generation = next_generation(&self.shared);
            put(&task_line(&self.shared, *index)[GENERATION], u64::from(generation));
            recover::settle(&self.shared, self.owner, *index)?;
        }
        Ok(self)
    }

    /// Returns the pid that `GETPID` returns.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the limits of the task's namespace.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Changes the credentials of the task, like setuid(2) and related calls.
    ///
    /// A concurrent call may see the old or the new effective ids, capabilities and groups, in any
    /// combination.
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
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// task.set_cred(Cred::user(1000, 1000));
    /// assert_eq!(task.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]), Err(Errno::ACCESS));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn set_cred(&self, cred: Cred) {
        self.cred.set(cred);
    }

    /// Gives the calling thread its own credentials for this task. In Linux, too, credentials
    /// belong to a thread. [`Task::set_cred`] does not change them. A thread can have its own
    /// credentials for only one task: the one for which it last called this function.
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
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// let up = [SemBuf::new(0, 1, SemFlags::empty())];
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         task.set_thread_cred(Cred::user(1000, 1000));
    ///         assert_eq!(task.semop(id, &up), Err(Errno::ACCESS));
    ///     });
    /// });
    /// assert_eq!(task.semop(id, &up), Ok(()));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn set_thread_cred(&self, cred: Cred) {
        self.cred.set_own(cred);
    }

    /// Ends all waits of the task with `EINTR`, as a signal does. Returns the number of ended
    /// waits.
    ///
    /// A wait that is already over returns its own result.
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
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// std::thread::scope(|scope| {
    ///     let waits = scope.spawn(|| task.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]));
    ///     while task.interrupt() == 0 {
    ///         std::thread::yield_now();
    ///     }
    ///     assert_eq!(waits.join().expect("no panic"), Err(Errno::INTR));
    /// });
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn interrupt(&self) -> usize {
        let end = |node| {
            let status = self.ask_to_end(node);
            status.map(|status| futex::wake(status, 1, self.shared.scope)).is_some()
        };
        self.waiting.collect(end).len()
    }

    /// Ends the wait of the calling thread with `EINTR`. This function is for signal handlers. The
    /// signal may have interrupted a call that is already queued but does not sleep yet.
    ///
    /// After this function has returned, no other task completes the call that the signal handler
    /// has interrupted. This holds even if the handler leaves that call by siglongjmp(3). The wait
    /// node of a call that was left in this way stays in use until the task ends.
    ///
    /// The function takes no lock and makes no system call. If the interrupted call already has an
    /// outcome, the call returns this outcome and not `EINTR`.
    pub fn interrupt_own(&self) {
        let node = signals::arrived();
        if node != 0 {
            self.ask_to_end(node);
        }
    }

    /// Marks a waiting call as interrupted, and returns the status word on which its thread may
    /// sleep. Returns `None` if the call already has an outcome, or if another task owns the node.
    /// A killed child of vfork(2) may have left its node in the list of waiting calls.
    fn ask_to_end(&self, node: u32) -> Option<&AtomicU64> {
        let status = &self.shared.region.line(node)[STATUS];
        if !self.is_own(node) || !is_interruptible(status) {
            return None;
        }
        // ORDERING: Relaxed. The waiting call takes the lock of its set or queue before it ends,
        // and that lock orders its accesses.
        status.fetch_or(INTERRUPTED, Ordering::Relaxed);
        Some(status)
    }

    /// Returns true if the node belongs to the task.
    fn is_own(&self, node: u32) -> bool {
        let (layout, region) = (&self.shared.layout, &self.shared.region);
        let owners = [layout.waits.whose(region, node), layout.msg_waits.whose(region, node)];
        owners.contains(&Some(self.owner.index))
    }

    /// Returns the wait nodes that could not be removed from their queues.
    pub(crate) fn kept_waits(&self, pool: &Pool) -> Vec<u32> {
        let (region, own) = (&self.shared.region, Some(self.owner.index));
        self.waiting.collect(|node| pool.whose(region, node) == own)
    }

    /// Sets a fork guard: a word by which a call finds out that it runs in a forked child. There
    /// the task is only a copy.
    ///
    /// The caller keeps this word, `home`. In the task's own process, `home` must contain the value
    /// of [`Task::pid`]. In a forked child, it must contain another value before the child
    /// continues a call that its parent began. `MADV_WIPEONFORK` can ensure this.
    ///
    /// A signal handler may interrupt a waiting call, fork, and return in both processes. Then
    /// parent and child both continue the call. The wait node belongs to the parent, so the call in
    /// the child ends with `EINTR` and changes nothing. The word `home` tells the call that it is
    /// in the child.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, Namespace, NamespaceOptions};
    /// use corewalk_base::primitives::atomic::AtomicU32;
    ///
    /// // A function of pthread_atfork(3) stores the child's.
    /// static HOME: AtomicU32 = AtomicU32::new(7);
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 7)?.tell_copies_by(&HOME);
    /// assert_eq!(task.pid(), 7);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[must_use]
    pub fn tell_copies_by(mut self, home: &'static AtomicU32) -> Self {
        self.home = Some(home);
        self
    }

    /// True if a forked child continues a call of its parent.
    pub(crate) fn is_copy(&self) -> bool {
        // ORDERING: Relaxed. In a forked child, this same thread has stored the child's value.
        self.home.is_some_and(|home| home.load(Ordering::Relaxed) != self.pid)
    }

    /// Returns the number of the task's calls that wait and are not completed yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let region = &self.shared.region;
        self.waiting.collect(|node| is_waiting(&region.line(node)[STATUS])).len()
    }

    /// Ends the task, as a drop does: applies its undo adjustments and detaches its segments.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, ShmFlags,
    /// };
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let parent = namespace.register(Cred::root(), 1)?;
    /// let child = namespace.register(Cred::root(), 2)?;
    /// let set = parent.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// let segment = parent.shmget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// child.semop(set, &[SemBuf::new(0, 1, SemFlags::UNDO)])?;
    /// child.shmat(segment, 0, ShmFlags::empty())?.attached_at(0x1000_0000);
    /// child.exit();
    /// assert_eq!((parent.sem_getval(set, 0)?, parent.shm_stat(segment)?.nattch), (0, 0));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[doc(alias = "exit_sem")]
    pub fn exit(self) {
        drop(self);
    }

    #[inline]
    pub(crate) fn permission(&self, object: &Object, flag: u32) -> Result<(), Errno> {
        refuse_if(!self.cred.may(object.owners(), object.mode(), flag), Errno::ACCESS)?;
        self.ask(|hook, cred| hook.permission(cred, &object.perm(), flag))
    }

    /// Returns the node of the wait that a signal handler of this thread has interrupted, or 0.
    pub(crate) fn begin_wait(&self, node: u32) -> u32 {
        self.waiting.enter(node);
        signals::wait_with(node)
    }

    /// Records that this thread does not wait with `node` any more, and restores the outer wait
    /// `outer`. Returns false in a forked copy, whose wait belongs to the parent.
    #[must_use]
    pub(crate) fn end_wait(&self, node: u32, outer: u32) -> bool {
        signals::wait_with(outer);
        if self.is_copy() {
            return false;
        }
        self.waiting.leave(node);
        true
    }

    /// Returns the ids of semaphore sets.
    #[inline]
    pub(crate) fn sem_ids(&self) -> Ids<'_> {
        Ids { shared: &self.shared, kind: SETS, owner: self.owner }
    }

    /// Returns the ids of message queues.
    #[inline]
    pub(crate) fn msg_ids(&self) -> Ids<'_> {
        Ids { shared: &self.shared, kind: QUEUES, owner: self.owner }
    }

    /// Returns the ids of segments.
    pub(crate) fn shm_ids(&self) -> Ids<'_> {
        Ids { shared: &self.shared, kind: SEGMENTS, owner: self.owner }
    }
}

/// Returns all indices of task records, in the order in which a process with this pid tries them.
///
/// The first index depends only on the pid. So a process finds the records of its earlier tasks
/// again, and processes that were started one after another try neighbouring records.
fn lines_for(shared: &Shared, pid: u32) -> impl Iterator<Item = u32> + use<> {
    let max = shared.layout.tasks_max;
    (0..max).map(move |step| (pid % max + step) % max)
}

fn claim_line(shared: &Shared, pid: u32, program: &Program) -> Option<Owner> {
    let Program { identity, image, .. } = *program;
    let generation = next_generation(shared);
    lines_for(shared, pid).find_map(|index| {
        let line = task_line(shared, index);
        // ORDERING(ipc-task): Acquire. See `identity`.
        line[STATE].compare_exchange(0, identity.0, Ordering::Acquire, Ordering::Relaxed).ok()?;
        put(&line[GENERATION], u64::from(generation));
        put(&line[PID], u64::from(pid));
        put(&line[IMAGE], image);
        Some(Owner { index, generation })
    })
}

/// Takes over the record of a dead task, for a process that finds no free record.
///
/// Normally another task cleans up after a dead task. It needs a record of its own for that,
/// because a lock names its holder by the record's number.
///
/// The process takes over the record with three stores:
/// - The exchange of `STATE` makes the record that of this process. No other thread then begins to
///   clean up after the dead task.
/// - A new generation shows that the holder of the dead task's locks is dead.
/// - A new `IMAGE` (the identity of the program) shows that this process is alive and holds its
///   locks.
///
/// If a forked child still needs the dead task's attaches (`shm::reap`), the record stays, and this
/// function tries the next record.
#[cold]
fn take_over_line(shared: &Shared, pid: u32, program: &Program) -> Option<Owner> {
    (0..shared.layout.tasks_max).find_map(|index| {
        let line = task_line(shared, index);
        let dead = identity(line);
        if !dead.is_gone(Look::Close) {
            return None;
        }
        let own = program.identity.0;
        // ORDERING(ipc-task): Acquire. See `identity`.
        line[STATE].compare_exchange(dead.0, own, Ordering::Acquire, Ordering::Relaxed).ok()?;
        let owner = Owner { index, generation: next_generation(shared) };
        put(&line[GENERATION], u64::from(owner.generation));
        put(&line[IMAGE], program.image);
        if recover::end_former(shared, owner) != Ok(true) {
            // ORDERING(ipc-task): Release. See `identity`.
            line[STATE].store(dead.0, Ordering::Release);
            return None;
        }
        put(&line[PID], u64::from(pid));
        // Store `IMAGE` a second time: a thread that was still cleaning up after the dead task may
        // have cleared it.
        put(&line[IMAGE], program.image);
        Some(owner)
    })
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        for index in &self.former {
            // Clean up after a task that this process registered before its execve(2). If this
            // fails, another task does it later.
            let _reaped = recover::reap_former(&self.shared, self.owner, *index);
        }
        crate::msg::exit_msg(self);
        let detached = crate::shm::exit_shm(self);
        // If `exit_waits` or `exit_sem` fails, the record of this task stays in use, and another
        // task cleans up later.
        for exit in [crate::msg::exit_waits, crate::sem::exit_sem] {
            let Ok(absent) = exit(self) else { return };
            recover::reap_absent(&self.shared, self.owner, absent);
        }
        if detached.is_err() {
            return;
        }
        let line = task_line(&self.shared, self.owner.index);
        put(&line[IMAGE], 0);
        // ORDERING(ipc-task): Release. See `identity`.
        line[STATE].store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::lock::{Wait, lock};
    use crate::sem::dead::kill;
    use crate::{Capacity, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags};

    fn namespace() -> Namespace {
        let capacity =
            Capacity { sets: 1, sems: 4, undos: 8, waits: 4, tasks: 2, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("spare", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, options).unwrap()
    }

    fn two(namespace: &Namespace) -> [Task; 2] {
        [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap())
    }

    #[test]
    fn namespace_whose_tasks_have_all_died_takes_new_ones() {
        let namespace = namespace();
        let [first, second] = two(&namespace);
        let id = first.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        for task in [&first, &second] {
            task.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
        }
        kill(first);
        kill(second);
        let [third, _fourth] = two(&namespace);
        assert_eq!(third.sem_getval(id, 0), Ok(0));
    }

    #[test]
    fn control_namespace_of_live_tasks_takes_no_more() {
        let namespace = namespace();
        let _both = two(&namespace);
        assert!(matches!(namespace.register(Cred::root(), 3), Err(Errno::NOMEM)));
    }

    #[test]
    fn line_of_a_dead_task_is_taken_over_with_its_records_and_locks() {
        let namespace = namespace();
        let shared = namespace.shared();
        let [first, second] = two(&namespace);
        let owner = first.owner;
        let undos = shared.layout.undos;
        let record = undos.alloc(shared, 2, owner, owner.index).unwrap();
        std::mem::forget(
            lock(shared, &shared.region.line(undos.head)[0], owner, Wait::Long, || Ok(())).unwrap(),
        );
        kill(first);
        let third = namespace.register(Cred::root(), 3).unwrap();
        assert_eq!(third.owner.index, owner.index);
        assert_eq!(undos.whose(&shared.region, record), None);
        assert_eq!((namespace.pids(), second.pid()), (vec![2, 3], 2));
    }
}
