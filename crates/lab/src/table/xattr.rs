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

use corewalk_base::Mutex;

use super::engine::Cell;
use super::{Plot, Run, Table};
use crate::blocks::BLOCK_BYTES;
use crate::questions::Rng;
use crate::samples::{Metric, Samples};

/// The variants, in the order of the document.
const VARIANTS: [&str; 5] = ["before-mbcache", "plain-lru", "lru-per-shard", "corewalk", BASELINE];
/// The variant that all are compared with.
const BASELINE: &str = "off";
/// The kinds of stores, in the order in which they are measured.
const KINDS: [&str; 3] = [MEMORY, TMPFS, DISK];
const MEMORY: &str = "memory";
const TMPFS: &str = "tmpfs";
const DISK: &str = "disk";
/// The store of the document, whose figures are rows beside these.
const DOCUMENT: &str = "document";
/// Bytes of a value.
const VALUE_BYTES: usize = 3_900;
/// Sets of each process in the document.
const SETS: usize = 50_000;
/// The parameter of rows that are averages over so many runs.
const RUNS: &str = "averaged_runs";

/// Values to choose from, the same for all processes.
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

/// The table.
pub(super) const TABLE: Table = Table {
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
    published: || Some(published::curves((100, 100))),
    note: published::TABLE,
    is_in_note: |row| row.params.get("store").is_some_and(|store| store == DOCUMENT),
    claims: claims::of,
    sweeps: |settings| KINDS.map(|kind| run::sweep(settings, kind)).into(),
    run,
};

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let cells = run.sweeps.iter().flat_map(|sweep| &sweep.cells);
    let pool = Pool::draw(cells.map(|cell| cell.number("values")).max().unwrap_or(1));
    for sweep in &run.sweeps {
        run::run(run, sweep, &pool, samples)?;
    }
    space::run(run.settings, &pool, samples)?;
    published::add_to(samples);
    Ok(())
}

/// Returns the cell of so many processes, files of each, and values.
fn cell(store: &str, [processes, files, values]: [usize; 3]) -> Cell {
    let cell = Cell::default().with("store", store).with("processes", processes);
    cell.with("files", files).with("values", values)
}

/// Returns the bytes that each file of a cell takes of so many.
fn bytes_per_file(cell: &Cell, bytes: u64) -> (Metric, f64) {
    let files = cell.number("processes") * cell.number("files");
    (Metric::BytesPerEntry, bytes as f64 / files as f64)
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
        let (files, values) = (cell.number("files"), cell.number("values") as u64);
        Draws { pool, rng, files: files as u64, values, last: vec![0; files] }
    }

    /// Returns the draws of each process of a cell.
    fn of_cell(pool: &'a Pool, cell: &Cell) -> Vec<Mutex<Draws<'a>>> {
        let draws = |worker| Mutex::new(Draws::new(pool, cell, worker));
        (0..cell.number("processes")).map(draws).collect()
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
    use crate::samples::Row;
    use crate::table::Claim;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_cell_its_blocks_and_the_claims() {
        let settings = quick::settings();
        let [cells, on_disk] = [MEMORY, DISK].map(|kind| run::sweep(&settings, kind).cells);
        assert_eq!(cells.len(), 2 * 2 * settings.threads.len());
        let rows = quick::check(&TABLE, &VARIANTS, &quick::params(&cells));
        assert!(rows.iter().all(|row| row.baseline == BASELINE));
        let bytes = |variant, (processes, files, values)| {
            let params = quick::params(&[cell(MEMORY, [processes, files, values])]).remove(0);
            quick::row(&rows, (variant, "bytes_per_entry"), &params).unwrap().median
        };
        for variant in &VARIANTS[..4] {
            assert_eq!(bytes(variant, (1, 100, 10)), 409.6, "{variant}: 10 blocks for 100 files");
        }
        assert_eq!(bytes("off", (1, 100, 10)), 4096.0);
        for params in quick::params(&on_disk) {
            for metric in ["ops_per_s", "ns_per_op", "bytes_per_entry", "seconds"] {
                let row = |variant: &&str| quick::row(&rows, (variant, metric), &params);
                assert!(
                    VARIANTS.iter().all(|variant| row(variant).is_some()),
                    "{metric} {params:?}"
                );
            }
        }
        let of_memory = |row: &&Row| row.params["store"] == "memory";
        let averages = rows.iter().filter(of_memory).filter(|row| row.metric == "seconds").count();
        assert_eq!(averages, cells.len() * VARIANTS.len());
        let claims: Vec<String> = claims::of(&rows).iter().map(Claim::to_string).collect();
        let measured = claims.iter().filter(|claim| claim.contains("held (x")).count();
        assert!(measured == 8, "{claims:?}");
        assert!(rows.iter().any(|row| (TABLE.is_in_note)(row)));
    }

    #[test]
    fn values_are_different() {
        let pool = Pool::draw(300);
        let all: std::collections::BTreeSet<_> = (0..300).map(|at| pool.value(at)).collect();
        assert_eq!(all.len(), 300);
    }
}
