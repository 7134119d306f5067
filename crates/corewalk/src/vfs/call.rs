//! One call of a back end: the inodes that are passed to it, and the paths that the back end asks
//! for.
//!
//! A running call of the back end may ask for the path of an inode. It then takes a path lock,
//! which keeps the path valid until the call ends. A back end that reaches an open file by its
//! handle asks for no path, and never waits for a rename.

use std::sync::OnceLock;

use corewalk_base::Mutex;

use super::paths::{MoveLock, Nesting, PathLock, Paths};
use super::{Superblock, Vfs};
use crate::Errno;
use crate::fs::{FileSystem, Node, PathSource};
use crate::slot::InodeSlot;

/// A running call of a back end, with the path locks that it has taken so far.
pub(crate) struct Call<'v> {
    vfs: &'v Vfs,
    superblock: &'v Superblock,
    /// The path locks of the call. Protected by its own mutex, because a back end may ask for paths
    /// on several threads.
    locks: Mutex<Vec<PathLock<'v>>>,
}

pub(crate) struct CallNode<'c, 'v> {
    call: &'c Call<'v>,
    inode: InodeSlot,
    path: OnceLock<Result<Vec<u8>, Errno>>,
}

/// A path that a rename or a removal has locked: the path of a directory, or of a name in this
/// directory. `None` for a back end by number.
pub(crate) struct KnownPath(pub(super) Option<Vec<u8>>);

impl Vfs {
    /// Calls the back end for an inode. If the back end asks for a path of the inode, the path
    /// stays valid during the call.
    #[inline]
    pub(crate) fn with_node<T>(
        &self,
        inode: InodeSlot,
        question: impl FnOnce(&dyn FileSystem, Node<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let call = self.call(inode);
        let node = call.node(inode);
        question(call.fs(), node.node())
    }

    /// Like [`Vfs::with_node`], for an inode that must exist: turns `ENOENT` of a back end by path
    /// into `ESTALE`.
    ///
    /// # Errors
    /// `ESTALE` if a back end that finds files by path fails with `ENOENT`, or asks for a path that
    /// the inode does not have; the other errors of the back end.
    #[inline]
    pub(crate) fn with_inode<T>(
        &self,
        inode: InodeSlot,
        question: impl FnOnce(&dyn FileSystem, Node<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.with_node(inode, question).map_err(|error| self.stale_if_gone(inode, error))
    }

    #[inline]
    pub(super) fn stale_if_gone(&self, inode: InodeSlot, error: Errno) -> Errno {
        match error {
            Errno::NOENT if self.superblock(inode).paths.is_some() => Errno::STALE,
            error => error,
        }
    }

    #[inline]
    pub(crate) fn call(&self, inode: InodeSlot) -> Call<'_> {
        Call { vfs: self, superblock: self.superblock(inode), locks: Mutex::new(Vec::new()) }
    }

    /// Takes the path locks of a rename or a removal. `moved` are the moved or removed inodes; if
    /// there is only one, the second is `InodeSlot::NONE`. `above` are the directories of their
    /// names. Returns `None` for a back end by number.
    ///
    /// # Errors
    /// `ENOENT` if one of the directories was removed.
    pub(super) fn lock_move(
        &self,
        above: &[InodeSlot],
        moved: [InodeSlot; 2],
    ) -> Result<Option<MoveLock<'_>>, Errno> {
        match &self.superblock(above[0]).paths {
            None => Ok(None),
            Some(paths) => paths.lock_move(&self.dcache, above, moved).map(Some),
        }
    }

    /// Returns the node of an inode with the path `path`, which is already locked.
    pub(super) fn known_node<'a>(&self, inode: InodeSlot, path: &'a KnownPath) -> Node<'a> {
        let inodes = &self.dcache.inodes;
        let node = Node::with_source(inodes.ino(inode), inodes.kind(inode), path);
        node.with_generation(inodes.generation(inode))
    }
}

impl<'v> Call<'v> {
    #[inline]
    pub(crate) fn fs(&self) -> &'v dyn FileSystem {
        &*self.superblock.fs
    }

    #[inline]
    pub(crate) fn node(&self, inode: InodeSlot) -> CallNode<'_, 'v> {
        CallNode { call: self, inode, path: OnceLock::new() }
    }

    fn lock_path(&self, inode: InodeSlot) -> Result<Vec<u8>, Errno> {
        let paths: &Paths = self.superblock.paths.as_ref().ok_or(Errno::OPNOTSUPP)?;
        let mut locks = self.locks.lock();
        let nesting = if locks.is_empty() { Nesting::First } else { Nesting::Further };
        let (path, lock) = paths.lock(&self.vfs.dcache, inode, nesting)?;
        locks.push(lock);
        Ok(path)
    }
}

impl CallNode<'_, '_> {
    #[inline]
    pub(crate) fn node(&self) -> Node<'_> {
        let inodes = &self.call.vfs.dcache.inodes;
        let node = Node::with_source(inodes.ino(self.inode), inodes.kind(self.inode), self);
        node.with_generation(inodes.generation(self.inode))
    }
}

impl PathSource for CallNode<'_, '_> {
    fn path(&self) -> Result<Vec<u8>, Errno> {
        self.path.get_or_init(|| self.call.lock_path(self.inode)).clone()
    }

    fn other_paths(&self) -> Vec<Vec<u8>> {
        crate::dpath::other_inode_paths(&self.call.vfs.dcache, self.inode)
    }
}

impl KnownPath {
    pub(super) fn above(lock: Option<&MoveLock<'_>>, index: usize) -> KnownPath {
        KnownPath(lock.map(|lock| lock.above[index].clone()))
    }

    pub(super) fn child(&self, name: &[u8]) -> KnownPath {
        let child = |dir: &Vec<u8>| [dir.strip_suffix(b"/").unwrap_or(dir), b"/", name].concat();
        KnownPath(self.0.as_ref().map(child))
    }
}

impl PathSource for KnownPath {
    fn path(&self) -> Result<Vec<u8>, Errno> {
        self.0.clone().ok_or(Errno::OPNOTSUPP)
    }

    fn other_paths(&self) -> Vec<Vec<u8>> {
        Vec::new()
    }
}
