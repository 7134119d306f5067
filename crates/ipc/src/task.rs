//! Tasks: who calls. What is a process to the kernel.
//!
//! All threads of a process share one task, and with it one list of undo records: they are applied
//! when the task ends, not when a thread does. A forked process is a new task, without undo.
//!
//! A task ends when it is dropped or by [`Task::exit`]. Both need the last handle of it, so no
//! call of the task can be under way; this is why a cached undo record is never a stale one.
//!
//! Source: semop(2) `SEM_UNDO`; Linux `exit_sem`.

use corewalk_sync::futex;
use corewalk_sync::primitives::Arc;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::{Line, Mutex};
use rustix::io::Errno;
use std::fmt;

use crate::field::{get, put};
use crate::layout::NO_TASK;
use crate::lock::{Held, lock};
use crate::namespace::{Limits, Shared};
use crate::perm::{Cred, CredCell, Perm};
use crate::sem::{INTERRUPTED, STATUS, is_waiting};

/// Pids at most: they are a field of a semaphore's word.
const PID_END: u32 = 1 << 22;

/// Sets whose undo record a task finds at once.
const UNDO_CACHE: usize = if corewalk_sync::primitives::IS_MODEL { 1 } else { 256 };

// Words of a task's line, and of the line before the first.
const LOCK: usize = 0;
/// Zero if the line is free.
const STATE: usize = 1;
/// First and last undo record.
pub(crate) const TASK_UNDOS: usize = 2;

/// A process, to the namespace. Threads share it by reference.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{Cred, IPC_PRIVATE, Namespace, NamespaceOptions, SEM_UNDO, SemBuf};
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let parent = namespace.register(Cred::root(), 1)?;
/// let child = namespace.register(Cred::root(), 2)?;
/// let id = parent.semget(IPC_PRIVATE, 1, 0o600)?;
/// child.semop(id, &[SemBuf::new(0, 1, SEM_UNDO)])?;
/// assert_eq!(parent.sem_getval(id, 0), Ok(1));
/// child.exit();
/// assert_eq!(parent.sem_getval(id, 0), Ok(0));
/// # Ok::<(), rustix::io::Errno>(())
/// ```
pub struct Task {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: u32,
    pub(crate) pid: u32,
    pub(crate) cred: CredCell,
    /// Undo records by slot of the set, see [`Task::cached_undo`].
    undo_cache: Box<[AtomicU64]>,
    /// Nodes of calls that wait or have just been woken.
    waiting: Mutex<Vec<u32>>,
}

impl Task {
    pub(crate) fn register(shared: Arc<Shared>, cred: Cred, pid: u32) -> Result<Self, Errno> {
        if pid >= PID_END {
            return Err(Errno::INVAL);
        }
        let index = claim_line(&shared).ok_or(Errno::NOMEM)?;
        let undo_cache = (0..UNDO_CACHE).map(|_| AtomicU64::new(0)).collect();
        let cred = CredCell::new(cred);
        Ok(Self { shared, index, pid, cred, undo_cache, waiting: Mutex::new(Vec::new()) })
    }

    /// Returns the number that `GETPID` tells.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns what the task's namespace may hold.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    /// Changes who the task acts as, as setuid(2) and its like do.
    ///
    /// A call that runs beside takes the effective ids, the capabilities and the groups each as they
    /// were before or are after.
    pub fn set_cred(&self, cred: Cred) {
        self.cred.set(cred);
    }

    /// Ends all waits of the task with `EINTR`, as a signal does; returns how many there were.
    ///
    /// A wait that is over already returns what it came to.
    pub fn interrupt(&self) -> usize {
        let waiting = self.waiting.lock();
        let nodes = waiting.iter().map(|node| &self.shared.region.line(*node)[STATUS]);
        let nodes = nodes.filter(|status| is_waiting(status));
        nodes
            .inspect(|status| {
                // ORDERING: Relaxed. A request; the waiter takes the set's lock before it gives up.
                status.fetch_or(INTERRUPTED, Ordering::Relaxed);
                futex::wake(status, 1, self.shared.scope);
            })
            .count()
    }

