//! Tests of junctions: one namespace over two databases.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use corewalk_base::primitives::thread;
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::require::has_root;
use rustix::process::Signal;

use crate::fixtures::{Folder, LIMIT, Server, can_mount, corewalk, counter, run};

struct Pair {
    folder: Folder,
    urls: [String; 2],
    _postgres: Postgres,
}

impl Pair {
    /// Makes two cluster file systems. Returns None without PostgreSQL, root or FUSE.
    fn new() -> Option<Pair> {
        if !can_mount() || !has_root() {
            return None;
        }
        let postgres = Postgres::start()?;
        let folder = Folder::new();
        let urls = ["one", "two"].map(|name| {
            let address = format!("pg://{}", postgres.new_database(name));
            let url = format!("{address}?data=file:{}", folder.path("objects").display());
            assert_eq!(run(corewalk(&["mkfs", &url])).status.code(), Some(0));
            address
        });
        Some(Pair { folder, urls, _postgres: postgres })
    }

    fn assert_clean(&self) {
        for url in &self.urls {
            let checked = run(corewalk(&["fsck", url]));
            let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
            assert_eq!(checked.status.code(), Some(0), "{printed}");
        }
    }
}

fn junction(path: &Path, arguments: &[&str]) -> Command {
    let mut command = corewalk(&["cluster", "junction"]);
    command.arg(path).args(arguments);
    command
}

fn wait_for(what: &str, is_true: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < LIMIT, "{what}");
        thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn junction_joins_two_databases() {
    let Some(pair) = Pair::new() else { return };
    let folder = &pair.folder;
    let (first, second) = (folder.path("m1"), folder.path("m2"));
    let mut servers = [&first, &second].map(|path| Server::of(&pair.urls[0], &[], path));
    fs::create_dir_all(first.join("a/j")).expect("the directory is made");
    folder.assert_refused(junction(&first.join("a/j"), &[]), 1, "it is no junction");
    folder.assert_refused(junction(&first.join("a"), &[&pair.urls[1]]), 1, "not empty");
    folder.assert_refused(junction(&folder.0, &[&pair.urls[1]]), 1, "not in a mounted cluster");

    let made = run(junction(&first.join("a/j"), &[&pair.urls[1]]));
    assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    let shown = run(junction(&first.join("a/j"), &[]));
    assert_eq!(String::from_utf8_lossy(&shown.stdout), format!("{}\n", pair.urls[1]));
    // The second mount must show the new junction without a command.
    let device = |path: &Path| fs::metadata(path).expect("the directory exists").dev();
    wait_for("the other mount crosses", || device(&second.join("a/j")) != device(&second));

    // A call below a junction must cost no SQL statement in the database above it. On a busy
    // machine, a mount that hears late about changes asks its database more often. So try again.
    let place = first.join("a/j");
    let counts = || [&first, &place].map(|path| counter(path, "cluster_statements"));
    let file = |number: u32| place.join(number.to_string());
    for tries in 1.. {
        let before = counts();
        (0..100).for_each(|number| drop(fs::File::create_new(file(number)).expect("a new file")));
        let after = counts();
        if after[0] - before[0] <= 2 && (100..=102).contains(&(after[1] - before[1])) {
            break;
        }
        assert!(tries < 4, "{before:?} {after:?}");
        (0..100).for_each(|number| fs::remove_file(file(number)).expect("the file is removed"));
    }
    assert_eq!(fs::read_dir(second.join("a/j")).expect("it is listed").count(), 100);

    let across = fs::rename(place.join("0"), first.join("0")).expect_err("it is another device");
    assert_eq!(across.kind(), ErrorKind::CrossesDevices);
    let moved = fs::rename(&place, first.join("k")).expect_err("it is a junction");
    assert_eq!(moved.kind(), ErrorKind::ResourceBusy);
    fs::rename(first.join("a"), first.join("b")).expect("a directory above may move");
    assert_eq!(fs::read_dir(first.join("b/j")).expect("it is listed").count(), 100);

    let removed = run(junction(&first.join("b/j"), &["--remove"]));
    assert_eq!(removed.status.code(), Some(0), "{}", String::from_utf8_lossy(&removed.stderr));
    assert_eq!(fs::read_dir(first.join("b/j")).expect("it is listed").count(), 0);
    wait_for("the other mount follows", || device(&second.join("b/j")) == device(&second));
    fs::remove_dir(second.join("b/j")).expect("it is a plain directory");
    for server in &mut servers {
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
    assert_eq!(folder.mounts(), Vec::<std::path::PathBuf>::new());
    pair.assert_clean();
}

#[test]
fn junctions_are_mounted_with_the_mount_and_end_with_it() {
    let Some(pair) = Pair::new() else { return };
    let path = pair.folder.path("m");
    let mut server = Server::of(&pair.urls[0], &[], &path);
    fs::create_dir(path.join("j")).expect("the directory is made");
    let made = run(junction(&path.join("j"), &[&pair.urls[1]]));
    assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    fs::write(path.join("j/f"), "text").expect("the file is written");
    // A junction that leads back to the first file system would make an endless path, so it must be
    // refused.
    fs::create_dir(path.join("j/back")).expect("the directory is made");
    let looped = run(junction(&path.join("j/back"), &[&pair.urls[0]]));
    assert_eq!(looped.status.code(), Some(1));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(pair.folder.mounts(), Vec::<std::path::PathBuf>::new());

    let mut server = Server::of(&pair.urls[0], &[], &path);
    assert_eq!(fs::read_to_string(path.join("j/f")).expect("the file exists"), "text");
    let status = Command::new("umount").arg("-R").arg(&path).status();
    assert!(status.expect("umount is installed").success());
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(pair.folder.mounts(), Vec::<std::path::PathBuf>::new());
    pair.assert_clean();
}
