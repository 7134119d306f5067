//! The claims of the table `xattr`.
//!
//! A claim is a sentence that the result rows confirm or refute. Its figures are factors, such as
//! the time of corewalk over that of the baseline. Times are wall times, as in Kara's measurement
//! (document 004 in `documents.md`). A factor is the median over the rounds, each compared with the
//! baseline of the same round.
//!
//! Most claims must hold for every set of parameters (cell). The text of such a claim names the
//! worst cell, and the number of cells in which it holds.

use super::space::{BY_STATISTICS, COUNTED, ON_DISK};
use super::{BASELINE, BLOCK_BYTES, DISK, MEMORY, TMPFS, VARIANTS};
use crate::blocks::USERS_MAX;
use crate::table::prelude::*;
use std::ops::BitAnd;

/// In memory and in a tmpfs, setting attributes with sharing may take at most this many times the
/// time without sharing.
const IN_MEMORY_MAX: f64 = 1.15;
/// On a disk, setting attributes with sharing may take at most this many times the time without
/// sharing.
const ON_DISK_MAX: f64 = 1.05;
/// With at most this many attribute values, sharing of equal blocks must make a store on disk
/// faster, since most changes need no new block.
const FEW_VALUES: u64 = 100;
/// With the largest number of processes, corewalk must set this many times as many attributes per
/// second as `before-mbcache`.
const OVER_BEFORE_MIN: f64 = 5.0;
/// The growth of the database without sharing of equal blocks, over the growth with sharing, must
/// be at least this. Most of the growth with sharing is records of inodes.
const DISK_SHARE: f64 = 5.0;
/// The designs of the document.
const OF_DOCUMENT: &[&str] = VARIANTS.split_at(3).0;

/// Returns the claims.
pub(super) fn of(rows: &[Row]) -> Vec<Claim> {
    let mut claims = of_store(rows, DISK, "on a disk", ON_DISK_MAX);
    let words = "in a tmpfs, which shares late, the time of corewalk over that of off";
    let late = times(&rates(rows, TMPFS));
    claims.push(Claim::in_every_cell(words, &late, Bound::Most(IN_MEMORY_MAX)));
    claims.extend(of_store(rows, MEMORY, "in memory", IN_MEMORY_MAX));
    claims.extend([space(rows, MEMORY), space(rows, DISK), on_disk(rows)]);
    claims
}

/// Returns the claims of one kind of store, which `place` names.
fn of_store(rows: &[Row], store: &str, place: &str, time_max: f64) -> Vec<Claim> {
    let ours = rates(rows, store);
    // Both are held against the same baseline in the same rounds.
    let over =
        |row: &Row, variant: &str| Some(row.ratio? / shape::of_variant(rows, row, variant)?.ratio?);
    let few = ours.iter().filter(|(_, row)| number(row, "values") <= FEW_VALUES);
    let most = ours.iter().map(|(_, row)| number(row, "processes")).max();
    let crowded = ours.iter().filter(|(_, row)| Some(number(row, "processes")) == most);
    let before = crowded.filter_map(|(_, row)| Some((over(row, OF_DOCUMENT[0])?, *row)));
    let best = ours.iter().filter_map(|(_, row)| {
        let factors = OF_DOCUMENT.iter().filter_map(|variant| over(row, variant));
        Some((factors.min_by(f64::total_cmp)?, *row))
    });
    let claim = |words: &str, factors: Vec<(f64, &Row)>, bound| {
        Claim::in_every_cell(&format!("{place}, {words}"), &factors, bound)
    };
    let words = "the time of corewalk over that of off";
    let mut claims = vec![claim(words, times(&ours), Bound::Most(time_max))];
    if store == DISK {
        let words = format!("corewalk over off with {FEW_VALUES} values and fewer");
        claims.push(claim(&words, few.copied().collect(), Bound::Least(1.0)));
    }
    let words = "corewalk over the design before with the most processes";
    claims.push(claim(words, before.collect(), Bound::Least(OVER_BEFORE_MIN)));
    let words = "corewalk over the best of the document's designs";
    claims.push(claim(words, best.collect(), Bound::Least(1.0)));
    claims
}