    /// Returns how many calls of the task wait and are not yet completed.
    #[must_use]
    pub fn waiting(&self) -> usize {
        let waiting = self.waiting.lock();
        let nodes = waiting.iter().map(|node| &self.shared.region.line(*node)[STATUS]);
        nodes.filter(|status| is_waiting(status)).count()
    }

    /// Ends the task: its `SEM_UNDO` adjustments are applied. The same as a drop.
    #[doc(alias = "exit_sem")]
    pub fn exit(self) {
        drop(self);
    }

    /// Returns what the hook says if there is one.
    #[inline]
    pub(crate) fn permission(&self, perm: &Perm, flag: u32) -> Result<(), Errno> {
        if !self.cred.may(perm, flag) {
            return Err(Errno::ACCESS);
        }
        match &self.shared.hook {
            None => Ok(()),
            Some(hook) => hook.permission(&self.cred.whole(), perm, flag),
        }
    }

    /// Returns the undo record of this task for the set in slot `set` with the tag `tag`, if known.
    #[inline]
    pub(crate) fn cached_undo(&self, set: u32, tag: u64) -> Option<u32> {
        // ORDERING: Relaxed. The record was made by this task, and lives as long as the set: who
        // uses it freezes a word of the set first, whose tag says that the set is there.
        let entry = self.undo_cache[set as usize % UNDO_CACHE].load(Ordering::Relaxed);
        let (record, check) = ((entry & 0xffff_ffff) as u32, entry >> 32);
        (record != 0 && check == cache_check(set, tag)).then_some(record)
    }

    pub(crate) fn cache_undo(&self, set: u32, tag: u64, record: u32) {
        let entry = u64::from(record) | cache_check(set, tag) << 32;
        // ORDERING: Relaxed. See `cached_undo`.
        self.undo_cache[set as usize % UNDO_CACHE].store(entry, Ordering::Relaxed);
    }

    pub(crate) fn begin_wait(&self, node: u32) {
        self.waiting.lock().push(node);
    }

    pub(crate) fn end_wait(&self, node: u32) {
        self.waiting.lock().retain(|other| *other != node);
    }

    pub(crate) fn line(&self) -> &Line {
        task_line(&self.shared, self.index)
    }
}

/// Returns what tells apart the sets that share an entry of the cache: 21 bits of tag, 7 of slot.
fn cache_check(set: u32, tag: u64) -> u64 {
    tag << 8 | (u64::from(set) / UNDO_CACHE as u64) & 0xff
}

/// Returns the line of task `index`; what is out of range is the scratch line.
pub(crate) fn task_line(shared: &Shared, index: u32) -> &Line {
    let index = if index < shared.layout.tasks_max { shared.layout.tasks + 1 + index } else { 0 };
    shared.region.line(index)
}

/// Takes the lock of a task's list of undo records: a leaf, inside a set's lock.
pub(crate) fn lock_task(shared: &Shared, index: u32) -> Held<'_> {
    lock(&task_line(shared, index)[LOCK], index, shared.scope)
}

/// Returns the number of a free line for a task, which is taken.
fn claim_line(shared: &Shared) -> Option<u32> {
    let table = shared.region.line(shared.layout.tasks);
    let _held = lock(&table[LOCK], NO_TASK, shared.scope);
    let max = u64::from(shared.layout.tasks_max);
    let start = get(&table[STATE]) % max;
    (0..max).map(|step| (start + step) % max).find_map(|index| {
        let index = u32::try_from(index).ok()?;
        let line = task_line(shared, index);
        (get(&line[STATE]) == 0).then(|| {
            put(&line[STATE], 1);
            put(&table[STATE], u64::from(index) + 1);
            index
        })
    })
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        crate::sem::exit_sem(self);
        let _held = lock(
            &self.shared.region.line(self.shared.layout.tasks)[LOCK],
            NO_TASK,
            self.shared.scope,
        );
        put(&self.line()[STATE], 0);
    }
}
