//! Functions that open files, for the files of proc(5) that `proc` answers.
//!
//! Each calls the next function of its name, and then looks whether the path ends like that of such
//! a file. For any other path that is all.
//!
//! A stream has read nothing when it is new, so its descriptor can be replaced beneath it.
//!
//! Source: open(2), fopen(3); glibc, `_FORTIFY_SOURCE`, for the names with two underscores.

use libc::{FILE, c_char, c_int, mode_t};
use std::os::fd::{FromRawFd as _, OwnedFd};

use crate::errno::{self, Answer};
use crate::next::next;
use crate::proc;

/// Defines functions that call the next of their name, and hand what it returns to `$then`, with
/// the path.
macro_rules! opening {
    ($($table:ident, $name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $then:ident($path:ident);)*) => {
        // A mode that the caller has not given is what the register holds, and is not looked at.
        next! { $($table: fn $name($($kind),*) -> $result;)* }

        $(
            /// The function of that name, also for files that the library answers.
            ///
            /// # Safety
            ///
            /// That of the function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                let Some(next) = $table.found() else { return <$result>::FAILED };
                // SAFETY: the caller's promise.
                let result = unsafe { next($($argument),*) };
                // SAFETY: the function has read the path if it has succeeded.
                unsafe { $then(result, $path) }
            }
        )*
    };
}

/// Looks up the functions of the C library.
pub(crate) fn resolve() {
    look_up();
}

opening! {
    OPEN, open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, descriptor(path);
    OPEN64, open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int, descriptor(path);
    OPEN_2, __open_2(path: *const c_char, flags: c_int) -> c_int, descriptor(path);
    OPEN64_2, __open64_2(path: *const c_char, flags: c_int) -> c_int, descriptor(path);
    OPENAT, openat(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, descriptor(path);
    OPENAT64, openat64(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, descriptor(path);
    OPENAT_2, __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, descriptor(path);
    OPENAT64_2, __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, descriptor(path);
    CREAT, creat(path: *const c_char, mode: mode_t) -> c_int, descriptor(path);
    CREAT64, creat64(path: *const c_char, mode: mode_t) -> c_int, descriptor(path);
    FOPEN, fopen(path: *const c_char, mode: *const c_char) -> *mut FILE, stream(path);
    FOPEN64, fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE, stream(path);
    FREOPEN, freopen(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE, stream(path);
    FREOPEN64, freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE, stream(path);
}

/// Returns a descriptor that was opened by a path, or -1 with errno set.
///
/// # Safety
///
/// `path` is a string of C if `fd` is not negative; no other thread uses the descriptor.
pub(crate) unsafe fn descriptor(fd: c_int, path: *const c_char) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: the caller's promise.
    let Err(errno) = (unsafe { proc::replace(fd, path) }) else { return fd };
    // SAFETY: the descriptor is new, and not handed out.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    errno::answer(Err(errno))
}

/// Returns a stream that was opened by a path, or null with errno set.
///
/// # Safety
///
/// `file` is null or a new stream, and `path` a string of C if it is not null.
unsafe fn stream(file: *mut FILE, path: *const c_char) -> *mut FILE {
    // freopen(3) without a path changes the mode only.
    if file.is_null() || path.is_null() {
        return file;
    }
    // SAFETY: the stream is open.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: the descriptor is the stream's, which is not handed out.
    let Err(errno) = (unsafe { proc::replace(fd, path) }) else { return file };
    // SAFETY: the stream is open, and not handed out.
    unsafe { libc::fclose(file) };
    errno::answer(Err(errno))
}
