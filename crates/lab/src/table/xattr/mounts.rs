//! The rows of real mounts of the table `xattr`: processes that call setxattr(2).
//!
//! Each process works in a directory of its own, in phases that all begin together (`setter`). The
//! blocks of attributes are what a file system has fewer of afterwards than before the first was set.
//!
//! A corewalk tmpfs counts bytes, and shares a set that replaced another one when the file was left alone
//! for 100 ms and attributes change somewhere. So the bytes are counted after that time, and after so many
//! changes of a file beside the others that all are shared, and until more of them change nothing: see
//! [`Session::settle`]. A store keeps attributes in its database, whose room its directory's file system does not
//! tell from that of others: their bytes are not counted (`space` does that on stores without a mount).
//!
//! A mount that is not to be had here is named and left out: ext4 needs root, a loop device and
//! mkfs.ext4, our own the program.

use std::fs::{File, remove_file};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use corewalk_base::primitives::thread;
use rustix::fs::{XattrFlags, setxattr, statvfs};

use super::{BASELINE, Cell, Store};
use crate::client::{Client, Lap};
use crate::peer::{self, Mounted, Scratch, Threads};
use crate::samples::{Metric, Params, Samples};
use crate::setter::{self, Phase};
use crate::table::grid::Rounds;
use crate::table::{Grid, Settings, sized};

/// Where the host has a tmpfs, for the device.
const TMPFS: &str = "/dev/shm";
/// Files of each process, and values.
const FILES: (&[usize], &[usize]) = (&[10], &[10, 1000]);
const VALUES: (&[usize], &[usize]) = (&[10], &[10, 1000]);
/// Mounts there are: two of ext4, and a tmpfs and a store of ours, each of which twice: for one process, and for several.
const MOUNTS: usize = 6;
/// Ours on a disk, whose directory is on the host's tmpfs like the devices of the others.
const STORE: &str = "corewalk-store";
/// How long a corewalk tmpfs leaves a file alone before it shares its attributes, and some more.
const REST: Duration = Duration::from_millis(120);
/// How many files one change shares the attributes of.
const BATCH: usize = 8;
/// How often is looked whether bytes still change, at most.
const LOOKS_MAX: usize = 50;
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.25;

/// A mount, and whether it is for one process or for several; None is for both.
struct Place {
    mounted: Mounted,
    threads: Option<Threads>,
    space: Space,
}

/// When a file system's room says what attributes take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    AtOnce,
    Late,
    Never,
}

pub(super) fn grid(settings: &Settings) -> Grid {
    Grid::new(settings, cells(settings).len(), MOUNTS, SHARE_OF_TIME)
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells = vec![];
    for &values in sized(settings.size, VALUES) {
        for &files in sized(settings.size, FILES) {
            let of = |&processes| Cell { store: Store::Mount, processes, files, values };
            cells.extend(settings.threads.iter().map(of));
        }
    }
    cells
}

/// Measures on all mounts that are to be had here.
///
/// # Errors
/// A call that fails on one, or an attribute that is not what was set.
pub(super) fn run(
    settings: &Settings,
    rounds: &Rounds<'_>,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let Some(program) = &settings.program else { return Ok(()) };
    let cells = cells(settings);
    let files = cells.iter().map(|cell| cell.processes * cell.files).max().unwrap_or(0);
    let images = Scratch::new(Path::new(TMPFS), "xattr-images")?;
    let points = Scratch::new(&std::env::temp_dir(), "xattr-mounts")?;
    let places = places(&images, &points, files)?;
    let grid = grid(settings);
    rounds.each(&grid, (&cells, places.len()), |visit| {
        let place = &places[visit.at];
        let is_alone = visit.cell.processes == 1;
        if place.threads.is_some_and(|threads| (threads == Threads::One) != is_alone) {
            return Ok(());
        }
        let (mounted, space) = (&place.mounted, place.space);
        let session = Session { program, mounted, cell: visit.cell, rounds, space };
        let outcome = session.run(grid.slice.as_millis() as u64);
        let outcome =
            outcome.with_context(|| format!("{} at {}", place.mounted.variant(), visit.cell))?;
        outcome.add_to(samples, visit.round, place.mounted.variant(), visit.cell);
        Ok(())
    })
}

/// Returns what can be mounted here.
fn places(images: &Scratch, points: &Scratch, files: usize) -> anyhow::Result<Vec<Place>> {
    let mut places = vec![];
    for (variant, options) in [("linux", ""), (BASELINE, "no_mbcache")] {
        let image = images.path().join(variant);
        match peer::ext4(variant, (&image, files), options, points.folder(variant)?) {
            Ok(mounted) => places.push(Place { mounted, threads: None, space: Space::AtOnce }),
            Err(error) => eprintln!("xattr: skipped {variant} on a mount: {error:#}"),
        }
    }
    for (variant, space) in [("corewalk", Space::Late), (STORE, Space::Never)] {
        for threads in [Threads::One, Threads::Several] {
            let name = format!("{variant}-{threads:?}");
            let point = points.folder(&name)?;
            let program = match space {
                Space::Never => peer::ours_store(threads, &images.folder(&name)?, &point),
                _ => peer::ours(threads, Path::new("tmpfs"), &point),
            };
            match program.and_then(|program| Mounted::start(variant, program, point)) {
                Ok(mounted) => places.push(Place { mounted, threads: Some(threads), space }),
                Err(error) => {
                    eprintln!("xattr: skipped {variant} on a mount: {error:#}");
                    break;
                }
            }
        }
    }
    Ok(places)
}

