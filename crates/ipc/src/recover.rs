//! Cleanup after tasks that were killed.
//!
//! If a task dies in the middle of a change, the next thread that needs the data repairs them. That
//! is the next holder of the lock (`lock`), or a thread that needs a frozen (locked) semaphore
//! (`sem::recover`).
//!
//! All other traces of a dead task are removed by *reaping* the task. Reaping does what the end of
//! a live task does. It applies the `SEM_UNDO` adjustments, removes the waiting calls from their
//! queues, and frees the task's record.
//!
//! # When a dead task is reaped
//!
//! No daemon is needed. Dead tasks are reaped (cleaned up after) by these callers:
//! - the watcher (`watch`): one waiting call that looks for dead tasks ten times a second, on
//!   behalf of all;
//! - a call that would fail with `EAGAIN`, and a call such as `GETVAL`, if a task has undo
//!   adjustments;
//! - a call that would fail with `ENOMEM`;
//! - a call that wakes a task and finds it dead;
//! - the registration of a new task, if it finds a dead task beside its own record, or no free
//!   record (`task`);
//! - [`crate::Namespace::recover`].
//!
//! A semop(2) that can succeed immediately does not look for dead tasks, although their undo
//! adjustments might lower the semaphore. The search would take a system call for each task with
//! undo adjustments, whereas semop(2) itself is one compare-exchange.
//!
//! Rejected alternative: a flag in each semaphore that an undo adjustment would lower. If one
//! process raises a semaphore and another lowers it, both with `SEM_UNDO`, the flag would always be
//! set.
//!
//! # Locks
//!
//! To reap (clean up after) a dead task, a thread takes the lock `REAPER` in the dead task's
//! record. This lock is the first in the lock order, so a thread that holds another lock must not
//! reap.
//!
//! Source: Linux `ipc/sem.c` (`exit_sem`).

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use crate::field::put;
use crate::ids::Ids;
use crate::lock::{Owner, Wait, lock};
use crate::msg;
use crate::process::{Identity, Look};
use crate::sem;
use crate::shared::Shared;
use crate::shm;
use crate::task_line::{Absent, IMAGE, REAPER, STATE, identity, task_line};

/// Reaps (cleans up after) task number `index` if it is dead. This may complete calls of other dead
/// tasks, which are then reaped too. The caller holds no lock.
///
/// Returns true if the task was dead. If a forked child still uses the segments of the task, the
/// task's record stays in use (`shm::reap`).
#[cold]
pub(crate) fn reap(shared: &Shared, owner: Owner, index: u32) -> Result<bool, Errno> {
    let (is_reaped, absent) = reap_one(shared, owner, index)?;
    reap_absent(shared, owner, absent);
    Ok(is_reaped)
}

/// Reaps task number `index` if it is dead. Returns true if it was dead, and the tasks whose calls
/// the cleanup has completed and that may have died. The caller must reap these tasks.
fn reap_one(shared: &Shared, owner: Owner, index: u32) -> Result<(bool, Absent), Errno> {
    let line = task_line(shared, index);
    let is_other = index < shared.layout.tasks_max && index != owner.index;
    if !is_other || identity(line).0 == 0 || !shared.is_dead(index, None) {
        return Ok((false, Absent::new()));
    }
    let _reaper = lock(shared, &line[REAPER], owner, Wait::Long, || Ok(()))?;
    // Check again under the lock `REAPER`. Another thread may have reaped (cleaned up after) the
    // task, and the record may belong to a live task by now.
    let state = identity(line);
    if state.0 == 0 || !state.is_gone(Look::Close) {
        return Ok((false, Absent::new()));
    }
    reap_line(shared, owner, index, state)
}

/// Reaps the dead ones of the tasks `absent`, and dead tasks whose calls this completes. The caller
/// holds no lock.
pub(crate) fn reap_absent(shared: &Shared, owner: Owner, mut absent: Absent) {
    // Each task is reaped (cleaned up after) at most once. So the number of tasks bounds the loop,
    // even if shared memory is damaged.
    for _ in 0..shared.layout.tasks_max {
        let Some(index) = absent.pop() else { return };
        // After an error, the next caller that reaps continues.
        let reaped = reap_one(shared, owner, index);
        absent.extend(reaped.map(|(_, more)| more).unwrap_or_default());
    }
}

