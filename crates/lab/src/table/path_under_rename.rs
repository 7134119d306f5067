//! Table `path-under-rename`: what a rename somewhere else costs the translation of a path.
//!
//! Source: document 001 (Long, September 2013) and its review. Units: translations per second, by
//! the reader's processor time (`clock=cpu`) and by wall time (`clock=wall`, in which waiting for a lock
//! shows), the renamer's renames per second of wall time beside it, and passes thrown away per million translations.
//!
//! # What the document measured
//! A profile of the AIM7 short workload, in which d_path and getcwd took 83 % of what was left in
//! spin locks ([`PUBLISHED`]), and a throughput that `aim7-short` re-runs. It replaced the lock by the
//! sequence of all renames, and the review asked what that means under many renames: a translation
//! then begins again because of any rename anywhere, and must take the lock in the end.
//!
//! # What is kept, and what is not
//! One reader translates one directory eight levels deep, again and again, while one renamer renames
//! something there and back as fast as it can, each on a processor of its own:
//!
//! | `renamer` | what is renamed |
//! |---|---|
//! | `elsewhere` | a file in another directory, made a thousand files after what is translated |
//! | `neighbour` | a file in another directory that was made right after it: lines that two entries share |
//! | `ancestor` | a directory on the reader's way to the root |
//! | `apart` | the file elsewhere, in another namespace: what two busy processors cost each other |
//!
//! Dropped: processes, mounts, 80 processors.
//!
//! `linux` is getcwd(2) in a working directory of the same path and rename(2), on the host; the cost of
//! a system call that does nothing is a row. Its renames cost a microsecond and more, so its reader
//! is disturbed less often than one beside a renamer that is fast.
//!
//! # Claim
//! A translation is disturbed by renames of its own ancestors only: corewalk keeps 95 % of its
//! undisturbed throughput beside a renamer elsewhere, with 0 retries.
//!
//! # Checks
//! Every path is compared with those that the directory can have, one or, under the ancestor, two; a
//! wrong one fails the run. With the ancestor renamed, both sides must get on. A slice is made of short
//! pieces, and one in which the renamer waited for a processor is thrown away and measured again; time
//! that the reader waited for one is in neither of its clocks. Retries are rows only of variants whose
//! counter moved under the ancestor: a counter that never moves proves nothing.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustix::fs::{CWD, Mode, OFlags, openat, renameat};
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Size, Table, shape, sized};
use crate::baseline::{getcwd, go_to, syscall_ns};
use crate::before::{
    Dentries, GlobalLock, Kind, Passes, RenameSeqLock, RenameSeqRwLock, make_path,
};
use crate::lane::{Stop, Tally};
use crate::ours::Ours;
use crate::peer::Scratch;
use crate::race::{self, Outcome, Pinning, Race, Racer, Reader, Writer};
use crate::samples::{Metric, Params, Row, Samples};

/// What document 001 says of the short workload of AIM7, in percent: of all time in spin locks
/// before, of that in d_path through readlink of `/proc`, of that in getcwd; of all time in spin
/// locks with the patch.
const PUBLISHED: [(&str, f64); 4] = [
    ("time in spin locks before the patch", 8.46),
    ("of which d_path (readlink in /proc)", 42.21),
    ("of which getcwd", 40.97),
    ("time in spin locks with the patch", 1.2),
];
/// The share of its undisturbed throughput that corewalk is to keep beside a renamer elsewhere.
const KEPT_MIN: f64 = 0.95;
/// Directories below the scratch directory, down to the one that is translated.
const BELOW: [&str; 5] = ["projects", "corewalk", "crates", "lab", "src"];
/// The name that the second of them has while it is away.
const AWAY: &str = "corewalk-next";
/// The share of its time that the renamer may wait for a processor.
const STARVED_MAX: f64 = 0.1;
/// Operations of each side in a slice, of which a design that lets both get on does thousands.
const OPS_MIN: u64 = 500;
/// The pieces of a slice, each of which counts or not: the shorter, the fewer are lost to others.
const PIECE: Duration = Duration::from_millis(20);
/// How many times as many pieces are tried as are needed.
const TRIES: usize = 2;
/// The share of the time per row that each row of this table gets.
const SHARE_OF_TIME: f64 = 0.6;
/// The variants that begin again when they were disturbed; the others lock.
const OPTIMISTIC: [&str; 2] = ["corewalk", RenameSeqLock::VARIANT];
/// Variants there are.
const VARIANTS: usize = 5;
/// Renames per second beside which corewalk is to keep it.
const RENAMES_MIN: f64 = 1e6;
/// Files between what is translated and what is renamed.
const FILLERS: usize = 1000;
/// Room for names.
const CAPACITY: usize = 2 * FILLERS;

