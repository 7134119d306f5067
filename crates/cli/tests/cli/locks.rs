//! Tests of the mount option `local_lock=none`. With it, programs on the mount and in the mounted
//! host directory see each other's file locks.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::primitives::thread;
use rustix::fs::{FlockOperation, IFlags, fcntl_lock, flock, ioctl_getflags, ioctl_setflags};

use crate::fixtures::{Folder, Server, can_mount};

const TRY_WRITE: FlockOperation = FlockOperation::NonBlockingLockExclusive;

fn with_mount(options: &[&str], test: impl FnOnce(&Path, &Path)) {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (host, path) = (folder.path("h"), folder.path("m"));
    fs::create_dir(&host).expect("the directory is created");
    fs::write(host.join("f"), "text").expect("the file is created");
    let source = host.to_str().expect("the path is UTF-8");
    let _server = Server::of(source, options, &path);
    test(&path.join("f"), &host.join("f"));
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("the file exists")
}

#[test]
fn locks_of_the_mount_and_of_the_directory_exclude_each_other() {
    with_mount(&["-o", "local_lock=none"], |inside, outside| {
        let (here, there) = (open(inside), open(outside));
        flock(&here, TRY_WRITE).expect("take the lock");
        assert_eq!(flock(&there, TRY_WRITE), Err(Errno::AGAIN));
        flock(&here, FlockOperation::Unlock).expect("drop the lock");
        flock(&there, TRY_WRITE).expect("take the lock");
        // A program in the mount waits until the lock outside ends.
        let mut waiting = Command::new("flock");
        let mut waiting = waiting.arg(inside).arg("true").spawn().expect("run flock(1)");
        thread::sleep(Duration::from_millis(200));
        assert!(waiting.try_wait().expect("ask for its end").is_none());
        drop(there);
        assert!(waiting.wait().expect("flock(1) ends").success());

        let there = open(outside);
        fcntl_lock(&here, TRY_WRITE).expect("take the lock");
        let refused = fcntl_lock(&there, TRY_WRITE);
        assert!(matches!(refused, Err(Errno::AGAIN | Errno::ACCESS)), "{refused:?}");
        // As fcntl(2) says, a close of any descriptor of the file ends all locks of this process on
        // it.
        drop(open(inside));
        fcntl_lock(&there, TRY_WRITE).expect("take the lock");
        assert_eq!(fcntl_lock(&here, TRY_WRITE), Err(Errno::AGAIN));
    });
}

#[test]
fn locks_of_a_mount_stay_in_it_by_default() {
    with_mount(&[], |inside, outside| {
        let (here, there) = (open(inside), open(outside));
        flock(&here, TRY_WRITE).expect("take the lock");
        assert_eq!(flock(open(inside), TRY_WRITE), Err(Errno::AGAIN));
        flock(&there, TRY_WRITE).expect("the lock of the mount does not hold here");
    });
}

#[test]
fn inode_flags_of_a_directory_are_those_of_the_host() {
    with_mount(&[], |inside, outside| {
        let (here, there) = (open(inside), open(outside));
        let flags = match ioctl_getflags(&there) {
            Ok(flags) => flags,
            Err(error) => {
                assert_eq!(ioctl_getflags(&here), Err(error));
                return;
            }
        };
        assert_eq!(ioctl_getflags(&here), Ok(flags));
        ioctl_setflags(&here, flags | IFlags::NODUMP).expect("set the flags");
        assert_eq!(ioctl_getflags(&there), Ok(flags | IFlags::NODUMP));
    });
}
