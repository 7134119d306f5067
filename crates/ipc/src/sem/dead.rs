//! For tests: creates the state that a task leaves if it is killed while it waits, without a
//! process of its own for the task.

use super::SemBuf;
use super::node::{Call, Node};
use super::queue;
use super::set::Set;
use super::txn::{Txn, Verdict};
use super::undo;
use crate::field::put;
use crate::handle::SemId;
use crate::status::AWAKE;
use crate::task::Task;
use crate::task_line::forget_process;

/// Queues a semop(2) call as a real call does, but without a thread that sleeps. Returns the first
/// cache line of the wait node.
pub(crate) fn wait_without_sleep(task: &Task, id: SemId, sops: &[SemBuf]) -> u32 {
    wait_looking(task, id, sops, false)
}

/// Like [`wait_without_sleep`]. If `is_watched` is true, the wait node says that the task polls its
/// status instead of sleeping.
pub(crate) fn wait_looking(task: &Task, id: SemId, sops: &[SemBuf], is_watched: bool) -> u32 {
    let object = task.sem_ids().obtain_object_check(id.raw()).unwrap();
    let guard = Set::new(&task.shared, &object).lock(task.owner).unwrap();
    let has_undo = sops.iter().any(|sop| sop.is_undo());
    let undo = if has_undo { undo::find_alloc(&guard, &task.undos).unwrap() } else { 0 };
    let call = Call { sops, undo, pid: task.pid };
    let mut txn = Txn::new(&guard);
    let Verdict::Blocks(at) = txn.perform(call) else { panic!("the call need not wait") };
    let node = Node::alloc(&task.shared, task.owner, call, at).unwrap();
    put(node.status(), if is_watched { AWAKE } else { 0 });
    queue::enqueue(&mut txn, node, sops).unwrap();
    txn.commit();
    node.line
}

pub(crate) fn kill(task: Task) {
    forget_process(&task.shared, task.owner.index);
    std::mem::forget(task);
}

#[cfg(not(corewalk_crash))]
mod tests {
    use corewalk_base::futex;
    use corewalk_base::primitives::thread;
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::Errno;
    use std::time::Duration;

    use super::super::freeze::thaw_dead;
    use super::super::set::WORD;
    use super::*;
    use crate::field::get;
    use crate::process::{Identity, Look};
    use crate::status::STATUS;
    use crate::task_line::{STATE, identity, task_line};
    use crate::{Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemFlags};

