//! Which calls a thread is in.
//!
//! A signal handler may interrupt a call, and end the process. What the call has locked is then
//! locked by the handler's own thread: to apply undo there would wait for ever. A count per thread
//! says so, and the end is left to the recovery of the namespace.
//!
//! Source: signal-safety(7).

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call under way in this thread, until it is dropped.
pub(crate) struct Call(());

impl Call {
    #[inline]
    pub(crate) fn enter() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self(())
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get().saturating_sub(1)));
    }
}

/// Returns true if this thread is inside of a call, which a signal handler has interrupted.
pub(crate) fn is_interrupted() -> bool {
    DEPTH.with(|depth| depth.get() != 0)
}
