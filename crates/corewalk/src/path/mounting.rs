//! Mounting a file system on a directory of the namespace, and unmounting it. The module `mount`
//! has the table of mounts, with its invariants and locks.

use std::sync::Arc;

use super::PathRef;
use crate::Errno;
use crate::attr::FileKind;
use crate::dcache::{Mounted, is_attached};
use crate::dentry::Flags;
use crate::fs::FileSystem;
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::slot::DentrySlot;
use crate::vfs::{Vfs, root_of};

impl Vfs {
    /// Mounts `fs` on the directory `at`.
    ///
    /// A namespace accepts at most 1024 file systems during its life, including its root file
    /// system. An unmounted file system still counts, because its inodes may be in use. A file
    /// system whose mount failed with `ENOMEM` counts too.
    ///
    /// # Errors
    /// - `ENOTDIR` if `at` is no directory. `ENOENT` if the directory has been removed.
    /// - `EBUSY` if a file system is mounted on `at` already. To mount on top of it, walk to the
    ///   same path again, and pass the result as `at`.
    /// - `ENFILE` if the namespace has had 1024 file systems. `ENOMEM`.
    /// - The errors of `fs.root()`.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, FsStruct, Make, Name, WalkFlags, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root_path());
    /// vfs.make(&cred, &root.inode(), Name::new(b"mnt")?, Make::new(0o040_755, 0, 0))?;
    /// let at = FsStruct { cwd: root.clone(), root };
    /// let point = vfs.walk(&cred, &at, b"/mnt", WalkFlags::empty())?;
    /// vfs.mount(Arc::new(Tmpfs::new(TmpfsOptions::default())), &point)?;
    /// let top = vfs.walk(&cred, &at, b"/mnt", WalkFlags::empty())?;
    /// assert_ne!(top.id(), point.id());
    /// assert_eq!(top.d_path(&at.root), b"/mnt");
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn mount(&self, fs: Arc<dyn FileSystem>, at: &PathRef<'_>) -> Result<(), Errno> {
        if at.inode.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let attr = root_of(&*fs)?;
        let _locked = self.lock_name_of_point(at.dentry)?;
        if self.mounts.is_taken(&at.mount, at.dentry) {
            return Err(Errno::BUSY);
        }
        let root = self.add_superblock(fs, &attr)?;
        self.mounts.add(&at.mount, at.dentry, root, || {
            self.dcache.dentries.lockref(at.dentry).get();
            self.dcache.set_mounted(at.dentry, Mounted::Yes);
        })
    }

    /// Takes the in-lookup lock of the mount point's name. While the lock is held, the name is
    /// neither removed nor renamed (invariant M.2 of `mount`). Returns None if the mount point is a
    /// root, which has no name.
    ///
    /// # Errors
    /// `ENOENT` if the mount point has been removed.
    fn lock_name_of_point(&self, dentry: DentrySlot) -> Result<Option<KeyGuard<'_>>, Errno> {
        let attached = || {
            let now = self.dcache.directory(dentry);
            now.filter(|now| is_attached(now.flags)).ok_or(Errno::NOENT)
        };
        loop {
            if attached()?.flags.contains(Flags::ROOT) {
                return Ok(None);
            }
            let (parent, copy) = self.dcache.name_of(dentry);
            let name = Name::new(copy.as_bytes()).map_err(|_| Errno::NOENT)?;
            let key = self.dcache.in_lookup_key(parent, &self.dcache.lookup_key(name));
            let in_lookup = self.dcache.in_lookup.lock(key);
            let (parent_now, now) = self.dcache.name_of(dentry);
            // The mount point may have been renamed or removed before the lock was taken. So
            // compare its name again.
            if (parent_now, now.as_bytes()) == (parent, copy.as_bytes()) {
                return attached().map(|_| Some(in_lookup));
            }
        }
    }

    /// Unmounts the file system that has `at` as its root.
    ///
    /// # Errors
    /// `EINVAL` if `at` is the root of the namespace, or if it is not the root of a mount. `EBUSY`
    /// if something is mounted in this mount, or if another [`PathRef`] into the mount exists.
    /// Walks in progress, and inodes without a path, do not keep it mounted.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, FsStruct, Make, Name, WalkFlags, Vfs, VfsOptions};
    /// # let tmpfs = || Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(tmpfs(), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root_path());
    /// # vfs.make(&cred, &root.inode(), Name::new(b"mnt")?, Make::new(0o040_755, 0, 0))?;
    /// # let at = FsStruct { cwd: root.clone(), root };
    /// let walk = || vfs.walk(&cred, &at, b"/mnt", WalkFlags::empty());
    /// vfs.mount(tmpfs(), &walk()?)?;
    /// let other = walk()?;
    /// assert_eq!(vfs.umount(walk()?), Err(Errno::BUSY));
    /// drop(other);
    /// assert_eq!(vfs.umount(walk()?), Ok(()));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn umount(&self, at: PathRef<'_>) -> Result<(), Errno> {
        let mount = &**at.mount;
        let Some((_, point)) = &mount.point else { return Err(Errno::INVAL) };
        if at.dentry != mount.root {
            return Err(Errno::INVAL);
        }
        // A dentry can be a mount point in one mount only, because a file system is mounted at most
        // once. So after this unmount nothing is mounted on the dentry, and its flag is cleared.
        self.mounts.remove(mount, || self.dcache.set_mounted(*point, Mounted::No))?;
        self.dcache.put(*point);
        self.dcache.put(mount.root);
        Ok(())
    }
}
