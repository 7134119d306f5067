//! Tests of the unmount of a moved or covered mount, and of concurrent mounts on one directory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::primitives::thread;
use corewalk_fuse::{Mount, MountError, MountOptions, Options};
use rustix::process::Signal;

use crate::fixtures::{Folder, Server, can_mount, is_mounted};

fn succeeds(command: &str, arguments: &[&Path]) -> bool {
    Command::new(command).args(arguments).status().expect("the program starts").success()
}

#[test]
fn mount_whose_parent_was_renamed_ends_on_a_signal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (old, new) = (folder.path("old"), folder.path("new"));
    let copy = folder.path("copy");
    for (with_copy, is_made_before) in [(false, true), (false, false), (true, true)] {
        fs::create_dir_all(if is_made_before { old.join("m") } else { old.clone() })
            .expect("the directory is created");
        let mut server = Server::start(&[], &old.join("m"));
        if with_copy {
            fs::create_dir(&copy).expect("the directory is created");
            assert!(succeeds("mount", &[Path::new("--bind"), &old.join("m"), &copy]));
        }
        fs::rename(&old, &new).expect("the parent of a mount point can be renamed");
        fs::write(new.join("m/file"), "x").expect("the mount serves at its new path");
        // When the server ends, it must not remove a new directory at the old path of its mount.
        fs::create_dir_all(old.join("m")).expect("the directory is created");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
        assert!(!is_mounted(&new.join("m")), "the mount was left without a server");
        assert_eq!(new.join("m").exists(), is_made_before, "only a created mount point is removed");
        assert!(
            !is_made_before
                || fs::read_dir(new.join("m")).expect("the directory can be read").next().is_none()
        );
        assert_eq!(is_mounted(&copy), with_copy, "the bind mount stays for its owner to unmount");
        assert!(old.join("m").exists());
        for folder in [&old, &new] {
            fs::remove_dir_all(folder).expect("the directory can be removed");
        }
    }
}

#[test]
fn covered_mount_is_busy_and_stays_mounted() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("the directory is created");
    let mount = mount(&path).expect("nothing is mounted there");
    let bound = Path::new("--bind");
    assert!(succeeds("mount", &[bound, Path::new("/usr"), &path]));
    assert_eq!(mount.point().unmount(), Err(rustix::io::Errno::BUSY));
    assert!(path.join("lib").exists(), "the covering mount was unmounted");
    assert!(succeeds("umount", &[&path]));
    drop(mount);
    assert!(!is_mounted(&path));
}

fn mount(path: &Path) -> Result<Mount, MountError> {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    Mount::new(fs, path, Options::exclusive(), &MountOptions::default())
}

#[test]
fn one_of_concurrent_mounts_on_a_directory_succeeds() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("the directory is created");
    for round in 0..20 {
        let start = Barrier::new(3);
        let mounts: Vec<_> = thread::scope(|scope| {
            let run = || {
                start.wait();
                mount(&path)
            };
            let threads = [(); 3].map(|()| scope.spawn(run));
            threads
                .map(|thread| thread.join().expect("the thread does not panic"))
                .into_iter()
                .collect()
        });
        assert_eq!(folder.mounts().len(), 1, "round {round}");
        let (won, lost): (Vec<_>, Vec<_>) = mounts.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 2), "round {round}");
        for lost in lost {
            assert_eq!(lost.map(drop), Err(MountError::Busy), "round {round}");
        }
        fs::write(path.join("file"), "x").expect("the mount serves");
        drop(won);
        assert_eq!(folder.mounts().len(), 0, "round {round}");
    }
}
