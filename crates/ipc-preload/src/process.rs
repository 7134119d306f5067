//! The process as a task of the namespace.
//!
//! When the library is loaded, it maps the namespace and reads the identity of this program
//! (`Program`). By its first call the program may have lost the right to open files. The mapping
//! takes addresses and no line of the namespace. Most programs that inherit `LD_PRELOAD` never make
//! a call. The first call registers the process.
//!
//! A process that cannot be registered gets `ENOSYS`, as from a kernel without System V IPC, and
//! one line on standard error says why.
//!
//! # Fork
//!
//! A child is another task, without undo. The kernel wipes one page in the child of any kind of
//! fork (`MADV_WIPEONFORK`). So a call reads one word to know whether it runs in a new child, and
//! no fork is intercepted, unless segments are attached (`fork`). The page also names the process
//! that owns the memory. So a call that was begun before a handler forked ends in the child
//! (`Task::tell_copies_by`).
//!
//! # A child of vfork(2)
//!
//! It shares the page with its parent. If the parent has a task, the child acts as that task until
//! it execs: to tell them apart would take a system call for each call. If not, the first call
//! finds that the memory belongs to another process, and fails with `ENOSYS`. A task of the child
//! would be that of its parent from then on.
//!
//! # Exec
//!
//! A program that a process becomes by execve(2) takes over its task with its first call, so undo
//! survives. A program that makes no call leaves undo to the recovery of the namespace.
//!
//! # Locks
//!
//! The locks of registration and of attached segments lie in the wiped page too, so a child never
//! inherits them locked. Signals are blocked while they are held, so a handler never finds a lock
//! that its own thread holds. The lock of attached segments comes first.
//!
//! Source: madvise(2), vfork(2), environ(7).

use corewalk_base::primitives::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_ipc::{Namespace, OpenError, Program, Task};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::Cell;
use std::ops::Range;
use std::ptr;
use std::sync::OnceLock;

use crate::cred;
use crate::errno;
use crate::hold;

/// The page that the kernel zeroes in a child.
#[repr(C)]
struct Page {
    /// The process's task, or null.
    task: AtomicPtr<Task>,
    /// The process whose memory this is, or 0 in a child that has not said so yet.
    owner: AtomicU32,
    is_locked: AtomicBool,
    /// The lock of what is attached, see `shm`.
    is_attaching: AtomicBool,
    /// The lock of the tables of handlers, see `signal`.
    is_handling: AtomicBool,
    /// Whether `PROGRAM` is this process.
    is_program: AtomicBool,
}

/// The identity of the program that this process runs. After a fork it is the parent's, and
/// [`Page::is_program`] is false.
static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Whether threads may act as different users. It stays so.
static IS_APART: AtomicBool = AtomicBool::new(false);

/// Changes of all threads at once, and one more.
static CRED_CHANGES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The value of `CRED_CHANGES` when this thread last read its credentials, or 0.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

const PAGE_BYTES: usize = 4096;

/// The reason why there is no page.
const NO_PAGE: &str = "no page that the kernel wipes on fork (Linux 4.14)";

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The namespace once it is mapped. A child keeps its parent's.
static NAMESPACE: AtomicPtr<Namespace> = AtomicPtr::new(ptr::null_mut());

/// The task that was registered last: in a forked child its parent's, until it has one.
static LAST: AtomicPtr<Task> = AtomicPtr::new(ptr::null_mut());

/// Says that [`AttachLock`] is held. Unlike the lock itself a child inherits it: what is attached
/// was then being changed when it was forked.
static IS_ATTACHING: AtomicBool = AtomicBool::new(false);

