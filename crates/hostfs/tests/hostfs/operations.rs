//! Each operation must change the host correctly, and the `Vfs` must show the state of the host.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};
use std::sync::Arc;

use corewalk::acl::{Acl, Entry, Tag, XATTR_ACCESS, XATTR_DEFAULT};
use corewalk::attr::mode::{S_IFDIR, S_IFIFO, S_IFREG};
use corewalk::{
    Atime, AtimePolicy, Cred, Errno, Fallocate, Fsync, Make, May, Removal, RenameMode, Seek,
    SetAttr, SetTime, Timespec, Vfs, VfsOptions, XattrMode,
};

use corewalk_hostfs::HostFsOptions;
use rustix::fs::OFlags;

use crate::fixtures::{
    TempDir, link, list, make, name, over, remove, rename, symlink, walk, with_options,
};

#[test]
fn made_files_are_on_the_host_with_owner_and_mode() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    make(&vfs, "d/").unwrap();
    let what = Make::new(S_IFREG | 0o4751, 1234, 4321);
    let parent = walk(&vfs, "d").unwrap();
    let (_, attr) = vfs.make(&Cred::root(), &parent, name("f"), what).unwrap();
    let host = fs::symlink_metadata(dir.join("d/f")).unwrap();
    assert_eq!((host.uid(), host.gid(), host.mode()), (1234, 4321, S_IFREG | 0o4751));
    assert_eq!((attr.ino, attr.mode, attr.nlink), (host.ino(), host.mode(), 1));
    let fifo = Make::new(S_IFIFO | 0o600, 0, 0);
    vfs.make(&Cred::root(), &parent, name("p"), fifo).unwrap();
    assert!(fs::symlink_metadata(dir.join("d/p")).unwrap().file_type().is_fifo());
    symlink(&vfs, "d/l", "../nowhere").unwrap();
    assert_eq!(fs::read_link(dir.join("d/l")).unwrap().to_str(), Some("../nowhere"));
    assert_eq!(vfs.readlink(&walk(&vfs, "d/l").unwrap()).unwrap(), b"../nowhere");
    assert_eq!(list(&vfs, "d", 1).unwrap(), ["f", "l", "p"]);
}

/// A truncation that the host refuses must change no attribute. The host refuses to truncate a
/// running program, and to set a size that does not fit into an `i64`.
#[test]
fn truncation_that_fails_changes_nothing() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let path = dir.join("cat");
    // Let `cp` write the program. A child of another test could inherit this process's descriptor
    // for writing, and the program could not be started (`ETXTBSY`).
    assert!(Command::new("cp").arg("/bin/cat").arg(&path).status().unwrap().success());
    let program = walk(&vfs, "cat").unwrap();
    let changed = || {
        let host = fs::metadata(&path).unwrap();
        (host.mode(), host.len(), host.ctime(), host.ctime_nsec())
    };
    let truncate = |size| {
        let set = SetAttr::default().with_size(size);
        vfs.setattr(&Cred::root(), &program, &set).err()
    };
    let before = changed();
    let mut running = Command::new(&path).stdin(Stdio::piped()).spawn().unwrap();
    assert_eq!(truncate(0), Some(Errno::TXTBSY));
    assert_eq!(changed(), before);
    drop(running.stdin.take());
    assert!(running.wait().unwrap().success());
    assert_eq!(truncate(u64::MAX), Some(Errno::INVAL));
    assert_eq!(changed(), before);
    // `HostFs` sets the mode first, and then the host refuses the size. So the old mode must be
    // restored.
    let set = SetAttr::default().with_size(u64::MAX).with_mode(0o600);
    assert_eq!(vfs.setattr(&Cred::root(), &program, &set).err(), Some(Errno::INVAL));
    assert_eq!((changed().0, changed().1), (before.0, before.1));
}

