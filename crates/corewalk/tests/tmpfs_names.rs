//! Tests of names in a tmpfs: every operation must have the right effect on links, times and other
//! names.
//!
//! Most tests make single calls, and compare the results with the rules of POSIX. A property test
//! compares random operations with a map. Stress tests of renames look for deadlocks and lost
//! links.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use corewalk::acl::{Acl, Entry, Tag};
use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    AclKind, Attr, Errno, FileKind, FileSystem, Make, Name, Node, RenameMode, SetAttr, SetTime,
    Timespec, XattrMode,
};
use corewalk_testkit::race::{self, Tally, Watchdog};
use corewalk_testkit::rng::Seed;
use proptest::prelude::*;

const ROOT: u64 = 1;

fn new_fs() -> Tmpfs {
    Tmpfs::new(TmpfsOptions::default())
}

fn dir(ino: u64) -> Node<'static> {
    Node::detached(ino, FileKind::Directory)
}

fn node(attr: &Attr) -> Node<'static> {
    Node::detached(attr.ino, attr.kind())
}

fn name(bytes: &[u8]) -> Name<'_> {
    Name::new(bytes).unwrap()
}

fn make(fs: &Tmpfs, parent: u64, bytes: &[u8], mode: u32) -> Attr {
    fs.make(dir(parent), name(bytes), &Make::new(mode, 1, 2)).unwrap()
}

fn list(fs: &Tmpfs, parent: u64) -> BTreeMap<Vec<u8>, u64> {
    let mut entries = BTreeMap::new();
    fs.readdir(dir(parent), 0, &mut |entry| {
        let old = entries.insert(entry.name.as_bytes().to_vec(), entry.ino);
        assert_eq!(old, None, "readdir reports an entry twice");
        ControlFlow::Continue(())
    })
    .unwrap();
    entries
}

fn times(fs: &Tmpfs, ino: u64) -> (Timespec, Timespec) {
    let attr = fs.getattr(Node::detached(ino, FileKind::Regular)).unwrap();
    (attr.mtime, attr.ctime)
}

fn assert_touches(fs: &Tmpfs, expected: &[(u64, bool, bool)], what: &str, change: impl FnOnce()) {
    let old = Timespec { secs: 5, nanos: 6 };
    for &(ino, ..) in expected {
        let set = SetAttr::default().with_mtime(SetTime::At(old)).with_ctime(old);
        fs.setattr(Node::detached(ino, FileKind::Regular), &set).unwrap();
        assert_eq!(times(fs, ino), (old, old));
    }
    change();
    for &(ino, has_mtime, has_ctime) in expected {
        let (mtime, ctime) = times(fs, ino);
        assert_eq!((mtime != old, ctime != old), (has_mtime, has_ctime), "{what}: inode {ino}");
    }
}

#[test]
fn changes_of_files_touch_the_times_that_posix_says() {
    let fs = new_fs();
    let a = make(&fs, ROOT, b"a", mode::S_IFDIR | 0o755).ino;
    let f = make(&fs, a, b"f", 0o644);
    let file = node(&f);
    let set = |set: SetAttr| fs.setattr(file, &set).unwrap();
    let d = SetAttr::default();
    assert_touches(&fs, &[(f.ino, false, true)], "chmod", || {
        set(d.with_mode(0o600));
    });
    assert_touches(&fs, &[(f.ino, false, true)], "chown", || {
        set(d.with_uid(7).with_gid(8));
    });
    assert_touches(&fs, &[(f.ino, false, true)], "chown to nobody", || {
        set(d);
    });
    assert_touches(&fs, &[(f.ino, true, true)], "truncate", || {
        set(d.with_size(0));
    });
    assert_touches(&fs, &[(f.ino, true, true), (a, false, false)], "write", || {
        fs.write(file, 0, b"x").unwrap();
    });
    assert_touches(&fs, &[(f.ino, false, false)], "empty write", || {
        fs.write(file, 0, b"").unwrap();
    });
    assert_touches(&fs, &[(f.ino, false, false), (a, false, false)], "read", || {
        fs.read(file, 0, &mut [0; 4]).unwrap();
        list(&fs, a);
    });
    assert_touches(&fs, &[(f.ino, false, true)], "setxattr", || {
        fs.setxattr(file, b"user.x", b"1", XattrMode::Set).unwrap();
    });
}

