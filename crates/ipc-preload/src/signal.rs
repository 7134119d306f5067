//! sigaction(2) and its like: a handler that interrupts a call ends its wait with `EINTR`.
//!
//! In the kernel a call that waits and the sleep are one; here a call is queued first, and then sleeps by futex(2). A
//! handler that runs in between would go unnoticed: the call would sleep on, and whoever counts on the signal
//! to end it waits for ever. To compare a counter before the sleep leaves a window of its own. So the handler itself
//! changes the word that the call is about to sleep on.
//!
//! For that every handler is installed behind a few instructions of ours, which note the signal and jump on to it: it
//! finds the registers, the stack and the return address as the kernel has left them, so `siginfo`, the context,
//! `SA_ONSTACK` and unwinding are as without us. Flags and mask are what the program asks for, and what
//! sigaction(2) tells is the program's own handler.
//!
//! # Two entries
//!
//! There are two copies of these instructions, with a table of handlers each. A new handler goes into the table that the kernel
//! does not use for this signal, and the kernel is then told of the entry and the flags at once: a signal that comes meanwhile runs the old handler
//! with the old flags or the new one with the new. Who installs handlers holds a lock with all signals blocked.
//!
//! A child of vfork(2) has these tables in common with its parent, and its handlers not: it installs them as they are, and
//! changes no table.
//!
//! # What it refuses
//!
//! - Handlers for `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP` and `SIGSYS` are left alone: they belong to
//!   instructions, and interrupt no wait unless somebody sends them.
//! - Handlers that are installed without libc's functions are not seen.
//! - Where a signal has two new handlers between the moment in which the kernel calls an entry and the next few instructions, the
//!   second one runs with the flags of the first.
//!
//! Source: sigaction(2), signal(7) "Interruption of system calls"; System V ABI, AMD64 supplement.

use corewalk_base::primitives::atomic::{AtomicPtr, AtomicU32, Ordering};
use corewalk_base::primitives::thread;
use libc::{c_int, c_long, c_void, sighandler_t};
use std::ptr;

use crate::next::Next;
use crate::process::{self, BlockedSignals};
use crate::user;

/// Signals are below this.
const SIGNALS: usize = 65;

/// `SIG_HOLD` of sigset(3), the highest word below `SIG_ERR` that is no address.
const SIG_HOLD: sighandler_t = 2;

/// Entries, and tables.
const ENTRIES: usize = 2;

/// The handlers that programs have installed: a table for each entry.
static HANDLERS: [[AtomicPtr<c_void>; SIGNALS]; ENTRIES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS] }; ENTRIES];

/// The process one of whose threads changes the tables, or 0. What a child has inherited is nobody's.
static IS_LOCKED: AtomicU32 = AtomicU32::new(0);

static SIGACTION: Next = Next::new(c"sigaction");

/// What rt_sigaction(2) takes. Analogous to Linux's `struct kernel_sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Looks up what this module stands in front of.
pub(crate) fn resolve() {
    SIGACTION.address();
    for next in &REPLACING {
        next.address();
    }
}

/// Notes that a signal has come; returns the program's handler.
fn arrived(entry: usize, signal: c_int) -> *mut c_void {
    // No lock, no allocation, no system call, and errno stays as it is.
    for task in [process::known_task(), process::guest()].into_iter().flatten() {
        task.interrupt_own();
    }
    // ORDERING: Relaxed. An address of code; nothing is published with it.
    HANDLERS[entry][signal as usize % SIGNALS].load(Ordering::Relaxed)
}

