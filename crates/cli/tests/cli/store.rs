//! A store as its users meet it: mounted, checked, refused, and killed amid its work.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use corewalk::{FileKind, FileSystem as _, Make, Name, Node};
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{Arc, AtomicBool, Ordering};
use corewalk_store::{Store, StoreOptions};
use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::process::Signal;

use crate::fixtures::{Folder, Server, can_mount, corewalk, run, to_full};

/// How often the server is killed; `COREWALK_KILLS` asks for more.
const KILLS: u64 = 10;
/// Threads that change files, each in a directory of its own.
const WRITERS: u64 = 2;

fn source(folder: &Folder) -> String {
    format!("store:{}", folder.path("store").display())
}

fn fsck(folder: &Folder) -> (Option<i32>, String) {
    let output = run(corewalk(&["fsck", &source(folder)]));
    (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn store_keeps_what_was_written() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (path, source) = (folder.path("m"), source(&folder));
    let mut server = Server::of(&source, &["-o", "size=8m"], &path);
    assert_eq!(server.line, format!("mounted {source} on {}\n", path.display()));
    fs::create_dir(path.join("dir")).expect("a directory");
    fs::write(path.join("dir/file"), b"kept").expect("a file");
    // Not every host says who has it.
    let by = corewalk_store::holder(&folder.path("store")).map(|_| server.pid());
    let held = by.map_or("the store is in use".to_owned(), |pid| {
        format!("the store is in use by process {pid}")
    });
    folder.assert_refused(corewalk(&["mount", &source, "/"]), 1, &held);
    folder.assert_refused(corewalk(&["fsck", &source]), 8, &held);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let (status, said) = fsck(&folder);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.starts_with("0 errors, 3 inodes"), "{said}");
    // Not 1, which would say that errors were corrected.
    folder.assert_refused(to_full(&["fsck", &source]), 8, "standard output: No space");
    let server = Server::of(&source, &["-o", "ro"], &path);
    assert_eq!(fs::read(path.join("dir/file")).expect("it is there"), b"kept");
    drop(server);
}

/// Mounts a kernel's tmpfs of 20 MiB where the store is to be; returns false where one may not.
fn has_small_disk(folder: &Folder) -> bool {
    let disk = folder.path("store");
    fs::create_dir(&disk).expect("a folder");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=20m,mode=0755", "none"]).arg(&disk);
    let is_mounted = run(mount).status.success();
    if !is_mounted {
        skip(Need::Root, "no tmpfs can be mounted");
    }
    is_mounted
}

/// A store on a file system that is mounted read-only is read, with what its log has, and no byte of it changes.
#[test]
fn store_on_a_read_only_disk_is_mounted_read_only() {
    let folder = Folder::new();
    if !can_mount() || !has_small_disk(&folder) {
        return;
    }
    let (disk, path, source) = (folder.path("store"), folder.path("m"), source(&folder));
    let remount = |how: &str, size: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{how},size={size}")]).arg(&disk);
        assert!(run(mount).status.success(), "remount,{how}");
    };
    remount("rw", "100m");
    let mut server = Server::of(&source, &["-o", "commit=1000"], &path);
    let mut file = File::create(path.join("file")).expect("a file");
    file.write_all(b"in the log").expect("bytes");
    file.sync_all().expect("it is durable");
    server.signal(Signal::KILL);
    server.wait();
    drop((file, server));
    assert!(
        run({
            let mut unmount = Command::new("umount");
            unmount.arg("-l").arg(&path);
            unmount
        })
        .status
        .success()
    );
    remount("ro", "100m");
    let read = || ["meta", "data", "log", "reserve"].map(|name| fs::read(disk.join(name)).unwrap());
    let before = read();
    folder.assert_refused(corewalk(&["mount", &source, "/"]), 1, "Read-only file system");
    for (number, expected) in [b"in the log", b"in the log"].into_iter().enumerate() {
        let mut server = Server::of(&source, &["-o", "ro"], &path);
        assert!(server.line.starts_with("mounted "), "{number}: {:?}", server.line);
        assert_eq!(fs::read(path.join("file")).expect("it is there"), expected);
        assert!(fs::write(path.join("new"), b"").is_err());
        // Others may read it too.
        assert_eq!(fsck(&folder).0, Some(0));
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
    assert!(read() == before, "changed");
    // The control: a mount that may write puts the log into the database.
    remount("rw", "100m");
    drop(Server::of(&source, &[], &path));
    assert!(read() != before);
}

/// A `lock` that is missing is named, where it is not made.
#[test]
fn store_without_its_lock_says_so() {
    let folder = Folder::new();
    let (path, source) = (folder.path("store"), source(&folder));
    drop(Store::open(&path, &StoreOptions::default()).expect("a store"));
    fs::remove_file(path.join("lock")).expect("it was made");
    for options in ["ro", "no_create"] {
        let mount = corewalk(&["mount", &source, "/", "-o", options]);
        folder.assert_refused(mount, 1, "the file `lock` of the store is missing");
    }
    folder.assert_refused(corewalk(&["fsck", &source]), 8, "`touch lock`");
    fs::write(path.join("lock"), b"").expect("a file");
    assert_eq!(fsck(&folder).0, Some(0));
}

