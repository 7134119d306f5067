//! The rows of the store on a disk of the table `xattr`: values reach blocks.
//!
//! # What is a run
//! Each process, a thread here, has set the attribute of all its files, and that is durable. Then each
//! sets attributes at random, as often as is said beforehand, and at the end one `sync` makes durable
//! what there is; both are in the time. In between the store commits as it does by itself: when a
//! transaction has 32 MiB of records, and every 5 seconds. So a value that stays reaches its block once in
//! a run, and one that is replaced before reaches none, which is what ext4 did in the document's runs: they
//! are shorter than its commit interval, and longer only where its journal filled up. To sync more often
//! would be kinder to those who share.
//!
//! It is the same for all five, and its cost is of the sets, not of the time that they take.
//!
//! # Where
//! A directory of the host's tmpfs for each design, as the document's ramdisk was.
//!
//! Source: document 004; ext4(5), `commit=`.

use std::path::PathBuf;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::ensure;
use corewalk_base::primitives::thread;
use rustix::process::Pid;
use rustix::thread::sched_setaffinity;

use super::{BASELINE, BLOCK_BYTES, Cell, Draws, Pool, RUNS, Store, VARIANTS};
use crate::blocks::{AttrStore as _, DiskStore, designs};
use crate::crew;
use crate::machine::thread_cpu_ns;
use crate::peer::Scratch;
use crate::samples::{Metric, Params, Samples};
use crate::table::grid::Rounds;
use crate::table::{Grid, Settings, sized};

/// Where the host has a tmpfs.
const TMPFS: &str = "/dev/shm";
/// Files of each process, and values.
const FILES: (&[usize], &[usize]) = (&[10, 100], &[100, 1000]);
const VALUES: (&[usize], &[usize]) = (&[10, 100], &[10, 100, 1000]);
/// The share of the time per row, which has the 50,000 sets of each of four processes.
const SHARE_OF_TIME: f64 = 0.75;
/// How many times the rounds of other tables there are, also in a tmpfs: a run is short beside a commit that comes in it, or not. Rounds
/// differ by a quarter where neighbours take the caches, so that a median is known to a twentieth at best.
pub(super) const REPEATED: (usize, usize) = (1, 3);
/// Sets per second of all processes together that are expected, to choose how many there are. The slowest cells do a
/// third of that, the fastest three times as many.
const EXPECTED_SETS_PER_S: f64 = 2_000_000.0;
/// The least and the most sets of a process.
const SETS: [usize; 2] = [200, super::SETS];

/// What a run took.
struct Run {
    sets: usize,
    wall: Duration,
    cpu_ns: u64,
}

pub(super) fn grid(settings: &Settings) -> Grid {
    let grid = Grid::new(settings, cells(settings).len(), VARIANTS.len(), SHARE_OF_TIME);
    grid.repeated(sized(settings.size, REPEATED))
}

pub(super) fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells = vec![];
    for &values in sized(settings.size, VALUES) {
        for &files in sized(settings.size, FILES) {
            let of = |&processes| Cell { store: Store::Disk, processes, files, values };
            cells.extend(settings.threads.iter().map(of));
        }
    }
    cells
}

/// Returns how often each process of a cell sets an attribute in a run.
fn sets(settings: &Settings, cell: &Cell) -> usize {
    let each = EXPECTED_SETS_PER_S * grid(settings).slice.as_secs_f64() / cell.processes as f64;
    (each as usize).clamp(SETS[0], SETS[1])
}

