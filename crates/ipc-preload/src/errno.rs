//! Results as C has them: a value, or one that says that the call has failed, and errno.

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use rustix::io::Errno;
use std::ffi::c_void;
use std::ptr;

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

/// A type of results with a value for a call that has failed.
pub(crate) trait Answer {
    const FAILED: Self;
}

impl Answer for i32 {
    const FAILED: Self = -1;
}

impl Answer for isize {
    const FAILED: Self = -1;
}

impl Answer for *mut libc::FILE {
    const FAILED: Self = ptr::null_mut();
}

/// The result of shmat(2).
impl Answer for *mut c_void {
    const FAILED: Self = ptr::without_provenance_mut(usize::MAX);
}

/// Returns the value, or that of a failed call with errno set.
#[inline]
pub(crate) fn answer<T: Answer>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|errno| {
        set(errno);
        T::FAILED
    })
}
