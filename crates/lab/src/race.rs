//! Readers that translate paths beside writers that rename, as fast as they can.
//!
//! The load of document 000: processes of a database ask for the paths of their files while other
//! processes change names. A reader asks for the paths of a few dentries again and again, and
//! compares each path with the right ones. A writer renames something there and back.
//!
//! # When a race counts
//! A writer without a processor disturbs no reader, which flatters every design. So each worker
//! also reads how long it was ready to run and waited for a processor (`run_delay`), and the
//! outcome has the share of it. Waiting for a lock is not counted there, on purpose: a writer that
//! the design slows down is a result, a writer that the machine slows down is not.
//!
//! Source: documents 000 and 001; `/proc/thread-self/schedstat`, clock_gettime(2).

use std::time::Duration;

use crate::before::timed::Spent;
use crate::before::{Dentries, Passes};
use crate::crew::{self, Laps, Pinning, Turn};
use crate::questions::Tally;

/// Operations of one job. The number is even, so that a writer ends where it began.
const CHUNK: usize = 64;

/// The questions of one reader.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Inode numbers, each with every path that it can have.
    pub(crate) targets: Vec<(u64, Vec<Vec<u8>>)>,
}

/// The rename of one writer, there and back.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    /// The first directory and name.
    pub(crate) home: (u64, Vec<u8>),
    /// The second directory and name.
    pub(crate) away: (u64, Vec<u8>),
}

/// A namespace that takes part in a race.
pub(crate) trait Racer: Send + Sync {
    /// Returns the name in the rows.
    fn variant(&self) -> &'static str;

    /// Translates until the race is over.
    fn translate(&self, reader: &Reader, turn: Turn) -> Laps;

    /// Renames until the race is over.
    fn rename_until(&self, writer: &Writer, turn: Turn) -> Laps;

    /// Returns how often translations were disturbed so far; None if the namespace does not count.
    fn passes(&self) -> Option<Passes>;
}

/// A race.
pub(crate) struct Race<'a> {
    pub(crate) readers: &'a [Reader],
    pub(crate) writers: &'a [Writer],
    pub(crate) time: Duration,
    pub(crate) pinning: Pinning,
}

/// The work of all readers, or of all writers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    /// Operations.
    pub(crate) ops: u64,
    /// Wrong answers.
    pub(crate) wrong: u64,
    /// Seconds from the first worker's start to the last worker's end.
    pub(crate) span_s: f64,
    /// Seconds of processor time of all workers.
    pub(crate) cpu_s: f64,
    /// Seconds of wall time of all workers.
    pub(crate) wall_s: f64,
    /// Seconds in which workers were ready to run and waited for a processor.
    pub(crate) delay_s: f64,
    /// Time in lock sections, in builds that count it.
    pub(crate) spent: Spent,
}

/// The result of a race.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reads: Side,
    pub(crate) renames: Side,
    /// How often translations were disturbed; None if the namespace does not count.
    pub(crate) passes: Option<Passes>,
}

impl Reader {
    /// Asks for the paths of its targets in turn, and compares.
    #[inline]
    pub(crate) fn ask(&self, turn: Turn, path: impl Fn(u64) -> Option<Vec<u8>>) -> Laps {
        let mut targets = self.targets.iter().cycle();
        turn.run_jobs(|| {
            let mut tally = Tally { ops: CHUNK as u64, wrong: 0 };
            for (ino, right) in targets.by_ref().take(CHUNK) {
                let is_right = path(*ino).is_some_and(|path| right.contains(&path));
                tally.wrong += u64::from(!is_right);
            }
            tally
        })
    }
}

