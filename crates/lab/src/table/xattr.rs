//! Table `xattr`: what an index of shared attribute blocks costs, and what it saves.
//!
//! Source: document 004 (Kara, December 2015), its program xattr-bench. Units: sets per second of wall
//! time, all processes together; processor time per set; bytes of blocks per file at the end; and the
//! document's own unit, seconds in which each process sets 50,000 attributes, as the average of the runs.
//!
//! # What the document measured
//! P processes set the attribute of F files each to a value chosen at random from V, 50,000 times, on
//! ext4 on a ramdisk and 24 processors, with five designs of mbcache. Its figures stand below the rows
//! (`published`).
//!
//! # What is kept, and what is not
//! | | document | here |
//! |---|---|---|
//! | P | 1, 2, 4 ... 64 on 24 processors | what `--threads` says; 1, 2, 4, which on two processors is as crowded as 12, 24 and 48 there |
//! | F | 10, 100, 1000 | the same in memory; on disk and in a tmpfs 100 and 1000, for time; on mounts 10 and 1000 |
//! | V | 10 ... 100,000 | in memory up to 10,000: beyond, two files in a thousand have the same value anyway; elsewhere up to 1,000 |
//! | sets | 50,000 per process | in memory and on mounts for as long as a slice is, on the disk 50,000 per process (fewer where a slice is shorter than usual, or there are more than four); `seconds` is computed from the rate |
//! | runs | 5 | 7, interleaved; on the disk and in a tmpfs 21 |
//!
//! A value has 3,900 bytes: with its name it fills a block, so that it goes to a block of its own
//! wherever it is stored. That is the most that there can be to compare, which is to our disadvantage
//! where copying is all that is saved. (It was the most to hash as well, until both stores hashed samples
//! of long values.)
//!
//! In memory that is all that there is to save, and the worst cell over `off` is where many small sets of
//! files of several processes meet (files=10 processes=4 values=100, 1.7 to 2.0). Counted there, by
//! cachegrind, with a program that is not in the tree (an explanation, and no result), a set takes 1,400 to 1,470 instructions with an index and 1,012 without; 178 of them are the
//! hash of samples. By samples of the program counter the hash has 5 % of the time, the comparison of contents,
//! which another processor has written, 11 %, where copies and allocations take 24 % instead of 39 %; the rest
//! is the index and the locks of the two blocks, one of which somebody else had last. So it is not the hash any
//! more. On a disk the same sets took 5,415 instructions with an index and 4,847 without (processes=4
//! files=100 values=1000), 5,071 and 4,824 of one process, and 6,560 and 13,123 with files=1000, where blocks
//! that are shared need not be written, when the store shared each set at once and hashed those of `off` too. Since
//! then `off` hashes nothing, and `corewalk` shares late where that pays (`blocks::disk`), which the document's
//! designs do not. Processor time with processes=4 files=100 values=1000, paired, on a machine with much else to do,
//! by a program that is not in the tree: 1.65 of that of `off` at once, 1.08 late (when a file was private after 8 sets that had found a block; `late` in the store says when it is now). What is left is that each file is hashed,
//! looked for and compared once per commit, by the one who commits, and that its block was shared before.
//!
//! | `store` | where attributes are | who sets them |
//! |---|---|---|
//! | `memory` | blocks of a store in memory (`blocks::memory`), one allocation and copy each | threads |
//! | `tmpfs` | a `corewalk::tmpfs`, `corewalk` with sharing and `off` without: it shares late | threads |
//! | `disk` | a `corewalk_store::Store` with each index under it, in a directory of the host's tmpfs: values reach blocks of its database, and the commit is in the time (`xattr/disk`) | threads |
//! | `mount` | mounts: `linux` and `off` are ext4 with inodes of 128 bytes on a loop device in memory, without and with `no_mbcache`; `corewalk` is `corewalk mount tmpfs`, `corewalk-store` is `corewalk mount store:DIR` in memory as well | processes, by setxattr(2) |
//!
//! # Checks
//! At the end of each slice every file has what was set last; the users of every block and the entries
//! of the index add up. On mounts every attribute is read back. Stores on the disk are closed and checked
//! by `fsck` in the end.
//!
//! # Claims
//! Those of this project, in every cell: see `claims`. What attributes take on the disk: `xattr/space`. A cell that the machine's noise turned over counts
//! like any other.

