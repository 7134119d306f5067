//! Cleanup after tasks that were killed.
//!
//! A thread that finds an unfinished change repairs it. That thread is the next holder of a lock
//! (`lock`), or a thread that needs a frozen semaphore (`sem::recover`). For all else, a dead task
//! is *reaped*, which does what the end of a live task does. Its adjustments are applied, its
//! waiting calls leave their queues, and its line becomes free.
//!
//! # When a dead task is reaped
//!
//! No daemon is needed. These callers reap:
//!
//! - one waiting call of the namespace, ten times a second on behalf of all (`watch`);
//! - a call that would fail with `EAGAIN`, and `GETVAL` and its like, if a task has adjustments;
//! - a call that would fail with `ENOMEM`;
//! - a call that wakes a dead task;
//! - a task that registers, if it finds a dead task beside its own line, or no free line (`task`);
//! - [`crate::Namespace::recover`].
//!
//! A call that succeeds does not look for dead tasks. The check would be a system call for each
//! holder of adjustments, in a call that otherwise is one compare-exchange. A flag in the semaphore
//! could say whether a pending adjustment would lower it. That would avoid the check for semaphores
//! used as locks. But if one process raises a semaphore and another lowers it, both with
//! `SEM_UNDO`, the flag would always be set.
//!
//! # Locks
//!
//! The lock `REAPER` of the task's line comes before all others. So a thread that holds another
//! lock must not reap.
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

/// Reaps the task numbered `index` if its process has ended. The applied adjustments may complete
/// waiting calls of other dead tasks; this reaps those tasks too. The caller holds no lock.
///
/// Returns true if the task was dead. Its line stays in use while its attaches must stay
/// (`shm::reap`).
///
/// # Errors
///
/// `EIO` if a live task does not release a needed lock.
#[cold]
pub(crate) fn reap(shared: &Shared, owner: Owner, index: u32) -> Result<bool, Errno> {
    let (is_reaped, absent) = reap_one(shared, owner, index)?;
    reap_absent(shared, owner, absent);
    Ok(is_reaped)
}

/// Like [`reap`], but returns the tasks whose calls were completed and that may have died.
fn reap_one(shared: &Shared, owner: Owner, index: u32) -> Result<(bool, Absent), Errno> {
    let line = task_line(shared, index);
    let is_other = index < shared.layout.tasks_max && index != owner.index;
    if !is_other || identity(line).0 == 0 || !shared.is_dead(index, None) {
        return Ok((false, Absent::new()));
    }
    let _reaper = lock(shared, &line[REAPER], owner, Wait::Long, || Ok(()))?;
    // Another thread may have reaped the task already, and the line may belong to a live task now.
    let state = identity(line);
    if state.0 == 0 || !state.is_gone(Look::Close) {
        return Ok((false, Absent::new()));
    }
    reap_line(shared, owner, index, state)
}

/// Reaps the tasks in `absent` that have died, and dead tasks whose waiting calls this completes.
/// The caller holds no lock.
pub(crate) fn reap_absent(shared: &Shared, owner: Owner, mut absent: Absent) {
    // Each task is reaped at most once, so the number of tasks bounds the loop, even in a damaged
    // region.
    for _ in 0..shared.layout.tasks_max {
        let Some(index) = absent.pop() else { return };
        // After an error, the next caller that reaps continues.
        let reaped = reap_one(shared, owner, index);
        absent.extend(reaped.map(|(_, more)| more).unwrap_or_default());
    }
}

/// Reaps a task of the program that this process ran before execve(2). `owner` is a task of the
/// same process.
///
/// # Errors
///
/// The errors of [`reap`].
#[cold]
pub(crate) fn reap_former(shared: &Shared, owner: Owner, index: u32) -> Result<bool, Errno> {
    with_reaper(shared, owner, index, || {
        let state = identity(task_line(shared, index));
        // Only the end of this process applies the adjustments of its tasks, so no other thread has
        // reaped the task.
        if index == owner.index || state != identity(task_line(shared, owner.index)) {
            return Ok((false, Absent::new()));
        }
        reap_line(shared, owner, index, state)
    })
}

/// Ends the calls, frozen semaphores and attaches of a task of the program that this process ran
/// before execve(2). The `SEM_UNDO` adjustments of the task stay.
///
/// # Errors
///
/// The errors of [`reap`].
#[cold]
pub(crate) fn settle(shared: &Shared, owner: Owner, index: u32) -> Result<(), Errno> {
    // execve(2) detaches all segments. Attaches of uncounted children stay until the process ends.
    let end = || end_all(shared, owner, index, sem::settle);
    with_reaper(shared, owner, index, end).map(drop)
}

