//! Models of `SeqLock`: the last attempt of a reader takes the lock, excludes writers and disturbs
//! no other reader. With Linux's two calls, a caller with a bug makes its last attempt without the
//! lock (trap T29 in `traps.md`).
//!
//! The writer is the main thread, because loom 0.7.2 skips schedules otherwise (see the module
//! `tally` of `corewalk-base`).

use super::*;
use corewalk_base::{
    primitives::{
        Arc,
        atomic::{AtomicU64, Ordering},
        thread,
    },
    tally::{Tally, assert_all_reached},
};

/// A lock and the two words that it guards.
#[derive(Default)]
struct Pair {
    lock: SeqLock,
    a: AtomicU64,
    b: AtomicU64,
}

impl Pair {
    fn read(&self) -> (u64, u64) {
        // ORDERING: Relaxed. Words of a section.
        (self.a.load(Ordering::Relaxed), self.b.load(Ordering::Relaxed))
    }

    fn write(&self) {
        let _section = self.lock.write();
        // ORDERING: Relaxed. Words of a section.
        self.a.store(1, Ordering::Relaxed);
        // ORDERING: Relaxed. Words of a section.
        self.b.store(1, Ordering::Relaxed);
    }
}

type Read = fn(&Pair) -> (Pass, u64, u64);

fn read_or_lock(pair: &Pair) -> (Pass, u64, u64) {
    pair.lock.read_or_lock(|pass| {
        let (a, b) = pair.read();
        (pass, a, b)
    })
}

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
        pair.write();
        reader.join().unwrap();
    })
}

/// A reader must see both words of the same write section. A reader that never takes the lock may
/// retry for ever. Trap T29 in `traps.md`.
#[test]
fn read_or_lock_beside_a_writer_sees_a_whole_section() {
    assert_all_reached(&outcomes(read_or_lock));
}

/// Control (a variant with the bug must fail): a disturbed reader reads both words again, without
/// the writers' lock. So it may see one word of the old pair and one of the new pair. Trap T29 in
/// `traps.md`.
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

/// Runs a reader while another thread calls `hold`. Returns how often the lock was free during the
/// read, and how often it was held.
fn undisturbed(hold: fn(&SeqLock)) -> [usize; 2] {
    Tally::of(move |tally| {
        let lock = Arc::new(SeqLock::new());
        let reader = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                let start = lock.read_begin();
                let is_held = lock.writers.try_lock().is_none();
                assert!(!lock.read_retry(start), "an optimistic reader was disturbed");
                tally.hit(usize::from(is_held));
            }
        });
        hold(&lock);
        reader.join().unwrap();
    })
}

#[test]
fn read_excl_disturbs_no_optimistic_reader() {
    assert_all_reached(&undisturbed(|lock| {
        let _held = lock.read_excl();
        thread::yield_now();
    }));
}

#[test]
#[should_panic(expected = "an optimistic reader was disturbed")]
fn control_locking_reader_that_bumps_is_caught() {
    undisturbed(|lock| {
        let _held = lock.write();
        thread::yield_now();
    });
}