/// The table.
pub(super) struct PathUnderRename;

/// What is renamed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renamer {
    None,
    Apart,
    Elsewhere,
    Neighbour,
    Ancestor,
}

/// A variant with what its threads do.
struct Entrant {
    racer: Box<dyn Racer>,
    /// A second namespace of the same kind, for the renamer that is apart.
    apart: Option<Box<dyn Racer>>,
    reader: Reader,
    elsewhere: Writer,
    neighbour: Writer,
    ancestor: Writer,
    /// Passes thrown away per million translations, by round and renamer.
    retries: Vec<(usize, Renamer, f64)>,
    /// Slices without a piece in which the renamer ran.
    lost: usize,
}

/// Where everything is: the scratch directory on the host, and the paths that all variants have.
struct Place {
    _scratch: Scratch,
    /// The directory that is translated, and what it is while its ancestor is away.
    right: [Vec<u8>; 2],
    /// The directory of the ancestor, and the one of the file that is renamed elsewhere.
    parents: [Vec<u8>; 2],
}

/// The host kernel, in the scratch directory.
struct Kernel {
    /// The directories that renames are in.
    parents: [OwnedFd; 2],
    /// The directory that is translated, wherever it is.
    leaf: OwnedFd,
}

impl Table for PathUnderRename {
    fn name(&self) -> &'static str {
        "path-under-rename"
    }

    fn source(&self) -> &'static str {
        "translation of a path beside a renamer (Long, September 2013, and its review)"
    }

    fn about(&self) -> &'static str {
        "one translator and one renamer, elsewhere or of an ancestor, each on a core of its own"
    }

    fn footer(&self, rows: &[Row]) -> String {
        footer(rows)
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        claims(rows)
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let share = SHARE_OF_TIME * Renamer::ALL.len() as f64;
        vec![Grid::new(settings, 1, VARIANTS, share)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let place = Place::make(self.name())?;
        let mut entrants = entrants(&place)?;
        let grid = self.grids(settings)[0];
        let calls = sized(settings.size, (1_000, 100_000));
        let mut samples = Samples::default();
        // Each variant beside one renamer after the other, since it is compared with itself.
        rounds.each(&grid, (&["all renamers"], entrants.len()), |visit| {
            if visit.is_first {
                let params = Params::from([("op", "syscall".into())]);
                let cost = (Metric::NsPerOp, syscall_ns(calls));
                samples.add(visit.round, "linux", &params, cost, "linux");
            }
            entrants[visit.at].measure(settings, visit.round, &mut samples)
        })?;
        for entrant in &entrants {
            if entrant.lost > 0 {
                let variant = entrant.racer.variant();
                eprintln!(
                    "path-under-rename: {variant}: {} slices with a starved renamer",
                    entrant.lost
                );
            }
            entrant.add_retries(&mut samples);
        }
        Ok(samples)
    }
}

impl Renamer {
    const ALL: [Renamer; 5] =
        [Renamer::None, Renamer::Apart, Renamer::Elsewhere, Renamer::Neighbour, Renamer::Ancestor];

