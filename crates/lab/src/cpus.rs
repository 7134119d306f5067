//! Tells which processors this process may use, and pins threads to one of them.
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

/// Returns the numbers of the processors that the calling thread may use. Returns only processor 0
/// if the kernel does not tell.
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

/// Pins the calling thread, and the threads that it starts later, to one processor. If that
/// processor is gone, the scheduler chooses.
pub(crate) fn pin(cpu: usize) {
    let _ = sched_setaffinity(None, &one(cpu));
}

/// While this value exists, the thread that made it, and the threads that it starts, stay on one
/// processor.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins this thread, and the threads that it starts, to the first processor that it may use.
    ///
    /// # Errors
    /// The error of sched_setaffinity(2).
    pub(crate) fn to_one_cpu() -> anyhow::Result<Pinned> {
        let before = all()?;
        sched_setaffinity(None, &one(each()[0])).context("sched_setaffinity")?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A processor that has gone meanwhile is not missed.
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use corewalk_base::primitives::thread;

    use super::*;

    #[test]
    fn pinned_threads_have_one_processor_and_all_afterwards() {
        let before = all().unwrap().count();
        let pinned = Pinned::to_one_cpu().unwrap();
        let inside = thread::spawn(|| all().unwrap().count()).join().unwrap();
        drop(pinned);
        assert_eq!((inside, all().unwrap().count()), (1, before));
    }
}
