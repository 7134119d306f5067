//! A server that uses the crate fuser directly, with an [`InodeTable`] for the inode numbers. It
//! shows a directory of the host, read-only.
//!
//! ```console
//! mkdir /tmp/table; cargo run -p corewalk-fuse --example table -- /usr /tmp/table
//! ```
//!
//! The table keeps the inode numbers, the names and the paths. It also counts the client lookups of
//! each inode, so that it knows which inodes the kernel uses.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{DirEntryExt as _, FileExt as _, MetadataExt as _};
use std::time::{Duration, SystemTime};
use std::{ffi::OsStr, io, os::unix::ffi::OsStrExt as _, path::PathBuf};

use corewalk::{InodeTable, Name, VfsOptions};
use fuser::{FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner};
use fuser::{MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, Request};

/// How long the kernel may cache names and attributes.
const TTL: Duration = Duration::from_secs(1);

pub(crate) struct Shown {
    from: PathBuf,
    /// The table of inodes. The user data of an inode is the inode number of the file on the host.
    table: InodeTable<u64>,
}

impl Shown {
    pub(crate) fn new(from: PathBuf) -> io::Result<Shown> {
        let table = InodeTable::new(fs::metadata(&from)?.ino(), VfsOptions::default())?;
        Ok(Shown { from, table })
    }

    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        let path = self.table.path(ino.0)?;
        Ok(self.from.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path))))
    }

    fn enter(&self, parent: INodeNo, name: &OsStr) -> io::Result<FileAttr> {
        let (dir, named) = (self.table.get(parent.0)?, Name::new(name.as_bytes())?);
        let found = fs::symlink_metadata(self.path(parent)?.join(name));
        if found.is_err() {
            self.table.removed(&dir, named)?;
        }
        let found = found?;
        let (kind, host) = (found.file_type().into(), found.ino());
        // Compare the table's inode number for this name with that of the file on the host. Another
        // program may have replaced the file.
        let node = self.table.entered_if(&dir, named, kind, host, |it| *it == host)?;
        Ok(attr(node.into_lookups(), &found))
    }

    fn list(&self, ino: INodeNo, offset: u64, reply: &mut ReplyDirectory) -> io::Result<()> {
        for (at, entry) in fs::read_dir(self.path(ino)?)?.enumerate().skip(offset as usize) {
            let entry = entry?;
            let kind = FileType::from_std(entry.file_type()?).unwrap_or(FileType::RegularFile);
            // The host's inode number is good enough in a listing. Before the kernel uses a file,
            // it looks the name up and gets the inode number of the table.
            if reply.add(INodeNo(entry.ino()), at as u64 + 1, kind, entry.file_name()) {
                break;
            }
        }
        Ok(())
    }
}

fn attr(ino: u64, found: &Metadata) -> FileAttr {
    let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(ino),
        size: found.size(),
        blocks: found.blocks(),
        atime: found.accessed().unwrap_or(modified),
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: FileType::from_std(found.file_type()).unwrap_or(FileType::RegularFile),
        perm: (found.mode() & 0o7777) as u16,
        nlink: found.nlink() as u32,
        uid: found.uid(),
        gid: found.gid(),
        rdev: found.rdev() as u32,
        blksize: found.blksize() as u32,
        flags: 0,
    }
}

impl Filesystem for Shown {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.enter(parent, name) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.table.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.path(ino).and_then(fs::symlink_metadata) {
            Ok(found) => reply.attr(&TTL, &attr(ino.0, &found)),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.path(ino).and_then(fs::read_link) {
            Ok(target) => reply.data(target.as_os_str().as_bytes()),
            Err(error) => reply.error(error.into()),
        }
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, at: u64, reply: ReplyDirectory) {
        let mut reply = reply;
        match self.list(ino, at, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error.into()),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut bytes = vec![0; size as usize];
        match self.path(ino).and_then(|path| File::open(path)?.read_at(&mut bytes, offset)) {
            Ok(count) => reply.data(&bytes[..count]),
            Err(error) => reply.error(error.into()),
        }
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [from, point] = &words[..] else { anyhow::bail!("usage: table DIRECTORY MOUNTPOINT") };
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("table".to_owned())];
    println!("serving on {}; end it with umount", point.display());
    Ok(fuser::mount(Shown::new(from.clone())?, point, &config)?)
}
