//! The values that calls of a back end take and return.

use std::ops::ControlFlow;

use bitflags::bitflags;

use crate::attr::{Attr, FileKind};
use crate::name::Name;

/// Tells how a rename treats an existing file that has the new name.
///
/// # Examples
/// ```
/// use corewalk::RenameMode;
///
/// /// The flags of renameat2(2).
/// fn flags(mode: RenameMode) -> u32 {
///     match mode {
///         RenameMode::Replace => 0,
///         RenameMode::NoReplace => 1,
///         RenameMode::Exchange => 2,
///     }
/// }
/// # assert_eq!(flags(RenameMode::NoReplace), 1);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// The rename replaces the existing file, as rename(2) does.
    Replace,
    /// The rename fails with `EEXIST` (`RENAME_NOREPLACE`).
    NoReplace,
    /// The rename swaps the files of the two names (`RENAME_EXCHANGE`). Both names must exist.
    Exchange,
}

/// Tells whether setting an extended attribute may create or replace the attribute.
///
/// # Examples
/// ```
/// # use corewalk::{Errno, XattrMode};
/// # type Xattrs = std::collections::BTreeMap<Vec<u8>, Vec<u8>>;
/// fn set(all: &mut Xattrs, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Errno> {
///     match (all.contains_key(name), mode) {
///         (true, XattrMode::Create) => Err(Errno::EXIST),
///         (false, XattrMode::Replace) => Err(Errno::NODATA),
///         _ => Ok(drop(all.insert(name.to_vec(), value.to_vec()))),
///     }
/// }
/// # let mut all = Xattrs::new();
/// # assert_eq!(set(&mut all, b"user.a", b"1", XattrMode::Create), Ok(()));
/// # assert_eq!(set(&mut all, b"user.a", b"1", XattrMode::Create), Err(Errno::EXIST));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Setting creates or replaces the attribute.
    Set,
    /// Setting fails with `EEXIST` if the attribute exists (`XATTR_CREATE`).
    Create,
    /// Setting fails with `ENODATA` if the attribute does not exist (`XATTR_REPLACE`).
    Replace,
}

/// Tells what an lseek(2) looks for: data or a hole.
///
/// # Examples
/// ```
/// use corewalk::{Errno, Seek};
///
/// /// A file of `size` bytes without holes.
/// fn seek(size: u64, offset: u64, to: Seek) -> Result<u64, Errno> {
///     match to {
///         _ if offset >= size => Err(Errno::NXIO),
///         Seek::Data => Ok(offset),
///         Seek::Hole => Ok(size),
///     }
/// }
/// # assert_eq!(seek(9, 4, Seek::Hole), Ok(9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte of data (`SEEK_DATA`).
    Data,
    /// The next hole (`SEEK_HOLE`). The end of the file counts as a hole.
    Hole,
}

/// One entry of a directory, as `readdir` reports it.
///
/// # Examples
/// ```
/// use corewalk::{DirEntry, FileKind, Name};
///
/// let entry = DirEntry::new(Name::new(b"etc")?, 7, FileKind::Directory, 1);
/// assert_eq!((entry.ino, entry.attr), (7, None));
/// # Ok::<(), corewalk::Errno>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DirEntry<'a> {
    /// The name: never `.` or `..`, which the server adds.
    pub name: Name<'a>,
    /// Inode number, or 0 if the back end has no numbers.
    pub ino: u64,
    /// File type.
    pub kind: FileKind,
    /// The position in the directory after this entry. It is unique within the directory, and stays
    /// valid when the directory changes. It is never 0. It is at most 2^63 - 3, because a FUSE
    /// server adds two for `.` and `..`. A listing fails with `EOVERFLOW` at a larger cookie.
    pub cookie: u64,
    /// The attributes that a `lookup` of the name would return. With them, a listing that needs
    /// attributes does not call `lookup`. Most listings need no attributes. So a back end reports
    /// them only if they cost no extra work, for example because its storage sends them with the
    /// names.
    pub attr: Option<Attr>,
}

impl<'a> DirEntry<'a> {
    /// Returns the directory entry of the file `name`, without attributes. To continue after this
    /// entry, a listing passes `cookie` to `readdir`.
    pub fn new(name: Name<'a>, ino: u64, kind: FileKind, cookie: u64) -> DirEntry<'a> {
        DirEntry { name, ino, kind, cookie, attr: None }
    }

    /// Returns an entry with the attributes `attr`, which also give its inode number and kind.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Attr, DirEntry, FileKind, Name};
    ///
    /// // The storage lists each name with its attributes, so a listing needs no `lookup`.
    /// let entry = DirEntry::from_attr(Name::new(b"f")?, Attr::file(7, 5), 1);
    /// assert_eq!((entry.ino, entry.kind), (7, FileKind::Regular));
    /// assert_eq!(entry.attr.map(|attr| attr.size), Some(5));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn from_attr(name: Name<'a>, attr: Attr, cookie: u64) -> DirEntry<'a> {
        DirEntry { name, ino: attr.ino, kind: attr.kind(), cookie, attr: Some(attr) }
    }

