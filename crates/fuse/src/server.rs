//! What each request means, apart from how requests arrive.
//!
//! A [`Server`] has one method per request of the protocol. It turns node numbers into counted
//! inodes, callers into credentials, and answers into what the kernel counts. It is `Sync`; requests
//! run side by side on as many threads as a transport likes.
//!
//! # Node numbers
//! The kernel calls the root 1 and everything else what it was told. Node numbers are the inode
//! numbers of the back end with two exchanged: 1 and the number of its root, so that nothing collides
//! whatever the back end uses. 0 means "no such name" to the kernel and is refused.
//!
//! # Counting
//! An [`Entry`] that is returned has been counted: the transport must deliver it, or call
//! [`Server::forget`] for it. The kernel keeps a delivered entry, also if whoever asked has died
//! meanwhile; if the connection ends before that, all counts end with it. Forgets name numbers, never
//! names, so that a late one cannot hit what has taken over a name (traps P1, P2).
//!
//! # Guarantees
//! - A.1: a directory's cookies are those of the back end plus 2; 1 and 2 stand behind `.` and `..`.
//! - A.2: `readdirplus` counts an entry only once its sink has taken it.
//!
//! # Locks
//! None of its own; see the crates it calls.
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
pub use names::New;
pub use xattrs::{XATTR_PRUNE, XATTR_STAT, XattrAnswer};

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewalk::attr::SetTime;
use corewalk::{
    Addressing, Attr, Caps, Cred, Errno, FileSystem, InodeRef, May, Name, SetAttr, Vfs,
};

use crate::credentials::{Caller, UserNamespace};
use crate::options::{Options, Ownership, Permissions};
use counters::Tallies;

/// The node number of the root, as the protocol has it.
pub(crate) const ROOT_NODE: u64 = 1;

/// The node number that is told of entries in a listing that could not be looked up, and of no others: fuser sends one number
/// as that of the node and that of the entry, and the C library leaves out entries of number 0. It is told with no
/// time to keep it, so that nothing is done with it: the kernel asks for the name first, and is told why not.
pub(crate) const NO_NODE: u64 = u64::MAX;

/// Serves one file system. See the module's text.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{Caller, New, Options, Server};
///
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// let server = Server::new(fs, Options::exclusive())?;
/// let caller = Caller { uid: 1000, gid: 1000, pid: 0 };
/// let made = server.make(caller, 1, b"file", &New { mode: 0o100_666, umask: 0o22, ..New::default() })?;
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
    tallies: Tallies,
    drop_attributes: OnceLock<DropAttributes>,
}

/// Has the kernel drop the attributes that it keeps of a node.
type DropAttributes = Box<dyn Fn(u64) + Send + Sync>;

/// An inode as it is handed to the kernel, counted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it is counted: deliver it, or forget it"]
pub struct Entry {
    /// Its node number.
    pub node: u64,
    /// With `node`, its name for ever.
    pub generation: u64,
    /// Its attributes, with the node number as inode number.
    pub attr: Attr,
}

/// A change of attributes, and how it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// What is to change.
    pub set: SetAttr,
    /// It came through a file that is open for writing (ftruncate(2)).
    pub through_handle: bool,
}

impl Server {
    /// Returns a server of `fs`.
    ///
    /// # Errors
    /// `EINVAL` for options that [conflict](Options::check); what [`Vfs::new`] says.
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> Result<Server, Errno> {
        options.check().map_err(|_| Errno::INVAL)?;
        // A back end that has only paths is kept an unlinked file by the namespace, which has to know
        // that it is open.
        let has_open_state = fs.has_open_state() || fs.addressing() == Addressing::PathOnly;
        let fsync_waits = fs.fsync_waits();
        let vfs = Vfs::new(fs, options.vfs.clone())?;
        let root = vfs.root().ino();
        Ok(Server {
            vfs,
            options,
            root,
            namespace: UserNamespace::ours(),
            has_open_state,
            fsync_waits,
            tallies: Tallies::default(),
            drop_attributes: OnceLock::new(),
        })
    }

    /// Returns the namespace that is served.
    pub fn vfs(&self) -> &Arc<Vfs> {
        &self.vfs
    }

