//! Table `mbcache`: the operations of a cache from keys to values, one by one.
//!
//! Document 004 publishes the time of a whole benchmark of a file system only; these are the calls that
//! its cache is made of. 100,000 pairs, any of which may be asked for. Units: operations per second of
//! wall time, all threads together, and nanoseconds of processor time per operation.
//!
//! | parameter | meaning |
//! |---|---|
//! | `op=get` | whether a pair is there, which it is |
//! | `op=find` | a value of a key, the entry of which is counted and let go of |
//! | `op=get+create+delete` | a get of one pair, a creation and a deletion of two others, as one operation |
//! | `values` | values per key |
//!
//! Each thread asks for pairs of its own, every key being everybody's. The pairs that come and go are
//! not those that are got: in the rows with `get` the referenced bit is set.
//!
//! # The claim, as a shape
//! The three operations take at most 0.6 of the time of `mutex-shards`, with one thread and with two. That is for two
//! values per key; with ten they take longer than those of the shards.
//!
//! # Where the time goes
//! Counted by cachegrind (a first-level cache of 32 KiB, its own predictor of branches), one thread, per operation as
//! the row has it, instructions less the loop and one draw (27). Written by hand, from a program that is not in
//! the tree: an explanation of the rows, and no result. Each pair of figures is ours and that of `mutex-shards`.
//!
//! | operation, values per key | instructions | misses of the first level | branches not foreseen |
//! |---|---|---|---|
//! | get, 2 | 57, 92 | 1.1, 1.9 | 0.2, 0.6 |
//! | find, 2 | 174, 83 | 1.3, 1.9 | 0.4, 0.0 |
//! | find, 10 | 597, 85 | 5.3, 2.6 | 1.1, 0.0 |
//! | get + create + delete, 2 | 282, 372 | 2.4, 3.8 | 0.8, 1.1 |
//! | get + create + delete, 10 | 758, 420 | 8.2, 7.0 | 4.2, 3.3 |
//!
//! - With 2,000 pairs, which a core's own caches hold, the three operations take 0.37 of the time of the shards. With
//!   100,000 they are bound by waiting: each has two lines to wait for that are in no cache of its own, as that of
//!   the shards has. What the processor does meanwhile is bounded by the instructions that it can hold (some 450),
//!   and by branches that turn out otherwise than foreseen when the line has come. Before pairs had a home
//!   (`corewalk_mbcache`'s index) they took as many instructions as those of the shards, and 1.1 of the time; with
//!   three quarters of the instructions it is 0.84 (both beside builds that kept the machine busy; the rows are from a quiet one).
//! - What the shards do not do that this cache does:
//!   (a) A quarter of the keys share their bucket, and of those half of the pairs stand in a second line: an eighth
//!   of the looks end in a branch that was not foreseen, and a second line to wait for. The shards' table goes on in
//!   the group of 16 that it has already.
//!   (b) Two values of a key take 64 bytes, with a state and a generation each; there 32, with one length. 50,000 keys
//!   are 3.2 MB against 2.1 MB, of 1 MB that a core holds.
//!   (c) To delete is a locked instruction on the pair's own line, which has to wait for that; there the locked ones
//!   (6 to our 2) are on 64 lines that are near. That is what different keys share nothing for (G.7).
//! - Of the three operations 1.55 lines are missed also by a second level of 1 MiB (as cachegrind has it, two values per
//!   key), of those of the shards 0.90. Where those misses end decides: loads that wait for each other, over as many
//!   lines, took 17 ns each with the third level at hand and 150 ns while others filled it. Ours took 0.6 to 0.7 of
//!   the time of the shards in the first case and 0.8 to 0.9 in the second, beside builds.
//! - Each pair touches one line if it is at home, and an eighth of them two: no list, no counter and no word of
//!   accounting. So there is nothing to put together. Tried, each in turns with the same without it: to ask
//!   for the line as soon as the hash is known gains 0 to 2 % (the next call is on its way anyway); both locked
//!   instructions replaced by stores, which is wrong, gain no more than 3 %; with 10 MiB instead of 16, and so fewer
//!   buckets, it takes a tenth more, since more keys share one, with 24 MiB a fiftieth less. To pick the line of a
//!   pair by arithmetic, so that no branch can be wrong, takes a get 1.1 to 1.4 of the time. To look at the same place of
//!   the second line before the walk takes as many instructions as the walk (295 and 293 with the loop). To ask for both
//!   lines of an operation before it begins, which only a caller could do, gains 5 %.
//! - With 25,000 pairs, whose lines fit into the core's own megabyte, the three operations take 26 ns and those of the shards
//!   61, with 6,400 pairs 20 and 56; with 100,000 each of the 1.55 lines that are missed costs 15 to 20 ns more. Entries have
//!   four words, as the design allows, and the maps 21 bytes per pair: so theirs are missed less often, and when the
//!   third level is taken by others (the same code, with a neighbour at work) ours takes as long as theirs.
//! - Two keys with two values each do not fit in a line: a pair would have less than two words, since the line needs
//!   some, and value and state are two without the key. The state cannot be shared or cut: its generation is what
//!   lets a reader and a deletion do without a lock. Nor would many fewer lines be touched: there are as many buckets
//!   as the budget has room for, and three keys of four fall into one of their own.
//! - A prototype of lines with two keys of two values each, 202 instructions with the loop, without handles,
//!   generations, reclaim or an order of values, took 0.5 to 0.6: what a second layout could gain at most.
//! - A find counts a user of the entry and takes it off again: two locked instructions on the line that it
//!   has just had to wait for; and it looks for the newest, with three times the instructions of a get. That of
//!   the maps copies a value under a lock, which may be freed before the caller looks at it: they would need
//!   another answer to trap T34.
//! - With 10 values a find of ours looks at all 5 lines for the newest, so that a loop over the values goes
//!   on where it was whatever moves meanwhile (G.3 of the crate); the maps take the last of a vector.
//!
//! What the maps do not do: keep within a budget of bytes, drop what was not used, say what is in use, wait
//! for it.
//!
//! # What it drops
//! Reclaim, waiting, and values at their cap: those are tests of the crate. The designs before are in table
//! `xattr`.
//!
//! # Checks
//! Every answer is compared with what is there; and nothing was dropped.
//!
//! Source: document 004 (Kara, December 2015).

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, shape, sized};
use crate::crew::{self, Measure, Slice};
use crate::lane::Rng;
use crate::pairs::{Dash, Locked, Ours, Pairs, Shards};
use crate::samples::{Params, Row, Samples};

