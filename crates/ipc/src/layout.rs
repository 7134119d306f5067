//! Where everything lies in the region, in lines from its start.
//!
//! | part | lines | holds |
//! |---|---|---|
//! | scratch | 1 | nothing: what is out of range lands here |
//! | ids of semaphore sets | about 1.1 per slot | head, indices in use, buckets of keys, slots |
//! | sets | 1 per slot | lock, queues and undo list of the set in that slot |
//! | tasks | 1 each | number, lock, undo list |
//! | pools | | semaphores, undo records, wait nodes |
//!
//! Message queues and shared memory get their ids and pools behind these.
//!
//! Source: `ARCHITECTURE.md`.

use rustix::io::Errno;

use crate::ids::{IdLayout, SLOTS_MAX};
use crate::pool::{HEAD_LINES, Pool};

/// The owner of a lock that no task takes.
pub(crate) const NO_TASK: u32 = TASKS_MAX;

/// Tasks at most: an owner fits beside the other fields of a semaphore's word.
pub(crate) const TASKS_MAX: u32 = (1 << 22) - 1;

/// Lines of a pool at most: a payload has 27 bits for the first line of a set.
const LINES_MAX: u32 = 1 << 26;

/// How much a namespace has room for. What is not used takes addresses only.
///
/// This is what memory is for a kernel: whoever finds it used up gets `ENOMEM`. What a namespace
/// may hold is in [`crate::Limits`].
///
/// # Examples
///
/// ```
/// use corewalk_ipc::Capacity;
///
/// let small = Capacity { sets: 16, sems: 64, ..Capacity::default() };
/// assert_eq!(Capacity::default().sets, 32_768);
/// # let _ = small;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Semaphore sets: a power of two, at most 32,768.
    pub sets: u32,
    /// Semaphores, 64 bytes each.
    pub sems: u32,
    /// Semaphores that tasks have undone operations on, 64 bytes each and task, and as much again per
    /// set and task.
    pub undos: u32,
    /// Lines of waiting calls, 128 bytes for one operation.
    pub waits: u32,
    /// Tasks at a time.
    pub tasks: u32,
}

impl Default for Capacity {
    fn default() -> Self {
        Self { sets: SLOTS_MAX, sems: 1 << 20, undos: 1 << 20, waits: 1 << 18, tasks: 1 << 15 }
    }
}

/// Line numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) sem_ids: IdLayout,
    /// The first line of the sets.
    pub(crate) sets: u32,
    /// The line of the lock of the table of tasks, followed by the tasks.
    pub(crate) tasks: u32,
    pub(crate) tasks_max: u32,
    pub(crate) sems: Pool,
    pub(crate) undos: Pool,
    pub(crate) waits: Pool,
    pub(crate) lines: u32,
}

impl Layout {
    /// Returns where things lie for `capacity`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a number is zero, too large, or not a power of two where it has to be.
    pub(crate) fn new(capacity: &Capacity) -> Result<Self, Errno> {
        let Capacity { sets, sems, undos, waits, tasks } = *capacity;
        let are_pools_good = [sems, undos, waits].iter().all(|n| (1..=LINES_MAX).contains(n));
        let are_sets_good = sets.is_power_of_two() && sets <= SLOTS_MAX;
        if !are_pools_good || !are_sets_good || !(1..TASKS_MAX).contains(&tasks) {
            return Err(Errno::INVAL);
        }
        let mut next = 1;
        let mut take = |lines: u32| {
            let first = next;
            next += lines;
            first
        };
        let sem_ids = IdLayout { head: take(IdLayout::lines(sets)), slots: sets };
        let first_set = take(sets);
        let first_task = take(1 + tasks);
        let mut pool = |lines| Pool { head: take(HEAD_LINES), first: take(lines), lines };
        let (sems, undos, waits) = (pool(sems), pool(undos), pool(waits));
        Ok(Self {
            sem_ids,
            sets: first_set,
            tasks: first_task,
            tasks_max: tasks,
            sems,
            undos,
            waits,
            lines: next,
        })
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn capacity_out_of_range_is_refused() {
        let good = Capacity::default();
        assert!(Layout::new(&good).is_ok());
        let bad = [
            Capacity { sets: 3, ..good },
            Capacity { sets: 2 * SLOTS_MAX, ..good },
            Capacity { sets: 0, ..good },
            Capacity { sems: 0, ..good },
            Capacity { undos: LINES_MAX + 1, ..good },
            Capacity { waits: 0, ..good },
            Capacity { tasks: 0, ..good },
            Capacity { tasks: TASKS_MAX, ..good },
        ];
        assert!(bad.iter().all(|bad| Layout::new(bad).is_err()));
    }
}
