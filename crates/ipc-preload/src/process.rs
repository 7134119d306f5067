//! The process as a task of the namespace.
//!
//! Nothing happens before the first call: most programs that inherit `LD_PRELOAD` never make one.
//! Then the namespace is mapped, its descriptor closed again, and the process registered.
//!
//! # Fork
//!
//! A child is another task, without undo. That it is one shows in a page that the kernel wipes in
//! the child of whatever kind of fork (`MADV_WIPEONFORK`), so a call looks at one word to know, and
//! no fork is intercepted. A child of vfork(2) shares the page with its parent, and acts as it
//! until it execs.
//!
//! # Exec
//!
//! A program that a process becomes by execve(2) takes over its task with its first call: undo
//! survives. One that makes no call leaves undo to the recovery of the namespace.
//!
//! # Locks
//!
//! The lock of registration lies in the wiped page too: a child never inherits it taken. Signals are
//! blocked while it is held, so a handler never finds it taken by its own thread.
//!
//! Source: madvise(2), vfork(2), environ(7).

use corewalk_ipc::{Namespace, Task};
use corewalk_sync::primitives::atomic::{AtomicBool, AtomicPtr, Ordering};
use corewalk_sync::primitives::thread;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ptr;

use crate::cred;
use crate::exit;

/// Names the file of the namespace.
pub(crate) const NAMESPACE_ENV: &str = "COREWALK_IPC_NAMESPACE";

/// What the kernel zeroes in a child.
#[repr(C)]
struct Page {
    /// The process's task, or null.
    task: AtomicPtr<Task>,
    is_locked: AtomicBool,
}

const PAGE_BYTES: usize = 4096;

static PAGE: AtomicPtr<Page> = AtomicPtr::new(ptr::null_mut());

/// The namespace once it is mapped. A child keeps its parent's.
static NAMESPACE: AtomicPtr<Namespace> = AtomicPtr::new(ptr::null_mut());

/// Returns the process's task.
///
/// Ends the process with status 127 if there is no namespace to register in.
#[inline]
pub(crate) fn task() -> &'static Task {
    if let Some(task) = known_task() { task } else { register() }
}

/// Returns the process's task if it has made a call before.
#[inline]
pub(crate) fn known_task() -> Option<&'static Task> {
    // ORDERING(preload-page): Acquire. The page is set up before its address is stored.
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: a page whose address was stored is never unmapped, and zeroes are a valid one.
    let page = unsafe { &*page };
    // ORDERING(preload-task): Acquire. The task is made before its address is stored.
    let task = page.task.load(Ordering::Acquire);
    // SAFETY: the task lives until `take_task`, whose caller knows that no call is under way.
    unsafe { task.as_ref() }
}

/// Asks anew who the process acts as.
pub(crate) fn refresh_cred() {
    if let Some(task) = known_task() {
        task.set_cred(cred::current());
    }
}

/// Takes the task away, for its end.
///
/// # Safety
///
/// No other thread, and no call further up in this one, uses the task.
pub(crate) unsafe fn take_task() -> Option<Box<Task>> {
    // ORDERING(preload-page): Acquire. See `known_task`.
    let page = PAGE.load(Ordering::Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: as in `known_task`.
    let page = unsafe { &*page };
    // ORDERING(preload-task): Acquire. See `known_task`.
    let task = page.task.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: the address came from `Box::into_raw`, and the swap hands it to one caller.
    (!task.is_null()).then(|| unsafe { Box::from_raw(task) })
}

#[cold]
#[inline(never)]
fn register() -> &'static Task {
    let _signals = BlockedSignals::new();
    let page = page();
    let _lock = PageLock::take(page);
    if let Some(task) = known_task() {
        return task;
    }
    let namespace = namespace();
    let pid = rustix::process::getpid().as_raw_nonzero().get().cast_unsigned();
    // The program may be one that this process has become by execve(2): undo survives that.
    let task = match namespace.adopt(cred::current(), pid) {
        Ok(task) => Box::into_raw(Box::new(task)),
        Err(errno) => exit::refuse(&format!("the process cannot be registered: {errno}")),
    };
    // ORDERING(preload-task): Release. The task is made before its address is seen.
    page.task.store(task, Ordering::Release);
    // SAFETY: as in `known_task`.
    unsafe { &*task }
}

/// Returns the page that is wiped in a child, which is made on the first call.
fn page() -> &'static Page {
    // ORDERING(preload-page): Acquire. See `known_task`.
    let page = PAGE.load(Ordering::Acquire);
    if !page.is_null() {
        // SAFETY: as in `known_task`.
        return unsafe { &*page };
    }
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: no address is asked for, so no mapping in use is replaced.
    let made = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), PAGE_BYTES, access, flags) };
    let Ok(made) = made else { exit::refuse("no memory") };
    // SAFETY: the range is the mapping just made, which nobody else knows.
    let advised = unsafe { rustix::mm::madvise(made, PAGE_BYTES, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        exit::refuse("the kernel cannot wipe a page on fork (Linux 4.14)");
    }
    let made = made.cast::<Page>();
    let null = ptr::null_mut();
    // ORDERING(preload-page): Release. The page is set up before its address is seen. Acquire for
    // the one that another thread was quicker with.
    match PAGE.compare_exchange(null, made, Ordering::Release, Ordering::Acquire) {
        // SAFETY: as in `known_task`.
        Ok(_) => unsafe { &*made },
        Err(other) => {
            // SAFETY: the range is the mapping just made, which nobody else knows.
            let _unmapped = unsafe { rustix::mm::munmap(made.cast(), PAGE_BYTES) };
            // SAFETY: as in `known_task`.
            unsafe { &*other }
        }
    }
}

/// Returns the namespace, which is mapped on the first call; the page is locked.
fn namespace() -> &'static Namespace {
    // ORDERING(preload-namespace): Acquire. The namespace is made before its address is stored.
    let known = NAMESPACE.load(Ordering::Acquire);
    // SAFETY: a namespace whose address was stored is never dropped.
    if let Some(namespace) = unsafe { known.as_ref() } {
        return namespace;
    }
    let Some(path) = std::env::var_os(NAMESPACE_ENV) else {
        exit::refuse(&format!("{NAMESPACE_ENV} is not set"))
    };
    let namespace = match crate::open::open(path.as_ref()) {
        Ok(namespace) => Box::into_raw(Box::new(namespace)),
        Err(why) => exit::refuse(&format!("{}: {why}", path.display())),
    };
    // ORDERING(preload-namespace): Release. See above.
    NAMESPACE.store(namespace, Ordering::Release);
    // SAFETY: as above.
    unsafe { &*namespace }
}

/// The lock of the page, until it is dropped.
struct PageLock(&'static Page);

impl PageLock {
    fn take(page: &'static Page) -> Self {
        let free = || {
            // ORDERING(preload-lock): Acquire. See `drop`.
            page.is_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
        };
        while free().is_err() {
            thread::yield_now();
        }
        Self(page)
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        // ORDERING(preload-lock): Release. What was done under the lock happens before the next.
        self.0.is_locked.store(false, Ordering::Release);
    }
}

/// All signals blocked in this thread, until it is dropped.
struct BlockedSignals(libc::sigset_t);

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
