//! Each design is a multimap that forgets what was not used for longest.

use std::collections::BTreeSet;

use super::*;
use crate::blocks::{BlockIndex, Held};
use crate::lane::Rng;

const ENTRIES: usize = 64;

fn delete<I: BlockIndex>(index: &I, key: u64, block: u64) {
    let mut leaving = index.leave(block);
    let waits = index.delete_or_get(&mut leaving, key, block).is_some();
    assert!(!waits, "{}: nobody holds it", I::VARIANT);
}

/// Returns the blocks under a key.
fn collect<I: BlockIndex>(index: &I, key: u64) -> Vec<u64> {
    let mut blocks = vec![];
    let mut found = index.find_first(key);
    while let Some(entry) = found {
        blocks.push(entry.block());
        found = index.find_next(&entry);
    }
    blocks
}

fn check_multimap<I: BlockIndex>(index: &I) {
    let (mut model, mut rng) = (BTreeSet::new(), Rng(4));
    for _ in 0..20_000 {
        // A block has one content at a time.
        let block = rng.below(40);
        let key = (block + rng.below(2)) % 5;
        match model.iter().find(|pair: &&(u64, u64)| pair.1 == block).copied() {
            Some((key, _)) => {
                delete(index, key, block);
                model.remove(&(key, block));
            }
            None => {
                index.create(key, block);
                model.insert((key, block));
            }
        }
        let mut blocks = collect(index, key);
        blocks.sort_unstable();
        let expected: Vec<u64> =
            model.iter().filter(|pair| pair.0 == key).map(|pair| pair.1).collect();
        assert_eq!(blocks, expected, "{}", I::VARIANT);
    }
    assert_eq!(index.entries(), model.len() as u64, "{}", I::VARIANT);
}

#[test]
fn every_design_is_a_multimap() {
    check_multimap(&OneLock::new(ENTRIES));
    check_multimap(&Lru::<OneList>::new(ENTRIES));
    check_multimap(&Lru::<ListPerShard>::new(ENTRIES));
}

/// Uses one entry again and again beside more than there is room for; returns the keys that are left.
fn overfill<I: BlockIndex>(index: &I) -> Vec<u64> {
    for key in 0..4 * ENTRIES as u64 {
        index.create(key, key);
        index.find_first(0).expect("it is in use").touch();
    }
    (0..4 * ENTRIES as u64).filter(|&key| index.find_first(key).is_some()).collect()
}

#[test]
fn every_design_forgets_what_was_not_used_for_longest() {
    let expected: Vec<u64> = std::iter::once(0)
        .chain(4 * ENTRIES as u64 - ENTRIES as u64 + 1..4 * ENTRIES as u64)
        .collect();
    assert_eq!(overfill(&OneLock::new(ENTRIES)), expected);
    assert_eq!(overfill(&Lru::<OneList>::new(ENTRIES)), expected);
    let index = Lru::<ListPerShard>::new(ENTRIES);
    let left = overfill(&index);
    assert!(left.contains(&0) && left.len() < 4 * ENTRIES, "{left:?}");
    assert_eq!(index.entries(), left.len() as u64);
}

#[test]
fn entry_that_is_held_is_not_forgotten_by_the_one_lock() {
    let index = OneLock::new(2);
    index.create(1, 1);
    let held = index.find_first(1).unwrap();
    (2..10).for_each(|key| index.create(key, key));
    assert_eq!(held.block(), 1);
    assert_eq!(collect(&index, 1), [1]);
    drop(held);
    (12..20).for_each(|key| index.create(key, key));
    assert!(index.find_first(1).is_none());
}

/// Those who look and those who leave, all of one block, which stays.
#[test]
fn who_leaves_a_block_under_the_one_lock_is_alone() {
    use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
    use corewalk_base::primitives::thread;
    const TURNS: u64 = 3_000;
    let (index, alone) = (OneLock::new(8), AtomicU64::new(0));
    let (index, alone) = (&index, &alone);
    index.create(1, 1);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let held = index.find_first(1).expect("it stays");
                    // ORDERING: Relaxed. The index's lock stands between this and the other side.
                    assert_eq!(alone.load(Ordering::Relaxed), 0, "somebody has it alone");
                    drop(held);
                }
            });
            scope.spawn(move || {
                for _ in 0..TURNS {
                    let leaving = index.leave(1);
                    // ORDERING: Relaxed. See above.
                    assert_eq!(alone.fetch_add(1, Ordering::Relaxed), 0, "two have it alone");
                    thread::yield_now();
                    // ORDERING: Relaxed. See above.
                    alone.fetch_sub(1, Ordering::Relaxed);
                    drop(leaving);
                }
            });
        }
    });
    assert_eq!(index.entries(), 1);
}