mod claims;
mod disk;
mod mounts;
mod published;
mod space;
mod tmpfs;

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::ensure;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Published, Settings, Table, Text, sized};
use crate::before::mbcache::{ListPerShard, Lru, OneList, OneLock};
use crate::blocks::{AttrStore, BLOCK_BYTES, Corewalk, MemoryStore, Off};
use crate::crew::{self, Slice};
use crate::lane::Rng;
use crate::samples::{Metric, Params, Row, Samples};

/// Who is measured in memory, in the order of the document.
const VARIANTS: [&str; 5] = ["before-mbcache", "plain-lru", "lru-per-shard", "corewalk", BASELINE];
/// The variant that all are compared with.
const BASELINE: &str = "off";
/// Files of each process.
const FILES: (&[usize], &[usize]) = (&[10, 100], &[10, 100, 1000]);
/// Values to choose from.
const VALUES: (&[usize], &[usize]) = (&[10, 100], &[10, 100, 1000, 10_000]);
/// Bytes of a value.
pub(crate) const VALUE_BYTES: usize = 3_900;
/// Sets of each process in the document.
const SETS: usize = 50_000;
/// The share of the time per row that each row of this table gets: the grid is large.
const SHARE_OF_TIME: f64 = 0.2;
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
    Mount,
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
pub(crate) struct Pool {
    bytes: Vec<u8>,
}

/// The draws of one process.
pub(crate) struct Draws<'a> {
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
        let memory = cells(settings).len();
        let memory = Grid::new(settings, memory, VARIANTS.len(), SHARE_OF_TIME);
        vec![memory, tmpfs::grid(settings), disk::grid(settings), mounts::grid(settings)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let cells = cells(settings);
        let most = |each: fn(&Cell) -> usize| cells.iter().map(each).max().unwrap_or(1);
        let (processes, files) = (most(|cell| cell.processes), most(|cell| cell.files));
        let pool = Pool::draw(most(|cell| cell.values));
        let mut samples = Samples::default();
        let grid = self.grids(settings)[0];
        let stores = stores(processes, files)?;
        let mut sums = vec![0.0; cells.len() * stores.len()];
        rounds.each(&grid, (&cells, stores.len()), |visit| {
            let (store, cell) = (&*stores[visit.at], visit.cell);
            let (slice, blocks) = measure(store, &pool, cell, grid.slice)?;
            let params = Params::from(cell.params());
            slice.add_to(&mut samples, visit.round, store.variant(), &params, BASELINE)?;
            let bytes = cell.bytes_per_file(blocks * BLOCK_BYTES as u64);
            samples.add(visit.round, store.variant(), &params, bytes, BASELINE);
            let nth = cells.iter().position(|other| other == cell).unwrap_or(0);
            sums[nth * stores.len() + visit.at] += seconds(cell.processes, slice.ops_per_s);
            Ok(())
        })?;
        for (at, sum) in sums.iter().enumerate() {
            let (cell, store) = (&cells[at / stores.len()], &stores[at % stores.len()]);
            let mut params = Params::from(cell.params());
            params.insert(RUNS, settings.rounds.into());
            let average = (Metric::Seconds, sum / settings.rounds as f64);
            samples.add(0, store.variant(), &params, average, BASELINE);
        }
        drop(stores);
        tmpfs::run(settings, &rounds, &pool, &mut samples)?;
        disk::run(settings, &rounds, &pool, &mut samples)?;
        space::run(settings, &pool, &mut samples)?;
        mounts::run(settings, &rounds, &mut samples)?;
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
            Store::Mount => "mount",
            Store::Document => "document",
        }
    }
}

