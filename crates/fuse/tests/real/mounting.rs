//! Mounting and unmounting.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_fuse::{Conflict, Mount, MountError, MountFlags, Options, Unmounted, serve};
use corewalk_testkit::require::{has_fuse, has_program, has_root};
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

/// Mounts on an open directory, while a directory above it is renamed again and again. The mount
/// may be at another path when it is unmounted, and no mount may stay behind.
#[test]
fn mount_is_found_though_a_directory_above_it_is_renamed() {
    if !has_fuse() || !has_root() {
        return;
    }
    let folder = Folder::new();
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    fs::create_dir_all(here.join("place")).expect("make the folders");
    let place = fs::File::open(here.join("place")).expect("open the folder");
    let place = Path::new("/proc/self/fd").join(place.as_raw_fd().to_string());
    for _ in 0..50 {
        let is_mounted = AtomicBool::new(false);
        let mounted = thread::scope(|scope| {
            scope.spawn(|| {
                // ORDERING: Relaxed. The flag only ends the loop.
                while !is_mounted.load(Ordering::Relaxed) {
                    fs::rename(&here, &there).expect("rename the folder");
                    fs::rename(&there, &here).expect("rename the folder back");
                }
            });
            let mounted = mount(&place);
            // ORDERING: Relaxed. See above.
            is_mounted.store(true, Ordering::Relaxed);
            mounted
        });
        // The mount may also fail, if the path is gone while the mount point is checked.
        assert!(matches!(mounted, Ok(_) | Err(MountError::Missing)), "{mounted:?}");
        drop(mounted);
        let table = fs::read_to_string("/proc/self/mountinfo").expect("read the table");
        assert!(!table.contains(folder.path().to_str().expect("ASCII")), "{table}");
    }
}

#[test]
fn flags_and_source_are_in_the_mount_table() {
    if !has_fuse() || !has_root() {
        return;
    }
    let folder = Folder::new();
    let long = "x".repeat(300);
    let cases = [
        (MountFlags::all() - MountFlags::STRICTATIME, "short", "ro,nosuid,nodev,noexec,noatime"),
        (MountFlags::NOATIME | MountFlags::STRICTATIME, &long, "rw "),
        (MountFlags::DIRSYNC, "short", "rw,relatime "),
    ];
    for (flags, source, expected) in cases {
        let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        let options = mount_options().with_flags(flags).with_source(source);
        let mounted = Mount::new(fs, folder.path(), Options::exclusive(), &options);
        let mounted = mounted.expect("mount the folder");
        let table = fs::read_to_string("/proc/self/mountinfo").expect("read the table");
        let path = folder.path().to_str().expect("ASCII");
        let line = table.lines().find(|line| line.contains(path)).expect("the mount is there");
        assert!(line.contains(&format!("{path} {expected}")), "{line}");
        assert!(line.contains(&format!(" {} ", &source[..source.len().min(255)])), "{line}");
        let has_dirsync = line.contains(",dirsync,");
        assert_eq!(has_dirsync, flags.contains(MountFlags::DIRSYNC), "{line}");
        drop(mounted);
    }
}

/// A mount must work where the newer system calls for mounting are refused, such as fsopen(2). The
/// test runs two other tests under strace(1), which lets one of these system calls fail.
#[test]
fn mount_works_where_the_newer_calls_are_refused() {
    if !has_fuse() || !has_root() || !has_program("strace") {
        return;
    }
    let program = env::current_exe().expect("this program has a path");
    let refused = [
        ("fsopen", "ENOSYS"),
        ("fsopen", "EPERM"),
        ("fsmount", "EINVAL"),
        ("move_mount", "EACCES"),
    ];
    for (call, error) in refused {
        let done = Command::new("strace")
            .args(["-f", "-qq", "-e", &format!("trace={call}")])
            .args(["-e", &format!("inject={call}:error={error}")])
            .arg(&program)
            .args(["--exact", "mounting::flags_and_source_are_in_the_mount_table"])
            .arg("mounting::unmount_leaves_a_later_mount_on_the_same_folder")
            .output()
            .expect("start strace");
        let text = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        assert!(done.status.success() && text.contains("2 passed"), "{call}: {text}");
        assert!(text.contains("(INJECTED)"), "{call}: {text}");
    }
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