    fn name(self) -> &'static str {
        match self {
            Renamer::None => "none",
            Renamer::Apart => "apart",
            Renamer::Elsewhere => "elsewhere",
            Renamer::Neighbour => "neighbour",
            Renamer::Ancestor => "ancestor",
        }
    }

    /// Returns the parameters of the reader's rows by a clock, or of those without one.
    fn params(self, clock: Option<&'static str>) -> Vec<(&'static str, Value)> {
        let params = [("op", "path".into()), ("renamer", self.name().into())];
        params.into_iter().chain(clock.map(|clock| ("clock", clock.into()))).collect()
    }
}

impl Place {
    /// Returns the paths, made on the host, in memory if there is a place for that.
    fn make(label: &str) -> anyhow::Result<Place> {
        let scratch = Scratch::new(Path::new("/dev/shm"), label)
            .or_else(|_| Scratch::new(&std::env::temp_dir(), label))?;
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
        (racer, apart): (Box<dyn Racer>, Option<Box<dyn Racer>>),
        leaf: u64,
        parents: [u64; 2],
    ) -> Entrant {
        let writer = |at: usize, home: &str, away: &str| Writer {
            home: (parents[at], home.as_bytes().to_vec()),
            away: (parents[at], away.as_bytes().to_vec()),
        };
        Entrant {
            racer,
            apart,
            reader: Reader { targets: vec![(leaf, self.right.to_vec())] },
            elsewhere: writer(1, "left", "right"),
            neighbour: writer(1, "next", "after"),
            ancestor: writer(0, BELOW[1], AWAY),
            retries: vec![],
            lost: 0,
        }
    }
}

