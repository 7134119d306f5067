//! Two threads change the referenced bit and the reusable flag of one entry, a flag per thread.

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, AtomicU64, Ordering};

#[path = "../examples/flags.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod flags;

/// If two threads change two flags of one word at the same time, no change may be lost. Trap T33 in
/// `traps.md`.
#[test]
fn flags_of_one_entry_under_two_threads_are_kept() {
    assert_eq!(flags::lost_of(400_000), 0, "T33: a flag was lost");
}

/// Control test: two threads change different flags of one word by a load and a store of the word.
/// So a change gets lost.
#[test]
fn control_flags_that_are_changed_in_two_steps_are_lost() {
    const CHANGES_MAX: u64 = 1 << 32;
    let word = AtomicU64::new(0);
    let is_lost = AtomicBool::new(false);
    let change = |flag: u64| {
        for change in 1..CHANGES_MAX {
            // ORDERING: Relaxed, which is strong enough. The planted bug is the separate store
            // below.
            let before = word.load(Ordering::Relaxed);
            if is_lost.load(Ordering::Relaxed) {
                return;
            }
            if change > 1 && (before & flag != 0) == (change % 2 == 1) {
                // ORDERING: Relaxed. The value only tells the other thread to stop.
                is_lost.store(true, Ordering::Relaxed);
                return;
            }
            // ORDERING: Relaxed, which is strong enough. The planted bug is that a load and a store
            // replace one atomic operation.
            word.store(before ^ flag, Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| change(1));
        change(2);
    });
    // ORDERING: Relaxed. The thread has been joined.
    assert!(is_lost.load(Ordering::Relaxed), "nothing was lost");
}