#[test]
fn made_files_have_the_requested_mode() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    make(&vfs, "plain/").unwrap();
    make(&vfs, "group/").unwrap();
    let group = walk(&vfs, "group").unwrap();
    let set = SetAttr::default().with_gid(4321).with_mode(0o2755);
    vfs.setattr(&Cred::root(), &group, &set).unwrap();
    for (sub, gid) in [("plain", gid), ("group", 4321)] {
        let parent = walk(&vfs, sub).unwrap();
        for kind in [S_IFREG, S_IFDIR, S_IFIFO] {
            for bits in [0, 0o200, 0o644, 0o666, 0o777, 0o1777, 0o2775, 0o4711, 0o6777] {
                let entry = format!("{kind:o}-{bits:o}");
                let what = Make::new(kind | bits, uid, gid);
                let made = vfs.make(&Cred::root(), &parent, name(&entry), what);
                let (_, attr) = made.unwrap();
                let expected = match (kind, sub) {
                    (S_IFDIR, "group") => kind | bits & 0o1777 | 0o2000,
                    (S_IFDIR, _) => kind | bits & 0o1777,
                    _ => kind | bits,
                };
                let host = fs::symlink_metadata(dir.join(&format!("{sub}/{entry}"))).unwrap();
                assert_eq!((host.mode(), attr.mode), (expected, expected), "{sub}/{entry}");
                assert_eq!((host.uid(), host.gid(), attr.gid), (uid, gid, gid), "{sub}/{entry}");
            }
        }
    }
}

#[test]
fn made_files_inherit_the_default_acl() {
    let dir = TempDir::new();
    let tmpfs = corewalk::tmpfs::Tmpfs::new(corewalk::tmpfs::TmpfsOptions::default());
    let spaces = [over(dir.path()), Vfs::new(Arc::new(tmpfs), VfsOptions::default()).unwrap()];
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let entry = |tag, bits| Entry::new(tag, bits, Entry::NO_ID);
    let minimal =
        Acl::new([entry(Tag::UserObj, 7), entry(Tag::GroupObj, 5), entry(Tag::Other, 1)]).unwrap();
    let extended = Acl::new([
        entry(Tag::UserObj, 7),
        Entry::new(Tag::User, 6, 1000),
        entry(Tag::GroupObj, 5),
        entry(Tag::Mask, 7),
        entry(Tag::Other, 0),
    ])
    .unwrap();
    for (number, default) in [minimal, extended].iter().enumerate() {
        let seen = spaces.each_ref().map(|vfs| {
            let parent = make(vfs, &format!("d{number}/")).unwrap();
            let (cred, value) = (Cred::root(), default.to_xattr());
            vfs.setxattr(&cred, &parent, XATTR_DEFAULT, &value, XattrMode::Set).unwrap();
            [(S_IFREG, 0o666), (S_IFREG, 0o640), (S_IFDIR, 0o777)].map(|(kind, bits)| {
                let what = Make::new(kind | bits, uid, gid).with_umask(0o27);
                let entry = format!("{kind:o}-{bits:o}");
                let (inode, attr) = vfs.make(&cred, &parent, name(&entry), what).unwrap();
                let of = |acl| vfs.getxattr(&cred, &inode, acl);
                let reads = vfs.access(&Cred::user(1000, 1000, &[]), &inode, May::READ);
                (attr.mode, attr.has_acl, of(XATTR_ACCESS), of(XATTR_DEFAULT), reads)
            })
        });
        assert_eq!(seen[0], seen[1], "ACL {number}");
    }
}

