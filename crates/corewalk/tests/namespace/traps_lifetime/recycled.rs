//! A tmpfs that uses inode numbers again as soon as it may.

use std::collections::HashMap;
use std::ops::ControlFlow;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Attr, DirEntry, DirSink, Errno, FileSystem, Make, Name, Node, RenameMode, SetAttr, StatFs,
};
use corewalk_sync::Mutex;

/// The back end. A number is free when its inode is gone and forgotten; the next inode gets it, with
/// the next generation. This is what most disk file systems do.
pub(super) struct Recycled {
    inner: Tmpfs,
    numbers: Mutex<Numbers>,
}

/// Which inode of the tmpfs has which number.
#[derive(Default)]
struct Numbers {
    /// By number: the inode and the generation.
    slots: Vec<(u64, u64)>,
    numbers: HashMap<u64, usize>,
    free: Vec<usize>,
}

impl Recycled {
    pub(super) fn new() -> Recycled {
        Recycled { inner: Tmpfs::new(TmpfsOptions::default()), numbers: Mutex::default() }
    }

    /// Returns `attr` with the number that the inode has here.
    fn outside(&self, attr: Attr) -> Attr {
        let mut numbers = self.numbers.lock();
        let slot = match numbers.numbers.get(&attr.ino) {
            Some(slot) => *slot,
            None => {
                let slot = numbers.free.pop().unwrap_or(numbers.slots.len());
                if slot == numbers.slots.len() {
                    numbers.slots.push((0, 0));
                }
                numbers.slots[slot] = (attr.ino, numbers.slots[slot].1 + 1);
                numbers.numbers.insert(attr.ino, slot);
                slot
            }
        };
        Attr { ino: slot as u64 + 1, generation: numbers.slots[slot].1, ..attr }
    }

    fn inside(&self, node: Node<'_>) -> Node<'static> {
        let ino = self.numbers.lock().slots[node.ino() as usize - 1].0;
        Node::detached(ino, node.kind())
    }
}

impl FileSystem for Recycled {
    fn root(&self) -> Result<Attr, Errno> {
        self.inner.root().map(|attr| self.outside(attr))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.inner.lookup(self.inside(dir), name).map(|attr| self.outside(attr))
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.inner.getattr(self.inside(node)).map(|attr| self.outside(attr))
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.inner.setattr(self.inside(node), set).map(|attr| self.outside(attr))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inner.make(self.inside(dir), name, what).map(|attr| self.outside(attr))
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.inner.remove(self.inside(dir), name, self.inside(node))
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.inner.rename((self.inside(from.0), from.1), (self.inside(to.0), to.1), mode)
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.inner.readdir(self.inside(dir), cookie, &mut |entry| {
            let attr = self.inner.getattr(Node::detached(entry.ino, entry.kind));
            // An entry that has just been removed has no number to report.
            match attr.map(|attr| self.outside(attr)) {
                Ok(attr) => sink(DirEntry { ino: attr.ino, ..entry }),
                Err(_) => ControlFlow::Continue(()),
            }
        })
    }

    fn read(&self, node: Node<'_>, handle: u64, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.inner.read(self.inside(node), handle, at, buf)
    }

    fn write(&self, node: Node<'_>, handle: u64, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.inner.write(self.inside(node), handle, at, bytes)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.inner.statfs()
    }

    fn forget(&self, ino: u64) {
        let slot = ino as usize - 1;
        let inner = self.numbers.lock().slots[slot].0;
        self.inner.forget(inner);
        if self.inner.getattr(Node::detached(inner, corewalk::FileKind::Regular)).is_err() {
            let mut numbers = self.numbers.lock();
            numbers.numbers.remove(&inner);
            numbers.free.push(slot);
        }
    }
}