#[test]
fn changes_of_names_touch_the_times_that_posix_says() {
    let fs = new_fs();
    let a = make(&fs, ROOT, b"a", mode::S_IFDIR | 0o755).ino;
    let b = make(&fs, ROOT, b"b", mode::S_IFDIR | 0o755).ino;
    let f = make(&fs, a, b"f", 0o644);
    let file = node(&f);
    assert_touches(&fs, &[(a, true, true), (ROOT, false, false)], "make", || {
        make(&fs, a, b"g", 0o644);
    });
    assert_touches(
        &fs,
        &[(f.ino, false, true), (a, false, false), (b, true, true)],
        "link",
        || {
            fs.link(file, dir(b), name(b"h")).unwrap();
        },
    );
    assert_touches(
        &fs,
        &[(f.ino, false, true), (a, false, false), (b, true, true)],
        "unlink",
        || {
            fs.remove(dir(b), name(b"h"), file).unwrap();
        },
    );
    let touched = [(f.ino, false, true), (a, true, true), (b, true, true), (ROOT, false, false)];
    assert_touches(&fs, &touched, "rename", || {
        fs.rename((dir(a), name(b"f")), (dir(b), name(b"f")), RenameMode::Replace).unwrap();
    });
    let g = fs.lookup(dir(a), name(b"g")).unwrap().ino;
    let touched = [(f.ino, false, true), (g, false, true), (a, true, true), (b, true, true)];
    assert_touches(&fs, &touched, "exchange", || {
        fs.rename((dir(a), name(b"g")), (dir(b), name(b"f")), RenameMode::Exchange).unwrap();
    });
    assert_touches(&fs, &touched, "replace", || {
        fs.rename((dir(a), name(b"g")), (dir(b), name(b"f")), RenameMode::Replace).unwrap();
    });
    assert_touches(&fs, &[(a, false, true), (ROOT, true, true)], "rmdir", || {
        fs.remove(dir(ROOT), name(b"a"), dir(a)).unwrap();
    });
    assert_touches(&fs, &[(f.ino, false, false), (b, false, false)], "failed calls", || {
        fs.make(dir(b), name(b"f"), &Make::new(0o644, 0, 0)).unwrap_err();
        fs.remove(dir(b), name(b"x"), file).unwrap_err();
        fs.link(dir(b), dir(b), name(b"y")).unwrap_err();
        fs.rename((dir(b), name(b"f")), (dir(b), name(b"f")), RenameMode::NoReplace).unwrap_err();
        fs.removexattr(file, b"user.none").unwrap_err();
    });
}

#[test]
fn set_times_are_kept_to_the_nanosecond() {
    let fs = new_fs();
    let f = node(&make(&fs, ROOT, b"f", 0o644));
    let at = |secs, nanos| Some(SetTime::At(Timespec { secs, nanos }));
    let set = SetAttr::default().with_atime(at(-7, 999_999_999)).with_mtime(at(1 << 40, 1));
    let attr = fs.setattr(f, &set).unwrap();
    assert_eq!(attr.atime, Timespec { secs: -7, nanos: 999_999_999 });
    assert_eq!(attr.mtime, Timespec { secs: 1 << 40, nanos: 1 });
    let both = SetAttr::default().with_atime(SetTime::Now).with_mtime(SetTime::Now);
    let attr = fs.setattr(f, &both).unwrap();
    assert_eq!((attr.atime, attr.mtime), (attr.ctime, attr.ctime));
}

#[test]
fn make_of_every_kind_reports_what_it_was_given() {
    let fs = new_fs();
    for (kind, nlink) in [
        (mode::S_IFREG, 1),
        (mode::S_IFDIR, 2),
        (mode::S_IFLNK, 1),
        (mode::S_IFIFO, 1),
        (mode::S_IFSOCK, 1),
        (mode::S_IFCHR, 1),
        (mode::S_IFBLK, 1),
    ] {
        let file = kind.to_string().into_bytes();
        let what = Make::new(kind | 0o1751, 5, 6).with_rdev(0x0801).with_target(b"to/where");
        let made = fs.make(dir(ROOT), name(&file), &what).unwrap();
        assert_eq!((made.mode, made.nlink, made.uid, made.gid), (kind | 0o1751, nlink, 5, 6));
        assert_eq!(fs.lookup(dir(ROOT), name(&file)), Ok(made));
        let is_device = matches!(kind, mode::S_IFCHR | mode::S_IFBLK);
        assert_eq!(made.rdev, if is_device { 0x0801 } else { 0 });
        let target =
            if kind == mode::S_IFLNK { Ok(b"to/where".to_vec()) } else { Err(Errno::INVAL) };
        assert_eq!(fs.readlink(node(&made)), target);
        assert_eq!(
            made.size,
            match kind {
                mode::S_IFLNK => 8,
                mode::S_IFDIR => 40,
                _ => 0,
            }
        );
    }
    assert_eq!(make(&fs, ROOT, b"typeless", 0o644).mode, mode::S_IFREG | 0o644);
    let bad = fs.make(dir(ROOT), name(b"bad"), &Make::new(0o170_000, 0, 0));
    assert_eq!(bad, Err(Errno::INVAL));
    assert_eq!(fs.getattr(dir(ROOT)).unwrap().nlink, 3);
}

