//! Benchmark table `path-under-rename`: how much a path translation slows down while another thread
//! renames.
//!
//! Source: Long's patch of September 2013 (document 001 in `documents.md`), and its review. A
//! translation goes from a directory to its path. Units:
//! - translations per second of processor time (`clock=cpu`);
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
//! - `ancestor`: a directory on the reader's path.
//!
//! Long's measurement also had many processes, mounts and 80 processors, which this table leaves
//! out.
//!
//! # Checks
//! - The reader compares every path with the right paths before and after a rename. A wrong path
//!   fails the run, and so does a reader or renamer without progress.
//! - A time slice is measured in pieces of 20 ms. If the renamer waited too long for a processor in
//!   a piece, another piece is measured.
//! - One claim is that renames of the ancestor make translations start again. It shows that the
//!   restarts are counted.

use super::prelude::*;
use crate::baseline::Namespace;
use crate::before::{Before, Dentries, Design, make_file, make_path};
use crate::race::{self, Outcome, Reader, Writer};

/// The path of the translated directory, before and after the rename of its ancestor.
const PATHS: [&str; 2] = [
    "/srv/lab/scratch/projects/corewalk/crates/lab/src",
    "/srv/lab/scratch/projects/corewalk-next/crates/lab/src",
];
/// For the renamers `elsewhere` and `ancestor`: the directory in which the renamer works, and the
/// two names.
const RENAMES: [[&str; 3]; 2] = [
    ["/srv/lab/scratch/elsewhere", "left", "right"],
    ["/srv/lab/scratch/projects", "corewalk", "corewalk-next"],
];
/// The renamers.
const RENAMERS: [&str; 3] = ["none", "elsewhere", "ancestor"];
/// The share of its time for which the renamer may wait for a processor. If it waits longer, the
/// piece of the measurement is discarded.
const STARVED_MAX: f64 = 0.1;
/// Minimum number of operations of the reader, and of the renamer, in a slice.
const OPS_MIN: u64 = 500;
/// The length of the pieces of a time slice. In a short piece, other processes are less likely to
/// disturb the renamer.
const PIECE: Duration = Duration::from_millis(20);
/// Up to this many times the needed number of pieces are measured, because some are discarded.
const TRIES: usize = 2;
/// The measuring time per row, as a fraction of the usual time.
const SHARE_OF_TIME: f64 = 0.6;
/// The variants whose translations start again after a rename. The others take a lock instead.
const OPTIMISTIC: [&str; 2] = ["corewalk", Design::SeqLock.name()];
/// The number of variants.
const VARIANTS: usize = 4;
/// This many files are made between the reader's directory and the file that `elsewhere` renames.
/// So their dentries are far apart in memory.
const FILLERS: usize = 1000;
/// Room for names.
const CAPACITY: usize = 2 * FILLERS;

/// A variant with its reader and its writers.
struct Entrant {
    racer: Box<dyn Namespace>,
    reader: Reader,
    /// The renames of `elsewhere` and `ancestor`.
    writers: [Writer; 2],
}

/// The table.
pub(super) const TABLE: Table = Table { name: "path-under-rename", sweeps, run };

