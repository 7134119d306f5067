//! Tests with many files but few descriptors and little memory.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::{Cred, Errno, InodeRef, Make, May, Removal, RenameMode, SetAttr, Vfs, VfsOptions};
use corewalk_hostfs::{HostFs, HostFsOptions};
use corewalk_testkit::reexec::{self, Reexec, Resource};

use rustix::fs::OFlags;

use crate::fixtures::{TempDir, list, make, name, over, remove, rename, symlink, walk};

const DIRS: usize = 2000;
const FILES: usize = 100;
const CACHE_BYTES: u64 = 16 << 20;

/// A server with one descriptor per known inode would run out of descriptors (trap P10).
#[test]
fn walk_of_many_files_needs_few_descriptors() {
    const NAME: &str = "limits::walk_of_many_files_needs_few_descriptors";
    const TREE: &str = "COREWALK_TREE";
    if reexec::role().is_none() {
        let dir = TempDir::new();
        for d in 0..DIRS {
            let sub = dir.join(&format!("d{d}"));
            fs::create_dir(&sub).unwrap();
            for f in 0..FILES {
                fs::write(sub.join(format!("f{f}")), b"").unwrap();
            }
        }
        let child = Reexec::test(NAME)
            .env(TREE, dir.path().to_str().unwrap())
            .limit(Resource::Nofile, 256)
            .timeout(Duration::from_secs(300))
            .run();
        return child.assert_success();
    }
    let tree = std::env::var(TREE).unwrap();
    let host = HostFs::new(tree.as_ref(), HostFsOptions::default()).unwrap();
    let options = VfsOptions::default().with_cache_bytes(CACHE_BYTES);
    let vfs = Vfs::new(Arc::new(host), options).unwrap();
    let (mut most_bytes, mut most_open, mut held) = (0, 0, Vec::new());
    for d in 0..DIRS {
        let dir = walk(&vfs, &format!("d{d}")).unwrap();
        for f in 0..FILES {
            let file = format!("f{f}");
            let found = vfs.lookup(&Cred::root(), &dir, name(&file)).unwrap();
            assert_eq!(vfs.getattr(&found).unwrap().ino, found.ino());
            if f % 10 == 0 {
                held.push(found);
            }
        }
        most_bytes = most_bytes.max(vfs.stats().bytes);
        most_open = most_open.max(fs::read_dir("/proc/self/fd").unwrap().count());
    }
    assert!(most_bytes <= CACHE_BYTES + CACHE_BYTES / 10, "{most_bytes} bytes");
    assert!(most_open < 128, "{most_open} descriptors");
    for file in held.iter().step_by(97) {
        assert_eq!(vfs.getattr(file).unwrap().ino, file.ino());
    }
}

/// At the limit for open files, all calls but opens must still succeed. Trap X10.
#[test]
fn open_files_of_one_client_leave_descriptors_to_all_calls() {
    const NAME: &str = "limits::open_files_of_one_client_leave_descriptors_to_all_calls";
    const TREE: &str = "COREWALK_TREE";
    if reexec::role().is_none() {
        let dir = TempDir::new();
        let child = Reexec::test(NAME)
            .env(TREE, dir.path().to_str().unwrap())
            .limit(Resource::Nofile, 64)
            .timeout(Duration::from_secs(60))
            .run();
        return child.assert_success();
    }
    let tree = std::path::PathBuf::from(std::env::var(TREE).unwrap());
    for i in 0..100 {
        fs::create_dir_all(tree.join(format!("d{i}/sub"))).unwrap();
        fs::write(tree.join(format!("d{i}/f")), "text").unwrap();
    }
    let vfs = over(&tree);
    let cred = Cred::root();
    let open = |file: &InodeRef<'_>| vfs.open(&cred, file, OFlags::RDWR.bits(), May::READ);
    let mut opened = Vec::new();
    let refused = loop {
        let file = walk(&vfs, &format!("d{}/f", opened.len())).unwrap();
        match open(&file) {
            Ok(handle) => opened.push((file, handle)),
            Err(error) => break error,
        }
        assert!(opened.len() < 64, "no open failed with ENFILE");
    };
    assert_eq!(refused, Errno::NFILE);
    assert!(opened.len() >= 8, "{} files are open", opened.len());
    // A failed open with `O_CREAT` must not leave the new file behind.
    let made_open = Make::new(S_IFREG | 0o644, 0, 0).with_open(OFlags::RDWR.bits());
    assert_eq!(vfs.make(&cred, &vfs.root(), name("o"), made_open).err(), Some(Errno::NFILE));
    assert!(!tree.join("o").exists());
    for i in 50..100 {
        let path = |name: &str| format!("d{i}/{name}");
        assert_eq!(list(&vfs, &format!("d{i}"), 100), Ok(vec!["f".to_owned(), "sub".to_owned()]));
        make(&vfs, &path("made/")).unwrap();
        make(&vfs, &path("new")).unwrap();
        symlink(&vfs, &path("link"), "f").unwrap();
        rename(&vfs, &path("new"), &path("f"), RenameMode::Replace).unwrap();
        remove(&vfs, &path("made/"), Removal::Rmdir).unwrap();
        let file = walk(&vfs, &path("f")).unwrap();
        assert_eq!(vfs.write(&cred, &file, 0, 0, b"more"), Ok(4));
        assert_eq!(
            vfs.setattr(&cred, &file, &SetAttr::default().with_size(2)).map(|attr| attr.size),
            Ok(2)
        );
        assert_eq!(vfs.read(&file, 0, 0, &mut [0; 8]), Ok(2));
    }
    let (file, last) = opened.pop().unwrap();
    vfs.release(&file, last.handle);
    let (file, other) = (walk(&vfs, "d60/f").unwrap(), walk(&vfs, "d61/f").unwrap());
    assert!(open(&file).is_ok());
    assert_eq!(open(&other).err(), Some(Errno::NFILE));
}