#[test]
fn unlinked_file_stays_usable_until_forget() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(8192));
    let f = node(&make(&fs, ROOT, b"f", 0o644));
    fs.write(f, 0, &[7; 8192]).unwrap();
    fs.remove(dir(ROOT), name(b"f"), f).unwrap();
    assert_eq!(fs.getattr(f).unwrap().nlink, 0);
    let mut buf = [0; 10];
    assert_eq!((fs.read(f, 8190, &mut buf), &buf[..2]), (Ok(2), &[7, 7][..]));
    assert_eq!(
        fs.link(f, dir(ROOT), name(b"f")),
        Err(Errno::NOENT),
        "a removed file was linked again"
    );
    assert_eq!(fs.statfs().unwrap().bfree, 0);
    fs.forget(f.ino(), 0);
    assert_eq!(fs.statfs().unwrap().bfree, 2);
    assert_eq!(fs.getattr(f), Err(Errno::STALE));
    fs.forget(f.ino(), 0);
    let g = node(&make(&fs, ROOT, b"g", 0o644));
    fs.forget(g.ino(), 0);
    assert!(fs.getattr(g).is_ok(), "forget removed a file with a name");
}

/// The name of a removed file is given to a new file. A late forget of the old inode must not
/// affect the new file. Traps P1 and P2 in `traps.md`.
#[test]
fn late_forget_does_not_affect_the_new_file() {
    let fs = new_fs();
    let old = node(&make(&fs, ROOT, b"f", 0o644));
    fs.remove(dir(ROOT), name(b"f"), old).unwrap();
    let new = make(&fs, ROOT, b"f", 0o644);
    fs.forget(old.ino(), 0);
    assert_eq!(fs.lookup(dir(ROOT), name(b"f")), Ok(new));
    let other = make(&fs, ROOT, b"other", 0o644);
    let (from, to) = ((dir(ROOT), name(b"other")), (dir(ROOT), name(b"f")));
    fs.rename(from, to, RenameMode::Replace).unwrap();
    fs.forget(new.ino, new.generation);
    assert_eq!(fs.lookup(dir(ROOT), name(b"f")).unwrap().ino, other.ino);
}

#[test]
fn tmpfile_can_be_linked_once_without_a_name() {
    let fs = new_fs();
    let f = fs.tmpfile(dir(ROOT), &Make::new(0o600, 0, 0)).unwrap();
    assert_eq!((f.nlink, list(&fs, ROOT).len()), (0, 0));
    let linked = fs.link(node(&f), dir(ROOT), name(b"f")).unwrap();
    assert_eq!((linked.ino, linked.nlink), (f.ino, 1));
    fs.remove(dir(ROOT), name(b"f"), node(&f)).unwrap();
    assert_eq!(fs.link(node(&f), dir(ROOT), name(b"f")), Err(Errno::NOENT));
    let g = fs.tmpfile(dir(ROOT), &Make::new(0o600, 0, 0)).unwrap();
    fs.forget(g.ino, g.generation);
    assert_eq!(fs.getattr(node(&g)), Err(Errno::STALE));
    assert_eq!(fs.tmpfile(dir(ROOT), &Make::new(mode::S_IFIFO, 0, 0)), Err(Errno::INVAL));
}

#[test]
fn removed_directory_takes_no_entries() {
    let fs = new_fs();
    let d = node(&make(&fs, ROOT, b"d", mode::S_IFDIR | 0o755));
    let e = node(&make(&fs, ROOT, b"e", mode::S_IFDIR | 0o755));
    let f = make(&fs, d.ino(), b"f", 0o644);
    assert_eq!(fs.remove(dir(ROOT), name(b"d"), d), Err(Errno::NOTEMPTY));
    let onto = fs.rename((dir(ROOT), name(b"e")), (dir(ROOT), name(b"d")), RenameMode::Replace);
    assert_eq!(onto, Err(Errno::NOTEMPTY));
    fs.remove(d, name(b"f"), node(&f)).unwrap();
    fs.rename((dir(ROOT), name(b"e")), (dir(ROOT), name(b"d")), RenameMode::Replace).unwrap();
    assert_eq!(fs.getattr(dir(ROOT)).unwrap().nlink, 3);
    assert_eq!(fs.getattr(d).unwrap().nlink, 0);
    let g = make(&fs, ROOT, b"g", 0o644);
    assert_eq!(fs.make(d, name(b"x"), &Make::new(0o644, 0, 0)), Err(Errno::NOENT));
    assert_eq!(fs.tmpfile(d, &Make::new(0o644, 0, 0)), Err(Errno::NOENT));
    assert_eq!(fs.link(node(&g), d, name(b"x")), Err(Errno::NOENT));
    let into = fs.rename((dir(ROOT), name(b"g")), (d, name(b"x")), RenameMode::Replace);
    assert_eq!(into, Err(Errno::NOENT));
    assert_eq!(list(&fs, ROOT), BTreeMap::from([(b"d".to_vec(), e.ino()), (b"g".to_vec(), g.ino)]));
    fs.forget(d.ino(), 0);
    fs.forget(f.ino, f.generation);
    assert_eq!(fs.statfs().unwrap().files - fs.statfs().unwrap().ffree, 3);
}

