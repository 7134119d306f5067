//! Measures how long fsync(2) of one file takes, in a store and directly on the host. Prints the
//! time per file in microseconds and, for the store, the number of commits per file.
//!
//! Run `cargo run --release -p corewalk-store --example fsync -- DIR [COUNT [THREADS]]`. `DIR` must
//! not exist yet. Prefix the command with `strace -f -c -e
//! trace=pwrite64,fdatasync,fsync,ftruncate` to count the system calls.

#![forbid(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use corewalk::{FileKind, FileSystem, Make, Name, Node};
use corewalk_base::primitives::thread;
use corewalk_store::{Store, StoreOptions};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

type Step<'a> = dyn Fn(&str) -> Outcome<()> + Sync + 'a;

fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("DIR is missing")?;
    let count = arguments.next().map_or(Ok(200), |count| count.parse())?;
    let threads = arguments.next().map_or(Ok(1), |threads| threads.parse())?;
    let dir = Path::new(&dir);
    std::fs::create_dir(dir)?;
    let host = dir.join("host");
    std::fs::create_dir(&host)?;
    let store = Store::open(&dir.join("store"), &StoreOptions::default())?;
    let root = Node::detached(store.root()?.ino, FileKind::Directory);
    let find = |name: &str| -> Outcome<Node<'static>> {
        let found = store.lookup(root, Name::new(name.as_bytes())?)?;
        Ok(Node::detached(found.ino, FileKind::Regular))
    };
    let make = |name: &str| -> Outcome<Node<'static>> {
        let made = store.make(root, Name::new(name.as_bytes())?, &Make::new(0o644, 0, 0))?;
        Ok(Node::detached(made.ino, FileKind::Regular))
    };
    let steps: [(&str, &Step<'_>); 6] = [
        ("store: make, fsync", &|name| Ok(store.fsync(make(&format!("{name}e"))?, false)?)),
        ("store: make, write 4096, fsync", &|name| {
            let file = make(name)?;
            store.write(file, 0, &[7; 4096])?;
            Ok(store.fsync(file, false)?)
        }),
        ("store: write 4096, fsync", &|name| {
            let file = find(name)?;
            store.write(file, 0, &[8; 4096])?;
            Ok(store.fsync(file, false)?)
        }),
        ("store: write 4096, fdatasync", &|name| {
            let file = find(name)?;
            store.write(file, 0, &[9; 4096])?;
            Ok(store.fsync(file, true)?)
        }),
        ("host: make, write 4096, fsync", &|name| {
            let file = File::create_new(host.join(name))?;
            file.write_all_at(&[7; 4096], 0)?;
            Ok(file.sync_all()?)
        }),
        ("host: write 4096, fsync", &|name| {
            let file = File::options().write(true).open(host.join(name))?;
            file.write_all_at(&[8; 4096], 0)?;
            Ok(file.sync_all()?)
        }),
    ];
    for (what, step) in steps {
        let commits = store.stats().commits;
        let mut times = measure(step, count, threads)?;
        times.sort_unstable();
        let at = |part: usize| times[times.len() * part / 100] / 1000;
        println!(
            "{what:32} min {:6}  p10 {:6}  median {:6}  p90 {:6} us; {:.2} commits each",
            at(0),
            at(10),
            at(50),
            at(90),
            (store.stats().commits - commits) as f64 / times.len() as f64,
        );
    }
    drop(store);
    Ok(std::fs::remove_dir_all(dir)?)
}

fn measure(step: &Step<'_>, count: usize, threads: usize) -> Outcome<Vec<u64>> {
    let work = |number: usize| -> Outcome<Vec<u64>> {
        (0..count)
            .map(|file| {
                let begun = Instant::now();
                step(&format!("{number}-{file}"))?;
                Ok(begun.elapsed().as_nanos() as u64)
            })
            .collect()
    };
    thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        let mut times = Vec::new();
        for one in all {
            times.extend(one.join().map_err(|_| "a thread panicked")??);
        }
        Ok(times)
    })
}
