//! Readers that translate paths and writers that rename, as fast as they can, side by side.
//!
//! The load of document 000: a database's processes ask for the paths of their files while others
//! change names. A reader asks for the paths of a few dentries again and again, and compares each
//! with what it can be; a writer renames something there and back.
//!
//! # How it works
//! All threads are started and pinned, each writer has renamed once there and back, and then the
//! clocks start together. A race ends by wall time. Each thread has its own wall clock, processor
//! clock and counts, handed over when it ends, so that threads share the names and nothing else.
//!
//! # When a race counts
//! A renamer that gets no processor flatters every design, since nothing is disturbed; so each
//! thread also reads how long it was ready to run and had to wait for a processor (`run_delay`), and
//! the outcome says the share of it. Waiting for a lock is not counted there, which is the point: a
//! renamer that the design slows down is a result, one that the machine slows down is none.
//!
//! # What went wrong before
//! As in `slice`: a starved renamer, counters that share a line, a closure that reads another
//! thread's stack.
//!
//! Source: documents 000 and 001; `/proc/thread-self/schedstat`, clock_gettime(2).

use std::fs;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use corewalk_base::primitives::{Arc, thread};
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::before::timed::{Spent, take_spent};
use crate::before::{Dentries, Passes};
use crate::lane::{Stop, Tally};
use crate::machine::thread_cpu_ns;
use crate::peer::all_cpus;

/// Operations between two looks at the stop flag, and the fewest that a thread does. Even, so that a
/// writer ends where it began.
const CHUNK: usize = 64;

/// What one reader asks for.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Inode numbers, each with every path that it can have.
    pub targets: Vec<(u64, Vec<Vec<u8>>)>,
}

/// What one writer renames, there and back.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    /// The directory and name that it starts at.
    pub home: (u64, Vec<u8>),
    /// The directory and name that it goes to.
    pub away: (u64, Vec<u8>),
}

/// Who takes part in a race.
pub(crate) trait Racer: Send + Sync {
    /// Returns the name in the rows.
    fn variant(&self) -> &'static str;

    /// Gets the calling thread ready to be `reader`. What fails shows in wrong paths.
    fn prepare(&self, _reader: &Reader) {}

    /// Translates until `stop`.
    fn translate(&self, reader: &Reader, stop: &Stop) -> Tally;

    /// Renames until `stop`. Returns how often.
    fn rename_until(&self, writer: &Writer, stop: &Stop) -> u64;

    /// Renames there and back, once. A rename that fails is left to [`Racer::rename_until`].
    fn rename_once(&self, writer: &Writer);

    /// Returns how often translations were disturbed so far; None if nobody counts.
    fn passes(&self) -> Option<Passes>;
}

/// Where threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// Wherever the kernel puts them.
    Free,
    /// Each on a processor of its own, as far as there are processors.
    OnePerCore,
}

/// A race.
pub(crate) struct Race<'a> {
    pub readers: &'a [Reader],
    pub writers: &'a [Writer],
    pub time: Duration,
    pub pinning: Pinning,
}

/// What the threads of one kind did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Side {
    /// Operations.
    pub ops: u64,
    /// Seconds from the first thread's begin to the last one's end.
    pub span_s: f64,
    /// Seconds of processor time, all threads together.
    pub cpu_s: f64,
    /// Seconds of wall time, all threads together.
    pub wall_s: f64,
    /// Seconds that threads were ready to run and waited for a processor, all together.
    pub delay_s: f64,
    /// What was spent in lock sections, in builds that count it.
    pub spent: Spent,
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub reads: Side,
    pub renames: Side,
    /// Paths that were wrong.
    pub wrong: u64,
    /// How often translations were disturbed; None if nobody counts.
    pub passes: Option<Passes>,
}

/// What one thread did.
pub(crate) struct Lap {
    pub tally: Tally,
    start: Instant,
    end: Instant,
    cpu_ns: u64,
    delay_ns: u64,
    spent: Spent,
}

impl Reader {
    /// Asks for its targets in turn until `stop`, and compares.
    #[inline]
    pub(crate) fn ask(&self, stop: &Stop, path: impl Fn(u64) -> Option<Vec<u8>>) -> Tally {
        let mut tally = Tally::default();
        let mut targets = self.targets.iter().cycle();
        loop {
            for (ino, right) in targets.by_ref().take(CHUNK) {
                let path = path(*ino);
                let is_right = path.is_some_and(|path| right.contains(&path));
                tally.wrong += u64::from(!is_right);
            }
            tally.ops += CHUNK as u64;
            if stop.is_set() {
                return tally;
            }
        }
    }
}

