//! Tests of operations on a mounted store with damaged records. Each operation on such a record
//! must fail, or be carried out in full.

use corewalk::{Errno, Fallocate, FileKind, FileSystem as _, Make, Name, Node, RenameMode};

use super::fixture::{extent, inode, named, options, rekeyed, store, uncountable, write};
use super::*;
use crate::layer::Record;
use crate::record::{BLOCKS_MAX, NUMBER_MAX, SuperRecord};
use crate::store::Store;

fn root() -> Node<'static> {
    Node::detached(ROOT_INO, FileKind::Directory)
}

fn dir() -> Node<'static> {
    Node::detached(2, FileKind::Directory)
}

fn file() -> Node<'static> {
    Node::detached(3, FileKind::Regular)
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn try_with(
    what: &str,
    change: impl FnOnce(&Snapshot, &Secret) -> Vec<(Key, Record)>,
    run: impl FnOnce(&Store),
    findings: &[Finding],
) {
    let path = store(what);
    write(&path, change);
    let opened = Store::open(&path, &options()).unwrap();
    run(&opened);
    opened.make(root(), name("after"), &Make::new(0o644, 0, 0)).unwrap();
    assert_eq!(opened.sync(), Ok(()), "{what}");
    drop(opened);
    let opened = Store::open(&path, &options()).unwrap();
    opened.lookup(root(), name("after")).unwrap();
    drop(opened);
    assert_eq!(fsck(&path).unwrap().findings, findings, "{what}");
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn directory_that_says_it_has_no_entries_loses_none() {
    let moves = [RenameMode::Replace, RenameMode::NoReplace];
    let of_dir = |store: &Store| {
        assert_eq!(store.remove(dir(), name("file"), file()), Err(Errno::IO));
        for mode in moves {
            let renamed = store.rename((dir(), name("file")), (root(), name("x")), mode);
            assert_eq!(renamed, Err(Errno::IO));
        }
        // The record of the directory `dir` wrongly says that it has 0 entries. So `remove` must
        // look for entries, and must not trust that count.
        assert_eq!(store.remove(root(), name("dir"), dir()), Err(Errno::IO));
        let other = store.make(root(), name("other"), &Make::new(0o040_755, 0, 0)).unwrap();
        let renamed = store.rename((root(), name("other")), (root(), name("dir")), moves[0]);
        assert_eq!(renamed, Err(Errno::IO));
        store.remove(root(), name("other"), Node::detached(other.ino, other.kind())).unwrap();
        store.forget(other.ino, other.generation);
        assert_eq!(store.lookup(dir(), name("file")).unwrap().ino, 3);
    };
    let size = inode(2, |dir| dir.size = 0);
    try_with("no-entries", size, of_dir, &[Finding::EntryCount(2, 0, 1)]);
    let of_root = |store: &Store| {
        store.remove(dir(), name("file"), file()).unwrap();
        store.forget(3, 0);
        assert_eq!(store.remove(root(), name("dir"), dir()), Err(Errno::IO));
    };
    let size = inode(1, |root| root.size = 0);
    try_with("no-entries-of-root", size, of_root, &[Finding::EntryCount(1, 1, 2)]);
}

#[test]
fn directory_that_counts_no_subdirectories_loses_none() {
    let run = |store: &Store| {
        store.remove(dir(), name("file"), file()).unwrap();
        store.forget(3, 0);
        // The root's stored count of subdirectories is wrongly 0, so a removal would make it
        // negative.
        store.rename((root(), name("dir")), (root(), name("x")), RenameMode::Replace).unwrap();
        assert_eq!(store.remove(root(), name("x"), dir()), Err(Errno::IO));
        let made = store.make(root(), name("sub"), &Make::new(0o040_755, 0, 0)).unwrap();
        let sub = Node::detached(made.ino, made.kind());
        store.rename((root(), name("x")), (sub, name("dir")), RenameMode::Replace).unwrap();
        // The stored count of subdirectories is still 0, so moving a subdirectory out of the root
        // would make it negative.
        let renamed = store.rename((root(), name("sub")), (dir(), name("x")), RenameMode::Replace);
        assert_eq!(
            (renamed, store.remove(root(), name("sub"), sub)),
            (Err(Errno::IO), Err(Errno::NOTEMPTY))
        );
        store.rename((sub, name("dir")), (root(), name("dir")), RenameMode::Replace).unwrap();
        store.remove(root(), name("sub"), sub).unwrap();
        store.forget(made.ino, made.generation);
    };
    let nlink = inode(1, |root| root.nlink = 2);
    try_with("no-subdirectories", nlink, run, &[Finding::Links(1, 2, 3)]);
}

#[test]
fn directory_that_has_as_many_as_can_be_counted_gets_no_more() {
    let run = |store: &Store| {
        let make = |mode| store.make(dir(), name("sub"), &Make::new(mode, 0, 0)).map(drop);
        assert_eq!((make(0o040_755), make(0o644)), (Err(Errno::MLINK), Ok(())));
        assert_eq!(store.stats().inodes, 4);
    };
    let nlink = inode(2, |dir| dir.nlink = u32::MAX);
    try_with("full", nlink, run, &[Finding::Links(2, u32::MAX, 2)]);
}

#[test]
fn entry_of_another_kind_than_its_inode_stays() {
    let run = |at: (Node<'static>, &'static str), node: Node<'static>| {
        move |store: &Store| {
            let at = (at.0, name(at.1));
            assert_eq!(store.remove(at.0, at.1, node), Err(Errno::IO));
            // `rename` may fail with `ENOTDIR` or `EISDIR` instead, because the two directory
            // entries have different types.
            let assert_fails = |from, to, mode| {
                let renamed = store.rename(from, to, mode);
                let is_refused =
                    [Errno::IO, Errno::NOTDIR, Errno::ISDIR].map(Err).contains(&renamed);
                assert!(is_refused, "{renamed:?}");
            };
            let there = (root(), name("other"));
            for mode in [RenameMode::Replace, RenameMode::NoReplace] {
                assert_fails(at, there, mode);
            }
            for mode in [0o644, 0o040_755] {
                let made = store.make(there.0, there.1, &Make::new(mode, 0, 0)).unwrap();
                for mode in [RenameMode::Replace, RenameMode::Exchange] {
                    assert_fails(there, at, mode);
                    assert_fails(at, there, mode);
                }
                store.remove(there.0, there.1, Node::detached(made.ino, made.kind())).unwrap();
                store.forget(made.ino, made.generation);
            }
            assert!(!store.stats().is_read_only);
        }
    };
    let file_as_directory = named(2, b"file", 3, FileKind::Directory);
    let findings = [Finding::OtherKind(2, 3), Finding::Links(2, 2, 3)];
    try_with("as-directory", file_as_directory, run((dir(), "file"), file()), &findings);
    let directory_as_file = named(1, b"dir", 2, FileKind::Regular);
    let findings = [Finding::OtherKind(1, 2), Finding::Links(1, 3, 2)];
    try_with("as-file", directory_as_file, run((root(), "dir"), dir()), &findings);
}

