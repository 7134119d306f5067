//! The process as a task of the namespace.
//!
//! When the library is loaded, it maps the namespace and reads the identity of the program
//! (`Program`). At its first IPC call, the program may no longer have the right to open files. The
//! first call registers the process, so a program without IPC calls takes no line (64 bytes) of the
//! namespace.
//!
//! If a process cannot be registered, its calls fail with `ENOSYS`, as on a kernel without System V
//! IPC. One line on standard error says why.
//!
//! # Fork
//! A forked child becomes a task of its own: a new entry in the namespace, without undo
//! adjustments. It registers during fork(2) if segments are attached (module `fork`), and otherwise
//! at its first call.
//!
//! The kernel zeroes the *wiped page* in the child of any kind of fork (`MADV_WIPEONFORK`). In the
//! child, two words of its parent are therefore missing:
//! - The address of the task. So the child's first IPC call finds no task, and registers the child.
//! - The parent's pid. A signal handler may interrupt an IPC call and fork. Then a copy of the call
//!   goes on in the child. The copy finds another pid than the parent's (`Task::tell_copies_by`),
//!   and ends with `EINTR`.
//!
//! # A child of vfork(2)
//! A child of vfork(2) shares its parent's memory, including the wiped page:
//! - If the parent has a task, the child acts as that task until it calls execve(2). The library
//!   does not notice the vfork(2), because each IPC call would then need a system call.
//! - If the parent has no task, the child's first call fails with `ENOSYS`. Otherwise the parent
//!   would find the child's task in their shared memory, and use it as its own.
//!
//! # Exec
//! After execve(2), the new program takes over the task at its first call, so undo survives. If the
//! new program makes no call, the recovery of the namespace applies the undo.
//!
//! # Locks
//! The wiped page contains three locks: of registration, of attached segments, and of the tables of
//! signal handlers. Since a forked child finds zeroes, it never inherits a locked lock. A thread
//! blocks signals while it holds one. Lock order: attached segments, then registration.
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
    /// The pid of the process to which this memory belongs. Memory that a child of vfork(2) uses
    /// belongs to its parent. In a forked child, the value is 0 until the child has stored its own
    /// pid.
    owner: AtomicU32,
    is_locked: AtomicBool,
    /// The lock of the attached segments, see `shm`.
    is_attaching: AtomicBool,
    /// The lock of the tables of handlers, see `signal`.
    is_handling: AtomicBool,
    /// Whether `PROGRAM` is this process.
    is_program: AtomicBool,
}

/// The identity of the program that the process runs. After a fork, this is still the identity of
/// the parent's program, and [`Page::is_program`] is false.
static PROGRAM: OnceLock<Program> = OnceLock::new();

/// True once a thread has changed its own credentials but not those of the other threads. From then
/// on, each thread has to read its own credentials. The flag is never reset.
static IS_APART: AtomicBool = AtomicBool::new(false);

/// Counts changes of the credentials of all threads, so that each thread notices when to read its
/// credentials again.
static CRED_CHANGES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

const PAGE_BYTES: usize = 4096;

/// The reason why there is no page.
const NO_PAGE: &str = "no page that the kernel wipes on fork (Linux 4.14)";

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The namespace, once it is mapped. A forked child keeps using its parent's mapping.
static NAMESPACE: AtomicPtr<Namespace> = AtomicPtr::new(ptr::null_mut());

/// The last task of this memory. In a forked child this is at first the parent's task, from which
/// the child gets its attached segments.
static LAST: AtomicPtr<Task> = AtomicPtr::new(ptr::null_mut());

/// True while a thread holds the lock of attached segments. A forked child inherits this flag, but
/// not the lock.
///
/// If the flag is true in a child, the fork interrupted a change of the list of attached segments.
/// The child then cannot rely on its copy of the list.
static IS_ATTACHING: AtomicBool = AtomicBool::new(false);

