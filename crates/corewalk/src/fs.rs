//! The one seam: what a back end implements to get everything else.
//!
//! A [`FileSystem`] stores files. It is asked for one name at a time and never sees a path walk, a
//! permission check, a negative entry, a mount or a reference count: those are the caller's. Eleven
//! methods are required; the others have a default that says the back end cannot do it. The example
//! `squares` of `corewalk-fuse` is a whole one.
//!
//! # What a back end may rely on
//! - F.1: calls for the same (directory, name) never overlap, except that `lookup` is not called
//!   while another call for that name runs. Calls for different names do overlap.
//! - F.2: no lock of corewalk is held during a call: it may take as long as it likes, and stalls
//!   only those who need its answer. It may panic: the panic reaches the caller, waiters go on.
//!   If it panics again in a call that the unwinding makes (`forget`), that panic ends there.
//! - F.3: permission has been checked, names are valid, and the kinds of file fit the call (`rmdir`
//!   gets a directory, `read` a regular file).
//! - F.4: `forget` is called once for each time an inode entered the cache (by `root`, `lookup`,
//!   `make`, `link` or `by_number` returning an inode that was not in the cache), after its last use. An inode
//!   without links stays usable until then. Two generations of one number are two inodes, and each
//!   is forgotten, in any order.
//! - F.5: calls of `setattr` and `set_acl` for one inode do not overlap.
//! - F.6: a path that [`Node::path`] gave is true until the call returns. No rename or removal of
//!   that file, or of a directory above it, is handed to the back end meanwhile, and none is under
//!   way when the path is given: `path` waits for it. Renames elsewhere are not delayed (trap X1).
//!
//! # What it must keep
//! - (`ino`, `generation`) never names another file later within the mount (trap P11).
//! - A call either happens as a whole or fails with nothing changed.
//! - It must not call into the `Vfs` that serves it for the names it was called with, nor change the
//!   attributes of the inode that it was called for. Between [`Node::path`] and the end of a call it
//!   must not call into the `Vfs` at all.
//!
//! Source: Linux `struct inode_operations`; the peers' issues behind P6 and P7.

use std::ops::ControlFlow;

use bitflags::bitflags;

use crate::Errno;
use crate::acl::Acl;
use crate::attr::{Attr, FileKind, SetAttr, StatFs};
use crate::name::Name;

/// How a back end finds the file that a call is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Addressing {
    /// By its inode number. [`Node::path`] is `EOPNOTSUPP`.
    #[default]
    Number,
    /// By its path, while it has a name. A file without a name is the back end's own care: it keeps
    /// a descriptor, say, when it removes the last name of a file that is in use (F.4).
    Path,
    /// By its path alone. An open file that is removed is kept under a hidden name in the root
    /// directory until it is closed, and so is a file that a rename replaces until it is forgotten.
    /// The back end sees a `rename` or a `link` to that name, and a `remove` of it later. Where the
    /// back end refuses both, the file goes at once, and further calls for it are `ESTALE`.
    PathOnly,
}

/// The inode a call is about.
///
/// A back end that keeps files by number uses [`Node::ino`]; one that keeps them by path says so
/// ([`FileSystem::addressing`]) and asks for [`Node::path`], which is translated only then.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    ino: u64,
    generation: Option<u64>,
    kind: FileKind,
    source: Option<&'a dyn PathSource>,
}

/// Where a [`Node`] gets its path from.
pub(crate) trait PathSource: Sync {
    /// Returns the path from the root of the file system, `/a/b`, which stays true until the call
    /// of the back end returns.
    fn path(&self) -> Result<Vec<u8>, Errno>;

    /// Returns paths by other names, as they were at one instant each.
    fn other_paths(&self) -> Vec<Vec<u8>>;
}

