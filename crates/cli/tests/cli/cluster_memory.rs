//! Checks that the option `cache=` limits the memory of a mount of a cluster file system.
//!
//! Half of the names are in directories of 1,000 names, and half are in one directory. The test
//! looks up the names in the small directories, and lists the large directory.
//! `COREWALK_MEMORY_NAMES` sets the number of names, and the test chooses `cache=` in proportion. A
//! run with 1,000,000 names has `cache=64m`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use corewalk_testkit::postgres::Postgres;

use crate::cluster::made;
use crate::fixtures::{Folder, Server, can_mount};

const NAMES: u64 = 200_000;
const CACHE_BYTES: u64 = 67;
/// The memory that the server may use in addition to its caches, for buffers and stacks of threads.
const BESIDE_KIB: u64 = 16 << 10;

/// Makes the names by SQL statements, because calls through a mount would take hours.
fn fill(postgres: &Postgres, names: u64) {
    let dirs = names / 2000;
    let node =
        "INSERT INTO node (ino, home, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime,
        btime, version, flags) SELECT";
    let made = "0, 0, 0, 0, 0, 0, 1, 0 FROM";
    let edge = "INSERT INTO edge SELECT";
    let files = "generate_series(1, 1000) f";
    let all = format!("generate_series(1, {dirs}) d");
    postgres.sql(
        "files",
        &format!(
            "SET search_path = corewalk;
            {node} 10000000 + d, 1, 16877, 0, 0, 2, {made} generate_series(0, {dirs}) d;
            {edge} 1, convert_to('d' || d, 'UTF8'), 10000000 + d, 16384, nextval('edge_seq_seq')
                FROM generate_series(0, {dirs}) d;
            {node} 20000000 + d * 1000 + f, 10000000 + d, 33188, 0, 0, 1, {made} {all}, {files};
            {edge} 10000000 + d, convert_to('file-number-' || f, 'UTF8'), 20000000 + d * 1000 + f,
                32768, nextval('edge_seq_seq') FROM {all}, {files};
            {node} 30000000 + f, 10000000, 33188, 0, 0, 1, {made} generate_series(1, {dirs}000) f;
            {edge} 10000000, convert_to('file-number-' || f, 'UTF8'), 30000000 + f, 32768,
                nextval('edge_seq_seq') FROM generate_series(1, {dirs}000) f;
            ANALYZE"
        ),
    );
}

#[test]
fn memory_of_a_cluster_mount_stays_within_the_cache() {
    if !can_mount() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let names = std::env::var("COREWALK_MEMORY_NAMES");
    let names = names.map_or(NAMES, |text| text.parse().expect("a number of names"));
    let (folder, cache_kib) = (Folder::new(), names * CACHE_BYTES / 1024);
    let address = made(&postgres, &folder);
    fill(&postgres, names);
    let path = folder.path("m");
    let server = Server::of(&address, &["-o", &format!("cache={cache_kib}k")], &path);
    let before = server.resident_kib();
    let check = |what: &str| {
        let grown = server.resident_kib() - before;
        println!("{what}: {grown} KiB more, with a cache of {cache_kib} KiB");
        assert!(grown <= 2 * cache_kib + BESIDE_KIB, "{what}: {grown} KiB");
    };
    for pass in ["first", "second"] {
        for at in 1..=names / 2000 {
            let dir = path.join(format!("d{at}"));
            let found = fs::read_dir(dir).expect("the directory is listed");
            let count = found.map(|name| {
                let path = name.expect("the name is read").path();
                fs::symlink_metadata(path).expect("the file exists").nlink()
            });
            assert_eq!(count.sum::<u64>(), 1000);
        }
        check(&format!("{pass} lookup of all names"));
        let found = fs::read_dir(path.join("d0")).expect("the directory is listed");
        assert_eq!(found.count() as u64, names / 2000 * 1000);
        check(&format!("{pass} listing of one directory"));
    }
}