pub(crate) fn resolve() {
    // If the page cannot be mapped, the first call reports that.
    map_page();
    own();
    // SAFETY: the function stays loaded: a preloaded library is never unloaded.
    let _registered = unsafe { libc::pthread_atfork(None, None, Some(own)) };
}

/// Maps the namespace before the program runs. If that fails, the first IPC call tries again and
/// reports the reason.
pub(crate) fn join() {
    let Some(page) = known_page() else { return };
    let _lock = PageLock::take(&page.is_locked);
    if namespace().is_ok() {
        PROGRAM.get_or_init(Program::own);
        // ORDERING: Relaxed. The process has one thread. Threads that it creates later see its
        // stores.
        page.is_program.store(true, Ordering::Relaxed);
    }
}

/// A fork handler, which the C library calls in a child of fork(2), but not of vfork(2).
extern "C" fn own() {
    if let Some(page) = known_page() {
        // ORDERING: Relaxed. The process has only one thread now.
        page.owner.store(pid(), Ordering::Relaxed);
    }
}

/// Returns true if this memory belongs to the process itself. A child of vfork(2) uses its parent's
/// memory, and gets false.
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
    let task = match known_task() {
        Some(task) => task,
        None => register().map_err(|why| errno::without_namespace(&why))?,
    };
    // ORDERING: Relaxed. Only a thread that has changed its own credentials must see that
    // `IS_APART` is true, and this thread has stored the value itself.
    if IS_APART.load(Ordering::Relaxed) {
        refresh_late(task);
    }
    Ok(task)
}

/// Returns the process's task if it has made a call before.
#[inline]
pub(crate) fn known_task() -> Option<&'static Task> {
    let page = known_page()?;
    // ORDERING(preload-task): Acquire. `publish` stores the address with Release after it has made
    // the task. Without this order, a thread could see an incomplete task.
    let task = page.task.load(Ordering::Acquire);
    // SAFETY: the task lives until `take_task`, which is called only while no IPC call uses the
    // task.
    unsafe { task.as_ref() }
}

/// Returns the process's task if it has made a call before, but None for a child of vfork(2). The
/// task in such a child's memory is its parent's.
pub(crate) fn own_task() -> Option<&'static Task> {
    known_task().filter(|task| task.pid() == pid())
}

/// Returns the pid from the kernel, which is also right in a child of clone(2).
pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Registers a forked child with the segments that its parent has attached. `parent` is the child's
/// copy of the parent's task. No later call uses it.
///
/// If the child cannot register, it keeps its mappings of the segments, but nattch does not count
/// it. Then nattch keeps counting the parent's attaches even if the parent is killed.
pub(crate) fn register_child(parent: &Task) {
    let page = page();
    let _lock = PageLock::take(&page.is_locked);
    match forked(parent) {
        Ok(task) => drop(publish(page, task)),
        Err(errno) => drop(errno::without_namespace(&why_not("child", errno))),
    }
}

pub(crate) fn refresh_cred() {
    // ORDERING: Relaxed. `CRED_CHANGES` publishes no data: a thread that sees a new value reads its
    // credentials from the kernel.
    CRED_CHANGES.fetch_add(1, Ordering::Relaxed);
    // A child of vfork(2) has its parent's memory, and another pid.
    if let Some(task) = own_task() {
        // Hold the lock of attached segments, so that no thread forks while this thread stores the
        // credentials. In a forked child, `Task::fork` reads the copy of the credentials.
        let _lock = crate::shm::is_on().then(AttachLock::take);
        task.set_cred(cred::current());
    }
}

/// Notices that the credentials of only the calling thread have changed. If the process has other
/// threads, each thread reads its own credentials from now on.
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

#[cold]
fn refresh_late(task: &Task) {
    // ORDERING: Relaxed. See `refresh_cred`.
    let changes = CRED_CHANGES.load(Ordering::Relaxed);
    // A child of vfork(2) must not change `task` and `ASKED`, which belong to its parent.
    if ASKED.get() != changes && task.pid() == pid() {
        ASKED.set(changes);
        task.set_thread_cred(cred::current());
    }
}

