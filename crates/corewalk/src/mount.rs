//! Mounts: file systems attached to directories of other file systems.
//!
//! The mount table is one immutable value behind an RCU cell. A walk reads it only at a dentry with
//! the flag for mount points, or at the root of a mount. A change copies the table. Mounts and
//! unmounts are rare, and one lock serialises them.
//!
//! # Lifetime of a mount Each mount but the root mount counts its users: the table, and every
//! [`PathRef`] into it. An unmount marks it dead in the step that checks for other users, and from
//! then on no walk can end in it. A walk in progress is not a user: its pointer keeps the memory of
//! the mount, but not the mount alive. When the walk ends, or goes up to the parent mount, it
//! checks that the mount is alive. If the mount is dead, the walk begins again. (Counting pointers
//! instead would include those of retired tables, and would miss walks that are just entering a
//! mount.)
//!
//! # Invariants
//! - M.1: a live mount keeps a reference on its mount point, and keeps its parent mount alive. So a
//!   mount with another mount in it is not unmounted.
//! - M.2: a mount point has a name, or is a root. `mount` marks it under the in-lookup lock of its
//!   name. A removal or a rename of the name checks the mark under the same lock.
//!
//! # Locks
//! The in-lookup lock of the mount point's name, then `change`, then the lock of a mount's count or
//! of a dentry. No back end is called under `change`.
//!
//! # What it refuses It refuses a second mount on the same directory of the same mount, and the
//! unmount of a mount in use (there is no lazy unmount). An unmounted file system stays as long as
//! the namespace, with the entry of its root, because its inodes may be in use. So a namespace
//! accepts at most 1024 file systems during its life.
//!
//! Source: mount(2), umount(2); Linux `fs/namespace.c` (`mount_hashtable`, `mnt_parent`,
//! `propagate_mount_busy`, `legitimize_mnt`).

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use corewalk_base::Mutex;
use corewalk_sync::rcu::ReadGuard;
use corewalk_sync::{Lockref, RcuCell};

use crate::Errno;
use crate::attr::FileKind;
use crate::dcache::{Mounted, is_attached};
use crate::dentry::Flags;
use crate::fs::FileSystem;
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::path::PathRef;
use crate::slot::DentrySlot;
use crate::vfs::Vfs;

/// One mounted file system.
#[doc(alias = "struct mount")]
pub(crate) struct Mount {
    pub(crate) id: u64,
    /// The root dentry, on which the mount has a reference.
    pub(crate) root: DentrySlot,
    /// The mount point: a mount and a dentry in it, with a reference on each. It is None for the
    /// root mount.
    pub(crate) point: Option<(Arc<Mount>, DentrySlot)>,
    /// The number of users: the table, if the mount is in it, and each [`MountRef`]. The users of
    /// the root mount are not counted, because it is never unmounted.
    users: Lockref,
}

impl Mount {
    /// Returns true if the mount has been unmounted.
    pub(crate) fn is_dead(&self) -> bool {
        self.users.is_dead()
    }

    /// Returns true for a mount that may be unmounted.
    fn is_counted(&self) -> bool {
        self.point.is_some()
    }
}

/// A counted reference on a mount. As long as a thread holds it, the mount is not unmounted.
pub(crate) struct MountRef(Arc<Mount>);

impl MountRef {
    /// Returns a reference, unless the mount has been unmounted.
    pub(crate) fn get(mount: &Arc<Mount>) -> Option<MountRef> {
        (!mount.is_counted() || mount.users.get_not_dead()).then(|| MountRef(Arc::clone(mount)))
    }
}

impl Clone for MountRef {
    fn clone(&self) -> MountRef {
        if self.0.is_counted() {
            self.0.users.get();
        }
        MountRef(Arc::clone(&self.0))
    }
}

impl Deref for MountRef {
    type Target = Arc<Mount>;

    fn deref(&self) -> &Arc<Mount> {
        &self.0
    }
}

impl Drop for MountRef {
    fn drop(&mut self) {
        if self.0.is_counted() {
            self.0.users.put_return();
        }
    }
}

/// The mounts of a namespace.
pub(crate) struct Mounts {
    root: OnceLock<Arc<Mount>>,
    table: RcuCell<Table>,
    change: Mutex<u64>,
}

/// The mounts by mount point. A mount point is the number of a mount, and a dentry in that mount.
type Table = HashMap<(u64, DentrySlot), Arc<Mount>>;

impl Mounts {
    pub(crate) fn new() -> Mounts {
        Mounts { root: OnceLock::new(), table: RcuCell::new(Table::new()), change: Mutex::new(0) }
    }

    /// Sets the root mount, once. The mount takes over the caller's reference on the dentry.
    pub(crate) fn set_root(&self, dentry: DentrySlot) {
        let root = Arc::new(Mount { id: 0, root: dentry, point: None, users: Lockref::new(1) });
        assert!(self.root.set(root).is_ok(), "the root is mounted once");
    }

