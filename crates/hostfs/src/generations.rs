//! Generations: what tells an inode from an earlier one of the same number (trap P11).
//!
//! Host file systems use the number of a removed inode again at once. What differs is the time of
//! birth, so that is the generation, in microseconds. Clocks of file systems tick only every few
//! milliseconds, though: a file that is made, removed, and made again within a tick may get both
//! the same number and the same time. So the death of a young inode is noted, and one that is made
//! with a number and a birth of such a one gets a higher count in the low bits. That count is kept
//! as long as the mount: it is needed for files that were born in a tick in which another one of
//! their number was born and died, which are few.
//!
//! All this is for host file systems without file handles: see `handles` for the others.
//! A host file system without times of birth has generation 0 everywhere but for those counts; NFS
//! exports of such a mount are not safe. What others do to the host is not seen here.
//!
//! Source: statx(2); trap P11.

use std::collections::HashMap;

use corewalk::Timespec;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use foldhash::fast::RandomState;

/// Low bits of a generation, which count inodes of one number and one time of birth.
const COUNT_BITS: u32 = 12;
/// Inodes that died young, at most, that are remembered: the map is emptied beyond.
const YOUNG_DEAD_MAX: usize = 4096;
/// The age in microseconds over which no clock of a file system stands still.
const YOUNG_US: u64 = 1_000_000;

/// What is known of numbers that were used more than once within a tick.
#[derive(Default)]
pub(crate) struct Generations {
    known: Mutex<Known>,
    /// Whether `counts` has something: without it nobody need look there.
    has_counts: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// By number: birth and count of one that died young.
    young_dead: HashMap<u64, (u64, u64), RandomState>,
    /// The counts, where they are not 0, by number and birth.
    counts: HashMap<(u64, u64), u64, RandomState>,
}

impl Generations {
    /// Returns the generation of inode `ino`, born at `birth`.
    pub(crate) fn of(&self, ino: u64, birth: Timespec) -> u64 {
        let birth = micros(birth);
        // ORDERING: Relaxed. The count of an inode is noted before anybody hears of the inode, by way
        // of whatever tells them; of the others' counts nothing is asked.
        let count = if self.has_counts.load(Ordering::Relaxed) {
            self.known.lock().counts.get(&(ino, birth)).copied()
        } else {
            None
        };
        let generation = (birth << COUNT_BITS) | count.unwrap_or(0);
        // The kernel keeps the lower half alone, which is to have something of the upper one.
        generation ^ generation >> 32
    }

    /// Notes that inode `ino` has lost its last name at `now`.
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

    /// Notes that inode `ino` has just been made.
    pub(crate) fn note_birth(&self, ino: u64, birth: Timespec) {
        let birth = micros(birth);
        let mut known = self.known.lock();
        if let Some((same, count)) = known.young_dead.remove(&ino)
            && same == birth
        {
            known.counts.insert((ino, birth), count + 1);
            // ORDERING: Relaxed. See `of`.
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
    fn number_used_again_within_a_tick_has_another_generation() {
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
        assert_eq!(one, another, "control: others have no count");
    }

    #[test]
    fn inode_that_died_old_is_not_remembered() {
        let generations = Generations::default();
        let (birth, now) = (Timespec { secs: 1, nanos: 0 }, Timespec { secs: 100, nanos: 0 });
        generations.note_death(7, birth, now);
        assert!(generations.known.lock().young_dead.is_empty());
    }
}