impl Writer {
    /// Renames there and back; once before the clocks start, so that both names were there.
    ///
    /// # Panics
    /// If a rename fails.
    #[inline]
    pub(crate) fn go(
        &self,
        turn: Turn,
        rename: impl Fn((u64, &[u8]), (u64, &[u8])) -> bool,
    ) -> Laps {
        let (home, away) = ((self.home.0, &self.home.1[..]), (self.away.0, &self.away.1[..]));
        let there_and_back =
            || assert!(rename(home, away) && rename(away, home), "a rename failed");
        there_and_back();
        turn.run_jobs(|| {
            (0..CHUNK / 2).for_each(|_| there_and_back());
            Tally { ops: CHUNK as u64, wrong: 0 }
        })
    }
}

impl Side {
    /// Returns the work of several workers.
    ///
    /// The span is that of all of them. With more workers than processors, a worker may start when
    /// the others are nearly done, so a sum of the workers' own rates says nothing.
    pub(crate) fn of(laps: &[Laps]) -> Side {
        let mut side = Side { span_s: crew::span_s(laps), ..Side::default() };
        for lap in laps.iter().map(Laps::first) {
            side.ops += lap.tally.ops;
            side.wrong += lap.tally.wrong;
            side.cpu_s += lap.cpu_ns as f64 / 1e9;
            side.wall_s += lap.wall.as_secs_f64().max(1e-9);
            side.delay_s += lap.delay_ns as f64 / 1e9;
            side.spent.add(&lap.spent);
        }
        side
    }

    /// Returns operations per second of wall time.
    pub(crate) fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.span_s.max(1e-9)
    }

    /// Returns operations per second of processor time.
    pub(crate) fn ops_per_cpu_s(&self) -> f64 {
        self.ops as f64 / self.cpu_s.max(1e-9)
    }

    /// Returns nanoseconds of processor time per operation.
    pub(crate) fn ns_per_op(&self) -> f64 {
        1e9 / self.ops_per_cpu_s().max(1e-9)
    }

    /// Returns operations per second of the wall time in which workers did not wait for a
    /// processor.
    pub(crate) fn ops_per_served_s(&self) -> f64 {
        self.ops as f64 / (self.wall_s - self.delay_s).max(1e-9)
    }

    /// Returns the share of their time in which workers waited for a processor.
    pub(crate) fn starved_share(&self) -> f64 {
        self.delay_s / self.wall_s.max(1e-9)
    }

    /// Adds the work of another race.
    fn add(&mut self, other: &Side) {
        self.ops += other.ops;
        self.wrong += other.wrong;
        self.span_s += other.span_s;
        self.cpu_s += other.cpu_s;
        self.wall_s += other.wall_s;
        self.delay_s += other.delay_s;
        self.spent.add(&other.spent);
    }
}

impl Outcome {
    /// Adds another race of the same kind.
    pub(crate) fn add(&mut self, other: &Outcome) {
        self.reads.add(&other.reads);
        self.renames.add(&other.renames);
        self.passes = self.passes.zip(other.passes).map(|(a, b)| Passes {
            retries: a.retries + b.retries,
            fallbacks: a.fallbacks + b.fallbacks,
        });
    }
}

impl<D: Dentries> Racer for D {
    fn variant(&self) -> &'static str {
        crate::baseline::Namespace::variant(self)
    }

    fn translate(&self, reader: &Reader, turn: Turn) -> Laps {
        reader.ask(turn, |ino| self.path(ino))
    }

    fn rename_until(&self, writer: &Writer, turn: Turn) -> Laps {
        writer.go(turn, |from, to| self.rename(from, to))
    }

    fn passes(&self) -> Option<Passes> {
        Dentries::passes(self)
    }
}

