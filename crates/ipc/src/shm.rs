//! Shared memory: shmget(2), shmat(2), shmdt(2), shmctl(2), as far as it is bookkeeping.
//!
//! | module | what |
//! |---|---|
//! | `backing` | where the memory of segments comes from |
//! | `files` | memory as files in a folder, for several processes |
//! | `segment` | what is known of a segment, and who has attached it |
//! | `attach` | shmat, shmdt, fork and exit |
//! | `dead` | attaches of tasks that were killed |
//! | `get`, `ctl` | shmget and shmctl |
//!
//! The library keeps ids, permissions, limits, times, pids and the number of attaches. It maps nothing:
//! [`Task::shmat`] checks and counts, and gives the host a descriptor; the host maps it, and says where
//! with [`Mapping::attached_at`]. [`Task::shmdt`] tells how much to unmap.
//!
//! # Attaches
//!
//! For each task and segment that it has attached there is one *record* with a count, so `shm_nattch` is a
//! sum, and what a task that died has left can be told from the records: nothing is lost with it.
//! [`Task::fork`] copies the attaches of the parent to its child, and the end of a task detaches
//! all of its own. What a killed task has attached is detached before a segment's numbers are told, before it
//! is removed, and before one that is marked for removal is attached.
//!
//! # Removal
//!
//! `IPC_RMID` of a segment with attaches takes its key and marks it `SHM_DEST`; its id stays good until
//! the last detach, which removes it. With `is_shm_rmid_forced` of the limits every last detach does
//! that, and the end of the task that made a segment nobody has attached.
//!
//! # Locks
//!
//! The lock of the kind protects all segments and records: who attaches asks the kernel for a mapping, so
//! nothing here is worth a lock of its own. Lookups and permission checks take none, and what they found
//! is looked up again under it (traps I2, I10, I18). Memory is made under it, and given back after (by those who
//! put things in order after a death, under it).
//!
//! # What it refuses
//!
//! - Huge pages: `SHM_HUGETLB` is `EINVAL`, as without them in the kernel.
//! - To tell how much of a segment is in memory or swapped out: `SHM_INFO` says 0.
//! - `SHM_LOCK` keeps nothing in memory; it checks and notes.
//!
//! Source: Linux `ipc/shm.c` for the semantics; shmop(2), shmctl(2), shmget(2).

mod attach;
mod backing;
#[cfg(all(test, corewalk_crash))]
mod crash_models;
mod ctl;
mod dead;
mod files;
mod get;
mod segment;

pub(crate) use attach::{Own, exit_shm};
pub(crate) use segment::{SEGMENT_LINES, end_slot, give_back_all, reap, recover_slot};

pub use attach::{Mapping, Unmapping};
pub use backing::{Access, Backing, Elsewhere, Memfds, SegmentName};
pub use ctl::{SHM_INFO, SHM_LOCK, SHM_STAT, SHM_STAT_ANY, SHM_UNLOCK, ShmStat, ShmTotals};
pub use files::SegmentFiles;
pub use segment::{SHM_DEST, SHM_LOCKED};

/// Bits of the mode that reading asks for.
const READ: u32 = 0o444;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