/// Maps the page, and asks the C library to be told of forks.
pub(crate) fn resolve() {
    // If that is not possible, the first call says so.
    map_page();
    own();
    extern "C" fn child() {
        own();
    }
    // SAFETY: the function stays loaded: a preloaded library is never unloaded.
    let _registered = unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Maps the namespace, before the program runs. The first call tries again if that is not possible,
/// and says why.
pub(crate) fn join() {
    let Some(page) = known_page() else { return };
    let _lock = PageLock::take(&page.is_locked);
    if namespace().is_ok() {
        PROGRAM.get_or_init(Program::own);
        // ORDERING: Relaxed. There is one thread, and a thread that it makes sees what it has
        // stored.
        page.is_program.store(true, Ordering::Relaxed);
    }
}

/// Notes that this process owns its memory: it is no child of vfork(2).
fn own() {
    if let Some(page) = known_page() {
        // ORDERING: Relaxed. A thread sees what it has stored, and a child what its parent had.
        page.owner.store(pid(), Ordering::Relaxed);
    }
}

/// Returns true if the memory of this process is its own, and not its parent's.
pub(crate) fn is_own() -> bool {
    let Some(page) = known_page() else { return true };
    // ORDERING: Relaxed. See `own`.
    [0, pid()].contains(&page.owner.load(Ordering::Relaxed))
}

/// Returns the process's task.
///
/// # Errors
///
/// `ENOSYS` if there is no namespace to register in.
#[inline]
pub(crate) fn task() -> Result<&'static Task, Errno> {
    let task = if let Some(task) = known_task() { task } else { registered()? };
    // ORDERING: Relaxed. A thread that has changed its own credentials sees its own store.
    if IS_APART.load(Ordering::Relaxed) {
        refresh_late(task);
    }
    Ok(task)
}

/// Returns the process's task if it has made a call before.
#[inline]
pub(crate) fn known_task() -> Option<&'static Task> {
    let page = known_page()?;
    // ORDERING(preload-task): Acquire. The task is made before its address is stored.
    let task = page.task.load(Ordering::Acquire);
    // SAFETY: the task lives until `take_task`, whose caller knows that no call is under way.
    unsafe { task.as_ref() }
}

/// Returns the process's own task if it has made a call before. A child of vfork(2) does not get
/// that of its parent.
pub(crate) fn own_task() -> Option<&'static Task> {
    known_task().filter(|task| task.pid() == pid())
}

/// Returns the number of the process, as the kernel knows it.
pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Registers the child of a fork, which has the segments of its parent attached. `parent` is the
/// copy of the parent's task in the child's memory, and is not used after that.
///
/// A child that cannot be registered, for instance in another pid namespace, keeps its mappings.
/// The hold of its parent, which the child has too, then stands for its attaches.
pub(crate) fn register_child(parent: &Task) {
    let page = page();
    let _lock = PageLock::take(&page.is_locked);
    match parent.fork(pid()) {
        Ok(task) => {
            // ORDERING: Relaxed. The child's one thread reads its copy of the parent's memory.
            if IS_APART.load(Ordering::Relaxed) {
                task.set_cred(cred::current());
            }
            succeed_parent(&task);
            let _ = publish(page, task);
        }
        Err(errno) => drop(errno::without_namespace(&why_not("child", errno))),
    }
}

/// Reads the credentials again, after a call of the C library that changes all threads.
pub(crate) fn refresh_cred() {
    // ORDERING: Relaxed. A hint for other threads, which the C library interrupts for the change.
    CRED_CHANGES.fetch_add(1, Ordering::Relaxed);
    // A child of vfork(2) has its parent's memory, and another pid.
    if let Some(task) = own_task() {
        // A child of fork(2) reads its credentials when it is registered; see `fork`.
        let _lock = crate::shm::is_on().then(AttachLock::take);
        task.set_cred(cred::current());
    }
}

/// Reads the credentials of the calling thread again, after a call that changes this thread alone.
/// Existing threads keep their credentials; new threads inherit this thread's. From now on each
/// thread reads its own.
pub(crate) fn refresh_thread_cred() {
    if crate::exit::is_alone() {
        return refresh_cred();
    }
    if is_own() {
        // ORDERING: Relaxed. See `task`.
        IS_APART.store(true, Ordering::Relaxed);
        ASKED.set(0);
    }
}

/// Reads the credentials of the calling thread, if it has not done so since the last change.
#[cold]
fn refresh_late(task: &Task) {
    // ORDERING: Relaxed. See `refresh_cred`.
    let changes = CRED_CHANGES.load(Ordering::Relaxed);
    // In a child of vfork(2) the task and `ASKED` are those of the parent.
    if ASKED.get() != changes && task.pid() == pid() {
        ASKED.set(changes);
        task.set_thread_cred(cred::current());
    }
}

