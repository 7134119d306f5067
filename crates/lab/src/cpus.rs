//! The processors that this process may use, and threads that stay on one of them.
//!
//! Source: sched_setaffinity(2).

use anyhow::Context as _;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the processors that the calling thread may use.
///
/// # Errors
/// If the kernel does not tell.
pub(crate) fn all() -> anyhow::Result<CpuSet> {
    sched_getaffinity(None).context("sched_getaffinity")
}

/// Returns the numbers of these processors; processor 0 alone if the kernel does not tell.
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

/// Keeps the calling thread, and those that it starts, on one processor. If the processor has gone
/// meanwhile, the scheduler chooses.
pub(crate) fn pin(cpu: usize) {
    let _ = sched_setaffinity(None, &one(cpu));
}

/// Keeps the threads that are started from here on one processor, for as long as it lives.
pub(crate) struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Keeps this thread, and those that it starts, on the first of the processors it may use.
    ///
    /// # Errors
    /// If the kernel refuses.
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
