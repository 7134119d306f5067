//! Two threads change the two flags of one entry. The long run is the example `flags`.

#[path = "../examples/flags.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod flags;

/// Trap T33: also beside reclaim, no flag is lost. The control is a model in the crate.
#[test]
fn flags_of_one_entry_under_two_threads_are_kept() {
    assert_eq!(flags::lost_of(400_000), 0, "T33: a flag was lost");
}