#[test]
fn permission_follows_changes_of_an_acl() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (f, cred) = (make(&vfs, "f").unwrap(), Cred::root());
    let set = SetAttr::default().with_mode(0o600);
    let acl = Acl::new([
        Entry::new(Tag::UserObj, 6, Entry::NO_ID),
        Entry::new(Tag::User, 4, 1000),
        Entry::new(Tag::GroupObj, 0, Entry::NO_ID),
        Entry::new(Tag::Mask, 4, Entry::NO_ID),
        Entry::new(Tag::Other, 0, Entry::NO_ID),
    ])
    .unwrap();
    let user = Cred::user(1000, 1000, &[]);
    for _ in 0..3 {
        vfs.setattr(&cred, &f, &set).unwrap();
        assert_eq!(vfs.access(&user, &f, May::READ), Err(Errno::ACCESS));
        vfs.setxattr(&cred, &f, XATTR_ACCESS, &acl.to_xattr(), XattrMode::Set).unwrap();
        assert_eq!(vfs.access(&user, &f, May::READ), Ok(()));
        assert_eq!(vfs.access(&user, &f, May::WRITE), Err(Errno::ACCESS));
        vfs.removexattr(&cred, &f, XATTR_ACCESS).unwrap();
        assert_eq!(vfs.access(&user, &f, May::READ), Err(Errno::ACCESS));
        assert_eq!(vfs.getxattr(&cred, &f, XATTR_ACCESS), Err(Errno::NODATA));
    }
    // A second `Vfs` sets the ACL, so the first one learns of it only by `invalidate_attributes`.
    let again = over(dir.path());
    let same = walk(&again, "f").unwrap();
    again.setxattr(&cred, &same, XATTR_ACCESS, &acl.to_xattr(), XattrMode::Set).unwrap();
    vfs.invalidate_attributes(&f);
    assert_eq!(vfs.access(&user, &f, May::READ), Ok(()));
}

#[test]
fn data_is_read_and_written_with_and_without_a_handle() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let f = make(&vfs, "f").unwrap();
    let cred = Cred::root();
    assert_eq!(vfs.write(&cred, &f, 0, 3, b"without"), Ok(7));
    let handle = vfs.open(&cred, &f, 2, May::READ | May::WRITE).unwrap().handle;
    assert_ne!(handle, 0);
    assert_eq!(vfs.write(&cred, &f, handle, 10, b"with"), Ok(4));
    let mut buf = [1; 32];
    assert_eq!(vfs.read(&f, handle, 0, &mut buf), Ok(14));
    assert_eq!(&buf[..14], b"\0\0\0withoutwith");
    vfs.fsync(&f, handle, Fsync::All).unwrap();
    // The kernel's writeback cache may write through a read-only handle.
    let reader = vfs.open(&cred, &f, 0, May::READ).unwrap().handle;
    assert_eq!(vfs.write(&cred, &f, reader, 0, b"abc"), Ok(3));
    // An append must ignore the offset that the client passes, and go to the end of the file on the
    // host.
    for handle in [0, handle, reader] {
        assert_eq!(vfs.append(&cred, &f, handle, 3, b"!"), Ok(1));
    }
    vfs.release(&f, reader);
    vfs.release(&f, handle);
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"abcwithoutwith!!!");
    vfs.fallocate(&Cred::root(), &f, 0, 0, 8192, Fallocate::empty()).unwrap();
    assert_eq!(vfs.getattr(&f).unwrap().size, 8192);
    assert_eq!(vfs.seek(&f, 0, 8192, Seek::Data), Err(Errno::NXIO));
    assert_eq!(vfs.seek(&f, 0, 5, Seek::Data), Ok(5));
}

#[test]
fn attributes_are_changed_on_the_host() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (f, cred) = (make(&vfs, "f").unwrap(), Cred::root());
    let at = Timespec { secs: 1_000_000, nanos: 5_000 };
    let set = SetAttr::default()
        .with_mode(0o640)
        .with_uid(7)
        .with_gid(8)
        .with_size(100)
        .with_mtime(SetTime::At(at));
    let attr = vfs.setattr(&cred, &f, &set).unwrap();
    let host = fs::symlink_metadata(dir.join("f")).unwrap();
    assert_eq!(
        (attr.mode & 0o7777, attr.uid, attr.gid, attr.size, attr.mtime),
        (0o640, 7, 8, 100, at)
    );
    assert_eq!((host.mode() & 0o7777, host.uid(), host.gid(), host.len()), (0o640, 7, 8, 100));
    assert_eq!((host.mtime(), host.mtime_nsec()), (1_000_000, 5_000));
    // A change of the owner and the times of a symbolic link must affect the link, and not its
    // target.
    fs::write(dir.join("target"), b"").unwrap();
    symlink(&vfs, "l", "target").unwrap();
    let l = walk(&vfs, "l").unwrap();
    let set = SetAttr::default().with_uid(9).with_mtime(SetTime::At(at));
    vfs.setattr(&cred, &l, &set).unwrap();
    let (link, target) =
        (fs::symlink_metadata(dir.join("l")).unwrap(), fs::metadata(dir.join("target")).unwrap());
    assert_eq!((link.uid(), link.mtime()), (9, 1_000_000));
    assert_ne!((target.uid(), target.mtime()), (9, 1_000_000));
}

