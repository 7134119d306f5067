//! Two threads change two flags of one entry, a flag per thread, 100 million times. No change may
//! be lost, although both flags are in one word (trap T33 in `traps.md`).
//!
//! Usage: `cargo run --release -p corewalk-mbcache --example flags [CHANGES]`. CHANGES is the
//! number of changes, 100 million by default. The test `tests/flags.rs` runs the same workload for
//! a shorter time.

use corewalk_base::primitives::thread;
use corewalk_mbcache::{Mbcache, MbcacheOptions};

const KEY: u64 = 1;
const VALUE: u64 = 2;

fn main() {
    let changes = std::env::args().nth(1).map_or(100_000_000, |n| n.parse().expect("a number"));
    let lost = lost_of(changes);
    println!("{changes} changes, {lost} lost");
    assert_eq!(lost, 0, "T33: a flag was lost");
}

/// Makes at least `changes` changes, and returns how many of them were lost. A change is lost if
/// its thread later finds the flag in another state than it had left it.
pub(crate) fn lost_of(changes: u64) -> u64 {
    // Use the smallest index. It has only one entry, so `scan(1)` always examines that entry.
    let options = MbcacheOptions::default().with_budget_bytes(128);
    let cache = Mbcache::new(options).expect("one entry fits");
    cache.create(KEY, VALUE).expect("it is empty");
    let rounds = changes.div_ceil(4);
    thread::scope(|scope| {
        let reusable = scope.spawn(|| reusable(&cache, rounds));
        referenced(&cache, rounds) + reusable.join().expect("it does not panic")
    })
}

/// In each round, reclaim must find the referenced bit set and clear it. If the other thread has
/// overwritten the bit, reclaim removes the entry.
fn referenced(cache: &Mbcache, rounds: u64) -> u64 {
    let mut lost = 0;
    for _ in 0..rounds {
        let is_there = cache.get(KEY, VALUE);
        let is_kept = cache.scan(1) == 0;
        if !is_there || !is_kept {
            lost += 1;
            let _again = cache.create(KEY, VALUE);
        }
    }
    lost
}

/// A search skips an entry without the reusable flag. So a search in each round finds out whether
/// the other thread has overwritten the flag.
fn reusable(cache: &Mbcache, rounds: u64) -> u64 {
    let mut lost = 0;
    for _ in 0..rounds {
        // If the entry has lost its referenced bit, reclaim may have removed it.
        let Some(entry) = cache.find_first(KEY) else {
            lost += 1;
            continue;
        };
        entry.note_users(cache.users_max());
        lost += u64::from(cache.find_first(KEY).is_some());
        entry.note_users(0);
        lost += u64::from(cache.find_first(KEY).is_none());
    }
    lost
}
