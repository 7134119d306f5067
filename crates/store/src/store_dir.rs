//! The directory of the host in which a store is kept.
//!
//! | file | contents |
//! |---|---|
//! | `lock` | empty; the process that has the store open holds a flock(2) lock on it |
//! | `meta` | the database |
//! | `data` | blocks of files |
//! | `reserve` | space for commits on a full host, see `journal` |
//! | `log` | small transactions that are not in the database yet, see `log` |
//! | `meta.new` | a database that is being made; it is renamed to `meta` once it is complete |
//!
//! A directory that contains any file besides those of a store is refused and not changed.
//!
//! Source: flock(2), rename(2), proc_locks(5).

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use corewalk::{Errno, StatFs, errno_of};
use rustix::fs::{FlockOperation, OFlags, flock, fstatvfs};

use crate::database::Snapshot;
use crate::device::{Device, FileDevice};
use crate::journal::Devices;
use crate::overlay::Overlay;

const LOCK: &str = "lock";
const META: &str = "meta";
const META_NEW: &str = "meta.new";
const DATA: &str = "data";
const RESERVE: &str = "reserve";
const LOG: &str = "log";
const FILES: [&str; 6] = [LOCK, META, META_NEW, DATA, RESERVE, LOG];

/// The reason why a store cannot be opened. [`OpenError::errno`] returns the errno for mount(2).
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A process has the store open.
    Busy,
    /// The directory contains files that do not belong to a store, or the devices do not contain a
    /// store.
    Foreign,
    /// There is no store, and the options forbid making one.
    Missing,
    /// The file `lock` is missing, and the options forbid making it.
    LockMissing,
    /// Pages of the database are damaged.
    Damaged,
    /// The file `data` was truncated: it ends before the last written block of a file.
    DataShort {
        /// The length of `data` in bytes.
        len: u64,
        /// The smallest length that `data` must have, in bytes.
        expected: u64,
    },
    /// Two extents have a block in common.
    UsedTwice {
        /// The number of the shared block in `data`.
        block: u64,
    },
    /// This program does not know the format version of the store.
    Version(u32),
    /// The log has lost entries that an fsync had confirmed. The entry at `at` is invalid, but a
    /// later entry of the same generation is valid.
    LogDamaged {
        /// The offset in bytes of the invalid entry.
        at: u64,
        /// The offset in bytes of the later entry.
        later: u64,
        /// The length of the log in bytes.
        len: u64,
    },
    /// The store was not closed, and its log is missing or shorter than the superblock says. So
    /// entries that an fsync had confirmed may be lost.
    LogShort {
        /// The length in bytes.
        len: u64,
        /// The length that it had.
        expected: u64,
    },
    /// The log entry at `at` has the right hash but does not parse.
    LogUnreadable {
        /// The offset of the entry in bytes.
        at: u64,
    },
    /// The log cannot be read at `at`. The unreadable block may contain an entry that an fsync had
    /// confirmed.
    LogRead {
        /// The offset in bytes.
        at: u64,
        /// The error of the host.
        error: io::Error,
    },
    /// The database is too old. The log has an entry or an end mark of a later generation, so a
    /// commit of the database is lost.
    DatabaseBehind {
        /// The generation of the database.
        database: u64,
        /// The generation in the log.
        log: u64,
        /// The offset in bytes of the entry or the mark.
        at: u64,
    },
    /// Any other error of the host.
    Io(io::Error),
}

