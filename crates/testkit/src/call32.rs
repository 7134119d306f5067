//! System calls that a 64-bit program makes like a 32-bit program, with `int 0x80`.
//!
//! Source: Linux `arch/x86/entry/syscalls/syscall_32.tbl`.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "a system call needs an instruction of the processor")
)]

use std::fs::File;
use std::io;

/// Calls fchown32 with the user ID `uid` and the group ID `gid`.
///
/// # Errors
///
/// The errors of fchown(2); `ENOSYS` if this machine has no 32-bit system calls.
#[cfg(target_arch = "x86_64")]
pub fn fchown(file: &File, uid: u32, gid: u32) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;

    static IS_POSSIBLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    const FCHOWN: i32 = 207;
    if !*IS_POSSIBLE.get_or_init(is_possible) {
        return Err(io::Error::from_raw_os_error(libc::ENOSYS));
    }
    let fd = u32::try_from(file.as_raw_fd()).expect("a descriptor is not negative");
    // SAFETY: fchown(2) reads and writes no memory of this process.
    match unsafe { call(FCHOWN, fd, uid, gid) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Returns `ENOSYS`: this architecture has no 32-bit system calls of x86.
///
/// # Errors
///
/// `ENOSYS`, always.
#[cfg(not(target_arch = "x86_64"))]
pub fn fchown(_file: &File, _uid: u32, _gid: u32) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// Returns true if the kernel has 32-bit system calls. A child process tries one, because `int
/// 0x80` kills a process on a kernel without them.
#[cfg(target_arch = "x86_64")]
fn is_possible() -> bool {
    const GETPID: i32 = 20;
    // SAFETY: the child makes system calls only, and does not return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: getpid(2) has no arguments.
        let id = unsafe { call(GETPID, 0, 0, 0) };
        // SAFETY: the call does not return.
        unsafe { libc::_exit(i32::from(id <= 0)) };
    }
    let mut status = 0;
    // SAFETY: the address is that of `status`.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ended == child && status == 0
}

/// Makes the 32-bit system call `number`, and returns its result or a negative errno.
///
/// # Safety
///
/// The call must be safe with these arguments.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: i32, first: u32, second: u32, third: u32) -> i32 {
    let result: i32;
    // SAFETY: the caller promises that the call is safe. The compiler reserves rbx, so its value is
    // put back. The kernel clears r8 to r11.
    unsafe {
        std::arch::asm!(
            "xchg {first:r}, rbx",
            "int 0x80",
            "xchg {first:r}, rbx",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") third,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            options(nostack),
        );
    }
    result
}
