//! The requests of the FUSE protocol, independent of how they arrive.
//!
//! A [`Server`] has one method per request. The method translates the node number to a counted
//! inode, and the caller to credentials. It calls the back end through [`Vfs`], and counts each
//! inode that the answer gives to the kernel. A `Server` is `Sync`, so any number of threads may
//! call it.
//!
//! # Node numbers
//! In the protocol the root has the node number 1. The node number of any other inode is the inode
//! number of the back end. There is one exception: the server swaps 1 with the inode number that
//! the root has in the back end. So no two inodes have one node number, whatever numbers the back
//! end uses. The kernel reads number 0 as "no such name", so an inode with that number is refused.
//!
//! # Counting
//! A returned [`EntryOut`] is already counted. The transport must deliver it to the kernel, or call
//! [`Server::forget`] for it. The kernel keeps the lookup of a delivered entry even if the calling
//! process has died meanwhile. When the connection ends, all lookups end with it. A forget names a
//! node number and no name. So a late forget cannot drop another file that has got the name
//! meanwhile (traps P1 and P2).
//!
//! # Guarantees
//! - A.1: the cookies of a directory are those of the back end plus 2. Cookies 1 and 2 are the
//!   positions behind `.` and behind `..`.
//! - A.2: `readdirplus` counts an entry only after its sink has taken the entry.
//!
//! # Locks
//! The server has no lock of its own.
//!
//! Source: Linux `fs/fuse/dir.c`, `inode.c`; fuse(4).

mod counters;
mod files;
mod listing;
mod names;
mod xattrs;

pub use counters::Counters;
pub use files::WriteOrigin;
pub use listing::Dirent;
pub use names::NewFile;
pub use xattrs::{XATTR_PRUNE, XATTR_STAT, XattrAnswer};

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewalk::attr::SetTime;
use corewalk::{
    Addressing, Attr, Caps, Cred, Errno, FileSystem, InodeRef, LookedUp, May, Name, SetAttr, Vfs,
};

use crate::credentials::{Caller, UserNamespace};
use crate::options::{Options, Ownership, Permissions};
use crate::transport::{NoRings, Transport};
use counters::Tallies;

/// The node number of the root in the protocol.
pub(crate) const ROOT_NODE: u64 = 1;

/// The node number that a listing with attributes reports for an entry whose lookup failed.
///
/// Such an entry should have node number 0, which means no node. But fuser sends one number for
/// both the node and the directory entry, and the C library skips directory entries with number 0.
/// The entry has a timeout of 0, so the kernel never uses this node. Before the kernel uses the
/// name, it looks the name up and gets the error.
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
    fsync_waits: bool,
    waits: bool,
    tallies: Tallies,
    drop_attributes: OnceLock<DropAttributes>,
    /// The transport of the mount. If it is not the one that was preferred, the text says why.
    transport: OnceLock<Box<str>>,
}

/// A function that makes the kernel drop its cached attributes of a node.
type DropAttributes = Box<dyn Fn(u64) + Send + Sync>;

/// An inode that an answer gives to the kernel. It counts one lookup. Analogous to `struct
/// fuse_entry_out`.
#[doc(alias = "fuse_entry_out")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is counted: deliver it, or forget it"]
#[non_exhaustive]
pub struct EntryOut {
    /// The node number.
    pub node: u64,
    /// The generation. No other inode ever has the same node number and generation.
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
    /// The handle of the open file through which the caller made the change, as by ftruncate(2).
    /// The permission for it was checked when the file was opened.
    pub handle: Option<u64>,
}

impl Change {
    /// Returns a change of the attributes in `set`. The change was not made through an open file.
    pub fn new(set: SetAttr) -> Change {
        Change { set, handle: None }
    }

    corewalk_base::setters! {
        with_handle: handle = Option<u64>;
    }
}

impl Server {
    /// Returns a server of `fs`.
    ///
    /// # Errors
    /// `EINVAL` for options that [conflict](Options::check); the errors of [`Vfs::new`].
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> Result<Server, Errno> {
        options.check().map_err(|_| Errno::INVAL)?;
        // A back end by path cannot find an unlinked file. So corewalk keeps such a file until it
        // is closed, and for that it must know which files are open.
        let has_open_state = fs.has_open_state() || fs.addressing() == Addressing::PathOnly;
        let (fsync_waits, waits) = (fs.fsync_waits(), fs.waits());
        let vfs = Vfs::new(fs, options.vfs.clone())?;
        let root = vfs.root().ino();
        Ok(Server {
            vfs,
            options,
            root,
            namespace: UserNamespace::ours(),
            has_open_state,
            fsync_waits,
            waits,
            tallies: Tallies::default(),
            drop_attributes: OnceLock::new(),
            transport: OnceLock::new(),
        })
    }

