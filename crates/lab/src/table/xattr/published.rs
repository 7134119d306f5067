//! The figures of document 004, beside the rows.
//!
//! Units: seconds in which each process sets 50,000 attributes; averages of five runs. The machine
//! had 24 processors and 64 GB of memory, and the file system was on a ramdisk. The figures of a
//! cell are in the order of [`super::VARIANTS`]; the document's own proposal, the referenced bit,
//! stands in the place of `corewalk`. Where a figure is missing the machine "just dies due to
//! softlockups".
//!
//! Source: document 004 (Kara, "ext\[24\]: MBCache rewrite", December 2015).

use std::fmt::Write as _;

use super::{BASELINE, Cell, RUNS, SETS, Store, VARIANTS, seconds};
use crate::samples::{Metric, Params, Row, Samples};
use crate::table::{Published, shape};

/// Runs that each of its figures is the average of.
const DOCUMENT_RUNS: usize = 5;
/// The designs, as rows name them: the fourth is the document's own, not that of this project.
const DESIGNS: [&str; 5] =
    ["before-mbcache", "plain-lru", "lru-per-shard", "referenced-bit", BASELINE];
/// The document's table: a line per values, files and processes, with the seconds of the five
/// designs.
const PUBLISHED: &str = include_str!("published.txt");

/// Returns the cells of the document's table, each with the seconds of the designs.
fn published() -> impl Iterator<Item = (Cell, [Option<f64>; 5])> {
    let lines = PUBLISHED.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let mut words = line.split(' ');
        let mut count = || words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        let (values, files, processes) = (count(), count(), count());
        let cell = Cell { store: Store::Document, processes, files, values };
        (cell, std::array::from_fn(|_| words.next().and_then(|word| word.parse().ok())))
    })
}

/// Returns the document's table, with what the rows have of it in the lines below.
pub(super) fn footer(rows: &[Row]) -> String {
    let mut out = format!(
        "Document 004, 24 processors, ext4 on a ramdisk: seconds for {SETS} sets by each process,\n\
         averages of {DOCUMENT_RUNS} runs; below it here, for as many sets, in memory and in a store on a\n\
         disk: average (lowest .. highest) of the runs.\n\
         In this order: {}\n",
        VARIANTS.join(", ")
    );
    for (cell, published) in published() {
        let Cell { processes, files, values, .. } = cell;
        if processes == 1 {
            let _ = writeln!(out, "V={values} F={files}");
        }
        let published = published.map(|seconds| {
            seconds.map_or_else(|| String::from("N/A"), |seconds| format!("{seconds:.3}"))
        });
        let _ = writeln!(out, "  P={processes:<2} document {}", published.join(", "));
        for store in [Store::Memory, Store::Disk] {
            if let Some(here) = here(rows, &Cell { store, ..cell.clone() }) {
                let _ = writeln!(out, "       {:<8} {here}", store.name());
            }
        }
    }
    out
}

/// Returns the curves of the document for so many files and values: sets per second of all
/// processes.
pub(super) fn curves((files, values): (usize, usize)) -> Published {
    let curve = |(at, name): (usize, &&'static str)| {
        let of = published().filter(|(cell, _)| (cell.files, cell.values) == (files, values));
        let point = |(cell, seconds): (Cell, [Option<f64>; 5])| {
            let processes = cell.processes as f64;
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
        let mut params = Params::from(cell.params());
        params.insert(RUNS, DOCUMENT_RUNS.into());
        for (variant, seconds) in DESIGNS.into_iter().zip(published) {
            if let Some(seconds) = seconds {
                samples.add(0, variant, &params, (Metric::Seconds, seconds), BASELINE);
            }
        }
    }
}

/// Returns true for a row of the document's table.
pub(super) fn is_of_document(row: &Row) -> bool {
    row.params.get("store").is_some_and(|store| store == Store::Document.name())
}

/// Returns what was measured in a cell.
fn here(rows: &[Row], cell: &Cell) -> Option<String> {
    let each = VARIANTS.map(|variant| {
        let is_average = |row: &&Row| {
            row.variant == variant
                && row.metric == "seconds"
                && row.params.contains_key(RUNS)
                && cell.is_of(row)
        };
        let average = rows.iter().find(is_average)?.median;
        let rate = shape::find(rows, variant, "ops_per_s", &cell.params())?;
        let seconds = |rate| seconds(cell.processes, rate);
        Some(format!("{average:.3} ({:.3} .. {:.3})", seconds(rate.max), seconds(rate.min)))
    });
    let each: Option<Vec<String>> = each.into_iter().collect();
    each.map(|each| each.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_document_is_printed() {
        let footer = footer(&[]);
        assert_eq!(footer.matches(" document ").count(), 7 * 15);
        assert!(footer.contains("  P=1  document 0.158, 0.157, 0.209, 0.155, 0.135"), "{footer}");
        assert!(footer.contains("  P=64 document N/A, 32.198, 19.465, 19.194, 17.210"), "{footer}");
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
        assert!(rows.iter().all(is_of_document));
        let sum: f64 = rows.iter().map(|row| row.median).sum();
        assert!((sum - SUM).abs() < 1e-6, "{sum}");
    }

    const SUM: f64 = 1253.333;
}
