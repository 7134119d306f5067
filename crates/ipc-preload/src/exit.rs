//! Applies the undo (`SEM_UNDO`) of the process when it ends, before its parent can see the end.
//!
//! | end | undo is applied by |
//! |---|---|
//! | exit(3), return from `main` | the destructor of this library, after those of the program |
//! | `quick_exit` | a function that this library registers with the C library |
//! | `_exit`, `_Exit`, `syscall(SYS_exit_group)` | this library's functions of these names |
//! | a signal, or an exit while other threads or a call run | the recovery of the namespace |
//!
//! If other threads run when the process ends, one of them may be in an IPC call. It may hold a
//! lock or change an undo record. So the library does not end the task (the process's entry in the
//! namespace), and the recovery of the namespace applies the undo.
//!
//! If a child of vfork(2) ends, the library does not end the task (the namespace entry) of its
//! parent.
//!
//! Source: exit(3), `_exit`(2), vfork(2).

use libc::{c_int, c_void};

use crate::call;
use crate::hold;
use crate::next::next;
use crate::process;
use crate::shm;

next! {
    EXIT_NOW: fn _exit(c_int) -> !;
    AT_QUICK_EXIT: fn __cxa_at_quick_exit(extern "C" fn(), *mut c_void) -> c_int;
}

pub(crate) fn resolve() {
    look_up();
    if let Some(register) = AT_QUICK_EXIT.found() {
        // SAFETY: the function `end` stays loaded, because a preloaded library is never unloaded.
        // It ignores the argument that the C library passes, as at_quick_exit(3) allows.
        let _registered = unsafe { register(end, std::ptr::null_mut()) };
    }
}

pub(crate) extern "C" fn end() {
    let Some(task) = process::own_task() else { return };
    if shm::is_on() && task.attached() != 0 {
        shm::unmark();
    }
    if call::is_interrupted() || !is_alone() {
        return;
    }
    hold::give_up();
    // SAFETY: the process has no other thread, and this thread is in no IPC call. So no call uses
    // the task.
    drop(unsafe { process::take_task(std::ptr::from_ref(task)) });
}

/// Returns true if this is the only thread of the process.
pub(crate) fn is_alone() -> bool {
    // The directory has an entry per thread, besides `.` and `..`.
    rustix::fs::stat("/proc/self/task").is_ok_and(|stat| stat.st_nlink == 3)
}

fn exit_now(status: c_int) -> ! {
    end();
    match EXIT_NOW.found() {
        // SAFETY: the call takes a number and does not return.
        Some(next) => unsafe { next(status) },
        None => std::process::abort(),
    }
}

/// `_exit`(2): applies the undo of the process, and ends the process.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _exit(status: c_int) -> ! {
    exit_now(status)
}

/// `_Exit`(3): the same as [`_exit`].
#[cfg_attr(test, expect(non_snake_case, reason = "the name in C"))]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _Exit(status: c_int) -> ! {
    exit_now(status)
}
