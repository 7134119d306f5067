//! Models of the hash table. A reader looks up entries without a lock, while another thread inserts
//! or removes entries, or splits a bucket.
//!
//! In each model, the reader is the spawned thread. If it were the main thread, loom would skip
//! some schedules, because of a bug of loom (see `tally` in `corewalk_base`).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;
use crate::slot::{DentrySlot, OfDentry};

type Table = super::Table<OfDentry>;

/// Two hashes in the same bucket, with different tags (the upper 16 bits). The tag of the first is
/// 0, like that of an empty position.
const BARE: u32 = 7;
const TAGGED: u32 = 0x0005_0007;

struct Filled {
    table: Table,
    content: AtomicU64,
}

fn insert_against_find(hash: u32, insert: fn(&Table, u32)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let table = Table::new("model", 4, 7).unwrap();
        let shared = Arc::new(Filled { table, content: AtomicU64::new(0) });
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let found = shared.table.find(hash, |slot| {
                    // ORDERING: Relaxed. The model checks that the table's entry makes the stored
                    // content visible to this load.
                    (slot == DentrySlot::new(1)).then(|| shared.content.load(Ordering::Relaxed))
                });
                assert!(found != Some(0), "T3: found before it was filled");
                tally.hit(usize::from(found.is_some()));
            }
        });
        // ORDERING: Relaxed. As above.
        shared.content.store(1, Ordering::Relaxed);
        insert(&shared.table, hash);
        reader.join().unwrap();
    })
}

/// When a reader finds an entry, it must also see the content of the entry's slot. Traps T3 and T23
/// in `traps.md`.
#[test]
fn entry_that_is_found_was_filled_before() {
    assert_all_reached(&insert_against_find(TAGGED, |table, hash| {
        table.insert(hash, DentrySlot::new(1))
    }));
}

/// A reader that finds an entry must also see the content of its slot. Here the entry's tag (16
/// bits of the hash) is 0, as in an unused place of a bucket. So the store of the slot number alone
/// makes the entry visible. Traps T3 and T23 in `traps.md`.
#[test]
fn entry_without_a_tag_that_is_found_was_filled_before() {
    assert_all_reached(&insert_against_find(BARE, |table, hash| {
        table.insert(hash, DentrySlot::new(1))
    }));
}

/// Control (a variant with the bug must fail): an entry is stored with `Relaxed`. So a reader may
/// find the slot before the slot's content is visible. Trap T3 in `traps.md`.
#[test]
#[should_panic(expected = "T3: found before it was filled")]
fn control_relaxed_entry_is_caught() {
    insert_against_find(TAGGED, |table, hash| {
        let line = table.buckets.get(0);
        // ORDERING: Relaxed. Wrong on purpose.
        line[SLOTS].store(1, Ordering::Relaxed);
        // ORDERING: Relaxed. Wrong on purpose.
        line[0].store(u64::from(hash >> 16), Ordering::Relaxed);
    });
}

/// Control (a variant with the bug must fail): the tag of an entry is stored with `Release`, but
/// the slot number with `Relaxed`. A reader may then see the slot number before the slot's content.
/// Trap T3 in `traps.md`.
#[test]
#[should_panic(expected = "T3: found before it was filled")]
fn control_relaxed_slot_is_caught() {
    insert_against_find(BARE, |table, hash| {
        let line = table.buckets.get(0);
        // ORDERING: Relaxed. Wrong on purpose.
        line[SLOTS].store(1, Ordering::Relaxed);
        // ORDERING: Release. This store has the correct order. The bug of this control test is the
        // relaxed store of the slot number above.
        line[0].store(u64::from(hash >> 16), Ordering::Release);
    });
}

/// Slots of entries in a bucket of three cache lines. `FIRST` is the last entry of the full first
/// line. `MIDDLE` and `LAST` are the only entries of the second and the third line.
const FIRST: u32 = ENTRIES as u32;
const MIDDLE: u32 = 2 * ENTRIES as u32;
const LAST: u32 = MIDDLE + 1;

fn chain(buckets: u32) -> Table {
    let table = Table::new("model", 64, 7).unwrap();
    for _ in 1..buckets {
        assert!(table.split());
    }
    for slot in 1..=LAST {
        table.lock(0).insert(DentrySlot::new(slot));
    }
    for slot in FIRST + 1..MIDDLE {
        table.remove(0, DentrySlot::new(slot));
    }
    table
}

fn unlink_against_find(buckets: u32, change: fn(&Table)) -> [usize; 2] {
    Tally::of_bounded(1, move |tally| {
        let shared = Arc::new(chain(buckets));
        let reader = thread::spawn({
            let table = Arc::clone(&shared);
            move || {
                let is_there =
                    |wanted| table.find(0, |slot| (slot.get() == wanted).then_some(())).is_some();
                assert!(is_there(FIRST), "T.1: a stable entry was missed");
                tally.hit(usize::from(is_there(LAST)));
                let exact = table.lock(0).find(|slot| (slot.get() == LAST).then_some(()));
                assert!(exact.is_some(), "T.2: an entry was invisible under its lock");
            }
        });
        change(&shared);
        reader.join().unwrap();
    })
}

/// A link must not lead a reader to the chain of another bucket. A bucket is a chain of cache
/// lines, and a freed line keeps its link. So a reader at a freed line reaches the rest of the
/// chain. Trap T12 in `traps.md`.
#[test]
fn entry_behind_a_line_that_is_unlinked_is_always_found() {
    let outcomes = unlink_against_find(1, |table| table.remove(0, DentrySlot::new(MIDDLE)));
    println!("outcomes {outcomes:?}");
    assert!(outcomes[0] == 0 && outcomes[1] > 0, "T.1: a stable entry was missed");
}