#[cold]
pub(crate) fn reap_former(shared: &Shared, owner: Owner, index: u32) -> Result<bool, Errno> {
    with_reaper(shared, owner, index, || {
        let state = identity(task_line(shared, index));
        // No other process reaps (cleans up after) this task while this process lives. So the task
        // is not reaped yet if its record contains the identity of this process.
        if index == owner.index || state != identity(task_line(shared, owner.index)) {
            return Ok((false, Absent::new()));
        }
        reap_line(shared, owner, index, state)
    })
}

/// Cleans up after a task that this process had before its execve(2), but keeps its `SEM_UNDO`
/// adjustments until the process ends.
#[cold]
pub(crate) fn settle(shared: &Shared, owner: Owner, index: u32) -> Result<(), Errno> {
    // execve(2) has unmapped all segments of the process, so `end_all` removes the old task's
    // attaches. The attaches stay only if a forked child that nattch does not count yet still uses
    // the segments.
    let end = || end_all(shared, owner, index, sem::settle);
    with_reaper(shared, owner, index, end).map(drop)
}

fn with_reaper<T>(
    shared: &Shared,
    owner: Owner,
    index: u32,
    end: impl FnOnce() -> Result<(T, Absent), Errno>,
) -> Result<T, Errno> {
    let reaper = lock(shared, &task_line(shared, index)[REAPER], owner, Wait::Long, || Ok(()))?;
    let (done, absent) = end()?;
    drop(reaper);
    reap_absent(shared, owner, absent);
    Ok(done)
}

/// Cleans up after a dead task, and frees its record. If another process takes over the record
/// meanwhile, the record stays in use. The caller holds the record's lock `REAPER`.
pub(crate) fn reap_line(
    shared: &Shared,
    owner: Owner,
    index: u32,
    state: Identity,
) -> Result<(bool, Absent), Errno> {
    let line = task_line(shared, index);
    let (is_whole, absent) = end_all(shared, owner, index, sem::reap)?;
    if !is_whole {
        // A forked child that nattch does not count yet has the segments mapped. So keep the dead
        // task's record.
        return Ok((true, absent));
    }
    put(&line[IMAGE], 0);
    // ORDERING(ipc-task): Release. See `identity`.
    let freed = line[STATE].compare_exchange(state.0, 0, Ordering::Release, Ordering::Relaxed);
    Ok((freed.is_ok(), absent))
}

/// Cleans up after a dead task whose record the new task `owner` has taken over. Returns false if
/// the attaches must stay, because a forked child still uses the segments.
pub(crate) fn end_former(shared: &Shared, owner: Owner) -> Result<bool, Errno> {
    // Take the lock `REAPER`. This waits for a thread that began to reap (clean up after) the dead
    // task before `owner` took over its record.
    let end = || end_all(shared, owner, owner.index, sem::reap);
    with_reaper(shared, owner, owner.index, end)
}

/// Cleans up after a dead task, but does not free its record. The returned flag is false if
/// attaches of the task must stay, because a forked child uses the segments.
fn end_all(
    shared: &Shared,
    owner: Owner,
    index: u32,
    end_sems: fn(&Shared, Owner, u32) -> Result<Absent, Errno>,
) -> Result<(bool, Absent), Errno> {
    // Take and release the lock of all sets, and then that of all queues. If the dead task held one
    // of them, this repairs what the lock protects.
    drop(Ids { shared, kind: sem::SETS, owner }.lock()?);
    drop(Ids { shared, kind: msg::QUEUES, owner }.lock()?);
    // Repair the pools whose lock a dead task held.
    shared.layout.pools().iter().try_for_each(|pool| pool.lock(shared, owner).map(drop))?;
    let is_whole = shm::reap(Ids { shared, kind: shm::SEGMENTS, owner }, index)?;
    let mut absent = msg::reap(shared, owner, index)?;
    absent.extend(end_sems(shared, owner, index)?);
    // Free the memory of removed sets and queues that the dead task was still using or removing.
    for kind in [sem::SETS, msg::QUEUES] {
        Ids { shared, kind, owner }.lock()?.end_left();
    }
    Ok((is_whole, absent))
}

