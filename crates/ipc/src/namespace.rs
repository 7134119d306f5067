//! A namespace: a region, its limits, and the security hook.
//!
//! A namespace has its own ids and keys, as after unshare(2) with `CLONE_NEWIPC`. A namespace in
//! private memory ends with its last handle and its last task. A namespace in a file is shared by
//! all processes that open the file. It exists until the file is removed and the last of these
//! processes has ended.
//!
//! # Processes
//!
//! Each process registers its own tasks. A forked process registers a new task, and must not use
//! its parent's tasks. A process may be killed at any instruction. Other processes then repair the
//! objects that it was changing, so no daemon is needed (`recover`).
//!
//! A process that can write to the file can make the calls of other processes fail or return wrong
//! answers. It cannot do worse, as the crate's documentation explains. So only the file's owner and
//! root may open the file.
//!
//! Source: ipc_namespaces(7); proc(5) `/proc/sys/kernel/sem`.

use corewalk_base::futex::Scope;
use corewalk_base::primitives::{Arc, IS_MODEL};
use corewalk_base::{Region, errno_of};
use rustix::io::Errno;
use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use crate::backing::{Backing, Memfds};
use crate::contention::{Contention, Counts};
use crate::field::refuse_if;
use crate::file::{self, OpenError};
use crate::layout::{Capacity, Layout};
use crate::limits::Limits;
use crate::perm::{Cred, SecurityHook};
use crate::process::Program;
use crate::recover;
use crate::shared::Shared;
use crate::shm;
use crate::task::Task;

/// Options of a namespace. An existing namespace keeps its limits and its capacity. The other
/// options apply to this process only.
///
/// # Examples
/// ```
/// use corewalk_ipc::{Cred, Errno, GetFlags, Limits, Namespace, NamespaceOptions};
///
/// let limits = Limits { semmni: 1, ..Limits::default() };
/// let namespace = Namespace::new(NamespaceOptions { limits, ..NamespaceOptions::default() })?;
/// let task = namespace.register(Cred::root(), 1)?;
/// task.semget(1, 1, GetFlags::CREATE, 0o600)?;
/// assert_eq!(task.semget(2, 1, GetFlags::CREATE, 0o600), Err(Errno::NOSPC));
/// # Ok::<(), Errno>(())
/// ```
pub struct NamespaceOptions {
    /// The limits.
    pub limits: Limits,
    /// The room in the region.
    pub capacity: Capacity,
    /// A security module, if there is one.
    pub hook: Option<Box<dyn SecurityHook>>,
    /// The source of memory for shared memory segments. The default is memfd_create(2), which works
    /// within one process. Processes that share a namespace need files that all of them can open.
    pub backing: Option<Box<dyn Backing>>,
    /// The time for which a waiting semop(2) or msgrcv(2) of this process polls before it sleeps,
    /// in nanoseconds. With 0 it sleeps immediately. The default and the maximum are
    /// [`SPIN_NS_MAX`].
    ///
    /// Programs with `SCHED_DEADLINE` threads should set this field to 0. Each poll calls
    /// sched_yield(2), by which such a thread gives up the processor until its next period.
    ///
    /// A signal during the polling does not by itself end the wait with `EINTR`. A call of
    /// [`Task::interrupt`] does, and so does a call of [`Task::interrupt_own`] in the signal's
    /// handler.
    pub spin_ns_max: u64,
    /// True if [`Namespace::contention`] counts the waits for locks. Each counted wait reads the
    /// clock twice.
    pub is_contention_counted: bool,
}

/// The longest time for which a call polls before it sleeps. It is a little shorter than a sleep
/// and a wake-up on an idle processor, which took 28 us (table `wakeup` of `corewalk-lab`).
pub const SPIN_NS_MAX: u64 = 20_000;

impl Default for NamespaceOptions {
    fn default() -> Self {
        let spin_ns_max = if IS_MODEL || cfg!(corewalk_crash) { 0 } else { SPIN_NS_MAX };
        let (limits, capacity) = (Limits::default(), Capacity::default());
        Self {
            limits,
            capacity,
            hook: None,
            backing: None,
            spin_ns_max,
            is_contention_counted: false,
        }
    }
}

impl fmt::Debug for NamespaceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("NamespaceOptions");
        debug.field("limits", &self.limits).field("capacity", &self.capacity);
        debug.finish_non_exhaustive()
    }
}

/// An IPC namespace. Clones are handles of the same namespace.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions};
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let task = namespace.register(Cred::user(1000, 1000), 4711)?;
/// let id = task.semget(17, 1, GetFlags::CREATE, 0o600)?;
/// assert_eq!(task.semget(17, 1, GetFlags::empty(), 0), Ok(id));
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Clone, Debug)]
pub struct Namespace {
    shared: Arc<Shared>,
}

