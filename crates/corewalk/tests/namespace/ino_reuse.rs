//! Tests of inode numbers that the back end reuses.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, Cred, Errno, FileKind, FileSystem, Make, Node, Vfs};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

use crate::backends::{Call, Hook, HookedTmpfs};
use crate::fixtures::{name, over};

/// A back end that another machine changes: it removes the directory `d` with a file `x`, and makes
/// a directory `e` with another `x`. `e` gets the inode number of `d`, with the next generation.
struct OtherMachine {
    is_new: Arc<AtomicBool>,
    numbers: (u64, u64),
}

impl OtherMachine {
    fn is_new(&self) -> bool {
        // ORDERING: Relaxed. One thread.
        self.is_new.load(Ordering::Relaxed)
    }
}

impl Hook for OtherMachine {
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
        attr.with_ino(self.numbers.0).with_generation(attr.generation + 1)
    }
}

struct Reused {
    vfs: Arc<Vfs>,
    is_new: Arc<AtomicBool>,
    d: Attr,
    files: [u64; 2],
}

impl Reused {
    fn new() -> Reused {
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
        let vfs =
            over(HookedTmpfs::over(fs, OtherMachine { is_new: Arc::clone(&is_new), numbers }));
        Reused { vfs, is_new, d, files: [old, new] }
    }

    fn replace(&self) {
        // ORDERING: Relaxed. One thread.
        self.is_new.store(true, Ordering::Relaxed);
        self.vfs.invalidate(&self.vfs.root(), name("d")).unwrap();
    }

    fn look(&self, name: &[u8]) -> Result<u64, Errno> {
        look_by_ino(&self.vfs, self.vfs.root().ino(), name)
    }
}

fn look_by_ino(vfs: &Vfs, parent: u64, name: &[u8]) -> Result<u64, Errno> {
    vfs.lookup_by_ino(&Cred::root(), parent, name).map(|found| found.inode.into_lookups())
}

/// The number of a directory is reused with another generation. A lookup by that number must not
/// find names that were cached below the old directory. Traps T19 and P6 in `traps.md`.
#[test]
fn lookup_by_a_reused_number_finds_no_name_of_the_old_directory() {
    let reused = Reused::new();
    let (vfs, d, [old, new]) = (&reused.vfs, reused.d, reused.files);
    let cred = Cred::root();
    assert_eq!(reused.look(b"d"), Ok(d.ino));
    assert_eq!(look_by_ino(vfs, d.ino, b"x"), Ok(old));
    reused.replace();
    assert!(vfs.forget(d.ino, 1));
    assert_eq!(reused.look(b"d"), Err(Errno::NOENT));
    assert_eq!(reused.look(b"e"), Ok(d.ino));
    let inode = vfs.inode(d.ino).unwrap();
    assert_eq!(inode.generation(), d.generation + 1);
    assert_eq!(vfs.lookup(&cred, &inode, name("x")).map(|x| x.ino()), Ok(new), "by inode");
    assert_eq!(look_by_ino(vfs, d.ino, b"x"), Ok(new), "by number");
}

/// Two directories have the same reused inode number, and a client holds lookups of both. The
/// client's calls of `forget` name only the number. So `forget` must drop the lookups of the older
/// directory first. Traps P5 and P6 in `traps.md`.
#[test]
fn forget_drops_lookups_of_the_older_inode_first() {
    let reused = Reused::new();
    let (vfs, d) = (&reused.vfs, reused.d);
    assert_eq!((reused.look(b"d"), reused.look(b"d")), (Ok(d.ino), Ok(d.ino)));
    reused.replace();
    assert_eq!(reused.look(b"e"), Ok(d.ino));
    let inodes = || (vfs.prune(), vfs.stats().inodes).1;
    assert_eq!(inodes(), 3, "the root and both directories are not all in use");
    assert!(!vfs.forget(d.ino, 4), "forget accepted one lookup too many");
    assert_eq!(inodes(), 3);
    assert!(vfs.forget(d.ino, 2));
    assert_eq!(inodes(), 2, "the older inode was not dropped first");
    assert_eq!(vfs.inode(d.ino).map(|inode| inode.generation()), Ok(d.generation + 1));
    assert!(!vfs.forget(d.ino, 2));
    assert!(vfs.forget(d.ino, 1));
    assert_eq!((inodes(), vfs.inode(d.ino).err()), (1, Some(Errno::STALE)));
}

/// The lookups of a number may be spread over two inodes, so one `forget` may have to drop lookups
/// of both.
#[test]
fn older_inode_of_a_number_is_forgotten_without_the_newer_one() {
    let reused = Reused::new();
    let (vfs, d) = (&reused.vfs, reused.d);
    assert_eq!((reused.look(b"d"), reused.look(b"d")), (Ok(d.ino), Ok(d.ino)));
    reused.replace();
    let e = vfs.lookup(&Cred::root(), &vfs.root(), name("e")).unwrap();
    assert_eq!(e.ino(), d.ino);
    drop(e);
    vfs.prune();
    assert_eq!((vfs.stats().inodes, vfs.inode(d.ino).err()), (2, Some(Errno::STALE)));
    assert!(vfs.forget(d.ino, 1));
    assert_eq!(reused.look(b"e"), Ok(d.ino));
    assert!(vfs.forget(d.ino, 2), "one forget for both inodes failed");
    assert_eq!((vfs.prune(), vfs.stats().inodes).1, 1);
    assert_eq!(vfs.forget_all(d.ino), 0);
}

/// `forget_all` must drop the lookups of both inodes with a number, because the server's only
/// client is gone.
#[test]
fn forget_all_covers_both_inodes_of_a_number() {
    let reused = Reused::new();
    let (vfs, d) = (&reused.vfs, reused.d);
    assert_eq!((reused.look(b"d"), reused.look(b"d")), (Ok(d.ino), Ok(d.ino)));
    reused.replace();
    assert_eq!(reused.look(b"e"), Ok(d.ino));
    assert_eq!(vfs.forget_all(d.ino), 3);
    assert_eq!((vfs.prune(), vfs.stats().inodes).1, 1);
}
