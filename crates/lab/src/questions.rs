//! The operations (questions) that one worker measures, such as the lookup of a name, drawn at
//! random before the measurement.
//!
//! In a server, the name of a request is already in the processor's cache. A loop that draws a
//! random name from a large array would also measure the load of that name.
//!
//! Each worker has its names in one array, in the order of their use, which the processor
//! prefetches. Then only the memory of the measured variant misses the cache.
//!
//! # Answers
//! After every operation a worker compares the inode number, or the length of the path, with the
//! right one. After every sixteenth path it also compares the bytes.
//!
//! Source: stat(2), getcwd(2).

use crate::corpus::{Corpus, ROOT, SYNTHETIC};
use crate::crew::{Laps, Turn};

/// Operations of one job.
const CHUNK: usize = 64;
/// A worker compares the bytes of every sixteenth path, and only the length of all others.
const COMPARE_EVERY: u64 = 16;

/// The kinds of questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// Finds an inode number by parent and name, and adds one client lookup. This is the part of a
    /// FUSE LOOKUP that concerns names.
    Lookup,
    /// Finds the full path of an inode. The caller owns the path.
    Path,
    /// Finds the inode number at an absolute path.
    Walk,
}

impl Op {
    /// All operations.
    #[cfg(test)]
    pub(crate) const ALL: [Op; 3] = [Op::Lookup, Op::Path, Op::Walk];

    /// Returns the name of this operation in the result rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Lookup => "lookup",
            Op::Path => "path",
            Op::Walk => "walk",
        }
    }
}

/// One question with its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub ino: u64,
    /// The inode number of the directory of the target.
    pub parent: u64,
    start: u32,
    len: u16,
}

/// The questions of one worker.
pub(crate) struct Questions {
    targets: Vec<Target>,
    bytes: Vec<u8>,
}

/// The work of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Operations.
    pub ops: u64,
    /// Wrong answers.
    pub wrong: u64,
}

impl Questions {
    /// Returns `draws` random operations of the kind `op`, on entries of `pool`, or on any entries
    /// of the tree `corpus` if `pool` is empty.
    pub(crate) fn draw(
        corpus: &Corpus,
        op: Op,
        draws: usize,
        seed: u64,
        pool: &[u64],
    ) -> Questions {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut questions = Questions { targets: Vec::with_capacity(draws), bytes: Vec::new() };
        while questions.targets.len() < draws {
            let ino = match pool.len() as u64 {
                0 => rng.u64(..corpus.len() as u64) + 1,
                len => pool[rng.u64(..len) as usize],
            };
            if [ROOT, SYNTHETIC].contains(&ino) {
                continue;
            }
            let start = questions.bytes.len() as u32;
            match op {
                Op::Lookup => questions.bytes.extend_from_slice(corpus.name(ino)),
                Op::Path | Op::Walk => questions.bytes.extend(corpus.path(ino)),
            }
            let len = (questions.bytes.len() - start as usize) as u16;
            questions.targets.push(Target { ino, parent: corpus.parent(ino), start, len });
        }
        questions
    }

    /// Does operations (questions) from number `first` on until the time slice ends. `ask` does
    /// one, and returns true if its answer was right.
    #[inline]
    pub(crate) fn ask(
        &self,
        first: usize,
        turn: Turn<'_>,
        mut ask: impl FnMut(&Target, &[u8]) -> bool,
    ) -> Laps {
        let mut rest = &self.targets[first % self.targets.len()..];
        turn.run_jobs(|| {
            let (chunk, behind) = rest.split_at(CHUNK.min(rest.len()));
            rest = if behind.is_empty() { &self.targets } else { behind };
            let mut tally = Tally { ops: chunk.len() as u64, wrong: 0 };
            for target in chunk {
                tally.wrong += u64::from(!ask(target, self.bytes_of(target)));
            }
            tally
        })
    }

    #[inline]
    fn bytes_of(&self, target: &Target) -> &[u8] {
        &self.bytes[target.start as usize..target.start as usize + usize::from(target.len)]
    }
}

/// Returns true if `path` is the expected path. Compares the bytes only if `number` is a multiple
/// of 16, and otherwise the lengths.
#[inline]
pub(crate) fn is_path(expected: &[u8], path: Option<&[u8]>, number: u64) -> bool {
    let Some(path) = path else { return false };
    let is_compared = number.is_multiple_of(COMPARE_EVERY);
    path.len() == expected.len() && (!is_compared || path == expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_every_op_have_the_answers_of_the_tree() {
        let corpus = Corpus::collect(2000);
        for op in Op::ALL {
            let questions = Questions::draw(&corpus, op, 500, 7, &[]);
            for target in &questions.targets {
                let bytes = questions.bytes_of(target);
                match op {
                    Op::Lookup => assert_eq!(corpus.child(target.parent, bytes), Some(target.ino)),
                    Op::Path | Op::Walk => assert_eq!(corpus.path(target.ino), bytes),
                }
            }
        }
    }

    #[test]
    fn path_of_another_length_or_content_is_wrong() {
        assert!(is_path(b"/a/b", Some(b"/a/b"), 0) && !is_path(b"/a/b", None, 1));
        assert!(!is_path(b"/a/b", Some(b"/a/c"), 0) && !is_path(b"/a/b", Some(b"/a"), 1));
    }

    #[test]
    fn asking_goes_round_and_counts_wrong_answers() {
        let corpus = Corpus::collect(200);
        let questions = Questions::draw(&corpus, Op::Lookup, 100, 7, &[]);
        let slice = crate::crew::run(1, std::time::Duration::from_millis(5), |_, turn| {
            let mut asked = 0_u64;
            questions.ask(90, turn, |_, _| {
                asked += 1;
                !asked.is_multiple_of(2)
            })
        });
        assert!(slice.ops > 100, "one round has 100 questions");
        assert_eq!(slice.wrong, slice.ops / 2);
    }
}