impl Entrant {
    /// Returns a design of which `make` makes empty ones.
    fn design<D: Dentries + 'static>(
        place: &Place,
        make: impl Fn() -> anyhow::Result<D>,
    ) -> anyhow::Result<Entrant> {
        let build = || -> anyhow::Result<_> {
            let dentries = make()?;
            let parents = [0, 1].map(|at| make_path(&dentries, &place.parents[at]));
            let leaf = make_path(&dentries, &place.right[0]);
            let file = |name: &str| {
                let made = dentries.create(parents[1], name.as_bytes(), Kind::File);
                made.with_context(|| format!("{}: no room", dentries.variant()))
            };
            file("next")?;
            (0..FILLERS).try_for_each(|at| file(&format!("filler-{at}")).map(drop))?;
            file("left")?;
            Ok((dentries, leaf, parents))
        };
        let ((dentries, leaf, parents), (apart, ..)) = (build()?, build()?);
        Ok(place.entrant((Box::new(dentries), Some(Box::new(apart))), leaf, parents))
    }

    /// Returns the host kernel.
    fn kernel(place: &Place) -> anyhow::Result<Entrant> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &[u8]| openat(CWD, path, flags, Mode::empty());
        let parents = [open(&place.parents[0])?, open(&place.parents[1])?];
        let racer = Box::new(Kernel { parents, leaf: open(&place.right[0])? });
        Ok(place.entrant((racer, None), 0, [0, 1]))
    }

    /// Measures beside each renamer, right after each other.
    fn measure(
        &mut self,
        settings: &Settings,
        round: usize,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        for renamer in Renamer::ALL {
            let Some(outcome) = self.slice(settings, renamer)? else { continue };
            self.add(round, renamer, &outcome, samples);
        }
        Ok(())
    }

    /// Returns the pieces of a slice in which nobody was starved, together; None if there were none, or
    /// there is no such renamer.
    fn slice(&mut self, settings: &Settings, renamer: Renamer) -> anyhow::Result<Option<Outcome>> {
        let (renamed, writers) = match renamer {
            Renamer::None => (&self.racer, vec![]),
            Renamer::Apart => match &self.apart {
                Some(apart) => (apart, vec![self.elsewhere.clone()]),
                None => return Ok(None),
            },
            Renamer::Elsewhere => (&self.racer, vec![self.elsewhere.clone()]),
            Renamer::Neighbour => (&self.racer, vec![self.neighbour.clone()]),
            Renamer::Ancestor => (&self.racer, vec![self.ancestor.clone()]),
        };
        let mut reader = self.reader.clone();
        if renamer != Renamer::Ancestor {
            reader.targets.iter_mut().for_each(|(_, right)| right.truncate(1));
        }
        let time = (settings.time_per_row / settings.rounds as u32).mul_f64(SHARE_OF_TIME);
        let race = Race {
            readers: &[reader],
            writers: &writers,
            time: time.min(PIECE),
            pinning: Pinning::OnePerCore,
        };
        let pieces = (time.as_secs_f64() / race.time.as_secs_f64()).ceil() as usize;
        let variant = self.racer.variant();
        let mut whole: Option<Outcome> = None;
        let mut good = 0;
        for _ in 0..TRIES * pieces {
            let piece = race::run(&*self.racer, &**renamed, &race);
            let (paths, wrong) = (piece.reads.ops, piece.wrong);
            ensure!(wrong == 0, "{variant}: {wrong} of {paths} paths were wrong");
            if settings.size == Size::Full && piece.renames.starved_share() > STARVED_MAX {
                continue;
            }
            match &mut whole {
                Some(whole) => whole.add(&piece),
                None => whole = Some(piece),
            }
            good += 1;
            if good == pieces {
                break;
            }
        }
        match &whole {
            None => self.lost += 1,
            Some(whole) if settings.size == Size::Full => {
                let renames = if writers.is_empty() { OPS_MIN } else { whole.renames.ops };
                let is_moving = whole.reads.ops.min(renames) >= OPS_MIN;
                ensure!(is_moving, "{variant}: renamer={} lets a side starve", renamer.name());
            }
            Some(_) => {}
        }
        Ok(whole)
    }

    fn add(&mut self, round: usize, renamer: Renamer, outcome: &Outcome, samples: &mut Samples) {
        let variant = self.racer.variant();
        let params = |renamer: Renamer, clock| Params::from_iter(renamer.params(Some(clock)));
        let reads = &outcome.reads;
        for (clock, reached) in [("cpu", reads.ops_per_cpu_s()), ("wall", reads.ops_per_served_s())]
        {
            let (params, calm) = (params(renamer, clock), params(Renamer::None, clock));
            let reached = (Metric::OpsPerSecond, reached);
            samples.add_against(round, variant, &params, reached, (variant, &calm));
        }
        if renamer != Renamer::None {
            let params = Params::from([
                ("op", "rename".into()),
                ("beside", "path".into()),
                ("renamer", renamer.name().into()),
            ]);
            let reached = (Metric::OpsPerSecond, outcome.renames.ops_per_s());
            samples.add(round, variant, &params, reached, RenameSeqLock::VARIANT);
        }
        if let Some(Passes { retries, .. }) = outcome.passes {
            self.retries.push((round, renamer, 1e6 * retries as f64 / reads.ops.max(1) as f64));
        }
    }

    /// Adds the rows of retries, if the counter is known to count.
    fn add_retries(&self, samples: &mut Samples) {
        let variant = self.racer.variant();
        let has_moved = |&(_, renamer, retries): &(usize, Renamer, f64)| {
            renamer == Renamer::Ancestor && retries > 0.0
        };
        if !OPTIMISTIC.contains(&variant) {
            return;
        }
        if !self.retries.iter().any(has_moved) {
            eprintln!("path-under-rename: {variant}: its counter of retries never moved: no rows");
            return;
        }
        for &(round, renamer, retries) in &self.retries {
            let params = Params::from_iter(renamer.params(None));
            let retries = (Metric::RetriesPerMillion, retries);
            samples.add(round, variant, &params, retries, RenameSeqLock::VARIANT);
        }
    }
}

impl Racer for Kernel {
    fn variant(&self) -> &'static str {
        "linux"
    }

    /// Gives the thread a working directory of its own, and goes where it translates.
    fn prepare(&self, _reader: &Reader) {
        go_to(&self.leaf);
    }

    fn translate(&self, reader: &Reader, stop: &Stop) -> Tally {
        reader.ask(stop, |_| getcwd())
    }

    fn rename_until(&self, writer: &Writer, stop: &Stop) -> u64 {
        writer.go(stop, |from, to| self.rename(from, to))
    }

    fn rename_once(&self, writer: &Writer) {
        let (home, away) =
            ((writer.home.0, &writer.home.1[..]), (writer.away.0, &writer.away.1[..]));
        let _ = self.rename(home, away) && self.rename(away, home);
    }

    fn passes(&self) -> Option<Passes> {
        None
    }
}

