//! Which calls a thread is in.
//!
//! A signal handler may interrupt a call, and end the process. What the call has locked is then
//! locked by the handler's own thread: to apply undo there would wait for ever. So each thread knows where on its stack
//! the innermost of its calls began, and the end is left to the recovery of the namespace if there is one.
//!
//! # Calls that nobody returns to
//!
//! A handler may also jump out of the call that it has interrupted (siglongjmp(3)). The kernel has ended the call by then;
//! here it is still in its queue, and would be granted what nobody takes. The thread's next call finds that, or the end of the process: calls that a
//! handler makes begin below the call that was interrupted, by a frame of a signal at least, or on a stack for handlers. What begins anywhere else has
//! that call's stack, so nobody returns to it, and its wait is taken back. Calls on stacks that the program has made
//! itself are left to the end of the process: a handler may have gone over to one with swapcontext(3).
//!
//! # What it refuses
//!
//! - To tell a call that a handler makes from one further down the stack after a jump: if the next call is that, the one after it
//!   may find the wait.
//!
//! Source: signal-safety(7), sigsetjmp(3), sigaltstack(2); System V ABI, AMD64 supplement.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use crate::process;

/// Bytes between a call and one that a handler makes beside it, at least: what the kernel saves (the registers and 512 bytes
/// of the floating point unit), and frames of this library.
const FRAME_BYTES: usize = 1024;

thread_local! {
    /// Where the innermost call of this thread began, or 0.
    static INNERMOST: Cell<usize> = const { Cell::new(0) };
}

/// A call under way in this thread, until it is dropped.
pub(crate) struct Call {
    outer: usize,
}

impl Call {
    #[inline]
    pub(crate) fn enter() -> Self {
        let here = here();
        let outer = INNERMOST.with(|innermost| innermost.replace(here));
        Self { outer: if outer == 0 { 0 } else { still_there(outer, here) } }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        INNERMOST.with(|innermost| innermost.set(self.outer));
    }
}

/// Returns true if this thread is inside of a call, which a signal handler has interrupted.
pub(crate) fn is_interrupted() -> bool {
    let outer = INNERMOST.with(Cell::get);
    outer != 0 && still_there(outer, here()) != 0
}

/// Returns where the stack is, more or less.
#[inline(always)]
fn here() -> usize {
    let local = 0u8;
    ptr::from_ref(std::hint::black_box(&local)).addr()
}

/// Returns the call that began at `outer` if it is under way, and 0 if a handler has left it.
#[cold]
fn still_there(outer: usize, here: usize) -> usize {
    if !is_left(outer, here, handler_stack(), |place| own_stack().contains(place)) {
        return outer;
    }
    INNERMOST.with(|innermost| innermost.set(if innermost.get() == outer { 0 } else { here }));
    if let Some(task) = process::own_task() {
        task.abandon_own_wait();
    }
    0
}

/// The stack for handlers of a thread.
struct HandlerStack {
    start: usize,
    end: usize,
    is_in_use: bool,
}

fn handler_stack() -> HandlerStack {
    let mut stack = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 };
    // SAFETY: there is room for the answer.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    let start = stack.ss_sp.addr();
    HandlerStack {
        start,
        end: start.saturating_add(stack.ss_size),
        is_in_use: stack.ss_flags & libc::SS_ONSTACK != 0,
    }
}

/// Returns where this thread's stack is that the kernel or the C library has made; nothing if they do not say.
#[cold]
fn own_stack() -> Range<usize> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: it has no conditions.
    let this = unsafe { libc::pthread_self() };
    // SAFETY: the thread is this one, and there is room for the answer.
    if unsafe { libc::pthread_getattr_np(this, attributes.as_mut_ptr()) } != 0 {
        return 0..0;
    }
    let (mut start, mut len) = (ptr::null_mut(), 0);
    let filled = attributes.as_mut_ptr();
    // SAFETY: the call above has filled the attributes in.
    let got = unsafe { libc::pthread_attr_getstack(filled, &raw mut start, &raw mut len) };
    // SAFETY: as above; they are used no more after that.
    unsafe { libc::pthread_attr_destroy(filled) };
    if got == 0 { start.addr()..start.addr().saturating_add(len) } else { 0..0 }
}

/// Returns true if who is at `here` on the stack cannot be a handler that has interrupted a call which began at `outer`.
///
/// Two places say something only if they are on one stack, for which both have to be on the thread's own: a handler
/// may have gone over to a stack that the program has made (swapcontext(3)), and may come back.
fn is_left(
    outer: usize,
    here: usize,
    handlers: HandlerStack,
    is_on_own: impl Fn(&usize) -> bool,
) -> bool {
    let is_outer_of_handler = (handlers.start..handlers.end).contains(&outer);
    if is_outer_of_handler != handlers.is_in_use {
        // A handler on its own stack may have interrupted a call on the other one, but not the other way round.
        return is_outer_of_handler && is_on_own(&here);
    }
    let is_above = here.saturating_add(FRAME_BYTES) > outer;
    is_above && (handlers.is_in_use || is_on_own(&outer) && is_on_own(&here))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_is_left_unless_a_handler_can_have_interrupted_it() {
        let stack = |is_in_use| HandlerStack { start: 0x1000, end: 0x9000, is_in_use };
        for (outer, here, is_in_use, expected) in [
            // The same place, or above it; a little below it; a handler.
            (0x20000, 0x20000, false, true),
            (0x20000, 0x20400, false, true),
            (0x20000, 0x1ff00, false, true),
            (0x20000, 0x1f000, false, false),
            // A handler on its stack has interrupted a call, or a handler's.
            (0x20000, 0x8000, true, false),
            (0x500, 0x8000, true, false),
            (0x8000, 0x4000, true, false),
            (0x8000, 0x8000, true, true),
            // A handler was left.
            (0x8000, 0x20000, false, true),
            (0x8000, 0x500, false, true),
        ] {
            let is_left = is_left(outer, here, stack(is_in_use), |_| true);
            assert_eq!(is_left, expected, "{outer:x} {here:x} {is_in_use}");
        }
    }

    /// Stacks that the program has made say nothing: a handler may have gone over to one, and come back.
    #[test]
    fn call_on_another_stack_is_not_left() {
        let none = || HandlerStack { start: 0, end: 0, is_in_use: false };
        let own = |place: &usize| (0x10000..0x30000).contains(place);
        for (outer, here) in [(0x20000, 0x90000), (0x80000, 0x20000), (0x80000, 0x90000)] {
            assert!(!is_left(outer, here, none(), own), "{outer:x} {here:x}");
        }
        assert!(is_left(0x20000, 0x20400, none(), own));
        let own = own_stack();
        assert!(own.contains(&here()), "{own:x?}");
    }
}
