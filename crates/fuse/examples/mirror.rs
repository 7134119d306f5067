//! Mounts a directory of the host at a second place, with write access. Files are found by path.
//!
//! ```console
//! mkdir /tmp/mirror; cargo run -p corewalk-fuse --example mirror -- $HOME /tmp/mirror
//! ```
//!
//! If other programs change the directory, use `corewalk-hostfs`, which finds files by descriptors.

use std::fs::{File, read_dir, read_link, symlink_metadata};
use std::os::unix::fs::{DirEntryExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::{Attr, ByPath, Errno, Make, PathEntry, PathFileSystem, RenameMode};
use corewalk::{SetAttr, StatFs, attr::mode, errno_of};
use corewalk_fuse::{AllowedUsers, MountOptions, Options, serve};
use rustix::fs::{self, AtFlags, CWD, FileType, Gid, Mode, OFlags, RenameFlags, Uid};

pub(crate) struct Mirror(pub(crate) PathBuf);

impl Mirror {
    fn at(&self, path: &Path) -> PathBuf {
        self.0.join(path)
    }

    fn open_as(&self, path: &Path, flags: OFlags) -> Result<File, Errno> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::open(self.at(path), flags, Mode::empty())?.into())
    }
}

impl PathFileSystem for Mirror {
    type File = File;

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        symlink_metadata(self.at(path)).map(|found| Attr::from(&found)).map_err(errno_of)
    }

    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        let at = self.at(path);
        // Set the size first. If the host refuses it, no other attribute has changed yet.
        if let Some(size) = set.size {
            fs::ftruncate(self.open_as(path, OFlags::WRONLY)?, size)?;
        }
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            fs::chownat(CWD, &at, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = set.mode {
            fs::chmod(&at, Mode::from_raw_mode(mode & !mode::S_IFMT))?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            fs::utimensat(CWD, &at, &set.timestamps(), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.getattr(path)
    }

    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        let (at, mode) = (self.at(path), Mode::from_raw_mode(what.mode & !mode::S_IFMT));
        match what.mode & mode::S_IFMT {
            mode::S_IFDIR => fs::mkdir(&at, mode)?,
            mode::S_IFLNK => fs::symlink(what.target, &at)?,
            kind => fs::mknodat(CWD, &at, FileType::from_raw_mode(kind), mode, what.rdev)?,
        }
        let (uid, gid) = (Uid::from_raw(what.uid), Gid::from_raw(what.gid));
        fs::chownat(CWD, &at, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if what.mode & mode::S_IFMT != mode::S_IFLNK {
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
        read_link(self.at(path)).map_err(errno_of)
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        for entry in read_dir(self.at(path)).map_err(errno_of)? {
            let entry = entry.map_err(errno_of)?;
            let kind = entry.file_type().map_err(errno_of)?.into();
            sink(PathEntry::new(&entry.file_name(), kind).with_ino(entry.ino()));
        }
        Ok(())
    }

    fn open(&self, path: &Path, flags: u32) -> Result<File, Errno> {
        self.open_as(path, OFlags::from_bits_truncate(flags))
    }

    fn read(&self, _: &Path, file: &File, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < buf.len() {
            let count = file.read_at(&mut buf[done..], at + done as u64).map_err(errno_of)?;
            if count == 0 {
                break;
            }
            done += count;
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
        Ok(StatFs::from(&fs::statvfs(&self.0)?))
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let (users, from, point) = match &words[..] {
        [all, from, to] if all.as_os_str() == "--allow-other" => (AllowedUsers::Everyone, from, to),
        [from, to] => (AllowedUsers::Owner, from, to),
        _ => anyhow::bail!("usage: mirror [--allow-other] DIRECTORY MOUNTPOINT"),
    };
    let point = std::path::absolute(point)?;
    std::env::set_current_dir(from)?;
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    let fs = Arc::new(ByPath::new(Mirror(".".into())));
    Ok(serve(fs, &point, Options::shared(), &MountOptions::default().with_users(users))?)
}