#[test]
fn extended_attributes_and_acls_are_those_of_the_host() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (f, cred) = (make(&vfs, "f").unwrap(), Cred::root());
    vfs.setxattr(&cred, &f, b"user.a", b"1", XattrMode::Create).unwrap();
    let long = vec![7; 3000];
    vfs.setxattr(&cred, &f, b"user.long", &long, XattrMode::Set).unwrap();
    assert_eq!(vfs.setxattr(&cred, &f, b"user.a", b"2", XattrMode::Create), Err(Errno::EXIST));
    assert_eq!(vfs.getxattr(&cred, &f, b"user.long"), Ok(long));
    assert_eq!(vfs.getxattr(&cred, &f, b"user.none"), Err(Errno::NODATA));
    vfs.removexattr(&cred, &f, b"user.long").unwrap();
    assert_eq!(vfs.listxattr(&cred, &f), Ok(b"user.a\0".to_vec()));
    let acl = Acl::new([
        Entry::new(Tag::UserObj, 6, Entry::NO_ID),
        Entry::new(Tag::User, 4, 1000),
        Entry::new(Tag::GroupObj, 0, Entry::NO_ID),
        Entry::new(Tag::Mask, 4, Entry::NO_ID),
        Entry::new(Tag::Other, 0, Entry::NO_ID),
    ])
    .unwrap();
    vfs.setxattr(&cred, &f, XATTR_ACCESS, &acl.to_xattr(), XattrMode::Set).unwrap();
    let mode = fs::metadata(dir.join("f")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o640, "the group bits show the mask");
    // A second `Vfs`, which has not cached the file, must find the ACL that the first `Vfs` has
    // set.
    let again = over(dir.path());
    let f = walk(&again, "f").unwrap();
    assert!(again.access(&Cred::user(1000, 1000, &[]), &f, May::READ).is_ok());
    assert!(again.access(&Cred::user(1000, 1000, &[]), &f, May::READ).is_ok());
    assert_eq!(again.access(&Cred::user(1001, 1001, &[]), &f, May::READ), Err(Errno::ACCESS));
    assert_eq!(again.getxattr(&cred, &f, XATTR_ACCESS), Ok(acl.to_xattr()));
}

/// An inode reference that was taken before the rename must stay usable. Trap P3.
#[test]
fn descendants_of_a_renamed_directory_are_found() {
    let dir = TempDir::new();
    let none = HostFsOptions::default().with_reusable(0).with_orphans(0);
    let vfs = with_options(dir.path(), none);
    for path in ["a/", "a/b/", "a/b/c/"] {
        make(&vfs, path).unwrap();
    }
    let f = make(&vfs, "a/b/c/f").unwrap();
    for (from, to) in [("a", "x"), ("x/b", "x/y"), ("x/y/c", "c"), ("c", "x/c")] {
        rename(&vfs, from, to, RenameMode::Replace).unwrap();
        assert_eq!(vfs.write(&Cred::root(), &f, 0, 0, to.as_bytes()), Ok(to.len()));
        assert_eq!(vfs.getattr(&f).unwrap().ino, f.ino());
    }
    assert_eq!(fs::read(dir.join("x/c/f")).unwrap(), b"x/c");
    assert_eq!(rename(&vfs, "x", "x/y/z", RenameMode::Replace), Err(Errno::INVAL));
}

