//! dlsym(3), for programs that look up functions by name.
//!
//! A program that is linked with semop(2) gets this library's semop(2), since the loader searches a
//! preloaded library first. But with a handle, as from Python's `ctypes.CDLL("libc.so.6")`,
//! dlsym(3) would return the C library's function.
//!
//! This library's dlsym(3) first asks the C library's dlsym(3). If the result is a function that
//! this library interposes, it returns this library's function instead.
//!
//! With `RTLD_NEXT` or `RTLD_DEFAULT`, the search depends on the library that has called dlsym(3).
//! The C library's dlsym(3) finds this caller by the return address. So this library's dlsym(3)
//! does not call it, but jumps to it with the stack unchanged. Such a search finds the functions of
//! this library by itself, since the library is preloaded.
//!
//! The library finds the C library's dlsym(3) by dlvsym(3), which it does not interpose.
//!
//! # Limits
//!
//! - A program that calls dlvsym(3) gets the function of the C library.
//! - A program that loads a second C library with dlmopen(3) gets that library's functions, and so
//!   uses the kernel's IPC objects.
//! - On machines other than x86-64 this dlsym(3) is not defined.
//!
//! Source: dlsym(3), dlopen(3), dlmopen(3).

use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use libc::{c_char, c_void};
use std::ffi::CStr;
use std::ptr;

/// The symbol versions of `dlsym` in glibc, in the order in which they are tried: since 2.34, and
/// before that on x86-64 and on AArch64.
const VERSIONS: [&CStr; 3] = [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"];

static NEXT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// Returns the C library's dlsym(3). Aborts the process if there is none, because no interposed
/// function works without it.
fn next() -> Dlsym {
    // ORDERING: Relaxed. Every thread finds the same address, and no data is published with it.
    let mut address = NEXT.load(Ordering::Relaxed);
    if address.is_null() {
        let of_version = |version: &&CStr| {
            // SAFETY: both names are C strings, and `RTLD_NEXT` is a valid handle.
            let found =
                unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            Some(found).filter(|found| !found.is_null())
        };
        address = VERSIONS.iter().find_map(of_version).unwrap_or_else(|| std::process::abort());
        // ORDERING: Relaxed. As above.
        NEXT.store(address, Ordering::Relaxed);
    }
    // SAFETY: dlsym(3) has this type.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address) }
}

pub(crate) fn next_of(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a C string, and `RTLD_NEXT` is a valid handle.
    unsafe { next()(libc::RTLD_NEXT, name.as_ptr()) }
}

/// dlsym(3), except that it returns this library's function wherever this library interposes one.
///
/// # Safety
///
/// The caller meets the requirements of dlsym(3).
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        // Three pushes and the return address keep the stack aligned for the call.
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

/// Returns the function of this library that `dlsym` must return, or null if there is none. `dlsym`
/// then jumps to the C library's dlsym(3), whose address is in [`NEXT`].
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn answered(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let next = next();
    if [libc::RTLD_DEFAULT, libc::RTLD_NEXT].contains(&handle) || name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller of dlsym(3) passes a C string.
    let wanted = unsafe { CStr::from_ptr(name) };
    let mut functions = crate::functions().chain([(c"dlsym", dlsym as *const c_void)]);
    let Some((_, own)) = functions.find(|(known, _)| *known == wanted) else {
        return ptr::null_mut();
    };
    // SAFETY: the handle and the name are those that the caller of dlsym(3) has passed.
    let found = unsafe { next(handle, name) };
    if !found.is_null() && found == next_of(wanted) { own.cast_mut() } else { ptr::null_mut() }
}

pub(crate) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name ends with a zero"),
    }
}
