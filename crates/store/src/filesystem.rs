//! The calls of [`FileSystem`].
//!
//! A call first takes a handle of the journal, then locks inodes in the order that `names`
//! describes. While `readdir` passes entries to the caller, it holds neither a handle nor a lock.

use corewalk::acl::Acl;
use corewalk::xattr::{check_name, check_name_to_read};
use corewalk::{
    AclKind, Attr, DirSink, Errno, Fallocate, FileKind, FileSystem, Make, NAME_MAX, Name, Node,
    RenameMode, Seek, SetAttr, StatFs, XattrMode,
};
use corewalk_base::RwLockReadGuard;

use crate::content::{BLOCK_BYTES, Content, FileTx, SIZE_MAX};
use crate::directory::{Batch, NameRecord, hash_of};
use crate::inode::{Inode, State, now};
use crate::journal::RESERVE_BYTES;
use crate::names::check_directory;
use crate::store::{ROOT_INO, Store};
use crate::xattr;

const UNLIMITED_INODES: u64 = 1 << 40;
const UNLIMITED_BLOCKS: u64 = 1 << 38;

impl Store {
    fn change_content<R>(
        &self,
        node: Node<'_>,
        view: &crate::journal::View,
        change: impl FnOnce(&mut Content, FileTx<'_>) -> Result<R, Errno>,
        note: impl FnOnce(&R, &mut State) -> Result<(), Errno>,
    ) -> Result<(R, Attr), Errno> {
        let inode = self.table.get(node.ino(), view)?;
        check_file(&inode)?;
        let mut content = inode.content.write();
        inode.mark_data(view);
        let size_before = content.size;
        let result = change(&mut content, self.file_tx(inode.ino, view));
        let mut state = inode.state.write();
        let has_moved = content.take_moved() || size_before != content.size;
        state.record.size = content.size;
        state.record.blocks = content.blocks().unwrap_or(state.record.blocks);
        let noted = result.and_then(|result| note(&result, &mut state).map(|()| result));
        // The inode may have been freed while this thread waited for its lock. Saving it would
        // bring its record back.
        if !state.is_dead && (noted.is_ok() || has_moved) {
            inode.save(&state, view);
        }
        if has_moved {
            inode.mark_content(view);
        }
        let result = noted?;
        Ok((result, state.attr(inode.ino)))
    }

    fn loaded<'a>(&self, inode: &'a Inode) -> Result<RwLockReadGuard<'a, Content>, Errno> {
        loop {
            let content = inode.content.read();
            if content.is_loaded() {
                return Ok(content);
            }
            drop(content);
            let view = self.journal.view();
            inode.content.write().load(inode.ino, &view)?;
        }
    }

    fn note_read(&self, inode: &Inode) {
        if !inode.state.read().is_read_noted(self.atime.of(inode.kind), now()) {
            return;
        }
        // If the store refuses changes, the read succeeds without an update of the access time.
        let Ok(view) = self.journal.change() else { return };
        let mut state = inode.state.write();
        if !state.is_dead {
            state.record.atime = now();
            inode.save(&state, &view);
        }
    }

    /// Makes a change of names durable if the mount option `dirsync` is set. The caller holds no
    /// handle of the journal, because a commit waits for all handles.
    ///
    /// # Errors
    /// `EIO` if a commit failed: a crash may then undo the change of names.
    fn sync_names(&self) -> Result<(), Errno> {
        if self.is_dirsync { self.journal.commit_running() } else { Ok(()) }
    }

    /// Returns `ENOSPC` if the host has no space for `blocks` more blocks of file data. Returns
    /// `Ok` if the free space of the host is unknown.
    fn check_host(&self, blocks: u64) -> Result<(), Errno> {
        let Some(store_dir) = self.store_dir.as_ref().filter(|_| blocks > 0) else { return Ok(()) };
        let host = store_dir.host()?;
        // A file can use the blocks that the host has already allocated to the data device, even on
        // a full host.
        let free = self.unused_blocks()?;
        let new = blocks.saturating_sub(free).saturating_mul(BLOCK_BYTES);
        let all = blocks.saturating_add(self.space.used()).saturating_mul(BLOCK_BYTES);
        if new > host.bavail || all > host.blocks { Err(Errno::NOSPC) } else { Ok(()) }
    }

    fn change_attributes(
        &self,
        node: Node<'_>,
        view: &crate::journal::View,
        change: impl FnOnce(&mut State, &[u8]) -> Result<Vec<u8>, Errno>,
    ) -> Result<(), Errno> {
        let inode = self.table.get(node.ino(), view)?;
        let mut state = inode.state.write();
        state.check()?;
        let before = state.record;
        self.load_block(&mut state, view)?;
        // Move the attribute block out of `state`: to clone its `Arc` would change a reference
        // count for which threads contend.
        let block = state.block.take();
        let changed = change(&mut state, block.as_ref().map_or(&[], |block| block.content()));
        state.block = block;
        let changed = changed.and_then(|set| self.change_set(inode.ino, &mut state, &set, view));
        changed.inspect_err(|_| state.record = before)?;
        state.record.ctime = now();
        inode.save(&state, view);
        Ok(())
    }

    fn unused_blocks(&self) -> Result<u64, Errno> {
        Ok(self.journal.given_blocks()?.saturating_sub(self.space.used()))
    }

    /// Returns how many more blocks files can get if the host has `host_free` free blocks. The
    /// result is 0 while the host has no space for the reserve (space for commits).
    fn room(&self, host_free: u64) -> Result<u64, Errno> {
        let missing = if self.journal.has_reserve() { 0 } else { RESERVE_BYTES / BLOCK_BYTES };
        match host_free.checked_sub(missing) {
            Some(more) => Ok(self.unused_blocks()?.saturating_add(more)),
            None => Ok(0),
        }
    }

    fn change_as(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let view = &*self.journal.change()?;
        let change = |state: &mut State, set: &SetAttr| -> Result<(), Errno> {
            state.check()?;
            if let Some(mode) = set.mode.filter(|_| state.record.has_acl) {
                let old = self.set_of(state, view)?;
                if let Some(mut acl) = xattr::acl(&old, AclKind::Access)? {
                    acl.chmod(mode);
                    let new = xattr::with_acl(&old, AclKind::Access, Some(&acl));
                    self.change_set(node.ino(), state, &new, view)?;
                }
            }
            state.change(set, now());
            Ok(())
        };
        if let Some(size) = set.size {
            if size > SIZE_MAX {
                return Err(Errno::FBIG);
            }
            let mode = set.mode.map(|mode| SetAttr::default().with_mode(mode));
            let set = &set.with_mode(None);
            let cut = |content: &mut Content, tx: FileTx<'_>| {
                content.prepare_size(tx, size)?;
                if let Some(mode) = &mode {
                    let inode = self.table.get(tx.ino, view)?;
                    let mut state = inode.state.write();
                    change(&mut state, mode)?;
                    inode.save(&state, view);
                }
                content.set_size(tx, size)
            };
            return Ok(self.change_content(node, view, cut, |(), state| change(state, set))?.1);
        }
        let inode = self.table.get(node.ino(), view)?;
        let mut state = inode.state.write();
        change(&mut state, set)?;
        inode.save(&state, view);
        Ok(state.attr(inode.ino))
    }

    fn change_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        let view = &*match acl {
            Some(_) => self.journal.grow()?,
            None => self.journal.change()?,
        };
        match (self.table.get(node.ino(), view)?.kind, kind) {
            (FileKind::Symlink, _) => return Err(Errno::OPNOTSUPP),
            (FileKind::Directory, _) | (_, AclKind::Access) => {}
            (_, AclKind::Default) if acl.is_none() => return Ok(()),
            (_, AclKind::Default) => return Err(Errno::ACCESS),
        }
        self.change_attributes(node, view, |state, set| {
            let set_mode = SetAttr::default().with_mode(mode);
            state.change(&set_mode, now());
            Ok(xattr::with_acl(set, kind, state.kept_acl(kind, acl)))
        })
    }
}

