//! Memory of segments in files of one folder, for processes that share a namespace.
//!
//! Each segment is a sparse file, named by its slot and its serial number. No other segment of the
//! namespace ever has that name. The permissions of the folder decide which users may open the
//! segments. Each file gets the owner, the group and the permission bits of the folder, without
//! execute bits.
//!
//! A process that has changed its user or its root directory may be unable to reach the segments'
//! folder by its path. It can open the folder through an inherited descriptor
//! ([`SegmentFiles::of_descriptor`]).
//!
//! # Files of killed processes
//!
//! A process may be killed after it has created a file and before it publishes the segment. It may
//! also be killed after it has removed the segment and before it removes the file. The next segment
//! of the slot removes a file that was left in this way.
//!
//! # Holds
//!
//! The hold of a task (`backing`) shows that a process still has the task's mappings. It is an
//! empty file `task-NUMBER` with an exclusive flock(2) lock. The lock lasts until the open file is
//! closed and unmapped in all processes.
//!
//! When the task has no attaches any more, this file is removed. If the removal fails, the next
//! task with the same number uses it.
//!
//! # Limits
//!
//! - Memory is not reserved, as in the kernel. If the file system is full when a process first
//!   writes to a page, the process gets `SIGBUS`. (A kernel without memory would kill a process.)
//!   If a new segment is larger than the file system, shmget fails with `ENOMEM`. If it is larger
//!   than the free space, shmget fails with `ENOSPC`.
//! - If a new segment is larger than `RLIMIT_FSIZE`, shmget fails with `ENOMEM`. No `SIGXFSZ` is
//!   sent.
//!
//! Source: shmget(2), shmop(2), tmpfs(5), getrlimit(2).

use corewalk_base::primitives::thread;
use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, Stat, fchmod, fchown, flock, fstat, fstatvfs, open,
    openat, unlinkat,
};
use rustix::io::Errno;
use rustix::param::page_size;
use rustix::process::{Gid, Uid};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backing::{Access, Backing, SegmentName, lengthen};
use crate::field::refuse_if;

/// The permission bits that a file gets from its folder.
const FILE_BITS: u32 = 0o666;

/// Flags for opening a file that another user may have made. With them, open(2) follows no symbolic
/// link, and does not wait for the other end of a FIFO.
const FOREIGN: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The permissions with which a file is created. Afterwards the file gets those of the folder.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The number of tries to lock a hold file. A try fails while another process checks for a hold,
/// since the check locks the file.
const HOLD_TRIES: u32 = 1000;

/// Memory of segments as files in a folder.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SegmentFiles};
///
/// let folder = std::env::temp_dir().join(format!("segments-example-{}", std::process::id()));
/// std::fs::create_dir(&folder)?;
/// let backing = Box::new(SegmentFiles::new(&folder));
/// let options = NamespaceOptions { backing: Some(backing), ..NamespaceOptions::default() };
/// let task = Namespace::new(options)?.register(Cred::root(), 1)?;
/// let id = task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
/// assert_eq!(std::fs::read_dir(&folder)?.count(), 1);
/// task.shm_rmid(id)?;
/// assert_eq!(std::fs::read_dir(&folder)?.count(), 0);
/// # std::fs::remove_dir(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SegmentFiles(Folder);

/// How a process reaches the folder.
#[derive(Clone, Debug)]
enum Folder {
    Path(PathBuf),
    Descriptor {
        number: BorrowedFd<'static>,
        /// The device and inode number of the folder, to notice that `number` stands for another
        /// file now.
        identity: (u64, u64),
    },
}

impl SegmentFiles {
    /// Returns a backing (a source of segment memory) with its files in `folder`. The folder must
    /// exist when the first segment is created. The path should be absolute, since a process may
    /// change its working directory.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(Folder::Path(folder.into()))
    }

    /// Returns a backing (a source of segment memory) with its files in the folder of a descriptor.
    /// It is for a process that cannot reach the folder by its path. Each call opens the folder
    /// again through the descriptor, so the program must keep the descriptor open.
    ///
    /// # Errors
    ///
    /// Returns `ENOTDIR` if the descriptor does not refer to a folder, and `EACCES` if the process
    /// may not enter the folder.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::SegmentFiles;
    /// use std::os::fd::AsFd;
    ///
    /// let folder: &'static std::fs::File = Box::leak(Box::new(std::fs::File::open("/tmp")?));
    /// let files = SegmentFiles::of_descriptor(folder.as_fd())?;
    /// # let _ = files;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn of_descriptor(folder: BorrowedFd<'static>) -> Result<Self, Errno> {
        let status = fstat(folder)?;
        let identity = (status.st_dev, status.st_ino);
        let files = Self(Folder::Descriptor { number: folder, identity });
        files.open_folder().map(|_| files)
    }

    /// Opens the folder, and returns a descriptor with `O_PATH`.
    ///
    /// # Errors
    ///
    /// Returns the errors of open(2). Returns `EBADF` if the folder was given as a descriptor, and
    /// the program has since opened another file with this descriptor's number.
    pub fn open_folder(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match &self.0 {
            Folder::Path(path) => open(path, flags, Mode::empty()),
            Folder::Descriptor { number, identity } => {
                let folder = openat(number, ".", flags, Mode::empty())?;
                let status = fstat(&folder)?;
                let is_same = *identity == (status.st_dev, status.st_ino);
                if is_same { Ok(folder) } else { Err(Errno::BADF) }
            }
        }
    }

    /// Returns true if the folder is removed. A process that reaches the folder only by a
    /// descriptor, or has another root directory, cannot know that. It gets false.
    fn is_gone(&self) -> bool {
        let Folder::Path(path) = &self.0 else { return false };
        let is_parent_there = path.parent().is_some_and(Path::is_dir);
        is_parent_there && matches!(self.open_folder(), Err(Errno::NOENT))
    }
}

