//! Crash models of a pool. A task allocates a range of cache lines, for which the pool first joins
//! adjacent free ranges and then splits the result. The task is killed before each store of this
//! allocation.
//!
//! After each kill, the next task that takes the pool's lock repairs the pool. Then the ranges
//! (runs of cache lines) of other tasks must be unchanged. Each line must belong to exactly one
//! range, and no line may be lost.
//!
//! `RUSTFLAGS="--cfg corewalk_crash" cargo test --release -p corewalk-ipc --lib crash_`

use corewalk_base::primitives::crash::{self, Ended};
use corewalk_base::{Line, Region};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{HEADER, Joins, NEXT_FREE, Pool, USED, WHOSE_SHIFT};
use crate::field::{get, put};
use crate::layout::Layout;
use crate::lock::Owner;
use crate::shared::Shared;
use crate::task::Task;
use crate::task_line::forget_process;
use crate::{Capacity, Cred, Namespace, NamespaceOptions};

const LINES: u32 = 64;

/// The maximum number of stores of one allocation. A test fails if its allocation makes more
/// stores.
const STORES_MAX: u64 = 1000;

struct World {
    _namespace: Namespace,
    survivor: Task,
    victim: Task,
    pool: Pool,
    /// The ranges that the survivor uses, each with its user.
    kept: Vec<(u32, u32)>,
}

impl World {
    fn new(pool: fn(&Layout) -> Pool) -> Self {
        let lines = Capacity { msgs: LINES, undos: LINES, ..Capacity::LEAST };
        let capacity = Capacity { queues: 2, tasks: 4, ..lines };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("join", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let [survivor, victim] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
        let shared = &survivor.shared;
        let pool = pool(&shared.layout);
        let own = survivor.owner;
        let lines: Vec<u32> =
            (0..LINES).map(|_| pool.alloc(shared, 1, own, own.index).unwrap()).collect();
        let is_kept = |at: usize| at == 13 || at == 37;
        for (at, line) in lines.iter().enumerate() {
            // Fill each cache line of the pool with words that look like old message text, or like
            // a message in a queue.
            let text = 1 | USED | 77 << WHOSE_SHIFT;
            shared.region.line(*line)[..HEADER].iter().for_each(|word| put(word, text));
            if !is_kept(at) {
                pool.free(shared, *line, own);
            }
        }
        let kept: Vec<_> = pool.used(&shared.region).collect();
        assert_eq!(kept, [(lines[13], own.index), (lines[37], own.index)]);
        Self { _namespace: namespace, survivor, victim, pool, kept }
    }

    fn shared(&self) -> &Shared {
        &self.survivor.shared
    }

    fn region(&self) -> &Region {
        &self.shared().region
    }

    fn own(&self) -> Owner {
        self.survivor.owner
    }

    /// Runs `act`, and kills the victim once `act` has made `stores` stores. Returns true if the
    /// victim was killed before `act` ended.
    fn stop(&self, stores: u64, act: impl FnOnce(&Self)) -> bool {
        let is_stopped = matches!(crash::run(stores, || act(self)), Ended::Stopped);
        forget_process(self.shared(), self.victim.owner.index);
        is_stopped
    }

    /// Checks that each cache line is in one range, and that the ranges of the surviving task are
    /// unchanged. Takes no lock. Returns the number of ranges.
    fn check(&self) -> Result<usize, String> {
        let mut next = self.pool.first;
        let ranges: Vec<_> = self.pool.ranges(self.region()).collect();
        for (line, header) in &ranges {
            if *line != next {
                return Err(format!("a gap before {line}"));
            }
            next = line + (1 << header.class());
        }
        if next != self.pool.first + LINES {
            return Err(format!("ranges end at {next}"));
        }
        let mut used: Vec<_> = self.pool.used(self.region()).collect();
        used.retain(|(_, whose)| *whose != self.victim.owner.index);
        if used == self.kept { Ok(ranges.len()) } else { Err(format!("in use: {used:?}")) }
    }

    fn end(self, at: &str) {
        let (shared, pool) = (self.shared(), self.pool);
        drop(pool.lock(shared, self.own()).unwrap());
        let index = self.victim.owner.index;
        let (joins, left) =
            pool.collect_used(self.region(), |line, whose| (whose == index).then_some(line));
        assert!(left.len() <= 1, "{at}: {left:?}");
        for line in left {
            let is_kept = pool.joins == Joins::Keeping || get(&self.region().line(line)[0]) == 0;
            assert!(is_kept, "{at}: the range of the victim looks like a message");
            pool.free_seen(shared, line, joins, self.own(), || true);
        }
        pool.audit(self.region()).unwrap_or_else(|what| panic!("{at}: {what}"));
        self.check().unwrap_or_else(|what| panic!("{at}: {what}"));
        for wanted in [16, 16, 8] {
            let line = pool.alloc(shared, wanted, self.own(), 9);
            assert!(line.is_ok(), "{at}: no {wanted} lines");
        }
        // The victim counts as killed, so dropping its `Task` must store nothing.
        crash::run(0, || drop(self.victim));
    }
}

#[test]
fn crash_of_an_allocation_that_joins_ranges_leaves_each_line_in_one_range() {
    // Test a pool that zeroes the first cache line of each joined range, and one that does not.
    stop_at_each_store(|layout| layout.msgs);
    stop_at_each_store(|layout| layout.undos);
}

fn stop_at_each_store(pool: fn(&Layout) -> Pool) {
    let mut seen = Vec::new();
    for stores in 0..STORES_MAX {
        let world = World::new(pool);
        let is_stopped = world.stop(stores, |world| {
            let (pool, victim) = (world.pool, world.victim.owner);
            pool.alloc(world.shared(), 4, victim, victim.index).ok();
        });
        let at = format!("stopped after {stores} stores");
        // Check the ranges of cache lines before the repair of the pool, too. The pool is repaired
        // under its lock. The cleanup after a dead task walks over the ranges without that lock, so
        // perhaps before the repair.
        let ranges = world.check().unwrap_or_else(|what| panic!("{at}: {what}"));
        if !seen.contains(&ranges) {
            seen.push(ranges);
        }
        world.end(&at);
        if !is_stopped {
            println!("{stores} stores; counts of ranges seen: {seen:?}");
            // The kills must hit all stages of the allocation. At first no free ranges of cache
            // lines are joined, then some, then all. At last the joined range is cut to the
            // requested size.
            assert!(seen.len() > 5, "not reached: {seen:?}");
            return;
        }
    }
    panic!("the allocation never ends");
}

/// Control, which must fail: the first store shrinks a free range of cache lines to its first half.
/// The second one stores the header of the second half. A kill in between loses the second half.
#[test]
fn crash_control_range_that_shrinks_before_the_rest_is_a_range_is_caught() {
    let store = |line: &Line, class: u64| {
        line[..=NEXT_FREE].iter().for_each(|word| put(word, 0));
        put(&line[HEADER], class + 1);
    };
    let wrong = (0..STORES_MAX).find(|stores| {
        let world = World::new(|layout| layout.msgs);
        let line = world.pool.alloc(world.shared(), 16, world.own(), 9).unwrap();
        world.pool.free(world.shared(), line, world.own());
        put(&world.region().line(line + 8)[HEADER], 0);
        world.stop(*stores, |world| {
            store(world.region().line(line), 3);
            store(world.region().line(line + 8), 3);
        });
        let is_wrong = world.check().is_err();
        crash::run(0, || drop(world.victim));
        is_wrong
    });
    assert!(wrong.is_some(), "the wrong split is never noticed");
}
