//! The namespace operations, one by one, over tmpfs.

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileKind, FsStruct, Make, PathKind, Removal, RenameMode, Vfs, VfsOptions,
    WalkFlags,
};

use crate::fixtures::{at, name, new, remove, rename, tree, walk};

#[test]
fn lookup_of_a_made_name_finds_it_and_of_others_fails() {
    let vfs = new();
    tree(&vfs, &["a/", "a/b/", "a/b/c"]);
    let found = walk(&vfs, "/a/b/c").unwrap();
    assert_eq!(walk(&vfs, "a/./b/../b/c").unwrap().ino(), found.ino());
    assert_eq!(walk(&vfs, "/a/b/x").unwrap_err(), Errno::NOENT);
    assert_eq!(walk(&vfs, "/a/b/c/d").unwrap_err(), Errno::NOTDIR);
    assert_eq!(walk(&vfs, "/a/b/c/").unwrap_err(), Errno::NOTDIR);
    assert_eq!(walk(&vfs, "").unwrap_err(), Errno::NOENT);
    assert_eq!(walk(&vfs, "/../../a").unwrap().ino(), walk(&vfs, "/a").unwrap().ino());
    assert_eq!(found.path().unwrap(), b"/a/b/c");
}

#[test]
fn rename_moves_a_whole_tree_and_its_paths() {
    let vfs = new();
    tree(&vfs, &["a/", "a/b/", "a/b/c", "z/"]);
    let c = walk(&vfs, "/a/b/c").unwrap();
    rename(&vfs, "a/b", "z/y", RenameMode::Replace).unwrap();
    assert_eq!(c.path().unwrap(), b"/z/y/c");
    assert_eq!(walk(&vfs, "/a/b/c").unwrap_err(), Errno::NOENT);
    assert_eq!(walk(&vfs, "/z/y/c").unwrap().ino(), c.ino());
    assert_eq!(rename(&vfs, "z", "z/y/w", RenameMode::Replace), Err(Errno::INVAL));
    assert_eq!(rename(&vfs, "z/y/c", "z/y", RenameMode::Replace), Err(Errno::NOTEMPTY));
    assert_eq!(rename(&vfs, "z/y", "z", RenameMode::Replace), Err(Errno::NOTEMPTY));
}