#[test]
fn rename_modes_are_those_of_the_host() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    make(&vfs, "d/").unwrap();
    let (a, b) = (make(&vfs, "a").unwrap().ino(), make(&vfs, "d/b").unwrap().ino());
    assert_eq!(rename(&vfs, "a", "d/b", RenameMode::NoReplace), Err(Errno::EXIST));
    rename(&vfs, "a", "d/b", RenameMode::Exchange).unwrap();
    assert_eq!(fs::metadata(dir.join("a")).unwrap().ino(), b);
    assert_eq!(walk(&vfs, "d/b").unwrap().ino(), a);
    link(&vfs, "a", "c").unwrap();
    assert_eq!(vfs.getattr(&walk(&vfs, "c").unwrap()).unwrap().nlink, 2);
    rename(&vfs, "d/b", "c", RenameMode::Replace).unwrap();
    assert_eq!(fs::metadata(dir.join("c")).unwrap().ino(), a);
    assert_eq!(fs::metadata(dir.join("a")).unwrap().nlink(), 1);
    remove(&vfs, "d", Removal::Rmdir).unwrap();
    assert_eq!(list(&vfs, "/", 100).unwrap(), ["a", "c"]);
    assert!(!dir.join("d").exists());
}

/// No two inodes may have the same number and generation, even if they are created within one tick
/// of the host's clock. Trap P11.
#[test]
fn number_and_generation_never_repeat() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (mut seen, mut numbers) = (std::collections::HashSet::new(), 0);
    for _ in 0..2000 {
        let made = make(&vfs, "f").unwrap();
        let pair = (made.ino(), made.generation());
        assert!(seen.insert(pair), "{pair:?} was used twice");
        drop(made);
        assert_eq!(walk(&vfs, "f").map(|f| (f.ino(), f.generation())), Ok(pair));
        remove(&vfs, "f", Removal::Unlink).unwrap();
        numbers += 1;
    }
    let distinct: std::collections::HashSet<u64> = seen.iter().map(|(ino, _)| *ino).collect();
    assert!(distinct.len() < numbers, "the host reused no number, so the test shows nothing");
}

#[test]
fn listing_continues_after_its_last_entry() {
    let dir = TempDir::new();
    let mut names: Vec<String> = (0..3000).map(|i| format!("name-{i}")).collect();
    for name in &names {
        fs::write(dir.join(name), b"").unwrap();
    }
    names.sort_unstable();
    let vfs = over(dir.path());
    for reply in [7, 500, 10_000] {
        assert_eq!(list(&vfs, "/", reply).unwrap(), names);
    }
}

/// With `relatime`, only a read after a long time updates the access time.
fn make_read_long_ago(path: &std::path::Path) {
    let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    let times = fs::FileTimes::new().set_accessed(long_ago);
    fs::File::open(path).unwrap().set_times(times).unwrap();
}

#[test]
fn reads_without_atime_leave_access_times_of_the_host() {
    let dir = TempDir::new();
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/f"), "text").unwrap();
    // On a host with the mount option `noatime`, reads do not update the access time.
    make_read_long_ago(&dir.join("d/f"));
    fs::read(dir.join("d/f")).unwrap();
    let is_noted_here = fs::metadata(dir.join("d/f")).unwrap().atime() != 1_000_000;
    let relative = AtimePolicy::default();
    let files_alone = AtimePolicy { directories: Atime::Never, ..relative };
    for (atime, [is_file_noted, is_dir_noted]) in [
        (AtimePolicy::NEVER, [false, false]),
        (relative, [is_noted_here, is_noted_here]),
        (files_alone, [is_noted_here, false]),
    ] {
        for path in ["d", "d/f"] {
            make_read_long_ago(&dir.join(path));
        }
        let vfs = with_options(dir.path(), HostFsOptions::default().with_atime(atime));
        assert_eq!(list(&vfs, "d", 10), Ok(vec!["f".to_owned()]));
        let file = walk(&vfs, "d/f").unwrap();
        let handle =
            vfs.open(&Cred::root(), &file, OFlags::RDONLY.bits(), May::READ).unwrap().handle;
        for handle in [handle, 0] {
            assert_eq!(vfs.read(&file, handle, 0, &mut [0; 8]), Ok(4));
        }
        let is_noted = |path| fs::metadata(dir.join(path)).unwrap().atime() != 1_000_000;
        let noted = ["d/f", "d"].map(is_noted);
        assert_eq!(noted, [is_file_noted, is_dir_noted], "{atime:?}");
    }
}
