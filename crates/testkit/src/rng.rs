//! Seeds and a generator of random numbers, so that a random test can be repeated.
//!
//! All random choices of a test come from one [`Seed`], the value of the environment variable
//! `COREWALK_SEED` or one made from the time. If the test panics, [`ReportSeed`] prints it.
//!
//! The generator is xorshift64*, and splitmix64 makes its first state from the seed, so that
//! similar seeds give different numbers. [`Rng::fork`] gives each thread its own stream. A
//! dependency could change the numbers of an old seed, so the generator is written here. It is not
//! for secrets.
//!
//! The seed determines the operations of a test, but not in which order the kernel runs its
//! threads.
//!
//! ```
//! use corewalk_testkit::rng::{Rng, Seed};
//!
//! let mut one = Rng::new(Seed(7));
//! let mut two = Rng::new(Seed(7));
//! assert_eq!(one.next_u64(), two.next_u64());
//! ```
//!
//! Source: Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled",
//! 2016; Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.

use crate::real::thread;
use std::{env, fmt, ops::Range, time::SystemTime};

/// The environment variable with the seed of all tests in the process.
pub const SEED_VARIABLE: &str = "COREWALK_SEED";

/// The number that determines all random choices of a test run.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seed(
    /// The number. Each value is valid.
    pub u64,
);

impl Seed {
    /// Returns the seed in `COREWALK_SEED`, or one made from the time and the pid.
    ///
    /// # Panics
    ///
    /// Panics if the value of `COREWALK_SEED` is no number, decimal or `0x` hexadecimal. So a
    /// mistyped seed does not silently start another run.
    pub fn choose() -> Self {
        match env::var(SEED_VARIABLE) {
            Ok(text) => Self::parse(&text)
                .unwrap_or_else(|| panic!("{SEED_VARIABLE}={text} is not a number")),
            Err(_) => Self::from_time(),
        }
    }

    /// Parses a decimal number, or `0x` and hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        number.ok().map(Self)
    }

    fn from_time() -> Self {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut state = since.as_nanos() as u64 ^ (u64::from(std::process::id()) << 32);
        Self(splitmix(&mut state))
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SEED_VARIABLE}={:#018x}", self.0)
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A guard that prints the seed if it is dropped during a panic.
///
/// ```
/// use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
///
/// let report = ReportSeed::new(Seed::choose());
/// let mut rng = Rng::new(report.seed());
/// assert!(rng.below(10) < 10);
/// ```
#[derive(Debug)]
pub struct ReportSeed {
    seed: Seed,
}

impl ReportSeed {
    /// Returns a guard for `seed`.
    pub fn new(seed: Seed) -> Self {
        Self { seed }
    }

    /// Returns the seed that the guard reports.
    pub fn seed(&self) -> Seed {
        self.seed
    }
}

impl Drop for ReportSeed {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("to repeat this run: {}", self.seed);
        }
    }
}

/// A xorshift64* generator.
#[derive(Clone, Debug)]
pub struct Rng {
    /// The state of the generator.
    ///
    /// # Invariants
    /// The state is never zero, since xorshift makes only zeros from zero.
    state: u64,
    seed: Seed,
}

impl Rng {
    /// Returns the generator for `seed`.
    pub fn new(seed: Seed) -> Self {
        let mut state = seed.0;
        // INVARIANT: the state is not zero. splitmix64 is a bijection, so only one seed would give
        // zero, and it gets state 1 instead.
        Self { state: splitmix(&mut state).max(1), seed }
    }

    /// Returns the generator of the stream with number `stream`.
    ///
    /// The numbers of the new stream depend only on the seed of `self` and on `stream`, not on how
    /// many numbers were drawn.
    pub fn fork(&self, stream: u64) -> Self {
        let mut state = self.seed.0 ^ stream.wrapping_add(1).wrapping_mul(0xd134_2543_de82_ef95);
        Self::new(Seed(splitmix(&mut state)))
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `bound`.
    ///
    /// # Panics
    ///
    /// Panics if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "the bound is zero");
        // The high half of the product is biased by at most bound / 2^64, which no test can notice.
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an index below `len`.
    ///
    /// # Panics
    ///
    /// Panics if `len` is zero.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Returns a number of `range`.
    ///
    /// # Panics
    ///
    /// Panics if the range is empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "the range is empty");
        range.start + self.below(range.end - range.start)
    }

    /// Returns true with probability `part / whole`.
    ///
    /// # Panics
    ///
    /// Panics if `whole` is zero.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// Returns one element of `items`.
    ///
    /// # Panics
    ///
    /// Panics if `items` is empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.index(end + 1));
        }
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_from_zero_gives_the_published_sequence() {
        let mut state = 0;
        assert_eq!(splitmix(&mut state), 0xe220_a839_7b1d_cdaf);
        assert_eq!(splitmix(&mut state), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn seed_printed_and_parsed_is_the_same() {
        let seed = Seed(0x00ab_cdef);
        let printed = seed.to_string();
        let (name, value) = printed.split_once('=').expect("a variable and its value");
        assert_eq!(name, SEED_VARIABLE);
        assert_eq!(Seed::parse(value), Some(seed));
        assert_eq!(Seed::parse("11259375"), Some(seed));
        assert_eq!(Seed::parse("eleven"), None);
    }

    #[test]
    fn streams_of_one_seed_differ_and_repeat() {
        let root = Rng::new(Seed(3));
        let draw = |stream| root.fork(stream).next_u64();
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
        let mut drawn = root.clone();
        drawn.next_u64();
        assert_eq!(drawn.fork(1).next_u64(), draw(1));
    }

    #[test]
    fn numbers_below_a_bound_reach_each_value_and_stay_below() {
        let mut rng = Rng::new(Seed(1));
        let mut seen = [0_u32; 7];
        for _ in 0..7_000 {
            seen[rng.index(7)] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1_200).contains(&count)), "{seen:?}");
    }

    #[test]
    fn shuffle_keeps_every_element() {
        let mut items: Vec<u32> = (0..100).collect();
        Rng::new(Seed(5)).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