    /// Returns the root mount.
    pub(crate) fn root_mount(&self) -> &Arc<Mount> {
        self.root.get().expect("a namespace has a root")
    }

    /// Returns the root dentry.
    pub(crate) fn root(&self) -> DentrySlot {
        self.root_mount().root
    }

    /// Returns the mount on a dentry of a mount.
    pub(crate) fn on<'g>(
        &self,
        mount: &Mount,
        dentry: DentrySlot,
        guard: &'g ReadGuard,
    ) -> Option<&'g Arc<Mount>> {
        // Ignore a dead mount, which is about to leave the table.
        self.table.read(guard).get(&(mount.id, dentry)).filter(|mount| !mount.is_dead())
    }

    /// Returns true if something is mounted on a dentry of a mount.
    fn is_taken(&self, key: (u64, DentrySlot)) -> bool {
        self.table.read(&corewalk_sync::rcu::read_lock()).contains_key(&key)
    }

    /// Returns true if something is mounted in `mount`.
    fn has_mounts_in(&self, mount: &Mount) -> bool {
        let guard = corewalk_sync::rcu::read_lock();
        self.table.read(&guard).keys().any(|(id, _)| *id == mount.id)
    }
}

impl Vfs {
    /// Mounts `fs` on the directory `at`.
    ///
    /// A namespace accepts 1024 file systems during its life, including that of its root. An
    /// unmounted file system still counts. It is dropped with the namespace, because its inodes may
    /// be in use. A file system whose mount failed with `ENOMEM` counts too.
    ///
    /// # Errors
    /// - `ENOTDIR` for other files; `ENOENT` if the directory has been removed.
    /// - `EBUSY` if there is a mount on it already. A walk leads to the root of that mount, which
    ///   can be mounted on.
    /// - `ENFILE` for a file system too many; `ENOMEM`.
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
        let attr = crate::vfs::root_of(&*fs)?;
        let _locked = self.lock_name_of_point(at.dentry)?;
        let key = (at.mount.id, at.dentry);
        if self.mounts.is_taken(key) {
            return Err(Errno::BUSY);
        }
        let root = self.add_superblock(fs, &attr)?;
        let mut last = self.mounts.change.lock();
        if self.mounts.is_taken(key) {
            // A mount on a root takes no in-lookup lock. So another thread may meanwhile have
            // mounted a file system here.
            return Err(Errno::BUSY);
        }
        self.dcache.dentries.lockref(at.dentry).get();
        *last += 1;
        let point = Some((Arc::clone(&at.mount), at.dentry));
        let mount = Arc::new(Mount { id: *last, root, point, users: Lockref::new(1) });
        self.mounts.table.update(|table| {
            let mut table = table.clone();
            table.insert(key, Arc::clone(&mount));
            table
        });
        self.dcache.set_mounted(at.dentry, Mounted::Yes);
        Ok(())
    }

    /// Takes the in-lookup lock of the mount point's name, so that the name is neither removed nor
    /// renamed (M.2). Returns None for a root, which has no name.
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
            // The mount point may have been renamed or removed before the lock was taken, so
            // compare its name again.
            if (parent_now, now.as_bytes()) == (parent, copy.as_bytes()) {
                return attached().map(|_| Some(in_lookup));
            }
        }
    }

    /// Unmounts the file system that has `at` as its root.
    ///
    /// # Errors `EINVAL` if `at` is not the root of a mount, or is the root of the namespace.
    /// `EBUSY` if there is a mount below, or another path into the mount is held. Walks in
    /// progress, and inodes that are held without a path, do not prevent the unmount.
    pub fn umount(&self, at: PathRef<'_>) -> Result<(), Errno> {
        let mount = &**at.mount;
        let Some((parent, point)) = &mount.point else { return Err(Errno::INVAL) };
        if at.dentry != mount.root {
            return Err(Errno::INVAL);
        }
        let change = self.mounts.change.lock();
        if self.mounts.has_mounts_in(mount) {
            return Err(Errno::BUSY);
        }
        let mut users = mount.users.lock();
        // Two users are normal: the table and `at`.
        if users.count() > 2 {
            return Err(Errno::BUSY);
        }
        users.mark_dead();
        drop(users);
        self.mounts.table.update(|table| {
            let mut table = table.clone();
            table.remove(&(parent.id, *point));
            table
        });
        // A dentry belongs to one file system, and a file system is mounted once. So the dentry has
        // no other mount on it.
        self.dcache.set_mounted(*point, Mounted::No);
        drop(change);
        mount.users.put_return();
        self.dcache.put(*point);
        self.dcache.put(mount.root);
        Ok(())
    }
}
