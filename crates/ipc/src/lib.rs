//! System V IPC in user space: lookup, id check and permission check without a lock, and `semop` without a
//! system call.
//!
//! For library operating systems and sandboxes, which have to bring their own semaphores, and for
//! programs that use the kernel's more often than its system calls allow. A namespace is in private
//! memory, or in a file that several processes share. There are semaphore sets, message queues, and
//! the bookkeeping of shared memory.
//!
//! | call | for | costs |
//! |---|---|---|
//! | [`Task::semop`], one operation | take and give | one compare-exchange, if nobody is concerned |
//! | with [`SemFlags::UNDO`] | the same, undone at the end | one compare-exchange and stores to own lines |
//! | a few operations in order, without undo | all or none | the words involved, if nobody is concerned |
//! | other calls of several operations, or a wait | | the set's lock, and the words involved |
//! | [`Task::msgsnd`], [`Task::msgrcv`] | messages with types | the queue's lock, twice that of a pool; texts are copied outside |
//! | [`Task::shmat`], [`Task::shmdt`] | what a host maps | the lock of the kind |
//! | [`Task::semget`] and its like, removal, `IPC_SET` | | the lock of the kind |
//! | `GETVAL`, `GETPID`, `IPC_STAT` | | no lock, no store, unless some process may have died with what belongs to the set |
//!
//! # How it works
//!
//! - All state lies in one region of lines that keep their type and are never unmapped while the namespace
//!   lives. It is reached by bounds-checked numbers and atomic words only: what others may have written
//!   there leads to wrong answers or an error, but never to undefined behaviour, nor to a call that does
//!   not end (other than a wait that nobody ends).
//! - An id is a generation and the index of a slot (`ids`). A lookup copies the slot and checks that nobody
//!   wrote meanwhile. Then the mode, the capabilities and the hook are looked at. None of this stores
//!   anything, so a reader that stops anywhere holds up nobody.
//! - A semaphore is a word on a line of its own (`sem::word`): value, who waits, last pid, and a tag that says
//!   which set it belongs to. An operation is one compare-exchange of it; the tag is what makes the lookup
//!   still true at that moment. There is no switch between modes for single and several operations.
//! - Several operations freeze the words that they involve: under the set's lock (`sem::txn`), or without
//!   it where there are few, in order, without undo (`sem::several`).
//! - Who changes a semaphore carries out the waiting calls that have become possible, in their order and
//!   in the same transaction, and then wakes their tasks (`sem::queue`).
//! - Undo records belong to a task and a set (`sem::undo`).
//! - A message has one word that says whose it is, and whose store is what sends or receives it; lists and
//!   counts of a queue follow from those words and are made anew after a death (`msg::rebuild`).
//! - Of shared memory there are ids, permissions, limits and one record per task and segment; the host
//!   brings the memory and maps it (`shm`).
//! - Of everything that is in the region one word says what is true, and the rest is made anew from such words if
//!   a process was killed in the middle: locks know their owners (`lock`), pools what is used (`pool`), and a
//!   change of several semaphores is logged before one store makes it valid (`sem::txn`, `sem::log`).
//!
//! # Guarantees
//!
//! - G.1: results, errors, order of wake-ups, counts, permissions and ids are those of Linux, except as below;
//!   `tests/differential` compares them.
//! - G.2: an operation on a set that is removed meanwhile has happened before the removal, or returns `EIDRM`.
//! - G.3: nobody sees a part of the operations of a call, or comes between an operation and the waiting
//!   calls that it lets go on.
//! - G.4: operations on different semaphores of a set write no common line, with and without undo.
//! - G.5: a process may be killed at any instruction. Each of its calls has then happened as a whole or not at
//!   all, and its adjustments are applied: at once for who asks (`GETVAL`) and for a call that would fail with
//!   `EAGAIN`, soon for a call that waits (`watch` says how soon). A call that succeeds does not look, see below.
//!
//! # What differs from Linux
//!
//! - A call with `SEM_UNDO` that fails leaves no empty undo record, whose end would count as an operation of
//!   the set (`sem_otime`).
//! - `GETZCNT` may count a call of several operations by another semaphore than Linux does, after one that
//!   it did not wait for has changed. Expected from the design; no test has met it.
//! - `ENOMEM` follows from [`Capacity`], not from the memory of the machine.
//! - Times come from the coarse clock.
//! - A message that is handed to a waiting receiver leaves the pid of its task in `msg_lrpid`; Linux leaves the
//!   number of its thread.
//! - Receivers that wait keep their places when `IPC_SET` has them ask for permission again.
//! - A [`SecurityHook`] is asked once per msgrcv(2), and not for each message.
//! - `SHM_HUGETLB` is refused with `EINVAL`, also where Linux says `EPERM`. `SHM_INFO` knows nothing of swap, and
//!   `SHM_LOCK` is a mark only.
//! - `GETPID` of a semaphore on which a process was killed may name it, though its operation was taken back.
//! - A call that can succeed (or fails with `ERANGE`) makes no system call, and so does not look whether somebody
//!   has died. Until those who were killed are looked for it may take what they had added with `SEM_UNDO`, or find
//!   zero what they had taken from; their adjustments are then applied to what is left, and no value falls below 0.
//!   Linux has applied them when waitpid(2) returns. `GETVAL` first, or [`Namespace::recover`], makes it the same.
//! - What is granted to a waiting process that was killed before it returned is given back where all of it can be, also
//!   where it was granted before the kill; until then others may see it. Linux takes its call out of the queue first,
//!   and what was granted before stays. For a process that had ended before the call that grants began: who is
//!   refused or asks after that call is answered as if nothing had been granted, and a call that waits goes on soon
//!   (`watch`; `sem::reap` says what holds when).
//!
//! # What it refuses
//!
//! - To enforce: checks bind those who call this library. A program that writes to the region itself is
//!   beyond them.
//! - To wait for ever for a process that is there and holds a lock (stopped, or meaning harm): after 10 s a
//!   call returns `EIO`, which System V calls do not have; after two minutes also if holders take turns.
//!   `IPC_RMID` does not fail on a semaphore that such a process has in the middle of an operation: all
//!   waits end, and the lines of the set serve another one only once the process has gone on or ended.
//! - To know who calls: the host says so with [`Namespace::register`] and [`Task::set_cred`], and ends a task
//!   with [`Task::exit`].
//!
//! # Where the kernel's functions are
//!
//! Names of Linux are aliases in the search of these pages, so that who knows `ipc/sem.c` finds their place. Those
//! of document 002: `ipc_obtain_object_check` and `ipc_checkid` are what [`Task::semop`], [`Task::sem_getval`] and
//! all other calls begin with, `ipc_obtain_object` what a look by index does ([`Task::sem_stat_index`]), and
//! `ipcctl_pre_down_nolock` (`ipcctl_obtain_check` since) the check of [`Task::sem_set`] and [`Task::sem_rmid`].
//! `do_smart_update` follows each [`Task::semop`] that somebody waits for, and `exit_sem` is [`Task::exit`].
//!
//! # Lock order
//!
//! 1. The lock of who cleans up after a task.
//! 2. The lock of a kind.
//! 3. The lock of a set. Nobody holds two.
//! 4. Leaves: a pool, and in the memory of the process a task's lists of undo records and waiting calls.
//!
//! A frozen word is held for a few instructions, or under the lock of its set; who meets one spins, yields,
//! and then sleeps for short times. A [`SecurityHook`] runs with no lock held, except `associate`,
//! `alloc`, and `sem_semctl` for `IPC_SET` and `IPC_RMID`: those run under the lock of the kind.
//!
//! # Examples
//!
//! Two tasks, a wait, and an end that gives back:
//!
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
//!     // The client ends without giving back, and the server goes on.
//!     client.exit();
//!     waits.join().expect("no panic")
//! })?;
//! assert_eq!(server.sem_getval(id, 0), Ok(0));
//! # Ok::<(), corewalk_ipc::Errno>(())
//! ```
//!
//! Source: Bueso, "ipc: reduce ipc lock contention", March 2013; svipc(7), semop(2), semctl(2), msgop(2), shmop(2);
//! Linux `ipc/sem.c`, `ipc/msg.c`, `ipc/shm.c` and `ipc/util.c` for the semantics.

