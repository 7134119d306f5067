//! What is claimed of corewalk in the table `xattr`.
//!
//! Times are wall times, as in the document; a factor is the median over the rounds, each against its
//! own baseline. A claim about every cell holds if it holds in the worst, which is named, with how many
//! cells are on the right side.

use super::{BASELINE, BLOCK_BYTES, Store, VARIANTS};
use crate::blocks::USERS_MAX;
use crate::samples::Row;
use crate::table::Claim;
use crate::text::with_names;

/// The most that sharing in memory may take of the time without it.
const IN_MEMORY_MAX: f64 = 1.15;
/// How many times as fast as the design before it is to be with the most processes.
const OVER_BEFORE_MIN: f64 = 5.0;
/// The designs of the document.
const OF_DOCUMENT: &[&str] = VARIANTS.split_at(3).0;

/// Which side of a bound a factor has to be on.
#[derive(Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
}

/// Returns the claims.
pub(super) fn of(rows: &[Row]) -> Vec<Claim> {
    let ours: Vec<&Row> = rates(rows, Store::Memory.name(), "corewalk").collect();
    // Both are held against the same baseline in the same rounds.
    let over = |row: &Row, variant: &str| {
        let mut theirs = rates(rows, Store::Memory.name(), variant);
        let theirs = theirs.find(|other| other.params == row.params)?;
        Some(row.ratio? / theirs.ratio?)
    };
    let time = ours.iter().filter_map(|row| Some((1.0 / row.ratio?, *row))).collect();
    let best = ours.iter().filter_map(|row| {
        let factors = OF_DOCUMENT.iter().filter_map(|variant| over(row, variant));
        Some((factors.min_by(f64::total_cmp)?, *row))
    });
    let processes = |row: &Row| row.params["processes"].as_u64();
    let most = ours.iter().filter_map(|row| processes(row)).max();
    let crowded = ours.iter().filter(|row| processes(row) == most);
    let before = crowded.filter_map(|row| Some((over(row, OF_DOCUMENT[0])?, *row))).collect();
    vec![
        in_every_cell(
            "in memory, the time of corewalk over that of off",
            time,
            Bound::Most(IN_MEMORY_MAX),
        ),
        in_every_cell(
            "in memory, corewalk over the design before with the most processes",
            before,
            Bound::Least(OVER_BEFORE_MIN),
        ),
        in_every_cell(
            "in memory, corewalk over the best of the document's designs",
            best.collect(),
            Bound::Least(1.0),
        ),
        space(rows),
    ]
}

/// Returns the rates of a variant.
fn rates<'a>(rows: &'a [Row], store: &'a str, variant: &'a str) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(move |row| {
        row.variant == variant
            && row.metric == "ops_per_s"
            && row.params.get("store").is_some_and(|is| is == store)
    })
}

fn in_every_cell(words: &str, factors: Vec<(f64, &Row)>, bound: Bound) -> Claim {
    let (sense, words) = match bound {
        Bound::Least(least) => (1.0, format!("{words}, at least x{least} in every cell")),
        Bound::Most(most) => (-1.0, format!("{words}, at most x{most} in every cell")),
    };
    let is_right = |factor: f64| match bound {
        Bound::Least(least) => factor >= least,
        Bound::Most(most) => factor <= most,
    };
    let worst = factors.iter().min_by(|a, b| (sense * a.0).total_cmp(&(sense * b.0)));
    let Some((factor, row)) = worst else { return Claim::of(words, None, String::new()) };
    let right = factors.iter().filter(|(factor, _)| is_right(*factor)).count();
    let mut params = row.params.clone();
    params.remove("store");
    let (of, place) = (factors.len(), with_names(&params));
    Claim::of(words, Some(right == of), format!("x{factor:.2} at {place}; {right} of {of} cells"))
}

/// Returns the claim that 1000 files of 10 values take a block per value and 1024 users.
fn space(rows: &[Row]) -> Claim {
    let (files, values) = (1000, 10);
    let of = |row: &&Row| {
        let is = |key: &str, value: u64| row.params.get(key).is_some_and(|is| *is == value);
        row.metric == "bytes_per_entry" && is("files", files) && is("values", values)
    };
    let mut figures = vec![];
    let mut is_held = None;
    for row in rows.iter().filter(of).filter(|row| row.params["store"] == Store::Memory.name()) {
        let processes = row.params["processes"].as_u64().unwrap_or(1);
        let blocks = row.median * (processes * files) as f64 / BLOCK_BYTES as f64;
        if row.variant == "corewalk" {
            // A value has a share of the users that varies; this is the share without variance.
            let users = (processes * files).div_ceil(values);
            let least = values * users.div_ceil(u64::from(USERS_MAX));
            is_held = Some(is_held.unwrap_or(true) && blocks <= least as f64 + 0.5);
        }
        if ["corewalk", BASELINE].contains(&&row.variant[..]) {
            figures.push(format!("{} {blocks:.0} blocks with P={processes}", row.variant));
        }
    }
    let words = format!("F={files} V={values} takes {values} blocks per {USERS_MAX} users of each");
    Claim::of(words, is_held, figures.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Metric, Params, Samples};
    use crate::table::xattr::Cell;

    /// Returns rows in which corewalk has these rates, and blocks, with one process and with two.
    fn rows(ours: [f64; 2], blocks: u64) -> Vec<Row> {
        let mut samples = Samples::default();
        for (processes, ours) in [1, 2].into_iter().zip(ours) {
            let cell = Cell { store: Store::Memory, processes, files: 1000, values: 10 };
            let params = Params::from(cell.params());
            for (variant, rate) in VARIANTS.into_iter().zip([10.0, 60.0, 70.0, ours, 100.0]) {
                samples.add(0, variant, &params, (Metric::OpsPerSecond, rate), BASELINE);
            }
            let bytes = cell.bytes_per_file(blocks * BLOCK_BYTES as u64);
            samples.add(0, "corewalk", &params, bytes, BASELINE);
        }
        samples.rows()
    }

    fn words(ours: [f64; 2], blocks: u64) -> Vec<&'static str> {
        of(&rows(ours, blocks)).iter().map(Claim::word).collect()
    }

    #[test]
    fn claims_hold_in_the_worst_cell_or_not_at_all() {
        assert_eq!(words([90.0, 90.0], 10), ["held"; 4]);
        assert_eq!(words([90.0, 80.0], 10), ["not-held", "held", "held", "held"]);
        assert_eq!(words([65.0, 90.0], 11), ["not-held", "held", "not-held", "not-held"]);
        assert_eq!(words([90.0, 45.0], 10), ["not-held", "not-held", "not-held", "held"]);
        assert!(of(&[]).iter().all(|claim| claim.word() == "not-measured"));
        let line = of(&rows([90.0, 80.0], 10))[0].to_string();
        assert!(
            line.ends_with("not held (x1.25 at files=1000 processes=2 values=10; 1 of 2 cells)"),
            "{line}"
        );
    }
}
