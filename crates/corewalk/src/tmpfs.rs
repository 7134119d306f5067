//! A file system in memory, the reference back end.
//!
//! [`Tmpfs`] keeps directories, files, links, device nodes, extended attributes and ACLs in the
//! memory of the process, and behaves as the kernel's tmpfs does, so that what is built on
//! corewalk can be tested against it and mounted from it. It is also the worked example of a
//! [`FileSystem`]: it is asked for one name at a time, and does no path walk and no permission
//! check.
//!
//! # How it works
//! There is no global lock, and nothing that two changes in different directories both write. An array
//! of slots, read without a lock, leads from a number to an inode (`table`), which has one lock around
//! all but the bytes of a file (`inode`). Directories (`dir`) hand out cookies that stay true while they
//! change; files (`data`, `pages`) keep pages of 4096 bytes and know holes exactly. Operations on names
//! (`names`) lock the directories they change in the order of their slots. Equal sets of extended
//! attributes and ACLs are stored once (`xattr`). Two budgets (`budget`) bound bytes and inodes; without
//! a limit each thread counts for itself.
//!
//! # Locks and their order
//! The bytes of one file; directories in ascending order of their slots; one inode that is none; the
//! place of a shared set of attributes; lists of free slots, and of inodes whose attributes wait. `names` says why that is free of deadlocks. No lock is held while the caller's sink
//! runs in `readdir`, and none longer than a batch takes to copy.
//!
//! # What it does beyond and short of Linux
//! - `FALLOC_FL_ZERO_RANGE`, `COLLAPSE_RANGE` and `INSERT_RANGE` work.
//! - Numbers are never used again (trap P11). They are 64 bits wide: that of a file made in the place
//!   of an earlier one has a count of such files in its upper half, so programs of 32 bits need
//!   `_FILE_OFFSET_BITS=64`, as with `inode64` of tmpfs(5).
//! - Extended attributes and ACLs are charged to the bytes, not to the inodes, and shared ones once: see
//!   `TmpfsOptions::share_xattrs`.
//! - Without a limit on bytes or inodes statfs(2) reports a large one, so that programs that look
//!   for free space find some.
//! - Set-user-ID bits are not cleared by a write or chown: the caller does that, with `setattr`.
//! - Memory that runs out ends the process: set `size_bytes`.
//!
//! Source: tmpfs(5), inode(7), xattr(7); Linux `mm/shmem.c` for the behaviour.
//!
//! # Examples
//! ```
//! use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
//! use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node};
//!
//! let fs = Tmpfs::new(TmpfsOptions { size_bytes: Some(4096), ..TmpfsOptions::default() });
//! let root = Node::detached(fs.root()?.ino, FileKind::Directory);
//! let made = fs.make(root, Name::new(b"file")?, &Make::new(0o644, 0, 0))?;
//! let file = Node::detached(made.ino, FileKind::Regular);
//! assert_eq!(fs.write(file, 0, 0, b"hello")?, 5);
//! assert_eq!(fs.lookup(root, Name::new(b"file")?)?.size, 5);
//! assert_eq!(fs.write(file, 0, 4096, b"more"), Err(Errno::NOSPC));
//! # Ok::<(), Errno>(())
//! ```

use std::ops::ControlFlow;
use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Budget, RwLock, RwLockReadGuard, heap};
use corewalk_sync::rcu;

use crate::Errno;
use crate::acl::Acl;
use crate::attr::{AtimePolicy, Attr, FileKind, SetAttr, StatFs, Timespec, mode};
use crate::fs::{AclKind, DirSink, Fallocate, FileSystem, Make, Node, RenameMode, Seek, XattrMode};
use crate::hash::HashKeys;
use crate::name::{NAME_MAX, Name};

use data::FileContent;
use dir::Batch;
use inode::{Attributes, Inode, now, target_bytes};
use pages::PAGE_BYTES;
use table::{Entered, InodeTable, ROOT_INO};
use xattr::{Change, Xattrs};