#[test]
fn invalid_renames_fail_and_change_nothing() {
    let fs = new_fs();
    let d = make(&fs, ROOT, b"d", mode::S_IFDIR | 0o755).ino;
    let sub = make(&fs, d, b"sub", mode::S_IFDIR | 0o755).ino;
    let f = make(&fs, ROOT, b"f", 0o644);
    fs.link(node(&f), dir(ROOT), name(b"same")).unwrap();
    let before = (list(&fs, ROOT), list(&fs, d));
    use RenameMode::{Exchange, NoReplace, Replace};
    for (from, to, mode, expected) in [
        ((ROOT, b"none".as_slice()), (ROOT, b"f".as_slice()), Replace, Err(Errno::NOENT)),
        ((ROOT, b"f"), (ROOT, b"none"), Exchange, Err(Errno::NOENT)),
        ((ROOT, b"f"), (ROOT, b"d"), NoReplace, Err(Errno::EXIST)),
        ((ROOT, b"f"), (ROOT, b"d"), Replace, Err(Errno::ISDIR)),
        ((ROOT, b"d"), (ROOT, b"f"), Replace, Err(Errno::NOTDIR)),
        ((ROOT, b"d"), (d, b"x"), Replace, Err(Errno::INVAL)),
        ((ROOT, b"d"), (d, b"sub"), Exchange, Err(Errno::INVAL)),
        ((d, b"sub"), (ROOT, b"d"), Exchange, Err(Errno::INVAL)),
        ((d, b"sub"), (ROOT, b"d"), Replace, Err(Errno::NOTEMPTY)),
        ((ROOT, b"f"), (f.ino, b"x"), Replace, Err(Errno::NOTDIR)),
        ((ROOT, b"f"), (999, b"x"), Replace, Err(Errno::STALE)),
        ((ROOT, b"f"), (ROOT, b"same"), Replace, Ok(())),
        ((ROOT, b"f"), (ROOT, b"f"), Replace, Ok(())),
        ((ROOT, b"f"), (ROOT, b"f"), Exchange, Ok(())),
    ] {
        let from = (dir(from.0), name(from.1));
        let to = (dir(to.0), name(to.1));
        assert_eq!(fs.rename(from, to, mode), expected, "{from:?} {to:?} {mode:?}");
        assert_eq!((list(&fs, ROOT), list(&fs, d)), before);
        assert_eq!(fs.getattr(dir(d)).unwrap().nlink, 3);
    }
    assert_eq!(fs.getattr(dir(sub)).unwrap().nlink, 2);
    assert_eq!(fs.getattr(node(&f)).unwrap().nlink, 2);
    fs.rename((dir(d), name(b"sub")), (dir(ROOT), name(b"f")), Exchange).unwrap();
    assert_eq!(fs.getattr(dir(d)).unwrap().nlink, 2);
    assert_eq!(fs.getattr(dir(ROOT)).unwrap().nlink, 4);
}

#[test]
fn inode_limit_is_enospc_and_leaves_nothing() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_inodes_max(3));
    let f = make(&fs, ROOT, b"f", 0o644);
    make(&fs, ROOT, b"d", mode::S_IFDIR | 0o755);
    let plain = Make::new(0o644, 0, 0);
    assert_eq!(fs.make(dir(ROOT), name(b"g"), &plain), Err(Errno::NOSPC));
    assert_eq!(fs.tmpfile(dir(ROOT), &plain), Err(Errno::NOSPC));
    assert_eq!((fs.statfs().unwrap().files, fs.statfs().unwrap().ffree), (3, 0));
    assert_eq!(
        fs.link(node(&f), dir(ROOT), name(b"g")),
        Err(Errno::NOSPC),
        "a second name is not counted"
    );
    fs.remove(dir(ROOT), name(b"f"), node(&f)).unwrap();
    fs.forget(f.ino, f.generation);
    assert_eq!(fs.make(dir(ROOT), name(b"d"), &plain), Err(Errno::EXIST));
    assert_eq!(fs.statfs().unwrap().ffree, 1, "a failed make used an inode");
    assert!(fs.make(dir(ROOT), name(b"g"), &plain).is_ok());
}

