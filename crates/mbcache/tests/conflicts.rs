//! Guarantee G.7 of `lib.rs`: operations on keys with different *home lines* must write no common
//! cache line. The home line is the one that the hash of a key selects.
//!
//! For each operation and several keys, the test records the cache lines that the operation loads
//! and stores. Then it compares the operations of two threads, and prints a table.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_mbcache::{Entry, Mbcache, MbcacheOptions};
use corewalk_testkit::lines::{Lines, Watched};
use corewalk_testkit::seal::Seal;
use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::mpsc;

#[global_allocator]
static SEAL: Seal = Seal::new();

const KEYS: u64 = 300;
const SAMPLES: u64 = 8;

type Op = (&'static str, fn(&System, u64));

/// Each operation gets a key with two entries. That of value 0 has its referenced bit set, and that
/// of value 1 has a handle.
const OPS: [Op; 8] = [
    ("get", |system, key| assert!(system.cache.get(key, 0))),
    ("first get", |system, key| assert!(system.cache.get(key, 1))),
    ("find", |system, key| assert_eq!(system.cache.find_first(key).unwrap().value(), 0)),
    ("find both", |system, key| {
        let first = system.cache.find_first(key).unwrap();
        assert_eq!(system.cache.find_next(&first).unwrap().value(), 1);
    }),
    ("note users", |system, key| {
        assert!(!system.cache.note_users(key, 0, u32::MAX));
        assert!(system.cache.note_users(key, 0, 1));
    }),
    ("delete, create", |system, key| {
        assert!(system.cache.delete_or_get(key, 0).is_none());
        system.cache.create(key, 2).unwrap();
    }),
    ("delete what is held", |system, key| {
        assert!(system.cache.delete_or_get(key, 1).is_some());
    }),
    ("create what is there", |system, key| {
        assert!(system.cache.create(key, 1).is_err());
    }),
];

struct System {
    cache: Mbcache,
    operations: Box<Alone>,
}

#[repr(align(64))]
struct Alone(AtomicU64);

fn build() -> (&'static System, Vec<Entry<'static>>) {
    let options = MbcacheOptions::default().with_budget_bytes(4 << 20);
    let system: &'static System = Box::leak(Box::new(System {
        cache: Mbcache::new(options).unwrap(),
        operations: Box::new(Alone(AtomicU64::new(0))),
    }));
    let mut held = Vec::new();
    for key in 0..KEYS {
        for value in 0..2 {
            system.cache.create(key, value).unwrap();
        }
        assert!(system.cache.get(key, 0));
        let first = system.cache.find_first(key).unwrap();
        held.push(system.cache.find_next(&first).unwrap());
    }
    (system, held)
}

fn keys_apart(watched: &Watched, system: &'static System) -> Vec<u64> {
    let look = |key| watched.record(|| assert!(black_box(!system.cache.get(key, 9)))).read;
    let common: BTreeSet<usize> = look(0).intersection(&look(1)).copied().collect();
    let mut seen = BTreeSet::new();
    (0..KEYS)
        .filter(|&key| {
            let lines = look(key);
            let own: Vec<_> = lines.difference(&common).copied().collect();
            own.iter().all(|&line| seen.insert(line)) && own.len() == 1
        })
        .collect()
}

type Recorded = Vec<(&'static str, Vec<Lines>)>;

/// Prints a row of the table for each operation, and returns the number of conflicts. Two runs
/// conflict if one writes a cache line that the other reads or writes. The table shows the
/// percentage of pairs of runs without a conflict.
fn compare(one: &Recorded, other: &Recorded) -> usize {
    let mut conflicts = 0;
    for (name, lines) in one {
        let row: Vec<String> = other
            .iter()
            .map(|(_, others)| {
                let pairs = lines.iter().flat_map(|a| others.iter().map(move |b| (a, b)));
                let free = pairs.filter(|(a, b)| a.conflicts(b).is_empty()).count();
                conflicts += lines.len() * others.len() - free;
                format!("{:4}", 100 * free / (lines.len() * others.len()))
            })
            .collect();
        println!("{name:22}{}", row.concat());
    }
    conflicts
}

/// Guarantee G.7 of `lib.rs`. Two controls must have conflicts: operations on one key, and
/// operations that also write a common counter.
#[test]
fn operations_on_different_homes_write_no_common_line() {
    let phase = SEAL.begin();
    let (system, held) = build();
    let watched = phase.watch();
    let mut keys = keys_apart(&watched, system).into_iter();
    let (give, jobs) = mpsc::channel::<(fn(&System, u64), u64)>();
    let (answer, answers) = mpsc::channel();
    thread::scope(|scope| {
        let watched = &watched;
        scope.spawn(move || {
            for (run, key) in jobs {
                answer.send(watched.record(|| run(system, key))).unwrap();
            }
        });
        let here = |run: fn(&System, u64), key| watched.record(|| run(system, key));
        let there = |run: fn(&System, u64), key| {
            give.send((run, key)).unwrap();
            answers.recv().unwrap()
        };
        let mut next = || keys.next().expect("there are enough keys");
        let key = next();
        let mut both = |run: fn(&System, u64)| -> (Vec<_>, Vec<_>) {
            (0..SAMPLES).map(|_| (here(run, next()), there(run, next()))).unzip()
        };
        let (one, other): (Recorded, Recorded) = OPS
            .iter()
            .map(|&(name, run)| {
                let (a, b) = both(run);
                ((name, a), (name, b))
            })
            .unzip();
        println!("pairs without a common line that one of them writes, in %");
        assert_eq!(compare(&one, &other), 0, "G.7");
        assert!(
            one.iter().all(|(_, lines)| lines.iter().all(|l| !l.read.is_empty())),
            "nothing seen"
        );
        // All operations but two write the cache line of their key. The two are a `get` of a used
        // pair (guarantee G.6 of `lib.rs`) and a deletion that a handle prevents.
        for (name, lines) in &one {
            let is_read = ["get", "delete what is held"].contains(name);
            assert!(lines.iter().all(|l| l.written.is_empty() == is_read), "{name}");
        }

        // Control test: on one key, `find` and `get` conflict, but two calls of `get` do not.
        let (a, b) = (here(OPS[2].1, key), there(OPS[0].1, key));
        assert_eq!((a.conflicts(&b).len(), b.conflicts(&a).len()), (1, 1), "control: one key");
        let twice = (here(OPS[0].1, key), there(OPS[0].1, key));
        assert!(twice.0.conflicts(&twice.1).is_empty(), "to read twice is no conflict");

        // Control: a counter that all operations share.
        let counted: fn(&System, u64) = |system, key| {
            OPS[0].1(system, key);
            // ORDERING: Relaxed. Nothing is published through it.
            system.operations.0.fetch_add(1, Ordering::Relaxed);
        };
        let (a, b) = both(counted);
        let pairs = a.iter().zip(&b);
        assert!(pairs.into_iter().all(|(a, b)| a.conflicts(b).len() == 1), "control: a counter");
        drop(give);
    });
    drop(held);
}
