//! Tests of lookups and forgets by a real kernel.

use std::fs;
use std::io::Read as _;

use corewalk_base::primitives::thread;
use corewalk_fuse::Options;

use crate::site::Site;

/// The kernel sends the forget of a removed file when the file is closed. The forget must not drop
/// a new file with the same name. Trap P1.
#[test]
fn late_forget_after_recreate_keeps_the_new_file() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    fs::write(&a, "old").expect("write the file");
    let mut old = fs::File::open(&a).expect("open the file");
    fs::remove_file(&a).expect("remove the file");
    fs::write(&a, "new").expect("write the file");
    let mut text = String::new();
    old.read_to_string(&mut text).expect("read the file");
    assert_eq!(text, "old");
    assert_eq!(site.counters().lookups, 2);
    drop(old);
    site.wait_for("the old file is forgotten", |counters| counters.lookups == 1);
    fs::rename(&a, &b).expect("the new file has the name");
    assert_eq!(fs::read_to_string(&b).expect("read the file"), "new");
    assert!(!a.exists());
    assert_eq!(site.counters().refused_forgets, 0);
}

/// A late forget of a replaced inode must not drop the file that has replaced it. Trap P2.
#[test]
fn forget_of_a_replaced_file_keeps_the_new_file() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    for round in 0..50 {
        fs::write(&b, "victim").expect("write the file");
        fs::write(&a, format!("round {round}")).expect("write the file");
        fs::rename(&a, &b).expect("rename the file");
        site.wait_for("the victim is forgotten", |counters| counters.lookups == 1);
        assert_eq!(fs::read_to_string(&b).expect("read the file"), format!("round {round}"));
        assert!(!a.exists());
    }
    assert_eq!(site.counters().refused_forgets, 0);
}

/// Editors, git and cargo save a file by a rename. The name must exist immediately, although the
/// kernel may cache for a day. Trap P4.
#[test]
fn file_saved_by_rename_is_seen_at_once() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (file, saved, lock) = (site.path("file"), site.path("file.tmp"), site.path("file.lock"));
    fs::write(&file, "round 0").expect("write the file");
    for round in 1..200 {
        // These lookups make the kernel cache that the files do not exist.
        assert!(!lock.exists() && !saved.exists());
        let text = format!("round {round}");
        let new = if round % 2 == 0 { &saved } else { &lock };
        fs::write(new, &text).expect("write the file");
        fs::rename(new, &file).expect("rename the file");
        assert_eq!(fs::read_to_string(&file).expect("the saved file has the name"), text);
        assert_eq!(fs::metadata(&file).expect("read the attributes").len(), text.len() as u64);
    }
}

/// When all files are removed, the kernel must have forgotten all inodes except the root. No forget
/// may have been refused. Trap P5.
#[test]
fn removal_of_everything_returns_every_lookup() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let root = site.root().to_owned();
            thread::spawn(move || {
                let shared = root.join("shared");
                // All four threads try to create the directory, and only one can succeed.
                let _ = fs::create_dir(&shared);
                let own = root.join(format!("own{thread}"));
                for round in 0..100 {
                    fs::create_dir_all(own.join("deep/er")).expect("make the folders");
                    let file = own.join(format!("deep/er/f{round}"));
                    fs::write(&file, "x").expect("write the file");
                    let link = shared.join(format!("l{}", round % 7));
                    let _ = fs::hard_link(&file, &link);
                    let _ = fs::metadata(shared.join(format!("l{}", round % 5)));
                    let _ = fs::rename(&link, shared.join(format!("m{}", round % 3)));
                    let _ = fs::read_dir(&shared).map(Iterator::count);
                    fs::rename(own.join("deep"), own.join("moved")).expect("rename the file");
                    fs::remove_dir_all(own.join("moved")).expect("remove the folder");
                }
                fs::remove_dir(own).expect("remove the folder");
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("the thread ends without a panic");
    }
    fs::remove_dir_all(site.path("shared")).expect("remove the folder");
    site.wait_for("all is forgotten", |counters| counters.lookups == 0);
    let counters = site.counters();
    assert_eq!((counters.refused_forgets, counters.panics), (0, 0));
    assert_eq!(counters.inodes, 1, "only the root is in use: {counters:?}");
}
