//! Shared memory: the bookkeeping of shmget(2), shmat(2), shmdt(2) and shmctl(2).
//!
//! | module | content |
//! |---|---|
//! | `files` | memory as files in a folder, for several processes |
//! | `segment` | the state of a segment and its attaches |
//! | `attach` | shmat, shmdt, fork and exit |
//! | `ctl` | shmget and shmctl |
//!
//! The library keeps the ids, permissions, limits, times, pids and the number of attaches of
//! segments. It maps no memory: `Task::shmat` checks the call, counts the attach, and returns a
//! descriptor. The host program maps the descriptor, and reports the address by
//! [`Mapping::attached_at`]. `Task::shmdt` returns the size that the host must unmap.
//!
//! # Attaches
//! A task has one *attach record* for each segment that it has attached, with the number of its
//! attaches. `shm_nattch` is the sum of these numbers. `Task::fork` copies the attaches of the
//! parent to the child. A task that ends detaches all its segments.
//!
//! A killed task leaves its records. So some calls first clean up after killed tasks. These calls
//! return the number of attaches, remove a segment, or attach a segment marked for removal.
//!
//! # Removal
//! `IPC_RMID` of an attached segment removes the segment's key and marks the segment `SHM_DEST`.
//! The segment's id stays valid until the last detach, which removes the segment. With the option
//! `is_shm_rmid_forced`, the last detach removes any segment. A segment that no task has attached
//! is then removed at the end of its creator.
//!
//! # Locks
//!
//! One lock protects all segments and their attach records. A lookup takes no lock, so a call looks
//! the segment up again under the lock (traps I2, I10, I18 in `traps.md`). Calls remove memory
//! after they have released the lock. Recovery removes memory under the lock.
//!
//! # Limits
//!
//! `SHM_HUGETLB` fails with `EINVAL`. `SHM_INFO` reports 0 resident and 0 swapped pages. `SHM_LOCK`
//! checks the permission and sets a bit of the mode, but keeps no memory resident.
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
