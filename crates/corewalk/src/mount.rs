//! Mounts: file systems attached to directories of other file systems.
//!
//! The mount table is one immutable value behind an RCU cell. A walk reads it only at a dentry with
//! the flag for mount points, or at the root of a mount. A change copies the table. Mounts and
//! unmounts are rare, and one lock serialises them.
//!
//! # Lifetime of a mount
//!
//! Each mount but the root mount counts its users: the table, and every [`PathRef`] into it. An
//! unmount marks the mount dead in the step that checks for other users. From then on no walk can
//! end in the mount. A walk in progress is not a user: its pointer keeps the memory of the mount
//! valid, but does not keep the file system mounted. When the walk ends, or goes up to the parent
//! mount, it checks that the mount is alive. If the mount is dead, the walk begins again. (Counting
//! pointers instead would include those of retired tables, and would miss walks that are just
//! entering a mount.)
//!
//! # Invariants
//! - M.1: a live mount keeps a reference on its mount point, and keeps its parent mount alive. So a
//!   mount with another mount in it is not unmounted.
//! - M.2: a mount point has a name, or is a root. `Vfs::mount` (`path/mounting`) marks it under the
//!   in-lookup lock of its name. A removal or a rename of the name checks the mark under the same
//!   lock.
//!
//! # Locks
//! The in-lookup lock of the mount point's name, then the mutex `change`, then the lock of a
//! mount's count or of a dentry. No back end is called under `change`.
//!
//! # What it refuses
//!
//! The module refuses a second mount on the same directory of the same mount, and the unmount of a
//! mount in use (there is no lazy unmount). An unmounted file system stays as long as the
//! namespace, with the entry of its root, because its inodes may be in use. So a namespace accepts
//! at most 1024 file systems during its life.
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

/// The mounts of a namespace. Analogous to Linux's `struct mnt_namespace`.
pub(crate) struct Mounts {
    root: OnceLock<Arc<Mount>>,
    /// Readers are in an RCU section. Written under `change`.
    table: RcuCell<Table>,
    /// The id of the last mount. The mutex also protects the stores to `table` and the flags
    /// `Flags::MOUNTED` of mount points.
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
    pub(crate) fn is_taken(&self, mount: &Mount, dentry: DentrySlot) -> bool {
        let guard = corewalk_sync::rcu::read_lock();
        self.table.read(&guard).contains_key(&(mount.id, dentry))
    }

    /// Mounts the file system with the root dentry `root` on the dentry `point` of the mount
    /// `parent`. The new mount takes over the caller's reference on `root`. `mark` runs once the
    /// mount is in the table, under the mutex `change`. `mark` takes the mount's reference on
    /// `point` and marks the dentry as a mount point.
    ///
    /// # Errors
    /// `EBUSY` if something is mounted on `point` already. Then nothing has changed.
    pub(crate) fn add(
        &self,
        parent: &Arc<Mount>,
        point: DentrySlot,
        root: DentrySlot,
        mark: impl FnOnce(),
    ) -> Result<(), Errno> {
        let mut last = self.change.lock();
        if self.is_taken(parent, point) {
            // A mount on a root takes no in-lookup lock, because a root has no name. So another
            // thread may have mounted on `point` meanwhile.
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

    /// Unmounts `mount`, on which the caller holds the only [`MountRef`]. `unmark` runs once the
    /// mount has left the table, under the mutex `change`. `unmark` removes the mark of the mount
    /// point. The caller then drops the references of the mount on its mount point and on its root.
    ///
    /// # Errors
    /// `EBUSY` if the mount has other users, or has a mount in it; `EINVAL` for the root mount.
    pub(crate) fn remove(&self, mount: &Mount, unmark: impl FnOnce()) -> Result<(), Errno> {
        let Some((parent, point)) = &mount.point else { return Err(Errno::INVAL) };
        let change = self.change.lock();
        if self.has_mounts_in(mount) {
            return Err(Errno::BUSY);
        }
        let mut users = mount.users.lock();
        // Two users are normal: the table and the path of the caller.
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

    /// Returns true if something is mounted in `mount`.
    fn has_mounts_in(&self, mount: &Mount) -> bool {
        let guard = corewalk_sync::rcu::read_lock();
        self.table.read(&guard).keys().any(|(id, _)| *id == mount.id)
    }
}