impl OpenError {
    /// Returns the errno that mount(2) of a disk would return. A store in use gives `EBUSY`, and a
    /// missing store gives `ENOENT`. A directory that is no store gives `EINVAL`, and so does an
    /// unknown format version. Damage gives `EUCLEAN` ("structure needs cleaning"). Any other error
    /// gives the errno of the host.
    ///
    /// # Examples
    /// ```
    /// use corewalk::Errno;
    /// use corewalk_store::{OpenError, Store, StoreOptions};
    ///
    /// let missing = std::env::temp_dir().join("no-such-store");
    /// let options = StoreOptions::default().with_read_only(true);
    /// let error = Store::open(&missing, &options).err().expect("there is none");
    /// assert_eq!(error.errno(), Errno::NOENT);
    /// assert_eq!(OpenError::Damaged.errno(), Errno::UCLEAN);
    /// ```
    pub fn errno(&self) -> Errno {
        match self {
            OpenError::Busy => Errno::BUSY,
            OpenError::Foreign | OpenError::Version(_) | OpenError::LogUnreadable { .. } => {
                Errno::INVAL
            }
            OpenError::Missing | OpenError::LockMissing => Errno::NOENT,
            OpenError::Damaged
            | OpenError::DataShort { .. }
            | OpenError::UsedTwice { .. }
            | OpenError::LogDamaged { .. }
            | OpenError::LogShort { .. }
            | OpenError::DatabaseBehind { .. } => Errno::UCLEAN,
            OpenError::LogRead { error, .. } | OpenError::Io(error) => errno_of(error),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Busy => f.write_str("the store is in use"),
            OpenError::Foreign => f.write_str("the directory is not empty and holds no store"),
            OpenError::Missing => f.write_str("the directory holds no store"),
            OpenError::LockMissing => f.write_str(
                "the file `lock` of the store is missing; it is always empty, so make it with \
                 `touch lock` in the directory of the store",
            ),
            OpenError::Damaged => f.write_str(
                "the database of the store has damaged pages; restore the store from a copy",
            ),
            OpenError::DataShort { len, expected } => write!(
                f,
                "the store has lost file data: `data` has {len} bytes, and had at least {expected}; \
                 restore the store from a copy (`corewalk fsck` names the files)"
            ),
            OpenError::UsedTwice { block } => write!(
                f,
                "block {block} of the store is used twice, so a write to one file would change \
                 another one; restore the store from a copy (`corewalk fsck` names the files)"
            ),
            OpenError::Version(version) => write!(
                f,
                "the store has format version {version}, which this program does not know; use the \
                 version of the program that made it"
            ),
            OpenError::LogShort { len, expected } => write!(
                f,
                "the store was not closed and its log is too short: `log` has {len} bytes, and had \
                 {expected}; restore all files of the store from one copy, or give up the changes \
                 that are lost: run `truncate --size={expected} log` in its directory, then \
                 `corewalk fsck`"
            ),
            OpenError::LogDamaged { at, later, len } => write!(
                f,
                "the log of the store is damaged at byte {at}: confirmed changes are lost, since \
                 byte {later} has a later entry; restore the store from a copy, or give up all \
                 changes from there on: run `truncate --size={at} log` and \
                 `truncate --size={len} log` in its directory, then `corewalk fsck`"
            ),
            OpenError::LogUnreadable { at } => write!(
                f,
                "the log of the store has an entry at byte {at} that is whole but not understood; \
                 another version of this program may have written it: mount the store with that one"
            ),
            OpenError::LogRead { at, error } => write!(
                f,
                "the log of the store cannot be read at byte {at}, where confirmed changes may be: \
                 {error}"
            ),
            OpenError::DatabaseBehind { database, log, at } => write!(
                f,
                "the database of the store is older than its log: it is at generation {database}, \
                 the log at {log} (byte {at}), so confirmed changes are lost, and `meta` is damaged \
                 or was replaced; restore all files of the store from one copy (`corewalk fsck` \
                 checks the older database)"
            ),
            OpenError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        match error.kind() {
            io::ErrorKind::InvalidData => OpenError::Damaged,
            io::ErrorKind::InvalidInput => OpenError::Foreign,
            _ => OpenError::Io(error),
        }
    }
}

/// The directory of a store, locked until this is dropped.
pub(crate) struct StoreDir {
    path: PathBuf,
    lock: File,
    /// True if changes of the devices stay in memory, because the files are opened for reading
    /// only.
    is_overlaid: bool,
}

impl StoreDir {
    /// Opens the store in the directory `path` for changes. If there is no store, makes one, and
    /// calls `format` to fill its database.
    pub(crate) fn open_or_make(
        path: &Path,
        format: impl FnOnce(Arc<dyn Device>) -> io::Result<Snapshot>,
    ) -> Result<StoreDir, OpenError> {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            Err(_) => {}
            Ok(()) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
            }
        }
        check_files(path)?;
        // Check the directory before the file `lock` is made: a directory that is no store must not
        // change.
        is_missing(path)?;
        let lock = open_file(&path.join(LOCK), true)?;
        let store_dir = StoreDir::lock(path, lock, FlockOperation::NonBlockingLockExclusive)?;
        if is_missing(path)? {
            let new = path.join(META_NEW);
            let device = open_file(&new, true)?;
            device.set_len(0)?;
            drop(format(Arc::new(FileDevice::new(device)?))?);
            open_file(&path.join(DATA), true)?;
            open_file(&path.join(RESERVE), true)?;
            fs::rename(&new, path.join(META))?;
        }
        // Sync the directory even if the store existed: the process that made the store may have
        // been killed before it synced the directory.
        File::open(path)?.sync_all()?;
        Ok(store_dir)
    }

    pub(crate) fn open(path: &Path) -> Result<StoreDir, OpenError> {
        StoreDir::check_there(path)?;
        let lock = open_file(&path.join(LOCK), false).map_err(lock_error)?;
        StoreDir::lock(path, lock, FlockOperation::NonBlockingLockExclusive)
    }

    /// Opens a store for a read-only mount. If the host's file system is read-only, the directory
    /// is locked for reading, and changes of the devices stay in memory.
    pub(crate) fn open_unchanged(path: &Path) -> Result<StoreDir, OpenError> {
        match StoreDir::open(path) {
            Err(error) if error.errno() == Errno::ROFS => StoreDir::open_to_read(path),
            opened => opened,
        }
    }

    /// A lock for reading needs no permission to write. Several processes may have one at the same
    /// time.
    pub(crate) fn open_to_read(path: &Path) -> Result<StoreDir, OpenError> {
        StoreDir::check_there(path)?;
        let lock = open_file_to_read(&path.join(LOCK)).map_err(lock_error)?;
        StoreDir::lock(path, lock, FlockOperation::NonBlockingLockShared)
    }

    fn check_there(path: &Path) -> Result<(), OpenError> {
        match check_files(path) {
            Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OpenError::Missing);
            }
            other => other?,
        }
        if is_missing(path)? { Err(OpenError::Missing) } else { Ok(()) }
    }

    fn lock(path: &Path, lock: File, how: FlockOperation) -> Result<StoreDir, OpenError> {
        let is_overlaid = matches!(how, FlockOperation::NonBlockingLockShared);
        match flock(&lock, how) {
            Ok(()) => Ok(StoreDir { path: path.to_owned(), lock, is_overlaid }),
            Err(Errno::WOULDBLOCK) => Err(OpenError::Busy),
            Err(errno) => Err(OpenError::Io(errno.into())),
        }
    }

    /// Opens the files of the store as devices. A missing file is replaced by an empty device in
    /// memory, until `make_lost` makes the file.
    pub(crate) fn devices(&self) -> io::Result<Devices> {
        match self.is_overlaid {
            true => {
                let below = self.devices_to_read()?;
                below.read_anew();
                below.overlaid()
            }
            false => self.devices_with(|path| open_file(path, false)),
        }
    }

    pub(crate) fn devices_to_read(&self) -> io::Result<Devices> {
        self.devices_with(open_file_to_read)
    }

    pub(crate) fn make_lost(&self, mut devices: Devices) -> io::Result<Devices> {
        if self.is_overlaid {
            return Ok(devices);
        }
        let mut is_changed = false;
        for (name, device) in
            [(DATA, &mut devices.data), (RESERVE, &mut devices.reserve), (LOG, &mut devices.log)]
        {
            let path = self.path.join(name);
            if fs::symlink_metadata(&path).is_err() {
                *device = Arc::new(FileDevice::new(open_file(&path, true)?)?);
                is_changed = true;
            }
        }
        if is_changed {
            File::open(&self.path)?.sync_all()?;
        }
        Ok(devices)
    }

    fn devices_with(&self, open: impl Fn(&Path) -> io::Result<File>) -> io::Result<Devices> {
        let open = |name: &str| -> io::Result<Arc<dyn Device>> {
            match open(&self.path.join(name)) {
                Ok(file) => Ok(Arc::new(FileDevice::new(file)?)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    Ok(Arc::new(Overlay::new(None)?))
                }
                Err(error) => Err(error),
            }
        };
        let (meta, data) = (open(META)?, open(DATA)?);
        Ok(Devices { meta, data, reserve: open(RESERVE)?, log: open(LOG)? })
    }

    pub(crate) fn host(&self) -> Result<StatFs, Errno> {
        let host = fstatvfs(&self.lock)?;
        let bytes = |blocks: u64| blocks.saturating_mul(host.f_frsize);
        Ok(StatFs::default()
            .with_bsize(1)
            .with_blocks(bytes(host.f_blocks))
            .with_bfree(bytes(host.f_bfree))
            .with_bavail(bytes(host.f_bavail))
            .with_files(host.f_files)
            .with_ffree(host.f_ffree)
            .with_namelen(host.f_namemax as u32))
    }
}

