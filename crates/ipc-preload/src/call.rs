//! The calls that a thread is in.
//!
//! A signal handler may interrupt a call and end the process. The thread of the handler then holds
//! the locks of the call, and to apply undo there would wait for ever. So each thread knows where
//! on its stack its calls began. If the thread is in a call, the end is left to the recovery of the
//! namespace.
//!
//! # Calls that a handler jumps out of
//!
//! A handler may leave the call that it has interrupted (siglongjmp(3)). The kernel has ended the
//! call by then. Here the call is still in its queue, and would be granted semaphores or a message
//! that no caller takes. The next call of the thread finds it, or the end of the process.
//!
//! A call that a handler makes begins below the interrupted call, by a signal frame at least, or on
//! a stack for handlers. A call that begins anywhere else uses the stack of the interrupted call
//! again. So no thread returns to that call, and its wait is cancelled. Calls on stacks that the
//! program has made stay until the process ends, because swapcontext(3) may return to them.
//!
//! The interrupted call may be that of a handler which had interrupted another call, and the jump
//! may have left both. So the interrupted calls are kept as well, each with the number of waits of
//! the thread at that time. They are checked from the innermost outwards. They are kept outside of
//! the stack, which later frames overwrite.
//!
//! # Places
//!
//! | bits | field |
//! |---|---|
//! | 0-3 | level: how many calls were interrupted for this one |
//! | 4-63 | where it began on the stack, rounded down |
//!
//! 0 is no call. The list holds the place of the call at each level below the innermost one.
//!
//! # Limits
//!
//! - A call of a handler looks like a call further down the stack after a jump. If the next call is
//!   that, the call after it may find the wait.
//! - Calls for which more than [`LEVELS`] were interrupted are not known.

use corewalk_ipc::Task;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr;

use crate::process;

/// The least number of bytes between a call and a call of a handler that interrupts it: the kernel
/// saves the registers and 512 bytes of the floating point unit, and this library has frames.
const FRAME_BYTES: usize = 1024;

/// Calls that can have been interrupted for another.
const LEVELS: usize = 15;

const LEVEL_MASK: usize = 0xf;

thread_local! {
    /// The place of the innermost call of this thread, or 0.
    static INNERMOST: Cell<usize> = const { Cell::new(0) };

    /// The interrupted calls by level: the place, and the number of waits of the thread then.
    static INTERRUPTED: [Cell<(usize, usize)>; LEVELS] =
        const { [const { Cell::new((0, 0)) }; LEVELS] };
}

/// A call under way in this thread, until it is dropped.
pub(crate) struct Call {
    /// Its own place, or that of the call around it if it is not known.
    place: usize,
    outer: usize,
}

impl Call {
    #[inline]
    pub(crate) fn enter() -> Self {
        let here = here() & !LEVEL_MASK;
        let innermost = INNERMOST.get();
        if innermost != 0 {
            return Self::enter_beside(innermost, here);
        }
        INNERMOST.set(here);
        Self { place: here, outer: 0 }
    }

    /// Enters a call of a handler that has interrupted another, or one after a call that was left.
    #[cold]
    fn enter_beside(innermost: usize, here: usize) -> Self {
        let outer = still_there(innermost, here);
        let level = level_above(outer);
        if level > LEVELS {
            return Self { place: outer, outer };
        }
        if outer != 0 {
            INTERRUPTED.with(|calls| calls[level - 1].set((outer, Task::own_waits())));
        }
        // Last: a handler that comes before has found the calls as they were, and leaves them so.
        let place = here | level;
        INNERMOST.set(place);
        Self { place, outer }
    }

    /// Takes back the waits of calls that have begun since, which handlers have left.
    #[cold]
    fn end_inner(&self, innermost: usize) {
        let level = self.place & LEVEL_MASK;
        let here = here() & !LEVEL_MASK;
        let is_on_own = |place: &usize| own_stack().contains(place);
        // One on a stack of the program's own may go on.
        if innermost & LEVEL_MASK <= level
            || !is_left(innermost & !LEVEL_MASK, here, handler_stack(), is_on_own)
        {
            return;
        }
        let (_, waits) = INTERRUPTED.with(|calls| calls[level].get());
        if let Some(task) = process::own_task() {
            task.abandon_own_waits(waits);
        }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        let innermost = INNERMOST.replace(self.outer);
        if innermost != self.place {
            self.end_inner(innermost);
        }
    }
}

/// Returns the level of a call for which that at `outer` was interrupted.
fn level_above(outer: usize) -> usize {
    if outer == 0 { 0 } else { (outer & LEVEL_MASK) + 1 }
}

/// Returns true if this thread is inside of a call, which a signal handler has interrupted.
pub(crate) fn is_interrupted() -> bool {
    let innermost = INNERMOST.get();
    if innermost == 0 {
        return false;
    }
    let outer = still_there(innermost, here() & !LEVEL_MASK);
    INNERMOST.set(outer);
    outer != 0
}

/// Returns where the stack is, more or less.
#[inline(always)]
fn here() -> usize {
    let local = 0u8;
    ptr::from_ref(std::hint::black_box(&local)).addr()
}

/// Returns the innermost call that is under way, from that at `innermost` outwards, or 0. Cancels
/// the waits of calls that a handler has left.
#[cold]
fn still_there(innermost: usize, here: usize) -> usize {
    let mut outer = innermost;
    let is_on_own = |place: &usize| own_stack().contains(place);
    while outer != 0 && is_left(outer & !LEVEL_MASK, here, handler_stack(), is_on_own) {
        let level = outer & LEVEL_MASK;
        // To a handler that comes meanwhile this is a call like the one that was left.
        INNERMOST.set(here | level);
        let none = (0, 0);
        let (next, waits) =
            if level == 0 { none } else { INTERRUPTED.with(|calls| calls[level - 1].get()) };
        if let Some(task) = process::own_task() {
            task.abandon_own_waits(waits);
        }
        outer = next;
    }
    outer
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

/// Returns the stack that the kernel or the C library has made for this thread; an empty range if
/// they do not tell.
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

/// Returns true if a call at `here` on the stack cannot be that of a handler which has interrupted
/// a call that began at `outer`.
///
/// Two places can be compared only on one stack, so both have to be on the thread's own. A handler
/// may have switched to a stack that the program has made (swapcontext(3)), and may come back.
fn is_left(
    outer: usize,
    here: usize,
    handlers: HandlerStack,
    is_on_own: impl Fn(&usize) -> bool,
) -> bool {
    let is_outer_of_handler = (handlers.start..handlers.end).contains(&outer);
    if is_outer_of_handler != handlers.is_in_use {
        // A handler on its own stack may have interrupted a call on the other stack. The reverse
        // is not possible.
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

    /// Places on stacks that the program has made tell nothing: a handler may switch to one and
    /// back.
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