#![forbid(unsafe_code)]

mod contention;
mod field;
mod file;
mod flags;
mod handle;
mod ids;
mod ipcget;
mod layout;
mod list;
mod lock;
mod msg;
mod namespace;
mod nested;
mod perm;
mod pool;
mod process;
pub mod raw;
mod recover;
mod sem;
mod shm;
mod spare;
mod spin;
mod task;
mod waiting;
mod watch;

pub use contention::Contention;
pub use file::OpenError;
pub use flags::{GetFlags, MsgFlags, SemFlags, ShmFlags};
pub use handle::{MsgId, SemId, ShmId};
pub use ids::IPC_PRIVATE;
pub use layout::Capacity;
pub use msg::{Arrived, MSG_INFO, MSG_STAT, MSG_STAT_ANY, MsgStat, MsgTotals, Received};
pub use namespace::{Limits, Namespace, NamespaceOptions, SEMAEM, SEMVMX, SPIN_NS_MAX};
pub use perm::{
    CAP_IPC_LOCK, CAP_IPC_OWNER, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, Cred, Perm, SecurityHook,
};
pub use process::Program;
pub use sem::{
    GETALL, GETNCNT, GETPID, GETVAL, GETZCNT, IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, SEM_INFO,
    SEM_STAT, SEM_STAT_ANY, SETALL, SETVAL, SemBuf, SemStat, SemTotals,
};
pub use shm::{
    Access, Backing, Elsewhere, Mapping, Memfds, SHM_DEST, SHM_INFO, SHM_LOCK, SHM_LOCKED,
    SHM_STAT, SHM_STAT_ANY, SHM_UNLOCK, SegmentFiles, SegmentName, ShmStat, ShmTotals, Unmapping,
};
pub use task::Task;

/// The errors of all calls, as in the man pages: `rustix`'s type, for programs that do not depend on it.
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
