//! Selects the atomics and threads for a build: those of `std`, or those of a model checker.
//!
//! Every protocol of this workspace uses the atomics and threads of this module, so the same source
//! runs in four ways:
//! - Normally, the names are those of `std`.
//! - Under loom (`--cfg corewalk_loom`), a model runs every interleaving of two or three threads,
//!   with every value that weak memory allows.
//! - Under shuttle (`--cfg corewalk_shuttle`), larger programs run in random schedules.
//! - With `--cfg corewalk_crash`, a thread can be stopped before any store of a word (`crash`).
//!
//! No other file may name `std::sync::atomic` or `std::thread`, because a model checker does not
//! see operations of these modules.
//!
//! This module also gives every thread its *shard*, a small number that spreads counters and free
//! lists over cache lines. Each new thread takes the next number and keeps it. Two living threads
//! share a shard only if more than [`SHARDS`] threads were started.
//!
//! A shard gives no exclusive access. Sharded structures stay correct when all threads use one
//! shard, as they do under the model checkers.
//!
//! # Rules
//!
//! - The module `unmodelled` has atomic words for bookkeeping on which no protocol depends:
//!   statistics, and tallies of a model's outcomes. No model checker sees these words.
//! - The modules `locks` and `park` have the locks and the blocking calls.
//!
//! Source: the same switch in haphazard (`src/sync.rs`) and in mountpoint-s3-fs (`src/sync.rs`).

#[cfg(corewalk_loom)]
mod chosen {
    pub use loom::sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
        },
    };
    pub(super) use loom::{hint, thread};
}

#[cfg(all(corewalk_shuttle, not(corewalk_loom)))]
mod chosen {
    pub use shuttle::sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
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
        atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicUsize, Ordering, fence},
    };
    pub(super) use std::{hint, thread};
}

#[cfg(corewalk_crash)]
pub mod crash;

/// Atomic words and fences.
pub mod atomic {
    pub use super::chosen::{
        AtomicBool, AtomicI64, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
}

/// Atomic words that no model checker sees, for statistics and for counts of a model's outcomes.
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

/// Number of shards in a sharded counter or free list. It is a power of two.
///
/// With 32 shards, a structure with one cache line per shard takes 2 KiB. Under a model checker
/// there are two shards, and every thread uses the first one.
pub const SHARDS: usize = if IS_MODEL { 2 } else { 32 };

/// Returns true if a panic is unwinding this thread. The function also works under a model checker.
#[must_use]
pub fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Returns the shard of the calling thread, below [`SHARDS`].
///
/// While a thread's thread-local storage is being destroyed, the thread gets shard 0.
#[inline]
#[must_use]
pub fn shard_index() -> usize {
    if IS_MODEL {
        return 0;
    }
    thread_local! {
        static SHARD: usize = {
            static NEXT: unmodelled::AtomicUsize = unmodelled::AtomicUsize::new(0);
            // ORDERING: Relaxed. The numbers only spread threads, and publish no other memory.
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