impl Pool {
    /// Draws so many values, each of which differs from all others.
    pub(crate) fn draw(values: usize) -> Pool {
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
    pub(crate) fn new(pool: &'a Pool, (files, values): (usize, usize), worker: usize) -> Draws<'a> {
        let rng = Rng(0x5eed_0040 + worker as u64);
        Draws { pool, rng, files: files as u64, values: values as u64, last: vec![0; files] }
    }

    /// Returns the next file and its value.
    pub(crate) fn next(&mut self) -> (usize, &'a [u8]) {
        let file = self.rng.below(self.files) as usize;
        (file, self.of(file))
    }

    /// Returns a value for a file.
    pub(crate) fn of(&mut self, file: usize) -> &'a [u8] {
        let number = self.rng.below(self.values) as usize;
        self.last[file] = number;
        self.pool.value(number)
    }

    /// Returns each file with the value that it was given last.
    pub(crate) fn given(&self) -> impl Iterator<Item = (usize, &'a [u8])> {
        self.last.iter().map(|&number| self.pool.value(number)).enumerate()
    }
}

/// Returns the seconds in which each of so many processes does what it did in the document, at a rate
/// of all together.
fn seconds(processes: usize, ops_per_s: f64) -> f64 {
    (SETS * processes) as f64 / ops_per_s.max(1e-9)
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells = vec![];
    for &values in sized(settings.size, VALUES) {
        for &files in sized(settings.size, FILES) {
            let of = |&processes| Cell { store: Store::Memory, processes, files, values };
            cells.extend(settings.threads.iter().map(of));
        }
    }
    cells
}

/// Returns a store over each index, in the order of [`VARIANTS`].
fn stores(processes: usize, files: usize) -> anyhow::Result<Vec<Box<dyn AttrStore>>> {
    let entries = 2 * processes * (files + 1);
    let stores: Vec<Box<dyn AttrStore>> = vec![
        Box::new(MemoryStore::new(OneLock::new(entries), processes, files)),
        Box::new(MemoryStore::new(Lru::<OneList>::new(entries), processes, files)),
        Box::new(MemoryStore::new(Lru::<ListPerShard>::new(entries), processes, files)),
        Box::new(MemoryStore::new(Corewalk::new()?, processes, files)),
        Box::new(MemoryStore::new(Off, processes, files)),
    ];
    debug_assert!(stores.iter().map(|store| store.variant()).eq(VARIANTS));
    Ok(stores)
}

/// Sets attributes for `time`, and returns how fast that was and how many blocks they take.
///
/// # Errors
/// A file that has something else than was set, blocks or entries that do not add up.
fn measure(
    store: &dyn AttrStore,
    pool: &Pool,
    cell: &Cell,
    time: Duration,
) -> anyhow::Result<(Slice, u64)> {
    let wrong = AtomicU64::new(0);
    let slice = crew::run(cell.processes, time, |worker, turn| {
        let mut draws = Draws::new(pool, (cell.files, cell.values), worker);
        for file in 0..cell.files {
            store.set(worker, file, draws.of(file));
        }
        let laps = turn.run(|_| {
            let (file, value) = draws.next();
            store.set(worker, file, value);
            true
        });
        let differs = |&(file, value): &(usize, &[u8])| !store.has(worker, file, value);
        // ORDERING: Relaxed. A count, read after joining.
        wrong.fetch_add(draws.given().filter(differs).count() as u64, Ordering::Relaxed);
        laps
    });
    let blocks = store.audit()?;
    (0..cell.processes).for_each(|worker| store.clear(worker));
    // ORDERING: Relaxed. See above.
    let wrong = wrong.load(Ordering::Relaxed);
    ensure!(wrong == 0, "{}: {wrong} files have something else", store.variant());
    ensure!(store.audit()? == 0, "{}: blocks are left", store.variant());
    Ok((slice, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_cell_its_blocks_and_the_claims() {
        let settings = quick::settings();
        let cells = cells(&settings);
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
        for cell in disk::cells(&settings) {
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
        assert_eq!(footer.matches("       disk     ").count(), disk::cells(&settings).len());
        assert!(rows.iter().any(|row| Xattr.is_in_footer(row)));
    }

    #[test]
    fn store_that_mixes_up_files_is_found_out() {
        struct Mixed(MemoryStore<Off>);
        impl AttrStore for Mixed {
            fn variant(&self) -> &'static str {
                "mixed"
            }
            fn set(&self, worker: usize, file: usize, value: &[u8]) {
                self.0.set(worker, if file == 7 { 8 } else { file }, value);
            }
            fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool {
                self.0.has(worker, file, value)
            }
            fn clear(&self, worker: usize) {
                self.0.clear(worker);
            }
            fn audit(&self) -> anyhow::Result<u64> {
                self.0.audit()
            }
        }
        let cell = Cell { store: Store::Memory, processes: 1, files: 10, values: 50 };
        let (pool, time) = (Pool::draw(cell.values), Duration::from_millis(5));
        let good = MemoryStore::new(Off, 1, 10);
        assert_eq!(measure(&good, &pool, &cell, time).unwrap().1, 10);
        let error = measure(&Mixed(good), &pool, &cell, time).unwrap_err().to_string();
        assert!(error.contains("have something else"), "{error}");
    }

    #[test]
    fn values_are_different() {
        let pool = Pool::draw(300);
        let all: std::collections::BTreeSet<_> = (0..300).map(|at| pool.value(at)).collect();
        assert_eq!(all.len(), 300);
    }
}
