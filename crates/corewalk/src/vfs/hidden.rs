//! Unlinked open files of a back end that addresses files by path only
//! ([`PathOnly`](crate::Addressing::PathOnly)).
//!
//! A file that is open when its last name is removed must stay usable, but a back end by path could
//! not reach it. So the removal becomes a rename to a hidden name in the root directory. That name
//! is removed when the file is closed or forgotten.
//!
//! A rename first gives the replaced file a hidden name, even if it is not open. A client may have
//! looked the name up, and open it next. That open must get the old or the new file, and no error.
//!
//! The hidden name is a hard link if possible, so other users of the back end see an atomic
//! replacement. Without links, the file is moved to the hidden name first.
//!
//! A file that is unlinked while it is open gets a hidden name, which the back end counts as a
//! link. Clients get the link count without it.
//!
//! # Limits
//! The hidden name is in the root directory, so the file's own directory can be removed. If the
//! back end cannot rename to the root directory (`EXDEV`, `EACCES`), the file is lost.
//!
//! Source: libfuse `hide_node`; NFS "silly rename" (Linux `fs/nfs/unlink.c`).

use std::panic::{AssertUnwindSafe, catch_unwind};

use corewalk_base::primitives::is_panicking;

use super::call::KnownPath;
use super::held::FoundName;
use super::paths::Hidden;
use super::{InodeRef, Superblock, Vfs};
use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::dpath;
use crate::fs::{Node, RenameMode};
use crate::name::Name;
use crate::slot::InodeSlot;

/// A name that a rename or a removal is about to change, with the node and the locked path of its
/// directory.
#[derive(Clone, Copy)]
pub(super) struct LockedName<'a> {
    pub(super) dir: Node<'a>,
    pub(super) path: &'a KnownPath,
    pub(super) name: Name<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HiddenBy {
    /// The hidden name is a second link of the file.
    Link,
    /// The file was renamed, so its old name is gone.
    Rename,
}

impl Vfs {
    /// Removes a name in the back end. In a back end by path, an open file is not removed but
    /// renamed to a hidden name. The caller holds the path locks and the in-lookup lock of the
    /// name.
    pub(super) fn remove_in_backend(
        &self,
        at: LockedName<'_>,
        victim: &FoundName<'_>,
    ) -> Result<(), Errno> {
        let superblock = self.superblock(victim.inode);
        let path = at.path.child(at.name.as_bytes());
        let node = self.known_node(victim.inode, &path);
        let is_open = superblock.paths.as_ref().is_some_and(|paths| paths.is_open(victim.inode));
        if is_open && !victim.is_directory() && superblock.hide(victim.inode, node, at).is_ok() {
            return Ok(());
        }
        superblock.fs.remove(at.dir, at.name, node)
    }

    /// Renames a file in the back end. In a back end by path, a replaced file first gets a hidden
    /// name. The caller holds the path locks and the in-lookup locks of both names.
    pub(super) fn rename_in_backend(
        &self,
        from: LockedName<'_>,
        to: LockedName<'_>,
        source: &FoundName<'_>,
        target: Option<&FoundName<'_>>,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let superblock = self.superblock(source.inode);
        let rename = || superblock.fs.rename((from.dir, from.name), (to.dir, to.name), mode);
        let hides = superblock.paths.as_ref().is_some_and(|paths| paths.hides());
        match target {
            Some(victim) if hides && mode != RenameMode::Exchange && !victim.is_directory() => {
                let path = to.path.child(to.name.as_bytes());
                let node = self.known_node(victim.inode, &path);
                superblock.replace(victim.inode, node, to, rename)
            }
            _ => rename(),
        }
    }

