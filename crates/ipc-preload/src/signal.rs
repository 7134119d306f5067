//! sigaction(2) and related functions: a handler that interrupts a call ends its wait with `EINTR`.
//!
//! In the kernel, a call queues itself and sleeps in one step. In this library a call is queued
//! first, and then sleeps by futex(2). A signal whose handler runs between these two steps would
//! not end the sleep, and a program that relies on the signal would wait for ever. If the call
//! compared a counter of signals before the sleep, a signal after the comparison would still be
//! lost. So the handler itself changes the futex word on which the call is about to sleep.
//!
//! For that, the library installs a few instructions of its own, an entry, in place of every
//! handler. The entry notes the signal and jumps on to the program's handler. The handler finds the
//! registers, the stack and the return address as the kernel has left them. So `siginfo`, the
//! context, `SA_ONSTACK` and unwinding do not change. The flags and the mask are the program's, and
//! sigaction(2) returns the program's own handler.
//!
//! # Two entries
//!
//! The library has two entries, each with its own table of handlers. A new handler goes into the
//! table of the entry that is not installed for this signal. Then one system call installs that
//! entry with the new flags. A signal that arrives meanwhile runs the old handler with the old
//! flags, or the new handler with the new flags. A thread that installs a handler holds the lock of
//! the tables, and blocks all signals.
//!
//! A child of vfork(2) shares these tables with its parent, but has handlers of its own. So in such
//! a child the library changes no table: it installs the program's handler itself, without an
//! entry.
//!
//! # Limits
//!
//! - Handlers for `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP` and `SIGSYS` get no entry.
//!   Instructions raise these signals, and they interrupt a wait only if a process sends them.
//! - Handlers that are installed without libc's functions get no entry.
//! - A signal may get two new handlers between the kernel's jump to an entry and the entry's next
//!   few instructions. Then the second new handler runs with the flags of the handler that was
//!   installed before both.
//!
//! Source: sigaction(2), signal(7) "Interruption of system calls"; System V ABI, AMD64 supplement.

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use libc::{SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP};
use libc::{c_int, c_long, c_void, sighandler_t};
use std::ptr;

use crate::next::{Next, next};
use crate::process::{self, BlockedSignals, PageLock};
use crate::user;

/// Signal numbers are below this.
const SIGNALS: usize = 65;

/// `SIG_HOLD` of sigset(3), which like `SIG_ERR` is a constant and not the address of a handler.
const SIG_HOLD: sighandler_t = 2;

/// Signals whose handlers the library does not wrap with an entry (code of its own that runs
/// first). Instructions raise the first six, and programs cannot handle the other two.
const LEFT_ALONE: [c_int; 8] = [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP];

/// The number of entries, and of their tables of handlers.
const ENTRIES: usize = 2;

/// The program's handlers by signal. Each entry (the library's code that runs before a handler) has
/// a table of its own.
static HANDLERS: [[AtomicPtr<c_void>; SIGNALS]; ENTRIES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS] }; ENTRIES];

/// A function that takes a signal and a handler, and returns the previous handler.
type Replace = Next<unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t>;

/// The argument of rt_sigaction(2). Analogous to Linux's `struct kernel_sigaction`.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Ends the wait that the signal has interrupted, if any. Returns the program's handler.
extern "C" fn arrived<const ENTRY: usize>(signal: c_int) -> *mut c_void {
    // `arrived` runs in a signal handler. It takes no lock, allocates nothing, makes no system call
    // and keeps errno.
    if let Some(task) = process::known_task() {
        task.interrupt_own();
    }
    // ORDERING: Relaxed. The value is an address of code, and no data is published with it.
    HANDLERS[ENTRY][signal as usize % SIGNALS].load(Ordering::Relaxed)
}

/// An entry, which the kernel calls as the handler. It notes the signal, and jumps to the program's
/// handler.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn entry<const INDEX: usize>(_: c_int, _: *mut c_void, _: *mut c_void) {
    std::arch::naked_asm!(
        // The three pushes and the return address take 32 bytes, so the stack is aligned for the
        // call.
        "push rdi",
        "push rsi",
        "push rdx",
        "call {arrived}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        arrived = sym arrived::<INDEX>,
    )
}

