//! Each planted bug must be found, and by the right check of the suite.

use std::sync::Arc;
use std::time::Duration;

use corewalk_conformance::{Outcome, Report, Suite};

use crate::flawed::{Flaw, Flawed};

fn run(flaw: Flaw) -> Report {
    let report = Suite::new(|| Arc::new(Flawed::new(flaw))).run();
    println!("{flaw:?}\n{report}");
    report
}

fn is_found(flaw: Flaw, check: &str, why: &str) {
    let report = run(flaw);
    match report.outcome(check) {
        Some(Outcome::Failed(text)) => assert!(text.contains(why), "{text}"),
        outcome => panic!("{flaw:?} in {check}: {outcome:?}\n{report}"),
    }
}

#[test]
fn layer_without_a_bug_passes() {
    run(Flaw::None).assert();
}

#[test]
fn control_reused_number_is_found() {
    is_found(Flaw::ReusedNumber, "numbers", "is a new file in round");
}

#[test]
fn control_cookie_of_zero_is_found() {
    is_found(Flaw::ZeroCookie, "readdir_cookies", "has the cookie 0");
}

#[test]
fn control_moving_cookie_is_found() {
    is_found(Flaw::MovingCookie, "readdir_changes", "was listed 0 times");
}

#[test]
fn control_entries_after_a_full_buffer_are_found() {
    is_found(Flaw::DeafToBreak, "readdir_pages", "after the buffer was full");
}

#[test]
fn control_old_bytes_behind_a_cut_are_found() {
    is_found(Flaw::OldBytes, "truncate", "extended by its size");
}

#[test]
fn control_exchange_that_replaces_is_found() {
    is_found(Flaw::ExchangeReplaces, "rename_exchange", "ENOENT");
}

#[test]
fn control_no_replace_that_replaces_is_found() {
    is_found(Flaw::NoReplaceReplaces, "rename_no_replace", "success instead of EEXIST");
}

#[test]
fn control_update_lost_by_a_rename_is_found() {
    is_found(Flaw::LostUpdate, "storm", "");
}

#[test]
fn control_removed_file_that_vanishes_is_found() {
    is_found(Flaw::VanishesUnlinked, "unlinked", "ESTALE");
}

#[test]
fn control_short_read_is_found() {
    is_found(Flaw::ShortRead, "read_ranges", "returned 4096");
}

#[test]
fn control_setattr_that_sets_half_is_found() {
    is_found(Flaw::HalfSetattr, "setattr_fails", "after a setattr that failed");
}

#[test]
fn control_removal_of_a_full_directory_is_found() {
    is_found(Flaw::RemovesFull, "remove", "success instead of ENOTEMPTY");
}

#[test]
fn control_forget_that_loses_content_is_found() {
    is_found(Flaw::ForgetLosesContent, "forget", "0 bytes instead of");
}

#[test]
fn control_time_of_the_call_is_found() {
    is_found(Flaw::TimeOfCall, "tree", "mtime of getattr after lookup, without a change");
}

#[test]
fn control_panic_is_found() {
    is_found(Flaw::Panics, "make_kinds", "a planted panic");
}

#[test]
fn control_hang_is_found() {
    let suite = Suite::new(|| Arc::new(Flawed::new(Flaw::Hangs))).only("make_kinds");
    let report = suite.with_time_limit(Duration::from_millis(100)).run();
    let Some(Outcome::Failed(text)) = report.outcome("make_kinds") else { panic!("{report}") };
    assert!(text.contains("did not end within"), "{text}");
}

#[test]
fn excepted_check_is_skipped_with_its_reason() {
    let suite = Suite::new(|| Arc::new(Flawed::new(Flaw::ShortRead)));
    let report = suite.only("read_ranges").only("root").except("read_ranges", "known").run();
    assert_eq!(report.outcome("read_ranges"), Some(&Outcome::Skipped("known".to_owned())));
    assert_eq!(report.outcome("root"), Some(&Outcome::Passed));
    report.assert();
}

#[test]
#[should_panic(expected = "there is no check \"strom\"")]
fn unknown_check_is_a_mistake_of_the_caller() {
    let _ = Suite::new(|| Arc::new(Flawed::new(Flaw::None))).only("strom").run();
}
