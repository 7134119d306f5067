//! Tests of the budget of the cache on a real mount, where the kernel pins all inodes that it has
//! looked up.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_fuse::{Counters, Options};
use corewalk_testkit::require::{Need, skip};

use crate::site::Site;

const DIRECTORIES: u64 = 100;
const FILES: u64 = 300;

fn site(cache_bytes: u64) -> Option<Site> {
    let mut options = Options::exclusive();
    options.vfs.cache_bytes = cache_bytes;
    Site::tmpfs(options)
}

fn is_within_budget(counters: &Counters) -> bool {
    counters.bytes <= counters.budget_bytes
}

/// Asserts that the cache uses at most 1.5 times its budget: the shrinker thread needs some time to
/// react.
fn for_each_file(site: &Site, mut visit: impl FnMut(u64, u64)) {
    for directory in 0..DIRECTORIES {
        for file in 0..FILES {
            visit(directory, file);
        }
        let counters = site.counters();
        assert!(counters.bytes <= counters.budget_bytes / 2 * 3, "under load: {counters:?}");
    }
}

/// The table of inodes must not grow without bound. The kernel must forget inodes even when no
/// request arrives any more. Trap P10.
#[test]
fn cache_returns_to_its_budget_when_the_load_ends() {
    let Some(site) = site(2 << 20) else { return };
    for directory in 0..DIRECTORIES {
        fs::create_dir(site.path(&format!("d{directory}"))).expect("make the folder");
    }
    let path = |directory, file| site.path(&format!("d{directory}/file-{file}"));
    for_each_file(&site, |directory, file| {
        fs::write(path(directory, file), "").expect("write the file");
    });
    site.wait_for("files were made", is_within_budget);
    for_each_file(&site, |directory, file| {
        assert!(path(directory, file).exists(), "{directory}/{file} is still there");
    });
    site.wait_for("files were looked at", is_within_budget);
    let counters = site.counters();
    assert!(counters.lookups < DIRECTORIES * FILES, "nothing was forgotten: {counters:?}");
    let listed = fs::read_dir(site.path("d7")).expect("list the folder").count() as u64;
    assert_eq!(listed, FILES);
    for_each_file(&site, |directory, file| {
        fs::remove_file(path(directory, file)).expect("remove the file");
    });
    // Each negative entry has 96 bytes. The negative entries of the removed files may take 1/8 of
    // the cache's budget of 2 MiB.
    site.wait_for("files were removed", |counters| {
        is_within_budget(counters) && counters.negatives <= (2 << 20) / 8 / 96
    });
    assert_eq!(site.counters().refused_forgets, 0);
}

/// If the kernel has `FUSE_NOTIFY_PRUNE`, the server must make it forget directories too. Trap P10.
#[test]
fn deep_tree_does_not_outgrow_the_budget() {
    let Some(site) = site(256 << 10) else { return };
    for top in 0..50 {
        for below in 0..100 {
            let path = site.path(&format!("t{top}/{below}/x"));
            fs::create_dir_all(path).expect("make the folders");
        }
    }
    if can_forget_directories() {
        site.wait_for("folders were made", is_within_budget);
    }
    for top in 0..50 {
        assert!(site.path(&format!("t{top}/99/x")).is_dir());
    }
}

/// Linux 6.18 and newer have `FUSE_NOTIFY_PRUNE`.
fn can_forget_directories() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    let is_new = (next(), next()) >= (6, 18);
    if !is_new {
        let reason = format!("Linux {release} has no FUSE_NOTIFY_PRUNE to forget directories");
        skip(Need::Machine, reason);
    }
    is_new
}

/// Open files may make the cache exceed its budget. After they are closed it must shrink, even if
/// no request arrives.
#[test]
fn closed_files_are_evicted_without_another_request() {
    let Some(site) = site(64 << 10) else { return };
    let files: Vec<_> = (0..800)
        .map(|file| fs::File::create(site.path(&format!("f{file}"))).expect("create the file"))
        .collect();
    let counters = site.counters();
    assert!(counters.lookups >= 800, "open files are kept: {counters:?}");
    for (file, number) in files.iter().zip(0_u64..) {
        let metadata = file.metadata().expect("read the attributes");
        assert_eq!((metadata.len(), metadata.is_file()), (0, true), "f{number}");
    }
    drop(files);
    site.wait_for("files were closed", is_within_budget);
}

#[test]
fn working_directory_keeps_its_path_under_pressure() {
    let Some(site) = site(128 << 10) else { return };
    let inside = site.path("a/b/c");
    fs::create_dir_all(&inside).expect("make the folders");
    let mut shell = Command::new("sh")
        .args(["-c", "echo ready; read -r line; /bin/pwd -P"])
        .current_dir(&inside)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the program");
    let mut output = BufReader::new(shell.stdout.take().expect("the stream is piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("read a line of the shell");
    assert_eq!(line, "ready\n");
    for file in 0..5000 {
        fs::write(site.path(&format!("f{file}")), "").expect("write the file");
    }
    site.wait_for("files were made", is_within_budget);
    assert!(site.counters().reclaimed > 1000, "nothing was reclaimed: {:?}", site.counters());
    writeln!(shell.stdin.take().expect("the stream is piped"), "go").expect("write to the shell");
    line.clear();
    output.read_line(&mut line).expect("read a line of the shell");
    assert!(shell.wait().expect("wait for the shell").success());
    assert_eq!(line.trim_end(), inside.to_str().expect("the path is UTF-8"));
}

/// After the last request, the attributes of three files wait for their de-duplication. The
/// de-duplication must happen even if no further request arrives.
#[test]
fn deferred_sharing_of_attributes_needs_no_request() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let Some(site) = Site::new(fs.clone(), Options::exclusive()) else { return };
    for name in ["a", "b", "c"] {
        let path = site.path(name);
        fs::write(&path, "").expect("write the file");
        for value in [b"one", b"two"] {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, "user.label", value, flags).expect("set the attribute");
        }
    }
    site.wait_for("attributes were changed", |_| {
        let stats = fs.xattr_stats();
        stats.waiting == 0 && stats.shared_sets == 1
    });
}
