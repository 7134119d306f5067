//! Inodes whose attributes have changed and are to be shared when they have been left alone for a while.
//!
//! To share a set costs a hash, a look, and a comparison; that is wasted if the next change of the same
//! inode is near. So a set that replaces another one stays private for [`DELAY_MS`], in which it can be
//! changed in place, and its inode waits here. Whoever changes attributes later shares what has waited
//! long enough.
//!
//! # How it works
//! A queue per shard of threads, in the order of time, and one word that says when the next inode is due
//! at the latest, so that there is nothing to lock while none is.
//!
//! # Invariants
//! - D.1: an inode whose private block is marked as queued is in a queue, or in the hands of who took it
//!   out.
//! - D.2: `due_ms` is at most the time at which the first of any queue is due, unless somebody is about
//!   to lower it.
//!
//! # Locks
//! A queue; innermost.
//!
//! # What it refuses
//! There is no thread that shares what waits when no change comes any more: a server calls
//! `Tmpfs::maintain` now and then, others `Tmpfs::share_xattrs`.
//! What has a time ahead of the clock, which was set back or is the caller's, is shared as if it had
//! waited.

use std::collections::VecDeque;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{CachePadded, Mutex, OwnLine};

use crate::attr::Timespec;

/// How long an inode is left alone before its attributes are shared, in milliseconds. Long against the
/// time between two changes of a file that is changed again and again, and against the tick of the
/// clock (1 to 10 ms); short for what may take memory meanwhile.
pub(super) const DELAY_MS: u64 = 100;
/// The most inodes that one change shares for others.
const BATCH: usize = 8;

/// An inode that waits, and since when.
#[derive(Clone, Copy)]
struct Waiting {
    since_ms: u64,
    ino: u64,
}

/// Inodes that wait.
///
/// # Invariants
/// D.1, D.2.
pub(super) struct Deferred {
    shards: Box<[OwnLine<Mutex<VecDeque<Waiting>>>]>,
    due_ms: CachePadded<AtomicU64>,
}

impl Deferred {
    /// Returns empty queues.
    pub(super) fn new() -> Deferred {
        Deferred {
            shards: (0..SHARDS).map(|_| OwnLine::default()).collect(),
            due_ms: CachePadded::new(AtomicU64::new(u64::MAX)),
        }
    }

    /// Adds an inode that changed at `now`.
    pub(super) fn push(&self, ino: u64, now: Timespec) {
        let since_ms = milliseconds(now);
        self.shards[shard_index()].lock().push_back(Waiting { since_ms, ino });
        self.lower_due(since_ms.saturating_add(DELAY_MS));
    }

    /// Returns true if an inode may have waited long enough at `now`.
    #[inline]
    pub(super) fn is_due(&self, now: Timespec) -> bool {
        // ORDERING: Relaxed. Who sees it late leaves the work to the next one; the queues have locks.
        milliseconds(now) >= self.due_ms.load(Ordering::Relaxed)
    }

    /// Takes out some inodes that have waited long enough at `now`, or, without a time, that wait at all.
    /// None are left when it returns an empty list.
    pub(super) fn pop(&self, now: Option<Timespec>) -> Vec<u64> {
        let now_ms = now.map_or(u64::MAX, milliseconds);
        // Before the queues are looked at, so that who adds one afterwards lowers it again (D.2).
        // ORDERING: Relaxed. See `is_due`; the locks of the queues order this for who adds.
        self.due_ms.store(u64::MAX, Ordering::Relaxed);
        let mut ripe = Vec::new();
        for shard in &self.shards {
            let mut queue = shard.lock();
            while let Some(&first) = queue.front() {
                let due_ms = first.since_ms.saturating_add(DELAY_MS);
                // A time ahead of the clock must not keep all behind it waiting.
                let is_ripe = due_ms <= now_ms || first.since_ms > now_ms;
                if !is_ripe || ripe.len() == BATCH {
                    self.lower_due(due_ms);
                    break;
                }
                queue.pop_front();
                ripe.push(first.ino);
            }
        }
        ripe
    }

    /// Returns how many inodes wait.
    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len() as u64).sum()
    }

    fn lower_due(&self, due_ms: u64) {
        // ORDERING: Relaxed, both. See `is_due`.
        if self.due_ms.load(Ordering::Relaxed) > due_ms {
            self.due_ms.fetch_min(due_ms, Ordering::Relaxed);
        }
    }
}

/// Returns a time in milliseconds since 1970.
pub(super) fn milliseconds(time: Timespec) -> u64 {
    // A time before 1970 is no reason to share nothing.
    (time.secs.max(0) as u64).saturating_mul(1000).saturating_add(u64::from(time.nanos) / 1_000_000)
}
