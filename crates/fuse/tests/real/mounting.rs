//! Mounting and unmounting.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::primitives::thread;
use corewalk_fuse::{Conflict, Mount, MountError, Options, Unmounted, serve};
use corewalk_testkit::require::{has_fuse, has_root};
use rustix::mount::UnmountFlags;
use rustix::process::{Signal, getpid, kill_process};

use crate::site::{Folder, Site, mount_options};

fn mount(path: &Path) -> Result<Mount, MountError> {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    Mount::new(fs, path, Options::exclusive(), &mount_options())
}

#[test]
fn invalid_mountpoint_is_refused() {
    if !has_fuse() {
        return;
    }
    let folder = Folder::new();
    let file = folder.path().join("file");
    assert_eq!(mount(&file).map(drop), Err(MountError::Missing));
    fs::write(&file, "").expect("write the file");
    assert_eq!(mount(&file).map(drop), Err(MountError::NotDirectory));
    assert_eq!(mount(&file.join("below")).map(drop), Err(MountError::NotDirectory));
    fs::remove_file(file).expect("remove the file");
}

#[test]
fn mountpoint_in_use_is_refused() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    assert_eq!(mount(site.root()).map(drop), Err(MountError::Busy));
    fs::write(site.path("file"), "x").expect("the first mount still works");
}

#[test]
fn options_that_conflict_are_refused() {
    let options = Options::shared()
        .with_server_permissions()
        .with_entry_timeout(std::time::Duration::from_secs(1));
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let mounted = Mount::new(fs, Path::new("/"), options, &mount_options());
    assert_eq!(mounted.map(drop), Err(MountError::Options(Conflict::CachedNames)));
}

#[test]
fn unmount_ends_the_wait_and_can_be_repeated() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::write(site.path("file"), "x").expect("write the file");
    let (mount, folder) = site.into_mount();
    let point = mount.point().clone();
    let waiting = thread::spawn(move || mount.wait());
    assert_eq!(point.unmount(), Ok(Unmounted::Done));
    assert_eq!(waiting.join().expect("the thread ends without a panic"), Ok(()));
    assert_eq!(point.unmount(), Ok(Unmounted::Already));
    assert_eq!(fs::read_dir(folder.path()).expect("list the folder").count(), 0);
}

#[test]
fn served_mount_is_unmounted_on_a_signal() {
    if !has_fuse() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path().to_owned();
    let serving = thread::spawn(move || {
        let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        serve(fs, &path, Options::exclusive(), &mount_options())
    });
    let device = |path: &Path| fs::metadata(path).expect("the folder exists").dev();
    let parent = folder.path().parent().expect("a folder in a folder");
    let deadline = Instant::now() + Duration::from_secs(60);
    while device(folder.path()) == device(parent) {
        assert!(Instant::now() < deadline && !serving.is_finished(), "not mounted");
        thread::yield_now();
    }
    fs::write(folder.path().join("file"), "x").expect("the mount works");
    kill_process(getpid(), Signal::TERM).expect("signal this process");
    assert_eq!(serving.join().expect("the thread ends without a panic"), Ok(()));
    assert_eq!(device(folder.path()), device(parent), "still mounted");
}

#[test]
fn mount_in_use_is_detached() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let file = fs::File::create(site.path("file")).expect("create the file");
    let point = site.mount().point().clone();
    assert_eq!(point.unmount(), Ok(Unmounted::Detached));
    assert!(!site.path("file").exists());
    assert_eq!(file.metadata().expect("an open file is served after the detach").len(), 0);
    let (mount, _folder) = site.into_mount();
    drop(file);
    assert_eq!(mount.wait(), Ok(()));
}

#[test]
fn unmount_leaves_a_later_mount_on_the_same_folder() {
    if !has_root() {
        return;
    }
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (first, folder) = site.into_mount();
    rustix::mount::unmount(folder.path(), UnmountFlags::empty())
        .expect("unmount a mount without users");
    let second = mount(folder.path()).expect("mount on the free folder");
    fs::write(folder.path().join("file"), "x").expect("write the file");
    drop(first);
    assert!(folder.path().join("file").exists(), "the second mount is still there");
    drop(second);
    assert!(!folder.path().join("file").exists());
}
