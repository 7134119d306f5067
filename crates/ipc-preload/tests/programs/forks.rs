//! Roles that fork in unusual places; they hold on the host kernel as well.

use corewalk_sync::primitives::unmodelled::{AtomicI64, Ordering};
use corewalk_testkit::sysv;
use std::ffi::c_void;
use std::ptr;

use crate::roles::{child, exited, remove, semop, set, value, wait};

// ORDERING: Relaxed. One thread, and its children.
const RELAXED: Ordering = Ordering::Relaxed;

const UNDO: i16 = libc::SEM_UNDO as i16;

/// What a child of vfork(2) does, in its parent's memory: the set, how it ends, and whether all was well.
static SET: AtomicI64 = AtomicI64::new(0);
static END: AtomicI64 = AtomicI64::new(0);
static WELL: AtomicI64 = AtomicI64::new(0);

extern "C" fn first_call(_: *mut c_void) -> libc::c_int {
    let id = SET.load(RELAXED) as i32;
    let mut is_well = semop(id, (0, 1, UNDO)) == Ok(0);
    // SAFETY: the call takes nothing.
    let own = unsafe { libc::getpid() };
    is_well &= sysv::semctl(id, 0, libc::GETPID, 0) == Ok(own);
    // SAFETY: the call takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        // SAFETY: the call takes a number.
        is_well &= unsafe { libc::setuid(1000) } == 0;
        is_well &= semop(id, (0, 1, 0)) == Err(libc::EACCES);
    }
    WELL.store(is_well.into(), RELAXED);
    match END.load(RELAXED) {
        0 => {
            let arguments = [c"sleep".as_ptr(), c"60".as_ptr(), ptr::null()];
            // SAFETY: the arguments are strings, and end with null.
            unsafe { libc::execvp(arguments[0], arguments.as_ptr()) };
        }
        1 => {
            // SAFETY: the call takes numbers.
            unsafe { libc::kill(own, libc::SIGKILL) };
        }
        _ => {}
    }
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(5) }
}

/// Acts as another user, and makes a call, for a parent that has made one.
extern "C" fn other_user(_: *mut c_void) -> libc::c_int {
    // SAFETY: the call takes a number.
    let changed = unsafe { libc::setuid(1000) };
    // Whether it is let in is another question: see docs/ipc.md.
    let _value = sysv::semctl(SET.load(RELAXED) as i32, 1, libc::GETVAL, 0);
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(changed) }
}

/// Runs a function in a child of vfork(2), or what is one but for its stack.
fn vforked(work: extern "C" fn(*mut c_void) -> libc::c_int) -> i32 {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut stack = vec![0u128; 1 << 14];
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the stack is the child's, and it is gone when the call returns.
    unsafe { libc::clone(work, top, flags, ptr::null_mut()) }
}

/// A child of vfork(2) makes a call before its parent does: it makes it as itself, and so does its parent after it.
pub(crate) fn vfork_first() {
    for end in 0..3 {
        let id = set(2);
        SET.store(id.into(), RELAXED);
        END.store(end, RELAXED);
        let pid = child(|| {
            let inner = vforked(first_call);
            let mut is_well = inner > 0 && WELL.load(RELAXED) == 1;
            is_well &= semop(id, (1, 2, UNDO)) == Ok(0);
            // SAFETY: the call takes nothing.
            is_well &= sysv::semctl(id, 1, libc::GETPID, 0) == Ok(unsafe { libc::getpid() });
            if end == 0 {
                // What it has become holds it still.
                is_well &= value(id, 0) == 1;
                // SAFETY: the call takes numbers.
                is_well &= unsafe { libc::kill(inner, libc::SIGKILL) } == 0;
            }
            wait(inner);
            is_well &= value(id, 0) == 0 && value(id, 1) == 2;
            // SAFETY: the call takes nothing.
            if unsafe { libc::geteuid() } == 0 {
                is_well &= exited(wait(vforked(other_user))) == 0;
                is_well &= semop(id, (1, 1, UNDO)) == Ok(0);
            }
            i32::from(!is_well)
        });
        assert_eq!(exited(wait(pid)), 0, "{end}");
        assert_eq!(sysv::getall(id, 2), Ok(vec![0, 0]));
        assert_eq!(sysv::semctl(id, 1, libc::GETPID, 0), Ok(pid));
        remove(id);
    }
}
