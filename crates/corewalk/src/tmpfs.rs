//! A file system in memory, the reference back end.
//!
//! [`Tmpfs`] keeps directories, files, links, device nodes, extended attributes and ACLs in the
//! memory of the process. It behaves like the kernel's tmpfs. It is also an example of a
//! [`FileSystem`]: each call gets one name, and makes no path walk and no permission check.
//!
//! # Mechanism
//! There is no global lock, and changes in different directories write no common memory. The module
//! `table` finds the slot of an inode by its number, without a lock. Each slot has one inode and
//! its lock. This lock protects everything but the bytes of a file (module `inode`).
//!
//! - A directory (`dir`) gives each entry a cookie that stays valid while the directory changes.
//! - A file (`data`, `pages`) has pages of 4096 bytes and tracks holes exactly.
//! - Equal sets of extended attributes and ACLs are stored once (`xattr`).
//! - Two budgets (`budget`) limit bytes and inodes.
//!
//! # Lock order
//! A thread takes locks in this order, which prevents deadlock (see `names`):
//! 1. the lock for de-duplicating the queued sets of attributes
//! 2. the bytes of one file
//! 3. directories, in ascending order of their slots
//! 4. one inode that is not a directory
//! 5. the slot of a shared set of attributes
//! 6. a free list of slots, or the queue of sets that wait for de-duplication
//!
//! `readdir` holds no lock while the caller's sink runs.
//!
//! # Differences from Linux
//! - `FALLOC_FL_ZERO_RANGE`, `FALLOC_FL_COLLAPSE_RANGE` and `FALLOC_FL_INSERT_RANGE` work.
//! - Inode numbers are never reused (trap P11 in `traps.md`). They have 64 bits, so 32-bit programs
//!   need `_FILE_OFFSET_BITS=64`, as with `inode64` of tmpfs(5).
//! - Extended attributes and ACLs are charged as bytes, not as inodes.
//! - Without a limit, statfs(2) reports a large one, because some programs check for free space.
//! - A write or chown does not clear set-user-ID. The caller clears it with `setattr`.
//! - If the system has no memory left, the process ends. `size_bytes` prevents that.
//!
//! Source: tmpfs(5), inode(7), xattr(7); Linux `mm/shmem.c` for the behaviour.
//!
//! # Examples
//! ```
//! use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
//! use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node};
//!
//! let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(4096));
//! let root = Node::detached(fs.root()?.ino, FileKind::Directory);
//! let made = fs.make(root, Name::new(b"file")?, &Make::new(0o644, 0, 0))?;
//! let file = Node::detached(made.ino, FileKind::Regular);
//! assert_eq!(fs.write(file, 0, b"hello")?, 5);
//! assert_eq!(fs.lookup(root, Name::new(b"file")?)?.size, 5);
//! assert_eq!(fs.write(file, 4096, b"more"), Err(Errno::NOSPC));
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
use crate::xattr::{check_name, check_name_to_read};

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

/// The smallest and the largest number of entries that `readdir` copies at a time under the
/// directory's lock. The first batch of a call is the smallest, because a caller with a small
/// buffer takes no more.
const BATCH_ENTRIES: std::ops::RangeInclusive<usize> = 32..=512;
/// The minimum number of freed bytes before their memory is returned to the system.
const TRIM_BYTES: u64 = 8 << 20;
/// The size that statfs(2) reports without a limit: 1 PiB.
const UNLIMITED_BYTES: u64 = 1 << 50;
/// The number of inodes that statfs(2) reports without a limit.
const UNLIMITED_INODES: u64 = 1 << 40;

/// A file system in memory; see the module documentation.
///
/// # Invariants
/// - S.1: `space` is the memory of all pages, long link targets and extended attributes, in bytes.
/// - S.2: `inodes` is the number of inodes in `table` without the root directory, plus one for each
///   further name of an inode.
#[doc(alias = "shmem")]
pub struct Tmpfs {
    table: InodeTable,
    space: Budget,
    inodes: Budget,
    keys: HashKeys,
    xattrs: Xattrs,
    atime: AtimePolicy,
    /// The largest number of bytes in use that [`FileSystem::maintain`] has seen since memory was
    /// last returned to the system.
    bytes_max: AtomicU64,
}

