//! The process as a task of the namespace.
//!
//! Before the first call nothing happens but that a page is mapped: most programs that inherit `LD_PRELOAD` never make one.
//! Then the namespace is mapped, its descriptor closed again, and the process registered.
//!
//! # Fork
//!
//! A child is another task, without undo. That it is one shows in a page that the kernel wipes in
//! the child of whatever kind of fork (`MADV_WIPEONFORK`), so a call looks at one word to know, and
//! no fork is intercepted, unless segments are attached (`fork`). The page says whose memory it is, too: so a call that its
//! process has begun ends in a child that a handler has forked (`Task::tell_copies_by`).
//!
//! # A child of vfork(2)
//!
//! It shares the page with its parent. If that has a task the child acts as it until it execs: to know better would cost a
//! system call for each call. If not, the child finds that the memory is another's and is a *guest* there: it has a task of
//! its own, which its calls look up the slow way and which its parent never takes for its own, nor ends: it
//! belongs to what the child has become.
//!
//! # Exec
//!
//! A program that a process becomes by execve(2) takes over its task with its first call: undo
//! survives. One that makes no call leaves undo to the recovery of the namespace.
//!
//! # Locks
//!
//! The locks of registration and of what is attached lie in the wiped page too: a child never inherits
//! them taken. Signals are blocked while they are held, so a handler never finds one taken by its own thread.
//! The second comes first.
//!
//! Source: madvise(2), vfork(2), environ(7).

use corewalk_base::primitives::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_ipc::{Namespace, OpenError, Task};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::cell::Cell;
use std::ptr;

use crate::cred;
use crate::exit;
use crate::hold;

/// Names the file of the namespace.
pub(crate) const NAMESPACE_ENV: &str = "COREWALK_IPC_NAMESPACE";

/// What the kernel zeroes in a child.
#[repr(C)]
struct Page {
    /// The process's task, or null.
    task: AtomicPtr<Task>,
    /// The task of a child of vfork(2), or null.
    guest: AtomicPtr<Task>,
    /// The process whose memory this is, or 0 in a child that has not said so yet.
    owner: AtomicU32,
    is_locked: AtomicBool,
    /// The lock of what is attached, see `shm`.
    is_attaching: AtomicBool,
}

/// Whether threads may act as different users. It stays so.
static IS_APART: AtomicBool = AtomicBool::new(false);

/// Changes of all threads at once, and one more.
static CRED_CHANGES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// What `CRED_CHANGES` was when this thread asked who it acts as, or 0.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

const PAGE_BYTES: usize = 4096;

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
    // A program that makes no call need not know if that is not possible.
    let _page = mapped_page();
    own();
    extern "C" fn child() {
        own();
    }
    // SAFETY: the function stays loaded: a preloaded library is never unloaded.
    let _registered = unsafe { libc::pthread_atfork(None, None, Some(child)) };
}

/// Takes note that the memory of this process is its own: it is no child of vfork(2).
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
/// Ends the process with status 127 if there is no namespace to register in.
#[inline]
pub(crate) fn task() -> &'static Task {
    let task = if let Some(task) = known_task() { task } else { registered() };
    // ORDERING: Relaxed. Who has changed its own credentials sees its own store.
    if IS_APART.load(Ordering::Relaxed) {
        refresh_late(task);
    }
    task
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

/// Returns the task of a child of vfork(2) that is in this memory, or was: whose it is has to be looked at.
pub(crate) fn guest() -> Option<&'static Task> {
    // ORDERING(preload-task): Acquire. The task is made before its address is stored.
    let guest = known_page()?.guest.load(Ordering::Acquire);
    // SAFETY: as in `known_task`.
    unsafe { guest.as_ref() }
}

/// Returns the process's task if it has made a call before, and not what a child of vfork(2) borrows.
pub(crate) fn own_task() -> Option<&'static Task> {
    let tasks = [known_task(), guest()];
    tasks.into_iter().flatten().find(|task| task.pid() == pid())
}

/// Returns the number of the process, as the kernel knows it.
pub(crate) fn pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get().cast_unsigned()
}

