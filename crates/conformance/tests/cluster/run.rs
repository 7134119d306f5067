//! Threads that race on several mounts, and the check of what they have seen.

use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_testkit::history::{Call, Clock, History};
use corewalk_testkit::linearize::{Limit, Verdict, check, report};
use corewalk_testkit::rng::{Rng, Seed};

use crate::model::{NAMES, Op, Ret, Space};
use crate::mounted::{KEPT, Mounted, Place};

const THREADS: usize = 2;
pub(crate) const CALLS: usize = 50;

pub(crate) struct Run {
    pub(crate) rounds: usize,
    /// The number of the first round. No two rounds in one file system may have the same number.
    pub(crate) first: usize,
    /// Maximum of the random pauses between two calls of a thread. They spread the calls over time.
    pub(crate) pace: Duration,
    /// The percentages of changes among the calls of a round. Round `n` uses the entry `n % 3`.
    pub(crate) changes: [u64; 3],
    pub(crate) reader: Option<usize>,
    rng: Rng,
}

impl Run {
    pub(crate) fn new(rounds: usize, pace: Duration, seed: Seed) -> Run {
        Run { rounds, first: 0, pace, changes: [3, 15, 60], reader: None, rng: Rng::new(seed) }
    }

    /// Runs the rounds, and checks that the history of each is linearizable. Calls `disturb` during
    /// each round, and `repair` after it. Returns the number of calls, or a report of the first
    /// history that is not linearizable.
    pub(crate) fn race(
        &self,
        mounts: &mut [Mounted],
        mut disturb: impl FnMut(usize, &[Mounted]) + Send,
        mut repair: impl FnMut(&mut [Mounted]),
    ) -> Result<usize, String> {
        let mut count = 0;
        for round in self.first..self.first + self.rounds {
            let history = self.round(round, mounts, &mut disturb);
            repair(mounts);
            count += history.len();
            let start = Space::with_inodes(1..=KEPT);
            match check(&start, &history, Limit::default()) {
                Verdict::Linearizable(_) => {}
                Verdict::Violated => {
                    let text = report(&start, &history, Limit::default());
                    return Err(format!("round {round}: {text}"));
                }
                Verdict::Undecided => return Err(format!("round {round} was not decided")),
            }
        }
        Ok(count)
    }

    fn round(
        &self,
        round: usize,
        mounts: &[Mounted],
        disturb: &mut (impl FnMut(usize, &[Mounted]) + Send),
    ) -> History<Op, Ret> {
        mounts[round % mounts.len()].make_round(round);
        let places: Vec<Place> = mounts.iter().map(|mount| mount.begin_round(round)).collect();
        let (clock, owners) = (Clock::new(), AtomicU64::new(u64::from(KEPT) + 1));
        let rng = self.rng.fork(round as u64);
        let calls = thread::scope(|scope| {
            let start = |number: usize| {
                let (place, clock, owners) = (&places[number % mounts.len()], &clock, &owners);
                let mut rng = rng.fork(number as u64);
                let is_reader = self.reader == Some(number % mounts.len());
                let changes = if is_reader { 0 } else { self.changes[round % 3] };
                scope.spawn(move || {
                    let mut calls = Vec::with_capacity(CALLS);
                    for _ in 0..CALLS {
                        let pace = self.pace.as_micros() as u64;
                        if pace > 0 {
                            thread::sleep(Duration::from_micros(rng.below(pace)));
                        }
                        let op = choose(&mut rng, changes, owners);
                        let invoked = clock.tick();
                        let Some(ret) = place.call(op) else {
                            // Without an answer, the call may or may not have taken effect. So it
                            // is recorded as pending, and the thread ends.
                            calls.push(Call::pending(number, invoked, op));
                            break;
                        };
                        calls.push(Call::finished(number, invoked, clock.tick(), op, ret));
                    }
                    calls
                })
            };
            let threads: Vec<_> = (0..mounts.len() * THREADS).map(start).collect();
            disturb(round, mounts);
            let join = |thread: thread::ScopedJoinHandle<'_, Vec<_>>| thread.join().expect("ends");
            threads.into_iter().flat_map(join).collect::<Vec<_>>()
        });
        History::from_calls(calls)
    }
}

fn choose(rng: &mut Rng, changes: u64, owners: &AtomicU64) -> Op {
    let (at, owner) = (rng.index(NAMES), 1 + rng.below(u64::from(KEPT)) as u32);
    let other = (at + 1 + rng.index(NAMES - 1)) % NAMES;
    if !rng.chance(changes, 100) {
        return if rng.chance(1, 2) { Op::Lookup(at) } else { Op::Get(owner) };
    }
    match rng.below(8) {
        // ORDERING: Relaxed. The addition alone makes the numbers differ.
        0 => Op::Create(at, owners.fetch_add(1, Ordering::Relaxed) as u32),
        1 => Op::Link(owner, at),
        2 | 3 => Op::Unlink(at),
        // The kernel looks up both names of a rename one after the other, and does nothing if they
        // lead to one inode. So a rename to an existing name is not atomic, and no thread makes
        // one.
        4 | 5 => Op::Move(at, other),
        _ => Op::SetMode(owner, rng.below(0o1000) as u32),
    }
}
