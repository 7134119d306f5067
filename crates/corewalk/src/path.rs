//! References to files by path: a mount and a dentry in it, with a reference on each.

mod formatting;
mod mounting;

pub use formatting::PathFormat;

use std::fmt;

use crate::Errno;
use crate::dpath::{PathBuffer, PathKind, Route, path_into};
use crate::mount::MountRef;
use crate::slot::DentrySlot;
use crate::vfs::{InodeRef, Vfs};

/// A reference to a file or directory of a namespace, such as a root directory, a working directory
/// or an open file. It is a mount and a dentry in it, with a reference on each.
///
/// Analogous to Linux's `struct path`.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// # use corewalk::{Cred, FsStruct, Make, Name, PathKind, Removal, WalkFlags, Vfs, VfsOptions};
/// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// # let vfs = Vfs::new(fs, VfsOptions::default())?;
/// let (cred, root) = (Cred::root(), vfs.root_path());
/// vfs.make(&cred, &root.inode(), Name::new(b"f")?, Make::new(0o644, 0, 0))?;
/// let at = FsStruct { cwd: root.clone(), root };
/// let file = vfs.walk(&cred, &at, b"f", WalkFlags::empty())?;
/// assert!(file.is_subdir(&at.root));
/// vfs.remove(&cred, &at.root.inode(), Name::new(b"f")?, Removal::Unlink)?;
/// assert_eq!(file.path_of(&at.root), (b"/f".to_vec(), PathKind::Unlinked));
/// assert_eq!(file.d_path(&at.root), b"/f (deleted)");
/// # Ok::<(), corewalk::Errno>(())
/// ```
#[doc(alias = "struct path")]
pub struct PathRef<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) mount: MountRef,
    pub(crate) dentry: DentrySlot,
    /// The inode of `dentry`. This value holds its own reference on the inode, because the dentry
    /// loses its inode when the name is removed.
    pub(crate) inode: InodeRef<'v>,
}

impl<'v> PathRef<'v> {
    /// Returns the inode.
    pub fn inode(&self) -> InodeRef<'v> {
        self.inode.clone()
    }

    /// Returns the path of this mount and dentry as seen from `root`, and the kind of path. The
    /// path of `root` itself is `/`, and a path below it has the form `/a/b`. Both have the kind
    /// [`PathKind::Linked`]. All names and mounts on the path existed at the same instant.
    ///
    /// Collects the names without a lock, at most four times. An attempt fails only if the dentry
    /// or one of its ancestors changes meanwhile. After four failures, collects them under a lock
    /// that keeps directories in place; several calls can hold it.
    #[must_use]
    pub fn path_of(&self, root: &PathRef<'_>) -> (Vec<u8>, PathKind) {
        let mut buffer = PathBuffer::new();
        buffer.collect(&self.vfs.dcache, self.route(Some(root)));
        (buffer.whole().to_vec(), buffer.kind)
    }

    /// Like [`PathRef::path_of`], but writes the path to the end of `buf`, and allocates no memory,
    /// however long the path is. The bytes before the path may be overwritten.
    ///
    /// The translation keeps a list of the names on the stack, to validate them at its end. If the
    /// path has more names than this list can hold, the translation starts again with a list for
    /// 1024 names. For even more names, it takes the lock that keeps all directories in place.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if the path does not fit in `buf`. No NUL follows the path, so a buffer as
    /// long as the path suffices.
    ///
    /// # Examples
    /// ```
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Errno, PathKind, Vfs, VfsOptions};
    /// use std::sync::Arc;
    /// # fn main() -> Result<(), Errno> {
    /// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let root = vfs.root_path();
    /// assert_eq!(root.path_of_in(&root, &mut [0; 8])?, (&b"/"[..], PathKind::Linked));
    /// assert_eq!(root.path_of_in(&root, &mut []), Err(Errno::NAMETOOLONG));
    /// # Ok(())
    /// # }
    /// ```
    pub fn path_of_in<'b>(
        &self,
        root: &PathRef<'_>,
        buf: &'b mut [u8],
    ) -> Result<(&'b [u8], PathKind), Errno> {
        let (start, kind) = path_into(&self.vfs.dcache, self.route(Some(root)), buf)?;
        Ok((&buf[start..], kind))
    }

    /// Returns true if `self` is `of`, or is below `of`, at some instant during the call. There may
    /// be mount points between the two.
    #[must_use]
    pub fn is_subdir(&self, of: &PathRef<'_>) -> bool {
        let mut buffer = PathBuffer::new();
        buffer.collect(&self.vfs.dcache, self.route(Some(of)));
        !matches!(buffer.kind, PathKind::OutsideRoot | PathKind::Unreachable)
            && buffer.top == of.dentry
    }

    fn route(&self, root: Option<&PathRef<'_>>) -> Route<'_> {
        Route::Mounts((&self.mount, self.dentry), root.map(|root| (root.mount.id, root.dentry)))
    }

    /// Returns the dentry's slot number and the slot's generation, which together identify the
    /// dentry. These numbers hold no reference, so the dentry may be evicted.
    pub fn id(&self) -> (u32, u32) {
        (self.dentry.get(), self.vfs.dcache.dentries.cold(self.dentry).generation())
    }
}

impl Clone for PathRef<'_> {
    fn clone(&self) -> Self {
        self.vfs.dcache.dentries.lockref(self.dentry).get();
        PathRef {
            vfs: self.vfs,
            mount: self.mount.clone(),
            dentry: self.dentry,
            inode: self.inode.clone(),
        }
    }
}

impl Drop for PathRef<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.put(self.dentry);
    }
}

impl fmt::Debug for PathRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.vfs.root_path();
        let path = self.d_path(&root);
        write!(f, "PathRef({})", path.escape_ascii())
    }
}

impl Vfs {
    /// Returns the root of the namespace.
    pub fn root_path(&self) -> PathRef<'_> {
        let mount = MountRef::get(self.mounts.root_mount()).expect("the root stays mounted");
        self.dcache.dentries.lockref(mount.root).get();
        PathRef { vfs: self, dentry: mount.root, mount, inode: self.root() }
    }
}