/// Control (a variant with the bug must fail): a freed cache line of a bucket's chain loses its
/// link to the next line. So a reader that is still at this line misses the entries behind it. Trap
/// T12 in `traps.md`.
#[test]
#[should_panic(expected = "T.1: a stable entry was missed")]
fn control_line_that_loses_its_link_is_caught() {
    let outcomes = unlink_against_find(1, |table| {
        let stripe = table.lock(0);
        let first = table.buckets.get(0);
        let middle = table.overflow.get(stripe.link_of(first).unwrap());
        store_slot(middle, ENTRIES - 1, 0);
        stripe.unlink_if_empty(first, middle);
        // ORDERING: Release. This order is correct. The bug of this control test is the store
        // itself.
        middle[LINK].store(0, Ordering::Release);
    });
    assert!(outcomes[0] == 0, "T.1: a stable entry was missed");
}

/// While a reader is at an overflow line, the line may be freed and used again for another bucket.
/// The reader may then miss the entries behind it (guarantee T.1). A lookup under the stripe's lock
/// must miss none. Trap T12 in `traps.md`.
#[test]
fn entry_behind_a_line_that_is_reused_is_found_under_the_lock() {
    assert_all_reached(&unlink_against_find(2, |table| {
        for slot in 1..=ENTRIES as u32 {
            table.lock(1).insert(DentrySlot::new(LAST + slot));
        }
        table.remove(0, DentrySlot::new(MIDDLE));
        table.lock(1).insert(DentrySlot::new(2 * LAST));
    }));
}

/// Hashes of two entries in one bucket. The first split of the table moves the second entry.
const STAYS: u32 = 0x0001_0000;
const MOVES: u32 = 0x0002_0001;

fn split_against_find(split: fn(&Table)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let table = Table::new("model", 8, 7).unwrap();
        table.lock(STAYS).insert(DentrySlot::new(1));
        table.lock(MOVES).insert(DentrySlot::new(2));
        let shared = Arc::new(table);
        let reader = thread::spawn({
            let table = Arc::clone(&shared);
            move || {
                let in_use = DentrySlot::some;
                let is_found = table.find(MOVES, in_use).is_some_and(|slot| {
                    assert_eq!(slot.get(), 2, "another's entry");
                    true
                });
                let exact = table.lock(MOVES).find(in_use);
                assert_eq!(
                    exact,
                    Some(DentrySlot::new(2)),
                    "T.2: an entry was invisible under its lock"
                );
                tally.hit(usize::from(is_found));
            }
        });
        split(&shared);
        reader.join().unwrap();
    })
}

/// While a split moves an entry to another bucket, a lookup with the lock must find it. Trap T12 in
/// `traps.md`.
#[test]
fn entry_that_a_split_moves_is_found_under_the_lock() {
    assert_all_reached(&split_against_find(|table| assert!(table.split())));
}

/// Control (a variant with the bug must fail): the variant splits a bucket without taking the lock
/// of the bucket. So even a lookup that holds this lock may miss the entry. Trap T12 in `traps.md`.
#[test]
#[should_panic(expected = "T.2: an entry was invisible under its lock")]
fn control_split_without_the_lock_is_caught() {
    split_against_find(|table| {
        store_slot(table.buckets.get(0), 1, 0);
        store_entry(table.buckets.get(1), 0, MOVES, 2);
        // ORDERING: Release. This order is correct. The bug of this control test is the missing
        // lock.
        table.size.0.store(Size::word(2), Ordering::Release);
    });
}

fn ranks_against_find(change: fn(&Table)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let table = Table::new("model", 64, 7).unwrap();
        let moving = ENTRIES as u32 + 1;
        for slot in 1..=moving {
            table.lock(0).insert(DentrySlot::new(slot));
        }
        table.remove(0, DentrySlot::new(1));
        let shared = Arc::new(table);
        let reader = thread::spawn({
            let table = Arc::clone(&shared);
            move || {
                let stripe = table.lock(0);
                let exact = stripe.find(|slot| (slot.get() == moving).then_some(()));
                assert!(exact.is_some(), "T.2: an entry was invisible under its lock");
                tally.hit(usize::from(slot_of(table.buckets.get(0), 0) == moving));
            }
        });
        change(&shared);
        reader.join().unwrap();
    })
}

/// A lookup under the bucket's lock must find an entry that moves from the bucket's second cache
/// line to the first. Trap T12 in `traps.md`.
#[test]
fn entry_that_moves_to_the_first_line_is_found_under_the_lock() {
    assert_all_reached(&ranks_against_find(|table| table.lock(0).close_ranks(0)));
}

/// Control (a variant with the bug must fail): an entry moves to the first cache line of its bucket
/// without a lock. It is removed from the second line first. So a lookup may miss it. Trap T12 in
/// `traps.md`.
#[test]
#[should_panic(expected = "T.2: an entry was invisible under its lock")]
fn control_move_that_takes_out_first_is_caught() {
    ranks_against_find(|table| {
        let first = table.buckets.get(0);
        // ORDERING: Relaxed. One writer.
        let line = table.overflow.get(first[LINK].load(Ordering::Relaxed) as u32);
        store_slot(line, 0, 0);
        store_entry(first, 0, 0, ENTRIES as u32 + 1);
    });
}