impl<'a> Node<'a> {
    /// Returns a node without a path, for calling a back end that keeps files by number directly.
    pub fn detached(ino: u64, kind: FileKind) -> Node<'static> {
        Node { ino, generation: None, kind, source: None }
    }

    pub(crate) fn with_source(ino: u64, kind: FileKind, source: &'a dyn PathSource) -> Node<'a> {
        Node { ino, generation: None, kind, source: Some(source) }
    }

    pub(crate) fn with_generation(self, generation: u64) -> Node<'a> {
        Node { generation: Some(generation), ..self }
    }

    /// Returns the inode number the back end gave.
    pub fn ino(self) -> u64 {
        self.ino
    }

    /// Returns the generation the back end gave; None for a detached node.
    pub fn generation(self) -> Option<u64> {
        self.generation
    }

    /// Returns the kind of file.
    pub fn kind(self) -> FileKind {
        self.kind
    }

    /// Returns a path of this inode from the root of its file system: `/` for the root, `/a/b`
    /// below it. It stays true until the call returns (F.6); renames of this file and of the
    /// directories above it wait that long. While one is under way this waits for it.
    ///
    /// # Errors
    /// `ENOENT` when no name is left, or for a detached node; `EOPNOTSUPP` for a back end that works
    /// by number.
    pub fn path(self) -> Result<Vec<u8>, Errno> {
        self.source.ok_or(Errno::NOENT)?.path()
    }

    /// Returns paths by further names that the cache knows of this inode, up to 8, as they were at
    /// one instant each: for a back end whose files are also renamed and removed behind the cache,
    /// when it finds that [`Node::path`] leads elsewhere. Renames do not wait for these.
    pub fn other_paths(self) -> Vec<Vec<u8>> {
        self.source.map_or_else(Vec::new, PathSource::other_paths)
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("ino", &self.ino).field("kind", &self.kind).finish()
    }
}

/// A new file, with everything it has from its first instant on.
#[derive(Clone, Debug)]
pub struct Make<'a> {
    /// What to make: type bits and permission bits. A back end gets them after umask, ACL inheritance
    /// and setgid rules.
    pub mode: u32,
    /// The permission bits that the caller's process does not give away (umask(2)). The namespace
    /// takes them from `mode`, unless the directory has a default ACL; a back end ignores them.
    pub umask: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u64,
    /// The target of a symbolic link; empty otherwise.
    pub target: &'a [u8],
    /// The access ACL it inherits, if its directory has a default ACL that says more than `mode`.
    pub access_acl: Option<Acl>,
    /// The default ACL a new directory inherits.
    pub default_acl: Option<Acl>,
    /// The flags of open(2) that the maker opens the file with as soon as it is made, if it does. A
    /// back end for which making and opening is one call may do both, and keep what it has open for
    /// the call of `open` that follows.
    pub open: Option<u32>,
}

impl Make<'_> {
    /// Returns a plain file of `mode` (type bits 0 mean a regular file) owned by `uid` and `gid`, with
    /// a umask of 0.
    pub fn new(mode: u32, uid: u32, gid: u32) -> Make<'static> {
        let (access_acl, default_acl) = (None, None);
        let (umask, rdev, target, open) = (0, 0, b"", None);
        Make { mode, umask, uid, gid, rdev, target, access_acl, default_acl, open }
    }
}

/// How rename treats an existing target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it (rename(2)).
    Replace,
    /// Fail with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// Swap the two (`RENAME_EXCHANGE`); both must exist.
    Exchange,
}

/// How a call to set an extended attribute treats an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// Fail with `EEXIST` if it exists (`XATTR_CREATE`).
    Create,
    /// Fail with `ENODATA` if it does not (`XATTR_REPLACE`).
    Replace,
}

/// What lseek(2) looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte of data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`); the end of the file counts as one.
    Hole,
}

/// One entry of a directory, as `readdir` reports it.
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    /// The name: never `.` or `..`, which the caller adds.
    pub name: Name<'a>,
    /// Inode number.
    pub ino: u64,
    /// File type.
    pub kind: FileKind,
    /// Where to go on after this entry. Unique within the directory, never 0, and stable: it means
    /// the same place however the directory changes (traps T48, P13).
    pub cookie: u64,
}