impl FileSystem for Store {
    fn root(&self) -> Result<Attr, Errno> {
        self.getattr(Node::detached(ROOT_INO, FileKind::Directory))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let name = self.hashed(name);
        let view = &*self.journal.view();
        let parent = self.table.get(dir.ino(), view)?;
        check_directory(&parent)?;
        let state = parent.state.read();
        let found = NameRecord::find(parent.ino, &state, name, view)?.link();
        drop(state);
        let child = self.table.get(found.ok_or(Errno::NOENT)?.ino, view)?;
        let state = child.state.read();
        state.check()?;
        Ok(state.attr(child.ino))
    }

    fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
        let view = &*self.journal.view();
        let inode = self.table.get(ino, view)?;
        let state = inode.state.read();
        let attr = state.attr(ino);
        let is_gone = state.check().is_err() || attr.nlink == 0;
        drop(state);
        if is_gone || generation.is_some_and(|generation| generation != attr.generation) {
            return Err(Errno::STALE);
        }
        Ok(attr)
    }

    fn parent(&self, dir: Node<'_>) -> Result<u64, Errno> {
        let inode = self.inode(dir)?;
        check_directory(&inode)?;
        let state = inode.state.read();
        state.check_alive().map_err(|_| Errno::STALE)?;
        match (dir.ino(), state.record.parent) {
            (ROOT_INO, _) => Ok(ROOT_INO),
            // An earlier version of corewalk stored no parents, so the parent is unknown.
            (_, 0) => Err(Errno::STALE),
            (_, parent) => Ok(parent),
        }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        let inode = self.inode(node)?;
        let state = inode.state.read();
        state.check()?;
        Ok(state.attr(inode.ino))
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.with_room(|| self.change_as(node, set))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        let made = self.with_room(|| self.make_named(dir.ino(), name, what))?;
        self.sync_names()?;
        Ok(made)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.remove_name(dir.ino(), name, node.ino())?;
        self.sync_names()
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.rename_name((from.0.ino(), from.1), (to.0.ino(), to.1), mode)?;
        self.sync_names()
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let inode = self.inode(dir)?;
        check_directory(&inode)?;
        let (mut batch, mut next) = (Batch::default(), Some(hash_of(cookie)));
        let mut is_first = true;
        while let Some(from) = next {
            let view = self.journal.view();
            let state = inode.state.read();
            state.check()?;
            next = batch.fill(inode.ino, from, &view)?;
            drop(state);
            drop(view);
            if std::mem::take(&mut is_first) {
                self.note_read(&inode);
            }
            if batch.report(cookie, sink)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(node)?;
        check_file(&inode)?;
        if !buf.is_empty() {
            self.note_read(&inode);
        }
        self.loaded(&inode)?.read(&self.journal, offset, buf)
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let write = |content: &mut Content, tx: FileTx<'_>| content.write(tx, offset, bytes);
        let note = |&count: &usize, state: &mut State| {
            if count > 0 {
                state.touch_content(now());
            }
            Ok(())
        };
        self.with_room(|| {
            let view = &*self.journal.grow()?;
            Ok(self.change_content(node, view, write, note)?.0)
        })
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let linked = self.add_name(node.ino(), dir.ino(), name)?;
        self.sync_names()?;
        Ok(linked)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(node)?;
        if inode.kind != FileKind::Symlink {
            return Err(Errno::INVAL);
        }
        self.note_read(&inode);
        let state = inode.state.read();
        state.check()?;
        Ok(state.target.to_vec())
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        match FileKind::from_mode(what.mode) {
            Some(FileKind::Regular) => self.with_room(|| self.make_unnamed(dir.ino(), what)),
            _ => Err(Errno::INVAL),
        }
    }

    fn waits(&self) -> bool {
        false
    }

    fn fsync_waits(&self) -> bool {
        true
    }

    fn fsync(&self, node: Node<'_>, data_only: bool) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        let tid = inode.dirty_tid(data_only);
        if self.journal.is_running(tid.max(inode.data_tid())) {
            self.late.share();
        }
        self.journal.commit_up_to(tid)?;
        // Returns immediately if a commit has already synced the data of the file.
        self.journal.sync_data(inode.data_tid())
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let used = self.space.used();
        let room = match &self.store_dir {
            Some(store_dir) => self.room(store_dir.host()?.bavail / BLOCK_BYTES)?,
            None => UNLIMITED_BLOCKS,
        };
        let (blocks, bfree) = match self.space.limit() {
            Some(limit) => (limit, limit.saturating_sub(used).min(room)),
            None => (used.saturating_add(room), room),
        };
        let files = self.inodes.limit().unwrap_or(UNLIMITED_INODES);
        Ok(StatFs::default()
            .with_bsize(BLOCK_BYTES as u32)
            .with_blocks(blocks)
            .with_bfree(bfree)
            .with_bavail(bfree)
            .with_files(files)
            .with_ffree(files.saturating_sub(self.inodes.used()))
            .with_namelen(NAME_MAX as u32))
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.with_room(|| {
            let is_freeing = how.intersects(Fallocate::PUNCH_HOLE | Fallocate::COLLAPSE_RANGE);
            let view = &*if is_freeing { self.journal.change()? } else { self.journal.grow()? };
            let allocate = |content: &mut Content, tx: FileTx<'_>| {
                self.check_host(content.missing_blocks(tx, offset, len, how)?)?;
                content.allocate(tx, offset, len, how)
            };
            let note = |_: &(), state: &mut State| {
                state.touch_content(now());
                Ok(())
            };
            self.change_content(node, view, allocate, note)?;
            Ok(())
        })
    }

    fn seek(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        let inode = self.inode(node)?;
        check_file(&inode)?;
        self.loaded(&inode)?.seek(offset, what)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let view = &*self.journal.view();
        let inode = self.table.get(node.ino(), view)?;
        check_name_to_read(inode.kind, name)?;
        let state = inode.state.read();
        state.check()?;
        let set = self.set_of(&state, view)?;
        xattr::find(&set, name).map(<[u8]>::to_vec).ok_or(Errno::NODATA)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.with_room(|| {
            let view = &*self.journal.grow()?;
            check_name(self.table.get(node.ino(), view)?.kind, name)?;
            self.change_attributes(node, view, |_, set| xattr::changed(set, name, value, mode))
        })
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        let view = &*self.journal.view();
        let inode = self.table.get(node.ino(), view)?;
        let state = inode.state.read();
        state.check()?;
        Ok(xattr::list(&self.set_of(&state, view)?))
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        self.with_room(|| {
            let view = &*self.journal.change()?;
            check_name(self.table.get(node.ino(), view)?.kind, name)?;
            self.change_attributes(node, view, |_, set| {
                xattr::find(set, name).ok_or(Errno::NODATA)?;
                Ok(xattr::with(set, name, None))
            })
        })
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        let view = &*self.journal.view();
        let inode = self.table.get(node.ino(), view)?;
        let state = inode.state.read();
        state.check()?;
        xattr::acl(&self.set_of(&state, view)?, kind)
    }

    /// Sets or removes an ACL of an inode. An access ACL that expresses no more than the mode is
    /// not stored. `EACCES` for a default ACL of a non-directory, `EOPNOTSUPP` for a symbolic link.
    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.with_room(|| self.change_acl(node, kind, acl, mode))
    }

    fn forget(&self, ino: u64, _: u64) {
        self.forget_inode(ino);
    }

    fn counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {
        let stats = self.stats();
        for (name, value) in stats.fields() {
            sink(name, value);
        }
        if let Ok(space) = self.statfs() {
            sink("store_free_bytes", space.bavail.saturating_mul(BLOCK_BYTES));
        }
    }
}

