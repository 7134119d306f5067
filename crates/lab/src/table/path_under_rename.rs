//! Benchmark table `path-under-rename`: how much a path translation slows down while another thread
//! renames.
//!
//! Source: Long's patch of September 2013 (document 001 in `documents.md`), and its review. A
//! translation goes from a directory to its path. Units:
//! - translations per second of processor time (`clock=cpu`), and of wall time (`clock=wall`, with
//!   waits for a lock);
//! - renames per second of wall time;
//! - restarts per million translations.
//!
//! Long profiled the short workload of AIM7 on top of the lockref patches. Of the time in spin
//! locks, d_path and getcwd took 83 %, since both take `rename_lock`. Long's patch reads the
//! sequence number of all renames instead. Then each rename, in any directory, makes a translation
//! start again, and in the end the translation takes the lock. This table measures that, as the
//! review asked.
//!
//! The reader, a thread, translates one directory eight levels deep, again and again. The renamer,
//! another thread, renames a file or directory to a second name and back. Each thread has its own
//! processor.
//!
//! The parameter `renamer` says which file or directory is renamed:
//! - `elsewhere`: a file in another directory, made a thousand files after the reader's directory.
//! - `neighbour`: a file in another directory, made right after the reader's directory. So the two
//!   entries may share cache lines.
//! - `ancestor`: a directory on the reader's path.
//! - `apart`: a file in another namespace, which shows the cost of two busy processors.
//!
//! The variant `linux` is the host kernel: getcwd(2) in a working directory of the same path, and
//! rename(2). One row has the cost of an empty system call. A rename on the host takes a
//! microsecond or more, so fewer renames disturb its reader. Long's measurement also had many
//! processes, mounts and 80 processors, which this table leaves out.
//!
//! # Checks
//! - The reader compares every path with the right paths before and after a rename. A wrong path
//!   fails the run, and so does a reader or renamer without progress.
//! - A time slice is measured in pieces of 20 ms. If the renamer waited too long for a processor in
//!   a piece, another piece is measured.
//! - Renames of the ancestor must make translations start again. A variant that counts no restart
//!   even then gets no rows for restarts.

use super::prelude::*;
use crate::baseline::{Cwd, Namespace};
use crate::before::{Before, Dentries, Design, make_file, make_path};
use crate::race::{self, Outcome, Reader, Writer};
use std::os::unix::ffi::OsStrExt as _;

/// The least renames per second of corewalk's renamer `elsewhere`.
const RENAMES_MIN: f64 = 1e6;
/// The directories below the scratch directory. The last one is translated.
const BELOW: [&str; 5] = ["projects", "corewalk", "crates", "lab", "src"];
/// The other name of `BELOW[1]`, the ancestor that is renamed.
const AWAY: &str = "corewalk-next";
/// The share of its time for which the renamer may wait for a processor. If it waits longer, the
/// piece of the measurement is discarded.
const STARVED_MAX: f64 = 0.1;
/// Operations of each side in a slice, at least.
const OPS_MIN: u64 = 500;
/// The length of the pieces of a time slice. In a short piece, other processes are less likely to
/// disturb the renamer.
const PIECE: Duration = Duration::from_millis(20);
/// How many times as many pieces are tried as are needed.
const TRIES: usize = 2;
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.6;
/// The variants whose disturbed readers start again. The other variants lock.
const OPTIMISTIC: [&str; 2] = ["corewalk", Design::SeqLock.name()];
/// The number of variants.
const VARIANTS: usize = 5;
/// The renamers.
const RENAMERS: [&str; 5] = ["none", "apart", "elsewhere", "neighbour", "ancestor"];
/// This many files are made between the reader's directory and the file that `elsewhere` renames.
/// So their dentries are far apart in memory.
const FILLERS: usize = 1000;
/// Room for names.
const CAPACITY: usize = 2 * FILLERS;

