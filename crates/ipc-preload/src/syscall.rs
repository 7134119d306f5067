//! The interposed syscall(2), for programs that make IPC calls by their numbers.
//!
//! syscall(2) is variadic in C. Its arguments are where a plain function with seven arguments has
//! them: six in registers, the last one on the stack.
//!
//! For system calls that this library does not answer, its syscall(2) jumps to the C library's one,
//! with the stack unchanged. So even clone(2) works as without this library.
//!
//! Source: syscall(2); System V ABI, AMD64 supplement.

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use libc::{c_int, c_long, c_uint, c_void};
use std::ptr;

use crate::exit;
use crate::files;
use crate::handed;
use crate::memory;
use crate::msg;
use crate::next::next;
use crate::process;
use crate::sem;
use crate::shm;
use crate::signal;

next! {
    SYSCALL: fn syscall(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
}

static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// The system calls that `dispatch` handles. Those from `SYS_setuid` to the end change credentials.
/// After one of them, `dispatch` reads the credentials of the calling thread again.
const CALLS: &[c_long] = &[
    libc::SYS_msgget,
    libc::SYS_msgsnd,
    libc::SYS_msgrcv,
    libc::SYS_msgctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_semctl,
    libc::SYS_exit_group,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_shmdt,
    libc::SYS_shmctl,
    libc::SYS_rt_sigaction,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_mlockall,
    libc::SYS_openat,
    libc::SYS_openat2,
    // AArch64 does not have the system calls `open` and `creat`.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_creat,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_capset,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_setfsuid,
];

#[cfg(target_arch = "x86_64")]
static OURS: [u64; 8] = {
    let (mut bits, mut at) = ([0; 8], 0);
    while at < CALLS.len() {
        bits[CALLS[at] as usize / 64] |= 1 << (CALLS[at] as usize % 64);
        at += 1;
    }
    bits
};

/// Looks up the C library's syscall(2).
pub(crate) fn resolve() {
    look_up();
    // ORDERING: Relaxed. The process has one thread, and the value is an address of code.
    NEXT.store(SYSCALL.address(), Ordering::Relaxed);
}

/// The interposed syscall(2). It handles the system calls that this library answers, and passes all
/// others to the C library.
///
/// # Safety
///
/// The caller meets the requirements of the system call.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    std::arch::naked_asm!(
        "cmp rdi, 511",
        "ja 2f",
        "lea rax, [rip + {ours}]",
        "bt qword ptr [rax], rdi",
        "jc {dispatch}",
        "2:",
        "mov rax, qword ptr [rip + {next}]",
        "test rax, rax",
        "jz {dispatch}",
        "jmp rax",
        ours = sym OURS,
        next = sym NEXT,
        dispatch = sym dispatch,
    )
}

#[cfg(not(target_arch = "x86_64"))]
pub use dispatch as syscall;

/// Handles the system calls in `CALLS`, and passes all others on. It truncates arguments to their
/// types, as the kernel does. On x86-64, `syscall` jumps to it. On other machines it is syscall(2)
/// itself.
///
/// # Safety
///
/// The caller meets the requirements of the system call.
#[cfg_attr(target_arch = "x86_64", expect(unreachable_pub, reason = "public elsewhere"))]
#[cfg_attr(all(not(test), not(target_arch = "x86_64")), unsafe(export_name = "syscall"))]
pub unsafe extern "C" fn dispatch(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller's promise.
    let next = |a, b| unsafe { pass_on(number, [a, b, c, d, e, f]) };
    let [int_a, int_b, int_c, int_d] = [a, b, c, d].map(|word| word as c_int);
    let opened = |path| {
        // SAFETY: if the call has returned a descriptor, it is new, and the kernel has read the
        // path.
        unsafe { files::descriptor(next(a, b) as c_int, pointer(path)) }
    };
    let result = match number {
        // SAFETY: the caller's promise.
        libc::SYS_semop => unsafe { sem::semop(int_a, pointer(b), c) },
        // SAFETY: the caller's promise.
        libc::SYS_semtimedop => unsafe { sem::semtimedop(int_a, pointer(b), c, pointer(d)) },
        // SAFETY: the caller's promise.
        libc::SYS_semctl => unsafe { sem::semctl(int_a, int_b, int_c, d) },
        libc::SYS_semget => sem::semget(int_a, int_b, int_c),
        libc::SYS_msgget => msg::msgget(int_a, int_b),
        // SAFETY: the caller's promise.
        libc::SYS_msgsnd => unsafe { msg::msgsnd(int_a, pointer(b), c, int_d) },
        libc::SYS_msgrcv => {
            // SAFETY: the caller's promise.
            return unsafe { msg::msgrcv(int_a, pointer(b), c, d as c_long, e as c_int) } as c_long;
        }
        // SAFETY: the caller's promise.
        libc::SYS_msgctl => unsafe { msg::msgctl(int_a, int_b, pointer(c)) },
        libc::SYS_shmget => shm::shmget(int_a, b, int_c),
        libc::SYS_shmat => {
            // SAFETY: the caller's promise.
            let attached = unsafe { shm::shmat(int_a, pointer(b), int_c) };
            return attached.expose_provenance() as c_long;
        }
        // SAFETY: the caller's promise.
        libc::SYS_shmdt => unsafe { shm::shmdt(pointer(a)) },
        // SAFETY: the caller's promise.
        libc::SYS_shmctl => unsafe { shm::shmctl(int_a, int_b, pointer(c)) },
        libc::SYS_close => handed::close_by(int_a, || next(a, b) as c_int),
        libc::SYS_close_range => {
            let close = |first: c_uint, last: c_uint| next(first as usize, last as usize) as c_int;
            handed::close_range_by(a as c_uint, b as c_uint, close)
        }
        libc::SYS_mlockall => memory::lock_all(int_a, |flags| next(flags as usize, b) as c_int),
        // SAFETY: the caller's promise.
        libc::SYS_rt_sigaction => return unsafe { signal::by_number(int_a, b, c, |b| next(a, b)) },
        libc::SYS_exit_group => {
            exit::end();
            return next(a, b);
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => opened(a),
        libc::SYS_openat | libc::SYS_openat2 => opened(b),
        _ => {
            let result = next(a, b);
            if CALLS.contains(&number) {
                process::refresh_thread_cred();
            }
            return result;
        }
    };
    c_long::from(result)
}

fn pointer<T>(address: usize) -> *mut T {
    ptr::with_exposed_provenance_mut(address)
}

/// Calls the C library's syscall(2).
///
/// # Safety
///
/// The caller meets the requirements of the system call.
pub(crate) unsafe fn pass_on(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> c_long {
    let Some(next) = SYSCALL.found() else { return -1 };
    // SAFETY: the caller's promise.
    unsafe { next(number, a, b, c, d, e, f) }
}
