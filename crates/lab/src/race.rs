//! Readers translate dentries to paths as fast as they can, while writers rename files.
//!
//! The load is that of Long's measurement of February 2013 (document 000 in `documents.md`).
//! Processes of a database ask for the paths of their files while other processes change names.
//!
//! A reader asks for the paths of a few dentries again and again, and compares each with all paths
//! that the dentry can have. A writer renames a file or directory to another name and back.
//!
//! # Waits for a processor
//! If a writer waits for a processor, it disturbs no reader, and every design looks better than it
//! is.
//!
//! Each worker measures how long it was ready to run but waited for a processor (`run_delay`). The
//! result of a race (a run of readers and writers) contains this time. A wait for a lock is a
//! property of the design, but a wait for a processor is one of the machine.
//!
//! Source: Long's patches of 2013 (documents 000 and 001 in `documents.md`);
//! `/proc/thread-self/schedstat`, clock_gettime(2).

use std::time::Duration;

use crate::baseline::Namespace;
use crate::crew::{self, Laps, Pinning, Slice, Turn};
use crate::questions::Tally;

/// Number of operations of one job. It is even, so that a file that a writer renames there and back
/// has its first name after a job.
const CHUNK: usize = 64;

/// The inode numbers that one reader translates. With each are the paths that are right answers
/// during the race.
#[derive(Clone, Debug)]
pub(crate) struct Reader(pub(crate) Vec<(u64, Vec<Vec<u8>>)>);

/// The rename of one writer, there and back.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    /// The first directory and name.
    pub(crate) home: (u64, Vec<u8>),
    /// The second directory and name.
    pub(crate) away: (u64, Vec<u8>),
}

/// The result of a race.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) reads: Slice,
    pub(crate) renames: Slice,
    /// How often a rename made a path translation start again, or 0 if that is not counted.
    pub(crate) retries: u64,
    /// How many translations of corewalk took a lock.
    pub(crate) fallbacks: u64,
}

impl Reader {
    /// Translates the reader's targets to paths, in turn, and compares each path with the expected
    /// ones.
    #[inline]
    pub(crate) fn ask(&self, turn: Turn<'_>, path: impl Fn(u64) -> Option<Vec<u8>>) -> Laps {
        let mut targets = self.0.iter().cycle();
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
    /// Renames the file to its second name and back until the time slice is over. Does so once
    /// before the slice, so that the cache knows both names.
    ///
    /// # Panics
    /// If a rename fails.
    #[inline]
    pub(crate) fn go(
        &self,
        turn: Turn<'_>,
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

impl Outcome {
    /// Adds the results of another race of the same kind.
    pub(crate) fn add(&mut self, other: &Outcome) {
        self.reads.add(&other.reads);
        self.renames.add(&other.renames);
        self.retries += other.retries;
        self.fallbacks += other.fallbacks;
    }
}

/// Runs one race: `readers` translate paths in the namespace `racer`, and `writers` rename in it.
///
/// # Panics
/// If a rename fails, or a thread panics.
pub(crate) fn run(
    racer: &dyn Namespace,
    readers: &[Reader],
    writers: &[Writer],
    time: Duration,
    pinning: Pinning,
) -> Outcome {
    let before = racer.stats();
    let work = |worker: usize, turn: Turn<'_>| match readers.get(worker) {
        Some(reader) => racer.translate(reader, turn),
        None => racer.rename_until(&writers[worker - readers.len()], turn),
    };
    let workers = readers.len() + writers.len();
    let (laps, ()) = crew::run_laps(workers, 1, pinning, time, work, |_| ());
    let (reads, renames) = laps.split_at(readers.len());
    let [reads, renames] = [reads, renames].map(|laps| crew::together(laps, 0));
    let after = racer.stats();
    let fallbacks = after.fallbacks - before.fallbacks;
    Outcome { reads, renames, retries: after.retries - before.retries, fallbacks }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::before::{Before, Dentries, Design, make_path};
    use corewalk::FileKind;

    const DESIGNS: [Design; 3] = [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock];
    use crate::ours::Ours;

    fn racers() -> Vec<Box<dyn Dentries>> {
        let mut all: Vec<Box<dyn Dentries>> = vec![Box::new(Ours::empty(64).unwrap())];
        all.extend(DESIGNS.map(|design| Box::new(Before::new(design, 64)) as Box<dyn Dentries>));
        all
    }

    /// Runs a race in which the reader expects the paths `right`.
    fn race(dentries: &dyn Dentries, racer: &dyn Namespace, right: &[&[u8]]) -> Outcome {
        let leaf = make_path(dentries, b"/a/b/c");
        let parent = make_path(dentries, b"/a");
        let right = right.iter().map(|path| path.to_vec()).collect();
        let readers = [Reader(vec![(leaf, right)])];
        let writers = [Writer { home: (parent, b"b".to_vec()), away: (parent, b"other".to_vec()) }];
        let (time, pinning) = (Duration::from_millis(30), Pinning::OnePerCore);
        run(racer, &readers, &writers, time, pinning)
    }

    fn check<D: Dentries>(dentries: &D) {
        let variant = dentries.variant();
        let outcome = race(dentries, dentries, &[b"/a/b/c", b"/a/other/c"]);
        assert_eq!(outcome.reads.wrong, 0, "{variant}");
        assert!(outcome.reads.ops > 0 && outcome.renames.ops > 0, "{variant}");
        assert!(outcome.reads.cpu_ns > 0 && outcome.reads.span > Duration::ZERO, "{variant}");
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
    fn walk_lookup_create_and_unlink_of_every_design_agree() {
        for dentries in racers() {
            let variant = dentries.variant();
            let parent = make_path(&*dentries, b"/a/b");
            let made = dentries.create(parent, b"file", FileKind::Regular).expect(variant);
            assert_eq!(dentries.walk(b"/a/b/file"), Some(made), "{variant}");
            assert_eq!(dentries.lookup(parent, b"file"), Some(made), "{variant}");
            assert_eq!(dentries.lookup(parent, b"absent"), None, "{variant}");
            assert_eq!(dentries.path(made).as_deref(), Some(&b"/a/b/file"[..]), "{variant}");
            assert!(dentries.rename((parent, b"file"), (1, b"moved")), "{variant}");
            assert_eq!(dentries.path(made).as_deref(), Some(&b"/moved"[..]), "{variant}");
            assert!(dentries.unlink(1, b"moved") && !dentries.unlink(1, b"moved"), "{variant}");
            assert_eq!(dentries.walk(b"/moved"), None, "{variant}");
        }
    }
}
