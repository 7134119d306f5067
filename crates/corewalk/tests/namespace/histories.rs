//! Recorded histories of concurrent operations, checked for linearizability (guarantee V.1).

use corewalk::{Errno, RenameMode};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::history::{Clock, History, Recorder};
use corewalk_testkit::linearize::assert_linearizable;
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::{Rng, Seed};
use std::collections::HashMap;
use std::time::Duration;

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{new, over};
use crate::model::{Answer, DIRS, Model, NAMES, Op, World};

const THREADS: usize = 3;
const OPS_EACH: usize = 14;
const HISTORIES: u32 = 700;

fn random_op(rng: &mut Rng, tag: u32) -> Op {
    let mut place = || (*rng.pick(&DIRS), rng.index(NAMES.len()));
    let (from, to) = (place(), place());
    let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
    match rng.below(11) {
        0..2 => Op::Lookup { dir: from.0, name: from.1 },
        2..4 => Op::Walk { names: [from.1, to.1] },
        4 | 5 => Op::Create { dir: from.0, name: from.1, tag },
        6 => Op::Unlink { dir: from.0, name: from.1 },
        7 => Op::Path { dir: from.0 },
        8 => Op::Rmdir { dir: from.0, name: from.1 },
        _ => Op::Rename { from, to, mode: *rng.pick(&modes) },
    }
}

fn random_op_around_rmdir(rng: &mut Rng, tag: u32) -> Op {
    let file = rng.index(2);
    match rng.below(10) {
        0..2 => Op::Rmdir { dir: 0, name: 2 },
        2..4 => Op::Create { dir: 1, name: file, tag },
        4 => Op::Unlink { dir: 1, name: file },
        5 => Op::Lookup { dir: 1, name: file },
        6 => Op::Lookup { dir: 0, name: 2 },
        7 => Op::Walk { names: [2, file] },
        8 => Op::Path { dir: 1 },
        _ => Op::Rename { from: (1, file), to: (0, file), mode: RenameMode::Replace },
    }
}

fn record(
    world: &World<'_>,
    seed: Seed,
    random_op: fn(&mut Rng, u32) -> Op,
) -> History<Op, Answer> {
    let clock = Clock::default();
    let recorders = race::run(THREADS, seed, |mut racer| {
        let mut recorder = Recorder::new(&clock, racer.thread, OPS_EACH);
        for i in 0..OPS_EACH {
            let tag = 3 + (racer.thread * OPS_EACH + i) as u32;
            let op = random_op(&mut racer.rng, tag);
            recorder.call(op.clone(), || world.apply(&op));
        }
        recorder
    });
    History::join(recorders)
}

/// The answers of random concurrent operations must be those of some sequential order. Traps T12,
/// T13, T15, T26 and P8 in `traps.md`.
#[test]
fn histories_over_tmpfs_are_linearizable() {
    let _watchdog = Watchdog::start("histories over tmpfs", Duration::from_secs(300));
    let seed = Seed::choose();
    let mut rng = Rng::new(seed);
    for _ in 0..1500 {
        let seed = Seed(rng.next_u64());
        let vfs = new();
        let world = World::new(&vfs);
        let history = record(&world, seed, random_op);
        assert_linearizable(&Model::new(), &history, seed);
    }
}

/// The answers of concurrent operations must fit one sequential order, even with a slow back end,
/// eviction and invalidation. The cache must not keep an answer that is stale when it arrives.
#[test]
fn histories_over_a_slow_back_end_with_invalidation_are_linearizable() {
    let _watchdog = Watchdog::start("histories over a slow back end", Duration::from_secs(300));
    let mut rng = Rng::new(Seed::choose());
    let mut unchecked = 0;
    for _ in 0..HISTORIES {
        let seed = Seed(rng.next_u64());
        let vfs = over(HookedTmpfs::new(|_, _| {
            thread::yield_now();
            Ok(())
        }));
        let world = World::new(&vfs);
        let done = AtomicBool::new(false);
        let history = thread::scope(|scope| {
            let _done = Done(&done);
            scope.spawn(|| {
                // ORDERING: Relaxed. A flag; nothing is published through it.
                while !done.load(Ordering::Relaxed) {
                    vfs.prune();
                    vfs.invalidate_dir(&vfs.root()).unwrap();
                    vfs.invalidate_all(&mut |_, _| ());
                    // Wait between invalidations, so that walks can succeed in rcu-walk.
                    let asked = vfs.stats().misses;
                    // ORDERING: Relaxed. As above.
                    while vfs.stats().misses < asked + 4 && !done.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                }
            });
            record(&world, seed, random_op)
        });
        // A ref-walk looks up the names of a path at several instants. So skip a history with a
        // walk that fell back to ref-walk.
        if vfs.stats().fallbacks > 0 {
            unchecked += 1;
        } else {
            assert_linearizable(&Model::new(), &history, seed);
        }
    }
    assert!(unchecked < HISTORIES / 4, "{unchecked} histories had a ref-walk");
}

/// A removal of a directory and concurrent creations in it must fit one sequential order. If the
/// removal succeeds, the directory has no entries. Otherwise lookups find them.
#[test]
fn histories_of_rmdir_beside_create_are_linearizable() {
    let _watchdog = Watchdog::start("histories of rmdir", Duration::from_secs(300));
    let mut rng = Rng::new(Seed::choose());
    let mut answers: HashMap<(&str, Answer), u32> = HashMap::new();
    for round in 0..2 * HISTORIES {
        let seed = Seed(rng.next_u64());
        let vfs = match round % 2 {
            0 => new(),
            _ => over(HookedTmpfs::new(|_, call| {
                let count = if matches!(call, Call::MakeDone(_)) { 30 } else { 1 };
                (0..count).for_each(|_| thread::yield_now());
                Ok(())
            })),
        };
        let history = record(&World::new(&vfs), seed, random_op_around_rmdir);
        for call in history.calls() {
            let what = match call.op {
                Op::Rmdir { .. } => "rmdir",
                Op::Create { .. } => "create",
                _ => continue,
            };
            *answers.entry((what, call.ret.clone().expect("the call returned"))).or_default() += 1;
        }
        assert_linearizable(&Model::new(), &history, seed);
    }
    for (what, answer) in [
        ("rmdir", Answer::Done),
        ("rmdir", Answer::Error(Errno::NOTEMPTY)),
        ("rmdir", Answer::Error(Errno::NOENT)),
        ("create", Answer::Done),
        ("create", Answer::Error(Errno::NOENT)),
    ] {
        assert!(answers.contains_key(&(what, answer.clone())), "no {what} answered {answer:?}");
    }
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. As above.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Control (a variant with the bug must fail): a lookup of the recorded history misses a file that
/// was created before. The lookup answers as if the cache had not been updated. The checker must
/// reject this history.
#[test]
#[should_panic(expected = "linearizable")]
fn control_wrong_answer_is_rejected() {
    let seed = Seed(1);
    let vfs = new();
    let world = World::new(&vfs);
    let clock = Clock::default();
    let mut recorder = Recorder::new(&clock, 0, 2);
    let create = Op::Create { dir: 0, name: 0, tag: 7 };
    recorder.call(create.clone(), || world.apply(&create));
    recorder.call(Op::Lookup { dir: 0, name: 0 }, || Answer::Error(Errno::NOENT));
    let history = History::join([recorder]);
    assert_linearizable(&Model::new(), &history, seed);
}
