//! Results as C has them: a number, or -1 and errno.

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use rustix::io::Errno;

/// Whether this process, or one that it was forked from, has said that it cannot join the
/// namespace.
static HAS_SAID: AtomicBool = AtomicBool::new(false);

/// Prints one line per process that says why there is no namespace, and returns the error of the
/// call.
///
/// The other way would be to go on with the kernel's objects. But a program whose peers are in the
/// namespace would then wait for them in vain, or find objects of strangers. A program that can do
/// without System V IPC goes on with `ENOSYS`, and others say it.
pub(crate) fn without_namespace(why: &str) -> Errno {
    // ORDERING: Relaxed. Nothing is published with it.
    if !HAS_SAID.swap(true, Ordering::Relaxed) {
        let line = format!("corewalk ipc: pid {}: {why}\n", std::process::id());
        let (bytes, len) = (line.as_ptr().cast(), line.len());
        // SAFETY: the buffer lives during the call and is as long as said.
        let _written = unsafe { libc::write(libc::STDERR_FILENO, bytes, len) };
    }
    Errno::NOSYS
}

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
