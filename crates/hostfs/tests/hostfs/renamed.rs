//! Tests of directories that clients use while other programs rename them on the host.

use std::fs;
use std::os::fd::AsFd as _;

use corewalk::{AtimePolicy, Cred, Errno, Make};
use corewalk_base::file_handle::FileHandle;
use corewalk_hostfs::HostFsOptions;
use corewalk_testkit::require::{Need, skip};
use rustix::fs::OFlags;

use crate::fixtures::{TempDir, make, name, walk, with_options};

fn none_kept() -> HostFsOptions {
    let options = HostFsOptions::default().with_reusable(0).with_orphans(0);
    options.with_atime(AtimePolicy::NEVER)
}

fn has_handles(dir: &TempDir) -> bool {
    let root = fs::File::open(dir.path()).unwrap();
    let opened =
        FileHandle::of(root.as_fd(), b"").and_then(|it| it.open(root.as_fd(), OFlags::PATH));
    if let Err(error) = &opened {
        skip(Need::Root, format_args!("no file handles: {error}"));
    }
    opened.is_ok()
}

#[test]
fn held_directory_renamed_on_the_host_is_found_by_its_handle() {
    let dir = TempDir::new();
    if !has_handles(&dir) {
        return;
    }
    fs::create_dir_all(dir.join("a/held/sub")).unwrap();
    fs::create_dir(dir.join("b")).unwrap();
    fs::write(dir.join("a/held/file"), "text").unwrap();
    fs::write(dir.join("a/held/sub/deep"), "deeper").unwrap();
    let vfs = with_options(dir.path(), none_kept());
    let held = walk(&vfs, "/a/held").unwrap();
    let deep = walk(&vfs, "/a/held/sub/deep").unwrap();
    let made = make(&vfs, "/a/made/").unwrap();
    fs::rename(dir.join("a/held"), dir.join("b/moved")).unwrap();
    fs::rename(dir.join("a/made"), dir.join("b/made")).unwrap();
    assert_eq!(vfs.getattr(&held).unwrap().ino, held.ino());
    assert_eq!(vfs.getattr(&made).unwrap().ino, made.ino());
    let file = vfs.lookup(&Cred::root(), &held, name("file")).unwrap();
    assert_eq!((vfs.getattr(&file).unwrap().size, vfs.getattr(&deep).unwrap().size), (4, 6));
    let read =
        vfs.open(&Cred::root(), &file, OFlags::RDONLY.bits(), corewalk::May::READ).unwrap().handle;
    let mut buf = [0; 8];
    assert_eq!(vfs.read(&file, read, 0, &mut buf), Ok(4));
    vfs.release(&file, read);
    vfs.make(&Cred::root(), &held, name("new"), Make::new(0o644, 0, 0)).unwrap();
    assert!(dir.join("b/moved/new").exists());
    let mut names = Vec::new();
    vfs.readdir(&held, 0, &mut |entry| {
        names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    names.sort_unstable();
    assert_eq!(names, ["file", "new", "sub"]);
}

/// A directory that was moved out of the root must not be reached any more. Its file handle alone
/// would still open it: a handle reaches any file of the host's file system.
#[test]
fn held_directory_moved_out_of_the_root_is_stale() {
    let dir = TempDir::new();
    if !has_handles(&dir) {
        return;
    }
    fs::create_dir_all(dir.join("root/held/sub")).unwrap();
    // A comparison of plain prefixes would take `rootless` for a directory beneath `root`.
    fs::create_dir(dir.join("rootless")).unwrap();
    let vfs = with_options(&dir.join("root"), none_kept());
    let (held, sub) = (walk(&vfs, "/held").unwrap(), walk(&vfs, "/held/sub").unwrap());
    fs::rename(dir.join("root/held"), dir.join("rootless/held")).unwrap();
    assert_eq!(vfs.getattr(&held).err(), Some(Errno::STALE));
    assert_eq!(vfs.getattr(&sub).err(), Some(Errno::STALE));
    fs::rename(dir.join("rootless/held"), dir.join("root/back")).unwrap();
    assert_eq!(vfs.getattr(&sub).unwrap().ino, sub.ino());
}

#[test]
fn held_directory_replaced_on_the_host_is_stale() {
    let dir = TempDir::new();
    fs::create_dir(dir.join("held")).unwrap();
    let vfs = with_options(dir.path(), none_kept());
    let held = walk(&vfs, "/held").unwrap();
    fs::create_dir(dir.join("other")).unwrap();
    fs::remove_dir(dir.join("held")).unwrap();
    fs::rename(dir.join("other"), dir.join("held")).unwrap();
    assert_eq!(vfs.getattr(&held).err(), Some(Errno::STALE));
}
