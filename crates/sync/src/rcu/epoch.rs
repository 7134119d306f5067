//! Grace periods by `crossbeam-epoch`. A thread that makes garbage too fast has to free garbage
//! itself.
//!
//! A section pins the thread to the current epoch. Garbage of an epoch is freed two epochs later,
//! and the epoch advances only when every pinned thread has seen it.
//!
//! `crossbeam-epoch` frees garbage only as a side effect of pinning. That is too slow if one thread
//! retires values much more often than other threads pin, so `defer` frees garbage, too.
//!
//! # Rules
//!
//! - `synchronize` checks whether the grace period has ended. It yields after the first checks, and
//!   sleeps for a fixed time after each later one. A wake-up by readers would cost each read
//!   section a check for sleeping threads.
//! - `defer` never blocks. If too much garbage waits, it frees garbage whose grace period has
//!   ended. If the caller is in no read section, it also yields, so that a preempted reader can
//!   finish.
//!
//! # Rejected
//!
//! Rejected alternative: membarrier(2) would make a read section ten times cheaper. But the hot
//! path of corewalk, a path walk inside one mount, needs no read section at all (see `arena`).
//!
//! Source: crossbeam-epoch 0.9 (`src/internal.rs`); on a virtual machine with two cores a pin costs
//! about 10 ns.

use corewalk_base::{
    ShardedCounter,
    primitives::{
        Arc, thread,
        unmodelled::{AtomicBool, Ordering},
    },
};
use std::{cell::Cell, time::Duration};

/// If more than this number of deferred closures have not run yet, `defer` itself frees garbage.
const GARBAGE_HIGH: i64 = 4096;

/// A thread compares the number of waiting closures with `GARBAGE_HIGH` once per this many calls of
/// `defer`. A comparison in each call would be slow, because the number is a sum over all threads.
const DEFERS_PER_LOOK: u32 = 64;

/// How often `synchronize` yields before it begins to sleep.
const YIELDS_MAX: u32 = 64;

/// How long `synchronize` sleeps between two checks. A grace period under load takes about as long.
const NAP: Duration = Duration::from_micros(100);

/// Closures deferred minus closures run.
static GARBAGE: ShardedCounter = ShardedCounter::new();

thread_local! {
    /// Deferrals of this thread.
    static DEFERS: Cell<u32> = const { Cell::new(0) };
}

/// An open section.
pub(super) type Section = crossbeam_epoch::Guard;

#[inline]
pub(super) fn enter() -> Section {
    crossbeam_epoch::pin()
}

pub(super) fn defer(reclaim: impl FnOnce() + Send + 'static) {
    GARBAGE.add(1);
    let pin = crossbeam_epoch::pin();
    pin.defer(move || {
        GARBAGE.add(-1);
        reclaim();
    });
    let defers = DEFERS.get().wrapping_add(1);
    DEFERS.set(defers);
    if defers.is_multiple_of(DEFERS_PER_LOOK) && GARBAGE.sum() > GARBAGE_HIGH {
        pin.flush();
        drop(pin);
        if !crossbeam_epoch::is_pinned() {
            thread::yield_now();
        }
    }
}

pub(super) fn synchronize() {
    assert!(!crossbeam_epoch::is_pinned(), "synchronize inside a read section waits for itself");
    let ended = Arc::new(AtomicBool::new(false));
    let signal = Arc::clone(&ended);
    // ORDERING(grace-end): Release. `synchronize` loads `ended` with Acquire. Without this order,
    // accesses inside the ended sections could come after `synchronize`.
    defer(move || signal.store(true, Ordering::Release));
    let mut tries = 0;
    loop {
        crossbeam_epoch::pin().flush();
        // ORDERING(grace-end): Acquire. The closure above stores `true` with Release. Without this
        // order, accesses after `synchronize` could come before the end of the sections.
        if ended.load(Ordering::Acquire) {
            return;
        }
        if tries < YIELDS_MAX {
            tries += 1;
            thread::yield_now();
        } else {
            thread::sleep(NAP);
        }
    }
}