#[test]
fn rename_modes_treat_targets_as_documented() {
    let vfs = new();
    tree(&vfs, &["a", "b", "d/", "d/x"]);
    let (a, b) = (walk(&vfs, "a").unwrap().ino(), walk(&vfs, "b").unwrap().ino());
    assert_eq!(rename(&vfs, "a", "b", RenameMode::NoReplace), Err(Errno::EXIST));
    assert_eq!(rename(&vfs, "a", "c", RenameMode::Exchange), Err(Errno::NOENT));
    rename(&vfs, "a", "b", RenameMode::Exchange).unwrap();
    assert_eq!((walk(&vfs, "a").unwrap().ino(), walk(&vfs, "b").unwrap().ino()), (b, a));
    let x = walk(&vfs, "d/x").unwrap().ino();
    rename(&vfs, "a", "d/x", RenameMode::Exchange).unwrap();
    assert_eq!((walk(&vfs, "a").unwrap().ino(), walk(&vfs, "d/x").unwrap().ino()), (x, b));
    rename(&vfs, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!(walk(&vfs, "b").unwrap().ino(), x);
    assert_eq!(walk(&vfs, "a").unwrap_err(), Errno::NOENT);
}

#[test]
fn removed_file_stays_usable_until_its_last_reference() {
    let vfs = new();
    tree(&vfs, &["f", "d/"]);
    let f = walk(&vfs, "f").unwrap();
    vfs.write(&Cred::root(), &f, 0, 0, b"text").unwrap();
    remove(&vfs, "f", Removal::Unlink).unwrap();
    assert_eq!(walk(&vfs, "f").unwrap_err(), Errno::NOENT);
    assert_eq!(f.path(), Err(Errno::NOENT));
    let mut text = [0; 8];
    assert_eq!(vfs.read(&f, 0, 0, &mut text), Ok(4));
    assert_eq!(vfs.getattr(&f).unwrap().nlink, 0);
    let ino = f.ino();
    drop(f);
    assert_eq!(vfs.inode(ino).err(), Some(Errno::STALE));
    assert_eq!(remove(&vfs, "d", Removal::Unlink), Err(Errno::ISDIR));
    let d = vfs.walk(&Cred::root(), &at(&vfs), b"d", WalkFlags::empty()).unwrap();
    remove(&vfs, "d", Removal::Rmdir).unwrap();
    assert_eq!(d.path_of(&vfs.root_path()), (b"/d".to_vec(), PathKind::Unlinked));
    assert_eq!(d.d_path(&vfs.root_path()), b"/d (deleted)");
    let made = vfs.make(&Cred::root(), &d.inode(), name("x"), Make::new(0o644, 0, 0));
    assert_eq!(made.err(), Some(Errno::NOENT));
}

#[test]
fn symbolic_links_are_followed_forty_times() {
    let vfs = new();
    tree(&vfs, &["d/", "d/f", "l0 -> d/f", "abs -> /d", "loop -> loop"]);
    for i in 1..=41 {
        tree(&vfs, &[&format!("l{i} -> l{}", i - 1)]);
    }
    let f = walk(&vfs, "d/f").unwrap().ino();
    assert_eq!(walk(&vfs, "l39").unwrap().ino(), f);
    assert_eq!(walk(&vfs, "l40").unwrap_err(), Errno::LOOP);
    assert_eq!(walk(&vfs, "loop").unwrap_err(), Errno::LOOP);
    assert_eq!(walk(&vfs, "abs/f").unwrap().ino(), f);
    assert_eq!(walk(&vfs, "abs/../d/f").unwrap().ino(), f);
    let flags = WalkFlags::FOLLOW | WalkFlags::NO_SYMLINKS;
    let refused = vfs.walk(&Cred::root(), &at(&vfs), b"abs/f", flags);
    assert_eq!(refused.err(), Some(Errno::LOOP));
    let link = vfs.walk(&Cred::root(), &at(&vfs), b"abs", WalkFlags::empty()).unwrap();
    assert_eq!(vfs.readlink(&link.inode()).unwrap(), b"/d");
}

#[test]
fn confined_walk_stays_below_its_start() {
    let vfs = new();
    tree(
        &vfs,
        &["jail/", "jail/in/", "jail/in/f", "jail/abs -> /in/f", "jail/up -> ../out", "out"],
    );
    let cwd = vfs.walk(&Cred::root(), &at(&vfs), b"jail", WalkFlags::empty()).unwrap();
    let jail = FsStruct { root: vfs.root_path(), cwd };
    let go = |path: &str, flags| {
        let found = vfs.walk(&Cred::root(), &jail, path.as_bytes(), flags | WalkFlags::FOLLOW);
        found.map(|found| found.inode().path().unwrap())
    };
    assert_eq!(go("in/../in/f", WalkFlags::BENEATH).unwrap(), b"/jail/in/f");
    assert_eq!(go("..", WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(go("in/../../out", WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(go("/in/f", WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(go("abs", WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(go("up", WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(go("abs", WalkFlags::IN_ROOT).unwrap(), b"/jail/in/f");
    assert_eq!(go("../../in/f", WalkFlags::IN_ROOT).unwrap(), b"/jail/in/f");
    assert_eq!(go("up", WalkFlags::IN_ROOT), Err(Errno::NOENT));
    assert_eq!(go("../out", WalkFlags::empty()).unwrap(), b"/out");
}

#[test]
fn mounts_are_crossed_both_ways() {
    let vfs = new();
    tree(&vfs, &["m/", "m/hidden", "f"]);
    let point = vfs.walk(&Cred::root(), &at(&vfs), b"m", WalkFlags::empty()).unwrap();
    vfs.mount(Arc::new(Tmpfs::new(TmpfsOptions::default())), &point).unwrap();
    assert_eq!(walk(&vfs, "m/hidden").unwrap_err(), Errno::NOENT);
    tree(&vfs, &["m/new/", "m/new/x"]);
    let x = vfs.walk(&Cred::root(), &at(&vfs), b"m/new/x", WalkFlags::empty()).unwrap();
    assert_eq!(x.path_of(&vfs.root_path()), (b"/m/new/x".to_vec(), PathKind::Linked));
    assert_eq!(walk(&vfs, "m/new/../../f").unwrap().ino(), walk(&vfs, "f").unwrap().ino());
    let crossing = vfs.walk(&Cred::root(), &at(&vfs), b"m/new", WalkFlags::NO_XDEV);
    assert_eq!(crossing.err(), Some(Errno::XDEV));
    assert_eq!(remove(&vfs, "m", Removal::Rmdir), Err(Errno::BUSY));
    assert_eq!(rename(&vfs, "m", "n", RenameMode::Replace), Err(Errno::BUSY));
    let root = vfs.walk(&Cred::root(), &at(&vfs), b"m", WalkFlags::empty()).unwrap();
    assert_eq!(vfs.umount(root.clone()), Err(Errno::BUSY));
    drop(x);
    let cred = Cred::root();
    let moved = vfs.rename(
        &cred,
        (&vfs.root(), name("f")),
        (&root.inode(), name("f")),
        RenameMode::Replace,
    );
    assert_eq!(moved, Err(Errno::XDEV));
    vfs.umount(root).unwrap();
    assert!(walk(&vfs, "m/hidden").is_ok());
}

#[test]
fn permissions_are_checked_on_the_way() {
    let vfs = new();
    tree(&vfs, &["open/", "open/f", "shut/", "shut/f"]);
    let shut = walk(&vfs, "shut").unwrap();
    let set = corewalk::SetAttr::default().with_mode(0o700);
    vfs.setattr(&Cred::root(), &shut, &set).unwrap();
    let user = Cred::user(1000, 1000, &[]);
    let go = |path: &str| vfs.walk(&user, &at(&vfs), path.as_bytes(), WalkFlags::FOLLOW).map(drop);
    assert_eq!(go("open/f"), Ok(()));
    assert_eq!(go("shut/f"), Err(Errno::ACCESS));
    assert_eq!(go("shut"), Ok(()));
    let set = corewalk::SetAttr::default().with_mode(0o711);
    vfs.setattr(&Cred::root(), &shut, &set).unwrap();
    assert_eq!(go("shut/f"), Ok(()));
    let made = vfs.make(&user, &shut, name("g"), Make::new(0o644, 1000, 1000));
    assert_eq!(made.err(), Some(Errno::ACCESS));
    assert_eq!(vfs.setattr(&user, &shut, &set).err(), Some(Errno::PERM));
}

#[test]
fn long_names_are_kept_whole() {
    let vfs = new();
    for len in [1, 7, 8, 31, 32, 33, 39, 40, 41, 63, 96, 97, 104, 105, 254, 255] {
        let text: String = (0..len).map(|i| (b'a' + (i * 7 + len) as u8 % 26) as char).collect();
        let (file, dir) = (format!("F{}", &text[1..]), format!("D{}", &text[1..]));
        tree(&vfs, &[&file, &format!("{dir}/"), &format!("{dir}/{file}")]);
        let inner = walk(&vfs, &format!("{dir}/{file}")).unwrap();
        assert_eq!(inner.path().unwrap(), format!("/{dir}/{file}").as_bytes());
        let other = if len == 255 { "short".to_string() } else { format!("{file}x") };
        rename(&vfs, &format!("{dir}/{file}"), &other, RenameMode::Replace).unwrap();
        assert_eq!(inner.path().unwrap(), format!("/{other}").as_bytes());
        rename(&vfs, &dir, &format!("{dir}/../R{len}"), RenameMode::Replace).unwrap();
        rename(&vfs, &other, &format!("R{len}/{file}"), RenameMode::Replace).unwrap();
        assert_eq!(inner.path().unwrap(), format!("/R{len}/{file}").as_bytes());
    }
}

#[test]
fn hard_links_share_an_inode() {
    let vfs = new();
    tree(&vfs, &["d/", "a"]);
    let a = walk(&vfs, "a").unwrap();
    let d = walk(&vfs, "d").unwrap();
    vfs.link(&Cred::root(), &a, &d, name("b")).unwrap();
    assert_eq!(walk(&vfs, "d/b").unwrap().ino(), a.ino());
    assert_eq!(vfs.getattr(&a).unwrap().nlink, 2);
    assert_eq!(vfs.link(&Cred::root(), &a, &d, name("b")).err(), Some(Errno::EXIST));
    assert_eq!(vfs.link(&Cred::root(), &d, &d, name("c")).err(), Some(Errno::PERM));
    rename(&vfs, "a", "d/b", RenameMode::Replace).unwrap();
    assert!(walk(&vfs, "a").is_ok(), "a rename between names of one inode removed one");
    remove(&vfs, "a", Removal::Unlink).unwrap();
    assert_eq!(a.path().unwrap(), b"/d/b");
}

#[test]
fn names_in_an_invalidated_directory_are_looked_up_again() {
    let vfs = new();
    tree(&vfs, &["d/", "d/e/", "d/e/f"]);
    let f = walk(&vfs, "d/e/f").unwrap().ino();
    let before = vfs.stats().misses;
    assert_eq!(walk(&vfs, "d/e/f").unwrap().ino(), f);
    assert_eq!(vfs.stats().misses, before);
    vfs.invalidate_dir(&walk(&vfs, "d").unwrap()).unwrap();
    assert_eq!(walk(&vfs, "d/e/f").unwrap().ino(), f);
    assert_eq!(vfs.stats().misses, before + 1, "only e is looked up again, f is still cached");
    vfs.invalidate(&walk(&vfs, "d").unwrap(), name("e")).unwrap();
    assert_eq!(walk(&vfs, "d/e/f").unwrap().ino(), f);
    let before = vfs.stats().misses;
    let mut seen = vec![];
    vfs.invalidate_all(&mut |ino, kind| seen.push((ino, kind)));
    assert_eq!(walk(&vfs, "d/e/f").unwrap().ino(), f);
    assert_eq!(vfs.stats().misses, before + 3, "each name is looked up again");
    assert!(seen.contains(&(f, FileKind::Regular)) && seen.len() == 4, "{seen:?}");
}

#[test]
fn prune_evicts_exactly_the_unused_entries() {
    let vfs = new();
    let start = vfs.stats();
    for i in 0..2000 {
        tree(&vfs, &[&format!("d{i}/"), &format!("d{i}/f")]);
    }
    let held = walk(&vfs, "d77/f").unwrap();
    assert_eq!(vfs.stats().entries, start.entries + 4000);
    vfs.prune();
    assert_eq!(vfs.stats().entries, start.entries + 2);
    assert_eq!(held.path().unwrap(), b"/d77/f");
    assert_eq!(walk(&vfs, "d78/f").unwrap().path().unwrap(), b"/d78/f");
    drop(held);
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.entries, end.inodes, end.negatives), (start.entries, start.inodes, 0));
}

/// A new file takes the slot of its name's negative dentry. Here this is the last free slot, so a
/// creation that needed another slot would fail after the back end has made the file.
#[test]
fn make_reuses_the_last_slot_of_a_missing_name() {
    let options = VfsOptions::default().with_entries_max(1024);
    let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), options).unwrap();
    let (cred, root) = (Cred::root(), vfs.root());
    let make = |file: &str, mode| {
        let made = vfs.make(&cred, &root, name(file), Make::new(mode | 0o755, 0, 0));
        made.map(|(inode, _)| inode)
    };
    let mut held = vec![];
    while vfs.stats().inodes < 1022 {
        held.push(make(&format!("f{}", held.len()), S_IFREG).unwrap());
    }
    for (kind, removal) in [(S_IFREG, Removal::Unlink), (S_IFDIR, Removal::Rmdir)] {
        assert_eq!(vfs.lookup(&cred, &root, name("x")).map(drop), Err(Errno::NOENT));
        assert_eq!(vfs.stats().negatives, 1, "the missing name has no slot");
        let x = make("x", kind).expect("make reuses the slot of the missing name");
        assert_eq!(vfs.lookup(&cred, &root, name("x")).unwrap().ino(), x.ino());
        assert_eq!(vfs.stats().negatives, 0);
        drop(x);
        remove(&vfs, "x", removal).unwrap();
        vfs.prune();
    }
}
