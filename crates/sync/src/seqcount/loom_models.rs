//! Models of `SeqCount`: a reader copies two words while a writer changes them. In each control
//! test, one of the orderings is too weak, so the test must fail.
//!
//! The reader is the spawned thread and the writer is the main thread, because loom 0.7.2 skips
//! schedules otherwise (see the module `tally` of `corewalk-base`).

use super::*;
use corewalk_base::{
    primitives::{Arc, thread},
    tally::{Tally, assert_all_reached},
};

#[derive(Clone, Copy)]
struct Protocol {
    write_begin: fn(&SeqCount),
    write_end: fn(&SeqCount),
    read_retry: fn(&SeqCount, u64) -> bool,
}

const REAL: Protocol = Protocol {
    write_begin: SeqCount::write_begin,
    write_end: SeqCount::write_end,
    read_retry: SeqCount::read_retry,
};

/// Runs a reader and a writer by `protocol`. Returns how often the reader had to retry, saw the old
/// words, and saw the new words.
fn outcomes(protocol: Protocol) -> [usize; 3] {
    Tally::of(move |tally| {
        let shared = Arc::new((SeqCount::new(), AtomicU64::new(0), AtomicU64::new(0)));
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let start = shared.0.read_begin();
                // ORDERING: Relaxed. Words of a section.
                let a = shared.1.load(Ordering::Relaxed);
                // ORDERING: Relaxed. Words of a section.
                let b = shared.2.load(Ordering::Relaxed);
                if (protocol.read_retry)(&shared.0, start) {
                    return tally.hit(0);
                }
                assert_eq!(a, b, "A.1: torn section");
                assert_eq!(a, start / 2, "A.2: stale words");
                tally.hit(1 + usize::try_from(a).unwrap());
            }
        });
        (protocol.write_begin)(&shared.0);
        // ORDERING: Relaxed. Words of a section.
        shared.1.store(1, Ordering::Relaxed);
        // ORDERING: Relaxed. Words of a section.
        shared.2.store(1, Ordering::Relaxed);
        (protocol.write_end)(&shared.0);
        reader.join().unwrap();
    })
}

/// Adds one to the count with `Relaxed` accesses only. Control tests use it in place of
/// `write_begin` or `write_end`.
fn bump_relaxed(seq: &SeqCount) {
    // ORDERING: Relaxed. Wrong on purpose.
    let count = seq.count.load(Ordering::Relaxed);
    // ORDERING: Relaxed. Wrong on purpose.
    seq.count.store(count + 1, Ordering::Relaxed);
}

#[test]
fn reader_beside_a_writer_sees_a_whole_section_or_retries() {
    assert_all_reached(&outcomes(REAL));
}

#[test]
#[should_panic(expected = "A.2: stale words")]
fn control_relaxed_end_is_caught() {
    outcomes(Protocol { write_end: bump_relaxed, ..REAL });
}

#[test]
#[should_panic(expected = "A.1: torn section")]
fn control_begin_without_fence_is_caught() {
    outcomes(Protocol { write_begin: bump_relaxed, ..REAL });
}

#[test]
#[should_panic(expected = "A.1: torn section")]
fn control_retry_without_fence_is_caught() {
    fn retry(seq: &SeqCount, start: u64) -> bool {
        // ORDERING: Relaxed. Wrong on purpose: no fence orders this load after the reads of the
        // section.
        seq.count.load(Ordering::Relaxed) != start
    }
    outcomes(Protocol { read_retry: retry, ..REAL });
}
