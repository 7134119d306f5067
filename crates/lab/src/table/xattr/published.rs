//! What document 004 published, beside what was measured here.
//!
//! Units: seconds in which each process sets 50,000 attributes; averages of five runs. The machine had
//! 24 processors and 64 GB of memory, the file system was on a ramdisk. The figures of a cell are in the
//! order of [`super::VARIANTS`], where the document's own proposal, the referenced bit, stands in the
//! place of `corewalk`. Where a figure is missing the machine "just dies due to softlockups".
//!
//! Source: document 004 (Kara, "ext\[24\]: MBCache rewrite", December 2015).

use std::fmt::Write as _;

use super::{BASELINE, Cell, RUNS, SETS, Store, VARIANTS, seconds};
use crate::samples::{Metric, Params, Row, Samples};
use crate::table::shape;

/// Processes, as the columns of the document have them.
const PROCESSES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Runs that each of its figures is the average of.
const DOCUMENT_RUNS: usize = 5;
/// The designs, as rows name them: the fourth is the document's own, not that of this project.
const DESIGNS: [&str; 5] =
    ["before-mbcache", "plain-lru", "lru-per-shard", "referenced-bit", BASELINE];
/// Not measured.
const NA: f64 = f64::NAN;

/// A line of the document's table.
struct Line {
    values: usize,
    files: usize,
    /// Seconds by number of processes, then by design.
    seconds: [[f64; 5]; 7],
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
    for line in &PUBLISHED {
        let _ = writeln!(out, "V={} F={}", line.values, line.files);
        for (processes, published) in PROCESSES.into_iter().zip(line.seconds) {
            let published = published.map(|value| match value.is_nan() {
                true => String::from("N/A"),
                false => format!("{value:.3}"),
            });
            let _ = writeln!(out, "  P={processes:<2} document {}", published.join(", "));
            for store in [Store::Memory, Store::Disk] {
                let cell = Cell { store, processes, files: line.files, values: line.values };
                if let Some(here) = here(rows, &cell) {
                    let _ = writeln!(out, "       {:<8} {here}", store.name());
                }
            }
        }
    }
    out
}