pub use xattr::XattrStats;

mod data;
mod dir;
mod index;
mod inode;
mod names;
mod pages;
mod table;
mod xattr;

/// How many entries the first and the largest batch of a `readdir` call copy under the lock of the
/// directory. A first batch fills a small buffer without copying much that is not wanted.
const BATCH_ENTRIES: std::ops::RangeInclusive<usize> = 32..=512;
/// Bytes that must have been freed before freed memory is given back to the system.
const TRIM_BYTES: u64 = 8 << 20;
/// What statfs(2) reports as the size without a limit: 1 PiB.
const UNLIMITED_BYTES: u64 = 1 << 50;
/// What statfs(2) reports as the number of inodes without a limit.
const UNLIMITED_INODES: u64 = 1 << 40;

/// A file system in memory. See the module's text.
///
/// # Invariants
/// - S.1: `space` has what the pages, long targets of links and extended attributes of all inodes take,
///   in bytes.
/// - S.2: `inodes` has the number of inodes in `table`, but the root directory, and of all further names
///   that they have besides one.
#[doc(alias = "shmem")]
pub struct Tmpfs {
    table: InodeTable,
    space: Budget,
    inodes: Budget,
    keys: HashKeys,
    xattrs: Xattrs,
    atime: AtimePolicy,
    /// The most bytes in use since freed memory was given back, as [`FileSystem::maintain`] saw them.
    bytes_max: AtomicU64,
}

/// What a [`Tmpfs`] starts with, after the mount options of tmpfs(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TmpfsOptions {
    /// The most bytes of file data, long targets of symbolic links, extended attributes and ACLs, rounded
    /// up to whole pages; None for as much as there is memory (`size=`).
    pub size_bytes: Option<u64>,
    /// The most inodes, with the root directory, and further names of files, each of which counts as one;
    /// None for any number (`nr_inodes=`).
    pub inodes_max: Option<u64>,
    /// The permission bits of the root directory (`mode=`).
    pub root_mode: u32,
    /// The owner of the root directory (`uid=`).
    pub root_uid: u32,
    /// The group of the root directory (`gid=`).
    pub root_gid: u32,
    /// Whether equal sets of extended attributes and ACLs are stored once (`mbcache`, `no_mbcache`). A
    /// shared set is charged once, and a change that needs a copy of it, be it to remove an attribute or
    /// to chmod a file with an ACL, fails with `ENOSPC` if there is no room for one.
    pub share_xattrs: bool,
    /// When reading sets the time of the last access (`relatime`, `noatime`, `strictatime`, `nodiratime`).
    pub atime: AtimePolicy,
}

impl Default for TmpfsOptions {
    /// Returns no limits, a root directory of user 0 that all may write to (mode 1777), shared
    /// attributes, and `relatime`.
    fn default() -> TmpfsOptions {
        TmpfsOptions {
            size_bytes: None,
            inodes_max: None,
            root_mode: 0o1777,
            root_uid: 0,
            root_gid: 0,
            share_xattrs: true,
            atime: AtimePolicy::default(),
        }
    }
}

impl Tmpfs {
    /// Returns a file system with an empty root directory.
    pub fn new(options: TmpfsOptions) -> Tmpfs {
        let whole_pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
        let fs = Tmpfs {
            table: InodeTable::new(),
            space: Budget::new(options.size_bytes.map(whole_pages), 0),
            // The root directory is there from the start and not counted.
            inodes: Budget::new(options.inodes_max.map(|max| max.saturating_sub(1)), 0),
            keys: HashKeys::new(None),
            xattrs: Xattrs::new(options.share_xattrs),
            atime: options.atime,
            bytes_max: AtomicU64::new(0),
        };
        let root_mode = mode::S_IFDIR | options.root_mode & !mode::S_IFMT;
        let root = Make::new(root_mode, options.root_uid, options.root_gid);
        fs.table.enter().draw_root().fill(FileKind::Directory, &root, now());
        fs
    }

