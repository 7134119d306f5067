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
//! # Claim
//! The three operations take at most 0.6 of the time of `mutex-shards`, with one thread and with
//! two.
//!
//! # Where the time goes
//! Counted by cachegrind with a program that is not in the tree: an explanation, and no result.
//! Each pair of figures is ours and that of `mutex-shards`, per operation.
//!
//! | operation, values per key | instructions | misses of the first level |
//! |---|---|---|
//! | get, 2 | 57, 92 | 1.1, 1.9 |
//! | find, 2 | 174, 83 | 1.3, 1.9 |
//! | find, 10 | 597, 85 | 5.3, 2.6 |
//! | get + create + delete, 2 | 282, 372 | 2.4, 3.8 |
//! | get + create + delete, 10 | 758, 420 | 8.2, 7.0 |
//!
//! A find counts a user of the entry with two locked instructions, and looks for the newest value.
//! A find of a map copies a value under a lock, and the value may be freed before the caller uses
//! it. The maps have no budget of bytes, drop nothing, and cannot tell which entry is in use.
//!
//! # Checks
//! Every answer is compared with the pairs; the cache must drop none.
//!
//! Source: document 004 (Kara, December 2015).

use std::time::Duration;

use super::bench::{Bench, Cell, Measure, cells, values};
use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, shape, sized};
use crate::crew::{self, Slice};
use crate::pairs::{Locked, Ours, Pairs, Shards};
use crate::questions::Rng;
use crate::samples::{Row, Samples};
use anyhow::ensure;

/// The variant that all are compared with.
const BASELINE: &str = "mutex-shards";
/// The variants.
#[cfg(test)]
const VARIANTS: [&str; 3] = ["corewalk", BASELINE, "rwlock-ahash"];
/// Values per key.
const VALUES: [u64; 2] = [2, 10];
/// The most that the three operations take of the time of the baseline.
const MOST: f64 = 0.6;

/// The table.
pub(super) struct MbcacheTable;

/// The operations; the last one is claimed.
const OPS: [&str; 3] = ["get", "find", "get+create+delete"];

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
        let claim = |(values, threads): (u64, u64)| {
            let params =
                [("op", OPS[2].into()), ("values", values.into()), ("threads", threads.into())];
            let ratio = shape::ratio(rows, "corewalk", "ns_per_op", &params);
            let words =
                format!("get + create + delete over 64 shards, {values} values, {threads} threads");
            Claim::at_most(&words, ratio, MOST)
        };
        cells.map(claim).collect()
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = all_cells(settings, VALUES[0]).len();
        vec![Grid::new(settings, cells, 3, 0.25); VALUES.len()]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let pairs = sized(settings.size, (4_000, 100_000));
        let mut samples = Samples::default();
        for (values, grid) in VALUES.into_iter().zip(self.grids(settings)) {
            let (keys, load) = ((pairs / values) as usize, (pairs, values));
            let (ours, shards, locked) = (Ours::new()?, Shards::new(keys), Locked::new(keys));
            let cells = &all_cells(settings, values);
            let (rounds, baseline) = (&rounds, BASELINE);
            let bench = Bench::new(rounds, grid, cells, baseline);
            let variants = [variant(&ours, load), variant(&shards, load), variant(&locked, load)];
            bench.run(&variants, &mut samples)?;
            ensure!(ours.dropped() == 0, "corewalk dropped entries under its budget");
        }
        samples.add_scaling(|_, _| true);
        Ok(samples)
    }
}

fn all_cells(settings: &Settings, of_key: u64) -> Vec<Cell> {
    let threads = values(&threads(settings));
    cells(&[("op", values(&OPS)), ("values", values(&[of_key])), ("threads", threads)])
}

/// Returns the numbers of threads that can share the values of a key out evenly; one if there is
/// none.
fn threads(settings: &Settings) -> Vec<usize> {
    let is_even = |threads: &usize| VALUES.iter().all(|values| values % *threads as u64 == 0);
    let even: Vec<usize> = settings.threads.iter().copied().filter(is_even).collect();
    if even.is_empty() { vec![1] } else { even }
}

/// Returns the key of a pair; its value is its number.
#[inline]
fn key(number: u64, values: u64) -> u64 {
    (number / values).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Enters all pairs, and returns the variant.
fn variant<P: Pairs>(pairs: &P, (count, values): (u64, u64)) -> (&str, Measure<'_>) {
    for number in 0..count {
        assert!(pairs.create(key(number, values), number), "{}: it is empty", pairs.variant());
    }
    (pairs.variant(), Box::new(move |cell, time| Ok(slice(pairs, (cell, count), time))))
}

/// Runs one slice over so many pairs.
fn slice<P: Pairs>(pairs: &P, (cell, count): (&Cell, u64), time: Duration) -> Slice {
    let (values, threads) = (cell.number("values") as u64, cell.number("threads") as u64);
    let key = |number| key(number, values);
    crew::run(threads as usize, time, |thread, turn| {
        let mut rng = Rng(thread as u64 + 1);
        let own = count / threads;
        let mut any = move || rng.below(own) * threads + thread as u64;
        // Even keys stay, pairs of odd ones come and go.
        let stays = move |number: u64| number - if number / values % 2 == 1 { values } else { 0 };
        let goes = move |number: u64| number + if number / values % 2 == 1 { 0 } else { values };
        let mut missing = goes(thread as u64);
        match cell.word("op") {
            "get" => turn.run(|_| {
                let number = any();
                pairs.get(key(number), number)
            }),
            "find" => turn.run(|_| {
                let number = any();
                pairs.find(key(number)).is_some_and(|found| key(found) == key(number))
            }),
            _ => {
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
        let cells: Vec<Cell> =
            VALUES.into_iter().flat_map(|values| all_cells(&quick::settings(), values)).collect();
        let rows = quick::check(&MbcacheTable, &VARIANTS, &quick::params(&cells));
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
        let cell = Cell::default().with("op", "get").with("values", 2).with("threads", 1);
        let is_right = |ms| {
            let slice = measure(&cell, Duration::from_millis(ms)).unwrap();
            slice.check("shards").is_ok()
        };
        assert!(is_right(1));
        assert!((0..100).all(|number| shards.delete(key(number, 2), number)));
        assert!(!is_right(5));
    }
}
