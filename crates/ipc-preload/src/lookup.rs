//! dlsym(3): functions of this library for programs that look them up by themselves.
//!
//! A program that is linked with semop(2) gets the function here, since a preload library comes
//! first. One that asks a handle, as Python's `ctypes.CDLL("libc.so.6")` does, would get the C
//! library's. So where the answer is a function that this library stands in front of, the function
//! here is returned.
//!
//! dlsym(3) looks at its return address for `RTLD_NEXT` and `RTLD_DEFAULT`, so all other questions
//! go on by a jump, with the stack as the caller left it. The search order answers those two as it
//! should.
//!
//! The C library's dlsym(3) is found with dlvsym(3), which this library does not define.
//!
//! # What it refuses
//!
//! - dlvsym(3): a program that asks for a version of a function gets the C library's.
//! - dlmopen(3): in a namespace of the loader with a C library of its own, the calls are the
//!   kernel's.
//! - Machines other than x86-64: there the function is not defined.
//!
//! Source: dlsym(3), dlopen(3), dlmopen(3).

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use libc::{c_char, c_void};
use std::ffi::CStr;
use std::ptr;

/// Versions of dlsym(3): since glibc 2.34, and before on x86-64 and on AArch64.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

/// The C library's dlsym(3), once it is known.
static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the C library's dlsym(3).
///
/// Ends the process if there is none: nothing that this library stands in front of would work.
fn next() -> Dlsym {
    // ORDERING: Relaxed. The same address whichever thread looks it up; nothing is published with
    // it.
    let mut address = NEXT.load(Ordering::Relaxed);
    if address.is_null() {
        let of_version = |version: &&CStr| {
            // SAFETY: both are strings of C, and the handle is one that the function knows.
            let found =
                unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            Some(found).filter(|found| !found.is_null())
        };
        address = VERSIONS.iter().find_map(of_version).unwrap_or_else(|| std::process::abort());
        // ORDERING: Relaxed. As above.
        NEXT.store(address, Ordering::Relaxed);
    }
    // SAFETY: what the C library defines under this name has this type.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address) }
}

/// Returns the function of a name that comes after this library in the search order, or null.
pub(crate) fn next_of(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string of C, and the handle is one that dlsym knows.
    unsafe { next()(libc::RTLD_NEXT, name.as_ptr()) }
}

/// dlsym(3): as the C library's, but for functions that this library stands in front of.
///
/// # Safety
///
/// That of the function.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        // Three words beside the return address: the stack is aligned for the call.
        "push rdi",
        "push rsi",
        "push rsi",
        "call {answered}",
        "pop rsi",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "mov rax, qword ptr [rip + {next}]",
        "jmp rax",
        "2:",
        "ret",
        answered = sym answered,
        next = sym NEXT,
    )
}

/// Returns the function of this library if that is the answer, or null. [`NEXT`] is known
/// afterwards.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn answered(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let next = next();
    if [libc::RTLD_DEFAULT, libc::RTLD_NEXT].contains(&handle) || name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a caller of dlsym gives a string of C.
    let wanted = unsafe { CStr::from_ptr(name) };
    let Some((_, own)) = functions().into_iter().find(|(known, _)| *known == wanted) else {
        return ptr::null_mut();
    };
    // SAFETY: the caller's handle and name.
    let found = unsafe { next(handle, name) };
    if !found.is_null() && found == next_of(wanted) { own.cast_mut() } else { ptr::null_mut() }
}

/// Lists functions of the crate by their names in C.
#[cfg(target_arch = "x86_64")]
macro_rules! functions {
    ($($name:ident)*) => {
        /// Returns the names and the functions that this library stands in front of.
        fn functions() -> [(&'static CStr, *const c_void); [$(stringify!($name)),*].len()] {
            [$((c_name(concat!(stringify!($name), "\0")), crate::$name as *const c_void)),*]
        }
    };
}

#[cfg(target_arch = "x86_64")]
functions! {
    semget semop semtimedop semctl msgget msgsnd msgrcv msgctl shmget shmat shmdt shmctl syscall
    sigaction signal bsd_signal ssignal sysv_signal __sysv_signal sigset _exit _Exit
    setuid setgid seteuid setegid setreuid setregid setresuid setresgid setgroups initgroups
    capset unshare setns
    open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2 creat creat64
    fopen fopen64 freopen freopen64 dlsym
}

/// Returns a name, which ends with a zero, as C has it.
pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with a zero"),
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn functions_are_all_that_the_library_defines() {
        let source = include_str!("lib.rs");
        let exports = source.split("pub use ").skip(1);
        let exports = exports.filter_map(|rest| rest.split(';').next()?.split_once("::"));
        let names = exports.flat_map(|(_, names)| names.split([',', '{', '}', '\n', ' ']));
        let mut names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let functions = functions();
        let mut known: Vec<&str> =
            functions.iter().map(|(name, _)| name.to_str().expect("ASCII")).collect();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, names);
    }
}
