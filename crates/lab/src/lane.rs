//! What one thread asks for: targets drawn ahead, laid out in the order they are used.
//!
//! A benchmark that draws a random target and then loads its name from a big array measures that
//! load as much as the design. A server gets its names in a request that is in its cache. So a lane
//! is a list of uniform random draws with the bytes beside each other, which the processor reads
//! ahead; what misses the cache is the design's own memory.
//!
//! # Answers
//! Each target carries the right answer. Inode numbers are compared on every operation, paths by
//! length on every operation and by content on every sixteenth. While a directory is moved there
//! and back, a path below it has two right answers.
//!
//! Source: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled", 2014,
//! for the random numbers.

use crate::corpus::{Corpus, Move, ROOT};
use crate::crew::{Laps, Turn};

/// Operations of one job.
const CHUNK: usize = 64;
/// Paths are compared byte by byte once in so many operations.
const COMPARE_EVERY: u64 = 16;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// (parent inode number, name) to inode number, and one reference for the client: the namespace
    /// work of a FUSE LOOKUP.
    Lookup,
    /// Inode number to full path, owned by the caller.
    Path,
    /// Absolute path to inode number.
    Walk,
}

impl Op {
    /// All operations.
    #[cfg(test)]
    pub(crate) const ALL: [Op; 3] = [Op::Lookup, Op::Path, Op::Walk];

    /// Returns the name in the rows.
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
    /// The inode number that is asked for or asked about.
    pub ino: u64,
    /// The inode number of the directory it is in.
    pub parent: u64,
    start: u32,
    len: u16,
    /// Bytes of its path that belong to the directory that is moved; 0 if it is not below that.
    moved_len: u16,
}

/// The questions of one thread.
pub(crate) struct Lane {
    targets: Vec<Target>,
    bytes: Vec<u8>,
    away: Vec<u8>,
}

/// What one thread has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Operations.
    pub ops: u64,
    /// Answers that were wrong.
    pub wrong: u64,
}

impl Lane {
    /// Returns `draws` questions of `op` about entries of `corpus`, chosen by `seed`.
    ///
    /// The directory that `moved` moves is never asked for, and with [`Op::Walk`] nothing below it,
    /// since its path is not always the same.
    pub(crate) fn draw(corpus: &Corpus, moved: &Move, op: Op, draws: usize, seed: u64) -> Lane {
        let all = corpus.len() as u64;
        Lane::draw_with(corpus, moved, op, draws, seed, |rng| rng.below(all) + 1)
    }

    /// Returns questions as [`Lane::draw`] does, about entries of `pool`, none of which is one that is
    /// never asked for.
    pub(crate) fn draw_among(
        corpus: &Corpus,
        moved: &Move,
        op: Op,
        draws: usize,
        (seed, pool): (u64, &[u64]),
    ) -> Lane {
        let pick = |rng: &mut Rng| pool[rng.below(pool.len() as u64) as usize];
        Lane::draw_with(corpus, moved, op, draws, seed, pick)
    }

    fn draw_with(
        corpus: &Corpus,
        moved: &Move,
        op: Op,
        draws: usize,
        seed: u64,
        pick: impl Fn(&mut Rng) -> u64,
    ) -> Lane {
        let mut rng = Rng(seed | 1);
        let mut lane = Lane {
            targets: Vec::with_capacity(draws),
            bytes: Vec::new(),
            away: [&corpus.path(moved.away.0)[..], b"/", &moved.away.1[..]].concat(),
        };
        let home_len = corpus.path(moved.ino).len();
        while lane.targets.len() < draws {
            let ino = pick(&mut rng);
            let is_moved = corpus.is_below(ino, moved.ino);
            if [ROOT, moved.ino, corpus.synthetic()].contains(&ino) || (op == Op::Walk && is_moved)
            {
                continue;
            }
            let start = lane.bytes.len() as u32;
            match op {
                Op::Lookup => lane.bytes.extend_from_slice(corpus.name(ino)),
                Op::Path | Op::Walk => lane.bytes.extend(corpus.path(ino)),
            }
            lane.targets.push(Target {
                ino,
                parent: corpus.parent(ino),
                start,
                len: (lane.bytes.len() - start as usize) as u16,
                moved_len: if is_moved { home_len as u16 } else { 0 },
            });
        }
        lane
    }

