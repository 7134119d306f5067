//! Measures the table `xattr` in one kind of store, in runs in which workers set attributes.
//!
//! Workers are threads, each for a process of Kara's benchmark (document 004 in `documents.md`).
//! Each file has one extended attribute, which is set once before the measurement.
//!
//! - In memory and in a tmpfs a run lasts for a time slice.
//! - On disk each worker sets a fixed number of attribute values. The run ends with one `sync`,
//!   which is part of its time.
//!
//! The store also commits every 5 seconds, and when a transaction has 32 MiB of records. So usually
//! only the last value of a file is written to the database, as in Kara's measurement. The runs
//! there were shorter than ext4's commit interval. More syncs would favour the designs that share
//! blocks.
//!
//! The store on disk is in the host's tmpfs, since Kara's measurement used a ramdisk.
//!
//! Source: document 004 in `documents.md`; ext4(5), `commit=`.

use super::{BASELINE, BLOCK_BYTES, DISK, Draws, MEMORY, Pool, TMPFS, VARIANTS, bytes_per_file};
use crate::blocks::{AttrStore, DiskStore, MemoryStore, TmpfsStore, designs};
use crate::machine::thread_cpu_ns;
use crate::table::prelude::*;
use corewalk_base::Mutex;
use std::time::Instant;

/// The measuring time of a variant with one set of parameters, as a fraction of the time of a
/// result row. On disk a run of four processes must have time for 50,000 changes by each.
const SHARE_OF_TIME: f64 = 0.2;
const SHARE_ON_DISK: f64 = 0.75;
/// Factor of the number of rounds for a store on disk or in a tmpfs, in a quick and in a full run.
/// Its results vary by a quarter if other programs use the processor's caches.
const REPEATED: (usize, usize) = (1, 3);
/// An estimate for stores on disk: how many attribute values all processes together set per second.
/// It determines how many values a run sets. The real rate is between a third of it and three times
/// as high.
const EXPECTED_SETS_PER_S: f64 = 2_000_000.0;
/// Minimum and maximum number of attributes that a process sets on disk.
const SETS: [usize; 2] = [200, 50_000];

/// Returns the parameters for one kind of store: the numbers of files per process, and of different
/// attribute values.
fn sizes(kind: &str, size: Size) -> (&'static [usize], &'static [usize]) {
    match (kind, size) {
        (MEMORY, Size::Full) => (&[10, 100, 1000], &[10, 100, 1000, 10_000]),
        (_, Size::Full) => (&[100, 1000], &[10, 100, 1000]),
        (_, Size::Quick) => (&[10, 100], &[10, 100]),
    }
}

/// Returns the cells of one kind of store.
pub(super) fn sweep(settings: &Settings, kind: &'static str) -> Sweep {
    let (files, all_values) = sizes(kind, settings.size);
    let cells = cells(&[
        ("store", values(&[kind])),
        ("values", values(all_values)),
        ("files", values(files)),
        ("processes", values(&settings.threads)),
    ]);
    let variants = if kind == TMPFS { 2 } else { VARIANTS.len() };
    let share = if kind == DISK { SHARE_ON_DISK } else { SHARE_OF_TIME };
    let repeats = if kind == MEMORY { 1 } else { sized(settings.size, REPEATED) };
    Sweep { repeats, ..Sweep::new(cells, variants, BASELINE, share) }
}

/// Makes the stores in memory, in a tmpfs or on disk, whichever `kind` says: one for each of
/// [`VARIANTS`] that is measured there.
fn stores(
    kind: &str,
    scratch: &Scratch,
    size: (usize, usize),
) -> anyhow::Result<Vec<Box<dyn AttrStore>>> {
    let mut stores: Vec<Box<dyn AttrStore>> = vec![];
    if kind == TMPFS {
        for is_sharing in [true, false] {
            stores.push(Box::new(TmpfsStore::new(is_sharing, size)?));
        }
        return Ok(stores);
    }
    for design in designs(2 * size.0 * (size.1 + 1))? {
        let path = scratch.path().join(design.0);
        stores.push(match kind {
            DISK => Box::new(DiskStore::new(design, &path, size)?),
            _ => Box::new(MemoryStore::new(design, size)),
        });
    }
    Ok(stores)
}

