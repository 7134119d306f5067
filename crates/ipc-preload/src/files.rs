//! The interposed functions that open files.
//!
//! Each interposed function that opens a file first calls the C library's function of the same
//! name. Some files of proc(5) show IPC objects or limits. If the path names such a file, the
//! function then replaces the open file by a memfd with the text of the module `proc`.
//!
//! The file under a new stream (fopen(3)) can be replaced too, because the stream has read nothing
//! yet.
//!
//! Source: open(2), fopen(3); glibc, `_FORTIFY_SOURCE`, for the names with two underscores.

use libc::{FILE, c_char, c_int, mode_t};
use std::os::fd::{FromRawFd as _, OwnedFd};

use crate::errno::{self, Answer};
use crate::next::next;
use crate::proc;

macro_rules! opening {
    ($($table:ident, $name:ident($($argument:ident: $kind:ty),*) -> $result:ty, $then:ident($path:ident);)*) => {
        // open(2) takes the mode as an optional argument. If the caller passes no mode, the
        // register for the mode contains an arbitrary value, which the C library's open(2) ignores.
        next! { $($table: fn $name($($kind),*) -> $result;)* }

        $(
            /// Calls the C library's function of this name, and replaces an opened file of proc(5)
            /// that shows IPC objects or limits.
            ///
            /// # Safety
            ///
            /// The caller meets the requirements of the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                let Some(next) = $table.found() else { return <$result>::FAILED };
                // SAFETY: the caller's promise.
                let result = unsafe { next($($argument),*) };
                // SAFETY: if the C library's function has succeeded, the path is a C string.
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

/// If `path` is a file of proc(5) about IPC objects, replaces the new file `fd` by a memfd with the
/// text for the namespace.
///
/// # Safety
///
/// If `fd` is not negative, it is a new descriptor that no other thread uses, and `path` is a C
/// string.
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

/// Does for a new stream of fopen(3) what `descriptor` does for a new descriptor.
///
/// # Safety
///
/// `file` is null, or a stream that the C library has just opened. `path` is null or a C string.
unsafe fn stream(file: *mut FILE, path: *const c_char) -> *mut FILE {
    // freopen(3) without a path changes only the mode of the stream.
    if file.is_null() || path.is_null() {
        return file;
    }
    // SAFETY: the stream is open.
    let fd = unsafe { libc::fileno(file) };
    // SAFETY: the descriptor belongs to the stream `file`, which the program has not received yet.
    let Err(errno) = (unsafe { proc::replace(fd, path) }) else { return file };
    // SAFETY: the program has not received the stream yet, so no other code uses it.
    unsafe { libc::fclose(file) };
    errno::answer(Err(errno))
}