impl Backing for SegmentFiles {
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno> {
        let rounded = size_bytes.checked_next_multiple_of(page_size() as u64);
        let rounded = rounded.ok_or(Errno::NOMEM)?;
        let folder = self.open_folder().map_err(of_shmget)?;
        let before = SegmentName { serial: name.serial.wrapping_sub(1), ..name };
        for leftover in [before, name] {
            // Remove a file that a killed process has left in this slot: it may occupy the space
            // that the new segment needs.
            let _gone = unlinkat(&folder, file_name(leftover), AtFlags::empty());
        }
        let room = fstatvfs(&folder).map_err(of_shmget)?;
        // Refuse a segment that is larger than the whole file system. Linux refuses one that is
        // larger than memory and swap together.
        refuse_if(room.f_blocks.saturating_mul(room.f_frsize) < rounded, Errno::NOMEM)?;
        refuse_if(room.f_bavail.saturating_mul(room.f_frsize) < rounded, Errno::NOSPC)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FOREIGN;
        let file = openat(&folder, file_name(name), flags, PRIVATE).map_err(of_shmget)?;
        let made = lengthen(&file, size_bytes).and_then(|()| hand_over(&file, &fstat(&folder)?));
        made.map_err(|errno| {
            let _gone = unlinkat(&folder, file_name(name), AtFlags::empty());
            of_shmget(errno)
        })
    }

    /// Opens the file of a segment. For [`Access::Read`] the descriptor is read-only, so
    /// mprotect(2) cannot make a mapping of it writable.
    fn open(&self, name: SegmentName, access: Access) -> Result<Arc<OwnedFd>, Errno> {
        let access = match access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::RDWR,
        };
        let open = |folder| openat(folder, file_name(name), access | FOREIGN, Mode::empty());
        self.open_folder().and_then(open).map(Arc::new).map_err(of_shmat)
    }

    fn remove(&self, name: SegmentName) -> bool {
        // If the folder was removed, the file was removed before it.
        let Ok(folder) = self.open_folder() else { return self.is_gone() };
        let unlinked = unlinkat(folder, file_name(name), AtFlags::empty());
        matches!(unlinked, Ok(()) | Err(Errno::NOENT))
    }

    fn hold(&self, task: u32) -> Result<OwnedFd, Errno> {
        let folder = self.open_folder()?;
        let flags = OFlags::CREATE | OFlags::RDONLY | FOREIGN;
        let file = openat(&folder, hold_name(task), flags, PRIVATE)?;
        let status = fstat(&file)?;
        // Another user with write access to the folder may have replaced the task's locked file by
        // a hard link. The link may lead to a file of this process's user. Such a file must keep
        // its owner and permissions.
        let is_only_here = status.st_nlink == 1;
        if is_only_here && status.st_uid == rustix::process::geteuid().as_raw() {
            hand_over(&file, &fstat(&folder)?)?;
        }
        for _ in 0..HOLD_TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Another process may have locked this file for a moment, to check whether an
                // earlier task still has a hold. So try again.
                Err(Errno::AGAIN) => thread::yield_now(),
                done => return done.map(|()| file),
            }
        }
        Err(Errno::AGAIN)
    }

    fn is_held(&self, task: u32) -> bool {
        let look = |folder| {
            let flags = OFlags::RDONLY | FOREIGN;
            let file = openat(folder, hold_name(task), flags, Mode::empty())?;
            flock(file, FlockOperation::NonBlockingLockShared)
        };
        // A process that cannot open the folder cannot check the hold (the lock on the dead task's
        // file). Assume that the hold exists, unless the folder itself is removed. Another process
        // will later clean up after the task.
        let Ok(folder) = self.open_folder() else { return !self.is_gone() };
        !matches!(look(folder), Ok(()) | Err(Errno::NOENT))
    }

    fn forget(&self, task: u32) {
        let unlink = |folder| unlinkat(folder, hold_name(task), AtFlags::empty());
        // If the task's locked file cannot be removed, the next task with the same number locks the
        // same file.
        let _gone = self.open_folder().and_then(unlink);
    }
}

