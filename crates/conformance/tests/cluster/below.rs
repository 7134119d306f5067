//! File systems that are mounted on directories of a mount.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use corewalk_fuse::XATTR_STAT;

use crate::mounted::Mounted;
use crate::race::{LEASE, mount, site, wait_for_company};

struct Tmpfs<'a>(&'a Path);

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

impl Tmpfs<'_> {
    fn mount(path: &Path) -> Tmpfs<'_> {
        let status = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(path).status();
        assert!(status.expect("mount is installed").success());
        Tmpfs(path)
    }
}

fn expiries(mount: &Mounted) -> u64 {
    let mut text = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(mount.path(), XATTR_STAT, &mut text[..]).expect("a mount");
    let counters: serde_json::Value = serde_json::from_slice(&text[..len]).expect("JSON");
    counters["cluster_name_expiries"].as_u64().expect("a counter")
}

fn change_after_look(reader: &Mounted, writer: &Mounted, name: &str) -> (Duration, u64) {
    let place = reader.path().join("e").join(name);
    (0..2).for_each(|_| assert!(!place.exists()));
    let (before, begin) = (expiries(reader), Instant::now());
    fs::write(writer.path().join("e").join(name), "").expect("the file is made");
    let took = begin.elapsed();
    assert!(place.exists(), "{name}");
    (took, expiries(reader) - before)
}

#[test]
fn file_system_below_stays_mounted_and_no_name_is_old() {
    let Some(site) = site() else { return };
    let [reader, writer] = mount(&site, ["none"; 2]);
    for name in ["d", "e"] {
        fs::create_dir(reader.path().join(name)).expect("the directory is made");
    }
    wait_for_company();
    assert_eq!(change_after_look(&reader, &writer, "first").1, 1);

    let place = reader.path().join("d");
    let device = |path: &Path| fs::metadata(path).expect("the directory exists").dev();
    // The kernel caches this name before the tmpfs is mounted. Afterwards the kernel cannot drop
    // its names, because that would also detach the tmpfs.
    let second = reader.path().join("e/second");
    (0..2).for_each(|_| assert!(!second.exists()));
    let tmpfs = Tmpfs::mount(&place);
    fs::write(writer.path().join("e/second"), "").expect("the file is made");
    assert!(second.exists());
    // The server now lets the kernel cache no names. So a change need not drop a name from the
    // kernel's cache, and does not wait.
    let (took, dropped) = change_after_look(&reader, &writer, "third");
    assert!(took < LEASE / 2 && dropped == 0, "{took:?} {dropped}");
    assert_ne!(device(&place), device(reader.path()), "the tmpfs is still mounted");

    drop(tmpfs);
    assert_eq!(change_after_look(&reader, &writer, "fourth").1, 1);
    drop((reader, writer));
    site.assert_clean();
}