/// Takes the task of this process away, for its end.
///
/// # Safety
///
/// No other thread, and no call further up in this one, uses the task.
pub(crate) unsafe fn take_task(own: *const Task) -> Option<Box<Task>> {
    let (page, own) = (known_page()?, own.cast_mut());
    let null = ptr::null_mut();
    // ORDERING: Relaxed. The caller promises that there is no other thread.
    let _last = LAST.compare_exchange(own, null, Ordering::Relaxed, Ordering::Relaxed);
    // ORDERING(preload-task): Acquire. See `known_task`.
    let task = page.task.compare_exchange(own, null, Ordering::Acquire, Ordering::Relaxed).ok()?;
    // SAFETY: the address came from `Box::into_raw`, and the exchange hands it to one caller.
    Some(unsafe { Box::from_raw(task) })
}

#[cold]
#[inline(never)]
fn registered() -> Result<&'static Task, Errno> {
    register().map_err(|why| errno::without_namespace(&why))
}

/// Makes the process a task, or returns why that cannot be.
pub(crate) fn register() -> Result<&'static Task, String> {
    let _signals = BlockedSignals::new();
    let page = known_page().ok_or(NO_PAGE)?;
    let _lock = PageLock::take(&page.is_locked);
    if let Some(task) = known_task() {
        return Ok(task);
    }
    let namespace = namespace()?;
    if !is_own() {
        return Err("a child of vfork(2) can call only if its parent has made a call".to_owned());
    }
    // A child that was made by clone(2) by number does not own its memory yet.
    own();
    let made = match forked_from() {
        Some(parent) => parent.fork(pid()).inspect(|task| {
            task.set_cred(cred::current());
            succeed_parent(task);
        }),
        // The program may be one that this process has become by execve(2): undo survives that.
        None => {
            hold::leave();
            // ORDERING: Relaxed. See `join`; a child finds a wiped page.
            let is_known = page.is_program.load(Ordering::Relaxed);
            let program = PROGRAM.get().copied().filter(|_| is_known);
            namespace.adopt_as(cred::current(), pid(), &program.unwrap_or_else(Program::own))
        }
    };
    let task = made.map_err(|errno| why_not("process", errno))?;
    Ok(publish(page, task))
}

/// Returns a text that says why a process cannot be registered.
fn why_not(who: &str, errno: Errno) -> String {
    let why = if errno == OpenError::OtherPidNamespace.errno() {
        OpenError::OtherPidNamespace.to_string()
    } else {
        errno.to_string()
    };
    format!("the {who} cannot be registered: {why}")
}

/// Takes a hold and leaves a mark for a child that is counted by now. No call uses its task yet.
fn succeed_parent(task: &Task) {
    hold::renew(task);
    crate::shm::mark();
}

/// Returns the copy of the parent's task in a child that was forked without the C library and has
/// segments attached; the page is locked.
fn forked_from() -> Option<&'static Task> {
    // ORDERING(preload-last): Acquire. The task is made before its address is stored.
    let last = LAST.load(Ordering::Acquire);
    // ORDERING: Relaxed. The child's one thread reads its copy of the parent's memory.
    if !crate::shm::is_on() || IS_ATTACHING.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: a task lives until `take_task`, which clears this address. The caller of `take_task`
    // knows that no call is under way.
    let last = unsafe { last.as_ref() };
    last.filter(|parent| parent.pid() != pid() && parent.attached() != 0)
}

/// Makes a task that of the process; the page is locked.
fn publish(page: &'static Page, task: Task) -> &'static Task {
    let task = Box::into_raw(Box::new(task.tell_copies_by(&page.owner)));
    // ORDERING(preload-last): Release. The task is made before its address is seen.
    LAST.store(task, Ordering::Release);
    // ORDERING(preload-task): Release. The task is made before its address is seen.
    page.task.store(task, Ordering::Release);
    // SAFETY: as in `known_task`.
    unsafe { &*task }
}

/// Returns the page that is wiped in a child, if there is one.
#[inline]
fn known_page() -> Option<&'static Page> {
    // ORDERING(preload-page): Acquire. The page is set up before its address is stored.
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: a page whose address was stored is never unmapped, and zeroes are a valid one.
    unsafe { page.as_ref() }
}

