//! The mount table, and the identity of a mount.
//!
//! The table is read from `/proc/self/mountinfo`. This read calls none of the mounted file systems,
//! so it cannot block on a mount whose server hangs.
//!
//! A mount is identified by its own number and the number of its device. Neither is enough: copies
//! of the mount (`mount --bind`) have the same device number, and the kernel reuses mount numbers.
//! The path is no identity, because the mount may be moved, or a directory above it may be renamed.
//!
//! fusermount3(1) and mount(2) do not tell the number of the new mount, so it is read from the
//! table afterwards. So that no other process mounts on the directory in between, each process that
//! mounts with this crate holds a [`MountpointLock`] on it.
//!
//! Source: proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corewalk::{Errno, errno_of};
use corewalk_base::primitives::thread;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, StatxFlags};

use super::error::MountError;

pub(super) const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// How many times the lock on the directory is tried, with `LOCK_PAUSE` after each try. Another
/// process that mounts with this crate holds the lock for a few milliseconds.
const LOCK_TRIES: u32 = 500;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Number and device number of a mount, unique as long as the mount exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    mount: u64,
    pub(super) device: (u32, u32),
}

impl Identity {
    /// Returns the identity of the mount whose root directory is `root`. Does not ask the server of
    /// the file system.
    pub(super) fn of(root: BorrowedFd<'_>) -> Result<Identity, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let status = rustix::fs::statx(root, "", flags, StatxFlags::empty())?;
        let table = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd()));
        let table = table.map_err(errno_of)?;
        let mount =
            table.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        let device = (status.stx_dev_major, status.stx_dev_minor);
        Ok(Identity { mount: mount.ok_or(Errno::IO)?, device })
    }
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    pub(super) identity: Identity,
    parent: u64,
    pub(super) path: PathBuf,
    pub(super) is_fuse: bool,
}

/// A lock on the directory of a new mount; `None` if the directory cannot be locked.
#[must_use = "other processes may mount once it is dropped"]
pub(super) struct MountpointLock(
    #[allow(dead_code, reason = "dropping it releases the lock")] Option<OwnedFd>,
);

