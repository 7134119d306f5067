//! The one switch between the real machine and the model checkers.
//!
//! Every protocol of this workspace is written against the names below, so that the same source
//! runs on the machine (`std`), under loom (`--cfg corewalk_loom`: every interleaving and every
//! value a weak memory allows, for two or three threads) and under shuttle
//! (`--cfg corewalk_shuttle`: random schedules of larger programs). With `--cfg corewalk_crash` it runs on the
//! machine, and a thread can be stopped before any store of a word (`crash`). This is the only file that
//! names `std::sync::atomic` and `std::thread`; a second one would be code that no model sees.
//!
//! It also gives every thread its *shard*: a small number that spreads counters and free lists
//! over cache lines. Threads draw numbers in turn and keep theirs for life, so two threads that
//! live at the same time share a shard only if more than [`SHARDS`] threads were started. A shard
//! is a hint for placement, never a promise of exclusion: whatever is sharded stays correct when
//! all threads land in one shard, and under the model checkers they all do.
//!
//! # Rules
//!
//! - `unmodelled` is for bookkeeping that no protocol depends on (statistics, tallies of a model's
//!   outcomes); a model checker does not see those words.
//! - Locks and blocking are not here: see `locks` and `park`.
//!
//! Source: the same switch in haphazard (`src/sync.rs`) and in mountpoint-s3-fs (`src/sync.rs`).

#[cfg(corewalk_loom)]
mod chosen {
    pub use loom::sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
            Ordering, fence,
        },
    };
    pub(super) use loom::{hint, thread};
}

#[cfg(all(corewalk_shuttle, not(corewalk_loom)))]
mod chosen {
    pub use shuttle::sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize,
            Ordering, fence,
        },
    };
    pub(super) use shuttle::{hint, thread};
}

#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
mod chosen {
    #[cfg(corewalk_crash)]
    pub use super::crash::AtomicU64;
    #[cfg(not(corewalk_crash))]
    pub use std::sync::atomic::AtomicU64;
    pub use std::sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicUsize, Ordering, fence,
        },
    };
    pub(super) use std::{hint, thread};
}

#[cfg(corewalk_crash)]
pub mod crash;

/// Atomic words and fences.
pub mod atomic {
    pub use super::chosen::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
        fence,
    };
}

/// Atomic words that no model checker sees, for statistics and for tallies over a model's runs.
pub mod unmodelled {
    pub use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering, compiler_fence},
    };
}

/// Threads: spawn, join, yield.
pub mod thread {
    pub use super::chosen::thread::*;
}

/// Processor hints.
pub mod hint {
    pub use super::chosen::hint::spin_loop;
}

pub use chosen::Arc;

/// True when a model checker schedules the threads of this build.
pub const IS_MODEL: bool = cfg!(any(corewalk_loom, corewalk_shuttle));

/// Number of shards; a power of two.
///
/// One cache line pair each, so a sharded structure of 32 costs 4 KiB. More would help only above
/// 32 threads that run at once. A model has two, of which every thread uses the first.
pub const SHARDS: usize = if IS_MODEL { 2 } else { 32 };

/// Returns true while a panic unwinds this thread, also in a model.
#[must_use]
pub fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Returns the calling thread's shard, below [`SHARDS`], the same for the thread's whole life.
///
/// A thread whose thread-local storage is gone gets shard 0.
#[must_use]
pub fn shard_index() -> usize {
    if IS_MODEL {
        return 0;
    }
    thread_local! {
        static SHARD: usize = {
            static NEXT: unmodelled::AtomicUsize = unmodelled::AtomicUsize::new(0);
            // ORDERING: Relaxed. The numbers spread threads; nothing is published with them.
            NEXT.fetch_add(1, unmodelled::Ordering::Relaxed) % SHARDS
        };
    }
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn shard_index_of_a_thread_is_stable_and_in_range() {
        let mine = shard_index();
        assert_eq!(mine, shard_index());
        let theirs = thread::spawn(|| (shard_index(), shard_index())).join().unwrap();
        assert_eq!(theirs.0, theirs.1);
        assert!(mine < SHARDS && theirs.0 < SHARDS);
    }

    #[test]
    fn shard_index_of_concurrent_threads_spreads() {
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(shard_index)).collect();
        let mut shards: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        shards.sort_unstable();
        shards.dedup();
        assert!(shards.len() > 1, "every thread landed in {shards:?}");
    }
}
