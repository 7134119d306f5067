//! The back end of the example. Each method does what its path says, in a directory of the host.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFMT};
use corewalk::{
    Attr, Errno, Make, PathEntry, PathFileSystem, RenameMode, SetAttr, StatFs, errno_of,
};
use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Uid};

/// A directory of the host.
pub(crate) struct Mirror {
    root: PathBuf,
}

impl Mirror {
    /// Returns the file system whose root is `root`.
    pub(crate) fn new(root: &Path) -> Mirror {
        Mirror { root: root.to_owned() }
    }

    fn at(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }

    fn open_as(&self, path: &Path, flags: OFlags) -> Result<File, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::open(self.at(path), flags, Mode::empty())?.into())
    }
}

impl PathFileSystem for Mirror {
    type File = File;

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        let found = std::fs::symlink_metadata(self.at(path)).map_err(errno_of)?;
        // This has the inode number of the host, so two hard links are one file here, too.
        Ok(Attr::from(&found))
    }

    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        let at = self.at(path);
        // The size comes first. It is the change that the host may refuse, and then no other must
        // have been made.
        if let Some(size) = set.size {
            fs::ftruncate(self.open_as(path, OFlags::WRONLY)?, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            fs::chownat(CWD, &at, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = set.mode {
            fs::chmod(&at, Mode::from_raw_mode(mode & !S_IFMT))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            fs::utimensat(CWD, &at, &set.timestamps(), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.getattr(path)
    }

    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        let (at, mode) = (self.at(path), Mode::from_raw_mode(what.mode & !S_IFMT));
        match what.mode & S_IFMT {
            S_IFDIR => fs::mkdir(&at, mode)?,
            S_IFLNK => fs::symlink(what.target, &at)?,
            kind => fs::mknodat(CWD, &at, FileType::from_raw_mode(kind), mode, what.rdev)?,
        }
        let (uid, gid) = (Uid::from_raw(what.uid), Gid::from_raw(what.gid));
        fs::chownat(CWD, &at, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if what.mode & S_IFMT != S_IFLNK {
            // Set the mode again, because the umask of this process may have cleared bits of it.
            fs::chmod(&at, mode)?;
        }
        self.getattr(path)
    }

    fn unlink(&self, path: &Path) -> Result<(), Errno> {
        fs::unlink(self.at(path))
    }

    fn rmdir(&self, path: &Path) -> Result<(), Errno> {
        fs::rmdir(self.at(path))
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<Attr, Errno> {
        fs::link(self.at(from), self.at(to))?;
        self.getattr(to)
    }

    fn readlink(&self, path: &Path) -> Result<PathBuf, Errno> {
        std::fs::read_link(self.at(path)).map_err(errno_of)
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        for entry in std::fs::read_dir(self.at(path)).map_err(errno_of)? {
            let entry = entry.map_err(errno_of)?;
            let kind = entry.file_type().map_err(errno_of)?.into();
            let ino = std::os::unix::fs::DirEntryExt::ino(&entry);
            sink(PathEntry::new(&entry.file_name(), kind).with_ino(ino));
        }
        Ok(())
    }

    fn open(&self, path: &Path, flags: u32) -> Result<File, Errno> {
        self.open_as(path, OFlags::from_bits_truncate(flags))
    }

    fn read(&self, _: &Path, file: &File, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            match file.read_at(&mut buf[done..], at + done as u64).map_err(errno_of)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write(&self, _: &Path, file: &File, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        file.write_at(bytes, at).map_err(errno_of)
    }

    fn fsync(&self, _: &Path, file: &File, data_only: bool) -> Result<(), Errno> {
        if data_only { fs::fdatasync(file) } else { fs::fsync(file) }
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::from(&fs::statvfs(&self.root)?))
    }
}
