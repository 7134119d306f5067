//! The order of errors, and the attributes of new and changed files, as on Linux.
//!
//! If several errors apply to a call, the tests expect the error that Linux 6.18 returns on ext4
//! and tmpfs.

use std::sync::Arc;

use corewalk::acl::{Acl, XATTR_DEFAULT};
use corewalk::attr::mode::{S_IFBLK, S_IFDIR, S_IFIFO, S_IFLNK, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Caps, Cred, Errno, Fallocate, InodeRef, Make, May, Removal, RenameMode, Seek, SetAttr, SetTime,
    Timespec, Vfs, XattrMode,
};

use crate::fixtures::{name, new, over, remove, tree, walk};

fn user() -> Cred {
    Cred::user(1000, 1000, &[])
}

fn strict() -> Arc<Vfs> {
    let vfs = new();
    chmod(&vfs, ".", 0o755);
    vfs
}

fn chmod(vfs: &Vfs, path: &str, mode: u32) {
    let set = SetAttr::default().with_mode(mode);
    vfs.setattr(&Cred::root(), &walk(vfs, path).unwrap(), &set).unwrap();
}

#[test]
fn link_of_a_directory_onto_an_existing_name_is_eexist() {
    let vfs = strict();
    tree(&vfs, &["d/", "f", "open/", "open/f"]);
    let (d, open) = (walk(&vfs, "d").unwrap(), walk(&vfs, "open").unwrap());
    chmod(&vfs, "open", 0o777);
    for is_cached in [true, false] {
        for (cred, dir) in
            [(Cred::root(), vfs.root()), (user(), vfs.root()), (user(), open.clone())]
        {
            if !is_cached {
                vfs.invalidate(&dir, name("f")).unwrap();
            }
            let link = |to: &str| vfs.link(&cred, &d, &dir, name(to)).err();
            assert_eq!(link("f"), Some(Errno::EXIST), "cached: {is_cached}");
            let may_write = vfs.access(&cred, &dir, May::WRITE).is_ok();
            let refused = if may_write { Errno::PERM } else { Errno::ACCESS };
            assert_eq!(link("new"), Some(refused));
        }
    }
}

#[test]
fn existing_name_in_a_directory_that_is_not_writable_is_eexist() {
    let vfs = strict();
    tree(&vfs, &["d/", "shut/", "shut/d/"]);
    chmod(&vfs, "shut", 0o744);
    let make = |dir: &str, file: &str, mode: u32| {
        let dir = walk(&vfs, dir).unwrap();
        vfs.make(&user(), &dir, name(file), Make::new(mode, 1000, 1000)).map(drop)
    };
    assert_eq!(make(".", "d", S_IFDIR | 0o755), Err(Errno::EXIST));
    vfs.invalidate(&vfs.root(), name("d")).unwrap();
    assert_eq!(make(".", "d", S_IFDIR | 0o755), Err(Errno::EXIST));
    assert_eq!(make(".", "e", S_IFDIR | 0o755), Err(Errno::ACCESS));
    assert_eq!(make(".", "d", S_IFBLK | 0o644), Err(Errno::EXIST));
    assert_eq!(
        make("shut", "d", S_IFDIR | 0o755),
        Err(Errno::ACCESS),
        "a caller without search permission learns of the name"
    );
}

#[test]
fn existing_name_on_a_full_file_system_is_eexist() {
    let vfs = over(Tmpfs::new(TmpfsOptions::default().with_inodes_max(3)));
    tree(&vfs, &["f", "g"]);
    let (cred, root, g) = (Cred::root(), vfs.root(), walk(&vfs, "g").unwrap());
    let make = |to: &str| vfs.make(&cred, &root, name(to), Make::new(0o644, 0, 0)).err();
    let link = |to: &str| vfs.link(&cred, &g, &root, name(to)).err();
    for act in [&make as &dyn Fn(&str) -> Option<Errno>, &link] {
        vfs.invalidate(&root, name("f")).unwrap();
        assert_eq!((act("f"), act("new")), (Some(Errno::EXIST), Some(Errno::NOSPC)));
    }
}