    /// Returns how extended attributes and ACLs are stored.
    pub fn xattr_stats(&self) -> XattrStats {
        self.xattrs.stats()
    }

    /// Shares what is equal among extended attributes and ACLs now, and not only when the inodes that
    /// were changed lately have been left alone for 100 ms and others are changed. Returns how many
    /// inodes waited for it.
    ///
    /// # Examples
    /// ```
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, XattrMode};
    ///
    /// let fs = Tmpfs::new(TmpfsOptions::default());
    /// let root = Node::detached(fs.root()?.ino, FileKind::Directory);
    /// for name in [b"a", b"b", b"c"] {
    ///     let ino = fs.make(root, Name::new(name)?, &Make::new(0o644, 0, 0))?.ino;
    ///     let file = Node::detached(ino, FileKind::Regular);
    ///     fs.setxattr(file, b"user.mime", b"text/plain", XattrMode::Set)?;
    /// }
    /// fs.share_xattrs();
    /// assert_eq!(fs.xattr_stats().shared_sets, 1);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn share_xattrs(&self) -> u64 {
        // No more than waited when it was called, so that changes meanwhile do not keep it up.
        let (mut shared, most) = (0, self.xattrs.stats().waiting);
        while shared < most {
            match self.share_waiting(None) {
                0 => break,
                count => shared += count,
            }
        }
        shared
    }

    /// Shares the attributes of some inodes that were left alone for long enough. No lock is held.
    #[inline]
    fn share_due(&self, now: Timespec) {
        if self.xattrs.is_due(now) {
            self.share_waiting(Some(now));
        }
    }

    #[cold]
    fn share_waiting(&self, now: Option<Timespec>) -> u64 {
        let waiting = self.xattrs.pop_waiting(now);
        for &ino in &waiting {
            // Those that are gone took their attributes along.
            if let Ok(mut inode) = self.table.enter().write(ino) {
                let attributes = &mut inode.attributes;
                let changed = attributes.changed();
                self.xattrs.share(&mut attributes.xattrs, ino, changed, now, &self.space);
            }
        }
        waiting.len() as u64
    }

    /// Runs a step that holds no lock when it fails, and if there is no room for it in `space`, once more
    /// after sharing what waits for that. Sharing makes no room for names of a list or for inodes, which say
    /// `ENOSPC`, too.
    fn with_room<T>(&self, step: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let refusals = self.space.refusals();
        match step() {
            Err(Errno::NOSPC) if self.space.refusals() != refusals && self.share_xattrs() > 0 => {
                step()
            }
            result => result,
        }
    }

    /// Changes the extended attribute `name` of an inode.
    fn change_xattr(&self, ino: u64, name: &[u8], change: Change<'_>) -> Result<(), Errno> {
        let now = self.with_room(|| {
            let table = self.table.enter();
            let mut inode = table.write(ino)?;
            xattr::check_name(inode.kind(), name)?;
            let now = now();
            self.change_set(&mut inode, change, now)?;
            inode.attributes.touch(now);
            Ok(now)
        })?;
        self.share_due(now);
        Ok(())
    }

    /// Changes the extended attributes and ACLs of an inode. Errors as of `Xattrs::change`.
    fn change_set(
        &self,
        inode: &mut Inode,
        change: Change<'_>,
        now: Timespec,
    ) -> Result<(), Errno> {
        let (ino, times) = (inode.ino(), (inode.attributes.changed(), now));
        self.xattrs.change(&mut inode.attributes.xattrs, ino, change, times, &self.space)
    }

    /// Takes an inode out of its slot, if `is_wanted` says so, and gives back what it takes.
    fn discard(&self, ino: u64, is_wanted: impl FnOnce(&Attributes) -> bool) {
        let table = self.table.enter();
        let Ok(slot) = table.write(ino) else { return };
        if !is_wanted(&slot.attributes) {
            return;
        }
        let mut inode = table.remove(slot);
        if let Ok(Some(content)) = inode.content() {
            content.write().discard(&self.space);
        }
        if let Ok(target) = inode.target() {
            self.space.give_back(target_bytes(target));
        }
        self.xattrs.drop_set(&mut inode.attributes.xattrs, &self.space);
        self.inodes.give_back(1);
    }

    /// Returns the bytes of a regular file. `EISDIR` for a directory, `EINVAL` for another file.
    fn content(&self, ino: u64) -> Result<Arc<RwLock<FileContent>>, Errno> {
        let table = self.table.enter();
        let content = table.read(ino)?.content()?.cloned();
        match content {
            Some(content) => Ok(content),
            None => table.write(ino)?.content_mut().cloned(),
        }
    }

    /// Changes the content of a regular file, and then its inode with `finish`. Both appear at once to
    /// stat(2).
    ///
    /// # Errors
    /// `EISDIR` for a directory, `EINVAL` for another file, and those of `change`.
    fn change_content<R>(
        &self,
        ino: u64,
        change: impl FnOnce(&mut FileContent) -> Result<R, Errno>,
        finish: impl FnOnce(&R, &mut Inode),
    ) -> Result<R, Errno> {
        let content = self.content(ino)?;
        let mut content = content.write();
        content.check_kept()?;
        let result = change(&mut content)?;
        let table = self.table.enter();
        let mut inode = table.write(ino)?;
        inode.note_size(&content);
        finish(&result, &mut inode);
        Ok(result)
    }

    /// Makes the changes of `set`, all or none.
    fn set_attributes(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let ino = node.ino();
        let Some(size) = set.size else {
            let table = self.table.enter();
            let (mut inode, now) = (table.write(ino)?, now());
            self.chmod_acl(&mut inode, set.mode, now)?;
            inode.attributes.change(set, now);
            return Ok(inode.attr());
        };
        let content = self.content(ino)?;
        let mut content = content.write();
        content.check_kept()?;
        FileContent::check_size(size)?;
        // The copy of an ACL may want room; the size does not fail any more. The mode goes with the ACL, so
        // that nobody sees one without the other.
        if set.mode.is_some() {
            let table = self.table.enter();
            let (mut inode, now) = (table.write(ino)?, now());
            self.chmod_acl(&mut inode, set.mode, now)?;
            inode.attributes.change(&SetAttr { mode: set.mode, ..SetAttr::default() }, now);
        }
        content.set_size(size, &self.space)?;
        let table = self.table.enter();
        let mut inode = table.write(ino)?;
        inode.note_size(&content);
        inode.attributes.change(set, now());
        Ok(inode.attr())
    }

    /// Sets permission bits in the access ACL, if there is one. `ENOSPC` for the copy of one that is shared.
    fn chmod_acl(&self, inode: &mut Inode, mode: Option<u32>, now: Timespec) -> Result<(), Errno> {
        let Some(mode) = mode else { return Ok(()) };
        let Some(acl) = inode.attributes.acl(AclKind::Access) else { return Ok(()) };
        let mut acl = acl.clone();
        acl.chmod(mode);
        self.change_set(inode, Change::Acl(AclKind::Access, Some(&acl)), now)
    }

    /// Gives freed memory back to the system, if much has been freed.
    fn trim(&self) {
        let bytes = self.table.bytes() + self.space.used();
        // ORDERING: Relaxed. A sample; nothing is published through it.
        let most = self.bytes_max.fetch_max(bytes, Ordering::Relaxed);
        // A part of all, so that a large heap is not looked through for little.
        if most.saturating_sub(bytes) >= TRIM_BYTES.max(bytes / 8) {
            // ORDERING: Relaxed. As above.
            self.bytes_max.store(bytes, Ordering::Relaxed);
            // Slots are freed after a grace period.
            rcu::synchronize();
            heap::give_back_freed();
        }
    }

    /// Says that the content of `inode`, which is released, was read.
    fn note_read(&self, table: &Entered<'_>, inode: RwLockReadGuard<'_, Inode>) {
        let ino = inode.ino();
        if inode.attributes.is_read_noted(self.atime.of(inode.kind()), now()) {
            drop(inode);
            // If it is gone meanwhile, so is its time.
            if let Ok(mut inode) = table.write(ino) {
                inode.attributes.touch_read(now());
            }
        }
    }
}

