//! System V IPC for programs that call the C library: a library for `LD_PRELOAD`.
//!
//! This library defines functions with the names of C library functions. Its functions work on a
//! namespace of `corewalk-ipc`, which is a mapped file. `corewalk ipc exec` sets `LD_PRELOAD` and
//! two variables: `COREWALK_IPC_FD` names a descriptor of the file, and `COREWALK_IPC_NAMESPACE`
//! its path. `docs/using/ipc.md` tells users how the library differs from the kernel.
//!
//! | module | contents |
//! |---|---|
//! | `sem`, `msg` | the calls of semaphores and of message queues |
//! | `shm` | shared memory, if `COREWALK_IPC_SHM` names the folder of segments |
//! | `signal` | signal handlers, which end the wait of a call |
//! | `syscall` | the same calls through syscall(2) |
//! | `process` | the process as a task of the namespace |
//! | `handed` | the descriptors of the file and the folder, which stay open |
//! | `memory` | mlockall(2), which does not lock the namespace |
//! | `fork`, `hold` | fork with segments attached |
//! | `exit` | the end of the process, which applies its undo |
//! | `cred` | the credentials of the process, and the calls that change them |
//! | `files`, `proc` | the files of proc(5) that tell of objects and limits |
//! | `lookup` | dlsym(3), for programs that look up functions by name |
//! | `user` | checks of the program's memory, for `EFAULT` |
//! | `call`, `next`, `errno`, `perm`, `open` | helpers of these modules |
//!
//! # Guarantees
//! - P.1: no panic unwinds into C: a function that C calls aborts instead.
//! - P.2: a program that makes no IPC call takes no line (64 bytes) of the namespace. It only has
//!   the namespace mapped, and one page of memory.
//! - P.3: a single semop(2) that need not wait allocates nothing. It makes no system call if its
//!   operation is on the stack, in the program's image or in its heap (`user`).
//! - P.4: the library applies the undo (`SEM_UNDO`) of a process that ends by itself, before its
//!   parent can see the end. It does not do so if other threads run, or if the process ends inside
//!   of an IPC call or has left one by siglongjmp(3).
//!
//! # Limits
//! - Where there is no namespace, the calls fail with `ENOSYS`, and one line on standard error says
//!   why. The library never uses the kernel's IPC objects instead.
//! - Permission checks bind only programs that use the library. A process that may write to the
//!   namespace's file may do anything to the objects in it.

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

/// Exports functions, by module. Also defines `functions`, which `lookup` searches.
macro_rules! export {
    ($($module:ident: $($name:ident)*;)*) => {
        $(pub use $module::{$($name),*};)*

        /// Returns the functions that this library interposes, by name, without dlsym(3).
        #[cfg(target_arch = "x86_64")]
        fn functions() -> impl Iterator<Item = (&'static std::ffi::CStr, *const libc::c_void)> {
            [$($((lookup::c_name(concat!(stringify!($name), "\0")), $name as *const _),)*)*].into_iter()
        }
    };
}

export! {
    cred: capset initgroups setegid seteuid setgid setgroups setns setregid setresgid setresuid
        setreuid setuid unshare;
    exit: _Exit _exit;
    files: __open_2 __open64_2 __openat_2 __openat64_2 creat creat64 fopen fopen64 freopen
        freopen64 open open64 openat openat64;
    handed: close close_range closefrom fcntl fcntl64 ioctl;
    memory: mlockall;
    msg: msgctl msgget msgrcv msgsnd;
    sem: semctl semget semop semtimedop;
    shm: shmat shmctl shmdt shmget;
    signal: __sysv_signal bsd_signal sigaction signal sigset ssignal sysv_signal;
    syscall: syscall;
}

#[cfg(target_arch = "x86_64")]
pub use lookup::dlsym;

mod load {
    extern "C" fn load() {
        // `process::resolve` registers a fork handler that must run in a child before all other
        // fork handlers. The C library runs fork handlers of a child in the order of their
        // registration. So `process::resolve` comes first.
        super::process::resolve();
        super::exit::resolve();
        super::cred::look_up();
        super::signal::look_up();
        super::syscall::resolve();
        super::files::look_up();
        super::handed::resolve();
        super::shm::resolve();
        super::fork::resolve();
        super::memory::look_up();
        super::process::join();
        if super::shm::is_on() {
            super::shm::detach_former();
        }
    }

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
    static LOAD: extern "C" fn() = load;

    #[used]
    #[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
    static UNLOAD: extern "C" fn() = super::exit::end;
}
