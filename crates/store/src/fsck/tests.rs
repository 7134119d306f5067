//! Tests of the findings of `fsck` for each kind of damage. A store without damage must have no
//! findings.

use corewalk::{FileSystem as _, Make, Node, XattrMode};

use super::fixture::{database_of, extent, found, inode, named, rekeyed, store, uncountable};
use super::*;
use crate::record::{Entry, SuperRecord};
use crate::store::{Store, StoreOptions};

#[test]
fn each_kind_of_damage_is_found() {
    use Finding::*;
    let file = |change: fn(&mut InodeRecord)| inode(3, change);
    assert_eq!(found("links", file(|inode| inode.nlink = 2)), [Links(3, 2, 1)]);
    assert_eq!(found("blocks", file(|inode| inode.blocks = 3)), [BlockCount(3, 3, 2)]);
    assert_eq!(found("size", file(|inode| inode.size = 10)), [BehindSize(3, 0)]);
    assert_eq!(found("acl", file(|inode| inode.has_acl = true)), [AclFlag(3)]);
    let of_directory = found("kind", |_, _| {
        let extent = Extent { physical: 5, len: 1, is_written: false };
        vec![(Key::at(Kind::Extent, 2, 0), Some(extent.encode().into()))]
    });
    assert_eq!(of_directory, [BlockCount(2, 0, 1), Stray(2)]);
    assert_eq!(found("users", file(|inode| inode.xattr = 0)), [Users(1, 1, 0)]);
    assert_eq!(found("count", inode(2, |inode| inode.size = 2)), [EntryCount(2, 2, 1)]);
    assert_eq!(found("dirs", inode(1, |inode| inode.nlink = 2)), [Links(1, 2, 3)]);
    let got = found("orphan", |_, _| vec![(Key::of(Kind::Orphan, 3), Some([].into()))]);
    assert_eq!(got, [Orphan(3)]);
    let got = found("stray", |_, _| vec![(Key::of(Kind::Orphan, 9), Some([].into()))]);
    assert_eq!(got, [Stray(9)]);
    let got = found("gone", |_, _| vec![(Key::of(Kind::Inode, 3), None)]);
    assert!(got.contains(&NoInode(2, 3)) && got.contains(&Stray(3)), "{got:?}");
    let got = found("root", |_, _| vec![(Key::of(Kind::Inode, 1), None)]);
    assert!(got.contains(&NoRoot), "{got:?}");
    let got = found("parse", |_, _| vec![(Key::of(Kind::Inode, 3), Some([1].into()))]);
    assert!(got.contains(&Unreadable(Kind::Inode as u8, 3, 0)), "{got:?}");
    for (number, minor) in [(0, 0), (u64::MAX, 0), ((1 << 62) + 1, 0), (2, 1)] {
        for kind in [Kind::Orphan, Kind::Inode, Kind::XattrUsers, Kind::Xattr] {
            let got = found("number", rekeyed(kind, Key::at(kind, number, minor)));
            assert!(got.contains(&Unreadable(kind as u8, number, minor)), "{got:?}");
        }
    }
    let set = found("set", |_, _| vec![(Key::of(Kind::Xattr, 1), Some([1].into()))]);
    assert_eq!(set, [Attributes(1)]);
    let got = found("mode", |snapshot, secret| {
        let acl = corewalk::acl::Acl::from_mode(0o600);
        let set = xattr::with_acl(&[], AclKind::Access, Some(&acl));
        let (hash, len) = (secret.hash(&set), set.len() as u32);
        let users = UsersRecord { hash, users: 1, len }.encode();
        let mut records = inode(3, |inode| inode.has_acl = true)(snapshot, secret);
        records.push((Key::of(Kind::XattrUsers, 1), Some(users.into())));
        records.push((Key::of(Kind::Xattr, 1), Some(set.into())));
        records
    });
    assert_eq!(got, [AclMode(3)]);
    let got = found("behind", |_, _| vec![extent(0, 1 << 40, 2)]);
    assert_eq!(got, [BehindDevice(3, 1 << 40)]);
    let got = found("twice", |_, _| vec![extent(0, 5, 1), extent(1, 5, 1)]);
    assert_eq!(got, [Overlap(3, 5)]);
    let got = found("overlap", |_, _| vec![extent(0, 5, 2), extent(1, 9, 1)]);
    assert_eq!(got, [LogicalOverlap(3, 1), BlockCount(3, 2, 3)]);
}

