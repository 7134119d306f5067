//! Results of C functions: a value on success, or a special value (such as -1) with errno set on
//! failure.

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use rustix::io::Errno;
use std::ffi::c_void;
use std::ptr;

static HAS_SAID: AtomicBool = AtomicBool::new(false);

/// Prints a line that says why there is no namespace, but only once in a process. Returns `ENOSYS`.
///
/// The library does not fall back to the kernel's IPC objects. The program would wait in vain for
/// peers in the namespace, or find objects of unrelated programs.
pub(crate) fn without_namespace(why: &str) -> Errno {
    // ORDERING: Relaxed. The flag publishes no other data.
    if !HAS_SAID.swap(true, Ordering::Relaxed) {
        let line = format!("corewalk ipc: pid {}: {why}\n", std::process::id());
        let _written = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
    Errno::NOSYS
}

/// Sets errno(3).
pub(crate) fn set(errno: Errno) {
    // SAFETY: the function has no arguments and returns the address of the thread's errno.
    let location = unsafe { libc::__errno_location() };
    // SAFETY: the address of errno is valid as long as the thread lives.
    unsafe { location.write(errno.raw_os_error()) };
}

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

#[inline]
pub(crate) fn answer<T: Answer>(result: Result<T, Errno>) -> T {
    result.unwrap_or_else(|errno| {
        set(errno);
        T::FAILED
    })
}
