//! The entry to every IPC call of this library: finds the task (the process's entry in the
//! namespace), and counts the calls that a thread is in.
//!
//! A signal handler may interrupt an IPC call and end the process. The thread then still holds the
//! locks of that call, and cannot apply the undo (`SEM_UNDO`) of the process. So each thread counts
//! the calls that it is in. If a thread in a call ends the process, another process applies undo
//! when it recovers the namespace.
//!
//! A handler may also leave the interrupted call by siglongjmp(3), after `Task::interrupt_own` has
//! ended its wait. The thread still counts the call, so the recovery of the namespace applies the
//! undo of such a process. It also frees the call's wait node (its entry in a wait queue).

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

/// Makes an IPC call as the task (the entry in the namespace) of this process. Returns the result
/// as a C function does. A panic in `call` aborts the process (guarantee P.1).
#[inline]
pub(crate) fn make<T: Answer>(call: impl FnOnce(&'static Task) -> Result<T, Errno>) -> T {
    let outer = DEPTH.get();
    DEPTH.set(outer + 1);
    let answer = errno::answer(process::task().and_then(call));
    DEPTH.set(outer);
    answer
}

/// Returns true if the calling signal handler has interrupted an IPC call of this thread.
pub(crate) fn is_interrupted() -> bool {
    DEPTH.get() != 0
}
