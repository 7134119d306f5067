//! Lookups and forgets as a kernel does them.

use std::fs;
use std::io::Read as _;

use corewalk_base::primitives::thread;
use corewalk_fuse::Options;

use crate::site::Site;

/// Trap P1. The kernel forgets the old file only when it is closed, long after its name belongs to
/// another.
#[test]
fn late_forget_after_recreate_keeps_the_new_file() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    fs::write(&a, "old").expect("a file");
    let mut old = fs::File::open(&a).expect("it exists");
    fs::remove_file(&a).expect("it exists");
    fs::write(&a, "new").expect("a file");
    let mut text = String::new();
    old.read_to_string(&mut text).expect("it is open");
    assert_eq!(text, "old");
    assert_eq!(site.counters().lookups, 2);
    drop(old);
    site.wait_for("the old file is forgotten", |counters| counters.lookups == 1);
    fs::rename(&a, &b).expect("the new file is there");
    assert_eq!(fs::read_to_string(&b).expect("it was renamed"), "new");
    assert!(!a.exists());
    assert_eq!(site.counters().refused_forgets, 0);
}

/// Trap P2.
#[test]
fn forget_of_a_replaced_file_keeps_what_replaced_it() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    for round in 0..50 {
        fs::write(&b, "victim").expect("a file");
        fs::write(&a, format!("round {round}")).expect("a file");
        fs::rename(&a, &b).expect("both exist");
        site.wait_for("the victim is forgotten", |counters| counters.lookups == 1);
        assert_eq!(fs::read_to_string(&b).expect("it is there"), format!("round {round}"));
        assert!(!a.exists());
    }
    assert_eq!(site.counters().refused_forgets, 0);
}

/// Trap P4. With a day of trust, what editors, git and cargo do.
#[test]
fn file_saved_by_rename_is_seen_at_once() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (file, saved, lock) = (site.path("file"), site.path("file.tmp"), site.path("file.lock"));
    fs::write(&file, "round 0").expect("a file");
    for round in 1..200 {
        // Nobody holds the lock: the kernel learns that the names do not exist.
        assert!(!lock.exists() && !saved.exists());
        let text = format!("round {round}");
        let new = if round % 2 == 0 { &saved } else { &lock };
        fs::write(new, &text).expect("a file");
        fs::rename(new, &file).expect("both exist");
        assert_eq!(fs::read_to_string(&file).expect("it was just saved"), text);
        assert_eq!(fs::metadata(&file).expect("it is there").len(), text.len() as u64);
    }
}

/// Trap P5. Threads make, look up, link, rename and remove; when everything is gone the kernel holds
/// nothing, and no forget was wrong.
#[test]
fn removal_of_everything_returns_every_lookup() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let root = site.root().to_owned();
            thread::spawn(move || {
                let shared = root.join("shared");
                // One of the four makes it.
                let _ = fs::create_dir(&shared);
                let own = root.join(format!("own{thread}"));
                for round in 0..100 {
                    fs::create_dir_all(own.join("deep/er")).expect("folders");
                    let file = own.join(format!("deep/er/f{round}"));
                    fs::write(&file, "x").expect("a file");
                    let link = shared.join(format!("l{}", round % 7));
                    let _ = fs::hard_link(&file, &link);
                    let _ = fs::metadata(shared.join(format!("l{}", round % 5)));
                    let _ = fs::rename(&link, shared.join(format!("m{}", round % 3)));
                    let _ = fs::read_dir(&shared).map(Iterator::count);
                    fs::rename(own.join("deep"), own.join("moved")).expect("a folder");
                    fs::remove_dir_all(own.join("moved")).expect("a folder");
                }
                fs::remove_dir(own).expect("it is empty");
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a thread");
    }
    fs::remove_dir_all(site.path("shared")).expect("a folder");
    site.wait_for("all is forgotten", |counters| counters.lookups == 0);
    let counters = site.counters();
    assert_eq!((counters.refused_forgets, counters.panics), (0, 0));
    assert_eq!(counters.inodes, 1, "only the root is in use: {counters:?}");
}
