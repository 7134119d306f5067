//! Records which wait the calling thread is in, so that a signal handler can end that wait.
//!
//! A call that waits records its wait node in a thread-local variable. A signal handler calls
//! [`Task::interrupt_own`](crate::Task::interrupt_own), which marks that node as interrupted. From
//! then on, no other task completes the call, and it will return `EINTR`. So the outcome of the
//! wait is decided before the handler continues, as in the kernel.
//!
//! A handler may itself make a call that waits. Meanwhile the thread-local variable `WAIT` contains
//! the wait node of the inner call. So the handler should call `interrupt_own` first, to end the
//! interrupted call.
//!
//! # Waits that a handler leaves
//!
//! A handler may leave a wait by siglongjmp(3). The wait node of that wait then stays in its queue
//! until the task ends, and no other task gets the node. A later call of `interrupt_own` may mark
//! this node once more, which does no harm.
//!
//! Source: signal-safety(7), sigsetjmp(3).

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::unmodelled::{Ordering, compiler_fence};
use std::cell::Cell;

thread_local! {
    /// The number of signal handlers that have run.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };

    /// The innermost wait node of this thread, or 0 if the thread does not wait.
    static WAIT: Cell<u32> = const { Cell::new(0) };
}

/// Notes that a signal handler runs. Returns the wait node of the interrupted call, or 0 if no call
/// was waiting.
pub(crate) fn arrived() -> u32 {
    SIGNALS.set(SIGNALS.get().wrapping_add(1));
    WAIT.get()
}

/// Returns the number of calls of `arrived` by signal handlers of this thread. A change of the
/// number shows that a handler has run.
pub(crate) fn count() -> u64 {
    SIGNALS.get()
}

/// Records `node` as the wait node of this thread. Returns the node recorded before, or 0 for none.
///
/// In a loom model, this function does nothing: the threads of a model would share `WAIT`.
pub(crate) fn wait_with(node: u32) -> u32 {
    if IS_MODEL {
        return 0;
    }
    let before = WAIT.replace(node);
    // ORDERING: SeqCst. This is a compiler fence: a signal handler that runs in this thread after
    // the fence finds the wait node.
    compiler_fence(Ordering::SeqCst);
    before
}
