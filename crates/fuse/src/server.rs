//! The requests of the FUSE protocol, independent of how they arrive.
//!
//! A [`Server`] has one method per request. The method translates the node number to a counted
//! inode, and the caller to credentials. It calls the back end through [`Vfs`], and counts each
//! inode that the answer gives to the kernel. A `Server` is `Sync`, so any number of threads may
//! call it.
//!
//! # Node numbers
//! - The root has the node number 1, as the protocol demands.
//! - Any other inode has the number of the back end, with one exception. If the back end's number
//!   of the root is not 1, the server swaps this number with 1. So no two inodes have one node
//!   number.
//! - The kernel reads number 0 as "no such name", so the server refuses an inode with that number.
//!
//! # Counting
//! A returned [`EntryOut`] is already counted. The transport must deliver it to the kernel, or call
//! [`Server::forget`] for it. When the connection ends, all lookups end with it. A forget names a
//! node number and no name. So a late forget cannot drop another file that has got the name
//! meanwhile (traps P1 and P2 in `traps.md`).
//!
//! # Guarantees
//! - A.1: the cookies of a directory are those of the back end plus 2. Cookies 1 and 2 are the
//!   positions behind `.` and behind `..`.
//! - A.2: `readdirplus` counts a lookup of an entry only if the callback `sink`, which receives the
//!   entries, takes the entry.
//!
//! # Locks
//! The server has no lock of its own.
//!
//! Source: Linux `fs/fuse/dir.c`, `inode.c`; fuse(4).

mod counters;
mod files;
mod ioctl;
mod listing;
mod locks;
mod names;
mod privileges;
mod service;
mod xattrs;

pub use counters::Counters;
pub use files::WriteOrigin;
pub(crate) use files::checked_target;
pub use listing::Dirent;
pub use names::NewFile;
pub use privileges::SetId;
pub use xattrs::{XATTR_PRUNE, XATTR_STAT, XattrAnswer};

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewalk::attr::SetTime;
use corewalk::{
    Addressing, Attr, Caller, Caps, Cred, Errno, FileSystem, InodeRef, LookedUp, May, Name,
    SetAttr, Vfs,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use crate::credentials::{UserNamespace, prechecked, resolve};
use crate::lock_owners::LockOwners;
use crate::mount::Device;
use crate::notify::Notifier;
use crate::options::{Options, Ownership, Permissions};
use crate::wire::Features;
use counters::Tallies;

pub(crate) const ROOT_NODE: u64 = 1;

/// A listing with attributes reports this number for an entry whose lookup failed, with a timeout
/// of 0, so the kernel looks the name up. With the number 0, the C library would skip the entry.
pub(crate) const NO_NODE: u64 = u64::MAX;

/// A server of one file system, which counts the lookups that the kernel holds.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{Caller, NewFile, Options, Server};
///
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// let server = Server::new(fs, Options::exclusive())?;
/// let caller = Caller { uid: 1000, gid: 1000, pid: 0 };
/// let new = NewFile::new(0o100_666).with_umask(0o22);
/// let made = server.make(caller, 1, b"file", &new)?;
/// assert_eq!((made.attr.mode, made.attr.uid), (0o100_644, 1000));
/// assert_eq!(server.counters().lookups, 1);
/// server.forget(made.node, 1);
/// assert_eq!(server.counters().lookups, 0);
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct Server {
    vfs: Arc<Vfs>,
    options: Options,
    root: u64,
    namespace: Option<UserNamespace>,
    has_open_state: bool,
    has_locks: bool,
    has_backing_files: bool,
    fsync_waits: bool,
    waits: bool,
    has_leases: bool,
    lock_owners: LockOwners,
    tallies: Tallies,
    /// The number of reports about directories.
    reports: AtomicU64,
    notifier: OnceLock<Notifier>,
    features: OnceLock<(Features, Features)>,
    transport: OnceLock<Box<str>>,
}

/// An entry of an answer, which gives an inode to the kernel. The server counts one lookup for it.
/// Analogous to `struct fuse_entry_out`.
#[doc(alias = "fuse_entry_out")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is counted: deliver it, or forget it"]
#[non_exhaustive]
pub struct EntryOut {
    /// The node number.
    pub node: u64,
    /// The generation of the inode. No other inode ever has the same node number together with the
    /// same generation.
    pub generation: u64,
    /// The attributes. Their inode number is the node number.
    pub attr: Attr,
}

/// A change of attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// The new attributes.
    pub set: SetAttr,
    /// The handle of the open file through which the caller makes the change, as by ftruncate(2).
    /// The permission for the change was checked when the file was opened.
    pub handle: Option<u64>,
    /// Whether the change clears the set-user-ID and set-group-ID bits of the file. Only two kinds
    /// of requests say so: a truncation, and a change without attributes. The kernel sends the
    /// latter before a write that the server does not see.
    pub set_id: SetId,
}