    /// Returns the namespace of the server.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// Sets the function that makes the kernel drop the cached attributes of a node. The server
    /// calls it on the thread of the request that has changed the attributes. The function can be
    /// set only once.
    pub(crate) fn set_drop_attributes(&self, drop_attributes: DropAttributes) {
        let is_first = self.drop_attributes.set(drop_attributes).is_ok();
        debug_assert!(is_first, "a server is mounted once");
    }

    /// Notes the transport for [`XATTR_STAT`]. `why` says why a better transport is not used.
    pub(crate) fn set_transport(&self, transport: Transport, why: Option<&NoRings>) {
        let text = match why {
            Some(why) => format!("{}: {why}", transport.name()),
            None => transport.name().to_owned(),
        };
        let is_first = self.transport.set(text.into()).is_ok();
        debug_assert!(is_first, "a server is mounted once");
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns true if the server does not need to know when files are opened and closed. Then a
    /// transport may tell the kernel not to send these requests.
    pub fn opens_are_free(&self) -> bool {
        !self.has_open_state
            && self.options.ownership == Ownership::Exclusive
            && self.options.permissions == Permissions::Kernel
    }

    /// Returns true if [`Server::fsync`] may wait for a disk or another machine. Then a transport
    /// should run it on a thread that reads no requests.
    pub fn fsync_waits(&self) -> bool {
        self.fsync_waits
    }

    /// Returns true if any request may wait for another machine or a slow device. Then a transport
    /// should not bind requests to a thread.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Returns the counters of the server and its cache.
    pub fn counters(&self) -> Counters {
        self.tallies.read(&self.vfs.stats())
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

    /// Looks up `name` in `dir`. If other programs may change the directory, asks the back end even
    /// for a cached name.
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

    /// Returns `node` itself for the name `.`, or its parent directory for `..`.
    ///
    /// The kernel sends such lookups if a process opens a file handle of an inode that the kernel
    /// has forgotten. It sends them for the inode and for the directories above it.
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

    /// Takes back `n` lookups of `node`, which the kernel no longer holds. If the kernel holds
    /// fewer, the server only counts and logs the wrong forget.
    pub fn forget(&self, node: u64, n: u64) {
        self.tallies.requests.add(1);
        if node == ROOT_NODE || node == NO_NODE {
            // The server counts no lookups of these two nodes.
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
        let mut set = change.set;
        if set.size.is_some() {
            // For truncate(2) the kernel also sends the current time as the modification time.
            // Leave it out, because a truncation sets that time anyway.
            set.mtime = set.mtime.filter(|time| *time != SetTime::Now);
        }
        let attr = self.change(caller, &inode, |cred| {
            // The kernel has checked the permission when the file was opened.
            let is_open = set.size.is_some() && change.handle.is_some();
            let more = if is_open { Caps::DAC_OVERRIDE } else { Caps::empty() };
            let cred = cred.clone().with_caps(cred.caps | more);
            self.vfs.setattr_through(&cred, &inode, change.handle.unwrap_or(0), &set)
        })?;
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

    /// Counts a request, and returns the counted inode of its node.
    fn inode(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        self.tallies.requests.add(1);
        self.counted(node)
    }

    /// Returns the counted inode of a node like the method `inode`, but does not add to the counter
    /// of requests. It is for the second node of a request with two nodes, such as a rename to
    /// another directory.
    fn counted(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        let inode = self.vfs.inode(self.translate(node))?;
        let (ownership, permissions) = (self.options.ownership, self.options.permissions);
        if ownership == Ownership::Shared && permissions == Permissions::Server {
            // Other programs may have changed owner and mode. So the server's permission check must
            // get both from the back end again.
            self.vfs.invalidate_attributes(&inode);
        }
        Ok(inode)
    }

    /// Returns the counted inode of a node, as `inode` does. If other programs may change owner and
    /// mode, the next use of the owner or the mode asks the back end again.
    ///
    /// Call this for requests that depend on owner and mode even if the kernel checks permissions.
    /// For example, a new file inherits the group of its directory, and a write clears some bits of
    /// the mode. Other requests need owner and mode only for the permission check, which the kernel
    /// has made. In these requests, a call of this function would cost a useless `stat`.
    fn inode_refreshed(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        let inode = self.inode(node)?;
        self.refresh(&inode);
        Ok(inode)
    }

    /// If other programs may change owner and mode of `inode`, drops its attributes from the cache,
    /// so that their next use asks the back end.
    fn refresh(&self, inode: &InodeRef<'_>) {
        if self.options.ownership == Ownership::Shared {
            self.vfs.invalidate_attributes(inode);
        }
    }

    /// Returns `name`. If other programs may change `dir`, first compares the cache's answer for
    /// `name` with the back end's.
    fn revalidated<'a>(&self, dir: &InodeRef<'_>, name: Name<'a>) -> Result<Name<'a>, Errno> {
        match self.options.ownership {
            Ownership::Exclusive => {}
            Ownership::Shared => self.vfs.revalidate(dir, name)?,
        }
        Ok(name)
    }

    /// Translates a node number to an inode number, or an inode number to a node number.
    pub(crate) fn translate(&self, number: u64) -> u64 {
        match number {
            ROOT_NODE => self.root,
            number if number == self.root => ROOT_NODE,
            number => number,
        }
    }

    /// Checks the name in a request. Counts it as a name that the server has to resolve.
    fn name<'a>(&self, name: &'a [u8]) -> Result<Name<'a>, Errno> {
        let name = Name::new(name)?;
        self.tallies.names.add(1);
        Ok(name)
    }

    /// Turns a reference to an inode into a lookup that the kernel holds, and returns its entry.
    fn hand_out(&self, inode: InodeRef<'_>, attr: Attr) -> Result<EntryOut, Errno> {
        let node = self.translate(inode.ino());
        if node == 0 || node == ROOT_NODE || node == NO_NODE {
            // The numbers 0, `ROOT_NODE` and `NO_NODE` stand for "no such name", for the root, and
            // for an entry whose lookup has failed. So no inode that was looked up may have one of
            // these numbers.
            return Err(Errno::IO);
        }
        let generation = inode.generation();
        self.tallies.lookups.add(1);
        inode.into_lookups();
        Ok(EntryOut { node, generation, attr: attr.with_ino(node) })
    }

    /// Returns the credentials for the permission checks of a request.
    fn cred(&self, caller: Caller) -> Cred {
        match self.options.permissions {
            Permissions::Kernel => caller.prechecked(),
            Permissions::Server => caller.resolve(self.namespace),
        }
    }

    /// Runs the closure `change`, which changes content, size or owner of `inode`. The closure gets
    /// credentials, which decide whether the set-group-ID bit of `inode` is cleared.
    ///
    /// A kernel that checks permissions clears the set-user-ID bit, and the set-group-ID bit if the
    /// group may execute the file. If the group may not, the kernel leaves the set-group-ID bit, so
    /// the server clears it.
    fn change<T>(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        change: impl FnOnce(&Cred) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let is_kernel = self.options.permissions == Permissions::Kernel;
        if !is_kernel || !self.vfs.has_lone_set_group_id(inode)? {
            return change(&self.cred(caller));
        }
        let changed = change(&self.cred_in_groups(caller));
        if let Some(drop_attributes) = self.drop_attributes.get()
            && self.vfs.has_lone_set_group_id(inode) != Ok(true)
        {
            // The answer to a write cannot tell the kernel the new mode, and the kernel may have
            // cached the old one for a day. So make the kernel drop it.
            drop_attributes(self.translate(inode.ino()));
        }
        changed
    }

    /// Returns credentials like `cred`, but with the caller's real groups and its real
    /// `CAP_FSETID`. They decide whether set-group-ID stays. A request carries neither, so they are
    /// read from `/proc`. If the kernel has checked the permissions, all other capabilities are
    /// set.
    fn cred_in_groups(&self, caller: Caller) -> Cred {
        let cred = caller.resolve(self.namespace);
        match self.options.permissions {
            Permissions::Server => cred,
            Permissions::Kernel => {
                let caps = cred.caps | (Caps::all() - Caps::FSETID);
                cred.with_caps(caps)
            }
        }
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