/// One mount, one cell, one round.
struct Session<'a> {
    program: &'a Path,
    mounted: &'a Mounted,
    cell: &'a Cell,
    rounds: &'a Rounds<'a>,
    space: Space,
}

/// What came out of it.
struct Outcome {
    laps: Vec<Lap>,
    server_ns: u64,
    /// Bytes of the file system that attributes take; None if it does not say.
    bytes: Option<u64>,
}

impl Session<'_> {
    fn run(&self, slice_ms: u64) -> anyhow::Result<Outcome> {
        let all = peer::all_cpus()?;
        let (one, number) = peer::one_cpu(&all);
        let is_alone = self.cell.processes == 1;
        self.mounted.pin(if is_alone { &one } else { &all });
        let mut clients = vec![];
        for worker in 0..self.cell.processes {
            let job = setter::Job {
                directory: self.mounted.directory().join(format!("client-{worker}")),
                files: self.cell.files,
                values: self.cell.values,
                worker,
                slice_ms,
                cpu: is_alone.then_some(number),
            };
            clients.push(Client::spawn(self.program, job.args())?);
        }
        let mut outcome = Outcome { laps: vec![], server_ns: 0, bytes: None };
        let mut free_before = 0;
        for phase in Phase::ALL {
            self.rounds.check()?;
            let server_ns = self.mounted.cpu_ns();
            clients.iter_mut().try_for_each(Client::go)?;
            let laps = clients.iter_mut().map(Client::lap).collect::<anyhow::Result<_>>();
            let laps = laps.with_context(|| format!("while clients {}", phase.name()))?;
            match phase {
                Phase::Make => free_before = self.free_bytes()?,
                Phase::Work => {
                    outcome.laps = laps;
                    outcome.server_ns = self.mounted.cpu_ns().saturating_sub(server_ns);
                    if self.space == Space::Late {
                        self.settle().context("while attributes were to be shared")?;
                    }
                    if self.space != Space::Never {
                        outcome.bytes = free_before.checked_sub(self.free_bytes()?);
                    }
                }
                Phase::Fill | Phase::Check | Phase::Remove => {}
            }
        }
        clients.into_iter().try_for_each(Client::finish)?;
        Ok(outcome)
    }

    /// Returns when all attributes are shared that can be, as far as the bytes show that.
    ///
    /// # Errors
    /// If a call fails, or the bytes never come to rest.
    fn settle(&self) -> anyhow::Result<()> {
        thread::sleep(REST);
        let path = self.mounted.directory().join("settle");
        drop(File::create(&path)?);
        let change =
            |nth: usize| setxattr(&path, "user.settle", &nth.to_le_bytes(), XattrFlags::empty());
        let files = self.cell.processes * self.cell.files;
        (0..files.div_ceil(BATCH)).try_for_each(change)?;
        let mut before = self.free_bytes()?;
        for _ in 0..LOOKS_MAX {
            (0..2 * BATCH).try_for_each(change)?;
            let now = self.free_bytes()?;
            if std::mem::replace(&mut before, now) == now {
                return Ok(remove_file(&path)?);
            }
        }
        bail!("the bytes of attributes do not come to rest")
    }

    fn free_bytes(&self) -> anyhow::Result<u64> {
        let space = statvfs(self.mounted.directory()).context("statvfs")?;
        Ok(space.f_bfree * space.f_frsize)
    }
}

impl Outcome {
    fn add_to(&self, samples: &mut Samples, round: usize, variant: &str, cell: &Cell) {
        let params = Params::from(cell.params());
        let rate = |lap: &Lap| lap.ops as f64 * 1e9 / lap.wall_ns.max(1) as f64;
        let ops: u64 = self.laps.iter().map(|lap| lap.ops).sum();
        let cpu_ns = self.server_ns + self.laps.iter().map(|lap| lap.cpu_ns).sum::<u64>();
        let speed = [
            (Metric::OpsPerSecond, self.laps.iter().map(rate).sum()),
            (Metric::NsPerOp, cpu_ns as f64 / ops.max(1) as f64),
        ];
        // Nobody keeps all those attributes in no bytes: then they are not counted as blocks.
        let space = self.bytes.filter(|&bytes| bytes > 0).map(|bytes| cell.bytes_per_file(bytes));
        for value in speed.into_iter().chain(space) {
            samples.add(round, variant, &params, value, BASELINE);
        }
    }
}