impl Writer {
    /// Renames there and back until `stop`. Returns how often.
    ///
    /// # Panics
    /// If a rename fails.
    #[inline]
    pub(crate) fn go(
        &self,
        stop: &Stop,
        rename: impl Fn((u64, &[u8]), (u64, &[u8])) -> bool,
    ) -> u64 {
        let (home, away) = ((self.home.0, &self.home.1[..]), (self.away.0, &self.away.1[..]));
        let mut ops = 0;
        loop {
            for _ in 0..CHUNK / 2 {
                assert!(rename(home, away) && rename(away, home), "a rename failed");
            }
            ops += CHUNK as u64;
            if stop.is_set() {
                return ops;
            }
        }
    }
}

impl Side {
    /// Returns operations per second of wall time.
    pub(crate) fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.span_s.max(1e-9)
    }

    /// Returns operations per second of processor time.
    pub(crate) fn ops_per_cpu_s(&self) -> f64 {
        self.ops as f64 / self.cpu_s.max(1e-9)
    }

    /// Returns operations per second of the wall time in which threads had a processor, or waited for
    /// something else.
    pub(crate) fn ops_per_served_s(&self) -> f64 {
        self.ops as f64 / (self.wall_s - self.delay_s).max(1e-9)
    }

    /// Returns the share of their time that threads waited for a processor.
    pub(crate) fn starved_share(&self) -> f64 {
        self.delay_s / self.wall_s.max(1e-9)
    }

    /// Adds what was done in another race.
    fn add(&mut self, other: &Side) {
        self.ops += other.ops;
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
        self.wrong += other.wrong;
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

    fn translate(&self, reader: &Reader, stop: &Stop) -> Tally {
        reader.ask(stop, |ino| self.path(ino))
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
        Dentries::passes(self)
    }
}

/// Runs one race, with the readers in `racer` and the writers in `renamed`, which is the same unless it
/// is asked what two namespaces cost each other.
///
/// # Panics
/// If a rename fails, or a thread panics.
pub(crate) fn run(racer: &dyn Racer, renamed: &dyn Racer, race: &Race<'_>) -> Outcome {
    let stop = Arc::new(Stop::default());
    let start = Arc::new(Barrier::new(race.readers.len() + race.writers.len() + 1));
    let before = racer.passes();
    let (reads, renames) = thread::scope(|scope| {
        let read = |(at, reader)| {
            let (stop, start, cpu) = (Arc::clone(&stop), Arc::clone(&start), race.cpu(at));
            scope.spawn(move || {
                stay_on(cpu);
                racer.prepare(reader);
                lap(&start, || racer.translate(reader, &stop))
            })
        };
        let rename = |(at, writer)| {
            let (stop, start) = (Arc::clone(&stop), Arc::clone(&start));
            let cpu = race.cpu(race.readers.len() + at);
            scope.spawn(move || {
                stay_on(cpu);
                renamed.rename_once(writer);
                lap(&start, || Tally { ops: renamed.rename_until(writer, &stop), wrong: 0 })
            })
        };
        let readers: Vec<_> = race.readers.iter().enumerate().map(read).collect();
        let writers: Vec<_> = race.writers.iter().enumerate().map(rename).collect();
        start.wait();
        thread::sleep(race.time);
        stop.set();
        let join = |threads: Vec<thread::ScopedJoinHandle<'_, Lap>>| -> Vec<Lap> {
            threads.into_iter().map(|one| one.join().expect("a thread panicked")).collect()
        };
        (join(readers), join(writers))
    });
    let passes = racer.passes().zip(before).map(|(after, before)| Passes {
        retries: after.retries - before.retries,
        fallbacks: after.fallbacks - before.fallbacks,
    });
    let wrong = reads.iter().map(|lap| lap.tally.wrong).sum();
    Outcome { reads: side(&reads), renames: side(&renames), wrong, passes }
}

