//! Benchmark table `mbcache`: the single operations of a de-duplication index.
//!
//! Kara's rewrite of mbcache (document 004 in `documents.md`) publishes only the time of a whole
//! file-system benchmark. This table measures single calls of the cache, on 100,000 pairs of a key
//! and a value. Units: operations per second of wall time, all threads together, and nanoseconds of
//! processor time per operation.
//!
//! - `op=get`: checks whether a pair (a key and a value) exists, which it always does.
//! - `op=find`: returns a value of a key; in `corewalk` under a reference of the entry.
//! - `op=get+create+delete`: gets one pair, creates another one, and deletes a third one.
//! - `values`: the number of values per key.
//!
//! Each thread has its own values for each key. `get+create+delete` gets pairs that are never
//! deleted. In `corewalk` only the first get of a pair stores: it sets the referenced bit.
//!
//! # The claim
//! In `corewalk` `get+create+delete` takes at most 0.6 of the time that it takes in `mutex-shards`,
//! with one thread and with two.
//!
//! # Where the time goes
//! - A find of `corewalk` takes and drops a reference: two atomic operations on the cache line of
//!   the entry. A find of `mutex-shards` copies a value out of a hash table under a lock. Another
//!   thread may free that value before the caller uses it (trap T34 in `traps.md`).
//! - A deletion in `corewalk` is an atomic operation on the cache line of the pair, which the core
//!   must fetch first. That is the price for separate cache lines of different keys (guarantee G.7
//!   of `corewalk-mbcache`). The locks of `mutex-shards` stay in the core's own cache.
//! - A pair of `corewalk` takes 32 bytes, with state and generation. A pair of `mutex-shards` takes
//!   21 bytes, so it is more often in the core's own cache.
//!
//! The hash tables of `mutex-shards` have no byte budget, drop no entries, and do not know which
//! entry is in use.
//!
//! # Not measured
//! Reclaim, waiting, and values that have their maximum number of users. The table `xattr` compares
//! the designs that Kara measured.
//!
//! # Checks
//! Every answer is compared with the right one. The cache must drop no entry.
//!
//! Source: Kara, December 2015 (document 004 in `documents.md`).

use super::prelude::*;
use crate::pairs::{Pairs, Shards};
use corewalk_mbcache::{Mbcache, MbcacheOptions};

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "mutex-shards";
/// Values per key.
const VALUES: [u64; 2] = [2, 10];
/// The operations. The claim is about the last one.
const OPS: [&str; 3] = ["get", "find", "get+create+delete"];

/// The table.
pub(super) const TABLE: Table = Table { name: "mbcache", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    // Threads share the values of a key equally.
    let is_even = |threads| VALUES.iter().all(|values| values % threads as u64 == 0);
    let of_key = |of_key| {
        let threads = values(&settings.threads_where(is_even));
        cells(&[("op", values(&OPS)), ("values", values(&[of_key])), ("threads", threads)])
    };
    VALUES.map(|values| Sweep::new(of_key(values), 2, BASELINE, 0.25)).into()
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let pairs = sized(run.settings.size, (4_000, 100_000));
    for (values, sweep) in VALUES.into_iter().zip(&run.sweeps) {
        let (ours, shards) =
            (Mbcache::new(MbcacheOptions::default())?, Shards::new((pairs / values) as usize));
        let variants = [variant(&ours, pairs, values), variant(&shards, pairs, values)];
        run.measure(sweep, &variants, samples)?;
        ensure!(ours.stats().reclaimed == 0, "corewalk dropped entries under its budget");
    }
    samples.add_scaling(|_, _| true);
    Ok(())
}

/// Returns the key of a pair. The value of the pair is its number.
#[inline]
fn key(number: u64, values: u64) -> u64 {
    (number / values).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Enters all pairs, and returns the variant.
fn variant<P: Pairs>(pairs: &P, count: u64, values: u64) -> (&str, Measure<'_>) {
    for number in 0..count {
        assert!(pairs.create(key(number, values), number), "{}: it is empty", pairs.variant());
    }
    (pairs.variant(), Box::new(move |cell, time| Ok(slice(pairs, cell, count, time))))
}

/// Runs one slice over `count` pairs.
fn slice<P: Pairs>(pairs: &P, cell: &Cell, count: u64, time: Duration) -> Slice {
    let (values, threads) = (cell.number("values") as u64, cell.number("threads") as u64);
    let key = |number| key(number, values);
    crew::run(threads as usize, time, |thread, turn| {
        let mut rng = Rng::with_seed(thread as u64 + 1);
        let own = count / threads;
        let mut any = move || rng.u64(..own) * threads + thread as u64;
        // Pairs with even key numbers stay. Pairs with odd ones are created and deleted.
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
        let sweeps = sweeps(&quick::settings());
        let cells: Vec<Cell> = sweeps.into_iter().flat_map(|sweep| sweep.cells).collect();
        let rows = quick::check(&TABLE, &["corewalk", BASELINE], &quick::params(&cells));
        let claims = quick::claims(&TABLE, &rows);
        assert!(
            claims.len() == 4 && claims.iter().all(|claim| claim.contains("held (x")),
            "{claims:?}"
        );
    }

    #[test]
    fn pair_that_is_missing_is_a_wrong_answer() {
        let shards = Shards::new(100);
        let (_, measure) = variant(&shards, 200, 2);
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
