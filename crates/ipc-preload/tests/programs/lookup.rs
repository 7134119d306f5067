//! A program that looks a function up with dlsym(3) must get the same function as a program that is
//! linked with it.

use corewalk_testkit::sysv;
use libc::{c_int, c_void};
use std::ffi::{CStr, CString};
use std::ptr;

use crate::roles::{remove, value};

/// Names of functions that the library interposes.
const NAMES: [&str; 43] = [
    "semget",
    "semop",
    "semtimedop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "shmget",
    "shmat",
    "shmdt",
    "shmctl",
    "syscall",
    "sigaction",
    "signal",
    "sigset",
    "ssignal",
    "bsd_signal",
    "sysv_signal",
    "_exit",
    "_Exit",
    "setuid",
    "setgid",
    "seteuid",
    "setegid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setgroups",
    "initgroups",
    "capset",
    "unshare",
    "setns",
    "open",
    "open64",
    "openat",
    "openat64",
    "creat",
    "fopen",
    "fopen64",
    "freopen",
    "dlsym",
];

fn found(handle: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("no zero");
    // SAFETY: the name is a C string, and the handle is valid for dlsym(3).
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

fn opened(library: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string. The library is loaded already, or is the C library. So no
    // unknown code runs.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null(), "{library:?}");
    handle
}

/// dlsym(3) with a handle must find the library's functions. Python's `ctypes.CDLL("libc.so.6")`
/// looks functions up in this way.
pub(crate) fn by_handle() {
    let handle = opened(c"libc.so.6");
    // A library that depends on the C library, so a dlsym(3) search in it also finds the C
    // library's functions.
    let other = opened(c"libm.so.6");
    for name in NAMES {
        let linked = found(libc::RTLD_DEFAULT, name);
        assert!(!linked.is_null(), "{name}");
        for handle in [handle, other, libc::RTLD_NEXT] {
            assert_eq!(found(handle, name), linked, "{name}");
        }
    }
    type Semget = unsafe extern "C" fn(libc::key_t, c_int, c_int) -> c_int;
    let semget = found(handle, "semget");
    // SAFETY: the C library's function of this name has this type.
    let semget = unsafe { std::mem::transmute::<*mut c_void, Semget>(semget) };
    // SAFETY: the call takes numbers.
    let id = unsafe { semget(libc::IPC_PRIVATE, 3, 0o600) };
    assert_eq!(sysv::setall(id, &[3, 4, 5]), Ok(0));
    assert_eq!(value(id, 2), 5);
    remove(id);
    // dlsym(3) must find a function that the library does not interpose. For a missing function,
    // dlerror(3) must have a message.
    assert_eq!(found(handle, "strlen"), found(other, "strlen"));
    assert!(found(handle, "no_such_function").is_null());
    // SAFETY: the function takes nothing.
    let why = unsafe { libc::dlerror() };
    assert_ne!(why, ptr::null_mut());
    // SAFETY: the message is a C string until the next call of dlerror(3).
    let why = unsafe { CStr::from_ptr(why) }.to_string_lossy();
    assert!(why.contains("no_such_function"), "{why}");
}
