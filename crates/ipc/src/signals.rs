//! The wait of the calling thread, so that a signal handler that interrupts it can end it.
//!
//! A call notes the node of its wait in a variable of its thread.
//! [`Task::interrupt_own`](crate::Task::interrupt_own) marks that node, and from then on no call
//! grants it anything. So the wait is over before the handler continues, as in the kernel.
//!
//! A handler may make a call that waits itself. Until that inner wait ends, its node replaces the
//! node of the interrupted call in the variable. The node of the interrupted call is marked
//! already.
//!
//! # Waits that a handler leaves
//!
//! A handler may leave a wait by siglongjmp(3). The node of that wait stays in the queue until the
//! task ends. The node is marked, so other calls grant it nothing. No other task gets the node, so
//! a second mark does no harm.
//!
//! Source: signal-safety(7), sigsetjmp(3).

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::unmodelled::{Ordering, compiler_fence};
use std::cell::Cell;

thread_local! {
    /// The number of signal handlers that have run.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };

    /// The line of the innermost wait node of this thread, or 0.
    static WAIT: Cell<u32> = const { Cell::new(0) };
}

/// Counts the signal handler that is running. Returns the line of the wait node of the interrupted
/// call, or 0.
pub(crate) fn arrived() -> u32 {
    SIGNALS.set(SIGNALS.get().wrapping_add(1));
    WAIT.get()
}

/// Returns a number that changes when a signal handler runs in this thread.
pub(crate) fn count() -> u64 {
    SIGNALS.get()
}

/// Sets the node with which the thread waits, or 0 for none. Returns the previous node.
///
/// In a loom model the variable stays 0: the threads of a model would share it, and no handler
/// interrupts them.
pub(crate) fn wait_with(node: u32) -> u32 {
    if IS_MODEL {
        return 0;
    }
    let before = WAIT.replace(node);
    // ORDERING: SeqCst. A compiler fence: a signal handler that runs in this thread after the fence
    // finds the node.
    compiler_fence(Ordering::SeqCst);
    before
}