/// Defines an entry: what the kernel calls. It notes the signal, and jumps to the handler as if nothing had been.
macro_rules! entry {
    ($index:literal, $entry:ident, $arrived:ident) => {
        extern "C" fn $arrived(signal: c_int) -> *mut c_void {
            arrived($index, signal)
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        unsafe extern "C" fn $entry(signal: c_int, siginfo: *mut c_void, machine: *mut c_void) {
            std::arch::naked_asm!(
                // Three words beside the return address: the stack is aligned for the call.
                "push rdi",
                "push rsi",
                "push rdx",
                "call {arrived}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp rax",
                arrived = sym $arrived,
            )
        }

        #[cfg(not(target_arch = "x86_64"))]
        unsafe extern "C-unwind" fn $entry(
            signal: c_int,
            siginfo: *mut c_void,
            machine: *mut c_void,
        ) {
            type Handler = unsafe extern "C-unwind" fn(c_int, *mut c_void, *mut c_void);
            // SAFETY: a program has installed this address as a handler.
            let handler = unsafe { std::mem::transmute::<*mut c_void, Handler>($arrived(signal)) };
            // SAFETY: these are what the kernel has given.
            unsafe { handler(signal, siginfo, machine) }
        }
    };
}

entry!(0, entry_0, arrived_0);
entry!(1, entry_1, arrived_1);

/// Returns the addresses of the entries.
fn entries() -> [sighandler_t; ENTRIES] {
    [(entry_0 as *const ()).expose_provenance(), (entry_1 as *const ()).expose_provenance()]
}

/// Returns the index of a signal in the tables, or none if the signal is left alone.
fn cell(signal: c_int) -> Option<usize> {
    let is_left_alone = matches!(
        signal,
        libc::SIGSEGV
            | libc::SIGBUS
            | libc::SIGFPE
            | libc::SIGILL
            | libc::SIGTRAP
            | libc::SIGSYS
            | libc::SIGKILL
            | libc::SIGSTOP
    );
    let index = usize::try_from(signal).ok().filter(|index| *index != 0 && !is_left_alone)?;
    (index < SIGNALS).then_some(index)
}

/// A change of a handler, or a look at it: what is given to the kernel, and what the kernel tells.
struct Change(#[expect(dead_code, reason = "held until the change is made")] TableLock);

impl Change {
    /// Puts the handler that is about to be installed into the table that is not in use, if it is a function; returns what
    /// to install.
    fn begin(signal: c_int, cell: usize, handler: Option<sighandler_t>) -> (Self, sighandler_t) {
        let change = Self(TableLock::take());
        // The last are ours already: somebody was told of them by a call that we do not see.
        let [first, second] = entries();
        let words = [libc::SIG_DFL, libc::SIG_IGN, SIG_HOLD, libc::SIG_ERR, first, second];
        let Some(function) = handler.filter(|handler| !words.contains(handler)) else {
            return (change, handler.unwrap_or(0));
        };
        if !process::is_own() {
            return (change, function);
        }
        let free = usize::from(installed_now(signal) == Some(first));
        // ORDERING: Relaxed. See `arrived`.
        HANDLERS[free][cell].store(ptr::with_exposed_provenance_mut(function), Ordering::Relaxed);
        (change, entries()[free])
    }
}

/// Returns the program's handler where the kernel tells of an entry of ours, which it had before.
fn told(cell: usize, handler: sighandler_t) -> sighandler_t {
    match entries().iter().position(|entry| *entry == handler) {
        // ORDERING: Relaxed. See `arrived`.
        Some(entry) => HANDLERS[entry][cell].load(Ordering::Relaxed).expose_provenance(),
        None => handler,
    }
}

/// The lock of the tables, with all signals blocked, until it is dropped. A child of vfork(2) changes no table and takes none.
struct TableLock {
    is_held: bool,
    _signals: BlockedSignals,
}

impl TableLock {
    fn take() -> Self {
        let signals = BlockedSignals::new();
        let is_held = process::is_own();
        if is_held {
            Self::acquire(process::pid());
        }
        Self { is_held, _signals: signals }
    }

    fn acquire(own: u32) {
        let mut seen = 0;
        loop {
            // ORDERING(preload-tables): Acquire. See `drop`.
            match IS_LOCKED.compare_exchange(seen, own, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) if other == own => {
                    seen = 0;
                    thread::yield_now();
                }
                // Free, or of a thread of the parent, which is not here.
                Err(other) => seen = other,
            }
        }
    }
}

impl Drop for TableLock {
    fn drop(&mut self) {
        if self.is_held {
            // ORDERING(preload-tables): Release. What was stored in the tables happens before the next change.
            IS_LOCKED.store(0, Ordering::Release);
        }
    }
}

/// sigaction(2).
///
/// # Safety
///
/// That of the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    type Function =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    let Some(next) = SIGACTION.found() else { return -1 };
    // SAFETY: what the C library defines under this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
    let Some(cell) = cell(signal) else {
        // SAFETY: the caller's promise.
        return unsafe { next(signal, action, before) };
    };
    // SAFETY: the caller's promise; it is copied, since it may be where the answer goes.
    let mut ours = (!action.is_null()).then(|| unsafe { action.read() });
    let handler = ours.map(|ours| ours.sa_sigaction);
    let (_change, installed) = Change::begin(signal, cell, handler);
    if let Some(ours) = &mut ours {
        ours.sa_sigaction = installed;
    }
    let given = ours.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's promise; the copy lives during the call.
    let result = unsafe { next(signal, given, before) };
    if result == 0 && !before.is_null() {
        // SAFETY: the call has filled it.
        let told = unsafe { &mut (*before).sa_sigaction };
        *told = self::told(cell, *told);
    }
    result
}

