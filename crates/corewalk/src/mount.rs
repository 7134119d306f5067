//! Mounts: file systems attached to directories of others.
//!
//! The mount table is one immutable value behind an RCU cell. A walk looks at it only where a dentry
//! says that something is mounted on it, or at the root of a mount; a change copies the table.
//! Mounting and unmounting are rare and serialised by one lock.
//!
//! Source: mount(2), umount(2); Linux `fs/namespace.c` (`mount_hashtable`, `mnt_parent`).

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use corewalk_sync::rcu::ReadGuard;
use corewalk_sync::{Mutex, RcuCell};

use crate::Errno;
use crate::dcache::Mounted;
use crate::fs::FileSystem;
use crate::path::PathRef;
use crate::vfs::Vfs;

/// One mounted file system.
#[doc(alias = "struct mount")]
pub(crate) struct Mount {
    pub(crate) id: u64,
    /// The root dentry, counted.
    pub(crate) root: u32,
    /// Where it is mounted: the mount and the dentry, counted; None for the root mount.
    pub(crate) point: Option<(Arc<Mount>, u32)>,
}

/// The mounts of a namespace.
pub(crate) struct Mounts {
    root: OnceLock<Arc<Mount>>,
    table: RcuCell<Table>,
    change: Mutex<u64>,
}

/// Which mount is on which dentry of which mount.
type Table = HashMap<(u64, u32), Arc<Mount>>;

impl Mounts {
    pub(crate) fn new() -> Mounts {
        Mounts { root: OnceLock::new(), table: RcuCell::new(Table::new()), change: Mutex::new(0) }
    }

    /// Sets the root mount, once; the reference on the dentry goes to the mount.
    pub(crate) fn set_root(&self, dentry: u32) {
        let root = Arc::new(Mount { id: 0, root: dentry, point: None });
        assert!(self.root.set(root).is_ok(), "the root is mounted once");
    }

    /// Returns the root mount.
    pub(crate) fn root_mount(&self) -> &Arc<Mount> {
        self.root.get().expect("a namespace has a root")
    }

    /// Returns the root dentry.
    pub(crate) fn root(&self) -> u32 {
        self.root_mount().root
    }

    /// Returns what is mounted on a dentry of a mount.
    pub(crate) fn on<'g>(
        &self,
        mount: &Mount,
        dentry: u32,
        guard: &'g ReadGuard,
    ) -> Option<&'g Arc<Mount>> {
        self.table.read(guard).get(&(mount.id, dentry))
    }
}

impl Vfs {
    /// Mounts `fs` on the directory `at`.
    ///
    /// # Errors
    /// `ENOTDIR`; `EBUSY` if something is mounted there already (mount on its root instead, as a walk
    /// leads to); `ENOENT` if the directory has been removed; what `fs.root()` says.
    pub fn mount(&self, fs: Arc<dyn FileSystem>, at: &PathRef<'_>) -> Result<(), Errno> {
        let mut next = self.mounts.change.lock();
        let directory = self.dcache.directory(at.dentry).ok_or(Errno::NOTDIR)?;
        if !crate::dcache::is_attached(directory.flags) {
            return Err(Errno::NOENT);
        }
        let key = (at.mount.id, at.dentry);
        let is_taken = {
            let guard = corewalk_sync::rcu::read_lock();
            self.mounts.table.read(&guard).contains_key(&key)
        };
        if is_taken {
            return Err(Errno::BUSY);
        }
        let root = self.add_superblock(fs)?;
        self.dcache.dentries.lockref(at.dentry).get();
        *next += 1;
        let point = Some((Arc::clone(&at.mount), at.dentry));
        let mount = Arc::new(Mount { id: *next, root, point });
        self.mounts.table.update(|table| {
            let mut table = table.clone();
            table.insert(key, Arc::clone(&mount));
            table
        });
        self.dcache.set_mounted(at.dentry, Mounted::Yes);
        Ok(())
    }

    /// Unmounts the file system whose root `at` is.
    ///
    /// # Errors
    /// `EINVAL` if `at` is not the root of a mount, or that of the namespace; `EBUSY` if something
    /// is mounted below or another path into it is held.
    pub fn umount(&self, at: PathRef<'_>) -> Result<(), Errno> {
        let _change = self.mounts.change.lock();
        let mount = Arc::clone(&at.mount);
        let Some((parent, point)) = mount.point.clone() else { return Err(Errno::INVAL) };
        if at.dentry != mount.root {
            return Err(Errno::INVAL);
        }
        drop(at);
        let is_busy = {
            let guard = corewalk_sync::rcu::read_lock();
            self.mounts.table.read(&guard).keys().any(|(id, _)| *id == mount.id)
        };
        // One reference is here, one in the table.
        if is_busy || Arc::strong_count(&mount) > 2 {
            return Err(Errno::BUSY);
        }
        self.mounts.table.update(|table| {
            let mut table = table.clone();
            table.remove(&(parent.id, point));
            table
        });
        let is_still_mounted = {
            let guard = corewalk_sync::rcu::read_lock();
            self.mounts.table.read(&guard).keys().any(|(_, dentry)| *dentry == point)
        };
        if !is_still_mounted {
            self.dcache.set_mounted(point, Mounted::No);
        }
        self.dcache.put(point);
        self.dcache.put(mount.root);
        Ok(())
    }
}
