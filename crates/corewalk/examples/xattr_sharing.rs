//! Measures how much time and memory a tmpfs saves or loses if it shares equal sets of extended
//! attributes.
//!
//! ```text
//! xattr_sharing time [THREADS] [SETS]       the workload of xattr-bench, on against off
//! xattr_sharing run on|off F V BYTES SETS   one run of it, to be counted by a profiler
//! xattr_sharing memory on|off [FILES]       memory of files that all have one security label
//! xattr_sharing label [FILES]               time to label each file, label it again, and read it
//! ```
//!
//! In the workload, each thread has F files of its own. It sets an attribute of these files, in
//! random order, to one of V random values.
//!
//! The commands `time` and `label` run nine rounds in one process. Each round measures a tmpfs with
//! and without sharing of equal sets. The medians are printed.
//!
//! Source: Kara, "ext\[24\]: MBCache rewrite", December 2015 (xattr-bench).

#![forbid(unsafe_code)]

use std::time::Instant;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_base::primitives::thread;

const ROUNDS: usize = 9;
const NAME: &[u8] = b"user.test";

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| {
        args.get(at).map_or(otherwise, |arg| arg.parse().expect("a number"))
    };
    let is_on = || args.get(1).is_some_and(|word| word == "on");
    match args.first().map(String::as_str) {
        Some("time") => time(number(1, 1), number(2, 100_000)),
        Some("run") => {
            let load = Load { files: number(2, 1000), values: number(3, 10), bytes: number(4, 64) };
            let bench = Bench::new(is_on(), 1, load);
            println!("{} ns per set", bench.round(0, number(5, 100_000)));
        }
        Some("memory") => memory(is_on(), number(2, 1_000_000)),
        Some("label") => label(number(1, 100_000)),
        _ => println!(
            "usage: xattr_sharing time|run|memory|label [ARGUMENT...]; see the head of the source"
        ),
    }
}

#[derive(Clone, Copy)]
struct Load {
    files: usize,
    values: usize,
    bytes: usize,
}

struct Bench {
    fs: Tmpfs,
    files: Vec<Vec<u64>>,
    values: Vec<Vec<u8>>,
}

impl Bench {
    fn new(is_on: bool, threads: usize, load: Load) -> Bench {
        let fs = tmpfs(is_on);
        let files = (0..threads).map(|thread| make_files(&fs, thread, load.files)).collect();
        let value = |n: usize| {
            let mut value = vec![b'x'; load.bytes];
            value[..8].copy_from_slice(&n.to_le_bytes());
            value
        };
        Bench { fs, files, values: (0..load.values).map(value).collect() }
    }

    fn round(&self, round: usize, sets: usize) -> f64 {
        let start = Instant::now();
        thread::scope(|scope| {
            for (nth, files) in self.files.iter().enumerate() {
                scope.spawn(move || {
                    let mut random = Random((round * 64 + nth + 1) as u64);
                    for _ in 0..sets {
                        let file = files[random.below(files.len())];
                        let value = &self.values[random.below(self.values.len())];
                        let node = Node::detached(file, FileKind::Regular);
                        self.fs.setxattr(node, NAME, value, XattrMode::Set).expect("there is room");
                    }
                });
            }
        });
        start.elapsed().as_nanos() as f64 / sets as f64
    }
}

fn time(threads: usize, sets: usize) {
    println!("threads {threads}, {sets} sets each, ns per set (median of {ROUNDS})");
    println!("{:>6} {:>6} {:>7} {:>8} {:>8} {:>6}", "bytes", "F", "V", "on", "off", "ratio");
    for bytes in [32, 256, 1024, 4000] {
        for files in [10, 100, 1000] {
            for values in [10, 100, 1000, 10_000] {
                let load = Load { files, values, bytes };
                let benches = [true, false].map(|is_on| Bench::new(is_on, threads, load));
                let mut times = [Vec::new(), Vec::new()];
                for round in 0..ROUNDS {
                    for turn in 0..2 {
                        let which = (round + turn) % 2;
                        times[which].push(benches[which].round(round, sets));
                    }
                }
                let ratios: Vec<f64> = times[0].iter().zip(&times[1]).map(|(a, b)| a / b).collect();
                let ([on, off], ratio) = (times.map(median), median(ratios));
                println!("{bytes:>6} {files:>6} {values:>7} {on:>8.1} {off:>8.1} {ratio:>6.2}");
            }
        }
    }
}

fn memory(is_on: bool, files: usize) {
    let fs = tmpfs(is_on);
    let inodes = make_files(&fs, 0, files);
    let before = resident_bytes();
    for &ino in &inodes {
        let node = Node::detached(ino, FileKind::Regular);
        let label = b"system_u:object_r:container_file_t:s0:c123,c456\0";
        fs.setxattr(node, b"security.selinux", label, XattrMode::Set).expect("there is room");
    }
    let bytes = resident_bytes() - before;
    println!("{files} files, one label, sharing {}", if is_on { "on" } else { "off" });
    println!("{:.1} bytes per file, {:?}", bytes as f64 / files as f64, fs.xattr_stats());
}

fn label(files: usize) {
    let mut times = [const { Vec::new() }; 8];
    for round in 0..ROUNDS {
        for turn in 0..2 {
            let which = (round + turn) % 2;
            let fs = tmpfs(which == 0);
            let inodes = make_files(&fs, 0, files);
            let mut note = |at: usize, start: Instant| {
                times[2 * at + which].push(start.elapsed().as_nanos() as f64 / files as f64);
            };
            for pass in 0..3 {
                let start = Instant::now();
                for (nth, &ino) in inodes.iter().enumerate() {
                    let node = Node::detached(ino, FileKind::Regular);
                    let label = format!("system_u:object_r:kind_{}_t:s0:c123\0", nth % 10 + pass);
                    fs.setxattr(node, b"security.selinux", label.as_bytes(), XattrMode::Set)
                        .expect("there is room");
                }
                if pass > 0 {
                    fs.share_xattrs();
                }
                note(pass, start);
            }
            let mut random = Random(7);
            let start = Instant::now();
            for _ in 0..files {
                let node = Node::detached(inodes[random.below(files)], FileKind::Regular);
                fs.getxattr(node, b"security.selinux").expect("it has one");
            }
            note(3, start);
        }
    }
    let times = times.map(median);
    for (at, what) in ["first set", "second at once, and sharing it", "third in a new epoch", "get"]
        .iter()
        .enumerate()
    {
        println!("{what}, {files} files: {:.1} ns on, {:.1} off", times[2 * at], times[2 * at + 1]);
    }
}

fn tmpfs(is_on: bool) -> Tmpfs {
    Tmpfs::new(TmpfsOptions::default().with_share_xattrs(is_on))
}

fn make_files(fs: &Tmpfs, thread: usize, count: usize) -> Vec<u64> {
    let root = Node::detached(fs.root().expect("there is one").ino, FileKind::Directory);
    let make = |nth| {
        let name = format!("{thread}-{nth}");
        let name = Name::new(name.as_bytes()).expect("it is short");
        fs.make(root, name, &Make::new(0o644, 0, 0)).expect("there is room").ino
    };
    (0..count).map(make).collect()
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    4096 * pages.expect("the second number is that of resident pages")
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mixed = self.0 ^ (self.0 >> 33);
        (((mixed >> 32) * bound as u64) >> 32) as usize
    }
}