impl std::fmt::Debug for Tmpfs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (inodes, bytes) = (self.inodes.used(), self.space.used());
        f.debug_struct("Tmpfs").field("inodes", &inodes).field("bytes", &bytes).finish()
    }
}

impl FileSystem for Tmpfs {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(self.table.enter().read(ROOT_INO)?.attr())
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let key = self.key(name);
        let table = self.table.enter();
        let found = table.read(dir.ino())?.directory()?.find(key);
        Ok(table.read(found.ok_or(Errno::NOENT)?.link.ino)?.attr())
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(self.table.enter().read(node.ino())?.attr())
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.with_room(|| self.set_attributes(node, set))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.with_room(|| self.make_named(dir.ino(), name, what))
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.remove_name(dir.ino(), name, node.ino())
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.rename_name((from.0.ino(), from.1), (to.0.ino(), to.1), mode)
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let ino = dir.ino();
        let (mut cookie, mut batch, mut count_max) = (cookie, Batch::default(), 0);
        loop {
            let is_first = count_max == 0;
            count_max = (count_max * 2).clamp(*BATCH_ENTRIES.start(), *BATCH_ENTRIES.end());
            batch.clear();
            {
                let table = self.table.enter();
                let inode = table.read(ino)?;
                inode.directory()?.collect_behind(cookie, count_max, &mut batch);
                if is_first {
                    self.note_read(&table, inode);
                }
            }
            for entry in batch.iter() {
                if let ControlFlow::Break(()) = sink(entry) {
                    return Ok(());
                }
                cookie = entry.cookie;
            }
            if batch.len() < count_max {
                return Ok(());
            }
        }
    }

    fn read(&self, node: Node<'_>, _: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let content = {
            let table = self.table.enter();
            let inode = table.read(node.ino())?;
            let content = inode.content()?.cloned();
            if !buf.is_empty() {
                self.note_read(&table, inode);
            }
            content
        };
        Ok(content.map_or(0, |content| content.read().read(offset, buf)))
    }

    fn write(&self, node: Node<'_>, _: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let write = |content: &mut FileContent| content.write(offset, bytes, &self.space);
        let touch = |&count: &usize, inode: &mut Inode| {
            if count > 0 {
                inode.attributes.touch_content(now());
            }
        };
        self.with_room(|| self.change_content(node.ino(), write, touch))
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.add_name(node.ino(), dir.ino(), name)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        let table = self.table.enter();
        let inode = table.read(node.ino())?;
        let target = inode.target()?.to_vec();
        self.note_read(&table, inode);
        Ok(target)
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        match FileKind::from_mode(what.mode) {
            Some(FileKind::Regular) => self.with_room(|| self.make_unnamed(dir.ino(), what)),
            _ => Err(Errno::INVAL),
        }
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let blocks = self.space.limit().unwrap_or(UNLIMITED_BYTES) / PAGE_BYTES;
        let bfree = blocks.saturating_sub(self.space.used().div_ceil(PAGE_BYTES));
        let files = self.inodes.limit().unwrap_or(UNLIMITED_INODES);
        Ok(StatFs {
            bsize: PAGE_BYTES as u32,
            blocks,
            bfree,
            bavail: bfree,
            // The root directory is one more.
            files: files.saturating_add(1),
            ffree: files.saturating_sub(self.inodes.used()),
            namelen: NAME_MAX as u32,
        })
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        _: u64,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        let allocate = |content: &mut FileContent| content.allocate(offset, len, how, &self.space);
        let touch = |(): &(), inode: &mut Inode| inode.attributes.touch_content(now());
        self.with_room(|| self.change_content(node.ino(), allocate, touch))
    }

    fn seek(&self, node: Node<'_>, _: u64, offset: u64, what: Seek) -> Result<u64, Errno> {
        let content = self.table.enter().read(node.ino())?.content()?.cloned();
        content.ok_or(Errno::NXIO)?.read().seek(offset, what)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let table = self.table.enter();
        let inode = table.read(node.ino())?;
        xattr::check_name_to_read(inode.kind(), name)?;
        let block = inode.attributes.xattrs.as_ref().ok_or(Errno::NODATA)?;
        block.set().get(name).map(<[u8]>::to_vec)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.change_xattr(node.ino(), name, Change::Set(name, value, mode))
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        let table = self.table.enter();
        let inode = table.read(node.ino())?;
        Ok(inode.attributes.xattrs.as_ref().map_or_else(Vec::new, |block| block.set().list()))
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        self.change_xattr(node.ino(), name, Change::Remove(name))
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        Ok(self.table.enter().read(node.ino())?.attributes.acl(kind).cloned())
    }

    /// Sets an ACL; an access ACL that says no more than the mode is dropped. `EACCES` for a
    /// default ACL of anything but a directory, `EOPNOTSUPP` for an ACL of a symbolic link.
    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.with_room(|| {
            let table = self.table.enter();
            let mut inode = table.write(node.ino())?;
            match (inode.kind(), kind) {
                (FileKind::Symlink, _) => return Err(Errno::OPNOTSUPP),
                (FileKind::Directory, _) | (_, AclKind::Access) => {}
                (_, AclKind::Default) if acl.is_none() => return Ok(()),
                (_, AclKind::Default) => return Err(Errno::ACCESS),
            }
            let now = now();
            let permissions = mode.unwrap_or(inode.attributes.mode);
            let kept = |acl: &&Acl| kind == AclKind::Default || inode::is_kept(acl, permissions);
            self.change_set(&mut inode, Change::Acl(kind, acl.filter(kept)), now)?;
            if let Some(mode) = mode {
                inode.attributes.set_permissions(mode);
            }
            inode.attributes.touch(now);
            drop(inode);
            self.share_due(now);
            Ok(())
        })
    }

    fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
        let attr = self.table.enter().read(ino)?.attr();
        let is_it = attr.nlink > 0 && generation.is_none_or(|generation| generation == 0);
        if is_it { Ok(attr) } else { Err(Errno::STALE) }
    }

    fn parent(&self, dir: Node<'_>) -> Result<u64, Errno> {
        let table = self.table.enter();
        let inode = table.read(dir.ino())?;
        let directory = inode.directory()?;
        directory.check_alive().map_err(|_| Errno::STALE)?;
        Ok(directory.parent())
    }

    fn forget(&self, ino: u64) {
        self.discard(ino, |attributes| attributes.nlink == 0);
    }

    /// Shares attributes that were left alone for 100 ms, also if no others are changed any more, and
    /// gives freed memory back to the system.
    fn maintain(&self) {
        self.trim();
        // No more than waited when it was called, so that changes meanwhile do not keep it up.
        let (now, mut left) = (now(), self.xattrs.stats().waiting);
        while left > 0 {
            match self.share_waiting(Some(now)) {
                0 => break,
                count => left = left.saturating_sub(count),
            }
        }
    }

    fn counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        let XattrStats { shared_sets, waiting } = self.xattr_stats();
        // The root directory is one more.
        sink("tmpfs_inodes", self.inodes.used() + 1);
        sink("tmpfs_used_bytes", self.space.used());
        sink("tmpfs_table_bytes", self.table.bytes());
        sink("tmpfs_shared_sets", shared_sets);
        sink("tmpfs_waiting", waiting);
    }
}