/// Returns the page that is wiped in a child, for a process that has a task, or had one before it
/// forked.
fn page() -> &'static Page {
    known_page().expect("a process is registered in the page")
}

/// Maps the page. There is one thread so far.
fn map_page() {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: no address is asked for, so no mapping in use is replaced.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, flags) };
    let Ok(made) = made else { return };
    // SAFETY: the range is the mapping just made, which no other thread knows.
    let advised = unsafe { rustix::mm::madvise(made, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    if advised.is_ok() {
        // ORDERING(preload-page): Release. The page is set up before its address is seen.
        PAGE.store(made.cast(), Ordering::Release);
    }
}

/// Returns the namespace, which is mapped if it is not yet; the page is locked.
fn namespace() -> Result<&'static Namespace, String> {
    // ORDERING(preload-namespace): Acquire. The namespace is made before its address is stored.
    let known = NAMESPACE.load(Ordering::Acquire);
    // SAFETY: a namespace whose address was stored is never dropped.
    if let Some(namespace) = unsafe { known.as_ref() } {
        return Ok(namespace);
    }
    let namespace = Box::into_raw(Box::new(crate::open::open()?));
    // ORDERING(preload-namespace): Release. See above.
    NAMESPACE.store(namespace, Ordering::Release);
    // SAFETY: as above.
    Ok(unsafe { &*namespace })
}

/// Returns where the namespace is mapped, if it is.
pub(crate) fn namespace_memory() -> Option<Range<usize>> {
    // ORDERING(preload-namespace): Acquire. See `namespace`.
    let known = NAMESPACE.load(Ordering::Acquire);
    // SAFETY: a namespace whose address was stored is never dropped.
    unsafe { known.as_ref() }.map(Namespace::memory)
}

/// A lock of the page, until it is dropped.
pub(crate) struct PageLock(&'static AtomicBool);

impl PageLock {
    fn take(is_locked: &'static AtomicBool) -> Self {
        let free = || {
            // ORDERING(preload-lock): Acquire. See `drop`.
            is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        };
        while free().is_err() {
            thread::yield_now();
        }
        Self(is_locked)
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        // ORDERING(preload-lock): Release. Stores under the lock happen before the next holder.
        self.0.store(false, Ordering::Release);
    }
}

/// The lock of what is attached, with all signals blocked, until it is dropped.
pub(crate) struct AttachLock {
    _lock: PageLock,
    _signals: BlockedSignals,
}

impl AttachLock {
    /// Takes the lock. The process has a task, or its parent had one.
    pub(crate) fn take() -> Self {
        let signals = BlockedSignals::new();
        let lock = PageLock::take(&page().is_attaching);
        // ORDERING: Relaxed. Only children read it, and they have a copy of all earlier stores.
        IS_ATTACHING.store(true, Ordering::Relaxed);
        Self { _lock: lock, _signals: signals }
    }
}

impl Drop for AttachLock {
    fn drop(&mut self) {
        // ORDERING: Relaxed. See `take`.
        IS_ATTACHING.store(false, Ordering::Relaxed);
    }
}

/// The lock of the tables of handlers, with all signals blocked, until it is dropped.
pub(crate) type TablesLock = (Option<PageLock>, BlockedSignals);

/// Takes the lock of the tables of handlers. A child of vfork(2) changes no table and takes no
/// lock.
pub(crate) fn lock_tables() -> TablesLock {
    let signals = BlockedSignals::new();
    let page = known_page().filter(|_| is_own());
    (page.map(|page| PageLock::take(&page.is_handling)), signals)
}

/// All signals blocked in this thread, until it is dropped.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    pub(crate) fn new() -> Self {
        // SAFETY: zeroes are a valid set of signals.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // SAFETY: the set is ours.
        unsafe { libc::sigfillset(&raw mut all) };
        // SAFETY: both sets are ours and live during the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) };
        Self(before)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set is ours and lives during the call.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
