//! Tests of bugs of other name caches about object lifetime, reclaim and scale, and of the memory
//! budget. They cover traps T43 to T51, T54, T55, P8 and P12 in `traps.md`.
//!
//! In these tests an object dies while other threads use it, or there are very many objects. Some
//! compare how long two amounts of work take in the same run. They measure the CPU time of the
//! working thread, which load on the machine hardly changes.
//!
//! | module | traps |
//! |---|---|
//! | `deep` | T43, T44: chains of a million directories end without recursion, in linear time |
//! | `crowds` | T45, T46, T49, T51 and the budget: many reclaimers, entries and references |
//! | `backend` | T47, T50, T55, P12: back ends that sleep, call back, reuse numbers, change |
//! | `listing` | T48: a listing during seeks and removals |
//! | `keys` | T54: names crafted to collide |
//! | `removed` | T53, T60: negative entries below removed directories |
//! | `torn` | P8: names and parents of different instants |
//!
//! Traps T56 and T57 have no test: docs/developing/races.md says why they cannot happen in
//! corewalk.

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

fn cpu_time<R>(work: impl FnOnce() -> R) -> (Duration, R) {
    let before = thread_clock();
    let result = work();
    (thread_clock() - before, result)
}

fn thread_clock() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