#[test]
fn name_in_a_file_is_enotdir() {
    let vfs = new();
    tree(&vfs, &["f", "g"]);
    let (f, g) = (walk(&vfs, "f").unwrap(), walk(&vfs, "g").unwrap());
    for cred in [Cred::root(), user()] {
        let what = || Make::new(S_IFREG | 0o644, 0, 0);
        assert_eq!(vfs.make(&cred, &f, name("x"), what()).err(), Some(Errno::NOTDIR));
        assert_eq!(vfs.tmpfile(&cred, &f, what()).err(), Some(Errno::NOTDIR));
        assert_eq!(vfs.link(&cred, &g, &f, name("x")).err(), Some(Errno::NOTDIR));
        for removal in [Removal::Unlink, Removal::Rmdir] {
            assert_eq!(vfs.remove(&cred, &f, name("x"), removal), Err(Errno::NOTDIR));
        }
        assert_eq!(vfs.lookup(&cred, &f, name("x")).err(), Some(Errno::NOTDIR));
        let (file, root) = ((&f, name("x")), (vfs.root(), name("x")));
        for (from, to) in [(file, (&root.0, root.1)), ((&root.0, root.1), file)] {
            assert_eq!(vfs.rename(&cred, from, to, RenameMode::Replace), Err(Errno::NOTDIR));
        }
    }
}

#[test]
fn make_applies_the_umask_without_a_default_acl() {
    let vfs = new();
    tree(&vfs, &["plain/", "with/"]);
    let value = Acl::from_mode(0o775).to_xattr();
    let with = walk(&vfs, "with").unwrap();
    vfs.setxattr(&Cred::root(), &with, XATTR_DEFAULT, &value, XattrMode::Set).unwrap();
    let made = |dir: &str, mode: u32| {
        let dir = walk(&vfs, dir).unwrap();
        let what = Make::new(mode, 0, 0).with_umask(0o7027).with_target(b"t");
        let made = vfs.make(&Cred::root(), &dir, name("x"), what.clone());
        let (_, attr) = made.unwrap();
        vfs.remove(
            &Cred::root(),
            &dir,
            name("x"),
            if attr.is_dir() { Removal::Rmdir } else { Removal::Unlink },
        )
        .unwrap();
        attr.mode & 0o7777
    };
    assert_eq!(made("plain", S_IFREG | 0o4666), 0o4640);
    assert_eq!(made("plain", S_IFDIR | 0o777), 0o750);
    assert_eq!(made("plain", S_IFLNK | 0o777), 0o777, "a symbolic link has mode 0777");
    assert_eq!(made("with", S_IFREG | 0o666), 0o664);
    assert_eq!(made("with", S_IFDIR | 0o777), 0o775);
    let what = Make::new(S_IFREG | 0o666, 0, 0).with_umask(0o077);
    let (_, attr) = vfs.tmpfile(&Cred::root(), &vfs.root(), what).unwrap();
    assert_eq!(attr.mode & 0o7777, 0o600);
}

#[test]
fn fallocate_by_another_user_clears_set_user_id() {
    let vfs = new();
    let what = Make::new(S_IFREG | 0o6755, 0, 0);
    let (f, _) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
    let grow = |cred: &Cred, len| vfs.fallocate(cred, &f, 0, 0, len, Fallocate::empty());
    assert_eq!(grow(&user(), 0), Err(Errno::INVAL));
    grow(&Cred::root(), 4096).unwrap();
    assert_eq!(
        vfs.getattr(&f).unwrap().mode & 0o7777,
        0o6755,
        "the bits were lost without an allocation, or by root"
    );
    grow(&user(), 8192).unwrap();
    let attr = vfs.getattr(&f).unwrap();
    assert_eq!((attr.mode & 0o7777, attr.size), (0o755, 8192));
}

