//! The calls of this library: the task that makes them, and the calls that a thread is in.
//!
//! A signal handler may interrupt a call and end the process. The thread of the handler then holds
//! the locks of the call, and to apply undo there would wait for ever. So each thread counts the
//! calls that it is in. If the thread is in a call, the end is left to the recovery of the
//! namespace.
//!
//! A handler may leave the interrupted call by siglongjmp(3). Its wait is over by then
//! (`Task::interrupt_own`), but the call stays counted, and its node stays in use. So the end of
//! the process is left to recovery then, too. Recovery frees the node.

use corewalk_ipc::Task;
use rustix::io::Errno;
use std::cell::Cell;

use crate::errno::{self, Answer};
use crate::process;

thread_local! {
    /// The number of calls that this thread is in: more than one if a handler makes a call.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// A call under way in this thread, until it is dropped.
struct Call {
    outer: u32,
}

impl Call {
    #[inline]
    fn enter() -> Self {
        let outer = DEPTH.get();
        DEPTH.set(outer + 1);
        Self { outer }
    }
}

impl Drop for Call {
    #[inline]
    fn drop(&mut self) {
        DEPTH.set(self.outer);
    }
}

/// Makes a call as the task of this process, and returns its result as C has it.
#[inline]
pub(crate) fn make<T: Answer>(call: impl FnOnce(&'static Task) -> Result<T, Errno>) -> T {
    let _call = Call::enter();
    errno::answer(process::task().and_then(call))
}

/// Returns true if this thread is inside of a call, which a signal handler has interrupted.
pub(crate) fn is_interrupted() -> bool {
    DEPTH.get() != 0
}
