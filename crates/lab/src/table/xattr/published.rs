//! The figures of document 004, beside the rows.
//!
//! Units: seconds in which each process sets 50,000 attributes; averages of five runs. The machine
//! had 24 processors and 64 GB of memory, and the file system was on a ramdisk. The figures of a
//! cell are in the order of [`super::VARIANTS`]; the document's own proposal, the referenced bit,
//! stands in the place of `corewalk`. Where a figure is missing the machine "just dies due to
//! softlockups".
//!
//! Source: document 004 (Kara, "ext\[24\]: MBCache rewrite", December 2015).

use super::{BASELINE, DOCUMENT, RUNS, SETS, cell};
use crate::samples::{Cell, Metric, Samples};
use crate::table::Published;

/// Runs that each of its figures is the average of.
const DOCUMENT_RUNS: usize = 5;
/// The designs, as rows name them: the fourth is the document's own, not that of this project.
const DESIGNS: [&str; 5] =
    ["before-mbcache", "plain-lru", "lru-per-shard", "referenced-bit", BASELINE];
/// The document's table: a line per values, files and processes, with the seconds of the five
/// designs.
pub(super) const TABLE: &str = include_str!("published.txt");

/// Returns the cells of the document's table, each with the seconds of the designs.
fn published() -> impl Iterator<Item = (Cell, [Option<f64>; 5])> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let mut words = line.split(' ');
        let mut count = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let (values, files, processes) = (count(), count(), count());
        let cell = cell(DOCUMENT, [processes, files, values]);
        (cell, std::array::from_fn(|_| words.next().and_then(|word| word.parse().ok())))
    })
}

/// Returns the curves of the document for so many files and values: sets per second of all
/// processes.
pub(super) fn curves((files, values): (usize, usize)) -> Published {
    let curve = |(at, name): (usize, &&'static str)| {
        let is_it = |cell: &Cell| (cell.number("files"), cell.number("values")) == (files, values);
        let of = published().filter(|(cell, _)| is_it(cell));
        let point = |(cell, seconds): (Cell, [Option<f64>; 5])| {
            let processes = cell.number("processes") as f64;
            Some((processes, SETS as f64 * processes / seconds[at]?))
        };
        (*name, of.filter_map(point).collect())
    };
    Published {
        x: "processes, 24 processors",
        unit: "sets per second",
        curves: DESIGNS.iter().enumerate().map(curve).collect(),
    }
}

/// Adds the document's table as rows, for those who read them: of a `store` of their own.
pub(super) fn add_to(samples: &mut Samples) {
    for (cell, published) in published() {
        let params = cell.with(RUNS, DOCUMENT_RUNS).0;
        for (variant, seconds) in DESIGNS.into_iter().zip(published) {
            if let Some(seconds) = seconds {
                samples.add(0, variant, &params, (Metric::Seconds, seconds), BASELINE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_document_is_read() {
        assert_eq!(published().count(), 7 * 15);
        // The sum over all cells, from the document's text.
        let sum: f64 = published().flat_map(|(_, seconds)| seconds).flatten().sum();
        assert!((sum - SUM).abs() < 1e-6, "{sum}");
    }

    #[test]
    fn document_is_in_rows_of_its_own() {
        let mut samples = Samples::default();
        add_to(&mut samples);
        let rows = samples.rows();
        assert_eq!(rows.len(), 15 * 7 * 5 - 4, "4 figures are N/A");
        assert!(rows.iter().all(|row| row.params["store"] == DOCUMENT));
        let sum: f64 = rows.iter().map(|row| row.median).sum();
        assert!((sum - SUM).abs() < 1e-6, "{sum}");
    }

    const SUM: f64 = 1253.333;
}
