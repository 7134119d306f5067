//! Counts the system calls that a part of a program makes.
//!
//! A thread of a child process calls [`trace_me`], and then [`mark`] at the start and at the end of
//! each part to be counted. The parent calls [`count`], which counts the system calls between the
//! marks.
//!
//! # Rules
//!
//! - Only the thread that has started the child may call [`count`].
//! - The code between two marks must not call getppid(2), which [`mark`] uses.
//!
//! Source: ptrace(2) `PTRACE_SYSCALL`, `PTRACE_GET_SYSCALL_INFO`.
#![expect(unsafe_code, reason = "ptrace is an unsafe function")]

use std::collections::BTreeMap;
use std::io;
use std::ptr;

/// How often each system call was made, by its number.
pub type Counts = BTreeMap<u64, u64>;

/// Makes the calling thread traceable by its parent process, and stops it until the parent calls
/// [`count`].
///
/// # Errors
///
/// The errors of ptrace(2).
///
/// # Examples
///
/// ```no_run
/// use corewalk_testkit::trace;
///
/// trace::trace_me()?;
/// trace::mark();
/// // The system calls that are counted.
/// trace::mark();
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn trace_me() -> io::Result<()> {
    // SAFETY: this request passes no pointers.
    if unsafe { libc::ptrace(libc::PTRACE_TRACEME) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the signal stops this thread until the parent continues it.
    unsafe { libc::raise(libc::SIGSTOP) };
    Ok(())
}

/// Begins or ends a part to be counted.
pub fn mark() {
    let _parent = rustix::process::getppid();
}

/// Counts the system calls that a thread of a child process makes between two calls of [`mark`].
/// The thread has stopped in [`trace_me`]. `count` lets it continue, and returns when it has ended.
///
/// # Errors
///
/// The errors of waitpid(2) and ptrace(2).
///
/// # Examples
///
/// ```no_run
/// use corewalk_testkit::trace;
/// use std::process::Command;
///
/// let child = Command::new("a program that calls trace_me").spawn()?;
/// let counts = trace::count()?;
/// assert!(counts.values().sum::<u64>() < 100, "{counts:?}");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn count() -> io::Result<Counts> {
    let (mut counts, mut is_marked) = (Counts::new(), false);
    let mut thread = wait(-1)?.0;
    let option = libc::PTRACE_O_TRACESYSGOOD;
    // SAFETY: this request passes no pointers, and the thread is stopped.
    check(unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, thread, 0usize, option) })?;
    let mut signal = 0;
    loop {
        // SAFETY: this request passes no pointers, and the thread is stopped.
        check(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, 0usize, signal) })?;
        let status;
        (thread, status) = wait(thread)?;
        if !libc::WIFSTOPPED(status) {
            return Ok(counts);
        }
        let is_call = libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80;
        signal = if is_call { 0 } else { libc::WSTOPSIG(status) };
        let Some(call) = is_call.then(|| entered(thread)).flatten() else { continue };
        if call == libc::SYS_getppid as u64 {
            is_marked = !is_marked;
        } else if is_marked {
            *counts.entry(call).or_default() += 1;
        }
    }
}

/// Returns the number of the system call that the stopped thread is entering. Returns None if it is
/// returning from one.
fn entered(thread: i32) -> Option<u64> {
    // SAFETY: all zeroes is a valid value of this plain structure.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let (size, at) = (size_of_val(&info), ptr::from_mut(&mut info));
    // SAFETY: the kernel writes at most `size` bytes to `info`.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, thread, size, at) };
    let is_entry = got > 0 && info.op == libc::PTRACE_SYSCALL_INFO_ENTRY;
    if !is_entry {
        return None;
    }
    // SAFETY: the kernel fills in this member of the union for a thread that enters a system call.
    Some(unsafe { info.u.entry.nr })
}

fn wait(thread: i32) -> io::Result<(i32, i32)> {
    let mut status = 0;
    loop {
        // `__WNOTHREAD` makes the call wait only for children of this thread, since tests on other
        // threads have children too.
        // SAFETY: the status is written to a local variable.
        let waited =
            unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
        match io::Error::last_os_error() {
            _ if waited > 0 => return Ok((waited, status)),
            error if error.kind() == io::ErrorKind::Interrupted => {}
            error => return Err(error),
        }
    }
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
