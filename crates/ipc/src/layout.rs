//! The places of all parts in the region, as line numbers.
//!
//! | part | lines | holds |
//! |---|---|---|
//! | scratch | 1 | nothing; a line number out of range leads here |
//! | header | 4 | the description of the namespace, see `file` |
//! | ids of semaphore sets | about 1.1 per slot | head, indices in use, hash table of keys, slots |
//! | sets | 1 per slot | lock, queues and undo list of the set in that slot |
//! | tasks | 1 each | process, generation, see `task` |
//! | ladder | 1 | the calls that look for dead tasks, see `watch` |
//! | pools | | semaphores, undo records, wait nodes |
//! | ids of message queues, queues | about 1.1 and 2 per slot | the same for queues; see `msg` |
//! | ids of segments, segments | about 1.1 and 2 per slot | the same for shared memory; see `shm` |
//! | pools | | messages, wait nodes of queues, attaches |
//!
//! Source: `ARCHITECTURE.md`.

use corewalk_base::primitives::IS_MODEL;
use rustix::io::Errno;
use std::cell::Cell;
use std::ops::Range;

use crate::field::refuse_if;
use crate::ids::{IdLayout, SLOTS_MAX};
use crate::pool::{HEAD_LINES, Joins, Pool};

/// The first line of the header.
pub(crate) const HEADER: u32 = 1;

/// Lines of the header.
pub(crate) const HEADER_LINES: u32 = if IS_MODEL { 1 } else { 4 };

/// The number of lines of a message queue.
pub(crate) const QUEUE_LINES: u32 = 2;

/// The number of lines of a segment.
pub(crate) const SEGMENT_LINES: u32 = 1;

/// The maximum number of tasks. The word of a frozen (locked) semaphore has 21 bits for the number
/// of the task and one bit for a flag.
pub(crate) const TASKS_MAX: u32 = (1 << 21) - 1;

/// The maximum number of lines of a pool. With this limit, line numbers of semaphores are below
/// 2^27. So they fit into the payload of a set, which has 27 bits for a line number.
const LINES_MAX: u32 = 1 << 26;

/// The capacity of a namespace. Address space is reserved for the whole capacity, but memory is
/// used only when it is needed. On a file system with a size limit, creating a namespace file with
/// the default capacity also reserves about 15 MB of memory.
///
/// A call that needs more memory than the capacity allows fails with `ENOMEM`. For limits such as
/// `SEMMNI` see [`crate::Limits`].
///
/// # Examples
///
/// ```
/// use corewalk_ipc::Capacity;
///
/// let small = Capacity { sets: 16, sems: 64, waits: 8, tasks: 4, ..Capacity::LEAST };
/// assert_eq!((small.queues, Capacity::default().sets), (1, 32_768));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Semaphore sets: a power of two, at most 32,768.
    pub sets: u32,
    /// Semaphores, 64 bytes each.
    pub sems: u32,
    /// The memory for undo adjustments, in lines of 64 bytes. Each pair of a task and a set that
    /// the task uses with `SEM_UNDO` takes one line. It takes one more line for each semaphore of
    /// the set.
    pub undos: u32,
    /// The memory for calls that wait at semaphore sets, in lines of 64 bytes. A waiting semop(2)
    /// with one operation takes two lines. Calls at message queues have separate memory of the same
    /// size.
    pub waits: u32,
    /// Tasks at a time.
    pub tasks: u32,
    /// Message queues: a power of two, at most 32,768.
    pub queues: u32,
    /// The memory for messages, in lines of 64 bytes. A message takes one line plus the lines of
    /// its text. This sum is rounded up to a power of two.
    pub msgs: u32,
    /// Segments of shared memory: a power of two, at most 32,768.
    pub segments: u32,
    /// The maximum number of attaches: pairs of a task and a segment that the task has attached.
    /// Each takes 64 bytes.
    pub attaches: u32,
}

impl Capacity {
    /// The minimum capacity. Use it as the base of a struct update: `..Capacity::LEAST`.
    pub const LEAST: Self = Self {
        sets: 1,
        sems: 1,
        undos: 1,
        waits: 1,
        tasks: 1,
        queues: 1,
        msgs: 1,
        segments: 1,
        attaches: 1,
    };
}

impl Default for Capacity {
    fn default() -> Self {
        Self {
            sets: SLOTS_MAX,
            sems: 1 << 20,
            undos: 1 << 23,
            waits: 1 << 18,
            tasks: 1 << 15,
            queues: SLOTS_MAX,
            msgs: 1 << 23,
            segments: 1 << 13,
            attaches: 1 << 17,
        }
    }
}

