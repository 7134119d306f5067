//! Loom models of message queues. In some of them, a receiver waits for a message or a sender for
//! space, and another task ends the wait. In others, a queue is removed while a task sends to it or
//! waits at it. The last models pass a message to a waiting receiver, which may then free its wait
//! node.
//!
//! Each model counts its outcomes, like the models of semaphores in `crate::loom_models`. Each
//! control (a mutation test) leaves out one step, and must fail.

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};
use rustix::io::Errno;

use super::message::{Message, Truth};
use super::node::Role;
use super::queue::{Queue, QueueGuard};
use crate::lock::Wait;
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, Task,
};

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

fn namespace(queues: u32) -> Namespace {
    let capacity = Capacity { queues, msgs: 4, waits: 4, tasks: 2, ..Capacity::LEAST };
    Namespace::new(NamespaceOptions { capacity, ..Default::default() }).unwrap()
}

fn task(namespace: &Namespace, pid: u32) -> Arc<Task> {
    Arc::new(namespace.register(Cred::root(), pid).unwrap())
}

fn queue(task: &Task, id: MsgId) -> Queue<'_> {
    Queue::new(&task.shared, &task.msg_ids().obtain_object_check(id.raw()).unwrap())
}

fn send(task: &Task, id: MsgId) -> Result<(), Errno> {
    task.msgsnd(id, 1, b"", NOWAIT)
}

/// Sends without checking for waiting receivers.
fn blind_send(task: &Task, id: MsgId) -> Result<(), Errno> {
    let message = Message::alloc(task, 1, b"")?;
    queue(task, id).lock(task.owner)?.append(message);
    Ok(())
}

/// A wrong variant of msgsnd(2): it does not check that the queue is still the one that the lookup
/// found.
fn stale_send(task: &Task, id: MsgId) -> Result<(), Errno> {
    let object = task.msg_ids().obtain_object_check(id.raw())?;
    let queue = Queue::new(&task.shared, &object);
    let message = Message::alloc(task, 1, b"")?;
    let held = queue.hold(task.owner, Wait::Long)?;
    QueueGuard { queue, owner: task.owner, _held: Some(held) }.append(message);
    Ok(())
}

/// A wrong variant of msgsnd(2): it stores the outcome in the receiver's wait node before it
/// stores the state `Delivered` in the message.
fn hasty_send(task: &Task, id: MsgId) -> Result<(), Errno> {
    let message = Message::alloc(task, 1, b"")?;
    let guard = queue(task, id).lock(task.owner)?;
    let Some(line) = guard.waiting(Role::Receiver).iter().next() else {
        guard.append(message);
        return Ok(());
    };
    guard.waiting(Role::Receiver).unlink(line);
    guard.node(line).tell(Ok(message.line));
    message.set_truth(Truth::Delivered(guard.queue.name, line));
    Ok(())
}

/// Receives without calling waiting senders.
fn blind_receive(task: &Task, id: MsgId) -> Result<(), Errno> {
    let guard = queue(task, id).lock(task.owner)?;
    let message = guard.message(guard.messages().iter().next().ok_or(Errno::NOMSG)?);
    guard.take(message, task.owner.index);
    drop(guard);
    message.free(task.owner);
    Ok(())
}

fn receive(task: &Task, id: MsgId) -> Result<(), Errno> {
    task.msgrcv(id, &mut [], 0, NOWAIT).map(drop)
}

fn receiver_against(send: fn(&Task, MsgId) -> Result<(), Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace(1);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let waiter = thread::spawn({
            let other = Arc::clone(&other);
            move || other.msgrcv(id, &mut [], 0, MsgFlags::empty()).map(drop)
        });
        let was_waiting = other.waiting() != 0;
        send(&one, id).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(one.msg_stat(id).unwrap().qnum, 0);
        tally.hit(usize::from(was_waiting));
    })
}

/// A receiver must, in one step, find that there is no message and become visible as waiting.
/// Otherwise a sender in between would not wake it. Trap I5 in `traps.md`.
#[test]
fn receiver_beside_its_message_goes_on() {
    assert_all_reached(&receiver_against(send));
}

/// Control (a variant with the bug must fail): a sender appends its message to the queue although a
/// receiver waits. Trap I5 in `traps.md`.
#[test]
#[should_panic(expected = "branches")]
fn control_message_that_wakes_nobody_is_caught() {
    receiver_against(blind_send);
}

