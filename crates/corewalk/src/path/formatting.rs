//! The customary formattings of a translated path.
//!
//! [`PathRef::path_of`](super::PathRef::path_of) returns the kind of a path as a type. These
//! functions return the texts that Linux shows instead. Each has two forms: owned, and in a buffer
//! of the caller, without an allocation. In a buffer the text lies at the end, as in the kernel,
//! and without a NUL behind it. The bytes before it may be overwritten.
//!
//! | here | Linux | a removed place | outside of the root |
//! |---|---|---|---|
//! | `d_path` | `/proc/self/fd` and `maps` | ` (deleted)` after it | path from the outermost root |
//! | `d_absolute_path` | AppArmor, TOMOYO | as if it were there | there is no other root |
//! | `dentry_path_raw` | paths within a file system | as if it were there | does not matter |
//! | `dentry_path` | `/proc/self/mountinfo` | `//deleted` behind it | does not matter |
//! | `getcwd` | getcwd(2) | `ENOENT` | `(unreachable)` before it |
//!
//! Source: Linux `fs/d_path.c`; getcwd(2); proc(5).

use super::PathRef;
use crate::Errno;
use crate::dpath::{PathKind, Route};

/// The suffix of d_path for a removed place.
const DELETED: &[u8] = b" (deleted)";
/// The suffix of dentry_path for a removed place.
const DENTRY_DELETED: &[u8] = b"//deleted";
/// The prefix of getcwd for a place that is not below the root.
const UNREACHABLE: &[u8] = b"(unreachable)";

impl PathRef<'_> {
    /// Returns the text of d_path: the path from `root`, with the suffix ` (deleted)` if it is
    /// unlinked.
    ///
    /// A path that is not below `root` starts at the top of its tree, and looks like any other
    /// path. For example, Linux 6.18 shows `/tmp/out/a` for `/proc/self/fd/3` in a process with the
    /// root `/tmp/jail`. It shows `/a/b` for a working directory in a tmpfs that was unmounted
    /// lazily. Only getcwd(2) tells these apart; use [`PathRef::path_of`] to know.
    #[must_use]
    pub fn d_path(&self, root: &PathRef<'_>) -> Vec<u8> {
        let (mut path, kind) = self.path_of(root);
        if kind == PathKind::Unlinked {
            path.extend_from_slice(DELETED);
        }
        path
    }

    /// As [`PathRef::d_path`], at the end of `buf`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if it does not fit.
    pub fn d_path_in<'b>(&self, root: &PathRef<'_>, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        let (start, kind) = self.path_into(Some(root), buf)?;
        behind(buf, start, if kind == PathKind::Unlinked { DELETED } else { b"" })
    }

    /// Returns the path from the root of the namespace, independent of any other root.
    ///
    /// # Errors
    /// `EINVAL` if the place is in a tree that is not mounted.
    pub fn d_absolute_path(&self) -> Result<Vec<u8>, Errno> {
        match self.translated(self.route(None)) {
            (_, PathKind::Unreachable) => Err(Errno::INVAL),
            (path, _) => Ok(path),
        }
    }

    /// As [`PathRef::d_absolute_path`], at the end of `buf`.
    ///
    /// # Errors
    /// As there; `ENAMETOOLONG` if it does not fit.
    pub fn d_absolute_path_in<'b>(&self, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        match self.path_into(None, buf)? {
            (_, PathKind::Unreachable) => Err(Errno::INVAL),
            (start, _) => Ok(&buf[start..]),
        }
    }

    /// Returns the path from the root of the place's own file system.
    #[must_use]
    pub fn dentry_path_raw(&self) -> Vec<u8> {
        self.translated(Route::Names(self.dentry)).0
    }

    /// As [`PathRef::dentry_path_raw`], at the end of `buf`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if it does not fit.
    pub fn dentry_path_raw_in<'b>(&self, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        let (start, _) = self.route_into(Route::Names(self.dentry), buf)?;
        Ok(&buf[start..])
    }

    /// Returns the path from the root of the place's file system, with the suffix `//deleted` if it
    /// is unlinked. No path of an existing file ends so.
    #[must_use]
    pub fn dentry_path(&self) -> Vec<u8> {
        let (mut path, kind) = self.translated(Route::Names(self.dentry));
        if kind == PathKind::Unlinked {
            path.extend_from_slice(DENTRY_DELETED);
        }
        path
    }

    /// As [`PathRef::dentry_path`], at the end of `buf`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if it does not fit.
    pub fn dentry_path_in<'b>(&self, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        let (start, kind) = self.route_into(Route::Names(self.dentry), buf)?;
        behind(buf, start, if kind == PathKind::Unlinked { DENTRY_DELETED } else { b"" })
    }

    /// Returns the text that getcwd(2) gives for this working directory: the path from `root`, with
    /// `(unreachable)` before it if it is not below that.
    ///
    /// # Errors
    /// `ENOENT` if it has been removed.
    pub fn getcwd(&self, root: &PathRef<'_>) -> Result<Vec<u8>, Errno> {
        let (path, kind) = self.path_of(root);
        match kind {
            PathKind::Linked => Ok(path),
            PathKind::Unlinked => Err(Errno::NOENT),
            PathKind::OutsideRoot | PathKind::Unreachable => Ok([UNREACHABLE, &path].concat()),
        }
    }

    /// As [`PathRef::getcwd`], at the end of `buf`.
    ///
    /// # Errors
    /// As there; `ERANGE` if it does not fit.
    pub fn getcwd_in<'b>(&self, root: &PathRef<'_>, buf: &'b mut [u8]) -> Result<&'b [u8], Errno> {
        let (start, kind) = match self.path_into(Some(root), buf) {
            Err(Errno::NAMETOOLONG) => return Err(Errno::RANGE),
            found => found?,
        };
        match kind {
            PathKind::Linked => Ok(&buf[start..]),
            PathKind::Unlinked => Err(Errno::NOENT),
            PathKind::OutsideRoot | PathKind::Unreachable => {
                let at = start.checked_sub(UNREACHABLE.len()).ok_or(Errno::RANGE)?;
                buf[at..start].copy_from_slice(UNREACHABLE);
                Ok(&buf[at..])
            }
        }
    }
}

/// Puts `suffix` behind the path that begins at `start` and ends with `buf`.
fn behind<'b>(buf: &'b mut [u8], start: usize, suffix: &[u8]) -> Result<&'b [u8], Errno> {
    let at = start.checked_sub(suffix.len()).ok_or(Errno::NAMETOOLONG)?;
    if at < start {
        buf.copy_within(start.., at);
        let end = buf.len() - suffix.len();
        buf[end..].copy_from_slice(suffix);
    }
    Ok(&buf[at..])
}
