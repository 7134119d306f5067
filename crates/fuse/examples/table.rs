//! A server that uses the crate fuser directly, and an [`InodeTable`] for its inodes. It shows a
//! directory of the host, read-only.
//!
//! ```console
//! mkdir /tmp/table
//! cargo run -p corewalk-fuse --example table -- /usr /tmp/table
//! ls /tmp/table
//! ```
//!
//! The server itself handles requests, attributes and reads. The table keeps the inode numbers, the
//! names, the paths and the lookups that the kernel holds.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use corewalk::{Errno, FileKind, InodeTable, Name, VfsOptions, errno_of};
use fuser::{
    FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner, MountOption,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, Request,
};

/// How long the kernel may cache names and attributes.
const TTL: Duration = Duration::from_secs(1);

struct Shown {
    from: PathBuf,
    /// The user data of each inode is its inode number on the host. If a name has another number on
    /// the host now, the name belongs to another file.
    table: InodeTable<u64>,
}

impl Shown {
    /// Returns the path on the host of the node with the number `ino`.
    fn host_path(&self, ino: u64) -> Result<PathBuf, Errno> {
        let path = self.table.path(ino)?;
        Ok(self.from.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path))))
    }

    fn metadata(&self, ino: u64) -> Result<Metadata, Errno> {
        fs::symlink_metadata(self.host_path(ino)?).map_err(|error| errno_of(&error))
    }

    /// Looks a name up and counts one lookup of its node.
    fn enter(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        let (dir, named) = (self.table.get(parent)?, Name::new(name.as_bytes())?);
        let found = fs::symlink_metadata(self.host_path(parent)?.join(name));
        let Ok(metadata) = found else {
            self.table.removed(&dir, named)?;
            return Err(Errno::NOENT);
        };
        // The host may have replaced the file after the table got its name.
        let host = metadata.ino();
        let node = self.table.entered_if(&dir, named, kind(&metadata), host, |it| *it == host)?;
        Ok(attr(node.into_lookups(), &metadata))
    }

    fn list(&self, ino: u64, offset: u64, reply: &mut ReplyDirectory) -> Result<(), Errno> {
        let entries = fs::read_dir(self.host_path(ino)?).map_err(|error| errno_of(&error))?;
        for (at, entry) in entries.flatten().enumerate().skip(offset as usize) {
            let Ok(metadata) = entry.metadata() else { continue };
            // The kernel looks the name up before it uses this number.
            let ino = INodeNo(metadata.ino());
            if reply.add(ino, at as u64 + 1, file_type(&metadata), entry.file_name()) {
                break;
            }
        }
        Ok(())
    }

    fn read_at(&self, ino: u64, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        let read = || {
            let mut bytes = vec![0; size as usize];
            let count = File::open(self.host_path(ino)?)?.read_at(&mut bytes, offset)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        read().map_err(|error: std::io::Error| errno_of(&error))
    }
}

fn kind(metadata: &Metadata) -> FileKind {
    FileKind::from_mode(metadata.mode()).unwrap_or(FileKind::Regular)
}

fn file_type(metadata: &Metadata) -> FileType {
    match metadata.file_type() {
        it if it.is_dir() => FileType::Directory,
        it if it.is_symlink() => FileType::Symlink,
        it if it.is_fifo() => FileType::NamedPipe,
        it if it.is_socket() => FileType::Socket,
        it if it.is_char_device() => FileType::CharDevice,
        it if it.is_block_device() => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

fn attr(ino: u64, metadata: &Metadata) -> FileAttr {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    FileAttr {
        ino: INodeNo(ino),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: metadata.accessed().unwrap_or(modified),
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind: file_type(metadata),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: metadata.rdev() as u32,
        blksize: metadata.blksize() as u32,
        flags: 0,
    }
}

fn failure(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

impl Filesystem for Shown {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.enter(parent.0, name) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(failure(error)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, nlookup: u64) {
        self.table.forget(ino.0, nlookup);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.metadata(ino.0) {
            Ok(metadata) => reply.attr(&TTL, &attr(ino.0, &metadata)),
            Err(error) => reply.error(failure(error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.host_path(ino.0).map(fs::read_link);
        match target {
            Ok(Ok(target)) => reply.data(target.as_os_str().as_bytes()),
            Ok(Err(error)) => reply.error(failure(errno_of(&error))),
            Err(error) => reply.error(failure(error)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.list(ino.0, offset, &mut reply) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(failure(error)),
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
        match self.read_at(ino.0, offset, size) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(failure(error)),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(point)) = (words.next(), words.next()) else {
        return Err("usage: table DIRECTORY MOUNTPOINT".into());
    };
    let host = fs::metadata(&from)?.ino();
    let shown = Shown { from, table: InodeTable::new(host, VfsOptions::default())? };
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::RO, MountOption::FSName("table".to_owned())];
    println!("serving on {}; end it with umount", point.display());
    fuser::mount(shown, point, &config)?;
    Ok(())
}
