//! Where a mount is when it is to go: where it was made, or where its folder was moved to.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Barrier};

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::primitives::thread;
use corewalk_fuse::{Mount, MountError, MountOptions, Options};
use rustix::process::Signal;

use crate::fixtures::{Folder, Server, can_mount, is_mounted};

fn does_well(command: &str, arguments: &[&Path]) -> bool {
    Command::new(command).args(arguments).status().expect("the program").success()
}

#[test]
fn mount_whose_folder_was_moved_leaves_on_a_signal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (old, new) = (folder.path("old"), folder.path("new"));
    let copy = folder.path("copy");
    for (with_copy, is_made_before) in [(false, true), (false, false), (true, true)] {
        fs::create_dir_all(if is_made_before { old.join("m") } else { old.clone() })
            .expect("a folder");
        let mut server = Server::start(&[], &old.join("m"));
        if with_copy {
            fs::create_dir(&copy).expect("a folder");
            assert!(does_well("mount", &[Path::new("--bind"), &old.join("m"), &copy]));
        }
        fs::rename(&old, &new).expect("nothing is mounted on itself");
        fs::write(new.join("m/file"), "x").expect("it works where it is");
        // What has taken the place is another's.
        fs::create_dir_all(old.join("m")).expect("a folder");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
        assert!(!is_mounted(&new.join("m")), "it stays, with no server");
        assert_eq!(new.join("m").exists(), is_made_before, "what it has made goes with it");
        assert!(!is_made_before || fs::read_dir(new.join("m")).expect("a folder").next().is_none());
        assert_eq!(is_mounted(&copy), with_copy, "whoever has made the copy may unmount it");
        assert!(old.join("m").exists());
        for folder in [&old, &new] {
            fs::remove_dir_all(folder).expect("nothing is in it");
        }
    }
}

#[test]
fn mount_that_another_lies_on_is_not_taken_for_gone() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("a folder");
    let mount = mount(&path).expect("the place is free");
    let bound = Path::new("--bind");
    assert!(does_well("mount", &[bound, Path::new("/usr"), &path]));
    assert_eq!(mount.point().unmount(), Err(rustix::io::Errno::BUSY));
    assert!(path.join("lib").exists(), "what lies on it is another's");
    assert!(does_well("umount", &[&path]));
    drop(mount);
    assert!(!is_mounted(&path));
}

fn mount(path: &Path) -> Result<Mount, MountError> {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    Mount::new(fs, path, Options::exclusive(), &MountOptions::default())
}

/// Two that look before either has mounted would both find the place free.
#[test]
fn place_is_mounted_on_by_one_of_those_who_want_it_at_once() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("a folder");
    for round in 0..20 {
        let start = Barrier::new(3);
        let mounts: Vec<_> = thread::scope(|scope| {
            let run = || {
                start.wait();
                mount(&path)
            };
            let threads = [(); 3].map(|()| scope.spawn(run));
            threads.map(|thread| thread.join().expect("a thread")).into_iter().collect()
        });
        assert_eq!(folder.mounts().len(), 1, "round {round}");
        let (won, lost): (Vec<_>, Vec<_>) = mounts.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 2), "round {round}");
        for lost in lost {
            assert_eq!(lost.map(drop), Err(MountError::Busy), "round {round}");
        }
        fs::write(path.join("file"), "x").expect("it works");
        drop(won);
        assert_eq!(folder.mounts().len(), 0, "round {round}");
    }
}