#[test]
fn security_attributes_need_a_capability_to_change() {
    let capability = |bytes, version: u8| {
        let mut value = vec![0; bytes];
        (value[0], value[3]) = (1, version);
        value
    };
    let (second, third) = (capability(20, 2), capability(24, 3));
    let vfs = new();
    let what = Make::new(S_IFREG | 0o666, 1000, 1000);
    let (f, _) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
    let (label, caps) = (&b"security.label"[..], &b"security.capability"[..]);
    for (attribute, value, needed) in [
        (label, &b"v"[..], Caps::SYS_ADMIN),
        (label, b"", Caps::SYS_ADMIN),
        (caps, &second, Caps::SETFCAP),
        (caps, &third, Caps::SETFCAP),
        (caps, b"", Caps::SETFCAP),
        (b"trusted.t", b"v", Caps::SYS_ADMIN),
    ] {
        let may = user().with_caps(needed);
        let set = |cred: &Cred| vfs.setxattr(cred, &f, attribute, value, XattrMode::Set);
        let remove = |cred: &Cred| vfs.removexattr(cred, &f, attribute);
        for other in [user(), user().with_caps(Caps::all() - needed)] {
            assert_eq!(
                remove(&other),
                Err(Errno::PERM),
                "{needed:?}: removal of an absent attribute"
            );
            assert_eq!(set(&other), Err(Errno::PERM), "{needed:?}");
            set(&may).unwrap();
            let read = vfs.getxattr(&user(), &f, attribute);
            let is_open = attribute != b"trusted.t";
            assert_eq!(read, if is_open { Ok(value.to_vec()) } else { Err(Errno::NODATA) });
            assert_eq!(vfs.listxattr(&user(), &f).unwrap().is_empty(), !is_open);
            assert_eq!(remove(&other), Err(Errno::PERM), "{needed:?}");
            remove(&may).unwrap();
            assert_eq!(remove(&may), Err(Errno::NODATA));
        }
    }
    for bad in [&second[..19], &third[..20], &[&second[..], b"x"].concat(), &capability(20, 1)] {
        let set = |cred: &Cred| vfs.setxattr(cred, &f, caps, bad, XattrMode::Set);
        assert_eq!((set(&user()), set(&Cred::root())), (Err(Errno::INVAL), Err(Errno::INVAL)));
    }
}