/// An entry, which the kernel calls as the handler. It notes the signal, and calls the program's
/// handler.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C-unwind" fn entry<const INDEX: usize>(
    signal: c_int,
    siginfo: *mut c_void,
    machine: *mut c_void,
) {
    type Handler = unsafe extern "C-unwind" fn(c_int, *mut c_void, *mut c_void);
    // SAFETY: a program has installed this address as a handler.
    let handler = unsafe { std::mem::transmute::<*mut c_void, Handler>(arrived::<INDEX>(signal)) };
    // SAFETY: the kernel has passed these arguments for the handler.
    unsafe { handler(signal, siginfo, machine) }
}

/// Returns the addresses of the entries.
fn entries() -> [sighandler_t; ENTRIES] {
    [entry::<0> as *const (), entry::<1> as *const ()].map(<*const ()>::expose_provenance)
}

/// Returns the index of a signal in the tables of handlers, or none if the library leaves the
/// handlers of this signal alone.
fn cell(signal: c_int) -> Option<usize> {
    let index = usize::try_from(signal).ok()?;
    ((1..SIGNALS).contains(&index) && !LEFT_ALONE.contains(&signal)).then_some(index)
}

/// Begins a call that changes or reads the handler of `signal`. The library has two entries (code
/// that runs before a handler), each with a table of handlers. A new handler that is a function
/// goes into the table of the entry that is not installed now. Returns the lock of the tables,
/// which the caller holds until the change is made, and the address that the kernel must install.
fn begin(
    signal: c_int,
    cell: usize,
    handler: Option<sighandler_t>,
) -> ((Option<PageLock>, BlockedSignals), sighandler_t) {
    let lock = process::lock_tables();
    // A program that calls rt_sigaction(2) past the library sees the address of an entry (the
    // library's code before a handler). So `handler` may be such an address.
    let [first, second] = entries();
    let words = [libc::SIG_DFL, libc::SIG_IGN, SIG_HOLD, libc::SIG_ERR, first, second];
    let Some(function) = handler.filter(|handler| !words.contains(handler)) else {
        return (lock, handler.unwrap_or(0));
    };
    if !process::is_own() {
        return (lock, function);
    }
    let free = usize::from(installed_now(signal) == Some(first));
    // ORDERING: Relaxed. See `arrived`.
    HANDLERS[free][cell].store(ptr::with_exposed_provenance_mut(function), Ordering::Relaxed);
    (lock, entries()[free])
}

/// Returns the program's handler for `handler`. The kernel has reported `handler`, which may be an
/// entry of this library (its code before the program's handler).
fn told(cell: usize, handler: sighandler_t) -> sighandler_t {
    match entries().iter().position(|entry| *entry == handler) {
        // ORDERING: Relaxed. See `arrived`.
        Some(entry) => HANDLERS[entry][cell].load(Ordering::Relaxed).expose_provenance(),
        None => handler,
    }
}

/// sigaction(2).
///
/// # Safety
///
/// The caller meets the requirements of the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    action: *const libc::sigaction,
    before: *mut libc::sigaction,
) -> c_int {
    let Some(next) = SIGACTION.found() else { return -1 };
    let Some(cell) = cell(signal) else {
        // SAFETY: the caller's promise.
        return unsafe { next(signal, action, before) };
    };
    // SAFETY: the caller meets the requirements of sigaction(2), so the action can be read. It is
    // copied, since the call may overwrite it with its result.
    let ours = (!action.is_null()).then(|| unsafe { action.read() });
    // SAFETY: the caller meets the requirements, and the copied action lives during the call.
    let call = |given| c_long::from(unsafe { next(signal, given, before) });
    // SAFETY: the call fills `before` if it succeeds.
    unsafe { change(signal, cell, ours, before, |action| &mut action.sa_sigaction, call) as c_int }
}

