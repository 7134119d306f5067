//! The tree of names as a back end, so that corewalk has something to ask.
//!
//! Measuring a cache needs a back end that costs no memory of its own and counts how often it is
//! asked. This one answers from the corpus that the run has anyway, with a small overlay for names
//! that were moved. It stores no file content and refuses every other change.
//!
//! # Locks
//! The overlay has a lock, taken alone.
//!
//! # What it refuses
//! `EROFS` for changes other than a rename, `EOPNOTSUPP` for listing and reading.
//!
//! Source: `corewalk::fs`.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::{
    Attr, DirSink, Errno, FileKind, FileSystem, Make, Name, Node, RenameMode, SetAttr, StatFs,
    Timespec,
};
use corewalk_base::RwLock;

use crate::corpus::{Corpus, ROOT};

/// A name in a directory.
type Place = (u64, Vec<u8>);

/// A read-only file system over a corpus, but for renames.
pub(crate) struct Index {
    corpus: Arc<Corpus>,
    /// Names that differ from the corpus: what they refer to, if anything.
    overlay: RwLock<HashMap<Place, Option<u64>>>,
}

impl Index {
    /// Returns the file system over `corpus`.
    pub(crate) fn new(corpus: &Arc<Corpus>) -> Index {
        Index { corpus: Arc::clone(corpus), overlay: RwLock::new(HashMap::new()) }
    }

    fn find(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let moved = self.overlay.read().get(&(parent, name.to_vec())).copied();
        moved.unwrap_or_else(|| self.corpus.child(parent, name))
    }

    fn attr(&self, ino: u64) -> Attr {
        let is_directory = self.corpus.is_directory(ino);
        plain_attr(ino, if is_directory { FileKind::Directory } else { FileKind::Regular })
    }
}

/// Returns the attributes of an empty file of root's, of which nothing is known but its kind.
pub(crate) fn plain_attr(ino: u64, kind: FileKind) -> Attr {
    let zero = Timespec::default();
    let (permissions, nlink) = if kind == FileKind::Directory { (0o755, 2) } else { (0o644, 1) };
    Attr {
        ino,
        generation: 0,
        mode: kind.to_mode() | permissions,
        nlink,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        has_acl: false,
    }
}

impl FileSystem for Index {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(self.attr(ROOT))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.find(dir.ino(), name.as_bytes()).map(|ino| self.attr(ino)).ok_or(Errno::NOENT)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(self.attr(node.ino()))
    }

    fn setattr(&self, _node: Node<'_>, _set: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    fn make(&self, _dir: Node<'_>, _name: Name<'_>, _what: &Make<'_>) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    fn remove(&self, _dir: Node<'_>, _name: Name<'_>, _node: Node<'_>) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let key = |place: (Node<'_>, Name<'_>)| (place.0.ino(), place.1.as_bytes().to_vec());
        let moved = self.find(from.0.ino(), from.1.as_bytes()).ok_or(Errno::NOENT)?;
        if mode == RenameMode::Exchange || self.find(to.0.ino(), to.1.as_bytes()).is_some() {
            return Err(Errno::ROFS);
        }
        let mut overlay = self.overlay.write();
        overlay.insert(key(from), None);
        overlay.insert(key(to), Some(moved));
        Ok(())
    }

    fn readdir(&self, _dir: Node<'_>, _cookie: u64, _sink: &mut DirSink<'_>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn read(
        &self,
        _node: Node<'_>,
        _handle: u64,
        _offset: u64,
        _buf: &mut [u8],
    ) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn write(
        &self,
        _node: Node<'_>,
        _handle: u64,
        _offset: u64,
        _bytes: &[u8],
    ) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs { bsize: 4096, namelen: 255, ..StatFs::default() })
    }
}