#[test]
fn further_names_count_as_inodes_until_removed() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_inodes_max(4));
    let free = || fs.statfs().unwrap().ffree;
    let f = make(&fs, ROOT, b"f", 0o644);
    let link = |to: &[u8]| fs.link(node(&f), dir(ROOT), name(to)).map(drop);
    assert_eq!((link(b"g"), link(b"h"), link(b"i")), (Ok(()), Ok(()), Err(Errno::NOSPC)));
    assert_eq!((link(b"g"), free()), (Err(Errno::EXIST), 0));
    fs.remove(dir(ROOT), name(b"h"), node(&f)).unwrap();
    assert_eq!(free(), 1);
    let other = make(&fs, ROOT, b"other", 0o644);
    fs.rename((dir(ROOT), name(b"other")), (dir(ROOT), name(b"g")), RenameMode::Replace).unwrap();
    assert_eq!(free(), 1);
    fs.remove(dir(ROOT), name(b"f"), node(&f)).unwrap();
    assert_eq!(free(), 1, "the inode is counted until it is forgotten");
    fs.forget(f.ino, f.generation);
    assert_eq!(free(), 2);
    fs.remove(dir(ROOT), name(b"g"), node(&other)).unwrap();
    fs.forget(other.ino, other.generation);
    // A file that was made without a name already counts as an inode. Its first name must not count
    // as another.
    let made = fs.tmpfile(dir(ROOT), &Make::new(0o644, 0, 0)).unwrap();
    assert_eq!(free(), 2);
    fs.link(node(&made), dir(ROOT), name(b"f")).unwrap();
    assert_eq!(free(), 2);
}

#[test]
fn long_link_target_is_charged() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(8192));
    let made = |to: &[u8], target: &[u8]| {
        fs.make(dir(ROOT), name(to), &Make::new(mode::S_IFLNK | 0o777, 0, 0).with_target(target))
    };
    let free = || (fs.statfs().unwrap().bfree, fs.statfs().unwrap().ffree);
    let before = free();
    let long = made(b"a", &[b't'; 4095]).unwrap();
    assert_eq!(made(b"a", &[b't'; 128]), Err(Errno::EXIST));
    assert_eq!((free().0, long.size), (before.0 - 1, 4095));
    made(b"b", &[b't'; 128]).unwrap();
    let full = free();
    assert_eq!(made(b"c", &[b't'; 4095]), Err(Errno::NOSPC));
    assert_eq!(free(), full, "a failed call was charged");
    made(b"c", &[b't'; 127]).unwrap();
    fs.remove(dir(ROOT), name(b"a"), node(&long)).unwrap();
    fs.forget(long.ino, long.generation);
    assert_eq!(free().0, 1);
}

/// The memory that each attribute uses besides its name and value must be charged. Otherwise many
/// short attributes could fill memory that statfs reports as free.
#[test]
fn attribute_is_charged_with_its_overhead() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(4096));
    let f = node(&make(&fs, ROOT, b"f", 0o640));
    let full = (0..).find(|i| {
        fs.setxattr(f, format!("user.{i}").as_bytes(), b"", XattrMode::Set) == Err(Errno::NOSPC)
    });
    assert!(full.is_some_and(|count| (50..90).contains(&count)), "{full:?}");
}

#[test]
fn xattrs_are_stored_apart_from_acls() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(4096));
    let f = node(&make(&fs, ROOT, b"f", 0o640));
    let link = node(&make(&fs, ROOT, b"l", mode::S_IFLNK | 0o777));
    assert_eq!(fs.getxattr(f, b"user.a"), Err(Errno::NODATA));
    fs.setxattr(f, b"user.a", b"value", XattrMode::Create).unwrap();
    assert_eq!(fs.getxattr(f, b"user.a"), Ok(b"value".to_vec()));
    assert_eq!(fs.setxattr(f, b"user.b", &[0; 4096], XattrMode::Set), Err(Errno::NOSPC));
    assert_eq!(fs.setxattr(link, b"user.a", b"", XattrMode::Set), Err(Errno::PERM));
    assert_eq!(fs.getxattr(link, b"user.a"), Err(Errno::NODATA));
    fs.setxattr(link, b"trusted.a", b"", XattrMode::Set).unwrap();
    let acl_name = corewalk::acl::XATTR_ACCESS;
    assert_eq!(fs.setxattr(f, acl_name, b"", XattrMode::Set), Err(Errno::OPNOTSUPP));
    assert_eq!(fs.listxattr(f), Ok(b"user.a\0".to_vec()));
    fs.remove(dir(ROOT), name(b"f"), f).unwrap();
    fs.forget(f.ino(), 0);
    assert_eq!(fs.statfs().unwrap().bfree, 0, "the link's attribute is not charged");
    fs.removexattr(link, b"trusted.a").unwrap();
    assert_eq!(fs.statfs().unwrap().bfree, 1);
}