#[test]
fn damaged_acls_are_found() {
    use Finding::*;
    let of_directory = |kind: AclKind, bytes: Vec<u8>| {
        move |snapshot: &Snapshot, secret: &Secret| {
            let set = xattr::with(&[], xattr::acl_name(kind), Some(&bytes));
            let users = UsersRecord { hash: secret.hash(&set), users: 1, len: set.len() as u32 };
            let change = |dir: &mut InodeRecord| {
                dir.xattr = 2;
                dir.has_acl = kind == AclKind::Access;
            };
            let mut records = inode(2, change)(snapshot, secret);
            records.push((Key::of(Kind::XattrUsers, 2), Some(users.encode().into())));
            records.push((Key::of(Kind::Xattr, 2), Some(set.into())));
            records
        }
    };
    let whole = corewalk::acl::Acl::from_mode(0o750).to_xattr();
    let cut = whole[..whole.len() - 1].to_vec();
    assert_eq!(found("default", of_directory(AclKind::Default, whole)), []);
    let unreadable = Unreadable(Kind::Xattr as u8, 2, 0);
    assert_eq!(found("default-cut", of_directory(AclKind::Default, cut.clone())), [unreadable]);
    let got = found("access-cut", of_directory(AclKind::Access, cut));
    assert_eq!(got, [unreadable, AclFlag(2)]);
}

#[test]
fn targets_with_wrong_lengths_are_found() {
    use Finding::*;
    let file_as = |mode: u32, size: u64, target: &'static [u8]| {
        move |snapshot: &Snapshot, secret: &Secret| {
            let change = |inode: &mut InodeRecord| (inode.mode, inode.size) = (mode, size);
            let mut records = inode(3, change)(snapshot, secret);
            let (record, _) = InodeRecord::decode(records[0].1.as_ref().unwrap()).unwrap();
            let record = InodeRecord { blocks: 0, xattr: 0, ..record };
            let mut value = Vec::new();
            record.encode(target, &mut value);
            records[0].1 = Some(value.into());
            let kind = FileKind::from_mode(mode).unwrap();
            records.extend(named(2, b"file", 3, kind)(snapshot, secret));
            records.push((Key::of(Kind::XattrUsers, 1), None));
            records.push((Key::of(Kind::Xattr, 1), None));
            each(snapshot, Kind::Extent, &mut |key, _| {
                records.push((key, None));
                Ok(())
            })
            .unwrap();
            records
        }
    };
    let symlink = 0o120_777;
    assert_eq!(found("target", file_as(symlink, 6, b"target")), []);
    for size in [0, 5, 7] {
        assert_eq!(found("target", file_as(symlink, size, b"target")), [Target(3)]);
    }
    assert_eq!(found("target", file_as(symlink, 6, b"")), [Target(3)]);
    assert_eq!(found("no-target", file_as(0o100_644, 6, b"")), []);
    assert_eq!(found("no-target", file_as(0o100_644, 6, b"target")), [Target(3)]);
}

#[test]
fn numbers_that_overflow_are_found() {
    use Finding::*;
    let got = found("sum", |_, _| uncountable());
    assert!(got.contains(&BlockCount(3, 2, u64::MAX)), "{got:?}");
    for logical in [u64::MAX, u64::MAX - 1, 1 << 53] {
        let far = |_: &Snapshot, _: &Secret| vec![extent(logical, 9, 1)];
        assert_eq!(found("far", far), [Unreadable(Kind::Extent as u8, 3, logical)]);
    }
    let got = found("entries", inode(2, |dir| dir.size = i64::MAX as u64));
    assert!(got.contains(&Unreadable(Kind::Inode as u8, 2, 0)), "{got:?}");
    let generation = |snapshot: &Snapshot, _: &Secret| {
        let superblock = SuperRecord { generation: u64::MAX, ..read_super(snapshot).unwrap() };
        vec![(Key::SUPER, Some(superblock.encode().into()))]
    };
    assert_eq!(found("generation", generation), [Database]);
}