/// Registers the child of a fork, which has attached what the parent has. `parent` is the copy of its task
/// in the child's memory, which nobody uses after that.
pub(crate) fn register_child(parent: &Task) {
    let page = page();
    let _lock = PageLock::take(&page.is_locked);
    match parent.fork(pid()) {
        Ok(task) => {
            // ORDERING: Relaxed. The child's one thread reads what its parent's memory was.
            if IS_APART.load(Ordering::Relaxed) {
                task.set_cred(cred::current());
            }
            succeed_parent(&task);
            let _ = publish(page, task);
        }
        Err(errno) => exit::refuse(&why_not("child", errno)),
    }
}

/// Asks anew who the process acts as, after a call of the C library that changes all of its threads.
pub(crate) fn refresh_cred() {
    // ORDERING: Relaxed. A hint to other threads, which the C library has interrupted for the change.
    CRED_CHANGES.fetch_add(1, Ordering::Relaxed);
    // A child of vfork(2) has its parent's memory, and is another.
    if let Some(task) = own_task() {
        // A child that is registered reads it: see `fork`.
        let _lock = crate::shm::is_on().then(AttachLock::take);
        task.set_cred(cred::current());
    }
}

/// Asks anew who the calling thread acts as, after a call that changes it alone. Threads that are made before it
/// are what they were, and those that it makes are what it is: from now on each asks for itself.
pub(crate) fn refresh_thread_cred() {
    if crate::exit::is_alone() {
        return refresh_cred();
    }
    if known_task().is_none_or(|task| task.pid() == pid()) {
        // ORDERING: Relaxed. See `task`.
        IS_APART.store(true, Ordering::Relaxed);
        ASKED.set(0);
    }
}

/// Asks who the calling thread acts as, if it has not since the last change.
#[cold]
fn refresh_late(task: &Task) {
    // ORDERING: Relaxed. See `refresh_cred`.
    let changes = CRED_CHANGES.load(Ordering::Relaxed);
    // What a thread has asked for its parent's memory is not about a guest.
    if ASKED.get() != changes && task.pid() == pid() && is_own() {
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
    let taken = |word: &AtomicPtr<Task>| {
        // ORDERING(preload-task): Acquire. See `known_task`.
        word.compare_exchange(own, null, Ordering::Acquire, Ordering::Relaxed).ok()
    };
    let task = taken(&page.task).or_else(|| taken(&page.guest))?;
    // SAFETY: the address came from `Box::into_raw`, and the exchange hands it to one caller.
    Some(unsafe { Box::from_raw(task) })
}

#[cold]
#[inline(never)]
fn registered() -> &'static Task {
    // A guest comes here with each call.
    own_task().unwrap_or_else(|| register().unwrap_or_else(|why| exit::refuse(&why)))
}

/// Makes the process a task, or returns why that cannot be.
pub(crate) fn register() -> Result<&'static Task, String> {
    let _signals = BlockedSignals::new();
    let page = page();
    let _lock = PageLock::take(&page.is_locked);
    if let Some(task) = known_task() {
        return Ok(task);
    }
    let namespace = namespace()?;
    if !is_own() {
        let guest = namespace.register(cred::current(), pid());
        return Ok(publish_guest(page, guest.map_err(|errno| why_not("process", errno))?));
    }
    // A child that was made by number has not said so yet.
    own();
    let made = match forked_from() {
        Some(parent) => parent.fork(pid()).inspect(|task| {
            task.set_cred(cred::current());
            succeed_parent(task);
        }),
        // The program may be one that this process has become by execve(2): undo survives that.
        None => {
            hold::leave();
            namespace.adopt(cred::current(), pid())
        }
    };
    let task = made.map_err(|errno| why_not("process", errno))?;
    Ok(publish(page, task))
}

/// Says why a process cannot be registered.
fn why_not(who: &str, errno: Errno) -> String {
    let why = if errno == OpenError::OtherPidNamespace.errno() {
        OpenError::OtherPidNamespace.to_string()
    } else {
        errno.to_string()
    };
    format!("the {who} cannot be registered: {why}")
}

/// Says for a child, which is counted by now, what its parent has said for itself; nobody knows its task yet.
fn succeed_parent(task: &Task) {
    hold::renew(task);
    crate::shm::mark();
}

/// Returns the copy of its parent's task in a child that was forked without the C library and has segments
/// attached; the page is locked.
fn forked_from() -> Option<&'static Task> {
    // ORDERING(preload-last): Acquire. The task is made before its address is stored.
    let last = LAST.load(Ordering::Acquire);
    // ORDERING: Relaxed. The child's one thread reads what its parent's memory was.
    if !crate::shm::is_on() || IS_ATTACHING.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: a task lives until `take_task`, which forgets this address, and whose caller knows that no
    // call is under way.
    let last = unsafe { last.as_ref() };
    last.filter(|parent| parent.pid() != pid() && parent.attached() != 0)
}