#[test]
fn acl_and_mode_change_each_other() {
    let fs = new_fs();
    let f = node(&make(&fs, ROOT, b"f", 0o640));
    let acl = Acl::new([
        Entry::new(Tag::UserObj, 6, 0),
        Entry::new(Tag::User, 7, 1000),
        Entry::new(Tag::GroupObj, 4, 0),
        Entry::new(Tag::Mask, 7, 0),
        Entry::new(Tag::Other, 0, 0),
    ])
    .unwrap();
    fs.set_acl(f, AclKind::Access, Some(&acl), Some(0o4670)).unwrap();
    let attr = fs.getattr(f).unwrap();
    assert_eq!((attr.mode, attr.has_acl), (mode::S_IFREG | 0o4670, true));
    fs.setattr(f, &SetAttr::default().with_mode(0o604)).unwrap();
    let changed = fs.get_acl(f, AclKind::Access).unwrap().unwrap();
    assert_eq!((changed.mode(), changed.entries().len()), (0o604, 5));
    let minimal = Acl::from_mode(0o600);
    fs.set_acl(f, AclKind::Access, Some(&minimal), Some(0o600)).unwrap();
    assert_eq!(fs.get_acl(f, AclKind::Access), Ok(None), "an ACL equivalent to the mode is stored");
    assert!(!fs.getattr(f).unwrap().has_acl);
    assert_eq!(fs.set_acl(f, AclKind::Default, Some(&acl), None), Err(Errno::ACCESS));
    assert_eq!(fs.set_acl(f, AclKind::Default, None, None), Ok(()));
    fs.set_acl(dir(ROOT), AclKind::Default, Some(&acl), None).unwrap();
    assert_eq!(fs.get_acl(dir(ROOT), AclKind::Default), Ok(Some(acl.clone())));
    let what = Make::new(mode::S_IFDIR | 0o670, 0, 0)
        .with_access_acl(acl.clone())
        .with_default_acl(acl.clone());
    let made = fs.make(dir(ROOT), name(b"d"), &what).unwrap();
    assert!(made.has_acl);
    assert_eq!(fs.get_acl(node(&made), AclKind::Access), Ok(Some(acl.clone())));
    assert_eq!(fs.get_acl(node(&made), AclKind::Default), Ok(Some(acl)));
}

/// An inode number must never repeat, because a reused number would lead an old handle to a new
/// file. Trap P11 in `traps.md`.
#[test]
fn inode_number_never_repeats() {
    let fs = new_fs();
    let seed = Seed::choose();
    let drawn = race::run(4, seed, |racer| {
        let file = [b'a' + racer.thread as u8];
        let draw = |_| {
            let made = make(&fs, ROOT, &file, 0o644);
            fs.remove(dir(ROOT), name(&file), node(&made)).unwrap();
            fs.forget(made.ino, made.generation);
            (made.ino, made.generation)
        };
        (0..5_000).map(draw).collect::<Vec<_>>()
    });
    let mut drawn = drawn.concat();
    drawn.push((ROOT, 0));
    let count = drawn.len();
    drawn.sort_unstable();
    drawn.dedup();
    assert_eq!(drawn.len(), count, "{seed}");
    assert_eq!(fs.statfs().unwrap().files - fs.statfs().unwrap().ffree, 1);
}

/// A slot is reused, so an old and a new directory have numbers of the same slot. A rename between
/// the two must fail with `ESTALE`, and not lock the slot twice and hang.
#[test]
fn old_and_new_number_of_a_slot_do_not_deadlock() {
    let _watchdog = Watchdog::start("two numbers of one slot", Duration::from_secs(60));
    let fs = new_fs();
    let old = node(&make(&fs, ROOT, b"old", mode::S_IFDIR | 0o755));
    fs.remove(dir(ROOT), name(b"old"), old).unwrap();
    fs.forget(old.ino(), 0);
    let new = node(&make(&fs, ROOT, b"new", mode::S_IFDIR | 0o755));
    assert_eq!(new.ino() as u32, old.ino() as u32, "the slot is not reused, so the test is void");
    let f = node(&make(&fs, new.ino(), b"f", 0o644));
    for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
        for (from, to) in [(old, new), (new, old)] {
            let renamed = fs.rename((from, name(b"f")), (to, name(b"g")), mode);
            assert_eq!(renamed, Err(Errno::STALE));
        }
    }
    assert_eq!(fs.link(old, new, name(b"g")), Err(Errno::STALE));
    assert_eq!(fs.link(new, old, name(b"g")), Err(Errno::PERM), "a directory");
    assert_eq!(fs.link(f, old, name(b"g")), Err(Errno::STALE));
    assert_eq!(fs.remove(new, name(b"f"), old), Err(Errno::NOENT));
    assert_eq!(list(&fs, new.ino()).len(), 1);
}

/// Checks the link counts of all inodes. A file must have one link per entry in `dirs`. A directory
/// in `dirs` must have two links, and one more per subdirectory. Another directory is empty, and
/// must have two links, or none if it was removed.
fn check_links(fs: &Tmpfs, dirs: &[u64], all: &[u64]) {
    let mut counts: BTreeMap<u64, u32> = BTreeMap::new();
    for &parent in dirs {
        let entries = list(fs, parent);
        let children: Vec<Attr> =
            entries.values().map(|&ino| fs.getattr(dir(ino)).unwrap()).collect();
        let subdirs = children.iter().filter(|attr| attr.is_dir()).count() as u32;
        assert_eq!(fs.getattr(dir(parent)).unwrap().nlink, 2 + subdirs);
        for attr in children {
            *counts.entry(attr.ino).or_default() += 1;
        }
    }
    for &ino in all.iter().filter(|ino| !dirs.contains(ino)) {
        let links = counts.get(&ino).copied().unwrap_or(0);
        let Ok(attr) = fs.getattr(dir(ino)) else { panic!("inode {ino} is gone") };
        match attr.is_dir() {
            true => assert_eq!((attr.nlink, links <= 1), (2 * links, true), "directory {ino}"),
            false => assert_eq!(attr.nlink, links, "file {ino}"),
        }
    }
}

