//! Tests of stores through the program: mount, check, refusal, and a server that is killed under
//! load.

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

use crate::fixtures::{Folder, Server, can_mount, corewalk, run, with_full_stdout};

/// How often the server is killed, unless `COREWALK_KILLS` has another number.
const KILLS: u64 = 10;
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
    fs::create_dir(path.join("dir")).expect("the directory exists");
    fs::write(path.join("dir/file"), b"kept").expect("the file is created");
    // Not every file system reports which process holds a lock, so the error message may name no
    // pid.
    let by = corewalk_store::holder(&folder.path("store")).map(|_| server.pid());
    let held = by.map_or("the store is in use".to_owned(), |pid| {
        format!("the store is in use by process {pid}")
    });
    folder.assert_refused(corewalk(&["mount", &source, "/"]), 1, &held);
    folder.assert_refused(corewalk(&["fsck", &source]), 8, &held);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let (status, printed) = fsck(&folder);
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.starts_with("0 errors, 3 inodes"), "{printed}");
    // In fsck(8), exit status 1 means "errors corrected", so a failure of the check must have
    // another one.
    folder.assert_refused(with_full_stdout(&["fsck", &source]), 8, "standard output: No space");
    let server = Server::of(&source, &["-o", "ro"], &path);
    assert_eq!(fs::read(path.join("dir/file")).expect("the file exists"), b"kept");
    drop(server);
}

fn has_small_disk(folder: &Folder) -> bool {
    let disk = folder.path("store");
    fs::create_dir(&disk).expect("the directory is created");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=20m,mode=0755", "none"]).arg(&disk);
    let is_mounted = run(mount).status.success();
    if !is_mounted {
        skip(Need::Root, "no tmpfs can be mounted");
    }
    is_mounted
}

/// A read-only mount must show changes that are only in the log, and must not change the store.
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
    let mut file = File::create(path.join("file")).expect("the file is created");
    file.write_all(b"in the log").expect("the write succeeds");
    file.sync_all().expect("fsync succeeds");
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
        assert_eq!(fs::read(path.join("file")).expect("the file exists"), expected);
        assert!(fs::write(path.join("new"), b"").is_err());
        assert_eq!(fsck(&folder).0, Some(0));
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
    assert!(read() == before, "a read-only mount changed the store");
    // Control: a read-write mount writes the changes in the log to the database.
    remount("rw", "100m");
    drop(Server::of(&source, &[], &path));
    assert!(read() != before);
}

/// If the file `lock` of a store is missing, a mount must report that, and not create it.
#[test]
fn missing_lock_of_a_store_is_reported() {
    let folder = Folder::new();
    let (path, source) = (folder.path("store"), source(&folder));
    drop(Store::open(&path, &StoreOptions::default()).expect("the store is created"));
    fs::remove_file(path.join("lock")).expect("the file was created");
    for options in ["ro", "no_create"] {
        let mount = corewalk(&["mount", &source, "/", "-o", options]);
        folder.assert_refused(mount, 1, "the file `lock` of the store is missing");
    }
    folder.assert_refused(corewalk(&["fsck", &source]), 8, "`touch lock`");
    fs::write(path.join("lock"), b"").expect("the file is created");
    assert_eq!(fsck(&folder).0, Some(0));
}