    corewalk_base::setters! {
        with_ino: ino = u64;
    }
}

/// A function to which `readdir` passes each directory entry. It returns `Break` if the caller's
/// buffer is full. The buffer then does not contain this entry, so the next call of `readdir` must
/// report the entry again.
///
/// # Examples
/// ```
/// use corewalk::{DirEntry, DirSink, FileKind, Name};
///
/// fn list(files: &[(Name<'_>, u64)], cookie: u64, sink: &mut DirSink<'_>) {
///     for (at, (name, ino)) in (1..).zip(files).skip(cookie as usize) {
///         if sink(DirEntry::new(*name, *ino, FileKind::Regular, at)).is_break() {
///             return;
///         }
///     }
/// }
/// # let mut names = vec![];
/// # list(&[(Name::new(b"a")?, 1), (Name::new(b"b")?, 2)], 1, &mut |entry| {
/// #     names.push(entry.ino);
/// #     std::ops::ControlFlow::Continue(())
/// # });
/// # assert_eq!(names, [2]);
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub type DirSink<'a> = dyn FnMut(DirEntry<'_>) -> ControlFlow<()> + 'a;

bitflags! {
    /// The operation of fallocate(2). Analogous to Linux's `FALLOC_FL_*`, with the same numbers.
    ///
    /// # Examples
    /// ```
    /// use corewalk::Fallocate;
    ///
    /// let hole = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
    /// assert_eq!(Fallocate::from_bits(3), Some(hole));
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Fallocate: u32 {
        /// Do not change the size.
        const KEEP_SIZE = 0x01;
        /// Make a hole. This flag needs `KEEP_SIZE` too.
        const PUNCH_HOLE = 0x02;
        /// Remove the range, and move the bytes after it to its start.
        const COLLAPSE_RANGE = 0x08;
        /// Make the range read as zeros.
        const ZERO_RANGE = 0x10;
        /// Insert a hole, and move the bytes behind it towards the end.
        const INSERT_RANGE = 0x20;
    }
}

bitflags! {
    /// How a server treats an open file. Analogous to FUSE's `FOPEN_*`, with the same numbers.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{OpenFlags, Opened};
    ///
    /// // A file whose size is not known.
    /// let opened = Opened::new(0).with_flags(OpenFlags::DIRECT_IO | OpenFlags::NONSEEKABLE);
    /// assert_eq!(opened.flags.bits(), 5);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpenFlags: u32 {
        /// The kernel does not cache the file's pages. Each read(2) and write(2) reaches the back
        /// end, which may read or write fewer bytes than requested. mmap(2) with `MAP_SHARED`
        /// fails. Files whose size is not known in advance need this flag, such as those of
        /// `/proc`.
        const DIRECT_IO = 1;
        /// Tells the kernel to keep the pages of the file that it has cached already. If the flag
        /// is not set, the kernel drops these pages when the file is opened. If only this mount
        /// changes the files, a server always sets this flag.
        const KEEP_CACHE = 1 << 1;
        /// The file has a position, but lseek(2) fails with `ESPIPE`.
        const NONSEEKABLE = 1 << 2;
        /// The file has no position, like a pipe.
        const STREAM = 1 << 4;
        /// The kernel sends no `flush` for this file. A kernel with a write-back cache ignores this
        /// flag.
        const NOFLUSH = 1 << 5;
        /// Several writes of a file with `DIRECT_IO` may run at the same time.
        const PARALLEL_DIRECT_WRITES = 1 << 6;
    }
}

/// An open file or directory, as `open` returns it. [`Node::handle`](crate::Node::handle) has a
/// longer example.
///
/// # Examples
/// ```
/// use corewalk::{OpenFlags, Opened};
///
/// let opened = Opened::new(7).with_flags(OpenFlags::DIRECT_IO);
/// assert_eq!((opened.handle, opened.flags), (7, OpenFlags::DIRECT_IO));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Opened {
    /// The number by which the back end identifies the open file.
    pub handle: u64,
    /// How a server treats the file.
    pub flags: OpenFlags,
}

impl Opened {
    /// Returns an open file without flags.
    pub fn new(handle: u64) -> Opened {
        Opened { handle, flags: OpenFlags::empty() }
    }

    corewalk_base::setters! {
        with_flags: flags = OpenFlags;
    }
}

/// One of the two ACLs of an inode.
///
/// # Examples
/// ```
/// use corewalk::AclKind;
/// use corewalk::acl::{XATTR_ACCESS, XATTR_DEFAULT};
///
/// fn attribute(kind: AclKind) -> &'static [u8] {
///     match kind {
///         AclKind::Access => XATTR_ACCESS,
///         AclKind::Default => XATTR_DEFAULT,
///     }
/// }
/// # assert_eq!(attribute(AclKind::Default), b"system.posix_acl_default");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The access ACL, which permission checks use (`system.posix_acl_access`).
    Access,
    /// The default ACL of a directory, which new files inherit (`system.posix_acl_default`).
    Default,
}
