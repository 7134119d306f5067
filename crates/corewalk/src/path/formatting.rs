//! The texts in which Linux shows the path of a file or directory.
//!
//! [`PathRef::path_of`](super::PathRef::path_of) returns a path and its kind separately. Linux
//! instead shows the kind in the text of the path, for example as the suffix ` (deleted)`.
//! [`PathRef::format_in`] writes such a text into a buffer of the caller, without an allocation.
//! The functions with the names of kernel functions, such as `d_path`, return a vector.
//!
//! | here | Linux | a removed file | outside of the root |
//! |---|---|---|---|
//! | `d_path` | `/proc/self/fd` and `maps` | ` (deleted)` after it | path from the outermost root |
//! | `d_absolute_path` | AppArmor, TOMOYO | as if it were there | there is no other root |
//! | `dentry_path_raw` | paths within a file system | as if it were there | does not matter |
//! | `dentry_path` | `/proc/self/mountinfo` | `//deleted` after it | does not matter |
//! | `getcwd` | getcwd(2) | `ENOENT` | `(unreachable)` before it |
//!
//! Source: Linux `fs/d_path.c`; getcwd(2); proc(5).

use super::PathRef;
use crate::Errno;
use crate::dpath::{PathBuffer, PathKind, Route, path_into};

/// The formats in which Linux shows the path of a mount and a dentry. See [`PathRef::format_in`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum PathFormat<'a> {
    /// The path from the given root, with the suffix ` (deleted)` for a removed file or directory.
    /// A file outside of that root gets its path from the root of the namespace. If the file's tree
    /// is not mounted, the path is from the root of that tree. The text does not show where the
    /// path starts.
    DPath(&'a PathRef<'a>),
    /// The path from the root of the namespace. `EINVAL` if the file or directory is in a tree that
    /// is not mounted.
    DAbsolutePath,
    /// The path from the root of the file system that the file or directory is in.
    DentryPathRaw,
    /// The path of [`PathFormat::DentryPathRaw`], with the suffix `//deleted` if the file or
    /// directory was removed. No path of an existing file has this suffix, since the suffix
    /// contains two slashes in a row.
    DentryPath,
    /// The text of getcwd(2) for a working directory, in a process with the given root directory.
    /// It begins with `(unreachable)` for a directory that is not below that root. `ENOENT` if the
    /// working directory was removed.
    Getcwd(&'a PathRef<'a>),
}

impl PathFormat<'_> {
    fn route<'p>(self, place: &'p PathRef<'_>) -> Route<'p> {
        match self {
            Self::DPath(root) | Self::Getcwd(root) => place.route(Some(root)),
            Self::DAbsolutePath => place.route(None),
            Self::DentryPathRaw | Self::DentryPath => Route::Names(place.dentry),
        }
    }

    fn prefix_and_suffix(self, kind: PathKind) -> Result<[&'static [u8]; 2], Errno> {
        match (self, kind) {
            (Self::DPath(_), PathKind::Unlinked) => Ok([b"", b" (deleted)"]),
            (Self::DentryPath, PathKind::Unlinked) => Ok([b"", b"//deleted"]),
            (Self::DAbsolutePath, PathKind::Unreachable) => Err(Errno::INVAL),
            (Self::Getcwd(_), PathKind::Unlinked) => Err(Errno::NOENT),
            (Self::Getcwd(_), PathKind::OutsideRoot | PathKind::Unreachable) => {
                Ok([b"(unreachable)", b""])
            }
            _ => Ok([b"", b""]),
        }
    }

    fn too_long(self) -> Errno {
        if matches!(self, Self::Getcwd(_)) { Errno::RANGE } else { Errno::NAMETOOLONG }
    }
}