/// If the disk has no space for the store's reserve, df(1) must show no free space. The program
/// must print a warning.
#[test]
fn store_on_a_small_disk_warns_that_nothing_can_be_added() {
    let folder = Folder::new();
    if !can_mount() || !has_small_disk(&folder) {
        return;
    }
    let (path, log) = (folder.path("m"), folder.path("log"));
    let stderr = File::create(&log).expect("the file is created");
    let mut server = Server::with_stderr(stderr, &source(&folder), &path);
    let warning = fs::read_to_string(&log).expect("the file exists");
    assert!(warning.contains("nothing can be added"), "the server printed: {warning}");
    let space = rustix::fs::statvfs(&path).expect("the mount answers");
    assert_eq!((space.f_bfree, space.f_bavail), (0, 0));
    let error = File::create(path.join("file")).expect_err("the store is full");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// `fsck` changes nothing, so it must work on a read-only disk.
#[test]
fn store_on_a_read_only_disk_is_checked() {
    let folder = Folder::new();
    if !has_small_disk(&folder) {
        return;
    }
    drop(
        Store::open(&folder.path("store"), &StoreOptions::default()).expect("the store is created"),
    );
    let mut remount = Command::new("mount");
    remount.args(["-o", "remount,ro"]).arg(folder.path("store"));
    assert!(run(remount).status.success());
    let (status, printed) = fsck(&folder);
    assert_eq!(status, Some(0), "{printed}");
}

/// At boot, the disk of the store may not be mounted yet. With `no_create`, a mount must not create
/// a store.
#[test]
fn missing_store_is_not_created_with_no_create() {
    let folder = Folder::new();
    fs::create_dir(folder.path("store")).expect("the directory is created");
    let no_create = corewalk(&["mount", &source(&folder), "/x", "-o", "no_create"]);
    folder.assert_refused(no_create, 1, "store: the directory holds no store");
    assert_eq!(fs::read_dir(folder.path("store")).expect("the file exists").count(), 0);
    folder.assert_refused(corewalk(&["fsck", &source(&folder)]), 8, "holds no store");
}

#[test]
fn store_of_a_foreign_directory_is_refused() {
    let folder = Folder::new();
    fs::create_dir(folder.path("store")).expect("the directory is created");
    fs::write(folder.path("store").join("letter"), "mine").expect("the file is created");
    folder.assert_refused(
        corewalk(&["mount", &source(&folder), "/x"]),
        1,
        "not empty and holds no store",
    );
    folder.assert_refused(corewalk(&["mount", "store:", "/x"]), 2, "names no directory");
    folder.assert_refused(corewalk(&["fsck", &source(&folder)]), 8, "not empty and holds no store");
    folder.assert_refused(corewalk(&["fsck", "/srv"]), 16, "name a store as store:DIR");
    folder.assert_refused(corewalk(&["fsck"]), 16, "not provided: <SOURCE>");
    folder.assert_refused(corewalk(&["fsck", "--frobnicate"]), 16, "unexpected argument");
    let missing = format!("store:{}", folder.path("none").display());
    let words = "the directory holds no store";
    folder.assert_refused(corewalk(&["mount", &missing, "/x", "-o", "ro"]), 1, words);
    assert!(!folder.path("none").exists(), "a read-only mount created a store");
    assert_eq!(fs::read(folder.path("store").join("letter")).expect("the file was kept"), b"mine");
}

/// With each page damaged in turn, a mount must fail with one line, and a check must report the
/// damage without a panic.
#[test]
fn store_with_damaged_pages_is_refused_in_one_line() {
    const PAGE: usize = 4096;
    let folder = Folder::new();
    let store =
        Store::open(&folder.path("store"), &StoreOptions::default()).expect("the store is created");
    let root = Node::detached(1, FileKind::Directory);
    for number in 0..150 {
        let name = format!("{number:0100}");
        let name = Name::new(name.as_bytes()).expect("the name is valid");
        store.make(root, name, &Make::new(0o644, 0, 0)).expect("the file is created");
    }
    drop(store);
    let meta = folder.path("store").join("meta");
    let whole = fs::read(&meta).expect("the database can be read");
    let (mut refused, mut found) = (0, 0);
    for at in (PAGE..whole.len()).step_by(PAGE) {
        if whole[at..at + PAGE].iter().all(|&byte| byte == 0) {
            continue;
        }
        let damage = || {
            let mut damaged = whole.clone();
            damaged[at..at + PAGE].fill(0xee);
            fs::write(&meta, damaged).expect("the database is overwritten");
        };
        damage();
        // The mount point is invalid, so each mount fails. Its error message shows whether the
        // store could be opened.
        let output = run(corewalk(&["mount", &source(&folder), "/dev/null/x"]));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), printed.lines().count()),
            (Some(1), 1),
            "{at}: {printed}"
        );
        refused += u32::from(printed.contains("damaged pages"));
        damage();
        let output = run(corewalk(&["fsck", &source(&folder)]));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(printed.is_empty(), "{at}: {printed}");
        if output.status.code() == Some(4) {
            let listed = String::from_utf8_lossy(&output.stdout);
            assert!(listed.starts_with("the database has damaged pages\n"), "{at}: {listed}");
            found += 1;
        } else {
            assert_eq!(output.status.code(), Some(0), "{at}: the page is not in use");
        }
    }
    assert!(refused > 2 && found >= refused, "{refused} refused, {found} found");
    fs::write(&meta, whole).expect("the database is restored");
    assert_eq!(fsck(&folder).0, Some(0), "control: the restored database has no errors");
}

