//! Generations, which distinguish an inode from an earlier inode with the same number. Without them
//! a stale handle could reach the later inode (trap P11 in `traps.md`).
//!
//! Host file systems reuse the number of a removed inode immediately. The old and the new inode
//! differ in their time of creation. So that time, in microseconds, is the generation.
//!
//! The clock of a file system may tick only every few milliseconds, so two inodes with the same
//! number may have the same time:
//! - The module records the removal of each inode that is at most a second old.
//! - If a new inode has the number and the time of a recorded one, its generation also contains a
//!   count.
//! - There are few such counts, so they are kept until the server ends.
//!
//! This module serves only host file systems without file handles. Some of them record no times of
//! creation. The generation is then only the count, which starts at 0 again when the server
//! restarts. So a handle from before a restart may match another file, and an NFS export of the
//! mount is not safe.
//!
//! The module does not see removals and creations by other programs on the host.
//!
//! Source: statx(2); trap P11.

use std::collections::HashMap;

use corewalk::Timespec;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use foldhash::fast::RandomState;

/// Number of low bits of a generation that count the inodes with the same number and time of
/// creation.
const COUNT_BITS: u32 = 12;
/// Maximum number of recorded removals. When it is reached, records of inodes older than
/// [`YOUNG_US`] are dropped. If no inode is that old, all records are dropped.
const YOUNG_DEAD_MAX: usize = 4096;
/// Maximum age in microseconds of an inode whose removal is recorded. Every clock ticks within this
/// time. So a new inode cannot have the time of creation of an older removed one.
const YOUNG_US: u64 = 1_000_000;

#[derive(Default)]
pub(crate) struct Generations {
    /// Protected by its own mutex.
    known: Mutex<Known>,
    /// True if `counts` is not empty. While it is false, a call finds out without the mutex of
    /// `known` that there is no count. Set under that mutex, and never cleared.
    has_counts: AtomicBool,
}

#[derive(Default)]
struct Known {
    young_dead: HashMap<u64, (u64, u64), RandomState>,
    counts: HashMap<(u64, u64), u64, RandomState>,
}

impl Generations {
    pub(crate) fn of(&self, ino: u64, birth: Timespec) -> u64 {
        let birth = micros(birth);
        // ORDERING: Relaxed. `note_birth` stores `has_counts` before it publishes the inode, so a
        // call on the inode reads true. A store for another inode may be missed: `of` needs only
        // the count of its own.
        let count = if self.has_counts.load(Ordering::Relaxed) {
            self.known.lock().counts.get(&(ino, birth)).copied()
        } else {
            None
        };
        let generation = (birth << COUNT_BITS) | count.unwrap_or(0);
        // Mix the upper bits into the lower 32 bits, because the client's kernel keeps only these.
        generation ^ generation >> 32
    }

    pub(crate) fn note_death(&self, ino: u64, birth: Timespec, now: Timespec) {
        let birth = micros(birth);
        if birth != 0 && micros(now).saturating_sub(birth) > YOUNG_US {
            return;
        }
        let mut known = self.known.lock();
        let count = known.counts.get(&(ino, birth)).copied().unwrap_or(0);
        if known.young_dead.len() == YOUNG_DEAD_MAX {
            known.young_dead.retain(|_, (birth, _)| micros(now).saturating_sub(*birth) <= YOUNG_US);
        }
        if known.young_dead.len() == YOUNG_DEAD_MAX {
            known.young_dead.clear();
        }
        known.young_dead.insert(ino, (birth, count));
    }

    pub(crate) fn note_birth(&self, ino: u64, birth: Timespec) {
        let birth = micros(birth);
        let mut known = self.known.lock();
        if let Some((same, count)) = known.young_dead.remove(&ino)
            && same == birth
        {
            known.counts.insert((ino, birth), count + 1);
            // ORDERING: Relaxed. `note_birth` returns before the inode is published, and `of` runs
            // after the publication. So `of` reads true.
            self.has_counts.store(true, Ordering::Relaxed);
        }
    }
}

fn micros(time: Timespec) -> u64 {
    (time.secs as u64).wrapping_mul(1_000_000) + u64::from(time.nanos / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_reused_within_a_tick_has_another_generation() {
        let generations = Generations::default();
        let at = Timespec { secs: 1000, nanos: 5000 };
        let mut seen = vec![generations.of(7, at)];
        for _ in 0..10 {
            generations.note_death(7, at, at);
            generations.note_birth(7, at);
            seen.push(generations.of(7, at));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 11);
        let (one, another) = (generations.of(8, at), generations.of(9, at));
        assert_eq!(one, another, "control: other numbers have no count");
    }

    #[test]
    fn inode_that_died_old_is_not_remembered() {
        let generations = Generations::default();
        let (birth, now) = (Timespec { secs: 1, nanos: 0 }, Timespec { secs: 100, nanos: 0 });
        generations.note_death(7, birth, now);
        assert!(generations.known.lock().young_dead.is_empty());
    }
}
