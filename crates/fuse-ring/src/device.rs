//! Functions for the FUSE device. They check and clone the device, register files for passthrough,
//! and count the possible processors, each of which has a queue.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_dev_ioctl_clone`) and `fs/fuse/dev_uring.c`.
#![expect(unsafe_code, reason = "an ioctl takes a pointer")]

use std::ffi::c_void;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Setter, ioctl, opcode};

const DEVICE: &str = "/dev/fuse";
/// The device numbers of `/dev/fuse`: `MISC_MAJOR` and `FUSE_MINOR`.
const NUMBERS: (u32, u32) = (10, 229);

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Opens `/dev/fuse` again, for the connection of the descriptor `mounted`.
///
/// Each thread should read requests through its own clone of the device. Threads that share one
/// open file description contend for its reference count.
///
/// # Errors
///
/// `EINVAL` if `mounted` is no FUSE device, or has no connection. Other errors as in open(2).
pub fn clone_fuse_device(mounted: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = mounted.as_raw_fd() as u32;
    // SAFETY: with `FUSE_DEV_IOC_CLONE` the kernel only reads a `u32` through the pointer that it
    // gets. (The bits of this ioctl number claim that the kernel writes the `u32`.)
    let clone = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the kernel only reads the descriptor number in `clone`. It refuses the number of a
    // descriptor that is no FUSE device.
    unsafe { ioctl(device.as_fd(), clone) }?;
    Ok(device)
}

/// A `struct fuse_backing_map`.
#[repr(C)]
struct BackingMap {
    fd: i32,
    flags: u32,
    padding: u64,
}

/// The ioctl numbers `FUSE_DEV_IOC_BACKING_OPEN` and `FUSE_DEV_IOC_BACKING_CLOSE`.
const BACKING_OPEN: rustix::ioctl::Opcode = opcode::write::<BackingMap>(229, 1);
const BACKING_CLOSE: rustix::ioctl::Opcode = opcode::write::<u32>(229, 2);

struct BackingOpen(BackingMap);

// SAFETY: the kernel only reads the `BackingMap` through the pointer, and the pointer is valid
// during the call. The result of the system call is a number.
unsafe impl Ioctl for BackingOpen {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        BACKING_OPEN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut self.0).cast()
    }

    unsafe fn output_from_ptr(result: IoctlOutput, _: *mut c_void) -> Result<u32, Errno> {
        u32::try_from(result).map_err(|_| Errno::INVAL)
    }
}

/// Registers `file` with the connection of the FUSE device `device`, so that the kernel can read
/// and write it for a file of the mount. Returns the number of the registered file.
///
/// # Errors
///
/// `EPERM` without `CAP_SYS_ADMIN`; `EOPNOTSUPP` for a file that is not regular; `ELOOP` for a file
/// of a stacked file system; `ENOTTY` before Linux 6.9; `EINVAL` if there is no connection, or if
/// it has not chosen passthrough.
pub fn open_backing_file(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> Result<u32, Errno> {
    check_is_fuse(device)?;
    let map = BackingMap { fd: file.as_raw_fd(), flags: 0, padding: 0 };
    // SAFETY: `device` is a FUSE device, so the kernel executes the ioctl that `BackingOpen`
    // describes.
    unsafe { ioctl(device, BackingOpen(map)) }
}

/// Ends the registration of a file for passthrough. Files of the mount that are already open
/// continue to read and write the registered file.
///
/// # Errors
///
/// `ENOENT` for an unknown number; `EPERM` without `CAP_SYS_ADMIN`.
pub fn close_backing_file(device: BorrowedFd<'_>, id: u32) -> Result<(), Errno> {
    check_is_fuse(device)?;
    // SAFETY: with `FUSE_DEV_IOC_BACKING_CLOSE` the kernel only reads a `u32` through the pointer.
    let close = unsafe { Setter::<BACKING_CLOSE, u32>::new(id) };
    // SAFETY: `device` is a FUSE device.
    unsafe { ioctl(device, close) }
}

/// Returns the number of possible processors. A FUSE ring has one queue for each of them.
///
/// The count of possible processors may be below the highest processor number plus 1: with the
/// processors 0, 2 and 3, it is 3.
///
/// # Errors
///
/// The errors of reading `/sys/devices/system/cpu/possible`; `InvalidData` if its content is no
/// list of ranges.
pub fn possible_cpus() -> io::Result<u16> {
    let list = fs::read_to_string(POSSIBLE)?;
    count_of(list.trim()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Checks that `device` is a FUSE device.
///
/// # Errors
///
/// `ENODEV` if `device` is another kind of file. Other errors as in fstat(2).
pub(crate) fn check_is_fuse(device: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = fstat(device)?;
    let is_fuse = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == NUMBERS;
    if is_fuse { Ok(()) } else { Err(Errno::NODEV) }
}

/// Returns how many numbers are in a list of ranges, the format of `POSSIBLE`. For `0,2-3` the
/// result is 3.
fn count_of(list: &str) -> Option<u16> {
    list.split(',').try_fold(0_u16, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count.checked_add(last.checked_sub(first)?)?.checked_add(1)
    })
}

// Miri opens no devices.
#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn count_of_a_list_skips_missing_numbers() {
        let counts = ["0", "0-1", "0,2-3", "0-3,8-11", "5"].map(count_of);
        assert_eq!(counts, [Some(1), Some(2), Some(3), Some(8), Some(1)]);
        assert_eq!(["", "a", "3-1", "0-", "0-65535", "-1"].map(count_of), [None; 6]);
    }

    #[test]
    fn possible_cpus_is_at_least_one() {
        assert!(possible_cpus().expect("sysfs") >= 1);
    }

    #[test]
    fn other_device_is_refused() {
        let null = File::open("/dev/null").expect("a device");
        assert_eq!(check_is_fuse(null.as_fd()), Err(Errno::NODEV));
        // Accept any error: without permission, `clone_fuse_device` cannot even open `/dev/fuse`.
        assert!(clone_fuse_device(null.as_fd()).is_err());
    }
}
