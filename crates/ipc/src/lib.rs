//! System V IPC in user space: semaphore sets, message queues, bookkeeping of shared memory.
//!
//! Lookups and permission checks take no lock. A semop(2) that does not wait makes no system call.
//!
//! A [`Namespace`] is in private memory, or in a file that several processes map. All its state is
//! in one region of cache lines, which the code accesses by bounds-checked line numbers and atomic
//! words. So garbage in the region causes wrong answers and errors, but no undefined behaviour.
//!
//! One word of each object is authoritative for its state. After the death of a process, other
//! processes rebuild all other words from the authoritative ones.
//!
//! # Guarantees
//! - G.1: results, errors, order of wake-ups, counts, permissions and ids are those of Linux,
//!   except for the differences in `docs/using/limits.md`. `tests/differential` compares them.
//! - G.2: an operation on a set that another thread removes happens before the removal, or returns
//!   `EIDRM`.
//! - G.3: no call sees only a part of another call's operations. If an operation completes waiting
//!   calls, no other call takes effect between the operation and these waiting calls.
//! - G.4: operations on different semaphores write to different cache lines, also with undo.
//! - G.5: a process may be killed at any instruction. Each of its calls has then happened as a
//!   whole or not at all. `GETVAL` and a call that would fail with `EAGAIN` first apply the dead
//!   process's undo (`SEM_UNDO`). If a process dies while a call waits, the watcher (`watch`) soon
//!   applies the undo of the dead process.
//!
//! # Layers: no module uses a module of a higher layer
//! 1. Words and slots: the region's layout, locks, pools, ids, permissions, records of tasks.
//! 2. Objects: sets, queues, segments, waiting calls, messages, and the repair of an object.
//! 3. Recovery: the cleanup after dead tasks, and the watcher.
//! 4. Operations: tasks, namespaces, their calls, and code that the three kinds share (`ctl`).
//!
//! # Lock order
//! 1. The lock for cleaning up after one task (`REAPER` in `task_line`).
//! 2. The lock of an object kind (`ids`): of all sets, of all queues, or of all segments.
//! 3. The lock of one set or queue. No thread holds two of them.
//! 4. The innermost locks: of a memory pool, and of a task's lists in its process's private memory.
//!
//! # Examples
//! ```
//! use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions, SemBuf, SemFlags};
//!
//! let namespace = Namespace::new(NamespaceOptions::default())?;
//! let server = namespace.register(Cred::user(1000, 1000), 100)?;
//! let client = namespace.register(Cred::user(1000, 1000), 101)?;
//!
//! let id = server.semget(0x5eed, 1, GetFlags::CREATE, 0o600)?;
//! assert_eq!(client.semget(0x5eed, 1, GetFlags::empty(), 0)?, id);
//! server.sem_setval(id, 0, 1)?;
//!
//! std::thread::scope(|scope| {
//!     client.semop(id, &[SemBuf::new(0, -1, SemFlags::UNDO)])?;
//!     let waits = scope.spawn(|| server.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]));
//!     // The client ends, its operation is undone, and the server's wait ends.
//!     client.exit();
//!     waits.join().expect("no panic")
//! })?;
//! assert_eq!(server.sem_getval(id, 0), Ok(0));
//! # Ok::<(), corewalk_ipc::Errno>(())
//! ```
//!
//! Source: Bueso, "ipc: reduce ipc lock contention", March 2013; svipc(7); Linux `ipc/*.c`.

#![forbid(unsafe_code)]

mod backing;
mod contention;
mod ctl;
mod field;
mod file;
mod flags;
mod handle;
mod ids;
mod layout;
mod limits;
mod list;
mod lock;
mod msg;
mod namespace;
mod perm;
mod pool;
mod process;
mod recover;
mod sem;
mod shared;
mod shm;
mod signals;
mod spin;
mod status;
mod task;
mod task_line;
mod waiting;
mod watch;

pub use backing::{Access, Backing, Memfds, NoBacking, SegmentName};
pub use contention::Contention;
pub use ctl::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT};
pub use file::OpenError;
pub use flags::{GetFlags, MsgFlags, SemFlags, ShmFlags};
pub use handle::{MsgId, SemId, ShmId};
pub use ids::IPC_PRIVATE;
pub use layout::Capacity;
pub use limits::{Limits, SEMAEM, SEMVMX};
pub use msg::{Arrived, MSG_INFO, MSG_STAT, MSG_STAT_ANY, MsgStat, MsgTotals, Received};
pub use namespace::{Namespace, NamespaceOptions, SPIN_NS_MAX};
pub use perm::{
    CAP_IPC_LOCK, CAP_IPC_OWNER, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, Cred, Perm, SecurityHook,
};
pub use process::Program;
pub use sem::{
    GETALL, GETNCNT, GETPID, GETVAL, GETZCNT, SEM_INFO, SEM_STAT, SEM_STAT_ANY, SETALL, SETVAL,
    SemBuf, SemStat, SemTotals,
};
pub use shm::{
    Mapping, SHM_DEST, SHM_INFO, SHM_LOCK, SHM_LOCKED, SHM_STAT, SHM_STAT_ANY, SHM_UNLOCK,
    SegmentFiles, ShmStat, ShmTotals,
};
pub use task::Task;

/// The errno of a failed call, as in the man pages. The type is that of `rustix`.
pub use rustix::io::Errno;

#[cfg(all(test, corewalk_loom))]
mod loom_models;
#[cfg(all(test, corewalk_loom))]
mod loom_recovery;

#[cfg(all(test, corewalk_crash))]
mod crash_models;

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
