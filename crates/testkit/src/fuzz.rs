//! A fuzz test runs its target, the code under test, with the inputs of a corpus and with randomly
//! changed copies of them.
//!
//! The corpus of a fuzz test is a directory of inputs, in `fuzz/` below the root of the repository.
//! The test first runs all of them. Then it repeatedly copies one of them, changes a few bytes of
//! the copy, and runs it.
//!
//! The target returns an answer for each input, for example an error number. If the answer to a
//! changed input is new, the test also copies and changes that input. So the search gets past the
//! first check that refuses an input.
//!
//! If the code under test panics, the fuzz test writes the input to a file. It also prints the
//! command that adds the file to the corpus.
//!
//! ```
//! use corewalk_testkit::fuzz::Fuzz;
//!
//! let answers = Fuzz::of("names").runs(100).run(|input| std::str::from_utf8(input).is_ok());
//! assert!(answers.contains_key(&true), "no input was valid UTF-8");
//! ```
//!
//! # Guarantees
//!
//! - A.1: the inputs depend only on the corpus, the code under test and the seed. So a run with the
//!   printed seed in `COREWALK_SEED` repeats a failure.
//! - A.2: a test without a corpus panics.
//!
//! `COREWALK_FUZZ_TIMES` multiplies the number of runs; `cargo xtask nightly` sets it.
//!
//! Source: AFL's deterministic and havoc stages; Go's `testing.F`.

use crate::{
    real::thread,
    rng::{ReportSeed, Rng, Seed},
};
use std::{
    collections::BTreeMap,
    env,
    fmt::Debug,
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::{Path, PathBuf},
};

const TIMES: &str = "COREWALK_FUZZ_TIMES";

/// A longer input is truncated.
const LEN_MAX: usize = 1 << 16;

/// The limits of integer types. The test writes such a number, or one next to it, into an input.
const EDGES: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, i32::MAX as u64, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// A fuzz test: the name of its corpus, the strings that it inserts into inputs, and its number of
/// runs.
#[derive(Clone, Debug)]
pub struct Fuzz {
    name: String,
    words: Vec<Vec<u8>>,
    runs: u64,
}

impl Fuzz {
    /// Returns a test with the inputs in `fuzz/NAME`.
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), words: Vec::new(), runs: 2_000 }
    }

    /// Sets byte strings that the test inserts into inputs.
    #[must_use]
    pub fn words(mut self, words: &[&[u8]]) -> Self {
        self.words = words.iter().map(|word| word.to_vec()).collect();
        self
    }

    /// Sets how many randomly changed inputs the test runs. The default is 2,000.
    #[must_use]
    pub fn runs(mut self, runs: u64) -> Self {
        self.runs = runs;
        self
    }

    /// Runs `target` with each input. Returns how often `target` gave each answer.
    ///
    /// # Panics
    ///
    /// Panics if the corpus is missing or empty, or if `target` panics.
    pub fn run<A: Ord + Clone + Debug>(&self, target: impl Fn(&[u8]) -> A) -> BTreeMap<A, u64> {
        let report = ReportSeed::new(Seed::choose());
        let mut rng = Rng::new(report.seed());
        let mut inputs = self.corpus();
        let mut answers = BTreeMap::new();
        let mut answer = |input: &[u8]| {
            let failing = Failing { name: &self.name, input };
            let answer = target(input);
            drop(failing);
            let count = answers.entry(answer).or_insert(0);
            *count += 1;
            *count == 1
        };
        for input in &inputs {
            answer(input);
        }
        for _ in 0..self.runs * times() {
            let mut input = rng.pick(&inputs).clone();
            for _ in 0..=rng.below(4) {
                let other = rng.pick::<Vec<u8>>(&inputs);
                self.change(&mut input, other, &mut rng);
            }
            input.truncate(LEN_MAX);
            if answer(&input) {
                inputs.push(input);
            }
        }
        println!("{}: {answers:?}", self.name);
        answers
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(&self.name);
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "{}: the corpus has no input", folder.display());
        paths.iter().map(|path| fs::read(path).expect("an input can be read")).collect()
    }

    fn change(&self, input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
        let at = rng.index(input.len() + 1);
        let end = (at + 1 + rng.index(16)).min(input.len());
        match rng.below(9) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => {
                let piece = input[at..end].to_vec();
                insert(input, at, &piece);
            }
            3 => {
                let from = rng.index(other.len() + 1);
                let to = from + rng.index(other.len() - from + 1);
                insert(input, at, &other[from..to]);
            }
            4 if !self.words.is_empty() => insert(input, at, rng.pick::<Vec<u8>>(&self.words)),
            5 => {
                let number = rng.pick(&EDGES).wrapping_add(rng.below(3)).wrapping_sub(1);
                let width = 1 << rng.below(4);
                let end = (at + width).min(input.len());
                input[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
            6 => insert(input, at, &[rng.next_u64() as u8]),
            7 if at < input.len() => input[at] = rng.next_u64() as u8,
            _ if at < input.len() => input[at] ^= 1 << rng.below(8),
            _ => {}
        }
    }
}

fn insert(input: &mut Vec<u8>, at: usize, piece: &[u8]) {
    input.splice(at..at, piece.iter().copied());
}

fn times() -> u64 {
    let text = env::var(TIMES).ok();
    text.map_or(1, |text| text.parse().expect("COREWALK_FUZZ_TIMES is a number"))
}

/// A guard that exists while the code under test runs. If that code panics, the drop of the guard
/// writes the input to a file.
struct Failing<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let mut hasher = DefaultHasher::new();
        self.input.hash(&mut hasher);
        let name = format!("{}-{:016x}", self.name, hasher.finish());
        let path = env::temp_dir().join(&name);
        match fs::write(&path, self.input) {
            Ok(()) => eprintln!("to keep this input: cp {} fuzz/{}/", path.display(), self.name),
            Err(error) => eprintln!("{}: {error}; the input: {:?}", path.display(), self.input),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// The target checks three bytes, one after the other. To pass all checks, the test must go on
    /// with inputs that gave new answers, since random changes alone do not suffice.
    // Skip the test in Miri. It would take long there, and the code is safe.
    #[cfg(not(miri))]
    #[test]
    fn inputs_with_new_answers_lead_past_checks() {
        let passed = |input: &[u8]| {
            [b'/', b'!', 0xfe].iter().zip(input).take_while(|(right, byte)| right == byte).count()
        };
        let answers = Fuzz::of("names").words(&[b"/", b"."]).runs(100_000).run(passed);
        assert!(answers.contains_key(&3), "{answers:?}");
    }

    #[test]
    fn failing_input_is_written() {
        let name = format!("control-fuzz-{}", std::process::id());
        let failed = catch_unwind(|| {
            let _failing = Failing { name: &name, input: b"the input" };
            panic!("on purpose");
        });
        assert!(failed.is_err());
        let is_ours = |path: &PathBuf| path.display().to_string().contains(&name);
        let entries = fs::read_dir(env::temp_dir()).expect("the directory is readable").flatten();
        let written: Vec<_> = entries.map(|entry| entry.path()).filter(is_ours).collect();
        assert_eq!(written.len(), 1, "{written:?}");
        assert_eq!(fs::read(&written[0]).expect("the file is readable"), b"the input");
        fs::remove_file(&written[0]).expect("the test owns the file");
    }

    #[test]
    #[should_panic(expected = "No such file")]
    fn control_target_without_a_corpus_panics() {
        Fuzz::of("no-such-target").run(|_| ());
    }
}