impl Race<'_> {
    /// Returns the processor for thread number `at`, if it is to have one.
    fn cpu(&self, at: usize) -> Option<CpuSet> {
        let all = all_cpus().ok()?;
        if self.pinning == Pinning::Free {
            return None;
        }
        let cpu = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).nth(at)?;
        let mut one = CpuSet::new();
        one.set(cpu);
        Some(one)
    }
}

fn stay_on(cpu: Option<CpuSet>) {
    if let Some(cpu) = cpu {
        // Only the numbers are worse elsewhere.
        let _ = sched_setaffinity(None, &cpu);
    }
}

/// Returns what `work` did, which begins when all have come to `start`.
pub(crate) fn lap(start: &Barrier, work: impl FnOnce() -> Tally) -> Lap {
    start.wait();
    take_spent();
    let (began, cpu_start, delay_start) = (Instant::now(), thread_cpu_ns(), run_delay_ns());
    let tally = work();
    let cpu_ns = thread_cpu_ns() - cpu_start;
    let (end, spent) = (Instant::now(), take_spent());
    Lap { tally, start: began, end, cpu_ns, delay_ns: run_delay_ns() - delay_start, spent }
}

/// Returns for how long the calling thread was ready and had no processor; 0 if the kernel does not
/// tell.
fn run_delay_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Returns what several threads did together.
///
/// The time is that of all of them, from the first one that began to the last one that ended. With more
/// threads than processors, one may not have run before the end is near, and whoever started them may
/// not run before they are half through: a rate by the clock of either would be anything.
pub(crate) fn side(laps: &[Lap]) -> Side {
    let ops: u64 = laps.iter().map(|lap| lap.tally.ops).sum();
    let cpu_ns: u64 = laps.iter().map(|lap| lap.cpu_ns).sum();
    let (first, last) =
        (laps.iter().map(|lap| lap.start).min(), laps.iter().map(|lap| lap.end).max());
    let all = last.zip(first).map_or(Duration::ZERO, |(last, first)| last - first);
    let mut side =
        Side { ops, span_s: all.as_secs_f64(), cpu_s: cpu_ns as f64 / 1e9, ..Side::default() };
    for lap in laps {
        let seconds = (lap.end - lap.start).as_secs_f64().max(1e-9);
        side.wall_s += seconds;
        side.delay_s += lap.delay_ns as f64 / 1e9;
        side.spent.add(&lap.spent);
    }
    side
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::{GlobalLock, Kind, RenameSeqLock, RenameSeqRwLock, make_path};
    use crate::ours::Ours;

    fn racers() -> Vec<Box<dyn Dentries>> {
        vec![
            Box::new(Ours::empty(64).unwrap()),
            Box::new(GlobalLock::new(64)),
            Box::new(RenameSeqRwLock::new(64)),
            Box::new(RenameSeqLock::new(64)),
        ]
    }

    /// A race, with the paths that are right for the reader.
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
        assert_eq!(outcome.wrong, 0, "{variant}");
        assert!(outcome.reads.ops > 0 && outcome.renames.ops > 0, "{variant}");
        assert!(outcome.reads.ops_per_cpu_s() > 0.0 && outcome.reads.wall_s > 0.0, "{variant}");
        // It ends at home.
        assert_eq!(dentries.walk(b"/a/other"), None, "{variant}");
        let outcome = race(dentries, dentries, &[b"/somewhere/else"]);
        assert_eq!(outcome.wrong, outcome.reads.ops, "{variant}: a wrong path is counted");
    }

    #[test]
    fn race_of_every_design_counts_what_it_does_and_what_is_wrong() {
        check(&Ours::empty(64).unwrap());
        check(&GlobalLock::new(64));
        check(&RenameSeqRwLock::new(64));
        check(&RenameSeqLock::new(64));
    }

    #[test]
    fn side_of_a_thread_that_came_late_is_not_faster_for_it() {
        let end = Instant::now() + Duration::from_secs(1);
        let lap = |wall_ms: u64| Lap {
            tally: Tally { ops: 100, wrong: 0 },
            start: end - Duration::from_millis(wall_ms),
            end,
            cpu_ns: 1_000_000,
            delay_ns: wall_ms * 500_000,
            spent: Spent::default(),
        };
        let side = side(&[lap(100), lap(1)]);
        assert_eq!((side.ops, side.ops_per_s()), (200, 2000.0));
        assert_eq!((side.ops_per_cpu_s(), side.starved_share()), (100_000.0, 0.5));
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