#[test]
fn wrong_names_are_found() {
    use Finding::*;
    let got = found("kind", named(2, b"file", 3, FileKind::Fifo));
    assert_eq!(got, [OtherKind(2, 3)]);
    let got = found("loop", named(2, b"up", 2, FileKind::Directory));
    assert!(got.contains(&SeveralNames(2)), "{got:?}");
    let got = found("misplaced", |_, _| {
        let mut out = Vec::new();
        Entry { slot: 0, kind: FileKind::Regular, ino: 3, name: b"x" }.encode(&mut out);
        vec![(Key::at(Kind::Name, 2, 77), Some(out.into()))]
    });
    assert!(got.contains(&Misplaced(2, 77)) && got.contains(&Links(3, 1, 2)), "{got:?}");
    let got = found("lost", |_, secret| {
        let hash = hash_of_name(Name::new(b"dir").unwrap(), secret);
        vec![(Key::at(Kind::Name, 1, hash), None)]
    });
    assert!(got.contains(&Unreachable(2)) && got.contains(&Unreachable(3)), "{got:?}");
}

/// The space of an attribute block must be freed only once, even if the stored count of its users
/// is too small.
#[test]
fn damaged_count_of_users_gives_no_room_twice() {
    let path = store("twice-left");
    let size_bytes = Some(64 << 10);
    let options = StoreOptions { log_bytes: 64 << 10, size_bytes, ..StoreOptions::default() };
    let root = Node::detached(1, FileKind::Directory);
    let file = Node::detached(3, FileKind::Regular);
    let opened = Store::open(&path, &options).unwrap();
    // Loading the block enters it into the index, so that other inodes can share it.
    opened.getxattr(file, b"user.a").unwrap();
    let others = [b"n0", b"n1", b"n2"].map(|name| {
        let made = opened.make(root, Name::new(name).unwrap(), &Make::new(0o644, 0, 0));
        let node = Node::detached(made.unwrap().ino, FileKind::Regular);
        opened.setxattr(node, b"user.a", b"1", XattrMode::Set).unwrap();
        node
    });
    drop(opened);
    let (_, database) = database_of(&path);
    let key = Key::of(Kind::XattrUsers, 1);
    let users = database.snapshot().unwrap().get(&key).unwrap().unwrap();
    let users = UsersRecord::decode(&users).unwrap();
    assert_eq!(users.users, 4);
    let users = UsersRecord { users: 1, ..users }.encode();
    database.write(&[(key, Some(users.into()))]).unwrap();
    drop(database);
    let opened = Store::open(&path, &options).unwrap();
    for node in [file, others[0], others[1], others[2]] {
        opened.setxattr(node, b"user.a", b"1", XattrMode::Set).unwrap();
    }
    let before = opened.space.used();
    opened.removexattr(file, b"user.a").unwrap();
    assert_eq!(opened.space.used(), before - 1);
    opened.removexattr(others[0], b"user.a").unwrap();
    opened.remove(root, Name::new(b"n1").unwrap(), others[1]).unwrap();
    opened.forget(others[1].ino(), 0);
    assert_eq!(opened.setxattr(others[2], b"user.a", b"2", XattrMode::Set), Err(Errno::IO));
    assert_eq!((opened.space.used(), opened.stats().is_read_only), (before - 1, false));
    drop(opened);
    std::fs::remove_dir_all(&path).unwrap();
}

#[test]
fn unknown_version_is_refused() {
    let path = store("version");
    for version in [1, 3] {
        let (_, database) = database_of(&path);
        let other = SuperRecord { version, seed: 0, generation: 0, log_bytes: 0 };
        database.write(&[(Key::SUPER, Some(other.encode().into()))]).unwrap();
        drop(database);
        let is_refused = |error| matches!(error, OpenError::Version(known) if known == version);
        assert!(fsck(&path).is_err_and(is_refused));
        assert!(Store::open(&path, &StoreOptions::default()).is_err_and(is_refused));
    }
    std::fs::remove_dir_all(&path).unwrap();
}