/// rt_sigaction(2) by number. `call` makes the system call with a given action.
///
/// # Safety
///
/// The caller meets the requirements of rt_sigaction(2).
pub(crate) unsafe fn by_number(
    signal: c_int,
    action: usize,
    before: usize,
    call: impl FnOnce(usize) -> c_long,
) -> c_long {
    let Some(cell) = cell(signal) else { return call(action) };
    // SAFETY: any bits are a valid action. The action is copied, since the call may overwrite it.
    let read = (action != 0).then(|| unsafe { user::read::<KernelAction>(action) });
    // If the action cannot be read, the kernel returns the error.
    let Ok(ours) = read.transpose() else { return call(action) };
    let before = ptr::with_exposed_provenance_mut::<KernelAction>(before);
    let call = |given: *const KernelAction| call(given.expose_provenance());
    // SAFETY: the call fills `before` if it succeeds.
    unsafe { change(signal, cell, ours, before, |action| &mut action.handler, call) }
}

/// Changes or reads the action of a signal by `call`. `handler` returns the field of an action that
/// contains the handler.
///
/// # Safety
///
/// If `call` returns 0 and `before` is not null, `call` has filled `before`.
unsafe fn change<A>(
    signal: c_int,
    cell: usize,
    mut ours: Option<A>,
    before: *mut A,
    handler: fn(&mut A) -> &mut sighandler_t,
    call: impl FnOnce(*const A) -> c_long,
) -> c_long {
    let wanted = ours.as_mut().map(|ours| *handler(ours));
    let (_lock, installed) = begin(signal, cell, wanted);
    if let Some(ours) = &mut ours {
        *handler(ours) = installed;
    }
    let result = call(ours.as_ref().map_or(ptr::null(), ptr::from_ref));
    if result == 0 && !before.is_null() {
        // SAFETY: the call has filled it.
        let told = handler(unsafe { &mut *before });
        *told = self::told(cell, *told);
    }
    result
}

/// Returns the handler that the kernel has installed for a signal.
fn installed_now(signal: c_int) -> Option<sighandler_t> {
    let next = SIGACTION.found()?;
    // SAFETY: zeroes are a valid action.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one action.
    let asked = unsafe { next(signal, ptr::null(), &raw mut now) };
    (asked == 0).then_some(now.sa_sigaction)
}

/// Installs a handler with a function that takes only a signal and a handler.
///
/// # Safety
///
/// The caller meets the requirements of the C library's function.
unsafe fn replace(next: &Replace, signal: c_int, handler: sighandler_t) -> sighandler_t {
    let is_sigset = ptr::eq(next, &SIGSET);
    let Some(next) = next.found() else { return libc::SIG_ERR };
    let Some(cell) = cell(signal) else {
        // SAFETY: the caller's promise.
        return unsafe { next(signal, handler) };
    };
    let (lock, installed) = begin(signal, cell, Some(handler));
    // sigset(3) also changes the signal mask. The release of the lock restores the signal mask, so
    // for sigset(3) the lock is released before the call.
    let lock = (!is_sigset).then_some(lock);
    // SAFETY: the caller's promise.
    let before = unsafe { next(signal, installed) };
    let program = told(cell, before);
    drop(lock);
    program
}

/// Defines the functions that take a signal and a handler, and looks up those of the C library.
macro_rules! replacing {
    ($($table:ident $name:ident)*) => {
        next! {
            SIGACTION: fn sigaction(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
            $($table: fn $name(c_int, sighandler_t) -> sighandler_t;)*
        }
        $(
            /// Calls the C library's function of this name. Installs an entry (code of this library
            /// that runs first) if `handler` is a function.
            ///
            /// # Safety
            ///
            /// The caller meets the requirements of the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(signal: c_int, handler: sighandler_t) -> sighandler_t {
                // SAFETY: the caller's promise.
                unsafe { replace(&$table, signal, handler) }
            }
        )*
    };
}

replacing! {
    SIGNAL signal
    BSD_SIGNAL bsd_signal
    SSIGNAL ssignal
    SYSV_SIGNAL sysv_signal
    SYSV_SIGNAL_2 __sysv_signal
    SIGSET sigset
}