impl Kernel {
    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let parent = |number: u64| &self.parents[number as usize];
        renameat(parent(from.0), from.1, parent(to.0), to.1).is_ok()
    }
}

fn entrants(place: &Place) -> anyhow::Result<Vec<Entrant>> {
    Ok(vec![
        Entrant::design(place, || Ours::empty(CAPACITY))?,
        Entrant::design(place, || Ok(GlobalLock::new(CAPACITY)))?,
        Entrant::design(place, || Ok(RenameSeqRwLock::new(CAPACITY)))?,
        Entrant::design(place, || Ok(RenameSeqLock::new(CAPACITY)))?,
        Entrant::kernel(place).context("the scratch directory")?,
    ])
}

fn footer(rows: &[Row]) -> String {
    let mut out = String::from("document 001, on 80 cores, AIM7 short, in percent:");
    for (what, percent) in PUBLISHED {
        let _ = write!(out, " {what} {percent};");
    }
    let _ = writeln!(out, " no figure of a renamer.");
    let syscall = shape::median(rows, "linux", "ns_per_op", &[("op", "syscall".into())]);
    let [calm, storm] = [Renamer::None, Renamer::Elsewhere].map(|renamer| {
        shape::median(rows, "linux", "ops_per_s", &renamer.params(Some("cpu")))
            .map(|rate| 1e9 / rate)
    });
    if let (Some(syscall), Some(calm), Some(storm)) = (syscall, calm, storm) {
        let _ = writeln!(
            out,
            "linux net of the {syscall:.0} ns of a system call: {:.0} ns undisturbed, {:.0} ns beside \
             its renamer",
            calm - syscall,
            storm - syscall
        );
    }
    out
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let elsewhere = Renamer::Elsewhere;
    let kept = shape::ratio(rows, "corewalk", "ops_per_s", &elsewhere.params(Some("cpu")));
    let renames =
        [("op", "rename".into()), ("beside", "path".into()), ("renamer", elsewhere.name().into())];
    let renames = shape::median(rows, "corewalk", "ops_per_s", &renames);
    let retries = shape::median(rows, "corewalk", "retries_per_million", &elsewhere.params(None));
    vec![
        Claim::at_least("beside a renamer elsewhere over undisturbed", kept, KEPT_MIN),
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
        let rows = PathUnderRename.run(&quick::settings()).expect("all paths are right").rows();
        let variants =
            ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock", "linux"];
        for (variant, renamer) in variants.iter().flat_map(|v| Renamer::ALL.map(|r| (*v, r))) {
            let of = |op: &str, clock: Option<&str>| {
                rows.iter().find(|row| {
                    row.variant == variant
                        && row.metric == "ops_per_s"
                        && row.params["op"] == op
                        && row.params["renamer"] == renamer.name()
                        && row.params.get("clock").and_then(|clock| clock.as_str()) == clock
                })
            };
            if variant == "linux" && renamer == Renamer::Apart {
                assert!(of("path", Some("cpu")).is_none());
                continue;
            }
            let row = of("path", Some("cpu")).expect("the reader has a row");
            assert!(row.baseline == variant && row.rounds == 5 && row.min > 0.0);
            assert!(row.ratio.is_some_and(|ratio| ratio > 0.0));
            assert_eq!(of("rename", None).is_some(), renamer != Renamer::None);
        }
        let syscall = rows.iter().find(|row| row.params["op"] == "syscall");
        assert!(syscall.is_some_and(|row| row.median > 0.0));
        assert!(footer(&rows).contains("linux net"), "{}", footer(&rows));
        let claims: Vec<String> = claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims[0].contains("held (x") && claims[2].contains(" M/s)"), "{claims:?}");
    }
}