/// Measures the stores of one kind.
///
/// # Errors
/// An attribute is not the last one that was set; the counts of blocks, users and entries do not
/// agree; or a store on disk is inconsistent at the end.
pub(super) fn run(
    run: &Run<'_>,
    sweep: &Sweep,
    pool: &Pool,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let (cells, kind) = (&sweep.cells, sweep.cells[0].word("store"));
    let most = |key: &str| cells.iter().map(|cell| cell.number(key)).max().unwrap_or(1);
    let scratch = Scratch::in_memory("xattr-store")?;
    let stores = stores(kind, &scratch, (most("processes"), most("files")))?;
    run.each(sweep, stores.len(), |visit| {
        let (store, cell, time) = (&*stores[visit.at], visit.cell, sweep.slice(run.settings));
        let load = Load { store, cell, draws: Draws::of_cell(pool, cell) };
        let slice = match kind {
            DISK => load.run_sets(sets(time, cell)),
            _ => load.run_for(time),
        };
        let bytes = bytes_per_file(cell, load.check()? * BLOCK_BYTES as u64);
        slice.add_to(samples, visit.round, store.variant(), &cell.0, BASELINE, &cell.0)?;
        samples.add(visit.round, store.variant(), &cell.0, bytes, BASELINE);
        Ok(())
    })?;
    for store in stores {
        let (mut draws, files) = (Draws::new(pool, &cells[0], 0), cells[0].number("files"));
        (0..files).for_each(|file| store.set(0, file, draws.of(file)));
        let blocks = store.audit()?;
        store.check(blocks)?;
    }
    Ok(())
}

/// Returns how many attributes each process sets on disk.
fn sets(slice: Duration, cell: &Cell) -> usize {
    let each = EXPECTED_SETS_PER_S * slice.as_secs_f64() / cell.number("processes") as f64;
    (each as usize).clamp(SETS[0], SETS[1])
}

/// One run.
struct Load<'a> {
    store: &'a dyn AttrStore,
    cell: &'a Cell,
    /// The draws of each worker.
    draws: Vec<Mutex<Draws<'a>>>,
}

impl Load<'_> {
    /// Sets the attribute of each file of a worker.
    fn fill(&self, worker: usize, draws: &mut Draws<'_>) {
        (0..self.cell.number("files"))
            .for_each(|file| self.store.set(worker, file, draws.of(file)));
    }

    fn run_for(&self, time: Duration) -> Slice {
        crew::run(self.cell.number("processes"), time, |worker, turn| {
            let mut draws = self.draws[worker].lock();
            self.fill(worker, &mut draws);
            turn.run(|_| {
                let (file, value) = draws.next();
                self.store.set(worker, file, value);
                true
            })
        })
    }

    fn run_sets(&self, sets: usize) -> Slice {
        for (worker, draws) in self.draws.iter().enumerate() {
            self.fill(worker, &mut draws.lock());
        }
        self.store.sync();
        // The time is zero, so each worker does one job.
        let slice = crew::run(self.draws.len(), Duration::ZERO, |worker, turn| {
            let mut draws = self.draws[worker].lock();
            turn.run_jobs(|| {
                for _ in 0..sets {
                    let (file, value) = draws.next();
                    self.store.set(worker, file, value);
                }
                Tally { ops: sets as u64, wrong: 0 }
            })
        });
        let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
        self.store.sync();
        let span = slice.span + start.elapsed();
        Slice::timed(slice.ops, span, slice.cpu_ns + thread_cpu_ns() - cpu_start)
    }

    /// Checks that every file has its last attribute value, and that the user counts of all blocks
    /// agree with the files. Then removes the attributes. Returns the number of blocks before that.
    fn check(&self) -> anyhow::Result<u64> {
        let store = self.store;
        let blocks = store.audit()?;
        for (worker, draws) in self.draws.iter().enumerate() {
            let draws = draws.lock();
            let has = |(file, &number)| store.has(worker, file, draws.pool.value(number));
            let wrong = draws.last.iter().enumerate().filter(|given| !has(*given)).count();
            ensure!(wrong == 0, "{}: {wrong} files have something else", store.variant());
            store.clear(worker);
        }
        ensure!(store.audit()? == 0, "{}: blocks are left", store.variant());
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell;
    use super::*;

    /// Stores the attribute of file 7 in file 8.
    struct Mixed(MemoryStore);

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

    #[test]
    fn store_that_mixes_up_files_is_found_out() {
        let cell = cell(MEMORY, [1, 10, 50]);
        let pool = Pool::draw(50);
        let run = |store: &dyn AttrStore| {
            let load = Load { store, cell: &cell, draws: Draws::of_cell(&pool, &cell) };
            load.run_for(Duration::from_millis(5));
            load.check()
        };
        let good = MemoryStore::new(designs(22).unwrap().remove(4), (1, 10));
        assert_eq!(run(&good).unwrap(), 10);
        let error = run(&Mixed(good)).unwrap_err().to_string();
        assert!(error.contains("have something else"), "{error}");
    }
}
