//! A store that was written by the program of format version 1: this one reads it, and makes it its own.
//!
//! `version1.bin` is what commit 5ef7623 has left of a store after it was closed, the database and the data one
//! after the other: its length in 8 bytes, then pieces, each of which says in 4 bytes how many bytes follow, in 4 how
//! often the last one, which is a byte, comes after those, until one says never.

use corewalk::{FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_store::{Store, StoreOptions, fsck_devices};

use crate::differential::tree;
use crate::memory::{Disks, quiet};

const PACKED: &[u8] = include_bytes!("version1.bin");

/// Takes what a file had from the beginning of `packed`.
fn unpack(packed: &mut &[u8]) -> Vec<u8> {
    fn take<'a>(packed: &mut &'a [u8], len: usize) -> &'a [u8] {
        packed.split_off(..len).unwrap()
    }
    let number = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let len = number(take(packed, 8));
    let mut out = Vec::with_capacity(len);
    loop {
        let (bytes, times) = (number(take(packed, 4)), number(take(packed, 4)));
        let byte = take(packed, 1)[0];
        out.extend_from_slice(take(packed, bytes));
        out.resize(out.len() + times, byte);
        if times == 0 {
            assert_eq!(out.len(), len);
            return out;
        }
    }
}

fn disks() -> Disks {
    let mut packed = PACKED;
    let (meta, data) = (unpack(&mut packed), unpack(&mut packed));
    assert!(packed.is_empty());
    Disks::with([meta, data, Vec::new(), Vec::new()])
}

fn find(store: &Store, dir: Node<'_>, name: &str) -> Node<'static> {
    let found = store.lookup(dir, Name::new(name.as_bytes()).unwrap()).unwrap();
    Node::detached(found.ino, found.kind())
}

/// Checks that all is there that the program of then has put there.
fn check(store: &Store) {
    let root = Node::detached(1, FileKind::Directory);
    let (dir, short) = (find(store, root, "dir"), find(store, root, "short"));
    let long = find(store, dir, "long");
    let attr = store.getattr(dir).unwrap();
    assert_eq!((attr.mode, attr.uid, attr.gid), (0o040_750, 1000, 100));
    let attr = store.getattr(short).unwrap();
    assert_eq!((attr.size, attr.nlink, attr.mode), (12, 2, 0o100_644));
    assert_eq!(find(store, dir, "linked").ino(), short.ino());
    let mut bytes = [0; 20];
    assert_eq!(store.read(short, 0, 0, &mut bytes), Ok(12));
    assert_eq!(&bytes[..12], b"of version 1");
    let mut bytes = vec![1; 20_000];
    assert_eq!(store.read(long, 0, 0, &mut bytes), Ok(15_000));
    assert!(bytes[..5_000].iter().all(|&byte| byte == 0));
    assert!(bytes[5_000..15_000].iter().all(|&byte| byte == 7));
    // Blocks behind the end, too.
    assert_eq!(store.getattr(long).unwrap().blocks, 5 * 8);
    assert_eq!(store.readlink(find(store, root, "link")).as_deref(), Ok(&b"dir/long"[..]));
    assert_eq!(find(store, dir, "socket").kind(), FileKind::Socket);
    assert_eq!(store.getxattr(short, b"user.a").as_deref(), Ok(&b"1"[..]));
    for file in [short, long] {
        assert_eq!(store.getxattr(file, b"user.long").as_deref(), Ok(&[5; 2_000][..]));
    }
    for name in ["shares0", "shares1", "shares2"] {
        let file = find(store, dir, name);
        assert_eq!(store.getxattr(file, b"user.long").as_deref(), Ok(&[9; 3_000][..]));
    }
}

#[test]
fn store_of_version_1_is_mounted_with_all_that_it_has() {
    let disks = disks();
    let store = disks.open(&quiet());
    check(&store);
    let stats = store.stats();
    assert_eq!((stats.inodes, stats.xattr_blocks, stats.xattr_users), (9, 3, 5));
    // A long set of then is found by an equal one of now, though it has another hash.
    let root = Node::detached(1, FileKind::Directory);
    let made = store.make(root, Name::new(b"new").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    let new = Node::detached(made.ino, FileKind::Regular);
    store.setxattr(new, b"user.long", &[9; 3_000], XattrMode::Set).unwrap();
    store.fsync(new, 0, false).unwrap();
    let stats = store.stats();
    assert_eq!((stats.xattr_blocks, stats.xattr_users, stats.logged_commits), (3, 6, 1));
    let expected = tree(&store);
    // From now on it has a log, which is read.
    let killed = disks.killed();
    assert_eq!(fsck_devices(&killed.devices()).unwrap().findings, []);
    let again = killed.open(&quiet());
    check(&again);
    assert!(tree(&again) == expected);
}

#[test]
fn check_of_a_store_of_version_1_finds_nothing() {
    let disks = disks();
    let report = fsck_devices(&disks.devices()).unwrap();
    assert_eq!((report.findings, report.inodes, report.xattr_blocks), (vec![], 9, 3));
    check(&disks.open(&StoreOptions { log_bytes: 0, ..quiet() }));
}
