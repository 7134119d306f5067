//! Tests that searches and reclaim are correct while other threads create and delete entries.
//!
//! The indexes are so small that many entries lie behind their home line, and slots are soon used
//! again.

use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_mbcache::{CreateError, Mbcache, MbcacheOptions};
use corewalk_testkit::{
    race::{self, Racer, Watchdog},
    rng::{ReportSeed, Seed},
};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn cache(budget_bytes: u64) -> Mbcache {
    Mbcache::new(MbcacheOptions::default().with_budget_bytes(budget_bytes)).unwrap()
}

/// Guarantee G.1 of `lib.rs`: an entry behind its home line must be found while other entries come
/// and go.
#[test]
fn entries_that_stay_are_found_while_others_of_their_home_come_and_go() {
    const CHURNED: u64 = 60;
    const STAYING: [u64; 4] = [60, 61, 62, 63];
    const ROUNDS: u64 = 3_000;
    let _watchdog = Watchdog::start("searches beside deletions", LIMIT);
    let report = ReportSeed::new(Seed::choose());
    let cache = cache(16 << 10);
    (0..=STAYING[3]).for_each(|value| cache.create(1, value).unwrap());
    race::run(3, report.seed(), |mut racer| {
        for _ in 0..ROUNDS {
            if racer.thread > 0 {
                let value = racer.rng.below(CHURNED);
                if cache.delete_or_get(1, value).is_none() {
                    let created = cache.create(1, value);
                    assert_ne!(created, Err(CreateError::Full));
                }
                continue;
            }
            for value in STAYING {
                assert!(cache.get(1, value), "G.1: an entry that stayed was missed by a get");
            }
            let mut met = [0; STAYING.len()];
            let mut found = cache.find_first(1);
            while let Some(entry) = found {
                if let Some(nth) = entry.value().checked_sub(CHURNED) {
                    met[nth as usize] += 1;
                }
                found = cache.find_next(&entry);
            }
            assert_eq!(met, [1; STAYING.len()], "G.1, G.3: met so often by one loop");
        }
    });
}

/// Reclaim must not remove an entry with a handle, and must keep the count of entries right. Trap
/// T35 in `traps.md`.
#[test]
fn shrinker_under_load_keeps_held_entries_and_counts() {
    const CREATORS: usize = 2;
    const CREATES: u64 = 20_000;
    let _watchdog = Watchdog::start("a shrinker under load", LIMIT);
    let report = ReportSeed::new(Seed::choose());
    let cache = cache(32 << 10);
    let working = AtomicU64::new(CREATORS as u64);
    let create = |racer: &mut Racer| {
        let first = racer.thread as u64 * CREATES;
        for value in first..first + CREATES {
            let key = racer.rng.below(300);
            cache.create(key, value).unwrap();
            let Some(entry) = cache.find_first(key) else { continue };
            let busy = cache.delete_or_get(key, entry.value());
            assert!(busy.is_some(), "T35: a held entry was not in the index");
        }
        // ORDERING: Relaxed. The value only tells the shrinker to stop.
        working.fetch_sub(1, Ordering::Relaxed);
    };
    let dropped = race::run(CREATORS + 1, report.seed(), |mut racer| {
        if racer.thread < CREATORS {
            create(&mut racer);
            return 0;
        }
        let mut dropped = 0;
        // ORDERING: Relaxed. The value only tells the shrinker to stop.
        while working.load(Ordering::Relaxed) > 0 {
            dropped += cache.scan(64);
        }
        dropped
    });
    let stats = cache.stats();
    assert!(dropped[CREATORS] > 0, "the shrinker had nothing to do");
    assert_eq!(stats.entries + stats.reclaimed, CREATORS as u64 * CREATES, "an end is not counted");
    assert_eq!(cache.scan(u64::MAX), stats.entries, "the entry of a handle that was put stays");
}
