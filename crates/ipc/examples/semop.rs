//! Measures nanoseconds per semop(2), for corewalk and for the kernel. The rows differ in which
//! semaphores the threads use: each thread its own, random ones, or all the same one. The rows also
//! differ in the number of operations per call, and in the use of `SEM_UNDO`.
//!
//! Run it with `cargo run --release -p corewalk-ipc --example semop [seconds per row] [--shared]`.
//! Rounds of corewalk and of the kernel alternate. Each row shows the median of five rounds. With
//! `--shared` the IPC namespace is in a file, and each thread registers as if it were a process of
//! its own.
//!
//! Source: Rik van Riel's semop-multi, as document 002 (`docs/using/documents.md`) uses it.

use corewalk_ipc::{
    Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, Task,
};
use corewalk_testkit::{race, rng::Seed, sysv};
use std::time::{Duration, Instant};

const SEMS: u16 = 128;
const ROUNDS: usize = 5;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Own,
    Random,
    Same,
    Pair,
}

struct Row {
    name: &'static str,
    threads: usize,
    pattern: Pattern,
    flags: SemFlags,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let seconds: f64 = args.iter().find_map(|arg| arg.parse().ok()).unwrap_or(0.2);
    let is_shared = args.iter().any(|arg| arg == "--shared");
    let time = Duration::from_secs_f64(seconds);
    let plain = SemFlags::empty();
    let row = |name, threads, pattern, flags| Row { name, threads, pattern, flags };
    let rows = [
        row("1 thread, own", 1, Pattern::Own, plain),
        row("2 threads, own", 2, Pattern::Own, plain),
        row("2 threads, random", 2, Pattern::Random, plain),
        row("2 threads, same", 2, Pattern::Same, plain),
        row("1 thread, own, undo", 1, Pattern::Own, SemFlags::UNDO),
        row("2 threads, own, undo", 2, Pattern::Own, SemFlags::UNDO),
        row("1 thread, two operations", 1, Pattern::Pair, plain),
        row("2 threads, two operations", 2, Pattern::Pair, plain),
    ];
    println!("{:<28} {:>10} {:>10} {:>7}", "ns per call and thread", "corewalk", "linux", "ratio");
    for row in rows {
        let mut ours: Vec<f64> = Vec::new();
        let mut linux: Vec<f64> = Vec::new();
        for _ in 0..ROUNDS {
            ours.push(run_ours(&row, time, is_shared));
            linux.push(run_linux(&row, time));
        }
        let (ours, linux) = (median(ours), median(linux));
        println!("{:<28} {ours:>10.1} {linux:>10.1} {:>7.1}", row.name, linux / ours);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Calls `pair` again and again for `time`, and returns the nanoseconds per call. A pair is two
/// calls: one adds to a semaphore, and the other subtracts the same number.
fn timed(time: Duration, mut pair: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0u32;
    while start.elapsed() < time {
        for _ in 0..500 {
            pair();
        }
        calls += 1000;
    }
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn choose(row: &Row, thread: usize, random: u64) -> u16 {
    match row.pattern {
        Pattern::Own | Pattern::Pair => 2 * thread as u16,
        Pattern::Random => (random % u64::from(SEMS)) as u16,
        Pattern::Same => 0,
    }
}

/// Makes a namespace in private memory, or in a file.
fn namespace(is_shared: bool) -> Namespace {
    if !is_shared {
        return Namespace::new(NamespaceOptions::default()).expect("memory");
    }
    let file = rustix::fs::memfd_create("semop", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
    Namespace::open_fd(&file, NamespaceOptions::default()).expect("a namespace")
}

fn run_ours(row: &Row, time: Duration, is_shared: bool) -> f64 {
    let namespace = namespace(is_shared);
    let register = || -> Task { namespace.register(Cred::user(1000, 1000), 1).expect("a task") };
    let tasks: Vec<Task> =
        (0..if is_shared { row.threads } else { 1 }).map(|_| register()).collect();
    let task = &tasks[0];
    let id = task.semget(IPC_PRIVATE, i32::from(SEMS), GetFlags::empty(), 0o600).expect("a set");
    let times = race::run(row.threads, Seed(1), |mut racer| {
        let task = &tasks[racer.thread % tasks.len()];
        timed(time, || {
            let random = if row.pattern == Pattern::Random { racer.rng.next_u64() } else { 0 };
            let num = choose(row, racer.thread, random);
            for op in [1, -1] {
                let one = SemBuf::new(num, op, row.flags);
                let done = if row.pattern == Pattern::Pair {
                    task.semop(id, &[one, SemBuf::new(num + 1, op, row.flags)])
                } else {
                    task.semop(id, &[one])
                };
                done.expect("nothing blocks");
            }
        })
    });
    assert!(task.sem_getall(id).expect("the set").iter().all(|value| *value == 0));
    times.iter().sum::<f64>() / times.len() as f64
}

fn run_linux(row: &Row, time: Duration) -> f64 {
    let id = sysv::semget(0, i32::from(SEMS), 0o600).expect("a set");
    let times = race::run(row.threads, Seed(1), |mut racer| {
        timed(time, || {
            let random = if row.pattern == Pattern::Random { racer.rng.next_u64() } else { 0 };
            let num = choose(row, racer.thread, random);
            let flags = row.flags.bits();
            for op in [1, -1] {
                let done = if row.pattern == Pattern::Pair {
                    let mut two = sysv::sembufs([(num, op, flags), (num + 1, op, flags)]);
                    sysv::semop_raw(id, &mut two)
                } else {
                    sysv::semop_raw(id, &mut sysv::sembufs([(num, op, flags)]))
                };
                done.expect("nothing blocks");
            }
        })
    });
    sysv::semctl(id, 0, 0, 0).expect("removed");
    times.iter().sum::<f64>() / times.len() as f64
}
