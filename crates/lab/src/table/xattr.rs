//! Table `xattr`: what an index of shared attribute blocks costs, and what it saves.
//!
//! Source: document 004 (Kara, December 2015), its program xattr-bench. Units: sets per second of
//! wall time, all processes together; processor time per set; bytes of blocks per file at the end;
//! and the document's own unit, seconds in which each process sets 50,000 attributes, as the
//! average of the runs.
//!
//! # What the document measured
//! P processes set the attribute of F files each to a value chosen at random from V, 50,000 times,
//! on ext4 on a ramdisk and 24 processors, with five designs of mbcache. Its figures stand below
//! the rows (`published`).
//!
//! # What is kept, and what is not
//! - P: document: 1, 2, 4 ... 64 on 24 processors; here: `--threads`; 1, 2, 4 on two processors are
//!   as crowded as 12, 24 and 48 there.
//! - F: document: 10, 100, 1000; here: the same in memory; on disk and in a tmpfs 100 and 1000, for
//!   time.
//! - V: document: 10 ... 100,000; here: in memory up to 10,000, elsewhere up to 1,000: beyond, few
//!   files have equal values.
//! - sets: document: 50,000 per process; here: in memory for the time of a slice; on disk at most
//!   50,000 per process; `seconds` is computed from the rate.
//! - runs: document: 5; here: 7, interleaved; on the disk and in a tmpfs 21.
//!
//! A value has 3,900 bytes: with its name it fills a block. So a store compares as much as it can,
//! which is to our disadvantage where sharing saves only a copy. Both stores hash samples of long
//! values.
//!
//! - `memory`: blocks of a store in memory (`blocks::memory`), one allocation and copy each.
//! - `tmpfs`: a `corewalk::tmpfs`, `corewalk` with sharing and `off` without: it shares late.
//! - `disk`: a `corewalk_store::Store` over each index, in a directory of the host's tmpfs (`run`).
//!
//! `fuse-metadata` has setxattr(2) on mounts.
//!
//! # Checks
//! At the end of each slice every file has its last value; the users of every block and the entries
//! of the index agree. In the end `fsck` checks each store on disk.
//!
//! # Claims
//! See `claims`: they hold for every cell. A cell that the machine's noise turned over counts like
//! any other. `space` has the bytes of attributes on disk.

mod claims;
mod published;
mod run;
mod space;

use std::fmt::{self, Display};

use corewalk_base::Mutex;
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Published, Settings, Table, Text};
use crate::blocks::BLOCK_BYTES;
use crate::questions::Rng;
use crate::samples::{Metric, Row, Samples};

/// The variants, in the order of the document.
const VARIANTS: [&str; 5] = ["before-mbcache", "plain-lru", "lru-per-shard", "corewalk", BASELINE];
/// The variant that all are compared with.
const BASELINE: &str = "off";
/// The kinds of stores, in the order in which they are measured.
const KINDS: [Store; 3] = [Store::Memory, Store::Tmpfs, Store::Disk];
/// Bytes of a value.
const VALUE_BYTES: usize = 3_900;
/// Sets of each process in the document.
const SETS: usize = 50_000;
/// The parameter of rows that are averages over so many runs.
const RUNS: &str = "averaged_runs";

/// The table.
pub(super) struct Xattr;

/// Where attributes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Memory,
    Disk,
    Tmpfs,
    /// The document's own, whose figures are kept beside these.
    Document,
}

/// One set of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Cell {
    store: Store,
    processes: usize,
    files: usize,
    values: usize,
}

/// Values to choose from, the same for everybody.
struct Pool {
    bytes: Vec<u8>,
}

/// The draws of one process.
struct Draws<'a> {
    pool: &'a Pool,
    rng: Rng,
    files: u64,
    values: u64,
    /// The value that each file was given last.
    last: Vec<usize>,
}

impl Table for Xattr {
    fn text(&self) -> &'static Text {
        &Text {
            name: "xattr",
            source: "xattr-bench of document 004 (Kara, December 2015), scaled",
            about: "processes that set attributes of few or many different values: five designs of mbcache",
            claim: "Sharing equal attribute blocks costs little where it saves nothing, and less than the designs before.",
            plot: Plot {
                x: "processes",
                metric: "ops_per_s",
                at: &[("store", "memory"), ("files", "100"), ("values", "100")],
                headline: "1",
            },
        }
    }

    fn published(&self) -> Option<Published> {
        Some(published::curves((100, 100)))
    }

    fn footer(&self, rows: &[Row]) -> String {
        published::footer(rows)
    }

    fn is_in_footer(&self, row: &Row) -> bool {
        published::is_of_document(row)
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        claims::of(rows)
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        KINDS.map(|kind| run::grid(settings, kind)).into()
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let cells = KINDS.iter().flat_map(|kind| run::cells(settings, *kind));
        let pool = Pool::draw(cells.map(|cell| cell.values).max().unwrap_or(1));
        let mut samples = Samples::default();
        for kind in KINDS {
            run::run(kind, (settings, &rounds), &pool, &mut samples)?;
        }
        space::run(settings, &pool, &mut samples)?;
        published::add_to(&mut samples);
        Ok(samples)
    }
}

