//! Inode numbers that a back end gives out again.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::{
    Attr, Cred, DirSink, Errno, FileSystem, Make, Name, Node, RenameMode, SetAttr, StatFs, Timespec,
};
use corewalk_sync::primitives::atomic::{AtomicBool, Ordering};

use crate::fixtures::{name, over};

/// Another machine removes `d` (number 5) with `x` (6) in it, and makes `e`, which gets the number 5
/// again with the next generation, with another `x` (7) in it.
struct Elsewhere(Arc<AtomicBool>);

fn attr(ino: u64, generation: u64, mode: u32) -> Attr {
    let time = Timespec::default();
    Attr {
        ino,
        generation,
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        has_acl: false,
    }
}

impl FileSystem for Elsewhere {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(attr(1, 0, S_IFDIR | 0o755))
    }
    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        // ORDERING: Relaxed. One thread.
        let is_new = self.0.load(Ordering::Relaxed);
        match (dir.ino(), name.as_bytes(), is_new) {
            (1, b"d", false) => Ok(attr(5, 1, S_IFDIR | 0o755)),
            (1, b"e", true) => Ok(attr(5, 2, S_IFDIR | 0o755)),
            (5, b"x", false) => Ok(attr(6, 1, S_IFREG | 0o644)),
            (5, b"x", true) => Ok(attr(7, 1, S_IFREG | 0o644)),
            _ => Err(Errno::NOENT),
        }
    }
    fn getattr(&self, _: Node<'_>) -> Result<Attr, Errno> {
        Err(Errno::IO)
    }
    fn setattr(&self, _: Node<'_>, _: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::IO)
    }
    fn make(&self, _: Node<'_>, _: Name<'_>, _: &Make<'_>) -> Result<Attr, Errno> {
        Err(Errno::IO)
    }
    fn remove(&self, _: Node<'_>, _: Name<'_>, _: Node<'_>) -> Result<(), Errno> {
        Err(Errno::IO)
    }
    fn rename(
        &self,
        _: (Node<'_>, Name<'_>),
        _: (Node<'_>, Name<'_>),
        _: RenameMode,
    ) -> Result<(), Errno> {
        Err(Errno::IO)
    }
    fn readdir(&self, _: Node<'_>, _: u64, _: &mut DirSink<'_>) -> Result<(), Errno> {
        Ok(())
    }
    fn read(&self, _: Node<'_>, _: u64, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
    fn write(&self, _: Node<'_>, _: u64, _: u64, _: &[u8]) -> Result<usize, Errno> {
        Err(Errno::IO)
    }
    fn statfs(&self) -> Result<StatFs, Errno> {
        Err(Errno::IO)
    }
}

/// A directory's number is used again: a lookup by that number must not find what was cached below
/// the directory that had it before.
/// Traps T19, P6: an inode number is another file with another generation, also to who looks up below it
/// by number.
#[test]
fn lookup_by_a_number_that_is_used_again_finds_nothing_of_the_old_directory() {
    let is_new = Arc::new(AtomicBool::new(false));
    let vfs = over(Elsewhere(Arc::clone(&is_new)));
    let cred = Cred::root();
    assert_eq!(vfs.lookup_number(&cred, 1, b"d"), Ok(5));
    assert_eq!(vfs.lookup_number(&cred, 5, b"x"), Ok(6));
    // ORDERING: Relaxed. One thread.
    is_new.store(true, Ordering::Relaxed);
    vfs.invalidate(&vfs.root(), name("d")).unwrap();
    assert!(vfs.forget(5, 1));
    assert_eq!(vfs.lookup_number(&cred, 1, b"d"), Err(Errno::NOENT));
    assert_eq!(vfs.lookup_number(&cred, 1, b"e"), Ok(5));
    let inode = vfs.inode(5).unwrap();
    assert_eq!(inode.generation(), 2);
    assert_eq!(vfs.lookup(&cred, &inode, name("x")).map(|x| x.ino()), Ok(7), "by inode");
    assert_eq!(vfs.lookup_number(&cred, 5, b"x"), Ok(7), "by number");
}
