//! The descriptor of the namespace's file, which `corewalk ipc exec` hands on to every program.
//!
//! A program that has changed its user, given up capabilities or entered a user namespace may not
//! open the file any more. A descriptor needs no permission: it is inherited over fork(2) and
//! execve(2), and the file is mapped from it before `main`. `COREWALK_IPC_FD` holds its number, and
//! the device and inode of its file: a descriptor of this number may be another file by now, and is
//! then left alone.
//!
//! # Programs that close what they do not know
//!
//! The mapping does not need the descriptor; the next program does. So the library stands in front
//! of close(2), close_range(2), closefrom(3) and `F_SETFD`, and spares this one descriptor: to its
//! program it looks as if it were not open. The number is high, so it is in the way of no other.
//!
//! A program that closes it without the C library, or by dup2(2) over its number, loses it for the
//! programs after it. Those open the file by its path, if they may; `open` says so otherwise, with
//! the first call.
//!
//! Rejected: to open the file again before execve(2). The C library starts programs by functions
//! that no library can stand in front of (posix_spawn(3) in system(3)), and `/proc/self/map_files`
//! takes a capability.
//!
//! Source: close_range(2), fcntl(2); Linux `fs/file.c` (`dup_fd`, `do_close_on_exec`).

use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};
use libc::{c_int, c_uint, c_void};
use rustix::fs::fstat;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

use crate::errno;
use crate::next::Next;

/// Names the descriptor: number, device and inode, with colons between them.
const FD_ENV: &str = "COREWALK_IPC_FD";

/// The number of the descriptor, or [`NONE`].
static NUMBER: AtomicU32 = AtomicU32::new(NONE);
const NONE: u32 = u32::MAX;
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

static CLOSE: Next = Next::new(c"close");
static CLOSE_RANGE: Next = Next::new(c"close_range");
static CLOSEFROM: Next = Next::new(c"closefrom");
static FCNTL: Next = Next::new(c"fcntl");
static FCNTL64: Next = Next::new(c"fcntl64");

/// Looks up what this module stands in front of, and which descriptor was handed on.
pub(crate) fn resolve() {
    for next in [&CLOSE, &CLOSE_RANGE, &CLOSEFROM, &FCNTL, &FCNTL64] {
        next.address();
    }
    let handed = std::env::var(FD_ENV).ok();
    let Some([number, device, inode]) = handed.as_deref().and_then(parse) else { return };
    // ORDERING: Relaxed. One thread so far.
    DEVICE.store(device, Ordering::Relaxed);
    // ORDERING: Relaxed. As above.
    INODE.store(inode, Ordering::Relaxed);
    // ORDERING: Relaxed. As above.
    NUMBER.store(i32::try_from(number).map_or(NONE, i32::cast_unsigned), Ordering::Relaxed);
}

fn parse(word: &str) -> Option<[u64; 3]> {
    let mut parts = word.split(':').map(|part| part.parse().ok());
    let numbers = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(numbers)
}

/// Returns the descriptor, if it is still that of the file.
pub(crate) fn file() -> Option<BorrowedFd<'static>> {
    // ORDERING: Relaxed. Set when the library is loaded, and never again.
    let number = NUMBER.load(Ordering::Relaxed).cast_signed();
    if number < 0 {
        return None;
    }
    // SAFETY: the number is not -1. Whether a file is open under it is looked at now, and this
    // library keeps the program from closing the one that is wanted.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let status = fstat(file).ok()?;
    // ORDERING: Relaxed. See above.
    let wanted = (DEVICE.load(Ordering::Relaxed), INODE.load(Ordering::Relaxed));
    (wanted == (status.st_dev, status.st_ino)).then_some(file)
}

/// Returns true if `fd` is the descriptor that was handed on, which stays open.
#[inline]
fn is_kept(fd: c_int) -> bool {
    // ORDERING: Relaxed. See `file`.
    fd.cast_unsigned() == NUMBER.load(Ordering::Relaxed) && file().is_some()
}

/// Closes `fd` by `next`, unless it stays open.
pub(crate) fn close_by(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if is_kept(fd) {
        return errno::number(Err(Errno::BADF));
    }
    next()
}

/// Closes descriptors by `next`, without the one that stays open.
pub(crate) fn close_range_by(
    first: c_uint,
    last: c_uint,
    next: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    // ORDERING: Relaxed. See `file`.
    let kept = NUMBER.load(Ordering::Relaxed);
    if !(first..=last).contains(&kept) || file().is_none() {
        return next(first, last);
    }
    let below = if first < kept { next(first, kept - 1) } else { 0 };
    let above = if kept < last { next(kept + 1, last) } else { 0 };
    if below == 0 { above } else { below }
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
    // ORDERING: Relaxed. See `file`.
    let number = NUMBER.load(Ordering::Relaxed).cast_signed();
    let mut from = first.max(0);
    if from <= number && file().is_some() {
        for fd in from..number {
            // SAFETY: the caller's promise.
            unsafe { close(fd) };
        }
        from = number + 1;
    }
    // SAFETY: the caller's promise.
    unsafe { next(from) }
}

/// Defines fcntl(2) under its two names. A third argument is in the register that one of a plain
/// function has.
macro_rules! controlling {
    ($($table:ident, $name:ident;)*) => {
        $(
            /// fcntl(2): the descriptor that was handed on stays open over execve(2).
            ///
            /// # Safety
            ///
            /// That of the call.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
                if command == libc::F_SETFD && is_kept(fd) {
                    return errno::number(Err(Errno::BADF));
                }
                type Function = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
                let Some(next) = $table.found() else { return -1 };
                // SAFETY: what the C library defines under this name takes its arguments this way.
                let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
                // SAFETY: the caller's promise.
                unsafe { next(fd, command, argument) }
            }
        )*
    };
}

controlling! {
    FCNTL, fcntl;
    FCNTL64, fcntl64;
}
