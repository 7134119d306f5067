//! Models of `SeqRwLock`: readers that share the lock exclude the writer, but not each other.
//!
//! The writer is the main thread, because loom 0.7.2 skips schedules otherwise (see the module
//! `tally` of `corewalk-base`).

use super::*;
use corewalk_base::{
    primitives::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        thread,
    },
    tally::{Tally, assert_all_reached},
};

#[derive(Default)]
struct Pair {
    lock: SeqRwLock,
    a: AtomicU64,
    b: AtomicU64,
    inside: AtomicUsize,
}

impl Pair {
    fn read(&self) -> (u64, u64) {
        // ORDERING: Relaxed. Words of a section.
        (self.a.load(Ordering::Relaxed), self.b.load(Ordering::Relaxed))
    }

    fn store(&self) {
        // ORDERING: Relaxed. Words of a section.
        self.a.store(1, Ordering::Relaxed);
        // ORDERING: Relaxed. Words of a section.
        self.b.store(1, Ordering::Relaxed);
    }
}

type Read = fn(&Pair) -> (Pass, u64, u64);

/// Runs `read` while a writer writes. Returns how often the reader saw the old words without the
/// lock, the new words without the lock, and any words under the lock.
fn outcomes(read: Read) -> [usize; 3] {
    Tally::of(move |tally| {
        let pair = Arc::new(Pair::default());
        let reader = thread::spawn({
            let pair = Arc::clone(&pair);
            move || {
                let (pass, a, b) = read(&pair);
                assert_eq!(a, b, "torn section");
                tally.hit(if pass.is_locked() { 2 } else { usize::try_from(a).unwrap() });
            }
        });
        let section = pair.lock.write();
        pair.store();
        drop(section);
        reader.join().unwrap();
    })
}

/// A reader must see the words of one whole section, even if a writer runs at the same time. A
/// reader that never takes the lock may retry for ever. Trap T29 in `traps.md`.
#[test]
fn read_or_lock_beside_a_writer_sees_a_whole_section() {
    assert_all_reached(&outcomes(|pair| {
        pair.lock.read_or_lock(|pass| {
            let (a, b) = pair.read();
            (pass, a, b)
        })
    }));
}

/// Control (a variant with the bug must fail): after a disturbed pass, the second pass runs without
/// the lock. So the reader may see one old and one new word. Trap T29 in `traps.md`.
#[test]
#[should_panic(expected = "torn section")]
fn control_second_pass_without_the_lock_is_caught() {
    outcomes(|pair| {
        let start = pair.lock.read_begin();
        let (a, b) = pair.read();
        if !pair.lock.read_retry(start) {
            return (Pass::Optimistic, a, b);
        }
        let (a, b) = pair.read();
        (Pass::Locked, a, b)
    });
}

/// Returns how often a reader got the lock alone, and how often while the other reader held it too.
fn shared(write: fn(&Pair)) -> [usize; 2] {
    Tally::of(move |tally| {
        let pair = Arc::new(Pair::default());
        let readers = [(); 2].map(|()| {
            let (pair, tally) = (Arc::clone(&pair), tally.clone());
            thread::spawn(move || {
                let _shared = pair.lock.read_shared();
                // ORDERING: Relaxed. The lock orders this access before or after the writer's load.
                tally.hit(pair.inside.fetch_add(1, Ordering::Relaxed));
                // ORDERING: Relaxed. The lock orders this access before or after the writer's load.
                pair.inside.fetch_sub(1, Ordering::Relaxed);
            })
        });
        write(&pair);
        for reader in readers {
            reader.join().unwrap();
        }
    })
}

#[test]
fn shared_readers_exclude_the_writer_and_not_each_other() {
    assert_all_reached(&shared(|pair| {
        let _section = pair.lock.write();
        // ORDERING: Relaxed. The lock orders this load before or after the readers' accesses.
        assert_eq!(pair.inside.load(Ordering::Relaxed), 0, "a reader is inside");
    }));
}

#[test]
#[should_panic(expected = "a reader is inside")]
fn control_writer_without_the_lock_is_caught() {
    shared(|pair| {
        let _section = pair.lock.seq.write();
        // ORDERING: Relaxed. Wrong on purpose: no lock excludes readers here.
        assert_eq!(pair.inside.load(Ordering::Relaxed), 0, "a reader is inside");
    });
}

/// Models a reader while another thread calls `hold`. Returns the number of schedules in which the
/// lock was free when the reader looked, and of those in which it was held.
fn undisturbed(hold: fn(&SeqRwLock)) -> [usize; 2] {
    Tally::of(move |tally| {
        let lock = Arc::new(SeqRwLock::new());
        let reader = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                let start = lock.read_begin();
                let is_held = lock.lock.try_write().is_none();
                assert!(!lock.read_retry(start), "an optimistic reader was disturbed");
                tally.hit(usize::from(is_held));
            }
        });
        hold(&lock);
        reader.join().unwrap();
    })
}

#[test]
fn read_shared_disturbs_no_optimistic_reader() {
    assert_all_reached(&undisturbed(|lock| {
        let _held = lock.read_shared();
        thread::yield_now();
    }));
}

#[test]
#[should_panic(expected = "an optimistic reader was disturbed")]
fn control_shared_reader_that_bumps_is_caught() {
    undisturbed(|lock| {
        let _held = lock.write();
        thread::yield_now();
    });
}
