//! Benchmark table `xattr`: costs and savings of an index of shared attribute blocks.
//!
//! Source: Kara's rewrite of mbcache, December 2015 (document 004 in `documents.md`), and its
//! program xattr-bench. A *set* gives a file a new value of its extended attribute. Units: sets per
//! second of wall time, all processes together; processor time per set; bytes of blocks per file at
//! the end. Kara gives the seconds for 50,000 sets by each process, as the mean of the runs.
//!
//! # What the document measured
//! P processes set the attribute of F files each, 50,000 times, to a random one of V values. The
//! file system was ext4 on a ramdisk, and the machine had 24 processors. There were five designs of
//! mbcache. Kara's figures are below the rows.
//!
//! # Parameters, in Kara's measurement and here
//! - P, the processes: Kara has 1, 2, 4 ... 64 on 24 processors, this table `--threads`. 1, 2 and 4
//!   on two processors are as crowded as 12, 24 and 48 there.
//! - F, the files per process: Kara has 10, 100 and 1000, and so has this table in memory.
//!   Elsewhere it has 100 and 1000, to save time.
//! - V, the different attribute values: Kara has 10 ... 100,000, this table up to 10,000 in memory
//!   and up to 1,000 elsewhere. With more values, equal values are rare.
//! - Changes of a value: Kara has 50,000 per process, this table up to 50,000 on disk. In memory it
//!   runs for a fixed time.
//! - Runs: Kara has 5, this table 7, and 21 on disk and in a tmpfs.
//!
//! A value has 3,900 bytes, so with its name it fills a block. corewalk compares all these bytes
//! before it shares a block, which is a disadvantage. It hashes only samples of them.
//!
//! The values of the parameter `store`:
//! - `memory`: blocks in memory (`blocks::memory`), with one allocation and copy per block.
//! - `tmpfs`: a `corewalk::tmpfs`. Its variant `corewalk` shares equal blocks, except those of
//!   attributes that change again and again. Its variant `off` does not share.
//! - `disk`: a `corewalk_store::Store` in the host's tmpfs (`run`), with each design of the index.
//!
//! # Checks
//! At the end of each time slice every file must have its last value. The user counts of all blocks
//! and the index entries must agree with the files. At the end `fsck` checks each store on disk.
//!
//! # Claims
//! A claim about speed must hold for every set of parameters, even if other processes disturbed it.
//! `space` measures the bytes on disk.

mod run;
mod space;

use super::prelude::*;
use crate::blocks::BLOCK_BYTES;
use corewalk_base::Mutex;

/// The variants, in the order of the document.
const VARIANTS: [&str; 5] = ["before-mbcache", "plain-lru", "lru-per-shard", "corewalk", BASELINE];
/// The baseline, with which all other variants are compared.
const BASELINE: &str = "off";
/// The kinds of stores, in the order of their measurement.
const KINDS: [&str; 3] = [MEMORY, TMPFS, DISK];
const MEMORY: &str = "memory";
const TMPFS: &str = "tmpfs";
const DISK: &str = "disk";
/// Bytes of a value.
const VALUE_BYTES: usize = 3_900;
/// The attribute values from which all processes draw.
struct Pool(Vec<u8>);

/// The random choices of one process.
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
    sweeps: |settings| KINDS.map(|kind| run::sweep(settings, kind)).into(),
    run,
};

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let cells = run.sweeps.iter().flat_map(|sweep| &sweep.cells);
    let pool = Pool::draw(cells.map(|cell| cell.number("values")).max().unwrap_or(1));
    for sweep in &run.sweeps {
        run::run(run, sweep, &pool, samples)?;
    }
    space::run(run.settings, &pool, samples)
}

/// Returns the set of parameters with this kind of store, and with these numbers of processes,
/// files per process, and attribute values.
fn cell(store: &str, [processes, files, values]: [usize; 3]) -> Cell {
    let cell = Cell::default().with("store", store).with("processes", processes);
    cell.with("files", files).with("values", values)
}

/// Returns the mean bytes per file for one set of parameters. `bytes` is the sum over all files.
fn bytes_per_file(cell: &Cell, bytes: u64) -> (Metric, f64) {
    let files = cell.number("processes") * cell.number("files");
    (Metric::BYTES_PER_ENTRY, bytes as f64 / files as f64)
}

impl Pool {
    /// Draws `values` random values, each different from all others.
    fn draw(values: usize) -> Pool {
        let mut rng = Rng::with_seed(0x5eed_0004);
        let mut bytes = vec![0; values * VALUE_BYTES];
        for (number, value) in bytes.chunks_exact_mut(VALUE_BYTES).enumerate() {
            for word in value.chunks_mut(8) {
                let drawn = rng.u64(..u64::MAX).to_le_bytes();
                word.copy_from_slice(&drawn[..word.len()]);
            }
            value[VALUE_BYTES - 8..].copy_from_slice(&(number as u64).to_le_bytes());
        }
        Pool(bytes)
    }

    fn value(&self, number: usize) -> &[u8] {
        &self.0[number * VALUE_BYTES..][..VALUE_BYTES]
    }
}

impl<'a> Draws<'a> {
    /// Returns the random choices of process number `worker`.
    fn new(pool: &'a Pool, cell: &Cell, worker: usize) -> Draws<'a> {
        let rng = Rng::with_seed(0x5eed_0040 + worker as u64);
        let (files, values) = (cell.number("files"), cell.number("values") as u64);
        Draws { pool, rng, files: files as u64, values, last: vec![0; files] }
    }

    /// Returns the random choices of each process of a cell.
    fn of_cell(pool: &'a Pool, cell: &Cell) -> Vec<Mutex<Draws<'a>>> {
        let draws = |worker| Mutex::new(Draws::new(pool, cell, worker));
        (0..cell.number("processes")).map(draws).collect()
    }

    /// Returns the next file and its value.
    fn next(&mut self) -> (usize, &'a [u8]) {
        let file = self.rng.u64(..self.files) as usize;
        (file, self.of(file))
    }

    /// Returns a value for a file.
    fn of(&mut self, file: usize) -> &'a [u8] {
        let number = self.rng.u64(..self.values) as usize;
        self.last[file] = number;
        self.pool.value(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            quick::row(&rows, variant, "bytes_per_entry", &params).unwrap().median
        };
        for variant in &VARIANTS[..4] {
            assert_eq!(bytes(variant, (1, 100, 10)), 409.6, "{variant}: 10 blocks for 100 files");
        }
        assert_eq!(bytes("off", (1, 100, 10)), 4096.0);
        for params in quick::params(&on_disk) {
            for metric in ["ops_per_s", "ns_per_op", "bytes_per_entry"] {
                let row = |variant: &&str| quick::row(&rows, variant, metric, &params);
                assert!(
                    VARIANTS.iter().all(|variant| row(variant).is_some()),
                    "{metric} {params:?}"
                );
            }
        }
        let claims = quick::claims(&TABLE, &rows);
        let measured = claims.iter().filter(|claim| claim.contains("held (x")).count();
        assert!(measured == 10, "{claims:?}");
    }

    #[test]
    fn values_are_different() {
        let pool = Pool::draw(300);
        let all: std::collections::BTreeSet<_> = (0..300).map(|at| pool.value(at)).collect();
        assert_eq!(all.len(), 300);
    }
}