/// Makes a task that of the process; the page is locked.
fn publish(page: &'static Page, task: Task) -> &'static Task {
    let task = Box::into_raw(Box::new(task.tell_copies_by(&page.owner)));
    // ORDERING: Relaxed. Who was a guest has ended or become another program, or acts as this task from now on.
    page.guest.store(ptr::null_mut(), Ordering::Relaxed);
    // ORDERING(preload-last): Release. The task is made before its address is seen.
    LAST.store(task, Ordering::Release);
    // ORDERING(preload-task): Release. The task is made before its address is seen.
    page.task.store(task, Ordering::Release);
    // SAFETY: as in `known_task`.
    unsafe { &*task }
}

/// Makes a task that of a child of vfork(2); the page is locked. The guest before has ended, or become
/// another program, or registers anew with its next call: there is room for one, and two threads may each have a child.
fn publish_guest(page: &Page, task: Task) -> &'static Task {
    let task = Box::into_raw(Box::new(task));
    // ORDERING(preload-task): Release. The task is made before its address is seen.
    page.guest.store(task, Ordering::Release);
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

/// Returns the page that is wiped in a child.
fn page() -> &'static Page {
    mapped_page().unwrap_or_else(|why| exit::refuse(why))
}

/// Returns the page, which is mapped when the library is loaded, or says why that is not possible.
fn mapped_page() -> Result<&'static Page, &'static str> {
    if let Some(page) = known_page() {
        return Ok(page);
    }
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: no address is asked for, so no mapping in use is replaced.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, flags) };
    let made = made.map_err(|_| "no memory")?;
    // SAFETY: the range is the mapping just made, which nobody else knows.
    let unmap = || unsafe { rustix::mm::munmap(made, PAGE_BYTES) };
    // SAFETY: as above.
    let advised = unsafe { rustix::mm::madvise(made, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        let _unmapped = unmap();
        return Err("the kernel cannot wipe a page on fork (Linux 4.14)");
    }
    let null = ptr::null_mut();
    // ORDERING(preload-page): Release. The page is set up before its address is seen. Acquire for
    // the one that another thread was quicker with.
    let set = PAGE.compare_exchange(null, made.cast(), Ordering::Release, Ordering::Acquire);
    let page = set.map_or_else(
        |other| {
            let _unmapped = unmap();
            other
        },
        |_| made.cast(),
    );
    // SAFETY: as in `known_page`.
    Ok(unsafe { &*page })
}

/// Returns the namespace, which is mapped on the first call; the page is locked.
fn namespace() -> Result<&'static Namespace, String> {
    // ORDERING(preload-namespace): Acquire. The namespace is made before its address is stored.
    let known = NAMESPACE.load(Ordering::Acquire);
    // SAFETY: a namespace whose address was stored is never dropped.
    if let Some(namespace) = unsafe { known.as_ref() } {
        return Ok(namespace);
    }
    let path = std::env::var_os(NAMESPACE_ENV);
    let path = path.ok_or_else(|| format!("{NAMESPACE_ENV} is not set"))?;
    let opened = crate::open::open(path.as_ref());
    let namespace = opened.map_err(|why| format!("{}: {why}", path.display()))?;
    let namespace = Box::into_raw(Box::new(namespace));
    // ORDERING(preload-namespace): Release. See above.
    NAMESPACE.store(namespace, Ordering::Release);
    // SAFETY: as above.
    Ok(unsafe { &*namespace })
}

/// A lock of the page, until it is dropped.
struct PageLock(&'static AtomicBool);

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
        // ORDERING(preload-lock): Release. What was done under the lock happens before the next.
        self.0.store(false, Ordering::Release);
    }
}

/// The lock of what is attached, with all signals blocked, until it is dropped.
pub(crate) struct AttachLock {
    _lock: PageLock,
    _signals: BlockedSignals,
}

impl AttachLock {
    /// Takes the lock. A call that is refused because of the namespace ends the process.
    pub(crate) fn take() -> Self {
        let signals = BlockedSignals::new();
        let lock = PageLock::take(&page().is_attaching);
        // ORDERING: Relaxed. Told to children only, who have a copy of all that is stored before.
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