/// A disk without room for what commits may need takes no file: df(1) says so, and so does the program.
#[test]
fn store_on_a_small_disk_says_that_it_takes_nothing() {
    let folder = Folder::new();
    if !can_mount() || !has_small_disk(&folder) {
        return;
    }
    let (path, said) = (folder.path("m"), folder.path("said"));
    let stderr = File::create(&said).expect("a file");
    let mut server = Server::saying(stderr, &source(&folder), &path);
    let warned = fs::read_to_string(&said).expect("it is there");
    assert!(warned.contains("nothing can be added"), "it said: {warned}");
    let room = rustix::fs::statvfs(&path).expect("it is mounted");
    assert_eq!((room.f_bfree, room.f_bavail), (0, 0));
    let error = File::create(path.join("file")).expect_err("there is no room");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// A check changes nothing, so it needs no disk that can be changed.
#[test]
fn store_on_a_read_only_disk_is_checked() {
    let folder = Folder::new();
    if !has_small_disk(&folder) {
        return;
    }
    drop(Store::open(&folder.path("store"), &StoreOptions::default()).expect("a new store"));
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,ro"]).arg(folder.path("store"));
    assert!(run(remount).status.success());
    let (status, said) = fsck(&folder);
    assert_eq!(status, Some(0), "{said}");
}

/// A line of fstab whose disk is not mounted must not become an empty store.
#[test]
fn store_that_is_missing_is_not_made_with_no_create() {
    let folder = Folder::new();
    fs::create_dir(folder.path("store")).expect("a folder");
    let no_create = corewalk(&["mount", &source(&folder), "/x", "-o", "no_create"]);
    folder.assert_refused(no_create, 1, "store: there is no store");
    assert_eq!(fs::read_dir(folder.path("store")).expect("it is there").count(), 0);
    folder.assert_refused(corewalk(&["fsck", &source(&folder)]), 8, "there is no store");
}

#[test]
fn store_of_a_foreign_directory_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path("store")).expect("a folder");
    fs::write(folder.path("store").join("letter"), "mine").expect("a file");
    folder.assert_refused(corewalk(&["mount", &source(&folder), "/x"]), 1, "not a store");
    folder.assert_refused(corewalk(&["mount", "store:", "/x"]), 2, "needs a directory");
    folder.assert_refused(corewalk(&["fsck", &source(&folder)]), 8, "not a store");
    folder.assert_refused(corewalk(&["fsck", "/srv"]), 16, "a store is named as store:DIR");
    folder.assert_refused(corewalk(&["fsck"]), 16, "not provided: <SOURCE>");
    folder.assert_refused(corewalk(&["fsck", "--frobnicate"]), 16, "unexpected argument");
    let missing = format!("store:{}", folder.path("none").display());
    let words = "there is no store";
    folder.assert_refused(corewalk(&["mount", &missing, "/x", "-o", "ro"]), 1, words);
    assert!(!folder.path("none").exists(), "it is not made to be read");
    assert_eq!(fs::read(folder.path("store").join("letter")).expect("it stays"), b"mine");
}