impl Change {
    /// Returns a [`Change`] that sets the attributes in `set`, without an open file.
    pub fn new(set: SetAttr) -> Change {
        Change { set, ..Change::default() }
    }

    corewalk_base::setters! {
        with_handle: handle = Option<u64>;
        with_set_id: set_id = SetId;
    }
}

impl Server {
    /// Returns a server of `fs`.
    ///
    /// # Errors
    /// `EINVAL` for options that [conflict](Options::check); the errors of [`Vfs::new`].
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> Result<Server, Errno> {
        options.check().map_err(|_| Errno::INVAL)?;
        // A back end that finds files by path cannot find an unlinked one, so corewalk keeps it
        // under a hidden name until it is closed. For that, the server must know which files are
        // open.
        let (has_locks, has_backing_files) = (fs.has_locks(), fs.has_backing_files());
        let has_open_state =
            fs.has_open_state() || has_locks || fs.addressing() == Addressing::PathOnly;
        let (fsync_waits, waits) = (fs.fsync_waits(), fs.waits() || has_locks);
        let has_leases = fs.leases().is_some();
        let vfs = Vfs::new(fs, options.vfs.clone())?;
        let root = vfs.root().ino();
        Ok(Server {
            vfs,
            options,
            root,
            namespace: UserNamespace::ours(),
            has_open_state,
            has_locks,
            has_backing_files,
            fsync_waits,
            waits,
            has_leases,
            lock_owners: LockOwners::default(),
            tallies: Tallies::default(),
            reports: AtomicU64::new(0),
            notifier: OnceLock::new(),
            features: OnceLock::new(),
            transport: OnceLock::new(),
        })
    }

    /// Returns the namespace of the server.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns true if the server does not need to know when files are opened and closed. In that
    /// case a transport may tell the kernel not to send open and release.
    pub fn opens_are_free(&self) -> bool {
        !self.has_open_state
            && self.options.ownership == Ownership::Exclusive
            && self.options.permissions == Permissions::Kernel
    }

    /// Returns true if [`Server::fsync`] may wait for a disk or another machine. In that case a
    /// transport should run `fsync` on a thread that reads no requests.
    pub fn fsync_waits(&self) -> bool {
        self.fsync_waits
    }

    /// Returns true if any request may wait for another machine or a slow device. In that case a
    /// transport should let any idle thread serve a request, instead of one fixed thread.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Returns true if the back end decides how long the kernel keeps each answer
    /// ([`corewalk::Leases`]).
    pub fn has_leases(&self) -> bool {
        self.has_leases
    }

    /// Returns the counters of the server and its cache.
    pub fn counters(&self) -> Counters {
        self.tallies.read(&self.vfs.stats())
    }

    pub(crate) fn notifier(&self) -> Option<&Notifier> {
        self.notifier.get()
    }

    pub(crate) fn device(&self) -> Option<Arc<Device>> {
        self.notifier()?.device()
    }

    /// Returns the number of reports about directories. A report makes the kernel drop the names
    /// below the directory. If the number changes during a request, the answer may have a name from
    /// before the report, and reach the kernel after it. So the kernel must not keep that name.
    ///
    /// For a report about the name itself, the kernel waits for the answer before it drops the
    /// name.
    pub(crate) fn reports(&self) -> u64 {
        // ORDERING(reports): Acquire. A request that loads the number of a report must not find a
        // name that the report has invalidated. Pairs with the addition in `count_report`.
        self.reports.load(Ordering::Acquire)
    }

    /// Called after the names are invalidated, and before the kernel is notified.
    fn count_report(&self) {
        // ORDERING(reports): Release. The invalidation happens before a request that loads the new
        // number.
        self.reports.fetch_add(1, Ordering::Release);
    }

    /// Counts a request that panicked.
    pub fn count_panic(&self) {
        self.tallies.panics.add(1);
    }

