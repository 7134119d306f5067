//! Mounts: file systems attached to directories of others.
//!
//! The mount table is one immutable value behind an RCU cell. A walk looks at it only where a dentry
//! says that something is mounted on it, or at the root of a mount; a change copies the table.
//! Mounting and unmounting are rare and serialised by one lock.
//!
//! # Who keeps a mount
//! Each mount but that of the root counts its users: the table, and every [`PathRef`](crate::PathRef)
//! into it. Unmounting marks it dead, in the same step in which it sees that nobody else is left; from
//! then on no walk can end in it. A walk that is under way is no user: it reads the mount through a
//! pointer that keeps the memory and nothing else, and where it ends, or goes up, it asks whether the
//! mount still lives. If not it begins again, and finds what is below. (Counting the pointers instead
//! would count those of retired tables, too, and not yet those of a walk that is just crossing.)
//!
//! # Invariants
//! - M.1: a mount that lives keeps a reference on the dentry it is on, and its parent alive: a mount
//!   with something mounted in it is not unmounted.
//! - M.2: the directory that something is mounted on has a name, or is a root: the name is claimed
//!   while it is marked, and who removes or renames a name looks for the mark under the same claim.
//!
//! # Locks
//! The claim of the directory's name, then `change`, then the lock of a mount's count or of a dentry.
//! No back end is called under `change`.
//!
//! # What it refuses
//! Mounting a second time on the same directory of the same mount, and unmounting what is in use
//! (there is no lazy unmount). A file system that was unmounted is kept as long as the namespace
//! lives, with its root's entry: an inode of it may still be held. So a namespace takes 1024 of them
//! over its life.
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
use crate::claim::Claim;
use crate::dcache::{Mounted, is_attached};
use crate::dentry::Flags;
use crate::fs::FileSystem;
use crate::name::Name;
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
    /// The table, while it is in there, and each [`MountRef`]; not counted for the root mount.
    users: Lockref,
}

impl Mount {
    /// Returns true if it has been unmounted.
    pub(crate) fn is_dead(&self) -> bool {
        self.users.is_dead()
    }

    /// Returns true for a mount that may be unmounted.
    fn is_counted(&self) -> bool {
        self.point.is_some()
    }
}

/// A counted mount: while it lives the mount is not unmounted.
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

/// Which mount is on which dentry of which mount.
type Table = HashMap<(u64, u32), Arc<Mount>>;

impl Mounts {
    pub(crate) fn new() -> Mounts {
        Mounts { root: OnceLock::new(), table: RcuCell::new(Table::new()), change: Mutex::new(0) }
    }

    /// Sets the root mount, once; the reference on the dentry goes to the mount.
    pub(crate) fn set_root(&self, dentry: u32) {
        let root = Arc::new(Mount { id: 0, root: dentry, point: None, users: Lockref::new(1) });
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
        // A dead one is about to leave the table.
        self.table.read(guard).get(&(mount.id, dentry)).filter(|mount| !mount.is_dead())
    }

    /// Returns true if something is mounted on a dentry of a mount.
    fn is_taken(&self, key: (u64, u32)) -> bool {
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
    /// A namespace takes 1024 file systems over its life, its own included: one that was unmounted
    /// counts on, and is not dropped before the namespace is, since inodes of it may still be held.
    /// So does one whose mounting failed with `ENOMEM`.
    ///
    /// # Errors
    /// `ENOTDIR`; `EBUSY` if something is mounted there already (mount on its root instead, as a walk
    /// leads to); `ENOENT` if the directory has been removed; `ENFILE` for a file system too many;
    /// `ENOMEM`; what `fs.root()` says.
    pub fn mount(&self, fs: Arc<dyn FileSystem>, at: &PathRef<'_>) -> Result<(), Errno> {
        if at.inode.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let attr = crate::vfs::root_of(&*fs)?;
        let _claim = self.claim_point(at.dentry)?;
        let key = (at.mount.id, at.dentry);
        if self.mounts.is_taken(key) {
            return Err(Errno::BUSY);
        }
        let root = self.add_superblock(fs, &attr)?;
        let mut last = self.mounts.change.lock();
        if self.mounts.is_taken(key) {
            // Only roots are mounted on without a claim, so that two can come this far.
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

    /// Claims the name of the directory that something is to be mounted on, so that it can neither be
    /// removed nor renamed meanwhile (M.2). None for a root, which has no name.
    ///
    /// # Errors
    /// `ENOENT` if it has been removed.
    fn claim_point(&self, dentry: u32) -> Result<Option<Claim<'_>>, Errno> {
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
            let key = self.dcache.claim_key(parent, &self.dcache.needle(name));
            let claim = self.dcache.claims.claim(key);
            let (parent_now, now) = self.dcache.name_of(dentry);
            // It may have been renamed, or removed, before the claim was taken.
            if (parent_now, now.as_bytes()) == (parent, copy.as_bytes()) {
                return attached().map(|_| Some(claim));
            }
        }
    }

    /// Unmounts the file system whose root `at` is.
    ///
    /// # Errors
    /// `EINVAL` if `at` is not the root of a mount, or that of the namespace; `EBUSY` if something
    /// is mounted below or another path into it is held. A walk that is under way in it, or an inode
    /// of it that is held without a path, is no reason.
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
        // One is the table, one is `at`.
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
        // A dentry belongs to one file system, and that is mounted once: nothing else is on it.
        self.dcache.set_mounted(*point, Mounted::No);
        drop(change);
        mount.users.put_return();
        self.dcache.put(*point);
        self.dcache.put(mount.root);
        Ok(())
    }
}