    fn namespace(sets: u32) -> Namespace {
        let capacity =
            Capacity { sets, sems: 16, undos: 32, waits: 16, tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("dead", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, options).unwrap()
    }

    fn task(namespace: &Namespace, pid: u32) -> Task {
        namespace.register(Cred::root(), pid).unwrap()
    }

    /// Two sets that use a slot one after the other may have the same tag (version number). An
    /// operation on the second must not use the undo record of the first.
    #[test]
    fn undo_record_of_the_set_before_is_not_taken_for_that_of_the_next() {
        let namespace = namespace(1);
        let (task, other) = (task(&namespace, 1), task(&namespace, 2));
        let up = |id, num| task.semop(id, &[SemBuf::new(num, 1, SemFlags::UNDO)]).unwrap();
        let first = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        up(first, 0);
        task.sem_rmid(first).unwrap();
        // The second set has the slot and the tag (version number) of the first, but its semaphores
        // are in other cache lines.
        let second = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        up(second, 0);
        up(second, 1);
        assert_eq!(other.sem_getall(second).unwrap(), [1, 1]);
        task.exit();
        assert_eq!(other.sem_getall(second).unwrap(), [0, 0]);
    }

    #[test]
    fn grant_by_a_removed_set_is_not_taken_back_from_the_next_set() {
        let namespace = namespace(1);
        let (victim, other) = (task(&namespace, 1), task(&namespace, 2));
        let first = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        wait_without_sleep(&victim, first, &[SemBuf::new(0, -1, SemFlags::empty())]);
        other.semop(first, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
        other.sem_rmid(first).unwrap();
        let second = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        kill(victim);
        namespace.recover().unwrap();
        assert_eq!(other.sem_getall(second).unwrap(), [0, 0]);
    }

    #[test]
    fn grant_taken_back_by_a_reaper_that_died_is_reaped_again() {
        for status in [0xffff_u64, 4096, 35_000] {
            let namespace = namespace(1);
            let (victim, other) = (task(&namespace, 1), task(&namespace, 2));
            let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
            let node = wait_without_sleep(&victim, id, &[SemBuf::new(0, -1, SemFlags::empty())]);
            other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            let word = &other.shared.region.line(node)[STATUS];
            assert_eq!(get(word), 1, "the permit was granted");
            put(word, 1 | status << 8);
            kill(victim);
            namespace.recover().unwrap();
            let line = other.shared.layout.waits.whose(&other.shared.region, node);
            assert_eq!(line, None, "the node is free");
        }
    }

    #[test]
    fn permit_granted_to_two_dead_tasks_in_turn_is_free_for_a_try() {
        for is_watched in [false, true] {
            let namespace = namespace(1);
            let [first, second, other] = [1, 2, 3].map(|pid| task(&namespace, pid));
            let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
            for waiter in [&first, &second] {
                wait_looking(waiter, id, &[SemBuf::new(0, -1, SemFlags::empty())], is_watched);
            }
            kill(first);
            kill(second);
            other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            let try_down = other.semop(id, &[SemBuf::new(0, -1, crate::SemFlags::NOWAIT)]);
            assert_eq!(try_down, Ok(()), "the dead task spun: {is_watched}");
        }
    }

    /// The bit `OWED` makes calls look for dead tasks. A call that has cleaned up after them must
    /// clear it.
    #[test]
    fn set_whose_dead_were_looked_at_owes_nothing() {
        let namespace = namespace(1);
        let (dead, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let set = Set::new(&other.shared, &other.sem_ids().obtain_object_check(id.raw()).unwrap());
        assert!(!set.may_be_owed());
        wait_looking(&dead, id, &[SemBuf::new(0, -1, SemFlags::empty())], true);
        kill(dead);
        other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
        assert!(set.may_be_owed());
        assert_eq!(
            other.sem_getval(id, 0),
            Ok(1),
            "a query must not count the grant of a dead task"
        );
        assert_eq!(other.sem_getval(id, 0), Ok(1));
        assert!(!set.may_be_owed());
    }

    /// The opposite case: a unit of a semaphore is granted to a task that is alive, but has not
    /// returned from its call yet. The task must keep the unit.
    #[test]
    fn control_permit_granted_to_a_live_task_stays() {
        for is_watched in [false, true] {
            let namespace = namespace(1);
            let (waits, other) = (task(&namespace, 1), task(&namespace, 2));
            let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
            wait_looking(&waits, id, &[SemBuf::new(0, -1, SemFlags::empty())], is_watched);
            other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            for _ in 0..100 {
                assert_eq!(other.semop(id, &[TRY]), Err(Errno::AGAIN));
                assert_eq!(other.sem_getval(id, 0), Ok(0));
            }
            kill(waits);
            assert_eq!(other.semop(id, &[TRY]), Ok(()), "the dead task spun: {is_watched}");
        }
    }

    #[test]
    fn permit_that_an_exit_grants_to_a_dead_task_is_free_for_a_try() {
        let namespace = namespace(1);
        let (ends, dead, other) = (task(&namespace, 1), task(&namespace, 2), task(&namespace, 3));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        other.sem_setval(id, 0, 1).unwrap();
        ends.semop(id, &[SemBuf::new(0, -1, SemFlags::UNDO)]).unwrap();
        wait_without_sleep(&dead, id, &[SemBuf::new(0, -1, SemFlags::empty())]);
        kill(dead);
        ends.exit();
        assert_eq!(other.semop(id, &[SemBuf::new(0, -1, crate::SemFlags::NOWAIT)]), Ok(()));
    }

    #[test]
    fn waits_of_processes_that_are_gone_are_not_counted() {
        let namespace = namespace(1);
        let (dead, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        wait_without_sleep(&dead, id, &[SemBuf::new(0, -1, SemFlags::empty())]);
        assert_eq!(other.sem_getncnt(id, 0), Ok(1));
        kill(dead);
        assert_eq!(other.sem_getncnt(id, 0), Ok(0));
    }

    #[test]
    fn call_that_cannot_leave_its_queue_keeps_its_node_until_it_can() {
        const TIMEOUT: Option<Duration> = Some(Duration::from_millis(300));
        let namespace = namespace(1);
        let (holder, caller) = (task(&namespace, 1), task(&namespace, 2));
        let id = holder.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let down = |flag| [SemBuf::new(0, -1, flag)];
        let object = holder.sem_ids().obtain_object_check(id.raw()).unwrap();
        let set = Set::new(&holder.shared, &object);
        thread::scope(|scope| {
            let call = scope.spawn(|| caller.semtimedop(id, &down(SemFlags::empty()), TIMEOUT));
            while holder.sem_getncnt(id, 0) != Ok(1) {
                thread::yield_now();
            }
            let stuck = set.lock(holder.owner).unwrap();
            assert_eq!(call.join().unwrap(), Err(Errno::IO));
            drop(stuck);
        });
        assert_eq!(holder.sem_getncnt(id, 0), Ok(1), "the call is still in its queue");
        holder.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
        assert_eq!(holder.sem_getval(id, 0), Ok(1), "the call gets no permit");
        assert_eq!(caller.semtimedop(id, &down(SemFlags::empty()), TIMEOUT), Ok(()));
        caller.exit();
        let waits = holder.shared.layout.waits;
        assert_eq!(waits.used(&holder.shared.region).count(), 0, "the node is free");
    }

    /// The cleanup after a dead task must not thaw (unlock) a word that a later task with the same
    /// task number has frozen.
    #[test]
    fn freeze_by_the_next_task_with_a_dead_ones_number_stays() {
        let namespace = namespace(1);
        let (next, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let object = other.sem_ids().obtain_object_check(id.raw()).unwrap();
        let set = Set::new(&other.shared, &object);
        let frozen = set.word(0).unwrap().freeze(next.owner.index);
        put(&set.sem(0)[WORD], frozen.0);
        let guard = set.lock(other.owner).unwrap();
        thaw_dead(&guard, 0, frozen, Identity(1));
        assert_eq!(set.word(0), Ok(frozen));
        // Control: with the identity of the task that froze the word, the freeze ends.
        let living = identity(task_line(&other.shared, next.owner.index));
        thaw_dead(&guard, 0, frozen, living);
        assert!(!set.word(0).unwrap().is_frozen());
    }

    /// Lets a task of the process `identity` take the unit of a semaphore with `SEM_UNDO`.
    fn holds_one(namespace: &Namespace, other: &Task, identity: Identity) -> SemId {
        let holder = task(namespace, 1);
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        other.sem_setval(id, 0, 1).unwrap();
        holder.semop(id, &[SemBuf::new(0, -1, SemFlags::UNDO)]).unwrap();
        put(&task_line(&other.shared, holder.owner.index)[STATE], identity.0);
        std::mem::forget(holder);
        id
    }

    const TRY: SemBuf = SemBuf::new(0, -1, crate::SemFlags::NOWAIT);
    const LOCK: SemBuf = SemBuf::new(0, -1, SemFlags::UNDO);
    const PLAIN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());

    /// A signal interrupts a wait, and another task adds a unit before the interrupted thread runs
    /// again. The interrupted call must not take this unit.
    #[test]
    fn interrupted_wait_is_granted_nothing() {
        let namespace = namespace(1);
        let (left, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let node = wait_without_sleep(&left, id, &[LOCK]);
        let _outer = left.begin_wait(node);
        left.interrupt_own();
        other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
        assert_eq!(other.sem_getval(id, 0), Ok(1));
        assert_eq!(other.sem_getncnt(id, 0), Ok(1), "the node stays until the task ends");
        kill(left);
        namespace.recover().unwrap();
        assert_eq!((other.sem_getval(id, 0), other.sem_getncnt(id, 0)), (Ok(1), Ok(0)));
    }

    /// The cleanup after a dead task must not add a granted unit back to a value that `SETVAL` has
    /// set since.
    #[test]
    fn value_set_after_a_grant_stays_when_the_grant_is_dropped() {
        for lock in [LOCK, PLAIN] {
            let namespace = namespace(1);
            let (left, other) = (task(&namespace, 1), task(&namespace, 2));
            let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
            wait_without_sleep(&left, id, &[lock]);
            other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            other.sem_setval(id, 0, 1).unwrap();
            kill(left);
            namespace.recover().unwrap();
            assert_eq!(other.sem_getval(id, 0), Ok(1), "{lock:?}");
        }
    }

    /// A `SETVAL` completes a waiting call, whose task dies. The unit that the call took must
    /// return, since `SETVAL` set the value before it completed the call.
    #[test]
    fn lock_granted_by_setval_to_a_dead_task_is_free_again() {
        let namespace = namespace(1);
        let (dead, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        wait_without_sleep(&dead, id, &[LOCK]);
        other.sem_setval(id, 0, 1).unwrap();
        assert_eq!(other.sem_getval(id, 0), Ok(0), "the permit was granted");
        kill(dead);
        namespace.recover().unwrap();
        assert_eq!(other.sem_getval(id, 0), Ok(1));
    }

    /// A dead task's completed call has added to one semaphore, and taken from another. A live task
    /// has since taken the added unit, so the whole call cannot be reverted. The unit that the call
    /// took must still return.
    #[test]
    fn grant_is_taken_back_in_part_or_not_at_all_if_not_possible_as_a_whole() {
        let give = SemBuf::new(1, 1, SemFlags::UNDO);
        for flag in [SemFlags::empty(), SemFlags::UNDO] {
            let namespace = namespace(1);
            let (dead, other) = (task(&namespace, 1), task(&namespace, 2));
            let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
            wait_without_sleep(&dead, id, &[SemBuf::new(0, -1, flag), give]);
            other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            other.semop(id, &[SemBuf::new(1, -1, SemFlags::empty())]).unwrap();
            kill(dead);
            namespace.recover().unwrap();
            assert_eq!(other.sem_getall(id).unwrap(), [1, 0], "{flag:?}");
        }
    }

    #[test]
    fn adjustment_of_a_zombie_is_applied_for_tries_and_queries() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let start = crate::process::stat(child.id()).map_or(0, |stat| stat.start);
        let ended = Identity::new(child.id(), start);
        while !ended.is_gone(Look::Close) {
            thread::yield_now();
        }
        let namespace = namespace(2);
        let other = task(&namespace, 2);
        let id = holds_one(&namespace, &other, ended);
        assert_eq!(other.semop(id, &[TRY]), Ok(()));
        let id = holds_one(&namespace, &other, ended);
        assert_eq!(other.sem_getval(id, 0), Ok(1));
        child.wait().unwrap();
    }

    #[test]
    fn adjustment_of_a_task_whose_pid_was_reused_is_applied_for_repeated_tries() {
        let namespace = namespace(1);
        let other = task(&namespace, 2);
        let id = holds_one(&namespace, &other, Identity::new(std::process::id(), 1));
        let tries = (0..1000).take_while(|_| other.semop(id, &[TRY]) == Err(Errno::AGAIN));
        assert!(tries.count() < 1000);
    }

    /// A dead task has undo adjustments for two semaphores. Another task's call that is possible at
    /// the present values must succeed. Once the adjustments are applied, the call must get the
    /// result that it has on Linux.
    #[test]
    fn call_that_succeeds_sees_values_before_the_undo_of_a_dead_task() {
        const ZERO: SemBuf = SemBuf::new(0, 0, crate::SemFlags::NOWAIT);
        for is_asked_first in [false, true] {
            let namespace = namespace(2);
            let (dead, other) = (task(&namespace, 1), task(&namespace, 2));
            let [given, taken] =
                [(); 2].map(|()| other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap());
            dead.semop(given, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
            other.sem_setval(taken, 0, 1).unwrap();
            dead.semop(taken, &[SemBuf::new(0, -1, SemFlags::UNDO)]).unwrap();
            kill(dead);
            if is_asked_first {
                assert_eq!(
                    (other.sem_getval(given, 0), other.sem_getval(taken, 0)),
                    (Ok(0), Ok(1))
                );
            }
            let linux = Err(Errno::AGAIN);
            let expected = if is_asked_first { linux } else { Ok(()) };
            assert_eq!(
                (other.semop(given, &[TRY]), other.semop(taken, &[ZERO])),
                (expected, expected)
            );
            // In both cases, recovery must apply the adjustments once.
            namespace.recover().unwrap();
            assert_eq!((other.sem_getval(given, 0), other.sem_getval(taken, 0)), (Ok(0), Ok(1)));
        }
    }

    #[test]
    fn control_adjustment_of_a_live_task_stays() {
        let namespace = namespace(1);
        let other = task(&namespace, 2);
        let id = holds_one(&namespace, &other, crate::Program::own().identity);
        let end = futex::now().monotonic_ns + 300_000_000;
        while futex::now().monotonic_ns < end {
            assert_eq!(other.semop(id, &[TRY]), Err(Errno::AGAIN));
        }
    }

    #[test]
    fn control_grant_of_a_dead_task_is_taken_back() {
        let namespace = namespace(1);
        let (victim, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        wait_without_sleep(&victim, id, &[SemBuf::new(0, -1, SemFlags::empty())]);
        other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
        assert_eq!(other.sem_getval(id, 0), Ok(0));
        kill(victim);
        namespace.recover().unwrap();
        assert_eq!(other.sem_getval(id, 0), Ok(1));
    }
}
