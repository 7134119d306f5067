//! Grace periods by `crossbeam-epoch`, with a wait, a brake and a count on top.
//!
//! A section pins the thread to the current epoch; garbage of an epoch is freed two epochs later,
//! and the epoch advances only when every pinned thread has seen it. `crossbeam-epoch` frees as a
//! side effect of pinning, which is enough while traffic flows and not when it stops or when one
//! thread retires far more than the rest read. So `defer` helps when too much waits, and
//! `synchronize` drives the epoch by itself.
//!
//! # Rules
//!
//! - `synchronize` yields a few times and then naps: there is no event to sleep on, since the
//!   readers, who would have to signal it, must not pay for it.
//! - The brake never blocks. It frees what can be freed, and yields when the caller is in no
//!   section, to let a preempted reader finish.
//!
//! # What it refuses
//!
//! Its own garbage lists and expedited grace periods. A membarrier(2) scheme would make a section
//! ten times cheaper; the hot path of the workspace needs no section at all (see `arena`), so it
//! has not paid for its upkeep.
//!
//! Source: crossbeam-epoch 0.9 (`src/internal.rs`); on a virtual machine with two cores a pin costs
//! about 10 ns.

use super::{Stats, watch};
use crate::{
    counter::ShardedCounter,
    primitives::{
        Arc, thread,
        unmodelled::{AtomicBool, Ordering},
    },
};
use std::time::Duration;

/// Deferred closures above which `defer` helps to free.
const GARBAGE_HIGH: i64 = 4096;

/// A thread looks at the sum over all threads once in so many deferrals.
const DEFERS_PER_LOOK: u32 = 64;

/// Yields of `synchronize` before it naps.
const YIELDS_MAX: u32 = 64;

/// Nap of `synchronize` between two looks; a grace period under load is about as long.
const NAP: Duration = Duration::from_micros(100);

/// Closures deferred less closures run.
static GARBAGE: ShardedCounter = ShardedCounter::new();

/// An open section.
pub(super) struct Section {
    _pin: crossbeam_epoch::Guard,
    _watched: watch::Watched,
}

#[inline]
pub(super) fn enter() -> Section {
    Section { _watched: watch::enter(), _pin: crossbeam_epoch::pin() }
}

pub(super) fn defer(reclaim: impl FnOnce() + Send + 'static) {
    GARBAGE.add(1);
    let pin = crossbeam_epoch::pin();
    pin.defer(move || {
        GARBAGE.add(-1);
        reclaim();
    });
    if watch::is_nth_defer(DEFERS_PER_LOOK) && GARBAGE.sum() > GARBAGE_HIGH {
        pin.flush();
        drop(pin);
        if !watch::is_inside() {
            thread::yield_now();
        }
    }
}

pub(super) fn synchronize() {
    assert!(!watch::is_inside(), "synchronize inside a read section waits for itself");
    let ended = Arc::new(AtomicBool::new(false));
    let signal = Arc::clone(&ended);
    // ORDERING(grace-end): Release. What the sections did happens before what follows the wait.
    defer(move || signal.store(true, Ordering::Release));
    let mut looks = 0;
    loop {
        crossbeam_epoch::pin().flush();
        // ORDERING(grace-end): Acquire. See above.
        if ended.load(Ordering::Acquire) {
            return;
        }
        if looks < YIELDS_MAX {
            looks += 1;
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }
}

pub(super) fn stats() -> Stats {
    let (readers, oldest_section_age) = watch::scan();
    Stats { garbage: u64::try_from(GARBAGE.sum()).unwrap_or(0), readers, oldest_section_age }
}
