//! Shared memory: the bookkeeping of shmget(2), shmat(2), shmdt(2) and shmctl(2).
//!
//! | module | content |
//! |---|---|
//! | `files` | memory as files in a folder, for several processes |
//! | `segment` | the state of a segment and its attaches |
//! | `attach` | shmat, shmdt, fork and exit |
//! | `ctl` | shmget and shmctl |
//!
//! The library keeps ids, permissions, limits, times, pids and the number of attaches. It maps no
//! memory. `Task::shmat` checks and counts, and returns a descriptor. The host program maps it, and
//! reports the address by [`Mapping::attached_at`]. `Task::shmdt` returns the size to unmap.
//!
//! # Attaches
//!
//! Each pair of a task and a segment that it has attached has one *record* with a count.
//! `shm_nattch` is the sum of the counts. The records also show which segments a dead task had
//! attached. `Task::fork` copies the attaches of the parent to its child. A task that ends detaches
//! all its segments. Some calls first remove the attaches of killed tasks from a segment. These are
//! the calls that return its numbers, remove it, or attach it while it is marked for removal.
//!
//! # Removal
//!
//! `IPC_RMID` of an attached segment removes its key and marks it `SHM_DEST`. Its id stays valid
//! until the last detach, which removes the segment. With the limit `is_shm_rmid_forced`, every
//! last detach removes a segment, and the end of its creator removes a segment without attaches.
//!
//! # Locks
//!
//! The lock of the kind, which all segments share, protects segments and records. Lookups and
//! permission checks take no lock, and the segment may be removed meanwhile. So a call looks it up
//! again under the lock (traps I2, I10, I18). Memory is created under the lock. It is removed after
//! the lock was released, or under it during recovery after a death.
//!
//! # Limits
//!
//! `SHM_HUGETLB` is `EINVAL`, as in a kernel without huge pages. `SHM_INFO` reports 0 for resident
//! and swapped pages. `SHM_LOCK` checks and sets the mark, but keeps no memory resident.
//!
//! Source: shmop(2), shmctl(2), shmget(2); Linux `ipc/shm.c` for the semantics.

mod attach;
#[cfg(all(test, corewalk_crash))]
mod crash_models;
mod ctl;
#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod dead;
mod files;
mod segment;

pub(crate) use attach::{Own, exit_shm};
pub(crate) use segment::{SEGMENTS, give_back_all, reap};

pub use attach::Mapping;
pub use ctl::{SHM_INFO, SHM_LOCK, SHM_STAT, SHM_STAT_ANY, SHM_UNLOCK, ShmTotals};
pub use files::SegmentFiles;
pub use segment::{SHM_DEST, SHM_LOCKED, ShmStat};

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
