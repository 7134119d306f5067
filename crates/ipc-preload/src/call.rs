//! The entry to every IPC call of this library. It finds the task (the process's entry in the
//! namespace), and counts the unfinished calls of each thread.
//!
//! A signal handler may interrupt an IPC call and end the process. The thread then still holds the
//! locks of that call, and cannot apply the undo (`SEM_UNDO`) of the process. So each thread counts
//! its unfinished calls. If the process ends while that count is not 0, another process applies the
//! undo when it recovers the namespace.
//!
//! A handler may also leave the interrupted call by siglongjmp(3), after `Task::interrupt_own` has
//! ended its wait. The thread still counts that call as unfinished. So the recovery of the
//! namespace applies the undo of the process, and frees the call's entry in the wait queue.

use corewalk_ipc::Task;
use rustix::io::Errno;
use std::cell::Cell;

use crate::errno::{self, Answer};
use crate::process;

thread_local! {
    /// The number of unfinished IPC calls of this thread. It is above 1 if a signal handler has
    /// interrupted a call and makes a call itself.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Makes an IPC call: passes the process's task to `call`, and returns the result in the form of C.
/// A panic in `call` aborts the process (guarantee P.1 of this library).
#[inline]
pub(crate) fn make<T: Answer>(call: impl FnOnce(&'static Task) -> Result<T, Errno>) -> T {
    let outer = DEPTH.get();
    DEPTH.set(outer + 1);
    let answer = errno::answer(process::task().and_then(call));
    DEPTH.set(outer);
    answer
}

pub(crate) fn is_interrupted() -> bool {
    DEPTH.get() != 0
}
