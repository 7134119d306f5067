//! Traps of lifetime, reclaim and scale: T43 to T51, T54, T55, P8, P12, and the budget.
//!
//! What these have in common is that something dies while others look at it, or that there is a lot
//! of it. Most of them are about time; none measures a clock on the wall where it can help it. Work
//! is measured as processor time of the thread that does it, which neighbours on the same machine
//! do not change much, and is compared with the same work at another size, in the same run.
//!
//! | module | traps |
//! |---|---|
//! | `deep` | T43, T44: what is a million levels deep falls without recursion, in linear time |
//! | `crowds` | T45, T46, T49, T51 and the budget: many reclaimers, many entries, many references |
//! | `backend` | T47, T50, T55, P12: back ends that sleep, call back, use numbers again, change |
//! | `listing` | T48: a listing while others seek and delete |
//! | `keys` | T54: names crafted to collide |
//! | `removed` | T53, T60: negative entries below removed directories
//! | `torn` | P8: names and parents of different instants |
//!
//! T56 and T57 have no test: docs/developing/races.md says why they cannot happen here.

mod backend;
mod crowds;
mod deep;
mod keys;
mod listing;
mod recycled;
mod removed;
mod torn;

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time that the calling thread spends in `work`, and what it returns.
fn cpu_time<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let before = thread_clock();
    let result = work();
    (thread_clock() - before, result)
}

/// Returns the processor time that the calling thread has used so far.
fn thread_clock() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