/// Returns the pid of the process that has the store in the directory `path` open. Returns None if
/// that process is unknown:
/// - No process has the store open.
/// - The process is in another pid namespace.
/// - The host reports no locks, or reports them under another device number than stat(2), as btrfs
///   does.
///
/// # Examples
/// ```
/// use corewalk_store::{Store, StoreOptions, holder};
///
/// # let dir = std::env::temp_dir().join(format!("store-doc5-{}", std::process::id()));
/// let store = Store::open(&dir, &StoreOptions::default())?;
/// if let Some(pid) = holder(&dir) {
///     assert_eq!(pid, std::process::id());
/// }
/// drop(store);
/// assert_eq!(holder(&dir), None);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn holder(path: &Path) -> Option<u32> {
    let lock = fs::symlink_metadata(path.join(LOCK)).ok()?;
    find_holder(&fs::read_to_string("/proc/locks").ok()?, lock.dev(), lock.ino())
}

fn find_holder(locks: &str, dev: u64, ino: u64) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let file = format!("{major:02x}:{minor:02x}:{ino}");
    locks.lines().find_map(|line| {
        // A line that has an arrow (`->`) before `FLOCK` is of a process that only waits for the
        // lock. This pattern does not match such a line.
        let [_, "FLOCK", _, _, pid, at, ..] = line.split_whitespace().collect::<Vec<_>>()[..]
        else {
            return None;
        };
        // A process in another pid namespace is shown with a pid of 0 or less.
        if at == file { pid.parse().ok().filter(|&pid| pid > 0) } else { None }
    })
}