/// The options of a [`Tmpfs`]. They are like the mount options of tmpfs(5).
///
/// # Examples
/// ```
/// use corewalk::{FileSystem, tmpfs::{Tmpfs, TmpfsOptions}};
///
/// let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(1 << 20).with_root_mode(0o700));
/// assert_eq!(fs.root()?.mode, 0o040_700);
/// assert_eq!(fs.statfs()?.bfree, 256);
/// # Ok::<(), corewalk::Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TmpfsOptions {
    /// The limit for file data, long link targets, extended attributes and ACLs, in bytes, rounded
    /// up to whole pages. None means no limit (mount option `size=`).
    pub size_bytes: Option<u64>,
    /// The limit for inodes, including the root directory. Each further name of a file counts as
    /// one more inode. None means no limit (mount option `nr_inodes=`).
    pub inodes_max: Option<u64>,
    /// The permission bits of the root directory (`mode=`).
    pub root_mode: u32,
    /// The owner of the root directory (`uid=`).
    pub root_uid: u32,
    /// The group of the root directory (`gid=`).
    pub root_gid: u32,
    /// True if equal sets of extended attributes and ACLs are stored once (mount options `mbcache`,
    /// `no_mbcache`). A shared set is charged once. A change of one file's attributes may have to
    /// copy a shared set. That includes the removal of an attribute and the chmod of a file with an
    /// ACL. If there is no space for the copy, the change fails with `ENOSPC`.
    pub share_xattrs: bool,
    /// The rule by which a read updates the access time (mount options `relatime`, `noatime`,
    /// `strictatime`, `nodiratime`).
    pub atime: AtimePolicy,
}

impl TmpfsOptions {
    corewalk_base::setters! {
        with_size_bytes: size_bytes = impl Into<Option<u64>>;
        with_inodes_max: inodes_max = impl Into<Option<u64>>;
        with_root_mode: root_mode = u32;
        with_root_uid: root_uid = u32;
        with_root_gid: root_gid = u32;
        with_share_xattrs: share_xattrs = bool;
        with_atime: atime = AtimePolicy;
    }
}