    /// Asks from the target `first` on, round and round, until the slice is over. `ask` returns
    /// whether the answer was right.
    #[inline]
    pub(crate) fn ask(
        &self,
        first: usize,
        turn: Turn,
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

    /// Returns true if `path` is the path of `target`, or the one it has while it is moved away.
    #[inline]
    pub(crate) fn is_path(
        &self,
        target: &Target,
        expected: &[u8],
        path: Option<&[u8]>,
        turn: u64,
    ) -> bool {
        let Some(path) = path else { return false };
        if !turn.is_multiple_of(COMPARE_EVERY) && path.len() == expected.len() {
            return true;
        }
        path == expected || self.is_moved_path(target, expected, path)
    }

    /// Returns all questions with their bytes.
    #[cfg(test)]
    pub(crate) fn targets(&self) -> impl Iterator<Item = (&Target, &[u8])> {
        self.targets.iter().map(|target| (target, self.bytes_of(target)))
    }

    #[cold]
    fn is_moved_path(&self, target: &Target, expected: &[u8], path: &[u8]) -> bool {
        target.moved_len > 0
            && path.strip_prefix(&self.away[..]) == Some(&expected[usize::from(target.moved_len)..])
    }

    #[inline]
    fn bytes_of(&self, target: &Target) -> &[u8] {
        &self.bytes[target.start as usize..target.start as usize + usize::from(target.len)]
    }
}

/// A small generator of random numbers (xorshift64*), good enough to choose targets.
pub(crate) struct Rng(pub u64);

impl Rng {
    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(number) * u128::from(n)) >> 64) as u64
    }
}

/// A flag that ends the threads of a test.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Stop(corewalk_base::primitives::atomic::AtomicBool);

#[cfg(test)]
impl Stop {
    /// Tells the threads to stop.
    pub(crate) fn set(&self) {
        // ORDERING: Relaxed. A flag; the results come back by joining.
        self.0.store(true, corewalk_base::primitives::atomic::Ordering::Relaxed);
    }

    /// Returns true once the threads are to stop.
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Relaxed. See `set`.
        self.0.load(corewalk_base::primitives::atomic::Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lane_of_every_op_asks_what_the_tree_answers() {
        let corpus = Corpus::collect(2000);
        let moved = corpus.movable();
        for op in Op::ALL {
            let lane = Lane::draw(&corpus, &moved, op, 500, 7);
            for (target, bytes) in lane.targets() {
                match op {
                    Op::Lookup => {
                        assert_eq!(corpus.child(target.parent, bytes), Some(target.ino));
                    }
                    Op::Path | Op::Walk => assert_eq!(corpus.path(target.ino), bytes),
                }
            }
        }
    }

    #[test]
    fn path_check_accepts_both_places_and_nothing_else() {
        let corpus = Corpus::collect(5000);
        let moved = corpus.movable();
        let lane = Lane::draw(&corpus, &moved, Op::Path, 4000, 7);
        let away = [b"/synthetic/moved-away".as_slice()].concat();
        let mut below = 0;
        for (target, home) in lane.targets() {
            assert!(lane.is_path(target, home, Some(home), 0));
            assert!(!lane.is_path(target, home, Some(b"/elsewhere"), 0));
            assert!(!lane.is_path(target, home, None, 1));
            if target.moved_len > 0 {
                below += 1;
                let moved = [&away, &home[usize::from(target.moved_len)..]].concat();
                assert!(lane.is_path(target, home, Some(&moved), 0));
            }
        }
        assert!(below > 0, "no target lies below the moved directory");
    }

    #[test]
    fn asking_goes_round_and_counts_wrong_answers() {
        let corpus = Corpus::collect(200);
        let moved = corpus.movable();
        let lane = Lane::draw(&corpus, &moved, Op::Lookup, 100, 7);
        let slice = crate::crew::run(1, std::time::Duration::from_millis(5), |_, turn| {
            let mut asked = 0_u64;
            lane.ask(90, turn, |_, _| {
                asked += 1;
                !asked.is_multiple_of(2)
            })
        });
        assert!(slice.ops > 100, "one round has 100 questions");
        assert_eq!(slice.wrong, slice.ops / 2);
    }
}
