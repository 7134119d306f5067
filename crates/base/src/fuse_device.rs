//! The FUSE device as a ring needs it: checked, cloned, and with one queue for each processor.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_dev_ioctl_clone`) and `fs/fuse/dev_uring.c`.
#![expect(unsafe_code, reason = "an ioctl takes a pointer")]

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor, open};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

const DEVICE: &str = "/dev/fuse";
/// The device numbers of `/dev/fuse`: `MISC_MAJOR` and `FUSE_MINOR`.
const NUMBERS: (u32, u32) = (10, 229);

const POSSIBLE: &str = "/sys/devices/system/cpu/possible";

/// `FUSE_DEV_IOC_CLONE`.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Opens `/dev/fuse` again, for the connection of the descriptor `mounted`.
///
/// Threads with a descriptor each do not contend for the reference count of one open file.
///
/// # Errors
///
/// `EINVAL` if `mounted` is no FUSE device, or has no connection; others as open(2).
pub fn clone_fuse_device(mounted: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let device = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let number = mounted.as_raw_fd() as u32;
    // SAFETY: `FUSE_DEV_IOC_CLONE` reads a `u32` through the pointer, in spite of the direction
    // that its number encodes.
    let clone = unsafe { Setter::<CLONE, u32>::new(number) };
    // SAFETY: the call only reads a descriptor number. A number that is no FUSE device is refused.
    unsafe { ioctl(device.as_fd(), clone) }?;
    Ok(device)
}

/// Returns the number of possible processors, which is the number of queues of a FUSE ring.
///
/// The count leaves out missing processor numbers. For the processors 0, 2 and 3 it is 3.
///
/// # Errors
///
/// As read(2) of `/sys/devices/system/cpu/possible`; `InvalidData` if it is no list of ranges.
pub fn possible_cpus() -> io::Result<u16> {
    let list = fs::read_to_string(POSSIBLE)?;
    count_of(list.trim()).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Checks that `device` is a FUSE device.
///
/// # Errors
///
/// `ENODEV` if it is not; others as fstat(2).
pub(crate) fn check_is_fuse(device: BorrowedFd<'_>) -> Result<(), Errno> {
    let stat = fstat(device)?;
    let is_fuse = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == NUMBERS;
    if is_fuse { Ok(()) } else { Err(Errno::NODEV) }
}

/// Returns the count of numbers in a list of ranges such as `0,2-3`, or `None` if it is no list.
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
        // `clone_fuse_device` fails already at the open if there is no permission.
        assert!(clone_fuse_device(null.as_fd()).is_err());
    }
}