impl PathRef<'_> {
    /// Writes this path in the format `format` to the end of `buf`, and returns the text, which has
    /// no NUL. The bytes before it may be overwritten. Allocates no memory.
    ///
    /// # Errors
    /// The errors that [`PathFormat`] documents for `format`. If the text does not fit in `buf`,
    /// `ERANGE` for [`PathFormat::Getcwd`] and `ENAMETOOLONG` for the other formats.
    ///
    /// # Examples
    /// ```
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Errno, PathFormat, Vfs, VfsOptions};
    /// use std::sync::Arc;
    /// # fn main() -> Result<(), Errno> {
    /// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let root = vfs.root_path();
    /// assert_eq!(root.format_in(PathFormat::Getcwd(&root), &mut [0; 8])?, b"/");
    /// assert_eq!(root.format_in(PathFormat::Getcwd(&root), &mut []), Err(Errno::RANGE));
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "d_path")]
    #[doc(alias = "dentry_path_raw")]
    pub fn format_in<'b>(
        &self,
        format: PathFormat<'_>,
        buf: &'b mut [u8],
    ) -> Result<&'b [u8], Errno> {
        let does_not_fit =
            |error| if error == Errno::NAMETOOLONG { format.too_long() } else { error };
        let (start, kind) =
            path_into(&self.vfs.dcache, format.route(self), buf).map_err(does_not_fit)?;
        let [prefix, suffix] = format.prefix_and_suffix(kind)?;
        let added = prefix.len() + suffix.len();
        let begin = start.checked_sub(added).ok_or_else(|| format.too_long())?;
        let end = buf.len() - suffix.len();
        if added != 0 {
            buf.copy_within(start.., begin + prefix.len());
            buf[begin..begin + prefix.len()].copy_from_slice(prefix);
            buf[end..].copy_from_slice(suffix);
        }
        Ok(&buf[begin..])
    }

    fn format(&self, format: PathFormat<'_>) -> Result<Vec<u8>, Errno> {
        let mut buffer = PathBuffer::new();
        buffer.collect(&self.vfs.dcache, format.route(self));
        let [prefix, suffix] = format.prefix_and_suffix(buffer.kind)?;
        Ok([prefix, buffer.whole(), suffix].concat())
    }

    /// Returns the text of [`PathFormat::DPath`].
    ///
    /// The text of a path does not show whether the file is below `root`. Only getcwd(2) and
    /// [`PathRef::path_of`] tell that. Example on Linux 6.18: a process with the root `/tmp/jail`
    /// has opened a file outside of it. Its `/proc/self/fd/3` is `/tmp/out/a`.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, FsStruct, Make, Name, WalkFlags, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root_path());
    /// let (a, _) = vfs.make(&cred, &root.inode(), Name::new(b"a")?, Make::new(0o040_755, 0, 0))?;
    /// vfs.make(&cred, &a, Name::new(b"b")?, Make::new(0o100_644, 0, 0))?;
    /// let at = FsStruct { cwd: root.clone(), root };
    /// let dir = vfs.walk(&cred, &at, b"a", WalkFlags::empty())?;
    /// let file = vfs.walk(&cred, &at, b"a/./b", WalkFlags::empty())?;
    /// assert_eq!(file.d_path(&at.root), b"/a/b");
    /// assert_eq!(file.d_path(&dir), b"/b");
    /// assert_eq!(dir.getcwd(&at.root)?, b"/a");
    /// assert!(file.is_subdir(&dir) && !dir.is_subdir(&file));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    #[must_use]
    pub fn d_path(&self, root: &PathRef<'_>) -> Vec<u8> {
        self.format(PathFormat::DPath(root)).expect("the format has no errors")
    }

    /// Returns the text of [`PathFormat::DAbsolutePath`].
    ///
    /// # Errors
    /// `EINVAL` if the file or directory is in a tree that is not mounted.
    pub fn d_absolute_path(&self) -> Result<Vec<u8>, Errno> {
        self.format(PathFormat::DAbsolutePath)
    }

    /// Returns the text of [`PathFormat::DentryPath`].
    #[must_use]
    pub fn dentry_path(&self) -> Vec<u8> {
        self.format(PathFormat::DentryPath).expect("the format has no errors")
    }

    /// Returns the text of [`PathFormat::Getcwd`], for this working directory.
    ///
    /// # Errors
    /// `ENOENT` if the directory has been removed.
    pub fn getcwd(&self, root: &PathRef<'_>) -> Result<Vec<u8>, Errno> {
        self.format(PathFormat::Getcwd(root))
    }
}