/// Line numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) sem_ids: IdLayout,
    /// The first line of the sets.
    pub(crate) sets: u32,
    /// The first line of the tasks.
    pub(crate) tasks: u32,
    /// The number of lines of the tasks.
    pub(crate) tasks_max: u32,
    /// The line of the ladder: the words by which waiting calls share the search for dead tasks
    /// (`watch`).
    pub(crate) ladder: u32,
    pub(crate) sems: Pool,
    pub(crate) undos: Pool,
    pub(crate) waits: Pool,
    pub(crate) msg_ids: IdLayout,
    /// The first line of the queues.
    pub(crate) queues: u32,
    pub(crate) shm_ids: IdLayout,
    /// The first line of the segments.
    pub(crate) segments: u32,
    pub(crate) msgs: Pool,
    pub(crate) msg_waits: Pool,
    pub(crate) attaches: Pool,
    pub(crate) lines: u32,
}

impl Layout {
    pub(crate) fn new(capacity: &Capacity) -> Result<Self, Errno> {
        let Capacity { sets, sems, undos, waits, tasks, .. } = *capacity;
        let Capacity { queues, msgs, segments, attaches, waits: msg_waits, .. } = *capacity;
        let pools = [sems, undos, waits, msgs, attaches];
        let are_pools_good = pools.iter().all(|n| (1..=LINES_MAX).contains(n));
        let kinds = [sets, queues, segments];
        let are_kinds_good = kinds.iter().all(|n| n.is_power_of_two() && *n <= SLOTS_MAX);
        let are_all_good = are_pools_good && are_kinds_good && (1..TASKS_MAX).contains(&tasks);
        refuse_if(!are_all_good, Errno::INVAL)?;
        let next = Cell::new(HEADER + HEADER_LINES);
        let take = |lines| next.replace(next.get() + lines);
        let ids = |slots| IdLayout::new(take(IdLayout::lines(slots)), slots);
        let pool = |lines, joins| Pool { head: take(HEAD_LINES), first: take(lines), lines, joins };
        // Each call of `take` returns the lines after those of the previous call. So the order of
        // the fields below is the order of the parts in memory.
        Ok(Self {
            sem_ids: ids(sets),
            sets: take(sets),
            tasks: take(tasks),
            tasks_max: tasks,
            ladder: take(1),
            sems: pool(sems, Joins::Keeping),
            undos: pool(undos, Joins::Keeping),
            waits: pool(waits, Joins::Never),
            msg_ids: ids(queues),
            queues: take(QUEUE_LINES * queues),
            shm_ids: ids(segments),
            segments: take(SEGMENT_LINES * segments),
            msgs: pool(msgs, Joins::Clearing),
            msg_waits: pool(msg_waits, Joins::Never),
            attaches: pool(attaches, Joins::Never),
            lines: next.get(),
        })
    }

    /// Returns all pools, in the order of their lines.
    pub(crate) fn pools(&self) -> [Pool; 6] {
        [self.sems, self.undos, self.waits, self.msgs, self.msg_waits, self.attaches]
    }

    /// Returns the lines of the namespace whose memory is allocated when the namespace is made,
    /// since any process may access them at any time.
    ///
    /// The result contains all lines outside of the pools, and the first line of each pool, which a
    /// walk over an empty pool reads. A pool allocates its other lines before their first use.
    pub(crate) fn fixed(&self) -> Vec<Range<u32>> {
        let pools = self.pools();
        let starts = [0].into_iter().chain(pools.iter().map(|pool| pool.first + pool.lines));
        let ends = pools.iter().map(|pool| pool.first + 1).chain([self.lines]);
        starts.zip(ends).map(|(start, end)| start..end).collect()
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn lines_are_fixed_or_a_pools() {
        let capacity = Capacity { sems: 5, undos: 7, waits: 3, msgs: 9, ..Capacity::LEAST };
        let layout = Layout::new(&capacity).unwrap();
        let fixed: u32 = layout.fixed().iter().map(|lines| lines.end - lines.start).sum();
        assert_eq!(layout.lines - fixed, 5 + 7 + 2 * 3 + 9 + 1 - 6);
        assert_eq!(layout.fixed().first().map(|lines| lines.start), Some(0));
    }

    #[test]
    fn capacity_out_of_range_is_refused() {
        let good = Capacity::default();
        assert!(Layout::new(&good).is_ok() && Layout::new(&Capacity::LEAST).is_ok());
        let bad = [
            Capacity { sets: 3, ..good },
            Capacity { sets: 2 * SLOTS_MAX, ..good },
            Capacity { sets: 0, ..good },
            Capacity { sems: 0, ..good },
            Capacity { undos: LINES_MAX + 1, ..good },
            Capacity { waits: 0, ..good },
            Capacity { tasks: 0, ..good },
            Capacity { queues: 0, ..good },
            Capacity { msgs: 0, ..good },
            Capacity { segments: 6, ..good },
            Capacity { attaches: LINES_MAX + 1, ..good },
            Capacity { tasks: TASKS_MAX, ..good },
        ];
        assert!(bad.iter().all(|bad| Layout::new(bad).is_err()));
    }
}
