//! Counts the outcomes over all runs of a loom model.
//!
//! A model that explores no schedule proves nothing. Also, loom 0.7.2 skips schedules in which a
//! spawned thread starts with a load of a word that it later overwrites. So every model of this
//! workspace counts its outcomes, and asserts that each expected one was reached.
//!
//! The counts of outcomes are not part of the model: they persist from one run of the model to the
//! next. When a model increments a count, loom sees no atomic operation, so it explores no
//! additional schedules.
//!
//! Source: loom issues 166 and 392.

use crate::primitives::unmodelled::{Arc, AtomicUsize, Ordering};

/// Name of an environment variable. Its value is added to the maximum number of preemptions of
/// [`Tally::of_bounded`].
const MORE_PREEMPTIONS: &str = "COREWALK_LOOM_MORE_PREEMPTIONS";

const STACK_WORDS: usize = 0x8000;

/// Counts of how often a model reached each of its `N` outcomes.
#[derive(Debug)]
pub struct Tally<const N: usize> {
    counts: Arc<[AtomicUsize; N]>,
}

impl<const N: usize> Tally<N> {
    /// Runs `model` under loom for every schedule. Returns how often each outcome occurred.
    pub fn of(model: impl Fn(Self) + Send + Sync + 'static) -> [usize; N] {
        let counts = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
        let tally = Self { counts: Arc::clone(&counts) };
        loom::model(move || model(tally.clone()));
        // ORDERING: Relaxed. The models run on this thread.
        std::array::from_fn(|outcome| counts[outcome].load(Ordering::Relaxed))
    }

    /// Runs `model` as [`Tally::of`] does, but only in schedules with at most `preemptions`
    /// preemptions (switches away from a thread that could continue). Use this function for a model
    /// with too many steps for [`Tally::of`].
    ///
    /// # Panics
    ///
    /// Panics if the model panics.
    pub fn of_bounded(
        preemptions: usize,
        model: impl Fn(Self) + Send + Sync + 'static,
    ) -> [usize; N] {
        let counts = Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
        let tally = Self { counts: Arc::clone(&counts) };
        let mut builder = loom::model::Builder::new();
        let more = std::env::var(MORE_PREEMPTIONS).map_or(0, |more| more.parse().unwrap());
        builder.preemption_bound = Some(preemptions + more);
        builder.max_branches = 10_000;
        let model = Arc::new(model);
        builder.check(move || {
            let (model, tally) = (Arc::clone(&model), tally.clone());
            // The first thread of a loom model has a stack of 4096 words, too small for a model of
            // a whole cache.
            let thread = loom::thread::Builder::new().stack_size(STACK_WORDS);
            let body = thread.spawn(move || model(tally)).expect("a model gives a thread");
            if let Err(panic) = body.join() {
                std::panic::resume_unwind(panic);
            }
        });
        // ORDERING: Relaxed. The models run on this thread.
        std::array::from_fn(|outcome| counts[outcome].load(Ordering::Relaxed))
    }

    /// Counts one more run with outcome `outcome`.
    pub fn hit(&self, outcome: usize) {
        // ORDERING: Relaxed. A count.
        self.counts[outcome].fetch_add(1, Ordering::Relaxed);
    }
}

impl<const N: usize> Clone for Tally<N> {
    fn clone(&self) -> Self {
        Self { counts: Arc::clone(&self.counts) }
    }
}

/// Asserts that every outcome was reached, and prints the counts.
pub fn assert_all_reached(outcomes: &[usize]) {
    println!("outcomes {outcomes:?}");
    assert!(outcomes.iter().all(|count| *count > 0), "not reached: {outcomes:?}");
}
