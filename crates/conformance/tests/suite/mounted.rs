//! Runs the suite for mounted file systems on mounts of three kinds of back ends: by inode number,
//! by path, and asynchronous ones.

use std::sync::Arc;
use std::time::Duration;

use corewalk::ByPath;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_fuse::Options;

use crate::memory::Memory;
use crate::site::{Site, suite};

#[path = "../../../fuse/examples/async_memory.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod async_memory;
use async_memory::Later;

/// The number of calls of a storm, unless `COREWALK_STORM_CALLS` is set. `cargo xtask nightly` sets
/// it to two million.
const CALLS: u64 = 20_000;

fn calls() -> u64 {
    let given = std::env::var("COREWALK_STORM_CALLS").ok();
    given.map_or(CALLS, |calls| calls.parse().expect("COREWALK_STORM_CALLS is a number"))
}

fn storm(site: &Site, threads: usize, calls: u64) {
    let suite = site.suite().only("storm").with_threads(threads).with_operations(calls);
    let report = suite.run();
    println!("{report}");
    report.assert();
}

fn async_storm([call, rename]: [Duration; 2], threads: usize, calls: [u64; 2]) {
    for (options, calls) in [Options::exclusive(), Options::shared()].into_iter().zip(calls) {
        let delay = move |name, _: &[u8]| match name {
            "rename" => rename,
            "forget" => Duration::ZERO,
            _ => call,
        };
        let Some(site) = Site::asynchronous(Later::new(delay), options) else { return };
        storm(&site, threads, calls);
    }
}

#[test]
fn storm_on_a_mount_by_number_has_no_false_error() {
    for options in [Options::exclusive(), Options::shared()] {
        let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        let Some(site) = Site::new(fs, options) else { return };
        storm(&site, 6, calls());
    }
}

#[test]
fn storm_on_a_mount_by_path_has_no_false_error() {
    for options in [Options::exclusive(), Options::shared()] {
        let fs = Arc::new(ByPath::new(Memory::new()));
        let Some(site) = Site::new(fs, options) else { return };
        storm(&site, 6, calls());
    }
}

#[test]
fn storm_on_a_mount_of_an_asynchronous_back_end_has_no_false_error() {
    async_storm([Duration::ZERO; 2], 6, [calls(), calls() / 4]);
}

#[test]
fn storm_on_a_mount_with_calls_of_a_millisecond_has_no_false_error() {
    let slow = Duration::from_millis(1);
    async_storm([slow; 2], 24, [(calls() / 10).min(20_000); 2]);
}

#[test]
fn storm_on_a_mount_with_renames_of_300_milliseconds_has_no_false_error() {
    let renames = [Duration::ZERO, Duration::from_millis(300)];
    async_storm(renames, 24, [(calls() / 20).min(2_000); 2]);
}

#[test]
fn storm_in_a_directory_of_the_host_has_no_false_error() {
    let dir = tempfile::TempDir::new().expect("make a directory");
    let report = suite(dir.path()).only("storm").with_operations(calls()).run();
    println!("{report}");
    report.assert();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left behind");
}