/// Set-group-ID must stay on a file that its group may not execute, if the caller is in the group
/// or has `CAP_FSETID`. The test makes a write, a truncation and a chown. A chown that also clears
/// set-user-ID clears set-group-ID, too, if the caller is not in the new group.
#[test]
fn set_group_id_without_execution_stays_for_the_group() {
    let vfs = new();
    let member = Cred::user(1001, 1001, &[50]);
    let cut = SetAttr::default().with_size(0);
    let give = SetAttr::default().with_gid(1000);
    type Call<'a> = &'a dyn Fn(&Cred, &InodeRef<'_>);
    let calls: [Call<'_>; 5] = [
        &|cred, f| assert_eq!(vfs.write(cred, f, 0, 0, b"x"), Ok(1)),
        &|cred, f| assert_eq!(vfs.write_with_lazy_cred(f, 0, 0, b"x", || cred.clone()), Ok(1)),
        &|cred, f| vfs.fallocate(cred, f, 0, 0, 9, Fallocate::empty()).unwrap(),
        &|cred, f| assert_eq!(vfs.setattr(cred, f, &cut).map(|attr| attr.size), Ok(0)),
        // Some callers may not make this change. Their error must not be `EACCES`.
        &|cred, f| assert_ne!(vfs.setattr(cred, f, &give).err(), Some(Errno::ACCESS)),
    ];
    let left = |cred: &Cred, mode: u32, call: usize| {
        let what = Make::new(S_IFREG | mode, 1000, 50);
        let (f, _) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
        calls[call](cred, &f);
        remove(&vfs, "f", Removal::Unlink).unwrap();
        vfs.getattr(&f).unwrap().mode & 0o7777
    };
    for call in 0..4 {
        assert_eq!(left(&member, 0o6666, call), 0o2666, "{call}");
        assert_eq!(left(&user(), 0o6666, call), 0o666, "{call}");
        assert_eq!(left(&user(), 0o2666, call), 0o666, "{call}");
        assert_eq!(left(&member, 0o2676, call), 0o676, "{call}");
        assert_eq!(left(&Cred::root(), 0o6676, call), 0o6676, "{call}");
    }
    assert_eq!(left(&Cred::user(1000, 1000, &[50]), 0o2666, 4), 0o2666);
    assert_eq!(left(&Cred::user(1000, 1000, &[]), 0o2666, 4), 0o666);
    let chown = member.with_caps(Caps::CHOWN);
    assert_eq!(left(&chown, 0o2666, 4), 0o2666, "set-group-ID was lost");
    assert_eq!(left(&chown, 0o6666, 4), 0o6666, "a refused chown changed the mode");
    let may_chmod = chown.with_caps(Caps::CHOWN | Caps::FOWNER);
    assert_eq!(left(&may_chmod, 0o6666, 4), 0o666, "set-group-ID is kept in a foreign group");
}

#[test]
fn empty_write_keeps_set_user_id() {
    let vfs = new();
    let what = Make::new(S_IFREG | 0o6777, 1000, 1000);
    let (f, made) = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap();
    assert_eq!(vfs.write(&user(), &f, 0, 3, b""), Ok(0));
    assert_eq!(
        vfs.write_with_lazy_cred(&f, 0, 3, b"", || panic!(
            "the caller is looked up for an empty write"
        )),
        Ok(0)
    );
    assert_eq!(vfs.getattr(&f), Ok(made), "an empty write changed the attributes");
}

#[test]
fn directory_is_made_with_set_group_id_of_its_parent_only() {
    let vfs = new();
    for (parent, made) in [(0o777, 0o1777), (0o2777, 0o3777)] {
        chmod(&vfs, ".", parent);
        for cred in [Cred::root(), user()] {
            let what = || Make::new(S_IFDIR | 0o7777, 1000, 1000);
            let (_, attr) = vfs.make(&cred, &vfs.root(), name("d"), what()).unwrap();
            assert_eq!(attr.mode & 0o7777, made, "in {parent:o}");
            remove(&vfs, "d", Removal::Rmdir).unwrap();
        }
    }
}

#[test]
fn fallocate_and_seek_have_the_errors_of_linux() {
    use Fallocate as F;
    const BIG: u64 = i64::MAX as u64;
    let vfs = new();
    let made = |file: &'static str, mode| {
        vfs.make(&Cred::root(), &vfs.root(), name(file), Make::new(mode, 1000, 1000)).unwrap().0
    };
    let f = made("f", S_IFREG | 0o6777);
    let others =
        [made("p", S_IFIFO | 0o666), made("d", S_IFDIR | 0o777), made("b", S_IFBLK | 0o666)];
    for (how, offset, len, errno) in [
        (F::PUNCH_HOLE, 0, 0, Errno::INVAL),
        (F::PUNCH_HOLE, 0, 1, Errno::OPNOTSUPP),
        (F::COLLAPSE_RANGE | F::KEEP_SIZE, 0, 1, Errno::OPNOTSUPP),
        (F::INSERT_RANGE | F::KEEP_SIZE, BIG, BIG, Errno::OPNOTSUPP),
        (F::INSERT_RANGE | F::COLLAPSE_RANGE, 0, 1, Errno::OPNOTSUPP),
        (F::PUNCH_HOLE | F::ZERO_RANGE | F::KEEP_SIZE, 0, 1, Errno::OPNOTSUPP),
        (F::from_bits_retain(0x80), 0, 1, Errno::OPNOTSUPP),
        (F::empty(), BIG, 1, Errno::FBIG),
        (F::KEEP_SIZE, 1, u64::MAX, Errno::FBIG),
    ] {
        let ask = |file| vfs.fallocate(&user(), file, 0, offset, len, how);
        assert_eq!(ask(&f), Err(errno), "{how:?}");
        for (other, kind) in others.iter().zip([Errno::SPIPE, Errno::ISDIR, Errno::NODEV]) {
            let errno = if errno == Errno::FBIG { kind } else { errno };
            assert_eq!(ask(other), Err(errno), "{how:?}");
        }
    }
    assert_eq!(vfs.getattr(&f).unwrap().mode & 0o7777, 0o6777, "a failed call changed the mode");
    for (other, errno) in others.iter().zip([Errno::SPIPE, Errno::INVAL, Errno::INVAL]) {
        for what in [Seek::Data, Seek::Hole] {
            assert_eq!(vfs.seek(other, 0, 0, what), Err(errno));
        }
    }
}

#[test]
fn mode_of_a_link_and_invalid_times_are_refused() {
    let vfs = new();
    let link = Make::new(S_IFLNK | 0o777, 1000, 1000).with_target(b"t");
    let (l, made) = vfs.make(&Cred::root(), &vfs.root(), name("l"), link).unwrap();
    for cred in [Cred::root(), user(), Cred::user(2, 2, &[])] {
        let set = |set: SetAttr| vfs.setattr(&cred, &l, &set).err();
        assert_eq!(set(SetAttr::default().with_mode(0o600)), Some(Errno::OPNOTSUPP));
        let none = Some(SetTime::At(Timespec { secs: 1, nanos: 1_000_000_000 }));
        assert_eq!(set(SetAttr::default().with_atime(none)), Some(Errno::INVAL));
        assert_eq!(set(SetAttr::default().with_mtime(none)), Some(Errno::INVAL));
    }
    assert_eq!(vfs.getattr(&l), Ok(made));
    let last = Some(SetTime::At(Timespec { secs: -1, nanos: 999_999_999 }));
    let set = SetAttr::default().with_atime(last).with_uid(7);
    assert_eq!(vfs.setattr(&Cred::root(), &l, &set).map(|attr| attr.uid), Ok(7));
}
