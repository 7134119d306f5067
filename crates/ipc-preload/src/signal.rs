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
//! # What it refuses
//!
//! - Handlers for `SIGSEGV`, `SIGBUS`, `SIGFPE`, `SIGILL`, `SIGTRAP` and `SIGSYS` are left alone: they belong to
//!   instructions, and interrupt no wait unless somebody sends them.
//! - Handlers that are installed without libc's functions are not seen.
//! - Two threads that install handlers of the same signal at the same time may leave the handler of one with
//!   the flags of the other.
//!
//! Source: sigaction(2), signal(7) "Interruption of system calls"; System V ABI, AMD64 supplement.

use corewalk_sync::primitives::atomic::{AtomicPtr, Ordering};
use libc::{c_int, c_long, c_void, sighandler_t};
use std::ptr;

use crate::next::Next;
use crate::process;

/// Signals are below this.
const SIGNALS: usize = 65;

/// `SIG_HOLD` of sigset(3), the highest word below `SIG_ERR` that is no address.
const SIG_HOLD: sighandler_t = 2;

/// The handlers that programs have installed.
static HANDLERS: [AtomicPtr<c_void>; SIGNALS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; SIGNALS];

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
extern "C" fn arrived(signal: c_int) -> *mut c_void {
    // No lock, no allocation, no system call, and errno stays as it is.
    if let Some(task) = process::known_task() {
        task.interrupt_own();
    }
    // ORDERING: Relaxed. An address of code; nothing is published with it.
    HANDLERS[signal as usize % SIGNALS].load(Ordering::Relaxed)
}

/// What the kernel calls: notes the signal, and jumps to the handler as if nothing had been.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn entry(signal: c_int, siginfo: *mut c_void, machine: *mut c_void) {
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
        arrived = sym arrived,
    )
}

/// What the kernel calls: notes the signal, and calls the handler.
#[cfg(not(target_arch = "x86_64"))]
unsafe extern "C-unwind" fn entry(signal: c_int, siginfo: *mut c_void, machine: *mut c_void) {
    type Handler = unsafe extern "C-unwind" fn(c_int, *mut c_void, *mut c_void);
    // SAFETY: a program has installed this address as a handler.
    let handler = unsafe { std::mem::transmute::<*mut c_void, Handler>(arrived(signal)) };
    // SAFETY: these are what the kernel has given.
    unsafe { handler(signal, siginfo, machine) }
}

fn entry_address() -> sighandler_t {
    (entry as *const ()).expose_provenance()
}

/// Returns where the handler of a signal is kept, or none if the signal is left alone.
fn cell(signal: c_int) -> Option<&'static AtomicPtr<c_void>> {
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
    HANDLERS.get(index)
}

/// A change of a handler: what is given to the kernel, and what the kernel tells.
struct Change {
    cell: &'static AtomicPtr<c_void>,
    before: *mut c_void,
    is_function: bool,
}

impl Change {
    /// Keeps the handler that is about to be installed, if it is a function; returns what to install.
    fn begin(
        cell: &'static AtomicPtr<c_void>,
        handler: Option<sighandler_t>,
    ) -> (Self, sighandler_t) {
        // The last is ours already: somebody was told of it by a call that we do not see.
        let words = [libc::SIG_DFL, libc::SIG_IGN, SIG_HOLD, libc::SIG_ERR, entry_address()];
        let function = handler.filter(|handler| !words.contains(handler));
        let before = match function {
            // ORDERING: Relaxed. See `arrived`.
            Some(handler) => {
                cell.swap(ptr::with_exposed_provenance_mut(handler), Ordering::Relaxed)
            }
            // ORDERING: Relaxed. As above.
            None => cell.load(Ordering::Relaxed),
        };
        let is_function = function.is_some();
        let installed = if is_function { entry_address() } else { handler.unwrap_or(0) };
        (Self { cell, before, is_function }, installed)
    }

    /// Returns the program's handler that was there before.
    fn told(&self, handler: sighandler_t) -> sighandler_t {
        if handler == entry_address() { self.before.expose_provenance() } else { handler }
    }

    /// Takes the change back: the kernel has refused it.
    fn take_back(&self) {
        if self.is_function {
            // ORDERING: Relaxed. See `arrived`.
            self.cell.store(self.before, Ordering::Relaxed);
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
    let (change, installed) = Change::begin(cell, ours.map(|ours| ours.sa_sigaction));
    if let Some(ours) = &mut ours {
        ours.sa_sigaction = installed;
    }
    let given = ours.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the caller's promise; the copy lives during the call.
    let result = unsafe { next(signal, given, before) };
    if result != 0 {
        change.take_back();
    } else if !before.is_null() {
        // SAFETY: the call has filled it.
        let told = unsafe { &mut (*before).sa_sigaction };
        *told = change.told(*told);
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
    let action = ptr::with_exposed_provenance::<KernelAction>(action);
    // SAFETY: the caller's promise; it is copied, since it may be where the answer goes.
    let mut ours = (!action.is_null()).then(|| unsafe { action.read() });
    let (change, installed) = Change::begin(cell, ours.map(|ours| ours.handler));
    if let Some(ours) = &mut ours {
        ours.handler = installed;
    }
    let result = call(ours.as_ref().map_or(0, |ours| ptr::from_ref(ours).expose_provenance()));
    if result != 0 {
        change.take_back();
    } else if before != 0 {
        let before = ptr::with_exposed_provenance_mut::<KernelAction>(before);
        // SAFETY: the call has filled it.
        let told = unsafe { &mut (*before).handler };
        *told = change.told(*told);
    }
    result
}

/// Installs a handler with one of the functions that take just that.
///
/// # Safety
///
/// That of the function.
unsafe fn replace(next: &Next, signal: c_int, handler: sighandler_t) -> sighandler_t {
    type Function = unsafe extern "C" fn(c_int, sighandler_t) -> sighandler_t;
    let Some(address) = next.found() else { return libc::SIG_ERR };
    // SAFETY: what the C library defines under this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
    let Some(cell) = cell(signal) else {
        // SAFETY: the caller's promise.
        return unsafe { next(signal, handler) };
    };
    let (change, installed) = Change::begin(cell, Some(handler));
    // SAFETY: the caller's promise.
    let before = unsafe { next(signal, installed) };
    if before == libc::SIG_ERR {
        change.take_back();
    }
    change.told(before)
}

/// Defines the functions that take a signal and a handler.
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