    /// Sets, once, how the kernel is told to drop the attributes of a node that it has just changed: called by the
    /// thread that serves the request.
    pub(crate) fn set_drop_attributes(&self, drop_attributes: DropAttributes) {
        let is_first = self.drop_attributes.set(drop_attributes).is_ok();
        debug_assert!(is_first, "a server is mounted once");
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns true if neither open nor release of a file matters, so that a transport may have the
    /// kernel leave both out.
    pub fn opens_are_free(&self) -> bool {
        !self.has_open_state
            && self.options.ownership == Ownership::Exclusive
            && self.options.permissions == Permissions::Kernel
    }

    /// Returns true if [`Server::fsync`] may wait for a disk or another machine, so that a transport should serve
    /// others meanwhile.
    pub fn fsync_waits(&self) -> bool {
        self.fsync_waits
    }

    /// Returns what has happened so far.
    pub fn counters(&self) -> Counters {
        self.tallies.read(&self.vfs.stats())
    }

    /// Counts a request that panicked.
    pub fn count_panic(&self) {
        self.tallies.panics.add(1);
    }

    /// Returns what `name` in `parent` refers to.
    ///
    /// # Errors
    /// `ENOENT`; `ENAMETOOLONG`; `ENOTDIR`; `EACCES`; `ESTALE` for an unknown `parent`.
    pub fn lookup(&self, caller: Caller, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        if matches!(name, b"." | b"..") {
            return self.lookup_by_handle(parent, name);
        }
        let dir = self.inode(parent)?;
        let name = self.fresh(&dir, self.name(name)?)?;
        let inode = self.vfs.lookup(&self.cred(caller), &dir, name)?;
        let attr = self.vfs.getattr(&inode)?;
        self.hand_out(inode, attr)
    }

    /// Returns `node` itself for `.`, or the directory that it is in for `..`: so the kernel asks for what it has a
    /// file handle of and no inode any more, and for the directories above that.
    ///
    /// # Errors
    /// `ESTALE` if it is gone.
    fn lookup_by_handle(&self, node: u64, name: &[u8]) -> Result<Entry, Errno> {
        self.tallies.requests.add(1);
        let found = || {
            let mut inode = self.vfs.by_number(self.translate(node), None)?;
            if name == b".." {
                inode = self.vfs.inode(self.vfs.parent_ino(&inode)?)?;
            }
            let attr = self.vfs.getattr(&inode)?;
            if attr.nlink == 0 { Err(Errno::STALE) } else { Ok((inode, attr)) }
        };
        let gone = |error| if error == Errno::NOENT { Errno::STALE } else { error };
        let (inode, attr) = found().map_err(gone)?;
        if inode.ino() == self.root {
            // The kernel never forgets the root, so it is not counted.
            return Ok(Entry {
                node: ROOT_NODE,
                generation: 0,
                attr: Attr { ino: ROOT_NODE, ..attr },
            });
        }
        self.hand_out(inode, attr)
    }

    /// Takes back `n` lookups of `node`. A number that does not fit is counted and logged, and
    /// changes nothing.
    pub fn forget(&self, node: u64, n: u64) {
        self.tallies.requests.add(1);
        if node == ROOT_NODE || node == NO_NODE {
            // Neither was ever handed out.
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
    /// `ESTALE`; what the back end says.
    pub fn getattr(&self, node: u64) -> Result<Attr, Errno> {
        let attr = self.vfs.getattr(&self.inode(node)?)?;
        Ok(Attr { ino: node, ..attr })
    }

    /// Changes attributes of `node` and returns the new ones.
    ///
    /// # Errors
    /// `EPERM`, `EACCES`, `EINVAL`, `EISDIR` as the system calls have them; what the back end says.
    pub fn setattr(&self, caller: Caller, node: u64, change: Change) -> Result<Attr, Errno> {
        let inode = self.inode_now(node)?;
        let mut set = change.set;
        if set.size.is_some() {
            // The kernel adds the time to truncate(2), which sets it anyway.
            set.mtime = set.mtime.filter(|time| *time != SetTime::Now);
        }
        let attr = self.change(caller, &inode, |cred| {
            // The permission was checked when the file was opened.
            let is_open = set.size.is_some() && change.through_handle;
            let more = if is_open { Caps::DAC_OVERRIDE } else { Caps::empty() };
            let cred = Cred { caps: cred.caps | more, ..cred.clone() };
            self.vfs.setattr(&cred, &inode, &set)
        })?;
        Ok(Attr { ino: node, ..attr })
    }

    /// Returns whether the caller may do `mask` (the bits of access(2)) with `node`.
    ///
    /// # Errors
    /// `EACCES`; `ESTALE`.
    pub fn access(&self, caller: Caller, node: u64, mask: u32) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        self.vfs.access(&self.cred(caller), &inode, May::from_bits_truncate(mask & 7))
    }

    /// Returns the counted inode of a node.
    fn inode(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        self.tallies.requests.add(1);
        self.counted(node)
    }

    /// As `inode`, of one that a request names beside another.
    fn counted(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        let inode = self.vfs.inode(self.translate(node))?;
        let (ownership, permissions) = (self.options.ownership, self.options.permissions);
        if ownership == Ownership::Shared && permissions == Permissions::Server {
            // Others may have changed them.
            self.vfs.invalidate_attributes(&inode);
        }
        Ok(inode)
    }

    /// As `inode`, of one whose owner and mode decide what the request does whoever checks permissions: what a new file
    /// inherits, which bits a change keeps. Others may have changed them. Requests that only ask whether the caller
    /// may do without: the kernel has said so, and to ask the back end again would cost each of them a look.
    fn inode_now(&self, node: u64) -> Result<InodeRef<'_>, Errno> {
        let inode = self.inode(node)?;
        self.refresh(&inode);
        Ok(inode)
    }

    /// Has the back end asked for owner and mode, if others change them.
    fn refresh(&self, inode: &InodeRef<'_>) {
        if self.options.ownership == Ownership::Shared {
            self.vfs.invalidate_attributes(inode);
        }
    }

    /// Returns a name that is to be resolved in `dir`, once what is cached of it is what the back end says, if
    /// others change that.
    fn fresh<'a>(&self, dir: &InodeRef<'_>, name: Name<'a>) -> Result<Name<'a>, Errno> {
        match self.options.ownership {
            Ownership::Exclusive => {}
            Ownership::Shared => self.vfs.revalidate(dir, name)?,
        }
        Ok(name)
    }

    /// Returns the inode number of a node number, or the other way around.
    pub(crate) fn translate(&self, number: u64) -> u64 {
        match number {
            ROOT_NODE => self.root,
            number if number == self.root => ROOT_NODE,
            number => number,
        }
    }

    /// Returns a checked name that is to be resolved, and counts it.
    fn name<'a>(&self, name: &'a [u8]) -> Result<Name<'a>, Errno> {
        let name = Name::new(name)?;
        self.tallies.names.add(1);
        Ok(name)
    }

    /// Turns a reference into one lookup that the kernel holds.
    fn hand_out(&self, inode: InodeRef<'_>, attr: Attr) -> Result<Entry, Errno> {
        let node = self.translate(inode.ino());
        if node == 0 || node == ROOT_NODE || node == NO_NODE {
            // None of them can be the answer to a name.
            return Err(Errno::IO);
        }
        let generation = inode.generation();
        self.tallies.lookups.add(1);
        inode.into_lookups();
        Ok(Entry { node, generation, attr: Attr { ino: node, ..attr } })
    }

    /// Returns the credentials that a request is checked with.
    fn cred(&self, caller: Caller) -> Cred {
        match self.options.permissions {
            Permissions::Kernel => caller.prechecked(),
            Permissions::Server => caller.resolve(self.namespace),
        }
    }

    /// Runs a change of the content, the size or the owner of `inode` with the credentials that it is checked
    /// with. Where the kernel checks permissions, it decides about the bits of set-user-ID and of set-group-ID
    /// with execution by the group, but not about set-group-ID alone.
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
            // The answer to a write says nothing of the mode, which the kernel may keep for a day.
            drop_attributes(self.translate(inode.ino()));
        }
        changed
    }

    /// As `cred`, with the groups of the caller and, of `CAP_FSETID`, what the caller has: these decide whether
    /// set-group-ID stays, and the kernel says nothing of them. All other checks it has made, if it makes any.
    fn cred_in_groups(&self, caller: Caller) -> Cred {
        let cred = caller.resolve(self.namespace);
        match self.options.permissions {
            Permissions::Server => cred,
            Permissions::Kernel => {
                let checked = Caps::all() - Caps::FSETID;
                Cred { caps: cred.caps | checked, ..cred }
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