/// Removes the task's address from the page that a fork wipes.
///
/// # Safety
///
/// No other thread uses the task, and this thread is in no call that uses it.
pub(crate) unsafe fn take_task(own: *const Task) -> Option<Box<Task>> {
    let (page, own) = (known_page()?, own.cast_mut());
    let null = ptr::null_mut();
    // ORDERING: Relaxed. The caller promises that there is no other thread.
    let _last = LAST.compare_exchange(own, null, Ordering::Relaxed, Ordering::Relaxed);
    // ORDERING(preload-task): Acquire. See `known_task`.
    let task = page.task.compare_exchange(own, null, Ordering::Acquire, Ordering::Relaxed).ok()?;
    // SAFETY: the address came from `Box::into_raw`, and the exchange returns it to one caller
    // only.
    Some(unsafe { Box::from_raw(task) })
}

#[cold]
#[inline(never)]
pub(crate) fn register() -> Result<&'static Task, String> {
    let page = known_page().ok_or(NO_PAGE)?;
    let _lock = PageLock::take(&page.is_locked);
    if let Some(task) = known_task() {
        return Ok(task);
    }
    let namespace = namespace()?;
    if !is_own() {
        return Err("a child of vfork(2) can call only if its parent has made a call".to_owned());
    }
    // This child may have been made by clone(2) through syscall(2). Then no fork handler has run,
    // so store the child's pid now.
    own();
    let made = match forked_from() {
        Some(parent) => forked(parent),
        // A program that has called execve(2) leaves its task in the namespace. `adopt_as` takes
        // over the task of the previous program, with its undo adjustments.
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
    let is_elsewhere = errno == OpenError::OtherPidNamespace.errno();
    let why = if is_elsewhere { OpenError::OtherPidNamespace } else { errno.into() };
    format!("the {who} cannot be registered: {why}")
}

/// Registers a forked child as a task of its own, with the segments that its parent has attached.
/// Maps the child's own hold (a locked file), and makes its mark: after execve(2), this file tells
/// the next program to detach the segments.
fn forked(parent: &Task) -> Result<Task, Errno> {
    let task = parent.fork(pid())?;
    task.set_cred(cred::current());
    hold::renew(&task);
    crate::shm::mark();
    Ok(task)
}

/// If this process is a child that was forked without the C library, returns its copy of the
/// parent's task. Returns None if the parent has no segment attached. The caller holds the lock of
/// registration.
fn forked_from() -> Option<&'static Task> {
    // ORDERING(preload-last): Acquire. `publish` stores the address with Release after it has made
    // the task. Without this order, a thread could see an incomplete task.
    let last = LAST.load(Ordering::Acquire);
    // ORDERING: Relaxed. The child's one thread reads its copy of the parent's memory.
    if !crate::shm::is_on() || IS_ATTACHING.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: `last` is null or the address of a task. The task lives until `take_task`, which
    // clears the address. The caller of `take_task` guarantees that no call is under way.
    let last = unsafe { last.as_ref() };
    last.filter(|parent| parent.pid() != pid() && parent.attached() != 0)
}

/// Stores the address of a new task where IPC calls find it. The caller holds the lock of
/// registration.
fn publish(page: &'static Page, task: Task) -> &'static Task {
    let task = Box::into_raw(Box::new(task.tell_copies_by(&page.owner)));
    // ORDERING(preload-last): Release. Publishes the complete task to `forked_from`.
    LAST.store(task, Ordering::Release);
    // ORDERING(preload-task): Release. Publishes the complete task to `known_task`.
    page.task.store(task, Ordering::Release);
    // SAFETY: as in `known_task`.
    unsafe { &*task }
}

#[inline]
fn known_page() -> Option<&'static Page> {
    // ORDERING(preload-page): Acquire. `map_page` stores the address with Release after it has set
    // the page up. Without this order, a thread could see the page as it was before.
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: `PAGE` is null or the address of a page that `map_page` has mapped. This page is
    // never unmapped, and zeroes are a valid `Page`.
    unsafe { page.as_ref() }
}

