//! Deferred de-duplication: a queue of inodes whose attributes have changed.
//!
//! De-duplicating a set costs a hash, a search and a comparison. That is wasted if the inode soon
//! changes again. So a set that replaces another one stays private for [`DELAY_MS`], may be changed
//! in place, and its inode is queued here. A later change of any inode de-duplicates the sets that
//! are due.
//!
//! # Mechanism
//! Each shard of threads has a queue in the order of time. One word holds a time at or before the
//! next due time. So no lock is taken while no inode is due.
//!
//! # Invariants
//! - D.1: an inode whose private block is marked as queued is in a queue, or a thread has taken it
//!   out and handles it.
//! - D.2: `due_ms` is at most the due time of the first inode of any queue, unless a thread is
//!   about to lower it.
//!
//! # Locks
//! The lock of a queue is innermost.
//!
//! # Limits No thread runs in the background. So if no change follows, the queued sets stay private
//! until a server calls `Tmpfs::maintain` or a caller calls `Tmpfs::share_xattrs`. An inode with a
//! time ahead of the clock counts as due: the clock was set back, or the caller chose the time.

use std::collections::VecDeque;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{CachePadded, Mutex, OwnLine};

use crate::attr::Timespec;

/// The time without a change before an inode's set is de-duplicated, in milliseconds. It is longer
/// than the time between frequent changes of a file, and than the clock tick (1 to 10 ms). It is
/// short, because private sets take memory meanwhile.
pub(super) const DELAY_MS: u64 = 100;
/// Maximum number of inodes that one change de-duplicates.
const BATCH: usize = 8;

/// A queued inode, with the time of its change.
#[derive(Clone, Copy)]
struct Waiting {
    since_ms: u64,
    ino: u64,
}

/// The queues of inodes that wait for de-duplication.
///
/// # Invariants
/// D.1, D.2.
pub(super) struct Deferred {
    /// The queues, one for each shard of threads. Each queue is protected by its own mutex.
    shards: Box<[OwnLine<Mutex<VecDeque<Waiting>>>]>,
    /// A time at or before the next due time (D.2). It is atomic, because threads read it without a
    /// lock.
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

    /// Returns true if a queued inode may be due at `now`.
    #[inline]
    pub(super) fn is_due(&self, now: Timespec) -> bool {
        // ORDERING: Relaxed. A thread that sees an old value leaves the work to a later call. The
        // locks of the queues protect the queues.
        milliseconds(now) >= self.due_ms.load(Ordering::Relaxed)
    }

    /// Removes some inodes that are due at `now` from the queues and returns them. If `now` is
    /// None, any queued inode is due. An empty list means that no inode is left.
    pub(super) fn pop(&self, now: Option<Timespec>) -> Vec<u64> {
        let now_ms = now.map_or(u64::MAX, milliseconds);
        // Reset the word before the scan. A thread that pushes afterwards lowers it again (D.2).
        // ORDERING: Relaxed. See `is_due`; the queue locks order this store for threads that push.
        self.due_ms.store(u64::MAX, Ordering::Relaxed);
        let mut ripe = Vec::new();
        for shard in &self.shards {
            let mut queue = shard.lock();
            while let Some(&first) = queue.front() {
                let due_ms = first.since_ms.saturating_add(DELAY_MS);
                // Count a time that is ahead of the clock as due. Otherwise it would delay the
                // inodes behind it in the queue.
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

    /// Returns the number of queued inodes.
    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().len() as u64).sum()
    }

    fn lower_due(&self, due_ms: u64) {
        // ORDERING: Relaxed, on success and on failure. A thread that sees an old value leaves the
        // work to a later call.
        if self.due_ms.load(Ordering::Relaxed) > due_ms {
            self.due_ms.fetch_min(due_ms, Ordering::Relaxed);
        }
    }
}

/// Returns a time in milliseconds since 1970.
pub(super) fn milliseconds(time: Timespec) -> u64 {
    // Count a time before 1970 as 1970, so that it does not prevent de-duplication.
    (time.secs.max(0) as u64).saturating_mul(1000).saturating_add(u64::from(time.nanos) / 1_000_000)
}
