//! Reading directories through the kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_fuse::{Options, ReaddirPlus};
use rustix::fs::{Dir, Mode, OFlags};

use crate::site::Site;

#[test]
fn large_directory_is_listed_once_in_each_mode() {
    for readdirplus in [ReaddirPlus::Never, ReaddirPlus::Auto, ReaddirPlus::Always] {
        let options = Options::exclusive().with_readdirplus(readdirplus);
        let Some(site) = Site::tmpfs(options) else { return };
        let mut expected = BTreeSet::new();
        for at in 0..3000 {
            let name = format!("{at}-{}", "x".repeat(at % 200));
            fs::write(site.path(&name), "").expect("write the file");
            expected.insert(name);
        }
        for _ in 0..2 {
            let mut seen = BTreeSet::new();
            for entry in fs::read_dir(site.root()).expect("list the folder") {
                let entry = entry.expect("read the entry");
                let metadata = entry.metadata().expect("read the attributes");
                assert_eq!(rustix_ino(&entry), metadata.ino());
                let name = entry.file_name().into_string().expect("the name is UTF-8");
                assert!(seen.insert(name), "{entry:?} came twice with {readdirplus:?}");
            }
            assert_eq!(seen, expected, "{readdirplus:?}");
        }
    }
}

/// With an entry timeout of zero, a listing must report no attributes and cause no lookups.
#[test]
fn listing_looks_names_up_only_with_an_entry_timeout() {
    let kept = Options::exclusive();
    let asked = Options::exclusive().with_entry_timeout(Duration::ZERO);
    for (options, looks_up) in [(kept, true), (asked, false)] {
        let Some(site) = Site::tmpfs(options) else { return };
        for at in 0..20 {
            fs::write(site.path(&at.to_string()), "").expect("write the file");
        }
        let names = || site.counters().hits + site.counters().misses;
        let before = names();
        assert_eq!(fs::read_dir(site.root()).expect("list the folder").count(), 20);
        assert_eq!(names() - before >= 20, looks_up, "{} names", names() - before);
    }
}

#[test]
fn dots_come_first_with_their_numbers() {
    for readdirplus in [ReaddirPlus::Never, ReaddirPlus::Always] {
        let options = Options::exclusive().with_readdirplus(readdirplus);
        let Some(site) = Site::tmpfs(options) else { return };
        fs::create_dir_all(site.path("a/b")).expect("make the folders");
        fs::write(site.path("a/b/file"), "").expect("write the file");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder =
            rustix::fs::open(site.path("a/b"), flags, Mode::empty()).expect("open the folder");
        let entries: BTreeMap<Vec<u8>, u64> = Dir::new(folder)
            .expect("list the folder")
            .map(|entry| entry.expect("read the entry"))
            .map(|entry| (entry.file_name().to_bytes().to_vec(), entry.ino()))
            .collect();
        let ino = |name: &str| fs::metadata(site.path(name)).expect("read the attributes").ino();
        let expected = [
            (b".".to_vec(), ino("a/b")),
            (b"..".to_vec(), ino("a")),
            (b"file".to_vec(), ino("a/b/file")),
        ];
        assert_eq!(entries, BTreeMap::from(expected), "{readdirplus:?}");
    }
}

/// A listing must neither repeat nor skip an entry that stays while other entries are added and
/// removed. Trap P13.
#[test]
fn stable_entries_are_listed_once_while_others_come_and_go() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    for at in 0..2000 {
        fs::write(site.path(&format!("stable{at}")), "").expect("write the file");
    }
    let root = site.root().to_owned();
    let changing = thread::spawn(move || {
        for round in 0..3000 {
            let path = root.join(format!("changing{}", round % 40));
            let _ = fs::write(&path, "");
            let _ = fs::remove_file(&path);
        }
    });
    let mut rounds = 0;
    while rounds < 5 || !changing.is_finished() {
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(site.root()).expect("list the folder") {
            let name = entry
                .expect("read the entry")
                .file_name()
                .into_string()
                .expect("the name is UTF-8");
            if name.starts_with("stable") {
                assert!(seen.insert(name.clone()), "{name} came twice");
            }
        }
        assert_eq!(seen.len(), 2000);
        rounds += 1;
    }
    changing.join().expect("the thread ends without a panic");
}

fn rustix_ino(entry: &fs::DirEntry) -> u64 {
    use std::os::unix::fs::DirEntryExt as _;
    entry.ino()
}
