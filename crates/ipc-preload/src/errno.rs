//! Results as C has them: a number, or -1 and errno.

use rustix::io::Errno;

/// Stores `errno` where C looks for it.
pub(crate) fn set(errno: Errno) {
    // SAFETY: the function takes nothing and always returns the calling thread's errno.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the location is valid for this thread as long as it lives.
    unsafe { location.write(errno.raw_os_error()) };
}

/// Returns the number, or -1 with errno set.
#[inline]
pub(crate) fn number(result: Result<i32, Errno>) -> libc::c_int {
    match result {
        Ok(number) => number,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}