/// Runs one race with the readers in `racer` and the writers in `renamed`. The two are the same
/// namespace, except where a table asks what two namespaces cost each other.
///
/// # Panics
/// If a rename fails, or a thread panics.
pub(crate) fn run(racer: &dyn Racer, renamed: &dyn Racer, race: &Race<'_>) -> Outcome {
    let before = racer.passes();
    let readers = race.readers.len();
    let work = |worker: usize, turn: Turn| match race.readers.get(worker) {
        Some(reader) => racer.translate(reader, turn),
        None => renamed.rename_until(&race.writers[worker - readers], turn),
    };
    let workers = (readers + race.writers.len(), 1, race.pinning);
    let (laps, ()) = crew::run_laps(workers, race.time, work, |_| ());
    let passes = racer.passes().zip(before).map(|(after, before)| Passes {
        retries: after.retries - before.retries,
        fallbacks: after.fallbacks - before.fallbacks,
    });
    let (reads, renames) = laps.split_at(readers);
    Outcome { reads: Side::of(reads), renames: Side::of(renames), passes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::{Before, Design, Kind, make_path};

    const DESIGNS: [Design; 3] = [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock];
    use crate::ours::Ours;

    fn racers() -> Vec<Box<dyn Dentries>> {
        let mut all: Vec<Box<dyn Dentries>> = vec![Box::new(Ours::empty(64).unwrap())];
        all.extend(DESIGNS.map(|design| Box::new(Before::new(design, 64)) as Box<dyn Dentries>));
        all
    }

    /// Runs a race in which the reader expects the paths `right`.
    fn race(dentries: &dyn Dentries, racer: &dyn Racer, right: &[&[u8]]) -> Outcome {
        let leaf = make_path(dentries, b"/a/b/c");
        let parent = make_path(dentries, b"/a");
        let right = right.iter().map(|path| path.to_vec()).collect();
        let readers = [Reader { targets: vec![(leaf, right)] }];
        let writers = [Writer { home: (parent, b"b".to_vec()), away: (parent, b"other".to_vec()) }];
        let (time, pinning) = (Duration::from_millis(30), Pinning::OnePerCore);
        run(racer, racer, &Race { readers: &readers, writers: &writers, time, pinning })
    }

    fn check<D: Dentries>(dentries: &D) {
        let variant = crate::baseline::Namespace::variant(dentries);
        let outcome = race(dentries, dentries, &[b"/a/b/c", b"/a/other/c"]);
        assert_eq!(outcome.reads.wrong, 0, "{variant}");
        assert!(outcome.reads.ops > 0 && outcome.renames.ops > 0, "{variant}");
        assert!(outcome.reads.ops_per_cpu_s() > 0.0 && outcome.reads.wall_s > 0.0, "{variant}");
        // The writer ends at home.
        assert_eq!(dentries.walk(b"/a/other"), None, "{variant}");
        let outcome = race(dentries, dentries, &[b"/somewhere/else"]);
        assert_eq!(outcome.reads.wrong, outcome.reads.ops, "{variant}: wrong paths are counted");
    }

    #[test]
    fn race_of_every_design_counts_operations_and_wrong_paths() {
        check(&Ours::empty(64).unwrap());
        DESIGNS.iter().for_each(|design| check(&Before::new(*design, 64)));
    }

    #[test]
    fn open_walk_look_create_and_unlink_of_every_design_agree() {
        for dentries in racers() {
            let variant = dentries.variant();
            let parent = make_path(&*dentries, b"/a/b");
            let made = dentries.create(parent, b"file", Kind::File).expect(variant);
            assert_eq!(dentries.open(b"/a/b/file"), Some(made), "{variant}");
            assert_eq!(dentries.walk(b"/a/b/file"), Some(made), "{variant}");
            assert_eq!(dentries.look(parent, b"file"), Some(made), "{variant}");
            assert_eq!(dentries.look(parent, b"absent"), None, "{variant}");
            assert_eq!(dentries.path(made).as_deref(), Some(&b"/a/b/file"[..]), "{variant}");
            assert!(dentries.rename((parent, b"file"), (1, b"moved")), "{variant}");
            assert_eq!(dentries.path(made).as_deref(), Some(&b"/moved"[..]), "{variant}");
            assert!(dentries.unlink(1, b"moved") && !dentries.unlink(1, b"moved"), "{variant}");
            assert_eq!(dentries.open(b"/moved"), None, "{variant}");
        }
    }
}