/// Returns the wiped page. It must be mapped already, as it is if this process or its parent has a
/// task.
fn page() -> &'static Page {
    known_page().expect("a process is registered in the page")
}

/// Maps the wiped page, while the process has only one thread.
fn map_page() {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: the call names no address, so it replaces no mapping in use.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, flags) };
    let Ok(made) = made else { return };
    // SAFETY: the range is the mapping just made, which no other thread knows.
    let advised = unsafe { rustix::mm::madvise(made, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    if advised.is_ok() {
        // ORDERING(preload-page): Release. `known_page` loads the address with Acquire. Without
        // this order, a thread could see the page as it was before it was set up.
        PAGE.store(made.cast(), Ordering::Release);
    }
}

/// Returns the namespace, and maps it if it is not mapped yet. The caller holds the lock of
/// registration.
fn namespace() -> Result<&'static Namespace, String> {
    // ORDERING(preload-namespace): Acquire. The thread that maps the namespace stores its address
    // with Release. Without this order, another thread could see an incomplete namespace.
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

pub(crate) fn namespace_memory() -> Option<Range<usize>> {
    // ORDERING(preload-namespace): Acquire. See `namespace`.
    let known = NAMESPACE.load(Ordering::Acquire);
    // SAFETY: a namespace whose address was stored is never dropped.
    unsafe { known.as_ref() }.map(Namespace::memory)
}

/// A guard of one of the locks in the wiped page. While it lives, all signals are blocked.
pub(crate) struct PageLock {
    is_locked: &'static AtomicBool,
    /// Restores the signal mask when it is dropped, after the lock is released.
    _signals: BlockedSignals,
}

impl PageLock {
    fn take(is_locked: &'static AtomicBool) -> Self {
        let signals = BlockedSignals::new();
        // ORDERING(preload-lock): Acquire. See `drop`.
        while is_locked.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        Self { is_locked, _signals: signals }
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        // ORDERING(preload-lock): Release. Stores under the lock happen before the next holder.
        self.is_locked.store(false, Ordering::Release);
    }
}

/// A guard that holds the lock of the attached segments.
pub(crate) struct AttachLock(#[expect(dead_code, reason = "held until it is dropped")] PageLock);

impl AttachLock {
    /// Takes the lock of the attached segments. The wiped page, which contains it, must be mapped
    /// already.
    pub(crate) fn take() -> Self {
        let lock = PageLock::take(&page().is_attaching);
        // ORDERING: Relaxed. Only a forked child reads `IS_ATTACHING`, and the child has a copy of
        // all earlier stores.
        IS_ATTACHING.store(true, Ordering::Relaxed);
        Self(lock)
    }
}

impl Drop for AttachLock {
    fn drop(&mut self) {
        // ORDERING: Relaxed. See `take`.
        IS_ATTACHING.store(false, Ordering::Relaxed);
    }
}

/// Blocks all signals, and takes the lock of the tables of signal handlers.
///
/// A child of vfork(2) takes no lock, because it changes no table. Nor does a process that could
/// not map the page with the lock.
pub(crate) fn lock_tables() -> (Option<PageLock>, BlockedSignals) {
    // Block all signals first. `PageLock::take` blocks them again, so the drop of the lock restores
    // a mask that still blocks them. They stay blocked until the caller drops `blocked`.
    let blocked = BlockedSignals::new();
    let page = known_page().filter(|_| is_own());
    (page.map(|page| PageLock::take(&page.is_handling)), blocked)
}

/// A guard that blocks all signals in this thread.
pub(crate) struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
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