impl Namespace {
    /// Returns an empty namespace in private memory.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if a capacity or limit is out of range, and `ENOMEM` if no address space is
    /// left.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Capacity, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let capacity = Capacity { sets: 16, sems: 64, tasks: 4, ..Capacity::default() };
    /// let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    /// let namespace = Namespace::new(options)?;
    /// assert_eq!(namespace.limits().semmsl, 32_000);
    /// // The number of sets is a power of two.
    /// let capacity = Capacity { sets: 3, ..capacity };
    /// let refused = Namespace::new(NamespaceOptions { capacity, ..NamespaceOptions::default() });
    /// assert_eq!(refused.err(), Some(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn new(options: NamespaceOptions) -> Result<Self, Errno> {
        let layout = Layout::new(&options.capacity)?;
        refuse_if(!options.limits.are_possible(), Errno::INVAL)?;
        let region = Region::private(layout.lines).map_err(errno_of)?;
        Ok(Self::over(region, layout, Scope::Private, options))
    }

    /// Returns the namespace in the file at `path`, and creates the file if it does not exist.
    ///
    /// The file should be on tmpfs (`/dev/shm`), so that no call waits for a disk. On tmpfs the
    /// file exists until the machine stops. A new file is accessible only for the calling user.
    ///
    /// # Errors
    ///
    /// See [`OpenError`]; `EINVAL` for a capacity or limit out of range.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions};
    ///
    /// let path = std::env::temp_dir().join(format!("ipc-example-{}", std::process::id()));
    /// let namespace = Namespace::open(&path, NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::user(1000, 1000), std::process::id())?;
    /// let id = task.semget(0x5eed, 1, GetFlags::CREATE, 0o600)?;
    ///
    /// // As another process would:
    /// let other = Namespace::open(&path, NamespaceOptions::default())?;
    /// let task = other.register(Cred::user(1000, 1000), 4711)?;
    /// assert_eq!(task.semget(0x5eed, 1, GetFlags::empty(), 0), Ok(id));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(path: impl AsRef<Path>, options: NamespaceOptions) -> Result<Self, OpenError> {
        Self::open_fd(file::open_path(path.as_ref())?, options)
    }

    /// Like [`Namespace::open`], but with an open file, such as a memfd. It must be open for
    /// reading and writing.
    ///
    /// Unlike [`Namespace::open`], this function does not check the owner of the file. The caller
    /// may close the file once this function has returned.
    ///
    /// # Errors
    ///
    /// The errors of [`Namespace::open`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions, OpenError};
    /// use rustix::fs::{MemfdFlags, memfd_create};
    ///
    /// let file = memfd_create("namespace", MemfdFlags::CLOEXEC)?;
    /// let namespace = Namespace::open_fd(&file, NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// task.semget(5, 1, GetFlags::CREATE, 0o600)?;
    /// // A file with other content is refused, and does not change.
    /// let other = memfd_create("other", MemfdFlags::CLOEXEC)?;
    /// rustix::io::write(&other, b"something else")?;
    /// let refused = Namespace::open_fd(&other, NamespaceOptions::default());
    /// assert!(matches!(refused, Err(OpenError::NotANamespace)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_fd(file: impl AsFd, options: NamespaceOptions) -> Result<Self, OpenError> {
        refuse_if(!options.limits.are_possible(), Errno::INVAL)?;
        let (region, layout, limits) = file::map(file.as_fd(), &options.capacity, options.limits)?;
        Ok(Self::over(region, layout, Scope::Shared, NamespaceOptions { limits, ..options }))
    }

    fn over(region: Region, layout: Layout, scope: Scope, options: NamespaceOptions) -> Self {
        let NamespaceOptions { limits, hook, backing, spin_ns_max, .. } = options;
        let backing = backing.unwrap_or_else(|| Box::new(Memfds::default()));
        let spin_ns = spin_ns_max.min(SPIN_NS_MAX);
        let contention = Counts(options.is_contention_counted.then(Default::default));
        let shared = Shared { region, layout, limits, hook, backing, scope, spin_ns, contention };
        Self { shared: Arc::new(shared) }
    }

    /// Returns a new task, which stands for a process.
    ///
    /// `pid` must be below 2^22, as in Linux. `GETPID` in other tasks returns it.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `pid` is out of range.
    /// - `ENOMEM`: all task records of the namespace are in use by live tasks.
    /// - `EXDEV`: the namespace is shared, and the process is in another pid namespace than the
    ///   file. Other processes could not tell whether such a process is alive.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::user(1000, 1000), 4711)?;
    /// assert_eq!(task.pid(), 4711);
    /// assert_eq!(namespace.register(Cred::root(), 1 << 22).err(), Some(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn register(&self, cred: Cred, pid: u32) -> Result<Task, Errno> {
        Task::register(Arc::clone(&self.shared), cred, pid)
    }

    /// Registers the first task of a program after execve(2), like [`Namespace::register`]. The new
    /// task takes over the tasks of the program that the process ran before.
    ///
    /// If tasks of the program before execve(2) have `SEM_UNDO` adjustments, these are applied when
    /// the new task ends. If threads of that program have left unfinished calls or held locks,
    /// these are repaired immediately.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Namespace::register`], and `EIO` if a live process does not release
    /// a lock for 10 s.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    /// use rustix::fs::{MemfdFlags, memfd_create};
    ///
    /// let file = memfd_create("namespace", MemfdFlags::CLOEXEC)?;
    /// let namespace = Namespace::open_fd(&file, NamespaceOptions::default())?;
    /// let before = namespace.register(Cred::root(), std::process::id())?;
    /// let id = before.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// before.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)])?;
    /// // execve(2) ends the program without a call of `exit`.
    /// std::mem::forget(before);
    /// let task = namespace.adopt(Cred::root(), std::process::id())?;
    /// assert_eq!(task.sem_getval(id, 0), Ok(1));
    /// task.exit();
    /// let other = namespace.register(Cred::root(), 1)?;
    /// assert_eq!(other.sem_getval(id, 0), Ok(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt(&self, cred: Cred, pid: u32) -> Result<Task, Errno> {
        self.register(cred, pid)?.adopt()
    }

    /// Like [`Namespace::adopt`], but the caller supplies `program`, the identity of its process.
    /// So this function reads `/proc` only if it finds tasks of dead processes.
    ///
    /// # Errors
    ///
    /// The errors of [`Namespace::adopt`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, Namespace, NamespaceOptions, Program};
    /// use rustix::fs::{MemfdFlags, memfd_create};
    ///
    /// let file = memfd_create("namespace", MemfdFlags::CLOEXEC)?;
    /// let namespace = Namespace::open_fd(&file, NamespaceOptions::default())?;
    /// let program = Program::own();
    /// // Here the process may give up its right to open files.
    /// let task = namespace.adopt_as(Cred::root(), std::process::id(), &program)?;
    /// assert_eq!(task.pid(), std::process::id());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt_as(&self, cred: Cred, pid: u32, program: &Program) -> Result<Task, Errno> {
        Task::register_as(Arc::clone(&self.shared), cred, pid, program)?.adopt()
    }

    /// Returns the pids of all tasks, in no particular order. If a process has several tasks, its
    /// pid occurs several times. Some of the processes may have ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let _tasks = [namespace.register(Cred::root(), 7)?, namespace.register(Cred::root(), 8)?];
    /// let mut pids = namespace.pids();
    /// pids.sort_unstable();
    /// assert_eq!(pids, [7, 8]);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        crate::task_line::pids(&self.shared)
    }

    /// Reaps all tasks whose processes have ended. Returns their number.
    ///
    /// A program need not call this function, since other calls clean up after dead tasks when that
    /// matters (`recover`). The function also applies the `SEM_UNDO` adjustments of dead tasks to
    /// sets that no task uses.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if all task records are in use by live tasks. Returns `EIO` if a live
    /// process does not release a lock for 10 s. Returns `EXDEV` as [`Namespace::register`] does.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// // In private memory no task dies alone.
    /// assert_eq!(namespace.recover(), Ok(0));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn recover(&self) -> Result<usize, Errno> {
        let task = self.register(Cred::default(), 0)?;
        let reaped = recover::reap_all(&self.shared, task.owner)?;
        shm::give_back_all(&self.shared, &task.shm_ids().lock()?, None);
        Ok(reaped)
    }

    /// Returns how often and how long calls of this process have waited for locks, or for
    /// semaphores that another call had frozen (locked). All counts are zero without
    /// [`NamespaceOptions::is_contention_counted`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Contention, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    ///
    /// let options = NamespaceOptions { is_contention_counted: true, ..Default::default() };
    /// let namespace = Namespace::new(options)?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// task.sem_setval(id, 0, 7)?;
    /// // One task alone never waits.
    /// assert_eq!(namespace.contention(), Contention::default());
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[must_use]
    pub fn contention(&self) -> Contention {
        self.shared.contention.sum()
    }

    /// Returns the address range of the namespace in this process. A host program that locks its
    /// memory by mlockall(2) can exclude this range.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// assert!(namespace.memory().len() > 1 << 30);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[must_use]
    pub fn memory(&self) -> Range<usize> {
        self.shared.region.addresses()
    }

    /// Returns the limits of the namespace.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }

    #[cfg(all(test, not(corewalk_loom)))]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }
}
