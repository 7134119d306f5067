//! The credentials of the process, and the calls that change them.
//!
//! Reading the credentials takes as long as a whole semop(2) of this library. So the library caches
//! them, and reads them again after each call that may change them.
//!
//! Most functions of the C library, such as setuid(2), change the credentials of all threads. Other
//! calls change only those of the calling thread: capset(2), unshare(2), setns(2), and system calls
//! that a program makes by syscall(2). After such a call in a process with several threads, each
//! thread reads its own credentials at its next IPC call.
//!
//! If a program changes its credentials without the C library, the library notices that only at the
//! next call that may change credentials.
//!
//! The library asks the kernel directly, because fakeroot(1) interposes geteuid(2) of the C library
//! and returns another user.
//!
//! Source: credentials(7), nptl(7).

use corewalk_ipc::Cred;
use libc::{c_int, gid_t, size_t, uid_t};

use crate::next::next;
use crate::process;

/// Reads the credentials of the calling thread from the kernel.
pub(crate) fn current() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    Cred {
        euid: rustix::process::geteuid().as_raw(),
        egid: rustix::process::getegid().as_raw(),
        groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        caps: rustix::thread::capabilities(None).map_or(0, |sets| sets.effective.bits()),
    }
}

macro_rules! refreshing {
    ($($table:ident, $name:ident($($argument:ident: $kind:ty),*), $refresh:ident;)*) => {
        next! { $($table: fn $name($($kind),*) -> c_int;)* }

        $(
            /// Calls the C library's function of the same name, which may change the credentials.
            /// Then reads the credentials from the kernel again.
            ///
            /// # Safety
            ///
            /// The caller meets the requirements of the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                let Some(next) = $table.found() else { return -1 };
                // SAFETY: the caller's promise.
                let result = unsafe { next($($argument),*) };
                process::$refresh();
                result
            }
        )*
    };
}

refreshing! {
    SETUID, setuid(uid: uid_t), refresh_cred;
    SETGID, setgid(gid: gid_t), refresh_cred;
    SETEUID, seteuid(uid: uid_t), refresh_cred;
    SETEGID, setegid(gid: gid_t), refresh_cred;
    SETREUID, setreuid(ruid: uid_t, euid: uid_t), refresh_cred;
    SETREGID, setregid(rgid: gid_t, egid: gid_t), refresh_cred;
    SETRESUID, setresuid(ruid: uid_t, euid: uid_t, suid: uid_t), refresh_cred;
    SETRESGID, setresgid(rgid: gid_t, egid: gid_t, sgid: gid_t), refresh_cred;
    SETGROUPS, setgroups(size: size_t, list: *const gid_t), refresh_cred;
    INITGROUPS, initgroups(user: *const libc::c_char, group: gid_t), refresh_cred;
    CAPSET, capset(header: *mut libc::c_void, sets: *const libc::c_void), refresh_thread_cred;
    UNSHARE, unshare(flags: c_int), refresh_thread_cred;
    SETNS, setns(fd: c_int, kind: c_int), refresh_thread_cred;
}