/// Measures the designs in a store on a disk.
///
/// # Errors
/// A file that has something else than was set; blocks, users or entries that do not add up, in memory
/// or on the disk.
pub(super) fn run(
    settings: &Settings,
    rounds: &Rounds<'_>,
    pool: &Pool,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let cells = cells(settings);
    let most = |each: fn(&Cell) -> usize| cells.iter().map(each).max().unwrap_or(1);
    let size = (most(|cell| cell.processes), most(|cell| cell.files));
    let scratch = Scratch::new(&parent(), "xattr-store")?;
    let designs = designs(2 * size.0 * (size.1 + 1))?.into_iter();
    let stores = designs.map(|design| {
        let path = scratch.path().join(design.0);
        DiskStore::new(design, &path, size)
    });
    let stores: Vec<DiskStore> = stores.collect::<anyhow::Result<_>>()?;
    let grid = grid(settings);
    let mut sums = vec![0.0; cells.len() * stores.len()];
    rounds.each(&grid, (&cells, stores.len()), |visit| {
        let (store, cell) = (&stores[visit.at], visit.cell);
        let (run, blocks) = measure(store, pool, cell, sets(settings, cell))?;
        let params = Params::from(cell.params());
        let rate = run.sets as f64 / run.wall.as_secs_f64().max(1e-9);
        let bytes = cell.bytes_per_file(blocks * BLOCK_BYTES as u64);
        let speed = (Metric::NsPerOp, run.cpu_ns as f64 / run.sets as f64);
        for value in [(Metric::OpsPerSecond, rate), speed, bytes] {
            samples.add(visit.round, store.variant(), &params, value, BASELINE);
        }
        let nth = cells.iter().position(|other| other == cell).unwrap_or(0);
        sums[nth * stores.len() + visit.at] += super::seconds(cell.processes, rate);
        Ok(())
    })?;
    for (at, sum) in sums.iter().enumerate() {
        let (cell, store) = (&cells[at / stores.len()], &stores[at % stores.len()]);
        let mut params = Params::from(cell.params());
        params.insert(RUNS, grid.rounds.into());
        let average = (Metric::Seconds, sum / grid.rounds as f64);
        samples.add(0, store.variant(), &params, average, BASELINE);
    }
    // What is left in the end, and what is on the disk of it.
    for store in stores {
        let mut draws = Draws::new(pool, (cells[0].files, cells[0].values), 0);
        (0..cells[0].files).for_each(|file| store.set(0, file, draws.of(file)));
        let blocks = store.audit()?;
        store.check(blocks)?;
    }
    Ok(())
}

/// Returns where stores are made.
pub(super) fn parent() -> PathBuf {
    let tmpfs = PathBuf::from(TMPFS);
    if tmpfs.is_dir() { tmpfs } else { std::env::temp_dir() }
}

/// Sets attributes and makes them durable; returns what that took, and how many blocks there are then.
///
/// # Errors
/// See [`run`].
fn measure(store: &DiskStore, pool: &Pool, cell: &Cell, sets: usize) -> anyhow::Result<(Run, u64)> {
    let (ready, go) = (Barrier::new(cell.processes + 1), Barrier::new(cell.processes + 1));
    let cpus = if cell.processes > 1 { crew::cpu_of_each() } else { vec![] };
    let work = |worker: usize| {
        if let Some(cpu) = cpus.get(worker % cpus.len().max(1)) {
            // A processor that has gone meanwhile is the scheduler's matter.
            let _ = sched_setaffinity(None::<Pid>, cpu);
        }
        let mut draws = Draws::new(pool, (cell.files, cell.values), worker);
        for file in 0..cell.files {
            store.set(worker, file, draws.of(file));
        }
        ready.wait();
        go.wait();
        let cpu_start = thread_cpu_ns();
        for _ in 0..sets {
            let (file, value) = draws.next();
            store.set(worker, file, value);
        }
        (thread_cpu_ns() - cpu_start, draws)
    };
    let (mut run, draws) = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..cell.processes).map(|worker| scope.spawn(move || work(worker))).collect();
        ready.wait();
        store.sync();
        go.wait();
        let (start, mut cpu_ns) = (Instant::now(), 0);
        let mut all = vec![];
        for thread in threads {
            let (spent_ns, draws) = thread.join().expect("a worker panicked");
            cpu_ns += spent_ns;
            all.push(draws);
        }
        let cpu_start = thread_cpu_ns();
        store.sync();
        cpu_ns += thread_cpu_ns() - cpu_start;
        (Run { sets: sets * cell.processes, wall: start.elapsed(), cpu_ns }, all)
    });
    run.wall = run.wall.max(Duration::from_nanos(1));
    let blocks = store.audit()?;
    for (worker, draws) in draws.iter().enumerate() {
        let differs = |&(file, value): &(usize, &[u8])| !store.has(worker, file, value);
        let wrong = draws.given().filter(differs).count();
        ensure!(wrong == 0, "{}: {wrong} files have something else", store.variant());
        store.clear(worker);
    }
    ensure!(store.audit()? == 0, "{}: blocks are left", store.variant());
    Ok((run, blocks))
}