/// A variant with the work of its threads.
struct Entrant {
    racer: Box<dyn Namespace>,
    /// A second namespace of the same kind, for the renamer `apart`.
    apart: Option<Box<dyn Namespace>>,
    reader: Reader,
    /// The renames of `elsewhere`, `neighbour` and `ancestor`.
    writers: [Writer; 3],
    /// Restarts per million translations, by round and renamer.
    retries: Vec<(usize, &'static str, f64)>,
}

/// The scratch directory on the host, and the paths of all variants.
struct Place {
    _scratch: Scratch,
    /// The path of the translated directory before and after a rename of an ancestor.
    right: [Vec<u8>; 2],
    /// The parent of the directory that the renamer `ancestor` renames, and the parent of the files
    /// that the renamers `elsewhere` and `neighbour` rename.
    parents: [Vec<u8>; 2],
}

/// The table.
pub(super) const TABLE: Table = Table { name: "path-under-rename", other_claims, sweeps, run };

fn other_claims(rows: &[Row]) -> Vec<Claim> {
    let renames = shape::find(rows, "corewalk", "ops_per_s", &rename_params("elsewhere"))
        .map(|row| row.median);
    let at = params("elsewhere", None);
    let retries = shape::find(rows, "corewalk", "retries_per_million", &at).map(|row| row.median);
    vec![
        Claim::of(
            String::from("no translation is disturbed by a renamer elsewhere"),
            retries.map(|retries| retries == 0.0),
            format!("{:.1} passes thrown away per million", retries.unwrap_or_default()),
        ),
        Claim::of(
            format!("that renamer renames at least {RENAMES_MIN} times per second"),
            renames.map(|renames| renames >= RENAMES_MIN),
            format!("{:.2} M/s", renames.unwrap_or_default() / 1e6),
        ),
    ]
}

fn sweeps(_settings: &Settings) -> Vec<Sweep> {
    let share = SHARE_OF_TIME * RENAMERS.len() as f64;
    vec![Sweep::new(vec![Cell::default()], VARIANTS, "linux", share)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let place = Place::make(run.table)?;
    let mut entrants = entrants(&place)?;
    // The rate of a variant while a thread renames is compared with its own rate without renames.
    // So measure a variant with each `renamer`, one right after the other.
    run.each(&run.sweeps[0], entrants.len(), |visit| {
        if visit.is_first {
            run.add_syscall(visit.round, visit.cell, samples);
        }
        let entrant = &mut entrants[visit.at];
        for renamer in RENAMERS {
            if let Some(outcome) = entrant.slice(run.settings, renamer)? {
                entrant.add(visit.round, renamer, &outcome, samples);
            }
        }
        Ok(())
    })?;
    entrants.iter().for_each(|entrant| entrant.add_retries(samples));
    Ok(())
}

/// Returns the parameters of a row of path translations.
fn params(renamer: &str, clock: Option<&str>) -> Vec<(&'static str, Value)> {
    let params = [("op", "path".into()), ("renamer", renamer.into())];
    params.into_iter().chain(clock.map(|clock| ("clock", clock.into()))).collect()
}

/// Returns the parameters of the renamer's rows.
fn rename_params(renamer: &str) -> [(&'static str, Value); 3] {
    [("op", "rename".into()), ("beside", "path".into()), ("renamer", renamer.into())]
}

impl Place {
    /// Returns the paths, made on the host, in memory if possible.
    fn make(label: &str) -> anyhow::Result<Place> {
        let scratch = Scratch::in_memory(label)?;
        let leaf = scratch.folder(&BELOW.join("/"))?.canonicalize()?;
        let elsewhere = scratch.folder("elsewhere")?.canonicalize()?;
        std::fs::write(elsewhere.join("next"), b"")?;
        std::fs::write(elsewhere.join("left"), b"")?;
        let up = |steps: usize| {
            leaf.ancestors().nth(steps).expect("it is that deep").as_os_str().as_bytes().to_vec()
        };
        let parent = up(BELOW.len() - 1);
        let tail = &up(0)[up(BELOW.len() - 2).len()..];
        let away = [&parent[..], b"/", AWAY.as_bytes(), tail].concat();
        let elsewhere = elsewhere.as_os_str().as_bytes().to_vec();
        Ok(Place { _scratch: scratch, right: [up(0), away], parents: [parent, elsewhere] })
    }

    /// Returns a variant whose directories have these numbers.
    fn entrant(
        &self,
        racer: Box<dyn Namespace>,
        apart: Option<Box<dyn Namespace>>,
        leaf: u64,
        parents: [u64; 2],
    ) -> Entrant {
        let writers = [(1, "left", "right"), (1, "next", "after"), (0, BELOW[1], AWAY)];
        let writer = |(at, home, away): (usize, &str, &str)| {
            let [home, away] = [home, away].map(|name| (parents[at], name.as_bytes().to_vec()));
            Writer { home, away }
        };
        let reader = Reader(vec![(leaf, self.right.to_vec())]);
        Entrant { racer, apart, reader, writers: writers.map(writer), retries: vec![] }
    }
}

/// Returns a design; `make` makes empty namespaces of it.
fn design<D: Dentries + 'static>(
    place: &Place,
    make: impl Fn() -> anyhow::Result<D>,
) -> anyhow::Result<Entrant> {
    let build = || -> anyhow::Result<_> {
        let dentries = make()?;
        let parents = [0, 1].map(|at| make_path(&dentries, &place.parents[at]));
        let leaf = make_path(&dentries, &place.right[0]);
        let file = |name: &str| make_file(&dentries, parents[1], name);
        file("next")?;
        (0..FILLERS).try_for_each(|at| file(&format!("filler-{at}")).map(drop))?;
        file("left")?;
        Ok((dentries, leaf, parents))
    };
    let ((dentries, leaf, parents), (apart, ..)) = (build()?, build()?);
    Ok(place.entrant(Box::new(dentries), Some(Box::new(apart)), leaf, parents))
}

fn entrants(place: &Place) -> anyhow::Result<Vec<Entrant>> {
    let mut entrants = vec![design(place, || Ours::empty(CAPACITY))?];
    for before in [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock] {
        entrants.push(design(place, || Ok(Before::new(before, CAPACITY)))?);
    }
    let kernel = Cwd::open(&place.right[0], &place.parents).context("the scratch directory")?;
    entrants.push(place.entrant(Box::new(kernel), None, 0, [0, 1]));
    Ok(entrants)
}

impl Entrant {
    /// Measures the reader while `renamer` renames, in several short pieces, and adds up the
    /// results. A full run leaves out pieces in which the renamer waited too long for a processor.
    /// Returns None if no piece is left, or if the variant cannot run `renamer`.
    fn slice(&self, settings: &Settings, renamer: &str) -> anyhow::Result<Option<Outcome>> {
        let at = RENAMERS.iter().position(|name| *name == renamer).unwrap_or(0);
        let (renamed, writers) = match (at, &self.apart) {
            (0, _) => (&self.racer, &[][..]),
            (1, Some(apart)) => (apart, &self.writers[..1]),
            (1, None) => return Ok(None),
            _ => (&self.racer, &self.writers[at - 2..at - 1]),
        };
        let mut reader = self.reader.clone();
        if renamer != "ancestor" {
            reader.0.iter_mut().for_each(|(_, right)| right.truncate(1));
        }
        let time = (settings.time_per_row / settings.rounds as u32).mul_f64(SHARE_OF_TIME);
        let piece_time = time.min(PIECE);
        let pieces = (time.as_secs_f64() / piece_time.as_secs_f64()).ceil() as usize;
        let (racer, is_full) = (&*self.racer, settings.size == Size::Full);
        let (variant, readers) = (racer.variant(), [reader]);
        let (mut whole, mut good) = (Outcome::default(), 0);
        for _ in 0..TRIES * pieces {
            let pinning = Pinning::OnePerCore;
            let piece = race::run(racer, &**renamed, &readers, writers, piece_time, pinning);
            let (paths, wrong) = (piece.reads.ops, piece.reads.wrong);
            ensure!(wrong == 0, "{variant}: {wrong} of {paths} paths were wrong");
            let Slice { delay_ns, wall, .. } = piece.renames;
            if is_full && delay_ns as f64 > STARVED_MAX * wall.as_nanos() as f64 {
                continue;
            }
            whole.add(&piece);
            good += 1;
            if good == pieces {
                break;
            }
        }
        if good == 0 {
            eprintln!("path-under-rename: {variant}: a slice with a starved renamer is lost");
            return Ok(None);
        }
        if is_full {
            let renames = if writers.is_empty() { OPS_MIN } else { whole.renames.ops };
            let is_moving = whole.reads.ops.min(renames) >= OPS_MIN;
            ensure!(is_moving, "{variant}: renamer={renamer} lets a side starve");
        }
        Ok(Some(whole))
    }

    fn add(
        &mut self,
        round: usize,
        renamer: &'static str,
        outcome: &Outcome,
        samples: &mut Samples,
    ) {
        let (variant, reads) = (self.racer.variant(), &outcome.reads);
        let served_ns = reads.wall.as_nanos() as f64 - reads.delay_ns as f64;
        for (clock, ns) in [("cpu", reads.cpu_ns as f64), ("wall", served_ns)] {
            let [beside, calm] =
                [renamer, "none"].map(|renamer| Params::from_iter(params(renamer, Some(clock))));
            let rate = (Metric::OPS_PER_SECOND, reads.ops as f64 * 1e9 / ns.max(1.0));
            samples.add_against(round, variant, &beside, rate, variant, &calm);
        }
        if renamer != "none" {
            let rate = (Metric::OPS_PER_SECOND, outcome.renames.over_span().ops_per_s);
            let params = Params::from(rename_params(renamer));
            samples.add(round, variant, &params, rate, Design::SeqLock.name());
        }
        let retries = 1e6 * outcome.retries as f64 / reads.ops.max(1) as f64;
        self.retries.push((round, renamer, retries));
    }

    /// Adds the result rows that say how often path translations started again. Only the variants
    /// in [`OPTIMISTIC`] do that. If renames of an ancestor cause none, the counter does not work,
    /// and no row is added.
    fn add_retries(&self, samples: &mut Samples) {
        let variant = self.racer.variant();
        if !OPTIMISTIC.contains(&variant) {
            return;
        }
        let has_moved =
            |(_, renamer, retries): &(_, &str, f64)| *renamer == "ancestor" && *retries > 0.0;
        if !self.retries.iter().any(has_moved) {
            eprintln!("path-under-rename: {variant}: its counter of retries never moved: no rows");
            return;
        }
        for &(round, renamer, retries) in &self.retries {
            let params = Params::from_iter(params(renamer, None));
            let retries = (Metric::RETRIES_PER_MILLION, retries);
            samples.add(round, variant, &params, retries, Design::SeqLock.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::components;
    use crate::table::quick;

    #[test]
    fn paths_of_the_place_are_one_another_with_the_ancestor_renamed() {
        let place = Place::make("place").unwrap();
        let [home, away] = [0, 1].map(|at| components(&place.right[at]).collect::<Vec<_>>());
        let differ: Vec<_> = home.iter().zip(&away).filter(|(home, away)| home != away).collect();
        assert_eq!(differ, [(&BELOW[1].as_bytes(), &AWAY.as_bytes())]);
        assert_eq!(home.len(), away.len());
        assert!(place.right[0].starts_with(&place.parents[0]));
    }

    #[test]
    fn quick_run_has_a_row_of_every_variant_beside_every_renamer() {
        let rows = TABLE.measure(&quick::settings()).expect("all paths are right").rows();
        let variants =
            ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock", "linux"];
        for (variant, renamer) in variants.iter().flat_map(|v| RENAMERS.map(|r| (*v, r))) {
            let of = |params: &[(&str, Value)]| shape::find(&rows, variant, "ops_per_s", params);
            let read = of(&params(renamer, Some("cpu")));
            if variant == "linux" && renamer == "apart" {
                assert!(read.is_none());
                continue;
            }
            let row = read.expect("the reader has a row");
            assert!(row.baseline == variant && row.rounds == 5 && row.min > 0.0);
            assert!(row.ratio.is_some_and(|ratio| ratio > 0.0));
            assert_eq!(of(&rename_params(renamer)).is_some(), renamer != "none");
        }
        let syscall = rows.iter().find(|row| row.params["op"] == "syscall");
        assert!(syscall.is_some_and(|row| row.median > 0.0));
        let claims: Vec<String> = TABLE.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims[0].contains("held (x") && claims[2].contains(" M/s)"), "{claims:?}");
    }
}