impl Cell {
    fn params(&self) -> [(&'static str, Value); 4] {
        [
            ("store", self.store.name().into()),
            ("processes", self.processes.into()),
            ("files", self.files.into()),
            ("values", self.values.into()),
        ]
    }

    /// Returns true if `row` is of this cell.
    fn is_of(&self, row: &Row) -> bool {
        self.params().iter().all(|(key, value)| row.params.get(key) == Some(value))
    }

    fn bytes_per_file(&self, bytes: u64) -> (Metric, f64) {
        (Metric::BytesPerEntry, bytes as f64 / (self.processes * self.files) as f64)
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P={} F={} V={}", self.processes, self.files, self.values)
    }
}

impl Store {
    fn name(self) -> &'static str {
        match self {
            Store::Memory => "memory",
            Store::Disk => "disk",
            Store::Tmpfs => "tmpfs",
            Store::Document => "document",
        }
    }
}

impl Pool {
    /// Draws so many values, each of which differs from all others.
    fn draw(values: usize) -> Pool {
        let mut rng = Rng(0x5eed_0004);
        let mut bytes = vec![0; values * VALUE_BYTES];
        for (number, value) in bytes.chunks_exact_mut(VALUE_BYTES).enumerate() {
            for word in value.chunks_mut(8) {
                let drawn = rng.below(u64::MAX).to_le_bytes();
                word.copy_from_slice(&drawn[..word.len()]);
            }
            value[VALUE_BYTES - 8..].copy_from_slice(&(number as u64).to_le_bytes());
        }
        Pool { bytes }
    }

    fn value(&self, number: usize) -> &[u8] {
        &self.bytes[number * VALUE_BYTES..][..VALUE_BYTES]
    }
}

impl<'a> Draws<'a> {
    /// Returns the draws of process number `worker`.
    fn new(pool: &'a Pool, cell: &Cell, worker: usize) -> Draws<'a> {
        let rng = Rng(0x5eed_0040 + worker as u64);
        let (files, values) = (cell.files as u64, cell.values as u64);
        Draws { pool, rng, files, values, last: vec![0; cell.files] }
    }

    /// Returns the draws of each process of a cell.
    fn of_cell(pool: &'a Pool, cell: &Cell) -> Vec<Mutex<Draws<'a>>> {
        (0..cell.processes).map(|worker| Mutex::new(Draws::new(pool, cell, worker))).collect()
    }

    /// Returns the next file and its value.
    fn next(&mut self) -> (usize, &'a [u8]) {
        let file = self.rng.below(self.files) as usize;
        (file, self.of(file))
    }

    /// Returns a value for a file.
    fn of(&mut self, file: usize) -> &'a [u8] {
        let number = self.rng.below(self.values) as usize;
        self.last[file] = number;
        self.pool.value(number)
    }

    /// Returns each file with the value that it was given last.
    fn given(&self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self.last.iter().map(|&number| self.pool.value(number)).enumerate()
    }
}

/// Returns the seconds in which each of so many processes does what it did in the document, at a
/// rate of all together.
fn seconds(processes: usize, ops_per_s: f64) -> f64 {
    (SETS * processes) as f64 / ops_per_s.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_cell_its_blocks_and_the_claims() {
        let settings = quick::settings();
        let cells = run::cells(&settings, Store::Memory);
        assert_eq!(cells.len(), 2 * 2 * settings.threads.len());
        let params: Vec<_> = cells.iter().map(|cell| cell.params().to_vec()).collect();
        let rows = quick::check(&Xattr, &VARIANTS, &params);
        assert!(rows.iter().all(|row| row.baseline == BASELINE));
        let bytes = |variant, (processes, files, values)| {
            let cell = Cell { store: Store::Memory, processes, files, values };
            quick::row(&rows, (variant, "bytes_per_entry"), &cell.params()).unwrap().median
        };
        for variant in &VARIANTS[..4] {
            assert_eq!(bytes(variant, (1, 100, 10)), 409.6, "{variant}: 10 blocks for 100 files");
        }
        assert_eq!(bytes("off", (1, 100, 10)), 4096.0);
        for cell in run::cells(&settings, Store::Disk) {
            for metric in ["ops_per_s", "ns_per_op", "bytes_per_entry", "seconds"] {
                let row = |variant: &&str| quick::row(&rows, (variant, metric), &cell.params());
                assert!(VARIANTS.iter().all(|variant| row(variant).is_some()), "{metric} {cell}");
            }
        }
        let of_memory = |row: &&Row| row.params["store"] == "memory";
        let averages = rows.iter().filter(of_memory).filter(|row| row.metric == "seconds").count();
        assert_eq!(averages, cells.len() * VARIANTS.len());
        let claims: Vec<String> = Xattr.claims(&rows).iter().map(Claim::to_string).collect();
        let measured = claims.iter().filter(|claim| claim.contains("held (x")).count();
        assert!(measured == 8, "{claims:?}");
        let footer = Xattr.footer(&rows);
        assert_eq!(footer.matches("       memory   ").count(), cells.len(), "{footer}");
        assert_eq!(
            footer.matches("       disk     ").count(),
            run::cells(&settings, Store::Disk).len()
        );
        assert!(rows.iter().any(|row| Xattr.is_in_footer(row)));
    }

    #[test]
    fn values_are_different() {
        let pool = Pool::draw(300);
        let all: std::collections::BTreeSet<_> = (0..300).map(|at| pool.value(at)).collect();
        assert_eq!(all.len(), 300);
    }
}
