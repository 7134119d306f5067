//! The wait of a thread, for a signal handler that interrupts it.
//!
//! A call notes the node of its wait here. [`Task::interrupt_own`](crate::Task::interrupt_own)
//! marks that node, and then no call grants it anything any more. In the kernel, too, a wait is
//! over before a handler runs.
//!
//! A handler may make a call that waits itself. The node of that call takes the place of the
//! interrupted one, which has its mark already, until the inner wait ends.
//!
//! # Waits that a handler leaves
//!
//! A handler may leave a wait by siglongjmp(3). Its node stays in the queue until the task ends. It
//! has its mark, so it takes nothing from other calls. It stays the node of this task, so a second
//! mark does no harm.
//!
//! Source: signal-safety(7), sigsetjmp(3).

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::unmodelled::{Ordering, compiler_fence};
use std::cell::Cell;

thread_local! {
    /// The number of signal handlers that have run.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };

    /// The line of the innermost node of this thread, or 0.
    static WAIT: Cell<u32> = const { Cell::new(0) };
}

/// Notes that a signal handler runs, and returns the node that it has interrupted, or 0.
pub(crate) fn arrived() -> u32 {
    SIGNALS.set(SIGNALS.get().wrapping_add(1));
    WAIT.get()
}

/// Returns a number that changes when a signal handler runs in this thread.
pub(crate) fn count() -> u64 {
    SIGNALS.get()
}

/// Notes that the thread waits with `node`, or with none for 0. Returns the node before.
///
/// The threads of a model share one word, and no handler interrupts them. There it stays 0.
pub(crate) fn wait_with(node: u32) -> u32 {
    if IS_MODEL {
        return 0;
    }
    let before = WAIT.replace(node);
    // ORDERING: SeqCst. A handler of this thread that runs from here on finds the node.
    compiler_fence(Ordering::SeqCst);
    before
}