/// Checks that `inode` is a regular file. `EISDIR` for a directory, `EINVAL` for another kind.
fn check_file(inode: &Inode) -> Result<(), Errno> {
    match inode.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    /// A change of a freed inode must fail, and must not save the record of the inode again.
    #[test]
    fn change_that_comes_after_the_end_of_its_file_leaves_nothing() {
        let path = std::env::temp_dir().join(format!("filesystem-end-{}", std::process::id()));
        let options = StoreOptions { log_bytes: 64 << 10, ..StoreOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let root = Node::detached(ROOT_INO, FileKind::Directory);
        type Change = fn(&Store, Node<'_>) -> Result<(), Errno>;
        let changes: [Change; 4] = [
            |store, file| store.write(file, 0, &[2; 5000]).map(drop),
            |store, file| store.fallocate(file, 0, 1 << 20, Fallocate::empty()),
            |store, file| store.setattr(file, &SetAttr::default().with_size(1)).map(drop),
            |store, file| store.setxattr(file, b"user.a", b"1", XattrMode::Set),
        ];
        let name = Name::new(b"file").unwrap();
        for change in changes {
            let attr = store.make(root, name, &Make::new(0o644, 0, 0)).unwrap();
            let file = Node::detached(attr.ino, FileKind::Regular);
            store.write(file, 0, &[1; 5000]).unwrap();
            store.sync().unwrap();
            let inode = store.table.find(attr.ino).unwrap();
            store.remove(root, name, file).unwrap();
            store.forget(attr.ino, attr.generation);
            store.table.insert(inode);
            assert_eq!(change(&store, file), Err(Errno::STALE));
            store.table.remove(attr.ino);
        }
        assert_eq!((store.stats().inodes, store.stats().blocks), (1, 0));
        drop(store);
        assert_eq!(crate::fsck(&path).unwrap().findings, []);
        std::fs::remove_dir_all(&path).unwrap();
    }

    /// df(1) must count the blocks of removed files as free, although they are still allocated on
    /// the host.
    #[test]
    fn room_of_what_was_removed_is_counted() {
        let path = std::env::temp_dir().join(format!("filesystem-room-{}", std::process::id()));
        let options =
            StoreOptions { commit_every: None, log_bytes: 64 << 10, ..StoreOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let root = Node::detached(ROOT_INO, FileKind::Directory);
        let (blocks, host) = (1 << 10, 1 << 20);
        assert_eq!(store.room(host), Ok(host));
        let make = |name: &[u8]| {
            let attr = store.make(root, Name::new(name).unwrap(), &Make::new(0o644, 0, 0)).unwrap();
            Node::detached(attr.ino, FileKind::Regular)
        };
        let remove = |name: &[u8], file: Node<'_>| {
            store.remove(root, Name::new(name).unwrap(), file).unwrap();
            store.forget(file.ino(), 0);
            store.sync().unwrap();
        };
        let file = make(b"large");
        store.write(file, 0, &vec![7; (blocks * BLOCK_BYTES) as usize]).unwrap();
        store.sync().unwrap();
        assert_eq!(store.room(host), Ok(host));
        remove(b"large", file);
        assert_eq!(store.room(host), Ok(host + blocks));

        let file = make(b"kept");
        store.fallocate(file, 0, 1 << 28, Fallocate::KEEP_SIZE).unwrap();
        assert_eq!(store.room(host), Ok(host));
        remove(b"kept", file);
        assert_eq!(store.room(host), Ok(host + blocks));

        // The store allocates its reserve again before files may grow, so the space for it must not
        // count as free.
        store.journal.give_up_reserve();
        let reserve = RESERVE_BYTES / BLOCK_BYTES;
        assert_eq!(store.room(reserve - 1), Ok(0));
        assert_eq!(store.room(reserve + 1), Ok(blocks + 1));
        drop(store);
        let store = Store::open(&path, &options).unwrap();
        assert_eq!(store.room(host), Ok(host + blocks));
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
