//! Mounts: file systems attached to directories of other file systems.
//!
//! The mount table is an immutable value behind an RCU cell, which a mount or unmount replaces
//! under one lock. Path walks read it only at a dentry that is marked as a mount point, or at the
//! root of a mount.
//!
//! # Lifetime of a mount
//!
//! Each mount except the root mount counts its users: the mount table, and every `PathRef` into it.
//! In one step, an unmount checks that there are no other users, and marks the mount dead. From
//! then on no walk can end in it.
//!
//! A walk in progress is not a user of the mount. Its pointer keeps only the memory of the mount
//! valid. When the walk ends, or goes up to the parent mount, it checks that the mount is alive. If
//! the mount is dead, the walk starts again.
//!
//! The number of pointers to a mount cannot serve as the count of users. It includes pointers in
//! old mount tables, and misses walks that are about to enter the mount.
//!
//! # Invariants
//! - M.1: a live mount keeps a reference on its mount point, and keeps its parent mount alive. So a
//!   mount with another mount in it is not unmounted.
//! - M.2: a mount point has a name, or is a root. `Vfs::mount` (`path/mounting`) marks the mount
//!   point under the in-lookup lock of its name. A removal or a rename of the name checks the mark
//!   under the same lock.
//!
//! # Locks
//! The lock order is: the in-lookup lock of the mount point's name, the mutex `change`, the lock of
//! a mount's count or of a dentry. No back end is called under `change`.
//!
//! # What it refuses
//!
//! Three operations are refused or limited:
//! - A second mount on the same directory of the same mount is refused.
//! - The unmount of a mount in use is refused, because there is no lazy unmount.
//! - A namespace accepts at most 1024 file systems during its life. After an unmount, a file system
//!   stays until the namespace is dropped, because its inodes may be in use.
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
use crate::slot::DentrySlot;

/// One mounted file system. Analogous to Linux's `struct mount`.
#[doc(alias = "struct mount")]
pub(crate) struct Mount {
    pub(crate) id: u64,
    /// The root dentry, on which the mount has a reference.
    pub(crate) root: DentrySlot,
    /// The mount point: the parent mount and a dentry in it, with a reference on each. None for the
    /// root mount.
    pub(crate) point: Option<(Arc<Mount>, DentrySlot)>,
    /// The number of users: one for the mount table, and one per [`MountRef`]. The users of the
    /// root mount are not counted, because it is never unmounted.
    users: Lockref,
}

impl Mount {
    pub(crate) fn is_dead(&self) -> bool {
        self.users.is_dead()
    }

    fn is_counted(&self) -> bool {
        self.point.is_some()
    }
}

/// A counted reference on a mount. While a thread holds one, an unmount of the mount fails.
pub(crate) struct MountRef(Arc<Mount>);

impl MountRef {
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

/// The mounts of a namespace. Analogous to Linux's `struct mnt_namespace`.
pub(crate) struct Mounts {
    root: OnceLock<Arc<Mount>>,
    /// The mounts by mount point. Threads read the table in an RCU section. Written under `change`.
    table: RcuCell<Table>,
    /// The id of the mount that was added last. The mutex also protects stores to `table`, and the
    /// flag `Flags::MOUNTED` of all dentries.
    change: Mutex<u64>,
}

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

    pub(crate) fn root_mount(&self) -> &Arc<Mount> {
        self.root.get().expect("a namespace has a root")
    }

    pub(crate) fn root(&self) -> DentrySlot {
        self.root_mount().root
    }

    pub(crate) fn on<'g>(
        &self,
        mount: &Mount,
        dentry: DentrySlot,
        guard: &'g ReadGuard,
    ) -> Option<&'g Arc<Mount>> {
        // Ignore a dead mount, which is about to leave the table.
        self.table.read(guard).get(&(mount.id, dentry)).filter(|mount| !mount.is_dead())
    }

    pub(crate) fn is_taken(&self, mount: &Mount, dentry: DentrySlot) -> bool {
        let guard = corewalk_sync::rcu::read_lock();
        self.table.read(&guard).contains_key(&(mount.id, dentry))
    }

    /// Adds a mount on the dentry `point` of the mount `parent`. The new mount takes over the
    /// caller's reference on `root`, the dentry of its root.
    ///
    /// Calls `mark` under the mutex `change`, once the mount is in the table. `mark` marks `point`
    /// as a mount point, and takes the mount's reference on it.
    ///
    /// # Errors
    /// `EBUSY` if something is mounted on `point` already. Then nothing changes.
    pub(crate) fn add(
        &self,
        parent: &Arc<Mount>,
        point: DentrySlot,
        root: DentrySlot,
        mark: impl FnOnce(),
    ) -> Result<(), Errno> {
        let mut last = self.change.lock();
        if self.is_taken(parent, point) {
            // A root has no name and so no in-lookup lock. So another thread may have mounted on
            // `point` before this thread took `change`.
            return Err(Errno::BUSY);
        }
        *last += 1;
        let users = Lockref::new(1);
        let mount = Mount { id: *last, root, point: Some((Arc::clone(parent), point)), users };
        let (key, mount) = ((parent.id, point), Arc::new(mount));
        self.table.update(|table| {
            let mut table = table.clone();
            table.insert(key, Arc::clone(&mount));
            table
        });
        mark();
        Ok(())
    }

    /// Marks a mount dead and removes it from the mount table. The caller holds the only
    /// [`MountRef`] of the mount. `unmark` runs under the mutex `change`, and removes the mark of
    /// the mount point. The caller then drops the mount's references on its mount point and its
    /// root.
    ///
    /// # Errors
    /// `EBUSY` if the mount has other users, or if something is mounted in it. `EINVAL` for the
    /// root mount.
    pub(crate) fn remove(&self, mount: &Mount, unmark: impl FnOnce()) -> Result<(), Errno> {
        let Some((parent, point)) = &mount.point else { return Err(Errno::INVAL) };
        let change = self.change.lock();
        if self.has_mounts_in(mount) {
            return Err(Errno::BUSY);
        }
        let mut users = mount.users.lock();
        // The mount table and the caller's path each count as a user of the mount. Only further
        // users prevent the unmount.
        if users.count() > 2 {
            return Err(Errno::BUSY);
        }
        users.mark_dead();
        drop(users);
        self.table.update(|table| {
            let mut table = table.clone();
            table.remove(&(parent.id, *point));
            table
        });
        unmark();
        drop(change);
        mount.users.put_return();
        Ok(())
    }

    fn has_mounts_in(&self, mount: &Mount) -> bool {
        let guard = corewalk_sync::rcu::read_lock();
        self.table.read(&guard).keys().any(|(id, _)| *id == mount.id)
    }
}