/// The files of one directory whose creation (`kept`) or removal (`gone`) was confirmed by
/// fsync(2). After a kill of the server, `kept` must exist, and `gone` must not.
#[derive(Debug, Default)]
struct Confirmed {
    kept: Vec<u64>,
    /// Files that were removed, and whose directory was synced afterwards.
    gone: Vec<u64>,
    last: u64,
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(1 + number as usize * 37 % 3000)
}

/// Creates and removes files in `dir` until a call fails because the server was killed. Returns
/// what fsync(2) has confirmed.
fn write_until_killed(dir: &Path, first: u64, is_over: &AtomicBool) -> Confirmed {
    let mut confirmed = Confirmed::default();
    let mut step = |number: u64| -> std::io::Result<()> {
        confirmed.last = number;
        let (new, path) = (dir.join(format!("new{number}")), dir.join(number.to_string()));
        let mut file = File::create_new(&new)?;
        file.write_all(&content(number))?;
        // There are four different values, so many files share an attribute block.
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
    // ORDERING: Relaxed. The flag only ends the loop.
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
        rustix::fs::getxattr(&path, "user.label", &mut label).expect("the label exists");
        assert_eq!(label, [number as u8 % 4; 400], "round {round}: {path:?}");
    }
    for &number in &confirmed.gone {
        assert!(!dir.join(number.to_string()).exists(), "round {round}: {number} is back");
    }
}

/// A kill of the server must not lose a confirmed change. After about half of the kills, `fsck`
/// checks the store before the log is replayed.
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
        // Kill the server after 3 to 152 ms. By then it has made between one write and some hundred
        // operations.
        let begun = Instant::now();
        let wait = Duration::from_millis(3 + rng.below(150));
        while begun.elapsed() < wait {
            thread::yield_now();
        }
        server.signal(Signal::KILL);
        // ORDERING: Relaxed. The flag only ends the loops of the writers.
        is_over.store(true, Ordering::Relaxed);
        for (writer, known) in writers.into_iter().zip(&mut known) {
            let now = writer.join().expect("the writer ends");
            known.kept.retain(|number| !now.gone.contains(number));
            known.kept.extend(now.kept);
            // `write_until_killed` takes a file out of `kept` before it removes it.
            known.gone.extend(now.gone);
            known.last = now.last;
        }
        drop(server);
        let _ = Command::new("umount").arg("-l").arg(&path).status();
        if rng.chance(1, 2) {
            let (status, printed) = fsck(&folder);
            assert_eq!(status, Some(0), "round {round}: {printed}");
        }
    }
    let (status, printed) = fsck(&folder);
    assert_eq!(status, Some(0), "{printed}");
    let server = Server::of(&source, &[], &path);
    for (writer, known) in known.iter().enumerate() {
        assert_kept(&path.join(writer.to_string()), known, asked.unwrap_or(KILLS));
    }
    drop(server);
    let confirmed: usize = known.iter().map(|known| known.kept.len() + known.gone.len()).sum();
    println!("{confirmed} files confirmed, {}", seed.seed());
    assert!(confirmed > 20, "only {confirmed} files were confirmed; the load is too small");
}
