//! The figures that Kara published in 2015, beside the rows.
//!
//! Units: seconds in which each process sets 50,000 attributes, as means of five runs. The machine
//! had 24 processors and 64 GB of memory, and the file system was on a ramdisk.
//!
//! For each set of parameters there are five figures, one per design of mbcache. The fourth is the
//! design that Kara proposes (document 004 in `documents.md`). `corewalk`, which Kara did not
//! measure, has that place in [`super::VARIANTS`]. A figure is missing where the machine "just dies
//! due to softlockups".
//!
//! Source: Kara, "ext\[24\]: MBCache rewrite", December 2015 (document 004 in `documents.md`).

use super::{BASELINE, DOCUMENT, RUNS, cell};
use crate::table::prelude::*;

/// Runs that each of its figures is the average of.
const DOCUMENT_RUNS: usize = 5;
/// The five designs of mbcache that Kara measured (document 004 in `documents.md`), by their names
/// in the result rows. The fourth is the one that he proposes.
const DESIGNS: [&str; 5] =
    ["before-mbcache", "plain-lru", "lru-per-shard", "referenced-bit", BASELINE];

/// Returns the figures that Kara has published (document 004 in `documents.md`): for each set of
/// parameters, the seconds that each of the five designs took. They are in the field `note` of
/// `words.json`, a line per set.
fn published() -> impl Iterator<Item = (Cell, [Option<f64>; 5])> {
    let lines = super::TABLE.words().note.iter().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let mut words = line.split(' ');
        let mut count = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let (values, files, processes) = (count(), count(), count());
        let cell = cell(DOCUMENT, [processes, files, values]);
        (cell, std::array::from_fn(|_| words.next().and_then(|word| word.parse().ok())))
    })
}

/// Adds the document's table as rows with `store=document`.
pub(super) fn add_to(samples: &mut Samples) {
    for (cell, published) in published() {
        let params = cell.with(RUNS, DOCUMENT_RUNS).0;
        for (variant, seconds) in DESIGNS.into_iter().zip(published) {
            if let Some(seconds) = seconds {
                samples.add(0, variant, &params, (Metric::SECONDS, seconds), BASELINE);
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
