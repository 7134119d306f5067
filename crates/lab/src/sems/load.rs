//! The load of the table `semop-multi`: a worker adds one to a semaphore and subtracts it again, in
//! two calls.
//!
//! The workers that add and subtract are threads of this process, or processes of their own
//! (`worker`).
//!
//! # Checks
//! Every call must succeed. The operations of a worker cancel out, and at its end it adds one to
//! its semaphore, without undo. So the final value of each semaphore must be the number of its
//! workers, unless an operation was lost.

use std::time::Duration;

use corewalk_ipc::{SemBuf, SemFlags};
use fastrand::Rng;

use super::{Sems, check};
use crate::crew::{self, Laps, Slice, Turn};
use crate::samples::Cell;

/// How a thread chooses semaphores: its own ones, random ones, or the same one as all others.
const PATTERNS: [&str; 3] = ["own", "random", "same"];

/// The parameters of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) threads: usize,
    /// Semaphores of the set.
    pub(crate) sems: u16,
    pub(crate) pattern: &'static str,
    pub(crate) has_undo: bool,
    /// Operations of a call, 1 or 2.
    pub(crate) ops: usize,
}

impl Load {
    /// Returns the load of a cell.
    pub(crate) fn of(cell: &Cell) -> Load {
        let pattern = PATTERNS.into_iter().find(|pattern| *pattern == cell.word("pattern"));
        Load {
            threads: cell.number("threads"),
            sems: cell.number("sems") as u16,
            pattern: pattern.unwrap_or(PATTERNS[0]),
            has_undo: cell.word("undo") == "on",
            ops: cell.number("ops"),
        }
    }

    /// Runs one time slice with threads of this process. All threads are one user (simulated
    /// process), so they share its undo records.
    ///
    /// # Errors
    /// If a value is wrong at the end.
    pub(crate) fn run<S: Sems>(
        &self,
        sems: &S,
        set: usize,
        time: Duration,
    ) -> anyhow::Result<Slice> {
        let slice =
            crew::run(self.threads, time, |worker, turn| self.work(sems, set, worker, turn));
        self.end(sems, set)?;
        Ok(slice)
    }

    /// Works as worker number `worker`.
    pub(crate) fn work(&self, sems: &impl Sems, set: usize, worker: usize, turn: Turn<'_>) -> Laps {
        let flags = if self.has_undo { SemFlags::UNDO } else { SemFlags::empty() };
        let (own, count) = (self.own(worker), self.sems);
        let mut rng = Rng::with_seed(worker as u64 + 1);
        let mut nums = [own, (own + 1) % count];
        let (is_random, is_double) = (self.pattern == "random", self.ops == 2);
        let laps = turn.run(|number| {
            let is_first = number.is_multiple_of(2);
            if is_first && is_random {
                nums[0] = rng.u16(..count);
                if is_double {
                    // Any other.
                    let step = 1 + rng.u64(..u64::from(count) - 1) as u16;
                    nums[1] = (nums[0] + step) % count;
                }
            }
            let op = if is_first { 1 } else { -1 };
            let one = SemBuf::new(nums[0], op, flags);
            if is_double {
                sems.op(0, set, [one, SemBuf::new(nums[1], op, flags)])
            } else {
                sems.op(0, set, [one])
            }
        });
        let is_marked = sems.op(0, set, [SemBuf::new(own, 1, SemFlags::empty())]);
        assert!(is_marked, "{}: a mark is refused", sems.variant());
        laps
    }

    /// Checks that the value of each semaphore is the number of its workers, and resets it to zero.
    /// The operations of a worker cancel out, and at its end it has added 1 to its own semaphore.
    ///
    /// # Errors
    /// The value of a semaphore differs from the number of workers that added 1 to it at their end.
    pub(crate) fn end<S: Sems>(&self, sems: &S, set: usize) -> anyhow::Result<()> {
        let marks = |num| (0..self.threads).filter(|worker| self.own(*worker) == num).count();
        check(sems, set, |num| marks(num) as u16)?;
        let mut marked = (0..self.sems).filter(|num| marks(*num) > 0);
        anyhow::ensure!(marked.all(|num| sems.set_value(0, set, num, 0)), "SETVAL failed");
        Ok(())
    }

    fn own(&self, worker: usize) -> u16 {
        let own = (worker * self.ops % usize::from(self.sems)) as u16;
        if self.pattern == "same" { 0 } else { own }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sems::Ours;
    use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

    /// Semaphores that lose one operation in five.
    struct Lossy {
        whole: Ours,
        calls: AtomicU64,
    }

    impl Sems for Lossy {
        fn variant(&self) -> &'static str {
            "lossy"
        }
        fn ids(&self) -> Vec<i32> {
            self.whole.ids()
        }
        fn make(&mut self, count: u16) -> anyhow::Result<()> {
            self.whole.make(count)
        }
        fn op<const N: usize>(&self, user: usize, set: usize, sops: [SemBuf; N]) -> bool {
            // ORDERING: Relaxed. A count.
            let calls = self.calls.fetch_add(1, Ordering::Relaxed);
            // An operation may have to wait for a lost one. With `NOWAIT` it fails instead.
            let sops = sops
                .map(|sop| SemBuf::new(sop.sem_num, sop.sem_op, sop.sem_flg | SemFlags::NOWAIT));
            calls % 5 == 4 || self.whole.op(user, set, sops)
        }
        fn set_value(&self, user: usize, set: usize, num: u16, value: u16) -> bool {
            self.whole.set_value(user, set, num, value)
        }
        fn value(&self, user: usize, set: usize, num: u16) -> Option<u16> {
            self.whole.value(user, set, num)
        }
        fn values(&self, set: usize) -> anyhow::Result<Vec<u16>> {
            self.whole.values(set)
        }
    }

    #[test]
    fn load_is_that_of_its_cell() {
        let cell = Cell::default().with("pattern", "random").with("sems", 128).with("ops", 2);
        let load = Load::of(&cell.with("threads", 4).with("undo", "on"));
        let pattern = "random";
        assert_eq!(load, Load { threads: 4, sems: 128, pattern, has_undo: true, ops: 2 });
    }

    #[test]
    fn operation_that_is_lost_is_found_out() {
        let mut whole = Ours::new(1).unwrap();
        whole.make(8).unwrap();
        for pattern in PATTERNS {
            for (has_undo, ops) in [(false, 1), (true, 1), (true, 2)] {
                let load = Load { threads: 2, sems: 8, pattern, has_undo, ops };
                let slice = load.run(&whole, 0, Duration::from_millis(2)).unwrap();
                assert!(slice.check("whole").is_ok(), "{load:?}");
                assert_eq!(whole.values(0).unwrap(), [0; 8], "{load:?}");
            }
        }
        let lossy = Lossy { whole, calls: AtomicU64::new(0) };
        let load = Load { threads: 1, sems: 8, pattern: "own", has_undo: false, ops: 1 };
        let slice = load.run(&lossy, 0, Duration::from_millis(5));
        assert!(slice.is_err() || slice.is_ok_and(|slice| slice.check("lossy").is_err()));
    }
}