/// Concurrent renames must not deadlock. A back end need not support concurrent calls with the same
/// names, but tmpfs does. Trap P9 in `traps.md`.
#[test]
fn rename_of_all_pairs_neither_deadlocks_nor_loses_links() {
    let _watchdog = Watchdog::start("all-pairs rename storm", Duration::from_secs(120));
    let fs = new_fs();
    let a = make(&fs, ROOT, b"a", mode::S_IFDIR | 0o755).ino;
    let b = make(&fs, a, b"b", mode::S_IFDIR | 0o755).ino;
    let dirs = [ROOT, a, b];
    let done = Tally::new(["make", "remove", "link", "free", "exchange", "replace"]);
    let seed = Seed::choose();
    let made = race::run(4, seed, |mut racer| {
        let mut made = Vec::new();
        for _ in 0..200_000 {
            let rng = &mut racer.rng;
            let names = [[b'0' + rng.below(4) as u8], [b'0' + rng.below(4) as u8]];
            let (from, to) = (dir(*rng.pick(&dirs)), dir(*rng.pick(&dirs)));
            let (old, new) = (name(&names[0]), name(&names[1]));
            let what = ["make", "make", "remove", "link", "free", "exchange", "exchange"];
            let what = what.get(rng.index(10)).copied().unwrap_or("replace");
            let result = match what {
                "make" => {
                    let kind = *rng.pick(&[mode::S_IFREG, mode::S_IFDIR]);
                    let result = fs.make(from, old, &Make::new(kind | 0o755, 0, 0));
                    made.extend(result.ok().map(|attr| attr.ino));
                    result.map(drop)
                }
                "remove" => fs.lookup(from, old).and_then(|attr| fs.remove(from, old, node(&attr))),
                "link" => fs.lookup(from, old).and_then(|a| fs.link(node(&a), to, new)).map(drop),
                "free" => fs.rename((from, old), (to, new), RenameMode::NoReplace),
                "exchange" => fs.rename((from, old), (to, new), RenameMode::Exchange),
                _ => fs.rename((from, old), (to, new), RenameMode::Replace),
            };
            use Errno as E;
            let expected = [E::NOENT, E::EXIST, E::ISDIR, E::NOTDIR, E::NOTEMPTY, E::PERM];
            match result {
                Ok(()) => done.hit(what),
                Err(errno) => assert!(expected.contains(&errno), "{what}: {errno:?}"),
            }
        }
        made
    });
    done.assert_all_reached();
    let all = made.concat();
    check_links(&fs, &dirs, &all);
    all.iter().for_each(|&ino| fs.forget(ino, 0));
    let names: usize = dirs.iter().map(|&d| list(&fs, d).len()).sum();
    let stat = fs.statfs().unwrap();
    // Add the root directory, which has no entry.
    assert_eq!(stat.files - stat.ffree, names as u64 + 1, "{seed}");
}