impl Default for TmpfsOptions {
    /// Returns options without limits. The root directory belongs to user 0 and has mode 1777,
    /// equal sets of attributes are shared, and the access time follows `relatime`.
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
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileSystem, tmpfs::{Tmpfs, TmpfsOptions}};
    ///
    /// let fs = Tmpfs::new(TmpfsOptions::default());
    /// assert!(fs.root()?.is_dir());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn new(options: TmpfsOptions) -> Tmpfs {
        let whole_pages = |bytes: u64| bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES);
        let fs = Tmpfs {
            table: InodeTable::new(),
            space: Budget::new(options.size_bytes.map(whole_pages), 0),
            // The root directory always exists and is not counted.
            inodes: Budget::new(options.inodes_max.map(|max| max.saturating_sub(1)), 0),
            keys: HashKeys::new(None),
            xattrs: Xattrs::new(options.share_xattrs, now()),
            atime: options.atime,
            bytes_max: AtomicU64::new(0),
        };
        let root_mode = mode::S_IFDIR | options.root_mode & !mode::S_IFMT;
        let root = Make::new(root_mode, options.root_uid, options.root_gid);
        fs.table.enter().alloc_root().fill(FileKind::Directory, &root, now());
        fs
    }

    /// Returns the statistics of stored extended attributes and ACLs.
    pub fn xattr_stats(&self) -> XattrStats {
        self.xattrs.stats()
    }

    /// De-duplicates all queued sets of extended attributes and ACLs now. A set is queued if its
    /// inode changes repeatedly. Without this call, the set stays queued until the next `maintain`,
    /// or until space runs out. Returns the number of inodes that were queued.
    ///
    /// A caller that runs no server should call this or `maintain` now and then: up to 4096 inodes
    /// stay queued otherwise.
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
        let mut count = 0;
        self.xattrs.end_epoch(now(), |inos| {
            count = inos.len() as u64;
            for ino in inos {
                // A removed inode has already dropped its attributes.
                if let Ok(mut inode) = self.table.enter().write(ino) {
                    self.xattrs.share_queued(&mut inode.attributes.xattrs, &self.space);
                }
            }
        });
        count
    }

    /// Runs `step`, which must hold no lock when it fails. If `step` fails because the budget
    /// `space` is used up, de-duplicates all queued sets of extended attributes and runs `step`
    /// again. A failure for another reason, such as too many names, is not retried.
    fn retry_after_sharing<T>(&self, step: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        // A retry makes sense only if a set was queued before or after `step`. If it was queued
        // before, another thread may have de-duplicated it meanwhile, which also frees space.
        let (refusals, queued) = (self.space.refusals(), self.xattrs.queued());
        match step() {
            Err(Errno::NOSPC)
                if self.space.refusals() != refusals && queued.max(self.xattrs.queued()) > 0 =>
            {
                self.share_xattrs();
                step()
            }
            result => result,
        }
    }

    fn change_xattr(&self, ino: u64, name: &[u8], change: Change<'_>) -> Result<(), Errno> {
        self.retry_after_sharing(|| {
            let table = self.table.enter();
            let mut inode = table.write(ino)?;
            check_name(inode.kind(), name)?;
            let now = now();
            self.change_set(&mut inode, change, now)?;
            inode.attributes.touch(now);
            Ok(())
        })
    }

    fn change_set(
        &self,
        inode: &mut Inode,
        change: Change<'_>,
        now: Timespec,
    ) -> Result<(), Errno> {
        let (ino, changed) = (inode.ino(), inode.attributes.changed());
        self.xattrs.change(&mut inode.attributes.xattrs, ino, change, changed, now, &self.space)
    }

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

    fn content(&self, ino: u64) -> Result<Arc<RwLock<FileContent>>, Errno> {
        let table = self.table.enter();
        let content = table.read(ino)?.content()?.cloned();
        match content {
            Some(content) => Ok(content),
            None => table.write(ino)?.content_mut().cloned(),
        }
    }

    /// Changes the content of a file by `change`, then the inode's size and, by `finish`, its other
    /// attributes. The changes of the inode are made under one lock, so stat(2) sees all or none of
    /// them.
    ///
    /// # Errors
    /// `EISDIR` for a directory, `EINVAL` for another kind, and the errors of `change`.
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
        // Change the mode first, because it can fail: it may need a copy of a shared ACL, for which
        // there may be no space. The size cannot fail any more, because `check_size` has accepted
        // it. Mode and ACL change under one lock, so that no reader sees one without the other.
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

    /// Applies a new mode to the access ACL of an inode, if it has one. Fails with `ENOSPC` if a
    /// copy of a shared ACL finds no space.
    fn chmod_acl(&self, inode: &mut Inode, mode: Option<u32>, now: Timespec) -> Result<(), Errno> {
        let Some(mode) = mode else { return Ok(()) };
        let Some(acl) = inode.attributes.acl(AclKind::Access) else { return Ok(()) };
        let mut acl = acl.clone();
        acl.chmod(mode);
        self.change_set(inode, Change::Acl(AclKind::Access, Some(&acl)), now)
    }

    fn trim(&self) {
        let bytes = self.table.bytes() + self.space.used();
        // ORDERING: Relaxed. A sample; nothing is published through it.
        let most = self.bytes_max.fetch_max(bytes, Ordering::Relaxed);
        // `give_back_freed` scans the whole heap. So the larger the heap, the more memory must have
        // been freed before a scan pays.
        if most.saturating_sub(bytes) >= TRIM_BYTES.max(bytes / 8) {
            // ORDERING: Relaxed. As above.
            self.bytes_max.store(bytes, Ordering::Relaxed);
            // Wait until the memory of the freed slots is in the allocator, so that it can be
            // returned to the system too.
            rcu::synchronize();
            heap::give_back_freed();
        }
    }

    fn note_read(&self, table: &Entered<'_>, inode: RwLockReadGuard<'_, Inode>) {
        let ino = inode.ino();
        if inode.attributes.is_atime_updated(self.atime.of(inode.kind()), now()) {
            drop(inode);
            // If the inode was removed meanwhile, it has no access time to update.
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
        self.retry_after_sharing(|| self.set_attributes(node, set))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.retry_after_sharing(|| self.make_named(dir.ino(), name, what))
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

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
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

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let write = |content: &mut FileContent| content.write(offset, bytes, &self.space);
        let touch = |&count: &usize, inode: &mut Inode| {
            if count > 0 {
                inode.attributes.touch_content(now());
            }
        };
        self.retry_after_sharing(|| self.change_content(node.ino(), write, touch))
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
            Some(FileKind::Regular) => {
                self.retry_after_sharing(|| self.make_unnamed(dir.ino(), what))
            }
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
            // Add the root directory, which `inodes` does not count.
            files: files.saturating_add(1),
            ffree: files.saturating_sub(self.inodes.used()),
            namelen: NAME_MAX as u32,
        })
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        let allocate = |content: &mut FileContent| content.allocate(offset, len, how, &self.space);
        let touch = |(): &(), inode: &mut Inode| inode.attributes.touch_content(now());
        self.retry_after_sharing(|| self.change_content(node.ino(), allocate, touch))
    }

    fn seek(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        let content = self.table.enter().read(node.ino())?.content()?.cloned();
        content.ok_or(Errno::NXIO)?.read().seek(offset, what)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let table = self.table.enter();
        let inode = table.read(node.ino())?;
        check_name_to_read(inode.kind(), name)?;
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

    /// Sets an ACL. An access ACL that is equivalent to the mode is dropped. `EACCES` for a default
    /// ACL of anything but a directory, `EOPNOTSUPP` for an ACL of a symbolic link.
    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.retry_after_sharing(|| {
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

    fn waits(&self) -> bool {
        false
    }

    fn forget(&self, ino: u64, _: u64) {
        self.discard(ino, |attributes| attributes.nlink == 0);
    }

    fn maintain(&self) {
        self.trim();
        self.share_xattrs();
    }

    fn counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        let XattrStats { shared_sets, waiting } = self.xattr_stats();
        // Add the root directory, which `inodes` does not count.
        sink("tmpfs_inodes", self.inodes.used() + 1);
        sink("tmpfs_used_bytes", self.space.used());
        sink("tmpfs_table_bytes", self.table.bytes());
        sink("tmpfs_shared_sets", shared_sets);
        sink("tmpfs_waiting", waiting);
        let index = self.xattrs.index_counts();
        sink("tmpfs_xattr_hits", index.hits);
        sink("tmpfs_xattr_misses", index.misses);
        sink("tmpfs_xattr_entries", index.entries);
        sink("tmpfs_xattr_reclaimed", index.reclaimed);
    }
}
