//! Models of the table: what a reader without a lock finds while entries come and buckets change.
//!
//! The reader is the spawned thread: see `tally` in the sync crate.

use corewalk_sync::primitives::{Arc, thread};
use corewalk_sync::tally::{Tally, assert_all_reached};

use super::*;

/// A table of one bucket, and a word that stands for what a slot holds.
struct Filled {
    table: Table,
    content: AtomicU64,
}

/// Fills slot 1 and enters it with `insert`, beside a reader; returns how often the reader (missed
/// it, found it filled).
fn insert_against_find(insert: fn(&Table)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let table = Table::new("model", 4).unwrap();
        let shared = Arc::new(Filled { table, content: AtomicU64::new(0) });
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let found = shared.table.find(7, |slot| {
                    assert_eq!(slot, 1);
                    // ORDERING: Relaxed. The entry has to order it.
                    Some(shared.content.load(Ordering::Relaxed))
                });
                assert!(found != Some(0), "T3: found before it was filled");
                tally.hit(usize::from(found.is_some()));
            }
        });
        // ORDERING: Relaxed. As above.
        shared.content.store(1, Ordering::Relaxed);
        insert(&shared.table);
        reader.join().unwrap();
    })
}

/// Traps T3, T23: an entry that is seen leads to a slot that was filled.
#[test]
fn entry_that_is_found_was_filled_before() {
    assert_all_reached(&insert_against_find(|table| table.insert(7, 1)));
}

#[test]
#[should_panic(expected = "T3: found before it was filled")]
fn control_relaxed_entry_is_caught() {
    insert_against_find(|table| {
        // ORDERING: Relaxed. Wrong on purpose.
        table.buckets.get(0)[0].store(pack(7, 1), Ordering::Relaxed);
    });
}

/// Enters one more slot into a full line with `insert`, beside a reader of the entry that has to
/// move for it; returns how often the reader found it (before, after) the insertion was over.
fn overflow_against_find(insert: fn(&Table)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let table = Table::new("model", 8).unwrap();
        for slot in 1..=WORDS as u32 {
            table.lock(0).insert(slot);
        }
        let shared = Arc::new(table);
        let reader = thread::spawn({
            let table = Arc::clone(&shared);
            move || {
                let last = WORDS as u32;
                let found = table.find(0, |slot| (slot == last).then_some(slot));
                assert_eq!(found, Some(last), "T.1: a stable entry was missed");
                let is_over = table.find(0, |slot| (slot == last + 1).then_some(slot)).is_some();
                tally.hit(usize::from(is_over));
            }
        });
        insert(&shared);
        reader.join().unwrap();
    })
}

/// Trap T12: the entry that an overflow moves to another line is found all the time.
#[test]
fn entry_that_an_overflow_moves_is_always_found() {
    assert_all_reached(&overflow_against_find(|table| table.lock(0).insert(WORDS as u32 + 1)));
}

/// Trap T12: the line is linked first and filled then.
#[test]
#[should_panic(expected = "T.1: a stable entry was missed")]
fn control_link_before_the_line_is_filled_is_caught() {
    overflow_against_find(|table| {
        let line = table.buckets.get(0);
        let index = table.overflow.alloc().unwrap();
        // ORDERING: Relaxed. One writer.
        let moved = line[WORDS - 1].load(Ordering::Relaxed);
        // ORDERING: Release. Strong enough; it is the order of the steps that is wrong.
        line[WORDS - 1].store(u64::from(LINK | index), Ordering::Release);
        // ORDERING: Release. As above.
        table.overflow.get(index)[0].store(moved, Ordering::Release);
        // ORDERING: Release. As above.
        table.overflow.get(index)[1].store(pack(0, WORDS as u32 + 1), Ordering::Release);
    });
}

/// Splits the one bucket of a table with `split`, beside a reader of the entry that moves, who looks
/// without the lock and then with it; returns how often the first look (missed, found) it.
fn split_against_find(split: fn(&Table)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let table = Table::new("model", 8).unwrap();
        table.lock(0).insert(1);
        table.lock(1).insert(2);
        let shared = Arc::new(table);
        let reader = thread::spawn({
            let table = Arc::clone(&shared);
            move || {
                let is_found = table.find(1, Some).is_some_and(|slot| {
                    assert_eq!(slot, 2, "another's entry");
                    true
                });
                let exact = table.lock(1).find(Some);
                assert_eq!(exact, Some(2), "T.2: an entry was invisible under its lock");
                tally.hit(usize::from(is_found));
            }
        });
        split(&shared);
        reader.join().unwrap();
    })
}

/// Trap T12: a look without a lock may miss an entry that a split moves; one with it may not.
#[test]
fn entry_that_a_split_moves_is_found_under_the_lock() {
    assert_all_reached(&split_against_find(|table| assert!(table.split())));
}

/// Trap T12: the split forgets the lock of the stripe.
#[test]
#[should_panic(expected = "T.2: an entry was invisible under its lock")]
fn control_split_without_the_lock_is_caught() {
    split_against_find(|table| {
        let moving = pack(1, 2);
        let line = table.buckets.get(0);
        // ORDERING: Release. Strong enough; it is the lock that is missing.
        line[1].store(0, Ordering::Release);
        // ORDERING: Release. As above.
        table.buckets.get(1)[0].store(moving, Ordering::Release);
        // ORDERING: Release. As above.
        table.buckets_in_use.store(2, Ordering::Release);
    });
}
