//! Inode numbers that a back end gives out again.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, Cred, Errno, FileKind, FileSystem, Make, Node};
use corewalk_sync::primitives::atomic::{AtomicBool, Ordering};

use crate::backends::{Call, Meddle, Meddled};
use crate::fixtures::{name, over};

/// Another machine removes `d` with `x` in it, and makes `e`, which gets the number of `d` with the next
/// generation, with another `x` in it.
struct Elsewhere {
    is_new: Arc<AtomicBool>,
    /// The number of `d`, which both are shown under, and that of `e` in the tmpfs.
    numbers: (u64, u64),
}

impl Elsewhere {
    fn is_new(&self) -> bool {
        // ORDERING: Relaxed. One thread.
        self.is_new.load(Ordering::Relaxed)
    }
}

impl Meddle for Elsewhere {
    fn at(&self, _: &Tmpfs, call: Call<'_>) -> Result<(), Errno> {
        match (call, self.is_new()) {
            (Call::Lookup(b"d"), true) | (Call::Lookup(b"e"), false) => Err(Errno::NOENT),
            _ => Ok(()),
        }
    }

    fn inside(&self, ino: u64) -> u64 {
        if ino == self.numbers.0 && self.is_new() { self.numbers.1 } else { ino }
    }

    fn outside(&self, attr: Attr) -> Attr {
        if attr.ino != self.numbers.1 {
            return attr;
        }
        Attr { ino: self.numbers.0, generation: attr.generation + 1, ..attr }
    }
}

/// A directory's number is used again: a lookup by that number must not find what was cached below
/// the directory that had it before.
/// Traps T19, P6: an inode number is another file with another generation, also to who looks up below it
/// by number.
#[test]
fn lookup_by_a_number_that_is_used_again_finds_nothing_of_the_old_directory() {
    let fs = Tmpfs::new(TmpfsOptions::default());
    let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
    let made = ["d", "e"].map(|dir| {
        let attr = fs.make(root, name(dir), &Make::new(S_IFDIR | 0o755, 0, 0)).unwrap();
        let dir = Node::detached(attr.ino, FileKind::Directory);
        let file = fs.make(dir, name("x"), &Make::new(S_IFREG | 0o644, 0, 0)).unwrap();
        (attr, file.ino)
    });
    let [(d, old), (e, new)] = made;
    assert_eq!(d.generation, e.generation);
    let is_new = Arc::new(AtomicBool::new(false));
    let numbers = (d.ino, e.ino);
    let vfs = over(Meddled::over(fs, Elsewhere { is_new: Arc::clone(&is_new), numbers }));
    let (cred, top) = (Cred::root(), root.ino());
    assert_eq!(vfs.lookup_number(&cred, top, b"d"), Ok(d.ino));
    assert_eq!(vfs.lookup_number(&cred, d.ino, b"x"), Ok(old));
    // ORDERING: Relaxed. One thread.
    is_new.store(true, Ordering::Relaxed);
    vfs.invalidate(&vfs.root(), name("d")).unwrap();
    assert!(vfs.forget(d.ino, 1));
    assert_eq!(vfs.lookup_number(&cred, top, b"d"), Err(Errno::NOENT));
    assert_eq!(vfs.lookup_number(&cred, top, b"e"), Ok(d.ino));
    let inode = vfs.inode(d.ino).unwrap();
    assert_eq!(inode.generation(), d.generation + 1);
    assert_eq!(vfs.lookup(&cred, &inode, name("x")).map(|x| x.ino()), Ok(new), "by inode");
    assert_eq!(vfs.lookup_number(&cred, d.ino, b"x"), Ok(new), "by number");
}