fn sender_against(receive: fn(&Task, MsgId) -> Result<(), Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace(1);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        // The queue has space for one message.
        one.msg_set(id, 0, 0, 0o600, 1).unwrap();
        send(&one, id).unwrap();
        let waiter = thread::spawn({
            let other = Arc::clone(&other);
            move || other.msgsnd(id, 1, b"", MsgFlags::empty())
        });
        let was_waiting = other.waiting() != 0;
        receive(&one, id).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(one.msg_stat(id).unwrap().qnum, 1);
        tally.hit(usize::from(was_waiting));
    })
}

/// A sender must, in one step, find that there is no space and become visible as waiting. Otherwise
/// a receiver in between would not wake it. Trap I5 in `traps.md`.
#[test]
fn sender_beside_a_receiver_goes_on() {
    assert_all_reached(&sender_against(receive));
}

/// Control (a variant with the bug must fail): a receiver frees space in the queue, but does not
/// tell the waiting senders. Trap I5 in `traps.md`.
#[test]
#[should_panic(expected = "branches")]
fn control_receiver_that_calls_nobody_is_caught() {
    sender_against(blind_receive);
}

fn remove_against(send: fn(&Task, MsgId) -> Result<(), Errno>) -> [usize; 3] {
    Tally::of_bounded(1, move |tally| {
        let namespace = namespace(1);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let sender = thread::spawn(move || send(&other, id));
        let remover = thread::spawn({
            let one = Arc::clone(&one);
            move || {
                one.msg_rmid(id).unwrap();
                one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap()
            }
        });
        let (outcome, next) = (sender.join().unwrap(), remover.join().unwrap());
        assert_ne!(next, id, "an id was reused at once");
        assert_eq!(one.msg_stat(next).unwrap().qnum, 0, "a stale message reached the next queue");
        tally.hit(match outcome {
            Ok(()) => 0,
            Err(Errno::INVAL) => 1,
            Err(Errno::IDRM) => 2,
            Err(other) => panic!("{other}"),
        });
    })
}

/// After a lookup, the queue may be removed before the call takes the queue's lock. So the call
/// must check the result of its lookup again under the lock. Traps I3 and I10 in `traps.md`.
#[test]
fn message_beside_removal_reaches_its_own_queue_or_none() {
    assert_all_reached(&remove_against(send));
}

/// Control (a variant with the bug must fail): the sender does not check again whether the queue
/// exists. Trap I3 in `traps.md`.
#[test]
#[should_panic(expected = "a stale message reached the next queue")]
fn control_message_without_a_second_look_is_caught() {
    remove_against(stale_send);
}

/// If a queue is removed, a call that waits at it must end. A call that is about to wait must end
/// too. Trap I3 in `traps.md`.
#[test]
fn receiver_beside_removal_ends() {
    let outcomes: [usize; 2] = Tally::of_bounded(2, move |tally| {
        let namespace = namespace(1);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let waiter =
            thread::spawn(move || other.msgrcv(id, &mut [], 0, MsgFlags::empty()).map(drop));
        one.msg_rmid(id).unwrap();
        tally.hit(match waiter.join().unwrap() {
            Err(Errno::INVAL) => 0,
            Err(Errno::IDRM) => 1,
            other => panic!("{other:?}"),
        });
    });
    assert_all_reached(&outcomes);
}

fn hand_over(send: fn(&Task, MsgId) -> Result<(), Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace(2);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let ids = [(); 2].map(|()| one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap());
        let waiter = thread::spawn({
            let other = Arc::clone(&other);
            move || {
                other.msgrcv(ids[0], &mut [], 0, MsgFlags::empty()).unwrap();
                // The new message uses the lines of the received one.
                other.msgsnd(ids[1], 1, b"", NOWAIT).unwrap();
            }
        });
        let was_waiting = other.waiting() != 0;
        send(&one, ids[0]).unwrap();
        waiter.join().unwrap();
        let next = queue(&one, ids[1]);
        let guard = next.lock(one.owner).unwrap();
        let message = guard.message(guard.messages().iter().next().unwrap());
        assert_eq!(message.truth(), Truth::Queued(next.name), "I13: accessed after the outcome");
        tally.hit(usize::from(was_waiting));
    })
}

/// The receiver may free its wait node once it finds an outcome there. So a sender that has stored
/// the outcome must not access the node or the message any more. Trap I13 in `traps.md`.
#[test]
fn delivered_message_belongs_to_its_receiver() {
    assert_all_reached(&hand_over(send));
}

/// Control (a variant with the bug must fail): the sender accesses the message after it has stored
/// the receiver's outcome. Trap I13 in `traps.md`.
#[test]
#[should_panic(expected = "I13")]
fn control_message_touched_after_it_was_told_is_caught() {
    hand_over(hasty_send);
}
