//! Models: a wait for a message or for room against what ends it; removal against sending and waiting; a
//! message that is handed over.
//!
//! As those of semaphores (`crate::loom_models`): each counts its outcomes, and has a twin that leaves one
//! step out and has to fail.

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};
use rustix::io::Errno;

use super::message::{Message, Truth};
use super::queue::{Locked, Queue};
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

/// Sends without a look at who waits.
fn blind_send(task: &Task, id: MsgId) -> Result<(), Errno> {
    let message = Message::alloc(task, 1, b"")?;
    queue(task, id).lock(task.owner)?.append(message);
    Ok(())
}

/// Sends whether or not the queue is the one that was looked up.
fn stale_send(task: &Task, id: MsgId) -> Result<(), Errno> {
    let object = task.msg_ids().obtain_object_check(id.raw())?;
    let queue = Queue::new(&task.shared, &object);
    let message = Message::alloc(task, 1, b"")?;
    let _held = queue.hold_whatever(task.owner)?;
    Locked { queue, owner: task.owner }.append(message);
    Ok(())
}

/// Tells the receiver before the message is its own.
fn hasty_send(task: &Task, id: MsgId) -> Result<(), Errno> {
    let message = Message::alloc(task, 1, b"")?;
    let guard = queue(task, id).lock(task.owner)?;
    let Some(line) = guard.receivers().iter().next() else {
        guard.append(message);
        return Ok(());
    };
    guard.receivers().unlink(line);
    assert!(guard.node(line).tell(Ok(message.line)));
    message.set_truth(Truth::Delivered(guard.queue.place, line));
    Ok(())
}

/// Receives without a look at who waits for room.
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

/// Somebody waits for the message that `send` sends; returns how often the sender found (nobody, a
/// waiter).
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

/// Trap I5: to find that there is no message, and to be found waiting for one, is one step.
#[test]
fn receiver_beside_its_message_goes_on() {
    assert_all_reached(&receiver_against(send));
}

/// Trap I5: a message that is appended whoever waits.
#[test]
#[should_panic(expected = "branches")]
fn control_message_that_wakes_nobody_is_caught() {
    receiver_against(blind_send);
}

/// Somebody waits for the room that `receive` makes; returns how often that found (nobody, a waiter).
fn sender_against(receive: fn(&Task, MsgId) -> Result<(), Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace(1);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        // Room for one message.
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

/// Trap I5: to find that there is no room, and to be found waiting for it, is one step.
#[test]
fn sender_beside_a_receiver_goes_on() {
    assert_all_reached(&sender_against(receive));
}

/// Trap I5: a receiver that calls nobody.
#[test]
#[should_panic(expected = "branches")]
fn control_receiver_that_calls_nobody_is_caught() {
    sender_against(blind_receive);
}

/// A queue is removed and another made beside `send`; returns how often that was (done, EINVAL, EIDRM).
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
        assert_ne!(next, id, "an id came back at once");
        assert_eq!(one.msg_stat(next).unwrap().qnum, 0, "a stale message reached the next queue");
        tally.hit(match outcome {
            Ok(()) => 0,
            Err(Errno::INVAL) => 1,
            Err(Errno::IDRM) => 2,
            Err(other) => panic!("{other}"),
        });
    })
}

/// Traps I3, I10: what a lookup found is looked at again under the lock.
#[test]
fn message_beside_removal_reaches_its_own_queue_or_none() {
    assert_all_reached(&remove_against(send));
}

/// Trap I3: a sender that trusts its lookup.
#[test]
#[should_panic(expected = "a stale message reached the next queue")]
fn control_message_without_a_second_look_is_caught() {
    remove_against(stale_send);
}

/// Trap I3: who waits when the queue is removed, or is about to, is told.
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

/// A message is handed over to one who sends it on at once; returns how often it (lay there, was handed
/// over).
fn hand_over(send: fn(&Task, MsgId) -> Result<(), Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace(2);
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let ids = [(); 2].map(|()| one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap());
        let waiter = thread::spawn({
            let other = Arc::clone(&other);
            move || {
                other.msgrcv(ids[0], &mut [], 0, MsgFlags::empty()).unwrap();
                // The lines of the message that it has got serve this one.
                other.msgsnd(ids[1], 1, b"", NOWAIT).unwrap();
            }
        });
        let was_waiting = other.waiting() != 0;
        send(&one, ids[0]).unwrap();
        waiter.join().unwrap();
        let next = queue(&one, ids[1]);
        let guard = next.lock(one.owner).unwrap();
        let message = guard.message(guard.messages().iter().next().unwrap());
        assert_eq!(message.truth(), Truth::Queued(next.place), "I13: touched after it was told");
        tally.hit(usize::from(was_waiting));
    })
}

/// Trap I13: node and message are the receiver's once it is told.
#[test]
fn message_that_is_handed_over_is_its_receivers() {
    assert_all_reached(&hand_over(send));
}

/// Trap I13: a sender that is not done when it tells.
#[test]
#[should_panic(expected = "I13")]
fn control_message_touched_after_it_was_told_is_caught() {
    hand_over(hasty_send);
}
