//! What is mounted where.
//!
//! The mount table is read from `/proc/self/mountinfo`, which asks no file system anything, so that
//! a mount whose server hangs or is dead does no harm.
//!
//! A mount goes by its number and that of its device: its path is another once somebody has renamed a
//! directory above it, or moved the mount. The device number alone also has every copy of it
//! (`mount --bind`), the number of the mount alone is given again.
//!
//! The kernel does not tell what number a new mount got; it is what lies there afterwards. So that this
//! is not what another process has mounted at the same time, whoever mounts has a [`Claim`] of the
//! place meanwhile.
//!
//! Source: proc_pid_mountinfo(5).

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::primitives::thread;
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::error::MountError;

const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// How often a claim is tried for, and how long after the last time: a mount takes a few milliseconds.
const CLAIM_TRIES: u32 = 500;
const CLAIM_PAUSE: Duration = Duration::from_millis(2);

/// What a mount goes by, for as long as it exists; then another may get the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    mount: u64,
    /// The device number, major and minor.
    device: (u32, u32),
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) identity: Identity,
    pub(super) path: PathBuf,
    pub(super) is_fuse: bool,
}

/// A lock on the directory that is mounted on, until it is dropped; none if that cannot be locked.
#[must_use = "others may mount as soon as it is dropped"]
pub(super) struct Claim(#[allow(dead_code, reason = "it is there to be dropped")] Option<OwnedFd>);

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

/// Returns a claim of the directory `path`, on which nothing was mounted. Others who want one wait; but not
/// for long, since anybody who can read the directory may have locked it, as flock(1) does.
///
/// # Errors
/// [`MountError::Busy`] if something was mounted there before it was had.
pub(super) fn claim(path: &Path) -> Result<Claim, MountError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // One that may not be read, or is not on a file system with locks, is mounted on without.
    let claimed = rustix::fs::open(path, flags, Mode::empty()).ok().filter(|directory| {
        (0..CLAIM_TRIES).any(|_| {
            match rustix::fs::flock(directory, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    thread::sleep(CLAIM_PAUSE);
                    false
                }
                _ => true,
            }
        })
    });
    match mounted_on(path)? {
        None => Ok(Claim(claimed)),
        Some(_) => Err(MountError::Busy),
    }
}

/// Returns what a path walk meets that comes to `path`, if it is the root of a mount.
pub(super) fn mounted_on(path: &Path) -> Result<Option<Found>, MountError> {
    Ok(find(&read()?, path))
}

/// Returns where a mount is now.
pub(super) fn find_again(identity: Identity) -> Result<Option<PathBuf>, MountError> {
    let found = lines(&read()?).find(|found| found.identity == identity);
    Ok(found.map(|found| found.path))
}

fn read() -> Result<Vec<u8>, MountError> {
    std::fs::read(MOUNT_TABLE).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        MountError::System("reading the mount table", errno)
    })
}

/// Returns the last line for `path`: what was mounted last lies on top.
fn find(table: &[u8], path: &Path) -> Option<Found> {
    lines(table).rfind(|found| found.path == path)
}

fn lines(table: &[u8]) -> impl DoubleEndedIterator<Item = Found> {
    table.split(|&b| b == b'\n').filter_map(|line| {
        let mut words = line.split(|&b| b == b' ');
        let mount = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let (major, minor) = std::str::from_utf8(words.nth(1)?).ok()?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let path = PathBuf::from(unescaped(words.nth(1)?));
        let kind = words.skip_while(|word| *word != b"-").nth(1)?;
        let is_fuse = kind == b"fuse" || kind.starts_with(b"fuse.");
        Some(Found { identity: Identity { mount, device }, path, is_fuse })
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
        43 28 0:33 /dir /mnt/copy rw - fuse.corewalk tmpfs rw\n\
        torn line\n";

    fn fuse(mount: u64, minor: u32, path: &str) -> Found {
        let identity = Identity { mount, device: (0, minor) };
        Found { identity, path: path.into(), is_fuse: true }
    }

    #[test]
    fn escaped_path_is_found() {
        let path = "/mnt/a b\\";
        assert_eq!(find(TABLE, Path::new(path)), Some(fuse(40, 33, path)));
    }

    #[test]
    fn topmost_mount_wins() {
        assert_eq!(find(TABLE, Path::new("/mnt/twice")), Some(fuse(42, 35, "/mnt/twice")));
    }

    /// The fourth column is the directory of the file system that is mounted.
    #[test]
    fn copies_of_a_mount_have_numbers_of_their_own() {
        let all: Vec<_> = lines(TABLE).filter(|found| found.is_fuse).collect();
        let copy = fuse(43, 33, "/mnt/copy");
        assert_eq!(all, [fuse(40, 33, "/mnt/a b\\"), fuse(42, 35, "/mnt/twice"), copy]);
    }

    #[test]
    fn claim_is_waited_for_and_no_more_than_a_moment() {
        let path = std::env::temp_dir().join(format!("corewalk-claim-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a folder for the test");
        let claim = super::claim(&path).expect("nothing is mounted there");
        thread::scope(|scope| {
            let other = scope.spawn(|| super::claim(&path).map(|claim| claim.0.is_some()));
            drop(claim);
            assert_eq!(other.join().expect("a thread"), Ok(true));
        });
        let _kept = super::claim(&path).expect("nothing is mounted there");
        assert!(super::claim(&path).expect("it goes on without").0.is_none());
        std::fs::remove_dir(&path).expect("it is the test's");
    }

    #[test]
    fn other_paths_are_not_found() {
        assert_eq!(find(TABLE, Path::new("/mnt")), None);
        assert_eq!(find(b"", Path::new("/mnt")), None);
        assert!(!find(TABLE, Path::new("/proc")).expect("it is there").is_fuse);
    }
}
