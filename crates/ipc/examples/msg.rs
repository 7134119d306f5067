//! Measures nanoseconds per message, sent and received, for corewalk and for the kernel.
//!
//! Run it with `cargo run --release -p corewalk-ipc --example msg [seconds per row]`. Rounds of
//! corewalk and of the kernel alternate. Each row shows the medians of seven rounds. The last two
//! columns show the smallest and the largest ratio of the kernel's time to corewalk's.
//!
//! Source: msgop(2).

use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions};
use corewalk_testkit::sysv;
use std::time::{Duration, Instant};

const ROUNDS: usize = 7;
const SIZES: [usize; 7] = [1, 16, 64, 256, 1024, 4096, 8192];

fn main() {
    let seconds: f64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(0.2);
    let time = Duration::from_secs_f64(seconds);
    let head = ["bytes", "corewalk", "linux", "ratio", "least", "largest"];
    println!(
        "{:>6} {:>10} {:>10} {:>7} {:>7} {:>7}",
        head[0], head[1], head[2], head[3], head[4], head[5]
    );
    for size in SIZES {
        let mut ours = Vec::new();
        let mut linux = Vec::new();
        for _ in 0..ROUNDS {
            ours.push(run_ours(size, time));
            linux.push(run_linux(size, time));
        }
        let ratios: Vec<f64> = ours.iter().zip(&linux).map(|(ours, linux)| linux / ours).collect();
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = ratios.iter().copied().fold(0.0, f64::max);
        let (ours, linux, ratio) = (median(ours), median(linux), median(ratios));
        println!("{size:>6} {ours:>10.1} {linux:>10.1} {ratio:>7.2} {least:>7.2} {largest:>7.2}");
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn timed(time: Duration, mut pair: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut pairs = 0u32;
    while start.elapsed() < time {
        for _ in 0..500 {
            pair();
        }
        pairs += 500;
    }
    start.elapsed().as_nanos() as f64 / f64::from(pairs)
}

fn run_ours(size: usize, time: Duration) -> f64 {
    let namespace = Namespace::new(NamespaceOptions::default()).expect("memory");
    let task = namespace.register(Cred::user(1000, 1000), 1).expect("a task");
    let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).expect("a queue");
    let sent = [7u8; 8192];
    let mut text = [0u8; 8192];
    let time = timed(time, || {
        task.msgsnd(id, 1, &sent[..size], MsgFlags::empty()).expect("there is room");
        let received =
            task.msgrcv(id, &mut text[..size], 0, MsgFlags::empty()).expect("there is a message");
        assert_eq!(received.size_bytes, size);
    });
    assert!(text[..size].iter().all(|byte| *byte == 7));
    time
}

fn run_linux(size: usize, time: Duration) -> f64 {
    let id = sysv::msg::msgget(0, 0o600).expect("a queue");
    let sent = sysv::msg::Buffer { mtype: 1, text: [7u8; 8192] };
    let mut buffer = sysv::msg::Buffer { mtype: 0, text: [0u8; 8192] };
    let time = timed(time, || {
        sysv::msg::msgsnd(id, &sent, size, 0).expect("there is room");
        let received = sysv::msg::msgrcv(id, &mut buffer, size, 0, 0);
        assert_eq!(received, Ok(size));
    });
    sysv::msg::msgctl(id, 0).expect("removed");
    assert!(buffer.text[..size].iter().all(|byte| *byte == 7));
    time
}