/// Runs `end` under the lock `REAPER` of the task numbered `index`. Then reaps the dead tasks whose
/// waiting calls this has completed.
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

/// Reaps a task whose process has the identity `state`. The caller holds the lock `REAPER` of the
/// task. If another process has taken over the line of the task meanwhile, the line stays in use.
pub(crate) fn reap_line(
    shared: &Shared,
    owner: Owner,
    index: u32,
    state: Identity,
) -> Result<(bool, Absent), Errno> {
    let line = task_line(shared, index);
    let (is_whole, absent) = end_all(shared, owner, index, sem::reap)?;
    if !is_whole {
        // The line stays in use: a child that is not counted yet has the task's segments mapped.
        return Ok((true, absent));
    }
    put(&line[IMAGE], 0);
    // ORDERING(ipc-task): Release. See `identity`.
    let freed = line[STATE].compare_exchange(state.0, 0, Ordering::Release, Ordering::Relaxed);
    Ok((freed.is_ok(), absent))
}

/// Ends everything that a dead task has left, after `owner` has taken over the line of that task.
/// Returns false if its attaches must stay (`shm::reap`).
///
/// # Errors
///
/// Those of [`reap`].
pub(crate) fn end_former(shared: &Shared, owner: Owner) -> Result<bool, Errno> {
    // Another thread may have begun to reap the task before the take-over. Then that thread still
    // holds the lock `REAPER`, so wait for that lock.
    let end = || end_all(shared, owner, owner.index, sem::reap);
    with_reaper(shared, owner, owner.index, end)
}

/// Reaps a task, but does not free the task's line. `end_sems` cleans up the task's semaphore sets.
/// The returned flag is false if attaches of the task stay.
fn end_all(
    shared: &Shared,
    owner: Owner,
    index: u32,
    end_sems: fn(&Shared, Owner, u32) -> Result<Absent, Errno>,
) -> Result<(bool, Absent), Errno> {
    // First take the locks of all sets and of all queues. If the dead task held one, this completes
    // an unfinished removal of that task, and thaws the semaphores of the removed set.
    drop(Ids { shared, kind: sem::SETS, owner }.lock()?);
    drop(Ids { shared, kind: msg::QUEUES, owner }.lock()?);
    // Repair the pools whose lock a dead task held.
    shared.layout.pools().iter().try_for_each(|pool| pool.lock(shared, owner).map(drop))?;
    let is_whole = shm::reap(Ids { shared, kind: shm::SEGMENTS, owner }, index)?;
    let mut absent = msg::reap(shared, owner, index)?;
    absent.extend(end_sems(shared, owner, index)?);
    // The task's unfinished call may have been the last user of a removed object, which can be
    // freed now.
    for kind in [sem::SETS, msg::QUEUES] {
        Ids { shared, kind, owner }.lock()?.end_left();
    }
    Ok((is_whole, absent))
}

/// Reaps all dead tasks. Returns their number, without tasks whose attaches stay.
///
/// # Errors
///
/// The errors of [`reap`].
pub(crate) fn reap_all(shared: &Shared, owner: Owner) -> Result<usize, Errno> {
    let mut count = 0;
    for index in 0..shared.layout.tasks_max {
        let is_reaped = reap(shared, owner, index)?;
        count += usize::from(is_reaped && identity(task_line(shared, index)).0 == 0);
    }
    Ok(count)
}

/// Runs `call`. If it fails with `ENOMEM`, reaps dead tasks, and if there were any, runs it once
/// more. The caller holds no lock.
///
/// # Errors
///
/// The errors of `call`.
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

/// Reaps all dead tasks, for a call that has found no room. Returns true if there were any.
#[cold]
pub(crate) fn makes_room(shared: &Shared, owner: Owner) -> bool {
    // An error means that a live task holds a lock, so a dead task was not reaped. The call then
    // fails with its own error, `ENOMEM`.
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

    /// Returns a namespace with room for one waiting call, one undo record and one attach.
    fn namespace() -> Namespace {
        let capacity = Capacity { undos: 2, waits: 2, msgs: 16, tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("room", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, options).unwrap()
    }

    /// Returns two tasks: one that the test kills, and one that lives.
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

    /// A live task holds `REAPER`, the lock for cleaning up after a dead task, and does not release
    /// it. A call that finds no room must then return its own error.
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

    /// The fork needs a second attach record. It must get the record of a dead task.
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
