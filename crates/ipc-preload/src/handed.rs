//! The descriptors that `corewalk ipc exec` hands on to every program.
//!
//! One is that of the namespace's file, the other that of the folder of segments. A program that
//! has changed its user, dropped capabilities or entered a user namespace may not open either by
//! its path. A descriptor needs no permission: fork(2) and execve(2) hand it on. `COREWALK_IPC_FD`
//! and `COREWALK_IPC_SHM_FD` hold the number of each, and the device and inode of its file. If
//! another file has the number by now, the library leaves that file alone.
//!
//! # Programs that close all descriptors
//!
//! The library maps the file before `main`, so the program itself needs no descriptor of it. The
//! next program does. So the library stands in front of close(2), close_range(2), closefrom(3),
//! `F_SETFD` of fcntl(2) and `FIOCLEX` of ioctl(2), and keeps both descriptors open. They look
//! closed to the program. Their numbers are high, so they do not meet the numbers that a program
//! chooses.
//!
//! A program that closes them without the C library, or by dup2(2) over the number, loses them for
//! the programs that it starts. Those open the file by its path, if they may. If not, their calls
//! return `ENOSYS` and `open` says why.
//!
//! Rejected: to open the file again before execve(2). posix_spawn(3) within system(3) of the C
//! library cannot be intercepted, and `/proc/self/map_files` takes a capability.
//!
//! Source: close_range(2), fcntl(2); Linux `fs/file.c` (`dup_fd`, `do_close_on_exec`).

use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};
use libc::{c_int, c_uint, c_ulong, c_void};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

use crate::errno;
use crate::next::Next;

/// A descriptor that was handed on. All fields are set when the library is loaded, and never again.
struct Handed {
    /// The number of the descriptor, or [`NONE`].
    number: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
}

const NONE: u32 = u32::MAX;

/// The file of the namespace.
static FILE: Handed = Handed::none();

/// The folder of segments.
static FOLDER: Handed = Handed::none();

impl Handed {
    const fn none() -> Self {
        Self { number: AtomicU32::new(NONE), device: AtomicU64::new(0), inode: AtomicU64::new(0) }
    }

    /// Reads the variable `name`: number, device and inode, with colons between them.
    fn read(&self, name: &str) {
        let word = std::env::var(name).ok();
        let Some([number, device, inode]) = word.as_deref().and_then(parse) else { return };
        // ORDERING: Relaxed. One thread so far.
        self.device.store(device, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.inode.store(inode, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.number
            .store(i32::try_from(number).map_or(NONE, i32::cast_unsigned), Ordering::Relaxed);
    }

    /// Returns the number of the descriptor, or [`NONE`].
    #[inline]
    fn number(&self) -> u32 {
        // ORDERING: Relaxed. See the type.
        self.number.load(Ordering::Relaxed)
    }

    /// Returns the descriptor, if its number still stands for the file.
    fn get(&self) -> Option<BorrowedFd<'static>> {
        let number = self.number().cast_signed();
        if number < 0 {
            return None;
        }
        // SAFETY: the number is not -1. fstat(2) tells whether a file is open under it, and the
        // library keeps the program from closing the right one.
        let file = unsafe { BorrowedFd::borrow_raw(number) };
        let status = fstat(file).ok()?;
        // ORDERING: Relaxed. See the type.
        let wanted = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        (wanted == (status.st_dev, status.st_ino)).then_some(file)
    }

    /// Returns true if `fd` is the descriptor.
    #[inline]
    fn is(&self, fd: c_uint) -> bool {
        fd == self.number() && self.get().is_some()
    }
}

static CLOSE: Next = Next::new(c"close");
static CLOSE_RANGE: Next = Next::new(c"close_range");
static CLOSEFROM: Next = Next::new(c"closefrom");
static FCNTL: Next = Next::new(c"fcntl");
static FCNTL64: Next = Next::new(c"fcntl64");
static IOCTL: Next = Next::new(c"ioctl");

/// Looks up the functions of the C library, and reads which descriptors were handed on.
pub(crate) fn resolve() {
    for next in [&CLOSE, &CLOSE_RANGE, &CLOSEFROM, &FCNTL, &FCNTL64, &IOCTL] {
        next.address();
    }
    FILE.read("COREWALK_IPC_FD");
    FOLDER.read("COREWALK_IPC_SHM_FD");
}

fn parse(word: &str) -> Option<[u64; 3]> {
    let mut parts = word.split(':').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// Returns the descriptor of the namespace's file, if it is still open.
pub(crate) fn file() -> Option<BorrowedFd<'static>> {
    FILE.get()
}

/// Returns the descriptor of the folder of segments, if it is still open.
pub(crate) fn folder() -> Option<BorrowedFd<'static>> {
    FOLDER.get()
}