#[test]
fn lookup_during_rename_over_finds_old_or_new() {
    let fs = new_fs();
    make(&fs, ROOT, b"target", 0o644);
    let d = make(&fs, ROOT, b"d", mode::S_IFDIR | 0o755).ino;
    let seed = Seed::choose();
    race::run(3, seed, |racer| {
        for _ in 0..5_000 {
            if racer.thread == 0 {
                let made = make(&fs, d, b"new", 0o644);
                let old = fs.lookup(dir(ROOT), name(b"target")).unwrap();
                let (from, to) = ((dir(d), name(b"new")), (dir(ROOT), name(b"target")));
                fs.rename(from, to, RenameMode::Replace).unwrap();
                assert_eq!(fs.lookup(dir(ROOT), name(b"target")).unwrap().ino, made.ino);
                fs.forget(old.ino, old.generation);
            } else {
                match fs.lookup(dir(ROOT), name(b"target")) {
                    // `ESTALE`: another thread replaced the entry after this lookup had found it.
                    // Callers that follow rule F.1 of `FileSystem` never get it, because their
                    // calls for one name do not overlap.
                    Ok(_) | Err(Errno::STALE) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    });
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Make(usize, u8, bool),
    Remove(usize, u8),
    Link(usize, u8, usize, u8),
    Rename(usize, u8, usize, u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0..3usize, 0..5u8);
    prop_oneof![
        4 => (at(), any::<bool>()).prop_map(|((d, n), k)| Op::Make(d, n, k)),
        2 => at().prop_map(|(d, n)| Op::Remove(d, n)),
        2 => (at(), at()).prop_map(|((d, n), (e, m))| Op::Link(d, n, e, m)),
        5 => (at(), at(), 0..3u8).prop_map(|((d, n), (e, m), k)| Op::Rename(d, n, e, m, k)),
    ]
}

/// The files of the model: for each directory and name, the inode number, and whether the file is a
/// directory. The model needs no tree, because directories that operations make stay empty.
type Names = BTreeMap<(usize, u8), (u64, bool)>;

fn expected_rename(
    names: &mut Names,
    from: (usize, u8),
    to: (usize, u8),
    kind: u8,
) -> Result<(), Errno> {
    let moved = *names.get(&from).ok_or(Errno::NOENT)?;
    let target = names.get(&to).copied();
    match (kind, target) {
        (0, Some(_)) => return Err(Errno::EXIST),
        (1, None) => return Err(Errno::NOENT),
        (_, Some(target)) if target.0 == moved.0 => return Ok(()),
        (1, Some(target)) => {
            names.insert(from, target);
        }
        (_, Some((_, true))) if !moved.1 => return Err(Errno::ISDIR),
        (_, Some((_, false))) if moved.1 => return Err(Errno::NOTDIR),
        _ => {
            names.remove(&from);
        }
    }
    names.insert(to, moved);
    Ok(())
}

struct Compared {
    fs: Tmpfs,
    dirs: [u64; 3],
    names: Names,
    made: Vec<u64>,
}

impl Compared {
    fn new() -> Compared {
        let fs = new_fs();
        let x = make(&fs, ROOT, b"x", mode::S_IFDIR | 0o755).ino;
        let y = make(&fs, x, b"y", mode::S_IFDIR | 0o755).ino;
        Compared { fs, dirs: [ROOT, x, y], names: Names::new(), made: Vec::new() }
    }

    fn step(&mut self, op: Op) -> Result<(), TestCaseError> {
        let (fs, names) = (&self.fs, &mut self.names);
        let parent = |d: usize| dir(self.dirs[d]);
        let bytes = |n: u8| [b'0' + n];
        match op {
            Op::Make(d, n, is_dir) => {
                let kind = if is_dir { mode::S_IFDIR } else { mode::S_IFREG };
                let got = fs.make(parent(d), name(&bytes(n)), &Make::new(kind, 0, 0));
                prop_assert_eq!(got.err(), names.get(&(d, n)).map(|_| Errno::EXIST));
                if let Ok(attr) = got {
                    names.insert((d, n), (attr.ino, is_dir));
                    self.made.push(attr.ino);
                }
            }
            Op::Remove(d, n) => {
                let got = fs.lookup(parent(d), name(&bytes(n)));
                let expected = names.remove(&(d, n)).map(|(ino, _)| ino).ok_or(Errno::NOENT);
                prop_assert_eq!(got.map(|attr| attr.ino), expected);
                if let Ok(attr) = got {
                    let removed = fs.remove(parent(d), name(&bytes(n)), node(&attr));
                    prop_assert_eq!(removed, Ok(()));
                }
            }
            Op::Link(d, n, e, m) => {
                let Some(&(ino, is_dir)) = names.get(&(d, n)) else { return Ok(()) };
                let expected = match names.contains_key(&(e, m)) {
                    _ if is_dir => Err(Errno::PERM),
                    true => Err(Errno::EXIST),
                    false => Ok(ino),
                };
                let got = fs.link(dir(ino), parent(e), name(&bytes(m)));
                prop_assert_eq!(got.map(|attr| attr.ino), expected);
                if got.is_ok() {
                    names.insert((e, m), (ino, false));
                }
            }
            Op::Rename(d, n, e, m, kind) => {
                let modes = [RenameMode::NoReplace, RenameMode::Exchange, RenameMode::Replace];
                let (from, to) = (bytes(n), bytes(m));
                let (from, to) = ((parent(d), name(&from)), (parent(e), name(&to)));
                let expected = expected_rename(names, (d, n), (e, m), kind);
                prop_assert_eq!(fs.rename(from, to, modes[usize::from(kind)]), expected);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (index, &parent) in self.dirs.iter().enumerate() {
            let here = self.names.iter().filter(|((d, _), _)| *d == index);
            let mut expected: BTreeMap<Vec<u8>, u64> =
                here.map(|((_, n), (ino, _))| (vec![b'0' + n], *ino)).collect();
            if index < 2 {
                expected.insert([b"x", b"y"][index].to_vec(), self.dirs[index + 1]);
            }
            prop_assert_eq!(list(&self.fs, parent), expected);
        }
        check_links(&self.fs, &self.dirs, &self.made);
        Ok(())
    }
}

proptest! {
    #[test]
    fn names_answer_as_a_map(ops in prop::collection::vec(op(), 1..150)) {
        let mut compared = Compared::new();
        for op in ops {
            compared.step(op)?;
            compared.check()?;
        }
    }
}
