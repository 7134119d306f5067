//! Inode numbers that a back end gives out again.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, Cred, Errno, FileKind, FileSystem, Make, Node, Vfs};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

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

/// A namespace over that, which shows `d` until `is_new` is set.
struct Again {
    vfs: Arc<Vfs>,
    is_new: Arc<AtomicBool>,
    d: Attr,
    /// The numbers of `d/x` and `e/x`.
    files: [u64; 2],
}

impl Again {
    fn new() -> Again {
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
        Again { vfs, is_new, d, files: [old, new] }
    }

    /// Puts `e` in the place of `d`.
    fn replace(&self) {
        // ORDERING: Relaxed. One thread.
        self.is_new.store(true, Ordering::Relaxed);
        self.vfs.invalidate(&self.vfs.root(), name("d")).unwrap();
    }

    /// Looks a name in the root up, as a client that holds the answer.
    fn look(&self, name: &[u8]) -> Result<u64, Errno> {
        self.vfs.lookup_number(&Cred::root(), self.vfs.root().ino(), name)
    }
}

/// A directory's number is used again: a lookup by that number must not find what was cached below
/// the directory that had it before.
/// Traps T19, P6: an inode number is another file with another generation, also to who looks up below it
/// by number.
#[test]
fn lookup_by_a_number_that_is_used_again_finds_nothing_of_the_old_directory() {
    let again = Again::new();
    let (vfs, d, [old, new]) = (&again.vfs, again.d, again.files);
    let cred = Cred::root();
    assert_eq!(again.look(b"d"), Ok(d.ino));
    assert_eq!(vfs.lookup_number(&cred, d.ino, b"x"), Ok(old));
    again.replace();
    assert!(vfs.forget(d.ino, 1));
    assert_eq!(again.look(b"d"), Err(Errno::NOENT));
    assert_eq!(again.look(b"e"), Ok(d.ino));
    let inode = vfs.inode(d.ino).unwrap();
    assert_eq!(inode.generation(), d.generation + 1);
    assert_eq!(vfs.lookup(&cred, &inode, name("x")).map(|x| x.ino()), Ok(new), "by inode");
    assert_eq!(vfs.lookup_number(&cred, d.ino, b"x"), Ok(new), "by number");
}

/// Traps P5, P6: a client holds both directories, and gives both back under the one number: what it
/// gives back of the older one must not be taken from the newer one.
#[test]
fn lookups_of_both_inodes_of_a_number_are_given_back_in_turn() {
    let again = Again::new();
    let (vfs, d) = (&again.vfs, again.d);
    assert_eq!((again.look(b"d"), again.look(b"d")), (Ok(d.ino), Ok(d.ino)));
    again.replace();
    assert_eq!(again.look(b"e"), Ok(d.ino));
    let inodes = || (vfs.prune(), vfs.stats().inodes).1;
    assert_eq!(inodes(), 3, "the root and both");
    assert!(!vfs.forget(d.ino, 4), "that is one too many");
    assert_eq!(inodes(), 3);
    assert!(vfs.forget(d.ino, 2));
    assert_eq!(inodes(), 2, "the older one goes");
    assert_eq!(vfs.inode(d.ino).map(|inode| inode.generation()), Ok(d.generation + 1));
    assert!(!vfs.forget(d.ino, 2));
    assert!(vfs.forget(d.ino, 1));
    assert_eq!((inodes(), vfs.inode(d.ino).err()), (1, Some(Errno::STALE)));
}

/// The newer inode may be let go of first, and one `forget` may be for both.
#[test]
fn older_inode_of_a_number_is_let_go_of_also_without_the_newer_one() {
    let again = Again::new();
    let (vfs, d) = (&again.vfs, again.d);
    assert_eq!((again.look(b"d"), again.look(b"d")), (Ok(d.ino), Ok(d.ino)));
    again.replace();
    let e = vfs.lookup(&Cred::root(), &vfs.root(), name("e")).unwrap();
    assert_eq!(e.ino(), d.ino);
    drop(e);
    vfs.prune();
    assert_eq!((vfs.stats().inodes, vfs.inode(d.ino).err()), (2, Some(Errno::STALE)));
    assert!(vfs.forget(d.ino, 1));
    assert_eq!(again.look(b"e"), Ok(d.ino));
    assert!(vfs.forget(d.ino, 2), "one of each");
    assert_eq!((vfs.prune(), vfs.stats().inodes).1, 1);
    assert_eq!(vfs.forget_all(d.ino), 0);
}

/// A server whose client has gone gives back what that held of both.
#[test]
fn all_lookups_of_a_number_are_those_of_both_inodes() {
    let again = Again::new();
    let (vfs, d) = (&again.vfs, again.d);
    assert_eq!((again.look(b"d"), again.look(b"d")), (Ok(d.ino), Ok(d.ino)));
    again.replace();
    assert_eq!(again.look(b"e"), Ok(d.ino));
    assert_eq!(vfs.forget_all(d.ino), 3);
    assert_eq!((vfs.prune(), vfs.stats().inodes).1, 1);
}