/// Returns true if `fd` is a descriptor that was handed on, which stays open.
#[inline]
fn is_kept(fd: c_int) -> bool {
    [&FILE, &FOLDER].into_iter().any(|handed| handed.is(fd.cast_unsigned()))
}

/// Closes `fd` by `next`, unless it stays open.
pub(crate) fn close_by(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if is_kept(fd) {
        return errno::number(Err(Errno::BADF));
    }
    next()
}

/// Returns the numbers of the descriptors that stay open, in order.
fn kept() -> impl Iterator<Item = c_uint> {
    let mut numbers = [&FILE, &FOLDER].map(|handed| handed.get().map(|_| handed.number()));
    numbers.sort_unstable();
    numbers.into_iter().flatten()
}

/// Closes descriptors by `next`, without those that stay open.
pub(crate) fn close_range_by(
    first: c_uint,
    last: c_uint,
    next: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    let mut from = first;
    for number in kept().filter(|number| (first..=last).contains(number)) {
        if from < number {
            let result = next(from, number - 1);
            if result != 0 {
                return result;
            }
        }
        from = number + 1;
    }
    // If `first` is above `last`, the kernel says what is wrong.
    if from <= last || from == first { next(from, last) } else { 0 }
}

/// close(2).
///
/// # Safety
///
/// That of the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    close_by(fd, || {
        type Function = unsafe extern "C" fn(c_int) -> c_int;
        let Some(next) = CLOSE.found() else { return -1 };
        // SAFETY: what the C library defines under this name has this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
        // SAFETY: the caller's promise.
        unsafe { next(fd) }
    })
}

/// close_range(2).
///
/// # Safety
///
/// That of the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_range_by(first, last, |first, last| {
        type Function = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
        let Some(next) = CLOSE_RANGE.found() else { return -1 };
        // SAFETY: what the C library defines under this name has this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
        // SAFETY: the caller's promise.
        unsafe { next(first, last, flags) }
    })
}

/// closefrom(3).
///
/// # Safety
///
/// That of the function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn closefrom(first: c_int) {
    type Function = unsafe extern "C" fn(c_int);
    let Some(next) = CLOSEFROM.found() else { return };
    // SAFETY: what the C library defines under this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
    let mut from = first.max(0);
    for number in kept().map(c_uint::cast_signed).filter(|number| first <= *number) {
        for fd in from..number {
            // SAFETY: the caller's promise.
            unsafe { close(fd) };
        }
        from = number + 1;
    }
    // SAFETY: the caller's promise.
    unsafe { next(from) }
}

/// Defines a function with a command for a descriptor, under its names in the C library. The
/// register of the optional third argument is that of a third argument in a plain function.
macro_rules! controlling {
    ($($table:ident, $name:ident, $command:ty, $closing:expr;)*) => {
        $(
            /// fcntl(2) or ioctl(2): the descriptors that were handed on stay open over execve(2).
            ///
            /// # Safety
            ///
            /// That of the call.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(fd: c_int, command: $command, argument: usize) -> c_int {
                if command == $closing && is_kept(fd) {
                    return errno::number(Err(Errno::BADF));
                }
                type Function = unsafe extern "C" fn(c_int, $command, usize) -> c_int;
                let Some(next) = $table.found() else { return -1 };
                // SAFETY: the function of this name in the C library takes its arguments this way.
                let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
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
