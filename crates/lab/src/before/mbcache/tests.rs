//! Tests of the mbcache designs. Each must be a multimap that drops its least recently used entry
//! when it is full.

use std::collections::BTreeSet;

use corewalk_store::ShareIndex;
use fastrand::Rng;

use super::*;

const ENTRIES: usize = 64;

/// Returns each design with its name.
fn all(entries: usize) -> [(&'static str, Box<dyn ShareIndex>); 3] {
    [
        ("one lock", Box::new(OneLock::new(entries))),
        ("one list", Box::new(Lru::new(entries, 1))),
        ("two lists", Box::new(Lru::new(entries, 2))),
    ]
}

/// Returns the blocks under a key.
fn collect(index: &dyn ShareIndex, key: u64) -> Vec<u64> {
    let mut blocks = vec![];
    index.find(key, &mut |block| {
        blocks.push(block);
        false
    });
    blocks
}

/// Looks up a key, so that its entry is the most recently used one. Returns false without an entry.
fn touch(index: &dyn ShareIndex, key: u64) -> bool {
    index.find(key, &mut |_| true).is_some()
}

#[test]
fn every_design_is_a_multimap() {
    for (name, index) in all(ENTRIES) {
        let (mut model, mut rng) = (BTreeSet::new(), Rng::with_seed(4));
        for _ in 0..20_000 {
            // A block has one content at a time, so the model has at most one pair per block.
            let block = rng.u64(..40);
            let key = (block + rng.u64(..2)) % 5;
            match model.iter().find(|pair: &&(u64, u64)| pair.1 == block).copied() {
                Some((key, _)) => {
                    index.leave(block);
                    index.remove(key, block);
                    model.remove(&(key, block));
                }
                None => {
                    index.insert(key, block, 1);
                    model.insert((key, block));
                }
            }
            let mut blocks = collect(&*index, key);
            blocks.sort_unstable();
            let expected: Vec<u64> =
                model.iter().filter(|pair| pair.0 == key).map(|pair| pair.1).collect();
            assert_eq!(blocks, expected, "{name}");
        }
        assert_eq!(index.stats().entries, model.len() as u64, "{name}");
    }
}

#[test]
fn every_design_forgets_the_entry_whose_last_use_is_the_oldest() {
    let all_keys = 0..4 * ENTRIES as u64;
    for (name, index) in all(ENTRIES) {
        for key in all_keys.clone() {
            index.insert(key, key, 1);
            assert!(touch(&*index, 0), "{name}: it is in use");
        }
        let left: Vec<u64> =
            all_keys.clone().filter(|&key| !collect(&*index, key).is_empty()).collect();
        assert!(left.contains(&0) && left.len() < 4 * ENTRIES, "{name}: {left:?}");
        assert_eq!(index.stats().entries, left.len() as u64, "{name}");
        if name != "two lists" {
            let newest = 3 * ENTRIES as u64 + 1..4 * ENTRIES as u64;
            assert_eq!(left, std::iter::once(0).chain(newest).collect::<Vec<_>>(), "{name}");
        }
    }
}

#[test]
fn entry_that_a_finder_holds_is_not_forgotten_by_the_one_lock() {
    let index = OneLock::new(2);
    index.insert(1, 1, 1);
    let mut looks = 0;
    index.find(1, &mut |block| {
        (2..10).for_each(|key| index.insert(key, key, 1));
        looks += u64::from(block == 1 && collect(&index, 1) == [1]);
        false
    });
    assert_eq!(looks, 1);
    (12..20).for_each(|key| index.insert(key, key, 1));
    assert!(!touch(&index, 1));
}

/// Checks that a thread holds the index entry of a block exclusively between `leave` and `left`.
/// Two threads call these again and again, as if they removed a user of the block. Two other
/// threads look the block up meanwhile.
#[test]
fn thread_that_leaves_a_block_under_the_one_lock_has_it_alone() {
    use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
    use corewalk_base::primitives::thread;
    const TURNS: u64 = 3_000;
    let (index, alone) = (OneLock::new(8), AtomicU64::new(0));
    let (index, alone) = (&index, &alone);
    index.insert(1, 1, 1);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let found = index.find(1, &mut |_| {
                        // ORDERING: Relaxed. The lock of the index orders this load and the stores
                        // to `alone` by other threads.
                        assert_eq!(alone.load(Ordering::Relaxed), 0, "a thread has it alone");
                        true
                    });
                    assert_eq!(found, Some(1), "it stays");
                }
            });
            scope.spawn(move || {
                for _ in 0..TURNS {
                    index.leave(1);
                    // ORDERING: Relaxed. See above.
                    assert_eq!(alone.fetch_add(1, Ordering::Relaxed), 0, "two have it alone");
                    thread::yield_now();
                    // ORDERING: Relaxed. See above.
                    alone.fetch_sub(1, Ordering::Relaxed);
                    index.left(1);
                }
            });
        }
    });
    assert_eq!(index.stats().entries, 1);
}
