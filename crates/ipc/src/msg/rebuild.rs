//! A queue from its messages and nodes alone.
//!
//! Whoever takes the lock of a queue over from a task that died calls [`recover`]: it looks at all
//! messages and nodes of the pools, whose truth words say what belongs to the queue, and sets its
//! lists and counts by them. What the dead task was in the middle of is then done or not done:
//!
//! | it died | then |
//! |---|---|
//! | before the truth word of its message was stored | the message is private, and not sent |
//! | after `Queued` | it is sent |
//! | after `Delivered`, before the node was told | the node is told here |
//! | after it made a message private | the message has left; senders that have room are called here |
//! | before its node's `WHOSE` was stored | it does not wait |
//! | while it moved its node, or called others | the node waits in the order of its ticket |
//! | while `IPC_SET` changed the slot, or after | `qbytes` is set here, and receivers are called |
//! | while it removed the queue, after it was unpublished | the queue is ended here |
//!
//! It may be stopped anywhere and begun again. What a dead task has left that is its own (messages that it
//! was writing or reading, nodes) [`reap`] frees, for who knows that it is dead.
//!
//! Both cost a look at every message and node of the namespace.

use rustix::io::Errno;

use super::handover::pipelined_send;
use super::message::{Message, Truth};
use super::node::{self, Node, Role, Status, Wakes};
use super::queue::{Locked, Place, Queue};
use crate::ids::{Ids, Kind};
use crate::lock::Owner;
use crate::namespace::{Shared, now_s};
use crate::recover::reap_absent;
use crate::sem::{Absent, Remains};
use crate::task::Task;

/// Puts the queue in order whose lock was taken over; `queue` is any of its slot.
pub(super) fn recover(queue: Queue<'_>, owner: Owner) {
    let shared = queue.shared;
    let locked = Locked { queue: queue.last_of_slot(), owner };
    let ids = Ids { shared, kind: Kind::Msg, owner };
    let is_there = queue.live() != 0 && ids.payload(queue.place.index) == Some(queue.live());
    let is_set = locked.redo_set(ids.changes(queue.place.index));
    let mut wakes = rebuild(&locked);
    if !is_there {
        wakes.extend(locked.end(owner));
    } else if is_set {
        wakes.extend(locked.call_receivers());
    }
    locked.end_set();
    node::wake(shared, &wakes);
}

/// Makes lists and counts of a queue anew; returns whom to wake.
pub(super) fn rebuild(locked: &Locked<'_>) -> Wakes {
    let shared = locked.queue.shared;
    let place = locked.queue.place;
    let mut wakes = Wakes::new();
    // Messages of the queue do not come and go: its lock is held.
    let (_, messages) = shared.layout.msgs.collect_used(&shared.region, |line, _| {
        let truth = Message { shared, line }.truth();
        let is_own = matches!(truth, Truth::Queued(of) | Truth::Delivered(of, _) if of == place);
        is_own.then_some((line, truth))
    });
    let mut queued = Vec::new();
    let mut last_ticket = 0;
    for (line, truth) in messages {
        let message = Message { shared, line };
        last_ticket = last_ticket.max(message.ticket());
        match truth {
            Truth::Queued(_) => queued.push((message.ticket(), line)),
            Truth::Delivered(_, node) => {
                let node = Node { shared, line: node };
                if node.waits_as() == Some((Role::Receiver, place)) {
                    if node.tell(Ok(line)) {
                        wakes.push(node.line);
                    } else {
                        // Not sent: it is its sender's, who has died.
                        message.set_truth(Truth::Private);
                    }
                }
            }
            Truth::Private => {}
        }
    }
    queued.sort_unstable();
    let sizes = queued.iter().map(|(_, line)| locked.message(*line).size() as u64);
    let counts = (sizes.sum(), queued.len() as u64);
    locked.set_counts(|_, _| counts);
    locked.messages().set(queued.iter().map(|(_, line)| *line));
    for (role, list) in [(Role::Receiver, locked.receivers()), (Role::Sender, locked.senders())] {
        let waiting = nodes(shared).filter(|(node, _)| node.waits_as() == Some((role, place)));
        let mut waiting: Vec<_> = waiting.map(|(node, _)| (node.ticket(), node.line)).collect();
        waiting.sort_unstable();
        last_ticket = last_ticket.max(waiting.last().map_or(0, |(ticket, _)| *ticket));
        list.set(waiting.iter().map(|(_, line)| *line));
    }
    locked.set_last_ticket(last_ticket);
    wakes.extend(locked.call_senders());
    wakes
}

