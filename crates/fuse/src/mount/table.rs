//! What is mounted where.
//!
//! The mount table is read from `/proc/self/mountinfo`, which asks no file system anything, so that
//! a mount whose server hangs or is dead does no harm.
//!
//! Source: proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use corewalk::Errno;

use super::error::MountError;

const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// A device number, major and minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number(u32, u32);

/// What is mounted in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) number: Number,
    pub(super) is_fuse: bool,
}

/// Returns the path of a directory that something can be mounted on, without links in it.
pub(super) fn checked_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: std::io::Error| match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
        Errno::NOENT => MountError::Missing,
        Errno::NOTDIR => MountError::NotDirectory,
        Errno::NOTCONN | Errno::CONNABORTED => MountError::Dead,
        error => MountError::Denied(error),
    };
    let path = path.canonicalize().map_err(failed)?;
    if let Some(found) = mounted_on(&path)? {
        let is_dead = found.is_fuse && is_dead(&path);
        return Err(if is_dead { MountError::Dead } else { MountError::Busy });
    }
    match path.metadata().map_err(failed)?.is_dir() {
        true => Ok(path),
        false => Err(MountError::NotDirectory),
    }
}

/// Returns whether the FUSE mount at `path` has lost its server. The kernel has the attributes of
/// its root; only a request tells.
pub(super) fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Returns what a path walk meets that comes to `path`, if it is the root of a mount.
pub(super) fn mounted_on(path: &Path) -> Result<Option<Found>, MountError> {
    let table = std::fs::read(MOUNT_TABLE).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        MountError::System("reading the mount table", errno)
    })?;
    Ok(find(&table, path))
}

/// Returns the last line for `path`: what was mounted last lies on top.
fn find(table: &[u8], path: &Path) -> Option<Found> {
    table.split(|&b| b == b'\n').rev().find_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let device = std::str::from_utf8(words.nth(2)?).ok()?;
        if unescaped(words.nth(1)?) != path.as_os_str() {
            return None;
        }
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        let (major, minor) = device.split_once(':')?;
        let number = Number(major.parse().ok()?, minor.parse().ok()?);
        Some(Found { number, is_fuse: kind == b"fuse" || kind.starts_with(b"fuse.") })
    })
}

/// Returns a word of the table with its octal escapes (`\040` for a space) undone.
fn unescaped(word: &[u8]) -> OsString {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|digits| digits.iter().all(|b| (b'0'..=b'7').contains(b)));
        match digits {
            Some(digits) if first == b'\\' => {
                let code = digits.iter().fold(0_u32, |code, b| code * 8 + u32::from(b - b'0'));
                out.push(code as u8);
                rest = &after[3..];
            }
            _ => {
                out.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 28 0:21 / /proc rw - proc proc rw\n\
        40 28 0:33 / /mnt/a\\040b\\134 rw,nosuid shared:1 - fuse.corewalk tmpfs rw\n\
        41 28 0:34 / /mnt/twice rw - tmpfs none rw\n\
        42 41 0:35 / /mnt/twice rw - fuse x rw\n\
        torn line\n";

    #[test]
    fn escaped_path_is_found() {
        let found = find(TABLE, Path::new("/mnt/a b\\"));
        assert_eq!(found, Some(Found { number: Number(0, 33), is_fuse: true }));
    }

    #[test]
    fn topmost_mount_wins() {
        let found = find(TABLE, Path::new("/mnt/twice"));
        assert_eq!(found, Some(Found { number: Number(0, 35), is_fuse: true }));
    }

    #[test]
    fn other_paths_are_not_found() {
        assert_eq!(find(TABLE, Path::new("/mnt")), None);
        assert_eq!(find(b"", Path::new("/mnt")), None);
        assert!(!find(TABLE, Path::new("/proc")).expect("it is there").is_fuse);
    }
}
