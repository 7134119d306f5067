//! Tests of files that are used after their last name was removed.

use std::fs;

use corewalk::{Cred, Errno, May, Removal, RenameMode, SetAttr};
use corewalk_hostfs::HostFsOptions;

use crate::fixtures::{TempDir, make, over, remove, rename, walk, with_options};

#[test]
fn unlinked_file_stays_usable_until_it_is_forgotten() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (f, cred) = (make(&vfs, "f").unwrap(), Cred::root());
    vfs.write(&cred, &f, 0, 0, b"before").unwrap();
    remove(&vfs, "f", Removal::Unlink).unwrap();
    assert!(!dir.join("f").exists());
    // A call on the removed file must not reach the new file, even if the call has no handle of an
    // open file.
    let other = make(&vfs, "f").unwrap();
    assert_ne!((other.ino(), other.generation()), (f.ino(), f.generation()));
    assert_eq!(vfs.write(&cred, &f, 0, 6, b" and after"), Ok(10));
    let mut buf = [0; 32];
    assert_eq!(vfs.read(&f, 0, 0, &mut buf), Ok(16));
    assert_eq!(&buf[..16], b"before and after");
    let attr = vfs.getattr(&f).unwrap();
    assert_eq!((attr.ino, attr.nlink, attr.size), (f.ino(), 0, 16));
    let set = SetAttr::default().with_mode(0o600).with_size(3);
    assert_eq!(vfs.setattr(&cred, &f, &set).unwrap().size, 3);
    assert_eq!(vfs.getattr(&other).unwrap().size, 0);
}

#[test]
fn replaced_file_and_removed_directory_stay_usable() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    let (a, b, d) = (make(&vfs, "a").unwrap(), make(&vfs, "b").unwrap(), make(&vfs, "d/").unwrap());
    rename(&vfs, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!(vfs.getattr(&b).unwrap().nlink, 0);
    assert_eq!(vfs.getattr(&a).unwrap().ino, walk(&vfs, "b").unwrap().ino());
    remove(&vfs, "d", Removal::Rmdir).unwrap();
    assert_eq!(vfs.getattr(&d).unwrap().ino, d.ino());
    let made = vfs.lookup(&Cred::root(), &d, crate::fixtures::name("f"));
    assert_eq!(made.err(), Some(Errno::NOENT));
}

#[test]
fn directory_that_is_not_empty_stays() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    make(&vfs, "d/").unwrap();
    make(&vfs, "d/f").unwrap();
    assert_eq!(remove(&vfs, "d", Removal::Rmdir), Err(Errno::NOTEMPTY));
    assert_eq!(walk(&vfs, "d/f").map(drop), Ok(()));
    fs::remove_file(dir.join("d/f")).unwrap();
    assert_eq!(remove(&vfs, "d", Removal::Rmdir), Ok(()));
}

#[test]
fn orphans_beyond_the_bound_are_stale_unless_they_are_open() {
    let dir = TempDir::new();
    let vfs = with_options(dir.path(), HostFsOptions::default().with_reusable(4).with_orphans(2));
    let cred = Cred::root();
    let files: Vec<_> = (0..4).map(|i| make(&vfs, &format!("f{i}")).unwrap()).collect();
    let handle = vfs.open(&cred, &files[0], 2, May::READ | May::WRITE).unwrap().handle;
    for i in 0..4 {
        remove(&vfs, &format!("f{i}"), Removal::Unlink).unwrap();
    }
    assert_eq!(vfs.write(&cred, &files[0], handle, 0, b"open"), Ok(4));
    assert_eq!(vfs.getattr(&files[0]).unwrap().size, 4);
    assert_eq!(vfs.getattr(&files[1]), Err(Errno::STALE));
    assert!(vfs.getattr(&files[2]).is_ok() && vfs.getattr(&files[3]).is_ok());
    vfs.release(&files[0], handle);
    assert_eq!(vfs.getattr(&files[0]), Err(Errno::STALE));
}