/// rt_sigaction(2) by number: `call` makes the call with another action.
///
/// # Safety
///
/// That of the call.
pub(crate) unsafe fn by_number(
    signal: c_int,
    action: usize,
    before: usize,
    call: impl FnOnce(usize) -> c_long,
) -> c_long {
    let Some(cell) = cell(signal) else { return call(action) };
    // SAFETY: any bits are an action; it is copied, since it may be where the answer goes.
    let read = (action != 0).then(|| unsafe { user::read::<KernelAction>(action) });
    // The kernel refuses what cannot be read.
    let Ok(mut ours) = read.transpose() else { return call(action) };
    let handler = ours.map(|ours| ours.handler);
    let (_change, installed) = Change::begin(signal, cell, handler);
    if let Some(ours) = &mut ours {
        ours.handler = installed;
    }
    let given = ours.as_ref().map_or(0, |ours| ptr::from_ref(ours).expose_provenance());
    let result = call(given);
    if result == 0 && before != 0 {
        let before = ptr::with_exposed_provenance_mut::<KernelAction>(before);
        // SAFETY: the call has filled it.
        let told = unsafe { &mut (*before).handler };
        *told = self::told(cell, *told);
    }
    result
}

/// Returns what the kernel calls for a signal.
fn installed_now(signal: c_int) -> Option<sighandler_t> {
    type Function =
        unsafe extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    let address = SIGACTION.address();
    if address.is_null() {
        return None;
    }
    // SAFETY: what the C library defines under this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
    // SAFETY: zeroes are a valid action.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: there is room for what is told.
    let asked = unsafe { next(signal, ptr::null(), &raw mut now) };
    (asked == 0).then_some(now.sa_sigaction)
}

/// Installs a handler with one of the functions that take just that.
///
/// # Safety
///
/// That of the function.
unsafe fn replace(next: &Next, signal: c_int, handler: sighandler_t) -> sighandler_t {
    type Function = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
    let is_sigset = ptr::eq(next, &REPLACING[SIGSET]);
    let Some(address) = next.found() else { return libc::SIG_ERR };
    // SAFETY: what the C library defines under this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
    let Some(cell) = cell(signal) else {
        // SAFETY: the caller's promise.
        return unsafe { next(signal, handler) };
    };
    let (change, installed) = Change::begin(signal, cell, Some(handler));
    // sigset(3) changes the mask of signals too, which would be put back with the lock.
    let lock = (!is_sigset).then_some(change);
    // SAFETY: the caller's promise.
    let before = unsafe { next(signal, installed) };
    let program = told(cell, before);
    drop(lock);
    program
}

/// Defines the functions that take a signal and a handler.
/// Which of them is sigset(3).
const SIGSET: usize = 5;

macro_rules! replacing {
    ($($index:literal, $name:ident, $symbol:literal;)*) => {
        static REPLACING: [Next; [$($index),*].len()] = [$(Next::new($symbol)),*];

        $(
            /// The function of that name.
            ///
            /// # Safety
            ///
            /// That of the function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
                // SAFETY: the caller's promise.
                unsafe { replace(&REPLACING[$index], signal, handler) }
            }
        )*
    };
}

replacing! {
    0, signal, c"signal";
    1, bsd_signal, c"bsd_signal";
    2, ssignal, c"ssignal";
    3, sysv_signal, c"sysv_signal";
    4, __sysv_signal, c"__sysv_signal";
    5, sigset, c"sigset";
}