/// Receives directory entries; `Break` means that the buffer is full and the entry was not taken.
pub type DirSink<'a> = dyn FnMut(DirEntry<'_>) -> ControlFlow<()> + 'a;

bitflags! {
    /// What fallocate(2) is to do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fallocate: u32 {
        /// Do not change the size.
        const KEEP_SIZE = 0x01;
        /// Make a hole (with `KEEP_SIZE`).
        const PUNCH_HOLE = 0x02;
        /// Take the range out and move the rest down.
        const COLLAPSE_RANGE = 0x08;
        /// Make the range read as zeros.
        const ZERO_RANGE = 0x10;
        /// Put a hole in and move the rest up.
        const INSERT_RANGE = 0x20;
    }
}

/// A file system that corewalk serves. See the module's text for the rules.
///
/// The number an `open` returns (its handle) comes back in `read`, `write`, `append`, `fsync` and
/// `release`, all 64 bits of it; a back end without open state leaves `open` alone and ignores it.
///
/// # Errors
/// Every method: `EIO` for a failing store, `ESTALE` for an inode that is gone; the `ENOENT` that a
/// back end by path gets for an inode becomes `ESTALE`. The others are named where the caller cannot
/// find them itself.
#[allow(unused_variables)]
pub trait FileSystem: Send + Sync + 'static {
    /// Returns how the back end finds files. Asked once, when the file system is taken in.
    fn addressing(&self) -> Addressing {
        Addressing::Number
    }

    /// Returns the attributes of the root directory.
    fn root(&self) -> Result<Attr, Errno>;

    /// Returns the inode that `name` in `dir` refers to. `ENOENT` if none does.
    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno>;

    /// Returns the attributes of the inode with a number, though the cache knows no name of it: for clients that
    /// come back with a file handle. `ESTALE` if there is no such inode, or it has no name left.
    ///
    /// With a generation, only that inode may be returned. FUSE sends none: the inode that has the number now is
    /// returned then, and the kernel compares the generation. A back end that implements this is called for
    /// [nodes](Node) that have no path, and implements [`FileSystem::parent`] too.
    #[doc(alias = "fh_to_dentry")]
    fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
        Err(Errno::STALE)
    }

    /// Returns the number of the directory that the directory `dir` is in; that of the root is its own. It is
    /// asked only for what [`FileSystem::by_number`] returned. `ESTALE` for a directory that has been removed.
    #[doc(alias = "get_parent")]
    fn parent(&self, dir: Node<'_>) -> Result<u64, Errno> {
        Err(Errno::STALE)
    }

    /// Returns the attributes of `node`. The generation is not looked at.
    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno>;

    /// Changes attributes, all or none, and returns the new ones. A new mode also changes the access
    /// ACL, where there is one, as chmod(2) does. `EFBIG`, `ENOSPC` for a size.
    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno>;

    /// Makes a new file of any kind. `EEXIST`, `ENOSPC`, `ENOENT` if `dir` is removed.
    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno>;

    /// Removes the name of `node`. For a directory `ENOTEMPTY` unless it is empty; after that
    /// nothing can be made in it any more.
    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno>;

    /// Renames `from` to `to` as `mode` says. Loops, kinds and `.`/`..` have been checked, also
    /// against other renames that run now. `ENOTEMPTY` for a target directory that is not empty.
    ///
    /// [`RenameMode::NoReplace`] is also asked for where anybody may be replaced, but the cache does not
    /// know whether `to` exists; `EEXIST`, and `EINVAL` or `ENOSYS` from a back end that cannot do it,
    /// then lead to a `lookup` of it and a second call.
    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno>;

    /// Reports the entries of `dir` behind `cookie` (0: from the start), in a fixed order, until
    /// the end or until `sink` breaks. An entry that exists throughout is reported exactly once
    /// over a pass, however other entries come and go.
    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno>;

    /// Reads at `offset` into `buf` and returns the count of bytes; fewer only at the end.
    fn read(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno>;

    /// Writes `bytes` at `offset` and returns the count. `ENOSPC`, `EFBIG`.
    fn write(&self, node: Node<'_>, handle: u64, offset: u64, bytes: &[u8])
    -> Result<usize, Errno>;

    /// Writes `bytes` at the end that the file has now (`O_APPEND`) and returns the count. `end` is
    /// where the client takes it to be. `ENOSPC`, `EFBIG`.
    ///
    /// That is a part of the call and not of what was opened, since fcntl(2) changes it in between, and
    /// pages that a client writes back through the same handle have a place of their own. It is asked for
    /// only where others change the files too, as far as the server knows. The default writes at `end`: if
    /// nobody but the client changes the file the two are the same, and the client does not append twice
    /// at a time. A back end whose files others change, as those of a host, finds the end and writes there
    /// in one step.
    fn append(&self, node: Node<'_>, handle: u64, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.write(node, handle, end, bytes)
    }

    /// Adds the name `name` in `dir` for `node` and returns its attributes. `EMLINK`, `EEXIST`.
    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        Err(Errno::PERM)
    }

    /// Returns the target of a symbolic link.
    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        Err(Errno::INVAL)
    }

    /// Makes a regular file without a name, to be given one by `link` (`O_TMPFILE`).
    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Opens a file; `flags` are those of open(2) without the ones about creation.
    fn open(&self, node: Node<'_>, flags: u32) -> Result<u64, Errno> {
        Ok(0)
    }

    /// Returns true if the back end keeps state per open file, so that `open` and `release` matter.
    /// When false a server may leave both calls out, unless [`FileSystem::addressing`] is
    /// [`Addressing::PathOnly`]: then the namespace has to know which files are open.
    fn has_open_state(&self) -> bool {
        false
    }

    /// Closes what `open` returned.
    fn release(&self, node: Node<'_>, handle: u64) {}

    /// Returns true if `fsync` may wait for a disk or another machine. A server then has further threads call it,
    /// and serves others with its own meanwhile.
    fn fsync_waits(&self) -> bool {
        false
    }

    /// Makes data (and, unless `data_only`, attributes) durable.
    fn fsync(&self, node: Node<'_>, handle: u64, data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns what statfs(2) reports.
    fn statfs(&self) -> Result<StatFs, Errno>;

    /// Changes the allocation of a regular file. `ENOSPC`, `EFBIG`, `EOPNOTSUPP`.
    fn fallocate(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the offset of the next data or hole at or behind `offset`. `ENXIO` behind the end.
    fn seek(&self, node: Node<'_>, handle: u64, offset: u64, what: Seek) -> Result<u64, Errno> {
        let size = self.getattr(node)?.size;
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// Returns the value of an extended attribute. `ENODATA` if there is none.
    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Sets an extended attribute. `EEXIST`, `ENODATA`, `ENOSPC`.
    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the names of all extended attributes, each ended by a NUL.
    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    /// Removes an extended attribute. `ENODATA` if there is none.
    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the access or default ACL of `node`, None where the mode says all. Back ends with
    /// `system.posix_acl_*` attributes keep them here.
    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        Ok(None)
    }

    /// Sets or, with None, removes an ACL, and with an access ACL the mode it implies, as one.
    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Says that the cache has let go of an inode. See F.4.
    fn forget(&self, ino: u64) {}

    /// Does what was put off, if there is anything. A server calls it about once a second, from a thread that
    /// serves no request; nothing but memory depends on it.
    fn maintain(&self) {}

    /// Calls `sink` with what the back end holds and has done: a name of each count, and the count.
    fn counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {}
}

/// Which of the two ACLs of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The one that is checked (`system.posix_acl_access`).
    Access,
    /// The one that files made in the directory inherit (`system.posix_acl_default`).
    Default,
}
