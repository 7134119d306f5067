//! Tests of recordings of cache lines: loads, stores and conflicts.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]

use corewalk_testkit::seal::Seal;
use std::{cell::Cell, hint::black_box};

#[global_allocator]
static SEAL: Seal = Seal::new();

#[repr(align(64))]
#[derive(Default)]
struct OnLine(Cell<u64>);

#[test]
fn recording_distinguishes_lines_read_and_lines_written() {
    let phase = SEAL.begin();
    let words: Box<[OnLine]> = (0..1_000).map(|_| OnLine::default()).collect();
    let watched = phase.watch();
    let load = |at: usize| black_box(words[at].0.get());
    let add = |at: usize| words[at].0.set(words[at].0.get() + 1);

    let nothing = watched.record(|| drop(black_box(Box::new(1))));
    assert_eq!((nothing.read.len(), nothing.written.len()), (0, 0));
    let looks = watched.record(|| (0..1_000).for_each(|at| assert_eq!(load(at), 0)));
    assert_eq!((looks.read.len(), looks.written.len()), (1_000, 0));
    let adds = watched.record(|| {
        for at in [7, 8, 7, 900] {
            add(at);
        }
    });
    assert_eq!((adds.read.len(), adds.written.len()), (0, 3), "a line read and written is written");
    let stores = watched.record(|| words[8].0.set(load(9)));
    assert_eq!((stores.read.len(), stores.written.len()), (1, 1));
    assert_eq!([7, 8, 9, 900].map(load), [2, 0, 0, 1], "a recorded operation takes effect");

    assert_eq!(looks.conflicts(&looks).len(), 0, "two readers do not conflict");
    assert_eq!((looks.conflicts(&adds).len(), adds.conflicts(&looks).len()), (3, 3));
    assert_eq!((adds.conflicts(&stores).len(), adds.conflicts(&adds).len()), (1, 3));
    let elsewhere = watched.record(|| add(10));
    assert_eq!(elsewhere.conflicts(&adds).len(), 0, "writers of adjacent lines do not conflict");
}
