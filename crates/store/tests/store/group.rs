//! Crash points in a workload of several threads that share commits.
//!
//! Each thread changes its own directory and syncs files in it. The test keeps the state of the
//! directory after each operation.
//!
//! After a crash, a directory must be in its state at the thread's last completed fsync, or after a
//! later operation.

use std::time::Duration;

use corewalk::{FileKind, FileSystem, Make, Name, Node, SetAttr};
use corewalk_base::primitives::{Arc, thread};
use corewalk_store::{Store, fsck_devices};
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::rng::{Rng, Seed};

use crate::crash_points::{Numbers, crash, is_like, numbers};
use crate::differential::{Tree, tree_of};
use crate::memory::{Disks, Step, quiet};

const THREADS: u64 = 4;
const STEPS: usize = 60;
const POINTS: usize = 300;

/// The state of a thread's directory after one operation. `confirmed_at` is the number of device
/// calls at the time when an fsync has confirmed the operation.
struct State {
    tree: Tree,
    numbers: Numbers,
    wrote: Option<(u64, u8)>,
    begun_at: usize,
    confirmed_at: Option<usize>,
}

fn change(
    store: &Store,
    dir: Node<'_>,
    rng: &mut Rng,
    tag: u8,
) -> (Node<'static>, Option<(u64, u8)>) {
    let name = format!("f{}", rng.below(5));
    let name = Name::new(name.as_bytes()).unwrap();
    let Ok(attr) = store.lookup(dir, name) else {
        let made = store.make(dir, name, &Make::new(0o644, 0, 0)).unwrap();
        return (Node::detached(made.ino, FileKind::Regular), None);
    };
    let file = Node::detached(attr.ino, FileKind::Regular);
    match rng.below(8) {
        0 => {
            store.remove(dir, name, file).unwrap();
            store.forget(attr.ino, attr.generation);
            (Node::detached(dir.ino(), FileKind::Directory), None)
        }
        1 => {
            let size = Some(rng.below(20_000));
            store.setattr(file, &SetAttr::default().with_size(size)).unwrap();
            (file, Some((attr.ino, 0)))
        }
        _ => {
            let len = if rng.chance(1, 10) { 70_000 } else { 1 + rng.index(6_000) };
            store.write(file, rng.below(12_000), &vec![tag; len]).unwrap();
            (file, Some((attr.ino, tag)))
        }
    }
}

fn load(seed: Seed) -> (Vec<Step>, usize, Vec<Vec<State>>) {
    let disks = Disks::new();
    disks.shared.lock().log = Some(Vec::new());
    disks.shared.lock().sync_takes = Duration::from_micros(200);
    let store = Arc::new(disks.open(&quiet()));
    let root = Node::detached(1, FileKind::Directory);
    let shared = disks.shared.clone();
    let log_len = move || shared.lock().log.as_ref().unwrap().len();
    let dirs: Vec<_> = (0..THREADS)
        .map(|number| {
            let name = format!("d{number}");
            let what = Make::new(0o040_755, 0, 0);
            let made = store.make(root, Name::new(name.as_bytes()).unwrap(), &what).unwrap();
            Node::detached(made.ino, FileKind::Directory)
        })
        .collect();
    store.sync().unwrap();
    let begin = log_len();
    let threads: Vec<_> = dirs
        .into_iter()
        .enumerate()
        .map(|(number, dir)| {
            let (store, log_len) = (store.clone(), log_len.clone());
            let mut rng = Rng::new(seed).fork(number as u64);
            thread::spawn(move || {
                let tree = tree_of(&*store, dir);
                let (numbers_now, confirmed_at) = (numbers(&store, dir, &tree), Some(begin));
                let first = State {
                    tree,
                    numbers: numbers_now,
                    wrote: None,
                    begun_at: begin,
                    confirmed_at,
                };
                let mut states = vec![first];
                for step in 0..STEPS {
                    let tag =
                        u8::try_from(1 + number * STEPS + step).expect("few threads and steps");
                    let begun_at = log_len();
                    let (changed, wrote) = change(&store, dir, &mut rng, tag);
                    let tree = tree_of(&*store, dir);
                    let numbers = numbers(&store, dir, &tree);
                    let confirmed_at = rng.chance(1, 2).then(|| {
                        store.fsync(changed, false).unwrap();
                        log_len()
                    });
                    states.push(State { tree, numbers, wrote, begun_at, confirmed_at });
                }
                states
            })
        })
        .collect();
    let states = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let stats = store.stats();
    assert!(stats.shared_commits > 5, "no commit was shared: {stats:?}");
    println!("{stats:?}");
    let log = disks.shared.lock().log.take().unwrap();
    (log, begin, states)
}

fn try_point(
    log: &[Step],
    point: usize,
    states: &[Vec<State>],
    rng: &mut Rng,
) -> Result<(), String> {
    let disks = crash(&log[..point], rng);
    let report = fsck_devices(&disks.devices()).map_err(|error| format!("fsck: {error}"))?;
    if !report.findings.is_empty() {
        return Err(format!("fsck: {:?}", report.findings));
    }
    let store =
        Store::open_devices(disks.devices(), &quiet()).map_err(|error| error.to_string())?;
    let root = Node::detached(1, FileKind::Directory);
    for (number, states) in states.iter().enumerate() {
        let name = format!("d{number}");
        let dir = store.lookup(root, Name::new(name.as_bytes()).unwrap());
        let dir = dir.map_err(|errno| format!("{name}: {errno}"))?;
        let got = tree_of(&store, Node::detached(dir.ino, FileKind::Directory));
        let is_confirmed = |state: &State| state.confirmed_at.is_some_and(|at| at <= point);
        let last = states.iter().rposition(is_confirmed).unwrap_or(0);
        let begun = states.partition_point(|state| state.begun_at < point);
        let states = &states[..begun.max(last + 1)];
        let is_any = (last..states.len()).any(|at| {
            let state = &states[at];
            is_like(&got, &state.tree, |path, byte| {
                let written = Some((state.numbers[path], byte));
                states[at + 1..].iter().any(|later| later.wrote == written)
            })
        });
        if !is_any {
            return Err(format!("{name} is not as at its operation {last}, or a later one"));
        }
    }
    Ok(())
}

fn try_points(log: &[Step], begin: usize, states: &[Vec<State>], seed: u64) -> Option<String> {
    for number in 0..POINTS {
        let point = begin + number * 7919 % (log.len() + 1 - begin);
        let mut rng = Rng::new(Seed(seed * 1_000_000 + number as u64));
        if let Err(wrong) = try_point(log, point, states, &mut rng) {
            return Some(format!("seed {seed}, number {number}, point {point}: {wrong}"));
        }
    }
    None
}

#[test]
fn crash_during_shared_commits_keeps_confirmed_changes() {
    let _watchdog = Watchdog::start("cuts amid shared commits", Duration::from_secs(120));
    for seed in [1, 2] {
        let (log, begin, states) = load(Seed(seed));
        assert_eq!(try_points(&log, begin, &states, seed), None);
    }
}

/// Without the syncs of the log, an fsync returns before its changes are durable. The crash test
/// must notice that.
#[test]
fn control_log_that_is_not_synced_is_caught() {
    let (mut log, begin, states) = load(Seed(1));
    for step in &mut log[begin..] {
        if matches!(step, Step::Sync { device: 3 }) {
            *step = Step::Sync { device: 9 };
        }
    }
    println!("{}", try_points(&log, begin, &states, 1).expect("an error"));
}