    /// Returns the inode that `name` in `parent` refers to.
    ///
    /// # Errors
    /// `ENOENT`; `ENAMETOOLONG`; `ENOTDIR`; `EACCES`; `ESTALE` for an unknown `parent`.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk_fuse::{Caller, NewFile, Options, Server};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let server = Server::new(fs, Options::exclusive())?;
    /// # let caller = Caller { uid: 0, gid: 0, pid: 0 };
    /// let made = server.make(caller, 1, b"f", &NewFile::new(0o100_644))?;
    /// let found = server.lookup(caller, 1, b"f")?;
    /// assert_eq!(found.node, made.node);
    /// // The kernel holds two lookups now.
    /// server.forget(found.node, 2);
    /// assert_eq!(server.counters().lookups, 0);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<EntryOut, Errno> {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_handle(parent, name);
        }
        self.tallies.requests.add(1);
        let (cred, name) = (self.cred(caller), self.name(name)?);
        let found = match self.options.ownership {
            Ownership::Exclusive => {
                self.vfs.lookup_by_ino(&cred, self.translate(parent), name.as_bytes())?
            }
            Ownership::Shared => self.vfs.lookup_fresh(&cred, &self.counted(parent)?, name)?,
        };
        let attr = found.attr()?;
        self.hand_out(found.inode, attr)
    }

    /// If other programs may change the directory, asks the back end even for a cached name.
    fn look_up(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<LookedUp<'_>, Errno> {
        match self.options.ownership {
            Ownership::Exclusive => self.vfs.lookup_by_ino(cred, dir.ino(), name.as_bytes()),
            Ownership::Shared => self.vfs.lookup_fresh(cred, dir, name),
        }
    }

    /// The kernel looks up `.` and `..` to open a file handle of an inode that it has forgotten. It
    /// looks up first for the inode, then for the directories above it.
    ///
    /// # Errors
    /// `ESTALE` if the inode is gone.
    fn lookup_by_handle(&self, node: u64, name: &[u8]) -> Result<EntryOut, Errno> {
        self.tallies.requests.add(1);
        let found = || {
            let mut found = self.vfs.by_number(self.translate(node), None)?;
            if name == b".." {
                let parent = self.vfs.inode(self.vfs.parent_ino(&found.inode)?)?;
                found = LookedUp { inode: parent, attr: None };
            }
            let attr = found.attr()?;
            if attr.nlink == 0 { Err(Errno::STALE) } else { Ok((found.inode, attr)) }
        };
        let gone = |error| if error == Errno::NOENT { Errno::STALE } else { error };
        let (inode, attr) = found().map_err(gone)?;
        if inode.ino() == self.root {
            // The kernel never forgets the root, so it is not counted.
            return Ok(EntryOut { node: ROOT_NODE, generation: 0, attr: attr.with_ino(ROOT_NODE) });
        }
        self.hand_out(inode, attr)
    }

    /// Takes back `n` lookups of `node`, which the kernel no longer holds. If the server has
    /// counted fewer, it changes nothing except that it counts and logs a wrong forget.
    pub fn forget(&self, node: u64, n: u64) {
        self.tallies.requests.add(1);
        if node == ROOT_NODE || node == NO_NODE {
            return;
        }
        if self.vfs.forget(self.translate(node), n) {
            self.tallies.lookups.add(-(n as i64));
        } else {
            self.tallies.refused_forgets.add(1);
            log::warn!("refused to forget node {node} {n} times: it is not held that often");
        }
    }

    /// Returns the attributes of `node`.
    ///
    /// # Errors
    /// `ESTALE`; the errors of the back end.
    pub fn getattr(&self, node: u64) -> Result<Attr, Errno> {
        self.getattr_through(node, 0)
    }

    /// Returns the attributes of `node` through the open file `handle`.
    ///
    /// # Errors
    /// The errors of [`Server::getattr`].
    pub fn getattr_through(&self, node: u64, handle: u64) -> Result<Attr, Errno> {
        let attr = self.vfs.getattr_through(&self.inode(node)?, handle)?;
        Ok(attr.with_ino(node))
    }

    /// Changes attributes of `node` and returns the new ones.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`, `EINVAL`, `EISDIR` as in chmod(2), chown(2), truncate(2) and
    /// utimensat(2); the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk_fuse::{Caller, Change, NewFile, Options, Server};
    /// # use corewalk::SetAttr;
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let server = Server::new(fs, Options::exclusive())?;
    /// # let caller = Caller { uid: 0, gid: 0, pid: 0 };
    /// let made = server.make(caller, 1, b"f", &NewFile::new(0o100_644))?;
    /// let chmod = Change::new(SetAttr::default().with_mode(0o600));
    /// assert_eq!(server.setattr(caller, made.node, chmod)?.mode, 0o100_600);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn setattr(&self, caller: Caller, node: u64, change: Change) -> Result<Attr, Errno> {
        let inode = self.inode_refreshed(node)?;
        if change.is_empty() {
            return Ok(self.set_nothing(caller, &inode, change)?.with_ino(node));
        }
        let mut set = change.set;
        let (is_chown, set_id) = match set.size {
            None => (set.uid.is_some() || set.gid.is_some(), SetId::Unsaid),
            Some(_) => (false, change.set_id),
        };
        if set.size.is_some() {
            self.remove_capability(&inode)?;
            // For truncate(2) the kernel also sends the current time as the modification time.
            // Ignore it, because a truncation sets that time anyway.
            set.mtime = set.mtime.filter(|time| *time != SetTime::Now);
        }
        let missing = match is_chown {
            true => self.missing_for_chown(caller, &inode)?,
            false => Caps::empty(),
        };
        let has_capability = is_chown && self.may_keep_capability(&inode)?;
        let attr = self.change(caller, &inode, set_id, |cred| {
            // The kernel has checked the permission when the file was opened.
            let is_open = set.size.is_some() && change.handle.is_some();
            let more = if is_open { Caps::DAC_OVERRIDE } else { Caps::empty() };
            let cred = cred.clone().with_caps((cred.caps | more) - missing);
            self.vfs.setattr_through(&cred, &inode, change.handle.unwrap_or(0), &set)
        })?;
        if has_capability {
            self.vfs.remove_capability(&inode)?;
        }
        Ok(attr.with_ino(node))
    }

    /// Checks whether the caller has the permissions `mask` (the bits of access(2)) for `node`.
    ///
    /// # Errors
    /// `EACCES` if not; `ESTALE`.
    pub fn access(&self, caller: Caller, node: u64, mask: u32) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        self.vfs.access(&self.cred(caller), &inode, May::from_bits_truncate(mask & 7))
    }

    fn inode(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        self.tallies.requests.add(1);
        self.counted(node)
    }

    /// Does not count a request, unlike `inode`. Used for the second node of a request, such as the
    /// new parent in a rename.
    fn counted(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        let inode = self.vfs.inode(self.translate(node))?;
        let (ownership, permissions) = (self.options.ownership, self.options.permissions);
        if ownership == Ownership::Shared && permissions == Permissions::Server {
            // If other programs may have changed owner and mode, drop the cached ones: the server's
            // permission check depends on them.
            self.vfs.invalidate_attributes(&inode);
        }
        Ok(inode)
    }

    /// Some requests depend on the owner or the mode. A new file inherits the group of its
    /// directory, and a write clears bits of the mode. If other programs may have changed owner or
    /// mode, the back end is asked again.
    fn inode_refreshed(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        let inode = self.inode(node)?;
        self.refresh(&inode);
        Ok(inode)
    }

    fn refresh(&self, inode: &InodeRef<'_>) {
        if self.options.ownership == Ownership::Shared {
            self.vfs.invalidate_attributes(inode);
        }
    }

    fn revalidated<'a>(&self, dir: &InodeRef<'_>, name: Name<'a>) -> Result<Name<'a>, Errno> {
        match self.options.ownership {
            Ownership::Exclusive => {}
            Ownership::Shared => self.vfs.revalidate(dir, name)?,
        }
        Ok(name)
    }

    /// The function swaps 1 with the inode number of the root, so it translates in both directions.
    pub(crate) fn translate(&self, number: u64) -> u64 {
        translate(self.root, number)
    }

    fn name<'a>(&self, name: &'a [u8]) -> Result<Name<'a>, Errno> {
        let name = Name::new(name)?;
        self.tallies.names.add(1);
        Ok(name)
    }

    fn hand_out(&self, inode: InodeRef<'_>, attr: Attr) -> Result<EntryOut, Errno> {
        let node = self.translate(inode.ino());
        if node == 0 || node == ROOT_NODE || node == NO_NODE {
            // 0 means "no such name", and `NO_NODE` an entry whose lookup has failed. So no inode
            // may have these numbers, nor that of the root.
            return Err(Errno::IO);
        }
        let generation = inode.generation();
        self.tallies.lookups.add(1);
        inode.into_lookups();
        Ok(EntryOut { node, generation, attr: attr.with_ino(node) })
    }

    fn cred(&self, caller: Caller) -> Cred {
        match self.options.permissions {
            Permissions::Kernel => prechecked(caller),
            Permissions::Server => resolve(caller, self.namespace),
        }
    }
}

pub(crate) fn translate(root: u64, number: u64) -> u64 {
    match number {
        ROOT_NODE => root,
        number if number == root => ROOT_NODE,
        number => number,
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("options", &self.options)
            .field("counters", &self.counters())
            .finish()
    }
}

#[cfg(test)]
mod tests;
