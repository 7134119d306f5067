//! Few descriptors and little memory over many files.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use corewalk::{Cred, Vfs, VfsOptions};
use corewalk_hostfs::{HostFs, HostFsOptions};
use corewalk_testkit::reexec::{self, Reexec, Resource};

use crate::fixtures::{TempDir, name, walk};

const DIRS: usize = 2000;
const FILES: usize = 100;
const CACHE_BYTES: u64 = 16 << 20;

/// Trap P10: 200,000 files are walked and asked for their attributes with at most 256 descriptors
/// and 16 MiB of cache.
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
    let options = VfsOptions { cache_bytes: CACHE_BYTES, ..VfsOptions::default() };
    let vfs = Vfs::new(Arc::new(host), options).unwrap();
    let (mut most_bytes, mut most_open, mut held) = (0, 0, Vec::new());
    for d in 0..DIRS {
        let dir = walk(&vfs, &format!("d{d}")).unwrap();
        for f in 0..FILES {
            let file = format!("f{f}");
            let found = vfs.lookup(&Cred::root(), &dir, name(&file)).unwrap();
            assert_eq!(vfs.getattr(&found).unwrap().ino, found.ino());
            // As a kernel does, some of them are kept.
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