/// Checks that a file system can be mounted on `path`. Returns the path without symbolic links.
pub(super) fn checked_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    let failed = |error: std::io::Error| match errno_of(error) {
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

/// Returns true if the mount at `path` has lost its server. Calls statfs(2), which always sends a
/// request to the server. The kernel could answer stat(2) from its cache.
pub(super) fn is_dead(path: &Path) -> bool {
    matches!(rustix::fs::statfs(path), Err(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Locks the directory `path` against other processes that mount with this crate. Waits for about a
/// second and then continues without the lock. Any process that can read the directory can lock it
/// with flock(1), so a longer wait could block all mounts.
///
/// # Errors
/// [`MountError::Busy`] if another process has mounted a file system on `path` meanwhile.
pub(super) fn lock_mountpoint(path: &Path) -> Result<MountpointLock, MountError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Continue without a lock if the directory cannot be opened, or if its file system has no
    // locks.
    let locked = rustix::fs::open(path, flags, Mode::empty()).ok().filter(|directory| {
        (0..LOCK_TRIES).any(|_| {
            match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    thread::sleep(LOCK_PAUSE);
                    false
                }
                _ => true,
            }
        })
    });
    match mounted_on(path)? {
        None => Ok(MountpointLock(locked)),
        Some(_) => Err(MountError::Busy),
    }
}

pub(super) fn mounted_on(path: &Path) -> Result<Option<MountEntry>, MountError> {
    Ok(find(&read()?, path))
}

pub(super) fn find_again(identity: Identity) -> Result<Option<PathBuf>, MountError> {
    let found = lines(&read()?).find(|found| found.identity == identity);
    Ok(found.map(|found| found.path))
}

/// Returns true if a file system is mounted below a mount of `device`. Returns `None` if the mount
/// table cannot be read.
pub(super) fn has_mounts_below(device: (u32, u32)) -> Option<bool> {
    Some(is_any_below(&read().ok()?, device))
}

fn is_any_below(table: &[u8], device: (u32, u32)) -> bool {
    let above = lines(table).filter(|found| found.identity.device == device);
    let above: Vec<u64> = above.map(|found| found.identity.mount).collect();
    lines(table).any(|found| above.contains(&found.parent))
}

fn read() -> Result<Vec<u8>, MountError> {
    std::fs::read(MOUNT_TABLE)
        .map_err(|error| MountError::System("reading the mount table", errno_of(error)))
}

/// Returns the topmost mount at `path`. It has the last entry with this path in the table, because
/// later mounts are on top of earlier ones.
fn find(table: &[u8], path: &Path) -> Option<MountEntry> {
    lines(table).rfind(|found| found.path == path)
}

fn lines(table: &[u8]) -> impl DoubleEndedIterator<Item = MountEntry> {
    table.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let mount = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let parent = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let (major, minor) = std::str::from_utf8(words.next()?).ok()?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let path = PathBuf::from(unescaped(words.nth(1)?));
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        let is_fuse = kind == b"fuse" || kind.starts_with(b"fuse.");
        Some(MountEntry { identity: Identity { mount, device }, parent, path, is_fuse })
    })
}

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
        43 28 0:33 /dir /mnt/copy rw - fuse.corewalk tmpfs rw\n\
        torn line\n";

    fn fuse(mount: u64, parent: u64, minor: u32, path: &str) -> MountEntry {
        let identity = Identity { mount, device: (0, minor) };
        MountEntry { identity, parent, path: path.into(), is_fuse: true }
    }

    #[test]
    fn escaped_path_is_found() {
        let path = "/mnt/a b\\";
        assert_eq!(find(TABLE, Path::new(path)), Some(fuse(40, 28, 33, path)));
    }

    #[test]
    fn topmost_mount_wins() {
        assert_eq!(find(TABLE, Path::new("/mnt/twice")), Some(fuse(42, 41, 35, "/mnt/twice")));
    }

    /// A bind mount of a directory has another mount number than its original, but the same device
    /// number.
    #[test]
    fn copies_of_a_mount_have_numbers_of_their_own() {
        let all: Vec<_> = lines(TABLE).filter(|found| found.is_fuse).collect();
        let copy = fuse(43, 28, 33, "/mnt/copy");
        let others = [fuse(40, 28, 33, "/mnt/a b\\"), fuse(42, 41, 35, "/mnt/twice")];
        assert_eq!(all, [&others[..], &[copy]].concat());
    }

    #[test]
    fn mount_below_a_mount_or_its_copy_is_found() {
        let found = [33, 34, 35].map(|minor| is_any_below(TABLE, (0, minor)));
        assert_eq!(found, [false, true, false]);
        let below = [TABLE, b"44 43 0:36 / /mnt/copy/dir rw - tmpfs none rw\n"].concat();
        assert!(is_any_below(&below, (0, 33)));
    }

    #[test]
    fn taken_lock_is_waited_for_only_a_moment() {
        let path =
            std::env::temp_dir().join(format!("corewalk-mountpoint-lock-{}", std::process::id()));
        std::fs::create_dir(&path).expect("make the test's folder");
        let lock = super::lock_mountpoint(&path).expect("the folder is no mount point");
        thread::scope(|scope| {
            let other = scope.spawn(|| super::lock_mountpoint(&path).map(|lock| lock.0.is_some()));
            drop(lock);
            assert_eq!(other.join().expect("a thread"), Ok(true));
        });
        let _kept = super::lock_mountpoint(&path).expect("the folder is no mount point");
        assert!(
            super::lock_mountpoint(&path).expect("mounting without a lock is allowed").0.is_none()
        );
        std::fs::remove_dir(&path).expect("remove the test's folder");
    }

    #[test]
    fn other_paths_are_not_found() {
        assert_eq!(find(TABLE, Path::new("/mnt")), None);
        assert_eq!(find(b"", Path::new("/mnt")), None);
        assert!(!find(TABLE, Path::new("/proc")).expect("the table has /proc").is_fuse);
    }
}
