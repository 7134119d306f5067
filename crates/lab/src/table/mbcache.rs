//! Table `mbcache`: the operations of a cache from keys to values, one by one.
//!
//! Document 004 publishes only the time of a whole file-system benchmark. This table measures the
//! calls that its cache consists of, on 100,000 pairs. Units: operations per second of wall time,
//! all threads together, and nanoseconds of processor time per operation.
//!
//! - `op=get`: whether a pair is there, which it is.
//! - `op=find`: a value of a key; the find counts a user of the entry and releases it.
//! - `op=get+create+delete`: one operation that gets a pair, creates a second and deletes a third.
//! - `values`: values per key.
//!
//! Each thread has its own pairs, and all threads share each key. Pairs that come and go are not
//! the ones of a get, so the referenced bit is set in the rows with `get`.
//!
//! # The claim, as a shape
//! The three operations take at most 0.6 of the time of `mutex-shards`, with one thread and with
//! two.
//!
//! # Where the time goes
//! - A find takes a handle of the entry and puts it again: two atomic steps on the line of the
//!   entry. A find in the maps copies a value under a lock, and the value may be freed before the
//!   caller looks at it. The maps would need another answer to trap T34.
//! - A deletion is an atomic step on the line of the pair, and waits for that line. The maps take
//!   locks that stay in a core's own cache. This is the price of sharing no line between keys (G.7
//!   of the crate).
//! - A pair takes 32 bytes here, with a state and a generation; the maps take 21. So these lines
//!   are missed more often in a core's own cache.
//!
//! The maps have no budget of bytes, drop no entries, and cannot tell which entry is in use.
//!
//! # Not measured
//! Reclaim, waiting, and values with as many users as they may have: tests of the crate cover
//! these. The table `xattr` has the designs before.
//! # Checks
//! Every answer is compared with the pairs; the cache must drop none.
//!
//! Source: document 004 (Kara, December 2015).

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, shape, sized};
use crate::crew::{self, Measure, Slice};
use crate::pairs::{Dash, Locked, Ours, Pairs, Shards};
use crate::questions::Rng;
use crate::samples::{Params, Row, Samples};

/// The variant that all are compared with.
const BASELINE: &str = "mutex-shards";
/// The variants.
#[cfg(test)]
const VARIANTS: [&str; 4] = ["corewalk", BASELINE, "rwlock-ahash", "dashmap"];
/// Values per key.
const VALUES: [u64; 2] = [2, 10];
/// The most that the three operations take of the time of the baseline.
const MOST: f64 = 0.6;

/// The table.
pub(super) struct MbcacheTable;

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Get,
    Find,
    All,
}

/// One set of parameters.
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

/// Returns the numbers of threads that can share the values of a key out evenly; one if there is
/// none.
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
