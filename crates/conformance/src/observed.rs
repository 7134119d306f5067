//! A layer over a back end that counts two events for each inode: it enters the cache, and the
//! cache forgets it.
//!
//! The layer passes on only the calls that the check `forget` makes. Only one thread may use the
//! layer, because an inode that enters the cache while another thread forgets it would be counted
//! wrongly.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::{
    Addressing, Attr, DirSink, Errno, FileSystem, Make, Name, Node, RenameMode, SetAttr, StatFs,
};
use corewalk_base::Mutex;

/// How often an inode number entered the cache, and was forgotten.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    entered: u64,
    forgotten: u64,
}

/// The layer.
pub(crate) struct Observed {
    fs: Arc<dyn FileSystem>,
    /// Protected by its own mutex.
    counts: Mutex<HashMap<u64, Count>>,
}

impl Observed {
    pub(crate) fn over(fs: Arc<dyn FileSystem>) -> Arc<Observed> {
        Arc::new(Observed { fs, counts: Mutex::new(HashMap::new()) })
    }

    /// Returns the number of each inode, how often it entered the cache, and how often it was
    /// forgotten.
    pub(crate) fn counts(&self) -> Vec<(u64, u64, u64)> {
        let counts = self.counts.lock();
        counts.iter().map(|(ino, count)| (*ino, count.entered, count.forgotten)).collect()
    }

    /// Counts an inode that the cache gets from the back end. If the cache already has this inode,
    /// does not count it again.
    fn enter(&self, attr: Result<Attr, Errno>) -> Result<Attr, Errno> {
        let attr = attr?;
        let mut counts = self.counts.lock();
        let count = counts.entry(attr.ino).or_default();
        if count.entered == count.forgotten {
            count.entered += 1;
        }
        Ok(attr)
    }
}

impl FileSystem for Observed {
    fn addressing(&self) -> Addressing {
        self.fs.addressing()
    }

    fn root(&self) -> Result<Attr, Errno> {
        self.enter(self.fs.root())
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.enter(self.fs.lookup(dir, name))
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.fs.getattr(node)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.fs.setattr(node, set)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.enter(self.fs.make(dir, name, what))
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.fs.remove(dir, name, node)
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.fs.rename(from, to, mode)
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.fs.readdir(dir, cookie, sink)
    }

    fn read(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.fs.read(node, handle, offset, buf)
    }

    fn write(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.fs.write(node, handle, offset, bytes)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.fs.link(node, dir, name)
    }

    fn open(&self, node: Node<'_>, flags: u32) -> Result<u64, Errno> {
        self.fs.open(node, flags)
    }

    fn has_open_state(&self) -> bool {
        self.fs.has_open_state()
    }

    fn release(&self, node: Node<'_>, handle: u64) {
        self.fs.release(node, handle);
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.fs.statfs()
    }

    fn forget(&self, ino: u64) {
        self.counts.lock().entry(ino).or_default().forgotten += 1;
        self.fs.forget(ino);
    }
}