/// Returns the throughput of corewalk over that of the baseline, for each result row of the store
/// `store`.
fn rates<'a>(rows: &'a [Row], store: &str) -> Vec<(f64, &'a Row)> {
    shape::rates(rows, |params| params["store"] == store)
}

/// Returns the times that belong to such rates.
fn times<'a>(rates: &[(f64, &'a Row)]) -> Vec<(f64, &'a Row)> {
    rates.iter().map(|(ratio, row)| (1.0 / ratio, *row)).collect()
}

/// Returns a parameter that is a number.
fn number(row: &Row, key: &str) -> u64 {
    row.params[key].as_u64().unwrap_or(1)
}

/// Returns the number of files, the number of attribute blocks that they use, and the least number
/// that they need. Assumes that each attribute value belongs to the same number of files.
fn blocks(row: &Row) -> (u64, f64, f64) {
    let (files, values) = (number(row, "processes") * number(row, "files"), number(row, "values"));
    // Each file has a random attribute value, so use the mean number of files per value.
    let least = values * files.div_ceil(values).div_ceil(u64::from(USERS_MAX));
    (files, row.median * files as f64 / BLOCK_BYTES as f64, least as f64)
}

/// Returns the claim that corewalk uses the least possible number of attribute blocks, with 1000
/// files per process and 10 attribute values. Each value needs one block for each 1024 files.
fn space(rows: &[Row], store: &str) -> Claim {
    let of = |row: &&Row| {
        row.metric == "bytes_per_entry"
            && row.params["store"] == store
            && !row.params.contains_key(COUNTED)
            && (number(row, "files"), number(row, "values")) == (1000, 10)
            && ["corewalk", BASELINE].contains(&&row.variant[..])
    };
    let rows: Vec<&Row> = rows.iter().filter(of).collect();
    let is_small =
        |row: &&Row| (row.variant == "corewalk").then(|| blocks(row).1 <= blocks(row).2 + 0.5);
    let figure = |row: &&Row| {
        let (variant, processes) = (&row.variant, number(row, "processes"));
        format!("{variant} {:.0} blocks with P={processes}", blocks(row).1)
    };
    let words =
        format!("F=1000 V=10, store={store}, takes 10 blocks per {USERS_MAX} users of each");
    Claim::of(words, rows.iter().filter_map(is_small).reduce(BitAnd::bitand), listed(&rows, figure))
}

/// Returns the claim about stores on disk: the least possible number of blocks, and a database that
/// grows at most 1/[`DISK_SHARE`] as much as without sharing.
fn on_disk(rows: &[Row]) -> Claim {
    let counted = |row: &Row, how: &str| row.params.get(COUNTED).is_some_and(|is| is == how);
    // Finds the row with the size of the database of `variant`, for the same numbers of files and
    // attribute values as in `row`.
    let database = |row: &Row, variant: &str| {
        rows.iter().find(|other| {
            other.variant == variant
                && counted(other, ON_DISK)
                && ["files", "values"].iter().all(|key| other.params[key] == row.params[key])
        })
    };
    let by_statistics = rows.iter().filter(|row| counted(row, BY_STATISTICS));
    let pairs = by_statistics.filter_map(|row| Some(row).zip(database(row, &row.variant)));
    let pairs: Vec<(&Row, &Row)> = pairs.collect();
    let is_right = |(row, on_disk): &(&Row, &Row)| {
        let (_, blocks, least) = blocks(row);
        let is_small = |off: &Row| on_disk.median * DISK_SHARE <= off.median;
        (row.variant == "corewalk")
            .then(|| (blocks - least).abs() < 0.5 && database(row, BASELINE).is_none_or(is_small))
    };
    let figure = |(row, on_disk): &(&Row, &Row)| {
        let (files, blocks, _) = blocks(row);
        let (variant, values) = (&row.variant, number(row, "values"));
        let megabytes = on_disk.median * files as f64 / 1e6;
        format!(
            "{variant} F={files} V={values}: {blocks:.0} blocks, {megabytes:.2} MB more on the disk"
        )
    };
    let words = format!(
        "a store has as many blocks as that by its statistics, and takes at most 1/{DISK_SHARE} of \
         the bytes on the disk that it takes without sharing"
    );
    Claim::of(
        words,
        pairs.iter().filter_map(is_right).reduce(BitAnd::bitand),
        listed(&pairs, figure),
    )
}

