//! System V IPC for programs that were not made for it: a library for `LD_PRELOAD`.
//!
//! It defines the C library's functions, and answers them from a namespace of `corewalk-ipc` in a
//! mapped file. `corewalk ipc exec` sets it up: `COREWALK_IPC_FD` names a descriptor of the file,
//! and `COREWALK_IPC_NAMESPACE` its path.
//!
//! | module | what |
//! |---|---|
//! | `sem` | semget, semop, semtimedop, semctl |
//! | `msg` | msgget, msgsnd, msgrcv, msgctl |
//! | `shm` | shmget, shmat, shmdt, shmctl, if `COREWALK_IPC_SHM` says where the memory is |
//! | `signal` | handlers, which end waits |
//! | `syscall` | the same calls through syscall(2) |
//! | `process` | the process as a task of the namespace |
//! | `handed` | the descriptor of the file, which stays open |
//! | `memory` | mlockall(2) without the namespace |
//! | `fork`, `hold` | fork with segments attached |
//! | `exit` | the end of the process: undo |
//! | `cred` | who the process acts as, and the calls that change it |
//! | `files`, `proc` | the files of proc(5) that tell of objects and limits |
//! | `lookup` | dlsym(3), for programs that look functions up |
//! | `user` | memory of the program, and `EFAULT` |
//! | `call`, `next`, `errno`, `perm`, `open` | small parts of these |
//!
//! # Guarantees
//!
//! - P.1: no panic unwinds into C: a function that C calls aborts instead.
//! - P.2: a program that makes none of these calls takes no line of the namespace. It has one page
//!   of memory mapped, and the namespace, which takes addresses. With `COREWALK_IPC_SHM` one system
//!   call tells, when it is loaded, whether the program before it has left segments attached.
//! - P.3: a single semop(2) that need not wait allocates nothing. It makes no system call if its operation lies on the
//!   stack, in the program or in its heap (`user`), but in a child of vfork(2) whose parent has made no call.
//! - P.4: undo of a process that ends by itself is applied before its parent can see the end, unless
//!   other threads of it still run or the end came inside of a call.
//!
//! # What differs from the kernel
//!
//! - Memory that another thread unmaps while a call reads or writes it ends the process (`user`); the kernel returns
//!   `EFAULT`.
//! - A handler that interrupts a call outside of its wait, and itself makes a call that needs the same
//!   semaphore or lock, waits for its own thread: the namespace's bound for a lock that nobody gives back
//!   ends that with an error. The kernel has no such case. A handler that interrupts a wait may call anything.
//! - What changes credentials without the C library, by an instruction of its own, goes unnoticed.
//! - unshare(2) and setns(2) of an IPC namespace change nothing: the process keeps the objects of its namespace. A
//!   child in another pid namespace gets `ENOSYS`.
//! - A handler that was installed without libc's functions, and that runs after a call was queued and before it
//!   sleeps, does not end the wait with `EINTR`; the next one does.
//! - Shared memory is the kernel's, unless `COREWALK_IPC_SHM` is set. It is read once, when the library is loaded.
//!   What differs then is in `shm` and `fork`.
//! - Calls of the namespace are made by this library's own system calls, never through a function of libc that
//!   another preloaded library may stand in front of: fakeroot(1) makes calls of the namespace inside of stat(2).
//!
//! # What it refuses
//!
//! - To go on with the kernel's objects where there is no namespace: the calls fail with `ENOSYS`,
//!   and one line says why.
//! - To be a boundary: checks bind programs that use the library. A process that may write to the file
//!   may do anything to the objects in it.
//! - Static programs, those with set-user-ID and file capabilities, and those that make system calls by
//!   themselves, as Go's do: the loader does not ask us, and they meet the kernel's objects.
//!
//! Source: ld.so(8), `LD_PRELOAD`; svipc(7).

#![expect(unsafe_code, reason = "functions that C calls, with the pointers that C gives")]

mod call;
mod cred;
mod errno;
mod exit;
mod files;
mod fork;
mod handed;
mod hold;
mod lookup;
mod memory;
mod msg;
mod next;
mod open;
mod perm;
mod proc;
mod process;
mod sem;
mod shm;
mod signal;
mod syscall;
mod user;

pub use cred::{
    capset, initgroups, setegid, seteuid, setgid, setgroups, setns, setregid, setresgid, setresuid,
    setreuid, setuid, unshare,
};
pub use exit::{_Exit, _exit};
pub use files::{
    __open_2, __open64_2, __openat_2, __openat64_2, creat, creat64, fopen, fopen64, freopen,
    freopen64, open, open64, openat, openat64,
};
pub use handed::{close, close_range, closefrom, fcntl, fcntl64, ioctl};
#[cfg(target_arch = "x86_64")]
pub use lookup::dlsym;
pub use memory::mlockall;
pub use msg::{msgctl, msgget, msgrcv, msgsnd};
pub use sem::{semctl, semget, semop, semtimedop};
pub use shm::{shmat, shmctl, shmdt, shmget};
pub use signal::{__sysv_signal, bsd_signal, sigaction, signal, sigset, ssignal, sysv_signal};
pub use syscall::syscall;

/// What the loader runs. A test program is not loaded this way.
mod load {
    extern "C" fn load() {
        // First: what other modules are told of a fork comes after this.
        super::process::resolve();
        super::exit::resolve();
        super::cred::resolve();
        super::signal::resolve();
        super::syscall::resolve();
        super::files::resolve();
        super::handed::resolve();
        super::shm::resolve();
        super::fork::resolve();
        super::memory::resolve();
        super::process::join();
        if super::shm::is_on() {
            super::shm::detach_former();
        }
    }

    extern "C" fn unload() {
        super::exit::end();
    }

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static LOAD: extern "C" fn() = load;

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
    static UNLOAD: extern "C" fn() = unload;
}