/// Frees what the dead task numbered `task` has left: its nodes and its private messages. Messages that were handed to it go
/// to others. Returns the tasks of those if they may have died.
///
/// # Errors
///
/// `EIO` if somebody does not let go of a queue: the task has to be reaped again.
pub(crate) fn reap(shared: &Shared, owner: Owner, task: u32) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    for (node, _) in nodes(shared).filter(|(_, whose)| *whose == task) {
        if let Some((role, place)) = node.whose() {
            absent.extend(end_node(shared, owner, node, (role, place))?);
        }
        node.free(owner);
    }
    let seen = shared.layout.msgs.collect_used(&shared.region, |line, whose| {
        (whose == task && Message { shared, line }.truth() == Truth::Private).then_some(line)
    });
    free_private(shared, owner, task, seen);
    Ok(absent)
}

/// Takes back a wait of a task that lives, whose thread has left it: the node in this line.
///
/// # Errors
///
/// `EIO` if somebody does not let go of a queue.
pub(crate) fn abandon(task: &Task, line: u32) -> Result<(), Errno> {
    let (shared, owner) = (&*task.shared, task.owner);
    let node = Node { shared, line };
    let absent = match node.whose() {
        Some(whose) => end_node(shared, owner, node, whose)?,
        None => Absent::new(),
    };
    node.free(owner);
    reap_absent(shared, owner, absent);
    Ok(())
}

/// Frees the private messages of the dead task numbered `task` among those that were seen to be that.
pub(super) fn free_private(
    shared: &Shared,
    owner: Owner,
    task: u32,
    (joins, seen): (u64, Vec<u32>),
) {
    let pool = &shared.layout.msgs;
    for line in seen {
        let message = Message { shared, line };
        // A message that the task has sent may be taken meanwhile: who takes it says so before it makes it
        // private (`Message::make_private`), so what is private now is looked at again.
        pool.free_seen(shared, (line, joins), owner, || {
            message.truth() == Truth::Private && pool.whose(&shared.region, line) == Some(task)
        });
    }
}

/// Takes a node out of its list, and sends on the message that was handed to it. Returns the task that the message was
/// then handed to, if that may have died.
fn end_node(
    shared: &Shared,
    owner: Owner,
    node: Node<'_>,
    (role, place): (Role, Place),
) -> Result<Absent, Errno> {
    // With the lock the node is in its list or told; a queue that is gone has told it.
    let guard = match (Queue { shared, place }).lock(owner) {
        Err(Errno::IDRM) => None,
        guard => Some(guard?),
    };
    if let Some(guard) = &guard
        && node.waits_as().is_some()
    {
        let list = if role == Role::Receiver { guard.receivers() } else { guard.senders() };
        list.unlink(node.line);
    }
    let Status::Done(Ok(line)) = node.status() else { return Ok(Absent::new()) };
    let message = Message { shared, line };
    if message.truth() != Truth::Delivered(place, node.line) {
        return Ok(Absent::new());
    }
    let Some(guard) = guard else {
        message.make_private(owner.index);
        message.free(owner);
        return Ok(Absent::new());
    };
    // If this task dies while the message is private, the message is freed with it.
    shared.layout.msgs.set_whose(&shared.region, line, owner.index);
    let sent = pipelined_send(&guard, message, now_s());
    if !sent.is_handed() {
        guard.put_back(message);
    }
    drop(guard);
    Ok(sent.wake(shared))
}

/// Ends what is left in a slot that has no queue any more. The lock of the kind is held.
pub(crate) fn end_slot(ids: Ids<'_>, index: u32) -> Remains {
    let slot = Queue { shared: ids.shared, place: Place { index, tag: 0 } };
    if slot.live() != 0 && slot.recover(ids.owner).is_err() {
        return Remains::Some;
    }
    Remains::None
}

/// Returns the nodes that are used, each with the number of its task.
pub(super) fn nodes(shared: &Shared) -> impl Iterator<Item = (Node<'_>, u32)> {
    let used = shared.layout.msg_waits.used(&shared.region);
    used.map(move |(line, whose)| (Node { shared, line }, whose))
}
