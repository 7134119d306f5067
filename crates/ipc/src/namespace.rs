//! A namespace: a region, its limits, and the security hook.
//!
//! A namespace is what unshare(2) with `CLONE_NEWIPC` gives: ids and keys of its own. It ends when
//! the last handle of it and the last task have gone.
//!
//! Source: ipc_namespaces(7); proc(5) `/proc/sys/kernel/sem`.

use corewalk_sync::Region;
use corewalk_sync::futex::Scope;
use corewalk_sync::primitives::Arc;
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;

use crate::ids::Ids;
use crate::layout::{Capacity, Layout};
use crate::perm::{Cred, SecurityHook};
use crate::task::Task;

/// The most that a semaphore can hold.
pub const SEMVMX: i32 = 32_767;

/// The most that an adjustment for `SEM_UNDO` can be.
pub const SEMAEM: i32 = 32_767;

/// What a namespace may hold. Analogous to `/proc/sys/kernel/sem`; the default is Linux's.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::Limits;
///
/// assert_eq!(Limits::default().semopm, 500);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `SEMMSL`: semaphores of a set, at most 32,767.
    pub semmsl: u32,
    /// `SEMMNS`: semaphores of the namespace.
    pub semmns: u32,
    /// `SEMOPM`: operations of a call.
    pub semopm: u32,
    /// `SEMMNI`: sets of the namespace.
    pub semmni: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { semmsl: 32_000, semmns: 1_024_000_000, semopm: 500, semmni: 32_000 }
    }
}

/// How a namespace is made.
#[derive(Default)]
pub struct NamespaceOptions {
    /// What it may hold.
    pub limits: Limits,
    /// What it has room for.
    pub capacity: Capacity,
    /// A security module, if there is one.
    pub hook: Option<Box<dyn SecurityHook>>,
}

impl fmt::Debug for NamespaceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (limits, capacity) = (&self.limits, &self.capacity);
        let mut debug = f.debug_struct("NamespaceOptions");
        debug.field("limits", limits).field("capacity", capacity);
        debug.field("has_hook", &self.hook.is_some()).finish()
    }
}

/// An IPC namespace. Clones are handles of the same one.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{Cred, IPC_CREAT, Namespace, NamespaceOptions};
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let task = namespace.register(Cred::user(1000, 1000), 4711)?;
/// let id = task.semget(17, 1, IPC_CREAT | 0o600)?;
/// assert_eq!(task.semget(17, 1, 0), Ok(id));
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
    /// `EINVAL` for a capacity or limit out of range, `ENOMEM` if there are no addresses left.
    pub fn new(options: NamespaceOptions) -> Result<Self, Errno> {
        let layout = Layout::new(&options.capacity)?;
        let NamespaceOptions { limits, hook, .. } = options;
        if limits.semmsl > 32_767 || limits.semopm > 32_767 {
            return Err(Errno::INVAL);
        }
        let region = Region::private(layout.lines)
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM))?;
        let shared = Shared { region, layout, limits, hook, scope: Scope::Private };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Returns a new task: what is a process to the kernel.
    ///
    /// `pid` is what `GETPID` tells others; it is below 2^22, as with Linux.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a `pid` out of range, `ENOMEM` if there are as many tasks as there is room for.
    pub fn register(&self, cred: Cred, pid: u32) -> Result<Task, Errno> {
        Task::register(Arc::clone(&self.shared), cred, pid)
    }

    /// Returns what the namespace may hold.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.shared.limits
    }
}

/// What all tasks of a namespace share in this process.
pub(crate) struct Shared {
    pub(crate) region: Region,
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    pub(crate) hook: Option<Box<dyn SecurityHook>>,
    pub(crate) scope: Scope,
}

impl Shared {
    #[inline]
    pub(crate) fn sem_ids(&self) -> Ids<'_> {
        Ids::new(&self.region, self.layout.sem_ids)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Returns the time of day in seconds, as coarse as it is cheap.
#[inline]
pub(crate) fn now_s() -> u64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec.unsigned_abs()
}
