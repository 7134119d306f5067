//! The calls of this library: which task makes a call, and how many calls a thread is in.
//!
//! A signal handler may interrupt a call and end the process. The thread then holds the locks of
//! the call, and applying undo would deadlock. So each thread counts the calls that it is in. If a
//! thread in a call ends the process, the recovery of the namespace applies undo.
//!
//! A handler may leave the interrupted call by siglongjmp(3). Before the handler ran,
//! `Task::interrupt_own` has ended the wait of that call. But the thread still counts the call, and
//! the call's wait node (its entry in a wait queue) stays in use. So at the end of such a process,
//! too, the recovery of the namespace (by another process) applies undo. It also frees the node.

use corewalk_ipc::Task;
use rustix::io::Errno;
use std::cell::Cell;

use crate::errno::{self, Answer};
use crate::process;

thread_local! {
    /// The number of calls that this thread is in. The number is above 1 if a handler makes a call
    /// inside of a call.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Makes a call as the task of this process. Returns its result as a C function does. A panic in
/// `call` aborts the process (guarantee P.1), so it cannot leave `DEPTH` too high.
#[inline]
pub(crate) fn make<T: Answer>(call: impl FnOnce(&'static Task) -> Result<T, Errno>) -> T {
    let outer = DEPTH.get();
    DEPTH.set(outer + 1);
    let answer = errno::answer(process::task().and_then(call));
    DEPTH.set(outer);
    answer
}

/// Returns true if the caller, a signal handler, has interrupted a call of this thread.
pub(crate) fn is_interrupted() -> bool {
    DEPTH.get() != 0
}
