//! The interposed sigaction(2) and related functions. A signal handler that interrupts an IPC call
//! ends the call's wait with `EINTR`.
//!
//! In the kernel, an IPC call queues itself and sleeps in one step. In this library the call is
//! queued first, and then sleeps by futex(2). A signal handler may run in between. It must prevent
//! the sleep, or the call would wait for ever.
//!
//! To prevent the sleep, the signal handler changes the futex word on which the call is about to
//! sleep. A counter of signals would not do: a signal may come after the call has read the counter.
//!
//! In place of each handler, the library installs an *entry*. An entry is a few instructions that
//! end the wait of an interrupted call, and then jump to the program's handler.
//!
//! The program's handler finds the registers, the stack and the return address as the kernel has
//! left them. So `siginfo`, the context, `SA_ONSTACK` and unwinding do not change. The flags and
//! the mask are the program's, and sigaction(2) returns the program's own handler.
//!
//! # Two entries
//! The library has two entries. Each entry has its own table, in which it finds the program's
//! handler for a signal. For each signal, at most one of the entries is installed. To change a
//! handler, a thread blocks all signals, takes the lock of the tables, and does this:
//! 1. It writes the new handler to the table of the entry that is not installed.
//! 2. It installs this entry with the new flags, by one system call.
//!
//! A signal that arrives before the new entry is installed runs the old handler with the old flags.
//! A later signal runs the new handler with the new flags.
//!
//! A child of vfork(2) has signal handlers of its own, but shares the tables with its parent. So in
//! such a child the library changes no table, and installs the program's handler without an entry.
//! That handler ends no wait.
//!
//! # Limits
//! - Handlers for `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP` and `SIGSYS` have no entry
//!   (the library's code before a handler), and end no wait. Instructions raise these signals; they
//!   interrupt a wait only if a process sends them.
//! - Handlers that are installed without libc's functions have no entry either.
//! - An entry reads its table a few instructions after the kernel has jumped to it. If a program
//!   installs two handlers in that time, the second one may run with the flags of the old handler.
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

/// The value `SIG_HOLD`, which sigset(3) accepts in place of a handler. Like `SIG_ERR`, it is not
/// the address of a function, so the library installs no entry for it.
const SIG_HOLD: sighandler_t = 2;

/// Signals whose handlers get no entry (code of this library that runs first). Instructions raise
/// the first six, and programs cannot handle the other two.
const LEFT_ALONE: [c_int; 8] = [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGKILL, SIGSTOP];

/// The number of entries, and of their tables of handlers.
const ENTRIES: usize = 2;

static HANDLERS: [[AtomicPtr<c_void>; SIGNALS]; ENTRIES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS] }; ENTRIES];

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

/// Ends the wait of the IPC call that the signal has interrupted, if any. Returns the address of
/// the program's handler.
extern "C" fn arrived<const ENTRY: usize>(signal: c_int) -> *mut c_void {
    // `arrived` runs in a signal handler. It takes no lock, allocates nothing, makes no system call
    // and keeps errno.
    if let Some(task) = process::known_task() {
        task.interrupt_own();
    }
    // ORDERING: Relaxed. The value is an address of code, and no data is published with it.
    HANDLERS[ENTRY][signal as usize % SIGNALS].load(Ordering::Relaxed)
}

/// The library's entry, which the kernel calls in place of the program's signal handler. It ends
/// the wait of an interrupted IPC call, and then jumps to the program's handler.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn entry<const INDEX: usize>(_: c_int, _: *mut c_void, _: *mut c_void) {
    std::arch::naked_asm!(
        // Three pushes and the return address keep the stack aligned for the call.
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

fn cell(signal: c_int) -> Option<usize> {
    let index = usize::try_from(signal).ok()?;
    ((1..SIGNALS).contains(&index) && !LEFT_ALONE.contains(&signal)).then_some(index)
}

/// Prepares a change of the handler of `signal`. Returns the guard of the tables, and the address
/// that the caller installs. The caller keeps the guard until the kernel has installed the address.
///
/// If `handler` is a function, the address is that of an entry (the library's code before a
/// handler). This is the entry that is not installed now, and `handler` is written to its table.
/// Until the caller installs it, a signal finds the old handler in the other table.
fn begin(
    signal: c_int,
    cell: usize,
    handler: Option<sighandler_t>,
) -> ((Option<PageLock>, BlockedSignals), sighandler_t) {
    let lock = process::lock_tables();
    // A program that calls rt_sigaction(2) without this library may get the address of an entry
    // (the library's code before a handler). If it passes this address as `handler`, install it
    // unchanged.
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

/// Translates an entry of this library back to the program's handler.
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
    // SAFETY: the caller meets the requirements of sigaction(2), and the copied action lives during
    // the call.
    let call = |given| c_long::from(unsafe { next(signal, given, before) });
    // SAFETY: the call fills `before` if it succeeds.
    unsafe { change(signal, cell, ours, before, |action| &mut action.sa_sigaction, call) as c_int }
}

/// Handles the system call rt_sigaction(2) that a program makes through syscall(2). `call` makes
/// the system call with the action that it gets.
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
    // SAFETY: each value of the bytes is a valid `KernelAction`. The action is copied, because the
    // system call may overwrite it.
    let read = (action != 0).then(|| unsafe { user::read::<KernelAction>(action) });
    // If the action cannot be read, the kernel returns the error.
    let Ok(ours) = read.transpose() else { return call(action) };
    let before = ptr::with_exposed_provenance_mut::<KernelAction>(before);
    let call = |given: *const KernelAction| call(given.expose_provenance());
    // SAFETY: the call fills `before` if it succeeds.
    unsafe { change(signal, cell, ours, before, |action| &mut action.handler, call) }
}

/// Changes the action of a signal by `call`. In the action `ours`, an entry replaces the program's
/// handler. In the previous action `before`, the program's handler replaces an entry.
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

/// Changes the handler of a signal by `next`, with an entry in place of the program's handler.
/// Returns the program's previous handler.
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
    // Release the lock now: its drop restores the signal mask, which would undo the change that
    // sigset(3) makes to the mask.
    let lock = (!is_sigset).then_some(lock);
    // SAFETY: the caller's promise.
    let before = unsafe { next(signal, installed) };
    let program = told(cell, before);
    drop(lock);
    program
}

macro_rules! replacing {
    ($($table:ident $name:ident)*) => {
        next! {
            SIGACTION: fn sigaction(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
            $($table: fn $name(c_int, sighandler_t) -> sighandler_t;)*
        }
        $(
            /// Calls the function of the same name in the C library. If `handler` is a function,
            /// installs an entry in its place. The entry is code of this library that ends the wait
            /// of an IPC call, and then jumps to `handler`.
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