/// Returns true if the directory contains no database, so that a new store can be made. A store
/// that has lost its database is an error: `meta` is empty, or it is missing while another file has
/// content.
fn is_missing(path: &Path) -> Result<bool, OpenError> {
    let bytes = |name| match fs::symlink_metadata(path.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(|found| Some(found.len())),
    };
    let mut left = 0;
    for name in [DATA, LOG, RESERVE] {
        left += bytes(name)?.unwrap_or(0);
    }
    match bytes(META)? {
        Some(0) => Err(OpenError::Foreign),
        None if left > 0 => Err(OpenError::Foreign),
        meta => Ok(meta.is_none()),
    }
}

fn check_files(path: &Path) -> Result<(), OpenError> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        if !FILES.iter().any(|&known| name == known) {
            return Err(OpenError::Foreign);
        }
    }
    Ok(())
}

fn lock_error(error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::NotFound => OpenError::LockMissing,
        _ => error.into(),
    }
}

fn open_file(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    open_with(options.read(true).write(true).create(is_new).truncate(false), path)
}

fn open_file_to_read(path: &Path) -> io::Result<File> {
    open_with(OpenOptions::new().read(true), path)
}

fn open_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    // A symbolic link might lead out of the store, and the open of a pipe could wait for a writer.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = options.custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Releases the lock. If it were only closed, a child that another thread has just forked would
/// keep it until the child executes a program.
impl Drop for StoreDir {
    fn drop(&mut self) {
        // If the unlock fails, the lock still ends when its last descriptor is closed. So the error
        // is ignored.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, StoreOptions};

    #[test]
    fn closed_store_is_free_while_a_forked_child_has_its_descriptors() {
        let path = std::env::temp_dir().join(format!("corewalk-forked-{}", std::process::id()));
        let open = || Store::open(&path, &StoreOptions::default());
        let store = open().expect("make the store");
        let store_dir = store.store_dir.as_ref().expect("the store is in a directory");
        let of_child = store_dir.lock.try_clone().expect("a copy, as fork(2) makes");
        assert!(matches!(open(), Err(OpenError::Busy)));
        drop(store);
        let opened = open().map(drop);
        drop(of_child);
        fs::remove_dir_all(&path).expect("remove the store");
        opened.expect("the store is free");
    }

    #[test]
    fn holder_is_who_has_a_lock_of_flock_on_the_file() {
        let locks = "\
1: POSIX  ADVISORY  WRITE 11 fe:10:77 0 EOF
2: FLOCK  ADVISORY  WRITE 12 fe:10:78 0 EOF
3: FLOCK  ADVISORY  WRITE 0 fe:10:77 0 EOF
4: FLOCK  ADVISORY  WRITE -1 fe:10:77 0 EOF
5: FLOCK  ADVISORY  READ 13 fe:01:77 0 EOF
6: FLOCK  ADVISORY  WRITE 14 fe:10:77 0 EOF
6: -> FLOCK  ADVISORY  WRITE 15 fe:10:79 0 EOF
";
        let find = |major, minor, ino| find_holder(locks, rustix::fs::makedev(major, minor), ino);
        assert_eq!(find(0xfe, 0x10, 77), Some(14));
        assert_eq!(find(0xfe, 1, 77), Some(13));
        assert_eq!((find(0xfe, 0x10, 79), find(0xfe, 2, 77)), (None, None));
        assert_eq!(find_holder("nonsense\n2: FLOCK\n", 0, 0), None);
    }
}