fn hand_over(file: &OwnedFd, folder: &Stat) -> Result<(), Errno> {
    let own = fstat(file)?;
    if (own.st_uid, own.st_gid) != (folder.st_uid, folder.st_gid) {
        let user = (own.st_uid != folder.st_uid).then(|| Uid::from_raw(folder.st_uid));
        let group = Some(Gid::from_raw(folder.st_gid));
        // If the process may not change the owner of the file, the process remains the owner.
        let _kept = fchown(file, user, group);
    }
    fchmod(file, Mode::from_raw_mode(folder.st_mode & FILE_BITS))
}

fn hold_name(task: u32) -> String {
    format!("task-{task}")
}

fn file_name(name: SegmentName) -> String {
    format!("{}-{}", name.index, name.serial)
}

/// Returns the errno for the caller of shmget(2).
fn of_shmget(errno: Errno) -> Errno {
    match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Errno::ACCESS,
        Errno::NOSPC | Errno::DQUOT => Errno::NOSPC,
        _ => Errno::NOMEM,
    }
}

/// Returns the errno for the caller of shmat(2).
fn of_shmat(errno: Errno) -> Errno {
    match errno {
        Errno::ACCESS | Errno::PERM => Errno::ACCESS,
        // The segment exists, but its file does not: another program must have removed the folder.
        // So report the segment as removed.
        Errno::NOENT => Errno::IDRM,
        _ => Errno::NOMEM,
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use rustix::fs::statvfs;
    use std::fs;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("corewalk-segments-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = names.collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    const NAME: SegmentName = SegmentName { index: 7, serial: 3 };

    #[test]
    fn file_has_the_size_of_its_segment_and_the_permissions_of_its_folder() {
        let folder = Folder::new("mode");
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o750)).unwrap();
        let files = SegmentFiles::new(&folder.0);
        files.create(NAME, 5000).unwrap();
        let file = fs::metadata(folder.0.join("7-3")).unwrap();
        assert_eq!((file.len(), file.mode() & 0o777, file.blocks()), (5000, 0o640, 0));
        rustix::io::pwrite(files.open(NAME, Access::Write).unwrap(), b"seen", 0).unwrap();
        assert_eq!(fs::read(folder.0.join("7-3")).unwrap()[..4], *b"seen");
        assert!(files.remove(NAME));
        let opened = files.open(NAME, Access::Write);
        assert_eq!((folder.names(), opened.err()), (vec![], Some(Errno::IDRM)));
    }

    #[test]
    fn folder_of_a_descriptor_is_reached_as_long_as_the_descriptor_is_its() {
        let folder = Folder::new("descriptor");
        let open = |path: &Path| -> &'static fs::File {
            Box::leak(Box::new(fs::File::open(path).unwrap()))
        };
        let files = SegmentFiles::of_descriptor(open(&folder.0).as_fd()).unwrap();
        files.create(NAME, 1).unwrap();
        let hold = files.hold(7).unwrap();
        assert_eq!(folder.names(), ["7-3", "task-7"]);
        // Pass a descriptor number that stands for another folder by now.
        let number = open(folder.0.parent().unwrap()).as_fd();
        let super::Folder::Descriptor { identity, .. } = files.0 else { unreachable!() };
        let lost = SegmentFiles(super::Folder::Descriptor { number, identity });
        assert!(lost.is_held(7) && !lost.remove(NAME) && lost.create(NAME, 1).is_err());
        drop(hold);
        assert!(!files.is_held(7) && files.remove(NAME));
        let file = open(&folder.0.join("task-7")).as_fd();
        assert_eq!(SegmentFiles::of_descriptor(file).err(), Some(Errno::NOTDIR));
    }

    #[test]
    fn leftover_file_is_removed_by_the_next_segment_of_its_slot() {
        let folder = Folder::new("left");
        let files = SegmentFiles::new(&folder.0);
        let next = SegmentName { serial: 4, ..NAME };
        let other = SegmentName { index: 8, ..NAME };
        [NAME, other].iter().for_each(|name| files.create(*name, 1).unwrap());
        // Make the file of a segment in slot 7 with serial number 4, as an earlier namespace may
        // have left it.
        fs::write(folder.0.join("7-4"), "stale").unwrap();
        files.create(next, 1).unwrap();
        assert_eq!(folder.names(), ["7-4", "8-3"]);
        assert_eq!(fs::read(folder.0.join("7-4")).unwrap(), [0]);
    }

    /// If a killed process has left a file, `create` must remove it before it checks the free
    /// space.
    #[test]
    fn leftover_file_is_removed_before_the_space_is_checked() {
        let folder = Folder::new("full");
        let files = SegmentFiles::new(&folder.0);
        let all = statvfs(&folder.0).map(|room| room.f_blocks * room.f_frsize).unwrap();
        for (size_bytes, errno) in [(all, Errno::NOSPC), (2 * all, Errno::NOMEM)] {
            files.create(NAME, 1).unwrap();
            let next = SegmentName { serial: 4, ..NAME };
            assert_eq!(files.create(next, size_bytes), Err(errno));
            assert!(folder.names().is_empty());
        }
    }

    #[test]
    fn hold_lasts_until_all_copies_are_closed() {
        let folder = Folder::new("hold");
        let files = SegmentFiles::new(&folder.0);
        assert!(!files.is_held(7), "there is no hold");
        let hold = files.hold(7).unwrap();
        let inherited = hold.try_clone().unwrap();
        drop(hold);
        assert!(files.is_held(7) && files.is_held(7) && !files.is_held(8));
        drop(inherited);
        assert!(!files.is_held(7));
        files.forget(7);
        assert!(folder.names().is_empty());
        drop(files.hold(7).unwrap());
        fs::remove_dir_all(&folder.0).unwrap();
        assert!(!files.is_held(7) && files.hold(7).is_err(), "the folder is gone");
        assert!(files.remove(NAME), "the file went with the folder");
        // If the parent of the folder does not exist either, the process may have another root
        // directory. So `SegmentFiles` must treat the files as existing.
        let elsewhere = SegmentFiles::new(folder.0.join("folder"));
        assert!(elsewhere.is_held(7) && !elsewhere.remove(NAME), "the state is unknown");
    }

    /// If another user may write to the folder, the folder can contain a hard link to another file,
    /// or a FIFO. `SegmentFiles` must not change such files, and must not wait for them.
    #[test]
    fn file_of_another_name_and_fifo_are_left_alone() {
        let folder = Folder::new("foreign");
        let letter = folder.0.join("letter");
        fs::write(&letter, "").unwrap();
        fs::set_permissions(&letter, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&letter, folder.0.join("task-7")).unwrap();
        let files = SegmentFiles::new(&folder.0);
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        drop((files.hold(7).unwrap(), files.hold(8).unwrap()));
        let mode = |name| fs::metadata(folder.0.join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("letter"), mode("task-8")), (0o600, 0o666));
        let fifo = |name| {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, folder.0.join(name), kind, Mode::RUSR, 0).unwrap();
        };
        ["7-3", "task-9"].into_iter().for_each(fifo);
        let _opened = files.open(NAME, Access::Read);
        let _held = files.is_held(9);
    }

    #[test]
    fn file_that_cannot_be_removed_is_not_gone() {
        let folder = Folder::new("kept");
        let files = SegmentFiles::new(&folder.0);
        assert!(files.remove(NAME), "the file does not exist");
        fs::create_dir(folder.0.join("7-3")).unwrap();
        assert!(!files.remove(NAME));
        fs::remove_dir(folder.0.join("7-3")).unwrap();
        // `SegmentFiles` does not follow a symbolic link in place of the folder. So it must report
        // that a segment's file is not removed, and that a task's hold file is still locked.
        let link = folder.0.with_extension("link");
        std::os::unix::fs::symlink(&folder.0, &link).unwrap();
        let through = SegmentFiles::new(&link);
        assert!(!through.remove(NAME) && through.is_held(7));
        fs::remove_file(&link).unwrap();
    }

    #[test]
    fn memory_that_is_opened_for_reading_is_not_written() {
        let folder = Folder::new("read");
        let files = SegmentFiles::new(&folder.0);
        files.create(NAME, 1).unwrap();
        let file = files.open(NAME, Access::Read).unwrap();
        assert_eq!(rustix::io::pwrite(&file, b"x", 0), Err(Errno::BADF));
    }

    #[test]
    fn segment_without_space_is_refused_and_leaves_nothing() {
        let folder = Folder::new("room");
        let files = SegmentFiles::new(&folder.0);
        let all = statvfs(&folder.0).map(|room| room.f_blocks * room.f_frsize).unwrap();
        assert_eq!(files.create(NAME, all), Err(Errno::NOSPC), "the test's folder uses some space");
        assert_eq!(files.create(NAME, 1 << 60), Err(Errno::NOMEM));
        assert_eq!(files.create(NAME, u64::MAX), Err(Errno::NOMEM));
        assert!(folder.names().is_empty());
        let nowhere = SegmentFiles::new(folder.0.join("nowhere"));
        assert_eq!(nowhere.create(NAME, 1), Err(Errno::NOMEM));
    }
}