/// The variant that all are compared with.
const BASELINE: &str = "mutex-shards";
/// Who is measured.
#[cfg(test)]
const VARIANTS: [&str; 4] = ["corewalk", BASELINE, "rwlock-ahash", "dashmap"];
/// Values per key.
const VALUES: [u64; 2] = [2, 10];
/// What the three operations may take of the time of the baseline.
const MOST: f64 = 0.6;

/// The table.
pub(super) struct MbcacheTable;

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Get,
    Find,
    All,
}

/// What is measured with one set of parameters.
struct Cell {
    op: Op,
    values: u64,
    pairs: u64,
    threads: usize,
}

impl Table for MbcacheTable {
    fn text(&self) -> &'static Text {
        &Text {
            name: "mbcache",
            source: "the operations under document 004's benchmark (Kara, December 2015): 100,000 pairs",
            about: "a cache from keys to values: get, find, and get + create + delete",
            claim: "With few values per key, to get, create and delete a pair takes three fifths of what a map in 64 shards takes.",
            plot: Plot {
                x: "threads",
                metric: "ops_per_s",
                at: &[("op", "get+create+delete"), ("values", "2")],
                headline: "1",
            },
        }
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let cells = VALUES.into_iter().flat_map(|values| [1, 2].map(|threads| (values, threads)));
        let claim = |(values, threads)| {
            let params = params(Op::All, values, threads);
            let ratio = shape::ratio(rows, "corewalk", "ns_per_op", &params);
            let words =
                format!("get + create + delete over 64 shards, {values} values, {threads} threads");
            Claim::at_most(&words, ratio, MOST)
        };
        cells.map(claim).collect()
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = Op::ALL.len() * threads(settings).len();
        vec![Grid::new(settings, cells, 4, 0.25); VALUES.len()]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let pairs = sized(settings.size, (4_000, 100_000));
        let mut samples = Samples::default();
        for (values, grid) in VALUES.into_iter().zip(self.grids(settings)) {
            let keys = (pairs / values) as usize;
            let ours = Ours::new()?;
            let (shards, locked, dash) = (Shards::new(keys), Locked::new(keys), Dash::new(keys));
            let variants: [(&str, Measure<'_, Cell>); 4] = [
                variant(&ours, (pairs, values)),
                variant(&shards, (pairs, values)),
                variant(&locked, (pairs, values)),
                variant(&dash, (pairs, values)),
            ];
            let cell = |op| {
                threads(settings).into_iter().map(move |threads| Cell {
                    op,
                    values,
                    pairs,
                    threads,
                })
            };
            let cells: Vec<Cell> = Op::ALL.into_iter().flat_map(cell).collect();
            rounds.each(&grid, (&cells, variants.len()), |visit| {
                let (name, measure) = &variants[visit.at];
                let slice = measure(visit.cell, grid.slice);
                let params = Params::from(params(visit.cell.op, values, visit.cell.threads));
                slice.add_to(&mut samples, visit.round, name, &params, BASELINE)
            })?;
            ensure!(ours.dropped() == 0, "corewalk dropped entries under its budget");
        }
        samples.add_scaling(|_, _| true);
        Ok(samples)
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} values={} threads={}", self.op.name(), self.values, self.threads)
    }
}

