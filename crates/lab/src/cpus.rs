//! Which processors this process may use, and functions that pin a thread to one of them.
//!
//! Source: sched_setaffinity(2).

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors that the calling thread may use.
///
/// # Errors
/// The error of sched_getaffinity(2).
pub(crate) fn all() -> anyhow::Result<CpuSet> {
    sched_getaffinity(None).context("sched_getaffinity")
}

/// Returns the processors that the calling thread may use, or only processor 0 if the kernel does
/// not report them.
pub(crate) fn each() -> Vec<usize> {
    let all = all().unwrap_or_else(|_| one(0));
    (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect()
}

/// Returns the set of one processor.
pub(crate) fn one(cpu: usize) -> CpuSet {
    let mut one = CpuSet::new();
    one.set(cpu);
    one
}

/// Pins the calling thread, and the threads that it starts later, to one processor if that is
/// available.
pub(crate) fn pin(cpu: usize) {
    let _ = sched_setaffinity(None, &one(cpu));
}

/// Pins the calling thread, and the threads that it starts later, to the first processor that it
/// may use.
///
/// # Errors
/// The error of sched_setaffinity(2).
pub(crate) fn pin_to_first() -> anyhow::Result<()> {
    sched_setaffinity(None, &one(each()[0])).context("sched_setaffinity")
}

#[cfg(test)]
mod tests {
    use corewalk_base::primitives::thread;

    use super::*;

    #[test]
    fn pinned_thread_and_the_threads_that_it_starts_have_one_processor() {
        let before = all().unwrap().count();
        let count = || all().unwrap().count();
        let inside = thread::spawn(move || {
            pin_to_first().unwrap();
            (count(), thread::spawn(count).join().unwrap())
        });
        assert_eq!((inside.join().unwrap(), count()), ((1, 1), before));
    }
}
