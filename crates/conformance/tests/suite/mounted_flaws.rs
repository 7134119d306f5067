//! Each check of a mounted file system must find a planted bug. The bug is in the file system, or
//! in a program that changes files during the check.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use corewalk_conformance::{Outcome, Report};
use corewalk_fuse::Options;
use corewalk_testkit::require::{Need, has_root, skip};
use tempfile::TempDir;

use crate::flawed::{Flaw, Flawed};
use crate::site::{Site, suite};

fn run(flaw: Flaw, check: &str) -> Option<Report> {
    let site = Site::new(Arc::new(Flawed::new(flaw)), Options::shared())?;
    let report = site.suite().only(check).run();
    println!("{flaw:?}\n{report}");
    let name = check.split(':').next().unwrap_or_default();
    if let Some(Outcome::Skipped(why)) = report.outcome(name) {
        skip(Need::Package, why);
        return None;
    }
    Some(report)
}

/// Checks that `check` fails because of the bug `flaw`, with a report that contains `why`. The
/// check must pass without the bug.
fn is_found(flaw: Flaw, check: &str, why: &str) {
    let Some(report) = run(Flaw::None, check) else { return };
    report.assert();
    let Some(report) = run(flaw, check) else { return };
    has_failed(&report, why);
}

fn has_failed(report: &Report, why: &str) {
    match report.outcomes().next() {
        Some((_, Outcome::Failed(text))) => assert!(text.contains(why), "{text}"),
        outcome => panic!("{outcome:?}"),
    }
}

/// Runs the check `storm`. Meanwhile `sabotage` is called again and again with the path of a file
/// of the storm, as if by another program.
fn storm_beside(sabotage: fn(&Path) -> std::io::Result<()>) -> Report {
    let dir = TempDir::new().expect("make a directory");
    let path = dir.path().to_owned();
    let suite = suite(dir.path()).with_invalidation(move |name| {
        if name.ends_with("current1") {
            for _ in 0..200 {
                // A file of the storm may not exist yet, or its directory may have moved. So errors
                // are ignored.
                let _ = sabotage(&path.join(name));
            }
        }
    });
    let report = suite.only("storm").run();
    println!("{report}");
    report
}

#[test]
fn control_old_bytes_are_found_by_the_storm_on_a_mount() {
    is_found(Flaw::OldBytes, "storm", "instead of 0x00");
}

#[test]
fn control_removed_file_that_vanishes_is_found_by_the_storm_on_a_mount() {
    is_found(Flaw::VanishesUnlinked, "storm", "ESTALE");
}

#[test]
fn control_file_that_is_missing_is_found_by_the_storm() {
    let report = storm_beside(|path| fs::remove_file(path));
    has_failed(&report, "open of \"current1\": ENOENT");
}

#[test]
fn control_file_that_is_half_written_is_found_by_the_storm() {
    let report = storm_beside(|path| File::options().write(true).open(path)?.set_len(9));
    has_failed(&report, "current1");
}

#[test]
fn control_old_bytes_are_found_by_fsx() {
    is_found(Flaw::OldBytes, "fsx:unmapped", "miscompare");
}

#[test]
fn control_removal_of_a_full_directory_is_found_by_pjdfstest() {
    if has_root() {
        is_found(Flaw::RemovesFull, "pjdfstest:rmdir::", "rmdir::eexist_enotempty_non_empty_dir");
    }
}

#[test]
fn excepted_tests_of_pjdfstest_may_fail() {
    if !has_root() {
        return;
    }
    let new = || Site::new(Arc::new(Flawed::new(Flaw::RemovesFull)), Options::shared());
    for (word, fails) in [("non_empty_dir::", false), ("non_empty_dir::regular", true)] {
        let Some(site) = new() else { return };
        let suite = site.suite().only("pjdfstest:rmdir::");
        let report = suite.except(&format!("pjdfstest:{word}"), "known").run();
        if let Some(Outcome::Skipped(why)) = report.outcome("pjdfstest") {
            return skip(Need::Package, why);
        }
        assert_eq!(report.failed().next().is_some(), fails, "{report}");
        assert!(report.to_string().contains("failed, but excepted: rmdir::"), "{report}");
    }
}

#[test]
#[should_panic(expected = "there is no check \"storm:reader\"")]
fn part_of_a_check_without_parts_is_a_mistake_of_the_caller() {
    let _ = suite(Path::new("/nonexistent")).only("storm:reader").run();
}