    /// Counts a close of `inode`. The last close removes the hidden name if the file also has a
    /// visible name. A file that has only the hidden name keeps it until `forget`, because a client
    /// that has looked the file up may open it again.
    pub(super) fn closed(&self, inode: &InodeRef<'_>) {
        let superblock = self.superblock(inode.slot);
        let Some(paths) = &superblock.paths else { return };
        if !paths.count_close(inode.slot) {
            return;
        }
        let Ok(_lock) = paths.lock_move(&self.dcache, &[], [inode.slot, InodeSlot::NONE]) else {
            return;
        };
        // Since the last close was counted, the file may have been opened again, or a rename or
        // removal may have taken its last visible name. In both cases the file keeps its hidden
        // name.
        let is_named = dpath::chain_of_inode(&self.dcache, inode.slot).is_ok();
        if paths.is_open(inode.slot) || !is_named {
            return;
        }
        if let Some(hidden) = paths.take_hidden(inode.slot) {
            superblock.remove_hidden(&hidden);
        }
    }

    /// Returns the attributes that a client gets for the back end's `attr`. They have the inode
    /// number of the cache. Their link count does not include the hidden name of an unlinked open
    /// file.
    pub(super) fn reported(&self, inode: InodeSlot, attr: Attr) -> Attr {
        let attr = self.numbered_as(inode, attr);
        match &self.superblock(inode).paths {
            Some(paths) if paths.is_hidden(inode) => {
                Attr { nlink: attr.nlink.saturating_sub(1), ..attr }
            }
            _ => attr,
        }
    }
}

impl Superblock {
    /// Removes a hidden name in the back end. After an error the name stays, because no caller
    /// could handle the error.
    pub(super) fn remove_hidden(&self, hidden: &Hidden) {
        let (root, path) = (root_path(), KnownPath(Some(hidden.path())));
        let dir = Node::with_source(self.root_ino, FileKind::Directory, &root);
        let node = Node::with_source(hidden.ino, hidden.kind, &path);
        if let Ok(name) = Name::new(&hidden.name) {
            contain_panic(|| {
                let _ = self.fs.remove(dir, name, node);
            });
        }
    }

    fn hide(&self, inode: InodeSlot, node: Node<'_>, at: LockedName<'_>) -> Result<(), Errno> {
        let hidden = self.new_hidden(node)?;
        let root = root_path();
        let dir = Node::with_source(self.root_ino, FileKind::Directory, &root);
        self.fs.rename((at.dir, at.name), (dir, Name::new(&hidden.name)?), RenameMode::Replace)?;
        self.note_hidden(inode, hidden);
        Ok(())
    }

    fn replace(
        &self,
        inode: InodeSlot,
        node: Node<'_>,
        to: LockedName<'_>,
        rename: impl Fn() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let hidden = self.new_hidden(node)?;
        let (root, name) = (root_path(), Name::new(&hidden.name)?);
        let dir = Node::with_source(self.root_ino, FileKind::Directory, &root);
        let rename_file = |from, to| self.fs.rename(from, to, RenameMode::Replace);
        let hidden_by = match self.fs.link(node, dir, name) {
            Ok(_) => HiddenBy::Link,
            Err(_) => match rename_file((to.dir, to.name), (dir, name)) {
                Ok(()) => HiddenBy::Rename,
                Err(_) => return rename(),
            },
        };
        let done = rename();
        match (done, hidden_by) {
            (Ok(()), _) => self.note_hidden(inode, hidden),
            (Err(_), HiddenBy::Link) => self.remove_hidden(&hidden),
            (Err(_), HiddenBy::Rename) => drop(rename_file((dir, name), (to.dir, to.name))),
        }
        done
    }

    fn note_hidden(&self, inode: InodeSlot, hidden: Hidden) {
        let before = self.paths.as_ref().and_then(|paths| paths.hide(inode, hidden));
        if let Some(before) = before {
            self.remove_hidden(&before);
        }
    }

    fn new_hidden(&self, node: Node<'_>) -> Result<Hidden, Errno> {
        let paths = self.paths.as_ref().ok_or(Errno::OPNOTSUPP)?;
        Ok(Hidden { name: paths.new_hidden_name(), ino: node.ino(), kind: node.kind() })
    }
}

/// Makes a call of the back end. If the thread is already panicking, catches a panic of the call,
/// because a second panic would abort the process.
pub(super) fn contain_panic(call: impl FnOnce()) {
    if is_panicking() {
        drop(catch_unwind(AssertUnwindSafe(call)));
    } else {
        call();
    }
}

fn root_path() -> KnownPath {
    KnownPath(Some(b"/".to_vec()))
}
