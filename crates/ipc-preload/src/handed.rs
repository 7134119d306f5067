//! The descriptors that every program inherits from `corewalk ipc exec`.
//!
//! The library inherits two descriptors: one of the namespace's file, and one of the directory of
//! segments. A program that has changed its user, dropped capabilities or entered a user namespace
//! may be unable to open these files by their paths.
//!
//! The environment variables `COREWALK_IPC_FD` and `COREWALK_IPC_SHM_FD` each hold the number of an
//! inherited descriptor, and the device and inode of its file. If the number belongs to another
//! file by now, the library does not use the descriptor.
//!
//! # Programs that close all descriptors
//!
//! Programs that this program starts need the two inherited descriptors, too. So the library
//! interposes close(2), close_range(2), closefrom(3), `F_SETFD` of fcntl(2) and `FIOCLEX` of
//! ioctl(2). These functions leave the two descriptors open, but return the same results as if both
//! were closed already.
//!
//! The numbers of the two inherited descriptors are high, so they do not collide with numbers that
//! a program chooses.
//!
//! A program can still close the inherited descriptors without the C library, or by dup2(2) to the
//! same number. The programs that it starts then open the namespace's file by its path. If they may
//! not open it, their IPC calls return `ENOSYS`.
//!
//! Rejected alternative: let a program close an inherited descriptor, and open the namespace's file
//! again before each execve(2). But this library cannot intercept the posix_spawn(3) inside
//! system(3). It also cannot open the mapped file by `/proc/self/map_files`, which needs a
//! capability.
//!
//! Source: close_range(2), fcntl(2); Linux `fs/file.c` (`dup_fd`, `do_close_on_exec`).

use libc::{c_int, c_uint, c_ulong};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use crate::errno;
use crate::next::next;

/// An inherited descriptor, and the identity of its file.
#[derive(Debug)]
struct Handed {
    /// The number of the descriptor, which is not negative.
    number: c_int,
    device: u64,
    inode: u64,
}

static FILE: OnceLock<Handed> = OnceLock::new();

/// The descriptor of the folder of segments.
static FOLDER: OnceLock<Handed> = OnceLock::new();

impl Handed {
    fn read(name: &str) -> Option<Self> {
        let word = std::env::var(name).ok()?;
        let mut parts = word.split(':');
        let number = parts.next()?.parse().ok().filter(|number| *number >= 0)?;
        let (device, inode) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        parts.next().is_none().then_some(Self { number, device, inode })
    }

    fn get(&self) -> Option<BorrowedFd<'static>> {
        // SAFETY: the number is not -1. If it is not open, fstat(2) fails. If it is the inherited
        // descriptor, the library keeps the program from closing it.
        let file = unsafe { BorrowedFd::borrow_raw(self.number) };
        let status = fstat(file).ok()?;
        ((self.device, self.inode) == (status.st_dev, status.st_ino)).then_some(file)
    }
}

pub(crate) fn resolve() {
    look_up();
    for (handed, name) in [(&FILE, "COREWALK_IPC_FD"), (&FOLDER, "COREWALK_IPC_SHM_FD")] {
        if let Some(read) = Handed::read(name) {
            let _set = handed.set(read);
        }
    }
}

pub(crate) fn file() -> Option<BorrowedFd<'static>> {
    FILE.get()?.get()
}

pub(crate) fn folder() -> Option<BorrowedFd<'static>> {
    FOLDER.get()?.get()
}

#[inline]
fn is_kept(fd: c_int) -> bool {
    let mut handed = [&FILE, &FOLDER].into_iter().filter_map(OnceLock::get);
    handed.any(|handed| handed.number == fd && handed.get().is_some())
}

/// Closes `fd` by calling `next`, the original function. If `fd` is an inherited descriptor, leaves
/// it open and fails with `EBADF`.
pub(crate) fn close_by(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if is_kept(fd) {
        return errno::answer(Err(Errno::BADF));
    }
    next()
}

fn kept() -> impl Iterator<Item = c_int> {
    let number = |handed: &Handed| handed.get().map(|_| handed.number);
    let mut numbers = [&FILE, &FOLDER].map(|handed| handed.get().and_then(number));
    numbers.sort_unstable();
    numbers.into_iter().flatten()
}

/// Closes a range of descriptors by calling `next`, the original function. Leaves the inherited
/// descriptors open.
pub(crate) fn close_range_by(
    first: c_uint,
    last: c_uint,
    next: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let mut from = first;
    let kept = kept().map(c_int::cast_unsigned);
    for number in kept.filter(|number| (first..=last).contains(number)) {
        if from < number {
            let result = next(from, number - 1);
            if result != 0 {
                return result;
            }
        }
        from = number + 1;
    }
    // If `first` is above `last`, the kernel returns the error.
    if from <= last || from == first { next(from, last) } else { 0 }
}

/// close(2).
///
/// # Safety
///
/// The caller meets the requirements of the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    close_by(fd, || {
        let Some(next) = CLOSE.found() else { return -1 };
        // SAFETY: the caller's promise.
        unsafe { next(fd) }
    })
}

/// close_range(2).
///
/// # Safety
///
/// The caller meets the requirements of the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_range_by(first, last, |first, last| {
        let Some(next) = CLOSE_RANGE.found() else { return -1 };
        // SAFETY: the caller's promise.
        unsafe { next(first, last, flags) }
    })
}

/// closefrom(3).
///
/// # Safety
///
/// The caller meets the requirements of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    let Some(next) = CLOSEFROM.found() else { return };
    let mut from = first.max(0);
    for number in kept().filter(|number| first <= *number) {
        for fd in from..number {
            // SAFETY: the caller's promise.
            unsafe { close(fd) };
        }
        from = number + 1;
    }
    // SAFETY: the caller's promise.
    unsafe { next(from) }
}

/// Defines fcntl(2) and ioctl(2). In C their third argument is optional, but it is passed in the
/// same way as a required one.
macro_rules! controlling {
    ($($table:ident, $name:ident, $command:ty, $closing:expr;)*) => {
        next! {
            CLOSE: fn close(c_int) -> c_int;
            CLOSE_RANGE: fn close_range(c_uint, c_uint, c_int) -> c_int;
            CLOSEFROM: fn closefrom(c_int);
            $($table: fn $name(c_int, $command, usize) -> c_int;)*
        }
        $(
            /// The interposed fcntl(2) or ioctl(2). `F_SETFD` and `FIOCLEX` could set the
            /// close-on-exec flag. For an inherited descriptor they fail with `EBADF`, as if the
            /// descriptor were closed.
            ///
            /// # Safety
            ///
            /// The caller meets the requirements of the C library's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(fd: c_int, command: $command, argument: usize) -> c_int {
                if command == $closing && is_kept(fd) {
                    return errno::answer(Err(Errno::BADF));
                }
                let Some(next) = $table.found() else { return -1 };
                // SAFETY: the caller's promise.
                unsafe { next(fd, command, argument) }
            }
        )*
    };
}

controlling! {
    FCNTL, fcntl, c_int, libc::F_SETFD;
    FCNTL64, fcntl64, c_int, libc::F_SETFD;
    IOCTL, ioctl, c_ulong, libc::FIOCLEX;
}
