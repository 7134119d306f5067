//! Models of `RcuCell`: a published value is complete, a replaced value lives for a grace period,
//! and no update is lost.
//!
//! Grace periods come from the module `rcu/modelled.rs`. So the models check the protocol of
//! `RcuCell` and its use of read sections, not `crossbeam-epoch`.

use super::*;
use corewalk_base::{
    primitives::{Arc, atomic::AtomicU64, thread},
    tally::{Tally, assert_all_reached},
};

/// A version that records its drop.
struct Version {
    number: AtomicU64,
    has_ended: Arc<AtomicU64>,
}

impl Version {
    fn new(number: u64) -> (Self, Arc<AtomicU64>) {
        let has_ended = Arc::new(AtomicU64::new(0));
        let version = Self { number: AtomicU64::new(0), has_ended: Arc::clone(&has_ended) };
        // ORDERING: Relaxed. The model checks that a reader which sees the published version also
        // sees this store.
        version.number.store(number, Ordering::Relaxed);
        (version, has_ended)
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        // ORDERING: Relaxed. Other threads read `has_ended` after a join, or in a read section, in
        // which this `Version` must not be dropped.
        self.has_ended.store(1, Ordering::Relaxed);
    }
}

/// Runs `replace` while another thread reads. Returns how often the reader saw the old version, and
/// how often the new one.
fn outcomes(replace: fn(&RcuCell<Version>, Version)) -> [usize; 2] {
    Tally::of(move |tally| {
        let (first, first_ended) = Version::new(1);
        let cell = Arc::new(RcuCell::new(first));
        let reader = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                let section = read_lock();
                let version = cell.read(&section);
                // ORDERING: Relaxed. `replace` publishes the version after the store of `number`.
                let number = version.number.load(Ordering::Relaxed);
                thread::yield_now();
                // ORDERING: Relaxed. The grace period must order this load before the store in
                // `drop`.
                let has_ended = version.has_ended.load(Ordering::Relaxed);
                assert_ne!(number, 0, "A.2: half a version");
                assert_eq!(has_ended, 0, "A.1: dropped while a section is open");
                tally.hit(usize::try_from(number - 1).unwrap());
            }
        });
        replace(&cell, Version::new(2).0);
        reader.join().unwrap();
        // ORDERING: Relaxed. The reader has been joined, so this load comes after the store in
        // `drop`.
        assert_eq!(first_ended.load(Ordering::Relaxed), 1, "A.3: the old version was not freed");
    })
}

#[test]
fn replace_beside_a_reader_shows_whole_versions_that_live() {
    assert_all_reached(&outcomes(RcuCell::replace));
}

/// Loom must catch a writer that publishes the new version with `Relaxed`.
#[test]
#[should_panic(expected = "Causality violation")]
fn control_relaxed_publication_is_caught() {
    outcomes(|cell, version| {
        let new = Box::into_raw(Box::new(version));
        // ORDERING: Relaxed. Wrong on purpose.
        retire(cell.ptr.swap(new, Ordering::Relaxed));
    });
}

#[test]
#[should_panic(expected = "A.1: dropped while a section is open")]
fn control_free_without_grace_period_is_caught() {
    outcomes(|cell, version| {
        let new = Box::into_raw(Box::new(version));
        // ORDERING(rcu-publish): AcqRel. As in `RcuCell::replace`.
        let old = cell.ptr.swap(new, Ordering::AcqRel);
        // SAFETY: the value at `old` is not freed yet: `retire` below frees it after a grace
        // period.
        let marked = unsafe { &*old };
        // ORDERING: Relaxed. Wrong on purpose: this store does not wait for a grace period.
        marked.has_ended.store(1, Ordering::Relaxed);
        retire(old);
    });
}

/// Returns how many updates ran the closure once, and how many ran it more than once.
fn updates(add_one: fn(&RcuCell<u64>, &Tally<2>)) -> [usize; 2] {
    Tally::of(move |tally| {
        let cell = Arc::new(RcuCell::new(0));
        let other = thread::spawn({
            let (cell, tally) = (Arc::clone(&cell), tally.clone());
            move || add_one(&cell, &tally)
        });
        add_one(&cell, &tally);
        other.join().unwrap();
        assert_eq!(*cell.read(&read_lock()), 2, "an update was lost");
    })
}

#[test]
fn update_by_two_threads_loses_none() {
    assert_all_reached(&updates(|cell, tally| {
        let mut runs = 0;
        cell.update(|old| {
            runs += 1;
            old + 1
        });
        tally.hit(usize::from(runs > 1));
    }));
}

#[test]
#[should_panic(expected = "an update was lost")]
fn control_read_then_replace_is_caught() {
    updates(|cell, tally| {
        let next = *cell.read(&read_lock()) + 1;
        cell.replace(next);
        tally.hit(0);
    });
}

/// Runs `empty` while another thread reads. Returns how often the reader saw the value, and how
/// often an empty cell.
fn emptied(empty: fn(&RcuOption<Version>)) -> [usize; 2] {
    Tally::of(move |tally| {
        let (version, has_ended) = Version::new(1);
        let cell = Arc::new(RcuOption::default());
        cell.replace(Some(Box::new(version)));
        let reader = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                let section = read_lock();
                let Some(version) = cell.read(&section) else {
                    tally.hit(1);
                    return;
                };
                thread::yield_now();
                // ORDERING: Relaxed. The grace period must order this load before the store in
                // `drop`.
                let has_ended = version.has_ended.load(Ordering::Relaxed);
                assert_eq!(has_ended, 0, "A.1: dropped while a section is open");
                tally.hit(0);
            }
        });
        empty(&cell);
        reader.join().unwrap();
        // ORDERING: Relaxed. The reader has been joined, so this load comes after the store in
        // `drop`.
        assert_eq!(has_ended.load(Ordering::Relaxed), 1, "A.3: the value was not freed");
    })
}

#[test]
fn cell_that_is_emptied_beside_a_reader_keeps_the_value_for_it() {
    assert_all_reached(&emptied(|cell| cell.replace(None)));
}

#[test]
#[should_panic(expected = "A.1: dropped while a section is open")]
fn control_cell_that_is_emptied_without_grace_period_is_caught() {
    emptied(|cell| {
        // ORDERING(rcu-publish): AcqRel. As in `RcuOption::replace`.
        let old = cell.ptr.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the value is not freed yet; `retire` frees it after a grace period.
        let marked = unsafe { &*old };
        // ORDERING: Relaxed. Wrong on purpose: this store does not wait for a grace period.
        marked.has_ended.store(1, Ordering::Relaxed);
        retire(old);
    });
}