/// Returns the figures of all rows in one line.
fn listed<T>(rows: &[T], figure: impl Fn(&T) -> String) -> String {
    rows.iter().map(figure).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Metric, Samples};
    use crate::table::xattr::{bytes_per_file, cell};

    /// Returns the result rows of all variants for one process and for two. `ours` has the
    /// throughput of corewalk with one process and with two. `blocks` is the number of attribute
    /// blocks that corewalk uses.
    fn rows(store: &str, ours: [f64; 2], blocks: u64) -> Vec<Row> {
        let mut samples = Samples::default();
        for (processes, ours) in [1, 2].into_iter().zip(ours) {
            let cell = cell(store, [processes, 1000, 10]);
            let params = &cell.0;
            for (variant, rate) in VARIANTS.into_iter().zip([10.0, 60.0, 70.0, ours, 100.0]) {
                samples.add(0, variant, params, (Metric::OPS_PER_SECOND, rate), BASELINE);
            }
            let bytes = bytes_per_file(&cell, blocks * BLOCK_BYTES as u64);
            samples.add(0, "corewalk", params, bytes, BASELINE);
        }
        samples.rows()
    }

    fn words(store: &str, ours: [f64; 2], blocks: u64) -> Vec<&'static str> {
        let words: Vec<_> = of(&rows(store, ours, blocks)).iter().map(Claim::word).collect();
        match store {
            // `of` returns 11 claims. Eight are about speed: four on disk, one in a tmpfs, three in
            // memory. Three are about space: blocks in memory, blocks on disk, size of the
            // database.
            DISK => [&words[..4], &words[9..10]].concat(),
            _ => words[5..9].to_vec(),
        }
    }

    #[test]
    fn claims_in_memory_hold_in_the_worst_cell_or_not_at_all() {
        let words = |ours, blocks| words(MEMORY, ours, blocks);
        assert_eq!(words([90.0, 90.0], 10), ["held"; 4]);
        assert_eq!(words([90.0, 80.0], 10), ["not-held", "held", "held", "held"]);
        assert_eq!(words([65.0, 90.0], 11), ["not-held", "held", "not-held", "not-held"]);
        assert_eq!(words([90.0, 45.0], 10), ["not-held", "not-held", "not-held", "held"]);
        assert!(of(&[]).iter().all(|claim| claim.word() == "not-measured"));
        let line = of(&rows(MEMORY, [90.0, 80.0], 10))[5].to_string();
        assert!(
            line.ends_with(
                "not held (x1.25 at files=1000 processes=2 store=memory values=10; 1 of 2 cells)"
            ),
            "{line}"
        );
    }

    #[test]
    fn claims_on_a_disk_are_stricter() {
        let words = |ours, blocks| words(DISK, ours, blocks);
        assert_eq!(words([101.0, 101.0], 10), ["held"; 5]);
        assert_eq!(words([101.0, 96.0], 10), ["held", "not-held", "held", "held", "held"]);
        assert_eq!(words([101.0, 94.0], 10), ["not-held", "not-held", "held", "held", "held"]);
        assert_eq!(words([69.0, 40.0], 11), ["not-held"; 5]);
    }

    #[test]
    fn bytes_on_the_disk_are_held_against_those_without_sharing() {
        let word = |blocks: u64, bytes: u64| {
            let mut samples = Samples::default();
            let cell = cell(DISK, [1, 4000, 1]);
            let all = [
                ("corewalk", BY_STATISTICS, blocks * BLOCK_BYTES as u64),
                ("corewalk", ON_DISK, bytes),
                (BASELINE, BY_STATISTICS, 4000 * BLOCK_BYTES as u64),
                (BASELINE, ON_DISK, 5000 * BLOCK_BYTES as u64),
            ];
            for (variant, counted, bytes) in all {
                let params = cell.with(COUNTED, counted).0;
                samples.add(0, variant, &params, bytes_per_file(&cell, bytes), BASELINE);
            }
            of(&samples.rows()).last().unwrap().word()
        };
        assert_eq!(word(4, 1 << 20), "held");
        assert_eq!(word(5, 1 << 20), "not-held");
        assert_eq!(word(4, 16 << 20), "not-held");
    }
}