/// A record with an invalid number must be refused. A new number follows the largest used one, so
/// it could wrap around to the number of the root.
#[test]
fn numbers_that_nothing_has_are_refused() {
    for kind in [Kind::Orphan, Kind::Inode, Kind::XattrUsers] {
        for (number, minor) in [(0, 0), (u64::MAX, 0), (u64::MAX - 1, 0), (2, 1)] {
            let path = store("numbers");
            write(&path, rekeyed(kind, Key::at(kind, number, minor)));
            let before = std::fs::read(path.join("meta")).unwrap();
            let opened = Store::open(&path, &options()).map(drop);
            assert!(matches!(opened, Err(OpenError::Damaged)), "{kind:?} {number}: {opened:?}");
            assert!(std::fs::read(path.join("meta")).unwrap() == before);
            std::fs::remove_dir_all(&path).unwrap();
        }
        // Control: the largest valid number is no damage.
        let path = store("numbers");
        write(&path, rekeyed(kind, Key::of(kind, NUMBER_MAX)));
        let opened = Store::open(&path, &options()).unwrap();
        let made = opened.make(root(), name("new"), &Make::new(0o644, 0, 0)).map(|made| made.ino);
        // No inode number follows the largest one.
        let expected = if kind == Kind::Inode { Err(Errno::NOSPC) } else { Ok(4) };
        assert_eq!(made, expected);
        drop(opened);
        drop(Store::open(&path, &options()).unwrap());
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn blocks_and_generations_that_cannot_be_counted_are_refused() {
    for damage in 0..3 {
        let path = store("uncountable");
        write(&path, |snapshot, _| match damage {
            0 => uncountable(),
            1 => {
                let superblock =
                    SuperRecord { generation: u64::MAX, ..read_super(snapshot).unwrap() };
                vec![(Key::SUPER, Some(superblock.encode().into()))]
            }
            _ => uncountable().split_off(8_192),
        });
        let opened = Store::open(&path, &options()).map(drop);
        assert!(matches!(opened, Err(OpenError::Damaged)), "{damage}: {opened:?}");
        std::fs::remove_dir_all(&path).unwrap();
    }
}

/// A store with overlapping extents must be refused. If one of the extents were freed, another file
/// would get blocks that are in use.
#[test]
fn blocks_that_are_used_twice_are_refused() {
    for (first, second, block) in [((5, 1), (5, 1), 5), ((5, 4), (6, 1), 6), ((5, 2), (6, 9), 6)] {
        let path = store("used-twice");
        write(&path, |_, _| vec![extent(0, first.0, first.1), extent(4, second.0, second.1)]);
        let before = std::fs::read(path.join("meta")).unwrap();
        let opened = Store::open(&path, &options()).map(drop);
        assert!(
            matches!(opened, Err(OpenError::UsedTwice { block: said }) if said == block),
            "{opened:?}"
        );
        assert!(std::fs::read(path.join("meta")).unwrap() == before);
        assert!(fsck(&path).unwrap().findings.contains(&Finding::Overlap(3, block)));
        std::fs::remove_dir_all(&path).unwrap();
    }
    // Control: extents that do not overlap must be accepted.
    let path = store("used-twice");
    write(&path, |_, _| vec![extent(0, 0, 1), extent(4, 1, 1)]);
    drop(Store::open(&path, &options()).unwrap());
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn file_or_directory_that_cannot_be_counted_is_eio() {
    let far = Extent { physical: 9, len: 1, is_written: false };
    let run = |store: &Store| {
        let insert = store.fallocate(file(), 0, 4096, Fallocate::INSERT_RANGE);
        assert_eq!((insert, store.read(file(), 0, &mut [0])), (Err(Errno::IO), Err(Errno::IO)));
    };
    for logical in [u64::MAX, u64::MAX - 1, 4 * BLOCKS_MAX] {
        let change = |_: &Snapshot, _: &Secret| {
            vec![(Key::at(Kind::Extent, 3, logical), Some(far.encode().into()))]
        };
        let finding = Finding::Unreadable(Kind::Extent as u8, 3, logical);
        try_with("far", change, run, &[finding]);
    }
    let path = store("entries");
    write(&path, inode(2, |dir| dir.size = i64::MAX as u64));
    let opened = Store::open(&path, &options()).unwrap();
    assert_eq!(opened.lookup(root(), name("dir")), Err(Errno::IO));
    opened.make(root(), name("after"), &Make::new(0o644, 0, 0)).unwrap();
    drop(opened);
    std::fs::remove_dir_all(&path).unwrap();
}