/// Adds the document's table as rows, for those who read them: of a `store` of their own.
pub(super) fn add_to(samples: &mut Samples) {
    for line in &PUBLISHED {
        for (processes, published) in PROCESSES.into_iter().zip(line.seconds) {
            let cell =
                Cell { store: Store::Document, processes, files: line.files, values: line.values };
            let mut params = Params::from(cell.params());
            params.insert(RUNS, DOCUMENT_RUNS.into());
            for (variant, seconds) in DESIGNS.into_iter().zip(published) {
                if !seconds.is_nan() {
                    samples.add(0, variant, &params, (Metric::Seconds, seconds), BASELINE);
                }
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

/// The document's table. That one of its figures is near a constant of mathematics is chance.
#[allow(clippy::approx_constant)]
#[rustfmt::skip]
const PUBLISHED: [Line; 15] = [
    Line { values: 10, files: 10, seconds: [
        [0.158, 0.157, 0.209, 0.155, 0.135],
        [0.208, 0.196, 0.263, 0.229, 0.154],
        [0.500, 0.277, 0.364, 0.305, 0.176],
        [0.798, 0.400, 0.380, 0.384, 0.237],
        [3.258, 0.584, 0.593, 0.664, 0.500],
        [13.807, 1.047, 1.029, 1.100, 0.986],
        [61.339, 2.803, 3.615, 2.994, 1.799],
    ] },
    Line { values: 10, files: 100, seconds: [
        [0.172, 0.167, 0.161, 0.185, 0.126],
        [0.279, 0.222, 0.244, 0.222, 0.156],
        [0.520, 0.275, 0.275, 0.273, 0.199],
        [0.825, 0.341, 0.408, 0.333, 0.217],
        [2.981, 0.505, 0.523, 0.523, 0.315],
        [12.022, 1.202, 1.210, 1.125, 1.293],
        [44.641, 2.943, 2.869, 3.337, 13.056],
    ] },
    Line { values: 10, files: 1000, seconds: [
        [0.185, 0.174, 0.187, 0.153, 0.160],
        [0.297, 0.239, 0.247, 0.227, 0.176],
        [0.445, 0.283, 0.276, 0.272, 0.957],
        [0.767, 0.340, 0.357, 0.324, 1.975],
        [2.329, 0.480, 0.498, 0.476, 5.391],
        [6.342, 1.198, 1.235, 1.204, 8.283],
        [16.440, 3.888, 3.817, 3.896, 17.878],
    ] },
    Line { values: 100, files: 10, seconds: [
        [0.162, 0.153, 0.180, 0.126, 0.126],
        [0.200, 0.186, 0.241, 0.165, 0.154],
        [0.362, 0.257, 0.313, 0.208, 0.181],
        [0.671, 0.496, 0.422, 0.379, 0.194],
        [1.433, 0.943, 0.773, 0.676, 0.570],
        [3.801, 1.345, 1.353, 1.221, 1.021],
        [7.938, 2.501, 2.700, 2.484, 1.790],
    ] },
    Line { values: 100, files: 100, seconds: [
        [0.153, 0.160, 0.164, 0.130, 0.144],
        [0.221, 0.199, 0.232, 0.217, 0.166],
        [0.404, 0.264, 0.300, 0.270, 0.180],
        [0.945, 0.379, 0.400, 0.322, 0.240],
        [1.556, 0.485, 0.512, 0.496, 0.339],
        [3.761, 1.156, 1.214, 1.197, 1.301],
        [7.901, 2.484, 2.508, 2.526, 13.039],
    ] },
    Line { values: 100, files: 1000, seconds: [
        [0.215, 0.191, 0.205, 0.212, 0.156],
        [0.303, 0.246, 0.246, 0.247, 0.182],
        [0.471, 0.288, 0.305, 0.300, 0.896],
        [0.960, 0.347, 0.375, 0.347, 1.892],
        [1.647, 0.479, 0.530, 0.509, 4.744],
        [3.916, 1.176, 1.288, 1.205, 8.300],
        [8.058, 3.160, 3.232, 3.200, 17.616],
    ] },
    Line { values: 1000, files: 10, seconds: [
        [0.151, 0.129, 0.179, 0.160, 0.130],
        [0.210, 0.163, 0.248, 0.193, 0.155],
        [0.326, 0.245, 0.313, 0.204, 0.191],
        [0.685, 0.521, 0.493, 0.365, 0.210],
        [1.284, 0.859, 0.772, 0.613, 0.389],
        [3.087, 2.251, 1.307, 1.745, 0.896],
        [6.451, 4.801, 2.693, 3.736, 1.806],
    ] },
    Line { values: 1000, files: 100, seconds: [
        [0.154, 0.153, 0.156, 0.159, 0.120],
        [0.211, 0.191, 0.232, 0.194, 0.158],
        [0.276, 0.282, 0.286, 0.228, 0.170],
        [0.687, 0.506, 0.496, 0.400, 0.259],
        [1.202, 0.877, 0.712, 0.632, 0.326],
        [3.259, 1.954, 1.564, 1.336, 1.255],
        [8.738, 2.887, 14.421, 3.111, 13.175],
    ] },
    Line { values: 1000, files: 1000, seconds: [
        [0.145, 0.179, 0.184, 0.175, 0.156],
        [0.202, 0.222, 0.218, 0.220, 0.174],
        [0.449, 0.319, 0.836, 0.276, 0.965],
        [0.899, 0.333, 0.793, 0.353, 2.002],
        [1.577, 0.524, 0.529, 0.523, 4.676],
        [4.221, 1.240, 1.280, 1.281, 8.371],
        [9.782, 3.579, 3.605, 3.585, 17.425],
    ] },
    Line { values: 10000, files: 10, seconds: [
        [0.161, 0.154, 0.204, 0.158, 0.137],
        [0.198, 0.190, 0.271, 0.190, 0.153],
        [0.296, 0.256, 0.340, 0.229, 0.164],
        [0.662, 0.480, 0.475, 0.368, 0.239],
        [1.192, 0.818, 0.785, 0.646, 0.349],
        [2.989, 2.200, 1.237, 1.725, 0.961],
        [6.362, 4.746, 2.666, 3.718, 1.793],
    ] },
    Line { values: 10000, files: 100, seconds: [
        [0.176, 0.174, 0.136, 0.155, 0.123],
        [0.236, 0.203, 0.202, 0.188, 0.165],
        [0.326, 0.255, 0.267, 0.241, 0.182],
        [0.696, 0.511, 0.415, 0.387, 0.213],
        [1.183, 0.855, 0.679, 0.689, 0.330],
        [4.205, 3.444, 1.444, 2.760, 1.249],
        [19.510, 17.760, 15.203, 17.387, 12.828],
    ] },
    Line { values: 10000, files: 1000, seconds: [
        [0.199, 0.183, 0.183, 0.183, 0.164],
        [0.240, 0.227, 0.225, 0.226, 0.179],
        [1.159, 1.014, 1.014, 1.036, 0.985],
        [2.286, 2.154, 1.987, 2.019, 1.997],
        [6.023, 6.039, 6.594, 5.657, 5.069],
        [NA, 10.933, 9.272, 10.382, 8.305],
        [NA, 36.620, 27.886, 36.165, 17.683],
    ] },
    Line { values: 100000, files: 10, seconds: [
        [0.171, 0.162, 0.220, 0.163, 0.143],
        [0.204, 0.198, 0.272, 0.192, 0.154],
        [0.285, 0.230, 0.318, 0.218, 0.172],
        [0.692, 0.500, 0.505, 0.367, 0.210],
        [1.225, 0.881, 0.827, 0.687, 0.338],
        [2.990, 2.243, 1.266, 1.696, 0.942],
        [6.379, 4.771, 2.609, 3.722, 1.778],
    ] },
    Line { values: 100000, files: 100, seconds: [
        [0.151, 0.171, 0.176, 0.171, 0.153],
        [0.220, 0.210, 0.226, 0.201, 0.167],
        [0.295, 0.255, 0.265, 0.242, 0.175],
        [0.720, 0.518, 0.417, 0.387, 0.221],
        [1.226, 0.844, 0.689, 0.672, 0.343],
        [3.423, 2.831, 1.392, 2.370, 1.354],
        [19.234, 17.544, 15.419, 16.700, 13.172],
    ] },
    Line { values: 100000, files: 1000, seconds: [
        [0.192, 0.189, 0.188, 0.184, 0.164],
        [0.249, 0.225, 0.223, 0.218, 0.178],
        [1.162, 1.043, 1.031, 1.024, 1.003],
        [2.257, 2.093, 2.180, 2.004, 1.960],
        [5.853, 4.997, 6.143, 5.315, 5.350],
        [NA, 10.399, 8.578, 9.190, 8.309],
        [NA, 32.198, 19.465, 19.194, 17.210],
    ] },
];

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
        let all = PUBLISHED.iter().flat_map(|line| line.seconds).flatten();
        let sum: f64 = all.filter(|value| !value.is_nan()).sum();
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