fn sweeps(_settings: &Settings) -> Vec<Sweep> {
    let share = SHARE_OF_TIME * RENAMERS.len() as f64;
    vec![Sweep::new(vec![Cell::default()], VARIANTS, Design::SeqLock.name(), share)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let mut entrants = vec![Entrant::new(Ours::empty(CAPACITY)?)?];
    for design in [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock] {
        entrants.push(Entrant::new(Before::new(design, CAPACITY))?);
    }
    // A visit measures the reader beside each renamer in turn. So the undisturbed reader, the
    // baseline of the others, runs right before them.
    run.each(&run.sweeps[0], entrants.len(), |visit| {
        let entrant = &entrants[visit.at];
        for (at, renamer) in RENAMERS.into_iter().enumerate() {
            if let Some(outcome) = entrant.slice(run.settings, at)? {
                entrant.add(visit.round, renamer, &outcome, samples);
            }
        }
        Ok(())
    })
}

/// Returns the parameters of a row of path translations.
fn params(renamer: &str) -> Cell {
    Cell::default().with("op", "path").with("renamer", renamer)
}

impl Entrant {
    /// Makes the directories and files in the empty namespace `dentries`.
    fn new(dentries: impl Dentries + 'static) -> anyhow::Result<Entrant> {
        let leaf = make_path(&dentries, PATHS[0].as_bytes());
        let parents = RENAMES.map(|[parent, ..]| make_path(&dentries, parent.as_bytes()));
        let file = |name: &str| make_file(&dentries, parents[0], name);
        (0..FILLERS).try_for_each(|at| file(&format!("filler-{at}")).map(drop))?;
        file(RENAMES[0][1])?;
        let writer = |at: usize| {
            let [home, away] = [1, 2].map(|name| (parents[at], RENAMES[at][name].into()));
            Writer { home, away }
        };
        let reader = Reader(vec![(leaf, PATHS.map(Vec::from).to_vec())]);
        Ok(Entrant { racer: Box::new(dentries), reader, writers: [writer(0), writer(1)] })
    }

    /// Measures the reader while renamer number `renamer` renames, in several short pieces, and
    /// adds up the results. A full run leaves out pieces in which the renamer waited too long for
    /// a processor. Returns None if no piece is left.
    fn slice(&self, settings: &Settings, renamer: usize) -> anyhow::Result<Option<Outcome>> {
        let writers = &self.writers[renamer.saturating_sub(1)..renamer];
        let mut reader = self.reader.clone();
        if RENAMERS[renamer] != "ancestor" {
            reader.0.iter_mut().for_each(|(_, right)| right.truncate(1));
        }
        let time = (settings.time_per_row / settings.rounds as u32).mul_f64(SHARE_OF_TIME);
        let piece_time = time.min(PIECE);
        let pieces = (time.as_secs_f64() / piece_time.as_secs_f64()).ceil() as usize;
        let (racer, is_full) = (&*self.racer, settings.size == Size::Full);
        let (variant, readers) = (racer.variant(), [reader]);
        let (mut whole, mut good) = (Outcome::default(), 0);
        for _ in 0..TRIES * pieces {
            let piece = race::run(racer, &readers, writers, piece_time, Pinning::OnePerCore);
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
        let renames = if writers.is_empty() { OPS_MIN } else { whole.renames.ops };
        let is_moving = !is_full || whole.reads.ops.min(renames) >= OPS_MIN;
        ensure!(is_moving, "{variant}: renamer={} lets a side starve", RENAMERS[renamer]);
        Ok(Some(whole))
    }

    fn add(&self, round: usize, renamer: &str, outcome: &Outcome, samples: &mut Samples) {
        let (variant, baseline) = (self.racer.variant(), Design::SeqLock.name());
        let Outcome { reads, renames, retries, .. } = outcome;
        let [beside, calm] = [renamer, "none"].map(|name| params(name).with("clock", "cpu").0);
        let rate = (Metric::OPS_PER_SECOND, 1e9 / reads.ns_per_op().max(1e-9));
        samples.add_against(round, variant, &beside, rate, variant, &calm);
        if renamer != "none" {
            let rate = (Metric::OPS_PER_SECOND, renames.over_span().ops_per_s);
            let params = params(renamer).with("op", "rename").with("beside", "path").0;
            samples.add(round, variant, &params, rate, baseline);
        }
        if OPTIMISTIC.contains(&variant) {
            let retries = 1e6 * *retries as f64 / reads.ops.max(1) as f64;
            let retries = (Metric::RETRIES_PER_MILLION, retries);
            samples.add(round, variant, &params(renamer).0, retries, baseline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::components;
    use crate::table::quick;

    #[test]
    fn paths_are_one_another_with_the_ancestor_renamed() {
        let [home, away] = PATHS.map(|path| components(path.as_bytes()).collect::<Vec<_>>());
        let differ: Vec<_> = home.iter().zip(&away).filter(|(home, away)| home != away).collect();
        let [parent, old, new] = RENAMES[1];
        assert_eq!(differ, [(&old.as_bytes(), &new.as_bytes())]);
        assert_eq!((home.len(), away.len()), (8, 8));
        assert!(PATHS[0].starts_with(&format!("{parent}/{old}/")));
    }

    #[test]
    fn quick_run_has_a_row_of_every_variant_beside_every_renamer() {
        let rows = TABLE.measure(&quick::settings()).expect("all paths are right").rows();
        let variants = ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock"];
        for (variant, renamer) in variants.iter().flat_map(|v| RENAMERS.map(|r| (*v, r))) {
            let of = |op: &str| {
                let params = [("op", op.into()), ("renamer", renamer.into())];
                quick::row(&rows, variant, "ops_per_s", &params)
            };
            let row = of("path").expect("the reader has a row");
            assert!(row.baseline == variant && row.rounds == 5 && row.min > 0.0);
            assert!(row.ratio.is_some_and(|ratio| ratio > 0.0));
            assert_eq!(of("rename").is_some(), renamer != "none");
        }
        let claims = quick::claims(&TABLE, &rows);
        assert!(claims.iter().all(|claim| claim.contains("held (x")), "{claims:?}");
    }
}
