//! Measures one use of each primitive by a single thread, and compares it with other
//! implementations.
//!
//! Each row of the printed table is one operation. Every round measures all operations in turn, so
//! that a change of the machine's speed affects all rows.
//!
//! A row shows the minimum and the median time over the rounds. It also names another operation,
//! and shows the ratio of the two times, computed round by round.
//!
//! `cargo bench -p corewalk-sync` measures; `cargo test --benches` runs every row a few times and
//! only checks the results.

use corewalk_base::{Mutex, RwLock, ShardedCounter};
use corewalk_sync::{Lockref, RcuCell, SeqCount, SeqLock, SeqRwLock, SlotArena, rcu};
use std::{hint::black_box, time::Instant};

struct Row<'a> {
    name: &'static str,
    yardstick: &'static str,
    run: Box<dyn FnMut() + 'a>,
    ns: Vec<f64>,
}

fn row<'a>(name: &'static str, yardstick: &'static str, run: impl FnMut() + 'a) -> Row<'a> {
    Row { name, yardstick, run: Box::new(run), ns: Vec::new() }
}

fn main() {
    let is_measured = std::env::args().any(|arg| arg == "--bench");
    let (rounds, uses) = if is_measured { (21, 200_000) } else { (1, 10) };

    let lockref = Lockref::new(1);
    let (seq, seqlock, seqrwlock) = (SeqCount::new(), SeqLock::new(), SeqRwLock::new());
    let (mutex, rwlock) = (Mutex::new(0_u64), RwLock::new(0_u64));
    let cell = RcuCell::new(7_u64);
    let arena: SlotArena<8> = SlotArena::new("bench", 1 << 16).expect("address space is there");
    let counter = ShardedCounter::new();

    let mut rows = vec![
        row("mutex", "mutex", || *mutex.lock() += 1),
        row("rwlock-read", "rwlock-read", || drop(black_box(rwlock.read()))),
        row("box", "box", || drop(black_box(Box::new([0_u64; 8])))),
        row("lockref-get-put", "mutex", || {
            lockref.get();
            black_box(lockref.put_return());
        }),
        row("lockref-lock", "mutex", || drop(lockref.lock())),
        row("seqcount-read", "rwlock-read", || {
            black_box(seq.read_retry(seq.read_begin()));
        }),
        row("seqlock-write", "mutex", || drop(seqlock.write())),
        row("seqlock-read", "rwlock-read", || {
            black_box(seqlock.read_or_lock(black_box));
        }),
        row("seqrwlock-shared", "rwlock-read", || drop(seqrwlock.read_shared())),
        row("rcu-section", "rwlock-read", || {
            black_box(cell.read(&rcu::read_lock()));
        }),
        row("arena-alloc-free", "box", || {
            let index = arena.alloc().expect("one at a time");
            arena.free(black_box(index));
        }),
        row("counter-add", "mutex", || counter.add(1)),
    ];
    measure(&mut rows, rounds, uses);
    report(&rows);

    drop(rows);
    let all = rounds as u64 * uses;
    assert_eq!(*mutex.lock(), all);
    assert_eq!(counter.sum().cast_unsigned(), all);
    assert_eq!(lockref.count(), 1);
    assert_eq!(arena.in_use(), 0);
    assert_eq!(seqlock.read_begin(), 2 * all);
}

fn measure(rows: &mut [Row<'_>], rounds: usize, uses: u64) {
    for _ in 0..rounds {
        for row in rows.iter_mut() {
            let start = Instant::now();
            for _ in 0..uses {
                (row.run)();
            }
            row.ns.push(start.elapsed().as_secs_f64() * 1e9 / uses as f64);
        }
    }
}

fn report(rows: &[Row<'_>]) {
    println!("{:18} {:>8} {:>8}  ratio to", "row", "min ns", "med ns");
    for row in rows {
        let yardstick = rows.iter().find(|other| other.name == row.yardstick);
        let yardstick = yardstick.expect("every yardstick is a row");
        let ratios = row.ns.iter().zip(&yardstick.ns).map(|(ours, theirs)| ours / theirs);
        let ratio = median(ratios.collect());
        let min = row.ns.iter().copied().fold(f64::INFINITY, f64::min);
        let med = median(row.ns.clone());
        println!("{:18} {min:8.2} {med:8.2}  {ratio:5.2} {}", row.name, row.yardstick);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