impl Op {
    const ALL: [Op; 3] = [Op::Get, Op::Find, Op::All];

    fn name(self) -> &'static str {
        match self {
            Op::Get => "get",
            Op::Find => "find",
            Op::All => "get+create+delete",
        }
    }
}

/// Returns the numbers of threads that can share the values of a key out evenly; one if there is none.
fn threads(settings: &Settings) -> Vec<usize> {
    let is_even = |threads: &usize| VALUES.iter().all(|values| values % *threads as u64 == 0);
    let even: Vec<usize> = settings.threads.iter().copied().filter(is_even).collect();
    if even.is_empty() { vec![1] } else { even }
}

fn params(op: Op, values: u64, threads: usize) -> [(&'static str, Value); 3] {
    [("op", op.name().into()), ("values", values.into()), ("threads", threads.into())]
}

/// Returns the key of a pair; its value is its number.
#[inline]
fn key(number: u64, values: u64) -> u64 {
    (number / values).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Enters all pairs, and returns who is measured.
fn variant<P: Pairs>(pairs: &P, (count, values): (u64, u64)) -> (&str, Measure<'_, Cell>) {
    for number in 0..count {
        assert!(pairs.create(key(number, values), number), "{}: it is empty", pairs.variant());
    }
    (pairs.variant(), Box::new(move |cell, time| slice(pairs, cell, time)))
}

/// Runs one slice.
fn slice<P: Pairs>(pairs: &P, cell: &Cell, time: Duration) -> Slice {
    let (values, threads) = (cell.values, cell.threads as u64);
    let key = |number| key(number, values);
    crew::run(cell.threads, time, |thread, turn| {
        let mut rng = Rng(thread as u64 + 1);
        let own = cell.pairs / threads;
        let mut any = move || rng.below(own) * threads + thread as u64;
        // Even keys stay, pairs of odd ones come and go.
        let stays = move |number: u64| number - if number / values % 2 == 1 { values } else { 0 };
        let goes = move |number: u64| number + if number / values % 2 == 1 { 0 } else { values };
        let mut missing = goes(thread as u64);
        match cell.op {
            Op::Get => turn.run(|_| {
                let number = any();
                pairs.get(key(number), number)
            }),
            Op::Find => turn.run(|_| {
                let number = any();
                pairs.find(key(number)).is_some_and(|found| key(found) == key(number))
            }),
            Op::All => {
                assert!(pairs.delete(key(missing), missing), "{}", pairs.variant());
                let laps = turn.run(|_| {
                    let (got, gone) = (stays(any()), goes(any()));
                    let is_right = pairs.get(key(got), got) && pairs.create(key(missing), missing);
                    missing = gone;
                    is_right && pairs.delete(key(gone), gone)
                });
                assert!(pairs.create(key(missing), missing), "{}", pairs.variant());
                laps
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_operation_and_variant() {
        let cells: Vec<_> = Op::ALL
            .into_iter()
            .flat_map(|op| VALUES.into_iter().map(move |values| (op, values)))
            .flat_map(|(op, values)| [1, 2].map(|threads| params(op, values, threads).to_vec()))
            .collect();
        let rows = quick::check(&MbcacheTable, &VARIANTS, &cells);
        let claims: Vec<String> = MbcacheTable.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(
            claims.len() == 4 && claims.iter().all(|claim| claim.contains("held (x")),
            "{claims:?}"
        );
    }

    #[test]
    fn pair_that_is_missing_is_a_wrong_answer() {
        let shards = Shards::new(100);
        let (_, measure) = variant(&shards, (200, 2));
        let cell = Cell { op: Op::Get, values: 2, pairs: 200, threads: 1 };
        assert!(measure(&cell, Duration::from_millis(1)).check("shards").is_ok());
        assert!((0..100).all(|number| shards.delete(key(number, 2), number)));
        assert!(measure(&cell, Duration::from_millis(5)).check("shards").is_err());
    }
}