/// Reaps all dead tasks. Returns their number, without those whose segments a forked child still
/// uses.
pub(crate) fn reap_all(shared: &Shared, owner: Owner) -> Result<usize, Errno> {
    let mut count = 0;
    for index in 0..shared.layout.tasks_max {
        let is_reaped = reap(shared, owner, index)?;
        count += usize::from(is_reaped && identity(task_line(shared, index)).0 == 0);
    }
    Ok(count)
}

/// If `call` fails with `ENOMEM` and there are dead tasks, reaps them and runs `call` once more.
/// The caller holds no lock.
#[inline]
pub(crate) fn with_room<T>(
    shared: &Shared,
    owner: Owner,
    mut call: impl FnMut() -> Result<T, Errno>,
) -> Result<T, Errno> {
    match call() {
        Err(Errno::NOMEM) if makes_room(shared, owner) => call(),
        done => done,
    }
}

/// Reaps all dead tasks, to free their memory. Returns true if there were any.
#[cold]
pub(crate) fn makes_room(shared: &Shared, owner: Owner) -> bool {
    // If a live task does not release a lock, return false. The caller's call then fails with
    // `ENOMEM`.
    reap_all(shared, owner).is_ok_and(|reaped| reaped != 0)
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests {
    use corewalk_base::primitives::thread;
    use corewalk_testkit::race::Watchdog;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::time::Duration;

    use super::*;
    use crate::sem::dead::kill;
    use crate::{
        Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions, SemBuf,
        SemFlags, ShmFlags, Task,
    };

    const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());
    const UNDO: SemBuf = SemBuf::new(0, 1, SemFlags::UNDO);

    fn namespace() -> Namespace {
        let capacity = Capacity { undos: 2, waits: 2, msgs: 16, tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("room", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, options).unwrap()
    }

    fn two(namespace: &Namespace) -> (Task, Task) {
        let task = |pid| namespace.register(Cred::root(), pid).unwrap();
        (task(1), task(3))
    }

    #[test]
    fn adjustments_of_the_dead_make_room_for_those_of_the_living() {
        let namespace = namespace();
        let (dead, other) = two(&namespace);
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        dead.semop(id, &[UNDO]).unwrap();
        assert_eq!(other.semop(id, &[UNDO]), Err(Errno::NOMEM), "it lives");
        kill(dead);
        assert_eq!(other.semop(id, &[UNDO]), Ok(()));
        assert_eq!(other.sem_getval(id, 0), Ok(1));
    }

    #[test]
    fn waits_of_the_dead_for_semaphores_make_room_for_those_of_the_living() {
        let namespace = namespace();
        let (dead, other) = two(&namespace);
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let (pool, region) = (other.shared.layout.waits, &other.shared.region);
        pool.alloc(&other.shared, pool.lines, dead.owner, dead.owner.index).unwrap();
        let soon = Some(Duration::from_millis(1));
        assert_eq!(other.semtimedop(id, &[DOWN], soon), Err(Errno::NOMEM), "it lives");
        kill(dead);
        assert_eq!(other.semtimedop(id, &[DOWN], soon), Err(Errno::AGAIN), "it has waited");
        assert_eq!(pool.used(region).count(), 0);
    }

    #[test]
    fn waits_of_the_dead_for_messages_make_room_for_those_of_the_living() {
        let _watchdog = Watchdog::start("waits that find room", Duration::from_secs(300));
        let namespace = namespace();
        let (dead, other) = two(&namespace);
        let one = namespace.register(Cred::root(), 2).unwrap();
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        one.msg_set(id, 0, 0, 0o600, 4).unwrap();
        one.msgsnd(id, 1, b"full", MsgFlags::empty()).unwrap();
        let receive = || other.msgrcv(id, &mut [0; 4], 2, MsgFlags::empty()).map(drop);
        let send = || other.msgsnd(id, 2, b"more", MsgFlags::empty());
        let pool = one.shared.layout.msg_waits;
        let fill = |of: &Task| pool.alloc(&one.shared, pool.lines, of.owner, of.owner.index);
        fill(&dead).unwrap();
        assert_eq!((receive(), send()), (Err(Errno::NOMEM), Err(Errno::NOMEM)), "it lives");
        kill(dead);
        // From here on, the call waits, or it has failed.
        let until_it_waits = |call: &thread::ScopedJoinHandle<'_, _>| {
            while other.waiting() == 0 && !call.is_finished() {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            let call = scope.spawn(send);
            until_it_waits(&call);
            one.msgrcv(id, &mut [0; 4], 1, MsgFlags::empty()).unwrap();
            assert_eq!(call.join().unwrap(), Ok(()));
        });
        one.msgrcv(id, &mut [0; 4], 2, MsgFlags::empty()).unwrap();
        let dead = namespace.register(Cred::root(), 1).unwrap();
        fill(&dead).unwrap();
        kill(dead);
        thread::scope(|scope| {
            let call = scope.spawn(receive);
            until_it_waits(&call);
            one.msgsnd(id, 2, b"text", MsgFlags::empty()).unwrap();
            assert_eq!(call.join().unwrap(), Ok(()));
        });
    }

    /// A call finds no free memory, and cannot clean up after a dead task whose lock `REAPER` is
    /// held. The call must return its own error, not that of the cleanup.
    #[test]
    fn call_that_finds_no_room_says_so_also_if_the_dead_cannot_be_reaped() {
        let namespace = namespace();
        let (dead, other) = two(&namespace);
        let stays = namespace.register(Cred::root(), 2).unwrap();
        let sems = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let queue = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        for pool in [other.shared.layout.waits, other.shared.layout.msg_waits] {
            pool.alloc(&other.shared, pool.lines, dead.owner, dead.owner.index).unwrap();
        }
        let reaper = &task_line(&other.shared, dead.owner.index)[REAPER];
        let _held = lock(&other.shared, reaper, stays.owner, Wait::Long, || Ok(())).unwrap();
        kill(dead);
        thread::scope(|scope| {
            let waits = scope.spawn(|| other.semop(sems, &[DOWN]));
            let received = other.msgrcv(queue, &mut [0; 4], 0, MsgFlags::empty()).map(drop);
            assert_eq!((waits.join().unwrap(), received), (Err(Errno::NOMEM), Err(Errno::NOMEM)));
        });
    }

    #[test]
    fn attaches_of_the_dead_make_room_for_those_of_the_living() {
        let namespace = namespace();
        let (dead, other) = two(&namespace);
        let id = other.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
        let attach = |task: &Task| {
            let mapping = task.shmat(id, 0, ShmFlags::empty())?;
            mapping.attached_at(0x1000);
            Ok::<_, Errno>(())
        };
        attach(&dead).unwrap();
        assert_eq!(attach(&other), Err(Errno::NOMEM), "it lives");
        kill(dead);
        assert_eq!(attach(&other), Ok(()));
        assert!(matches!(other.fork(1), Err(Errno::NOMEM)), "it lives");
        let pool = other.shared.layout.attaches;
        assert_eq!(pool.used(&other.shared.region).count(), 1, "the child has none");
    }

    /// A fork that needs an attach record while all are in use must get that of a dead task.
    #[test]
    fn attaches_of_the_dead_make_room_for_those_of_a_child() {
        let capacity = Capacity { attaches: 3, segments: 2, tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("room", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let (dead, other) = two(&namespace);
        let id = other.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
        for address in [0x1000, 0x3000] {
            other.shmat(id, 0, ShmFlags::empty()).unwrap().attached_at(address);
        }
        let second = other.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
        for (task, id) in [(&dead, id), (&dead, second)] {
            task.shmat(id, 0, ShmFlags::empty())
                .unwrap()
                .attached_at(0x1000 * id.raw() as usize + 0x1000);
        }
        kill(dead);
        let child = other.fork(1).unwrap();
        assert_eq!((child.attached(), other.shm_stat(id).unwrap().nattch), (2, 4));
    }
}