/// Damages each page of a store's database in turn: whatever is asked of it ends with one line at most, a
/// check also with what it found.
#[test]
fn store_with_damaged_pages_is_refused_in_one_line() {
    const PAGE: usize = 4096;
    let folder = Folder::new();
    let store = Store::open(&folder.path("store"), &StoreOptions::default()).expect("a store");
    let root = Node::detached(1, FileKind::Directory);
    for number in 0..150 {
        let name = format!("{number:0100}");
        let name = Name::new(name.as_bytes()).expect("a name");
        store.make(root, name, &Make::new(0o644, 0, 0)).expect("a file");
    }
    drop(store);
    let meta = folder.path("store").join("meta");
    let whole = fs::read(&meta).expect("a database");
    let (mut refused, mut found) = (0, 0);
    for at in (PAGE..whole.len()).step_by(PAGE) {
        if whole[at..at + PAGE].iter().all(|&byte| byte == 0) {
            continue;
        }
        let damage = || {
            let mut damaged = whole.clone();
            damaged[at..at + PAGE].fill(0xee);
            fs::write(&meta, damaged).expect("it is damaged");
        };
        damage();
        // Nothing can be mounted there: the store is opened before.
        let output = run(corewalk(&["mount", &source(&folder), "/dev/null/x"]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{at}: {said}");
        refused += u32::from(said.contains("damaged pages"));
        damage();
        let output = run(corewalk(&["fsck", &source(&folder)]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.is_empty(), "{at}: {said}");
        if output.status.code() == Some(4) {
            let listed = String::from_utf8_lossy(&output.stdout);
            assert!(listed.starts_with("the database has damaged pages\n"), "{at}: {listed}");
            found += 1;
        } else {
            assert_eq!(output.status.code(), Some(0), "{at}: nothing leads there");
        }
    }
    assert!(refused > 2 && found >= refused, "{refused} refused, {found} found");
    fs::write(&meta, whole).expect("it is well again");
    assert_eq!(fsck(&folder).0, Some(0), "the control");
}

/// What a writer had confirmed: numbers of files that were synced, and of those synced and then removed
/// with their directory synced.
#[derive(Debug, Default)]
struct Confirmed {
    kept: Vec<u64>,
    gone: Vec<u64>,
    /// What was under way when the server was killed; it may be there or not.
    last: u64,
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize * 37 % 3000)
}

/// Makes, syncs, renames and removes files until that fails, and returns what was confirmed.
fn write_until_killed(dir: &Path, first: u64, is_over: &AtomicBool) -> Confirmed {
    let mut confirmed = Confirmed::default();
    let mut step = |number: u64| -> std::io::Result<()> {
        confirmed.last = number;
        let (new, path) = (dir.join(format!("new{number}")), dir.join(number.to_string()));
        let mut file = File::create_new(&new)?;
        file.write_all(&content(number))?;
        // One of a few labels, so that blocks are shared.
        let label = vec![number as u8 % 4; 400];
        rustix::fs::setxattr(&new, "user.label", &label, rustix::fs::XattrFlags::empty())?;
        fs::rename(&new, &path)?;
        file.sync_all()?;
        confirmed.kept.push(number);
        if number.is_multiple_of(3) {
            let old = confirmed.kept[confirmed.kept.len() / 2];
            confirmed.kept.retain(|&kept| kept != old);
            fs::remove_file(dir.join(old.to_string()))?;
            File::open(dir)?.sync_all()?;
            confirmed.gone.push(old);
        }
        Ok(())
    };
    let mut number = first;
    // ORDERING: Relaxed. It says when to stop.
    while step(number).is_ok() && !is_over.load(Ordering::Relaxed) {
        number += 1;
    }
    confirmed
}

fn assert_kept(dir: &Path, confirmed: &Confirmed, round: u64) {
    for &number in &confirmed.kept {
        let path = dir.join(number.to_string());
        let got =
            fs::read(&path).unwrap_or_else(|error| panic!("round {round}: {path:?}: {error}"));
        assert!(got == content(number), "round {round}: {path:?} has other bytes");
        let mut label = [9; 400];
        rustix::fs::getxattr(&path, "user.label", &mut label).expect("its label");
        assert_eq!(label, [number as u8 % 4; 400], "round {round}: {path:?}");
    }
    for &number in &confirmed.gone {
        assert!(!dir.join(number.to_string()).exists(), "round {round}: {number} is back");
    }
}

/// Kills the server at random moments of a load, and looks for what was confirmed; every other time
/// the store is mounted as the kill left it, without fsck, which replays the log, before.
#[test]
fn killed_server_loses_nothing_that_was_confirmed() {
    if !can_mount() {
        return;
    }
    let asked = std::env::var("COREWALK_KILLS").ok().and_then(|text| text.parse().ok());
    let folder = Folder::new();
    let (path, source) = (folder.path("m"), source(&folder));
    let seed = ReportSeed::new(Seed::choose());
    let mut rng = Rng::new(seed.seed());
    let mut known: Vec<Confirmed> = (0..WRITERS).map(|_| Confirmed::default()).collect();
    for round in 0..asked.unwrap_or(KILLS) {
        let server = Server::of(&source, &["-o", "commit=1"], &path);
        let is_over = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let dir = path.join(writer.to_string());
                let _ = fs::create_dir(&dir);
                assert_kept(&dir, &known[writer as usize], round);
                let is_over = is_over.clone();
                let first = 1 + known[writer as usize].last;
                thread::spawn(move || write_until_killed(&dir, first, &is_over))
            })
            .collect();
        // From the first write on, and up to some hundred operations later.
        let begun = Instant::now();
        let wait = Duration::from_millis(3 + rng.below(150));
        while begun.elapsed() < wait {
            thread::yield_now();
        }
        server.signal(Signal::KILL);
        // ORDERING: Relaxed. As above.
        is_over.store(true, Ordering::Relaxed);
        for (writer, known) in writers.into_iter().zip(&mut known) {
            let now = writer.join().expect("it ends");
            known.kept.retain(|number| !now.gone.contains(number));
            known.kept.extend(now.kept);
            // What was to be removed next may be gone.
            known.gone.extend(now.gone);
            known.last = now.last;
        }
        drop(server);
        let _ = Command::new("umount").arg("-l").arg(&path).status();
        if rng.chance(1, 2) {
            let (status, said) = fsck(&folder);
            assert_eq!(status, Some(0), "round {round}: {said}");
        }
    }
    let (status, said) = fsck(&folder);
    assert_eq!(status, Some(0), "{said}");
    let server = Server::of(&source, &[], &path);
    for (writer, known) in known.iter().enumerate() {
        assert_kept(&path.join(writer.to_string()), known, asked.unwrap_or(KILLS));
    }
    drop(server);
    let confirmed: usize = known.iter().map(|known| known.kept.len() + known.gone.len()).sum();
    println!("{confirmed} files confirmed, {}", seed.seed());
    assert!(confirmed > 20, "the load did next to nothing");
}
