//! The interposed functions that open files.
//!
//! Each function calls the C library's function. The path may be that of a file of proc(5) that
//! shows IPC objects or limits. The function then replaces the open file by a memfd with a text
//! that the module `proc` makes. A new stream has read nothing yet, so the library can replace the
//! file under its descriptor.
//!
//! Source: open(2), fopen(3); glibc, `_FORTIFY_SOURCE`, for the names with two underscores.

use libc::{FILE, c_char, c_int, mode_t};
use std::os::fd::{FromRawFd as _, OwnedFd};

use crate::errno::{self, Answer};
use crate::next::next;
use crate::proc;

/// Defines functions that call the C library's function and pass its result and the path to
/// `$then`.
macro_rules! opening {
    ($($table:ident, $name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $then:ident($path:ident);)*) => {
        // A caller that passes no mode leaves an arbitrary value in the register of the mode.
        // open(2) does not use the mode of such a call.
        next! { $($table: fn $name($($kind),*) -> $result;)* }

        $(
            /// Calls the C library's function of this name. If that function has opened a file of
            /// proc(5) that shows IPC objects or limits, replaces the file by a memfd.
            ///
            /// # Safety
            ///
            /// The caller meets the requirements of the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                let Some(next) = $table.found() else { return <$result>::FAILED };
                // SAFETY: the caller's promise.
                let result = unsafe { next($($argument),*) };
                // SAFETY: if the function has succeeded, the path is a C string.
                unsafe { $then(result, $path) }
            }
        )*
    };
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

/// Completes open(2) or a variant of it, which has returned the descriptor `fd` for `path`. Returns
/// `fd`, or -1 with errno set if the file had to be replaced and that failed.
///
/// # Safety
///
/// `path` is a C string if `fd` is not negative. No other thread uses the descriptor.
pub(crate) unsafe fn descriptor(fd: c_int, path: *const c_char) -> c_int {
    if fd < 0 {
        return fd;
    }
    // SAFETY: the caller's promise.
    let Err(errno) = (unsafe { proc::replace(fd, path) }) else { return fd };
    // SAFETY: the descriptor is new, and the program has not received it yet.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    errno::answer(Err(errno))
}

/// Completes fopen(3) or a variant of it, which has returned the stream `file` for `path`. Returns
/// `file`, or null with errno set if the file had to be replaced and that failed.
///
/// # Safety
///
/// `file` is null or a new stream. `path` is null or a C string.
unsafe fn stream(file: *mut FILE, path: *const c_char) -> *mut FILE {
    // freopen(3) without a path changes only the mode of the stream.
    if file.is_null() || path.is_null() {
        return file;
    }
    // SAFETY: the stream is open.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: the descriptor is the stream's, and the program has not received the stream yet.
    let Err(errno) = (unsafe { proc::replace(fd, path) }) else { return file };
    // SAFETY: the stream is open, and the program has not received it yet.
    unsafe { libc::fclose(file) };
    errno::answer(Err(errno))
}
