//! A place in the namespace: a mount and a dentry, with references on both.

mod formatting;
mod mounting;

pub use formatting::PathFormat;

use std::fmt;

use crate::Errno;
use crate::dpath::{PathBuffer, PathKind, Route, path_into};
use crate::mount::MountRef;
use crate::slot::DentrySlot;
use crate::vfs::{InodeRef, Vfs};

/// A place in a namespace (a mount and a dentry) with counted references, such as a root, a working
/// directory or an open file.
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
    /// The inode, with a reference of its own, because the dentry loses its inode when the name is
    /// removed.
    pub(crate) inode: InodeRef<'v>,
}

impl<'v> PathRef<'v> {
    /// Returns the inode.
    pub fn inode(&self) -> InodeRef<'v> {
        self.inode.clone()
    }

    /// Returns the path from `root` at one instant, and the kind of path. The path of `root` itself
    /// is `/` and [`PathKind::Linked`], a path below is `/a/b`. The mounts on the path are those of
    /// the same instant.
    ///
    /// The call first collects the names without a lock, at most four times. This fails only if the
    /// place or an ancestor changes meanwhile. After four failures the call collects the names
    /// under a lock that keeps all directories in place. Several calls can hold this lock at the
    /// same time.
    #[must_use]
    pub fn path_of(&self, root: &PathRef<'_>) -> (Vec<u8>, PathKind) {
        let mut buffer = PathBuffer::new();
        buffer.collect(&self.vfs.dcache, self.route(Some(root)));
        (buffer.whole().to_vec(), buffer.kind)
    }

    /// Like [`PathRef::path_of`], but writes the path to the end of `buf`. The bytes before the
    /// path may be overwritten. The call allocates nothing, however long the path is. At its end
    /// the call checks that no name of the path has changed, and keeps a list of the names for this
    /// check. If the path has more names than fit in the list, the call tries again with a list of
    /// 1024 names. For a path of even more names, the call takes the lock that keeps all
    /// directories in place.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if the path does not fit. No NUL follows the path, so a buffer of its length
    /// suffices.
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

    /// Returns true if this place is the place `of` or is below it, at one instant. Mount points
    /// may lie between the two places.
    #[must_use]
    pub fn is_subdir(&self, of: &PathRef<'_>) -> bool {
        let mut buffer = PathBuffer::new();
        buffer.collect(&self.vfs.dcache, self.route(Some(of)));
        !matches!(buffer.kind, PathKind::OutsideRoot | PathKind::Unreachable)
            && buffer.top == of.dentry
    }

    /// Returns the route of a path translation from this place to `root`. If `root` is None, the
    /// route ends at the root of the namespace.
    fn route(&self, root: Option<&PathRef<'_>>) -> Route<'_> {
        Route::Mounts((&self.mount, self.dentry), root.map(|root| (root.mount.id, root.dentry)))
    }

    /// Returns an identifier of the place: the slot of the dentry and its generation. The
    /// identifier holds no reference.
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
