//! Tests of locks and inode flags that the host manages.

use std::fs::{self, File, OpenOptions};

use corewalk::{Cred, Errno, FileLock, FileSystem as _, InodeFlags, InodeRef, LockKind, May, Vfs};
use corewalk_hostfs::{HostFs, HostFsOptions};
use rustix::fs::{FlockOperation, IFlags, fcntl_lock, flock, ioctl_getflags};

use crate::fixtures::{TempDir, make, over, walk, with_options};

const FIRST: u64 = 1;
const SECOND: u64 = 2;

fn open(vfs: &Vfs, file: &InodeRef<'_>) -> u64 {
    vfs.open(&Cred::root(), file, 2, May::READ | May::WRITE).unwrap().handle
}

#[test]
fn posix_locks_of_the_mount_and_of_the_host_conflict() {
    let dir = TempDir::new();
    let vfs = with_options(dir.path(), HostFsOptions::default().with_host_locks(true));
    make(&vfs, "f").unwrap();
    let file = walk(&vfs, "f").unwrap();
    let set = |owner, kind, (start, end)| {
        vfs.set_lock(&file, 0, &FileLock::new(owner, kind).with_range(start, end))
    };
    let get = |owner| vfs.get_lock(&file, 0, &FileLock::new(owner, LockKind::Write)).unwrap();
    set(FIRST, LockKind::Write, (0, 9)).unwrap();
    assert_eq!(set(SECOND, LockKind::Read, (5, 5)), Err(Errno::AGAIN));
    set(SECOND, LockKind::Read, (10, FileLock::END_MAX)).unwrap();
    let found = get(SECOND).expect("the lock of the first owner");
    assert_eq!((found.kind, found.start, found.end), (LockKind::Write, 0, 9));
    let found = get(FIRST).expect("the lock of the second owner");
    assert_eq!((found.kind, found.start, found.end), (LockKind::Read, 10, FileLock::END_MAX));

    let host = OpenOptions::new().read(true).write(true).open(dir.join("f")).unwrap();
    let refused = fcntl_lock(&host, FlockOperation::NonBlockingLockShared);
    assert!(matches!(refused, Err(Errno::AGAIN | Errno::ACCESS)), "{refused:?}");
    set(FIRST, LockKind::Unlock, (0, 9)).unwrap();
    fcntl_lock(&host, FlockOperation::NonBlockingLockShared).unwrap();
    assert_eq!(set(FIRST, LockKind::Write, (0, 0)), Err(Errno::AGAIN));
    fcntl_lock(&host, FlockOperation::Unlock).unwrap();
    vfs.unlock_owner(&file, 0, SECOND, false).unwrap();
    assert_eq!(get(FIRST), None);
    set(FIRST, LockKind::Write, (0, FileLock::END_MAX)).unwrap();
    vfs.unlock_owner(&file, 0, FIRST, false).unwrap();
    fcntl_lock(&host, FlockOperation::NonBlockingLockExclusive).unwrap();
}

#[test]
fn flock_of_the_mount_and_of_the_host_conflict() {
    let dir = TempDir::new();
    let vfs = with_options(dir.path(), HostFsOptions::default().with_host_locks(true));
    make(&vfs, "f").unwrap();
    let file = walk(&vfs, "f").unwrap();
    let lock = |owner, kind| FileLock { is_flock: true, ..FileLock::new(owner, kind) };
    let (first, second) = (open(&vfs, &file), open(&vfs, &file));
    vfs.set_lock(&file, first, &lock(FIRST, LockKind::Write)).unwrap();
    let refused = vfs.set_lock(&file, second, &lock(SECOND, LockKind::Read));
    assert_eq!(refused, Err(Errno::AGAIN));
    let host = File::open(dir.join("f")).unwrap();
    assert_eq!(flock(&host, FlockOperation::NonBlockingLockShared), Err(Errno::AGAIN));
    vfs.unlock_owner(&file, first, FIRST, true).unwrap();
    flock(&host, FlockOperation::NonBlockingLockShared).unwrap();
    vfs.set_lock(&file, second, &lock(SECOND, LockKind::Read)).unwrap();
    vfs.release(&file, first);
    vfs.release(&file, second);
    flock(&host, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(vfs.set_lock(&file, 0, &lock(FIRST, LockKind::Read)), Err(Errno::BADF));
}

#[test]
fn locks_stay_in_the_client_by_default() {
    let dir = TempDir::new();
    for (options, has_locks) in
        [(HostFsOptions::default(), false), (HostFsOptions::default().with_host_locks(true), true)]
    {
        let fs = HostFs::new(dir.path(), options).unwrap();
        assert_eq!(fs.has_locks(), has_locks);
    }
}

#[test]
fn inode_flags_are_those_of_the_host() {
    let dir = TempDir::new();
    let vfs = over(dir.path());
    fs::write(dir.join("f"), "text").unwrap();
    make(&vfs, "d/").unwrap();
    for name in ["f", "d"] {
        let (host, inode) = (File::open(dir.join(name)).unwrap(), walk(&vfs, name).unwrap());
        let flags = match ioctl_getflags(&host) {
            Ok(flags) => InodeFlags::from_bits_retain(flags.bits()),
            Err(error) => {
                assert_eq!(vfs.inode_flags(&inode, 0), Err(error));
                continue;
            }
        };
        assert_eq!(vfs.inode_flags(&inode, 0), Ok(flags));
        vfs.set_inode_flags(&inode, 0, flags | InodeFlags::NODUMP).unwrap();
        assert!(ioctl_getflags(&host).unwrap().contains(IFlags::NODUMP));
        vfs.set_inode_flags(&inode, 0, flags).unwrap();
        assert_eq!(vfs.inode_flags(&inode, 0), Ok(flags));
    }
}
