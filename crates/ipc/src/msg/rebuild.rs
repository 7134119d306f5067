//! Rebuilds a queue from its messages and nodes.
//!
//! A task that takes over a queue's lock from a dead task calls [`recover`], which reads all
//! messages and nodes of the pools. Their truth words show which of them belong to the queue. The
//! lists and counts of the queue are set accordingly. So the step that the dead task had begun is
//! completed or undone:
//!
//! | the task died | then |
//! |---|---|
//! | before it stored the truth word of its message | the message is private and not sent |
//! | after it stored `Queued` | the message is sent |
//! | after it stored `Delivered`, before it told the node | recovery tells the node |
//! | after it made a message private | the message is received; recovery wakes waiting senders |
//! | before it stored `WHOSE` of its node | the node does not wait |
//! | while it moved its node or woke others | the node waits at the position of its ticket |
//! | in `IPC_SET`, once the slot was changed | recovery sets `qbytes`; receivers check again |
//! | in a removal, after it unpublished the queue | recovery ends the queue |
//!
//! Recovery may be stopped at any point and started again. It does not free the nodes and private
//! messages of a dead task. [`reap`] does that, once the task is known to be dead.
//!
//! [`recover`] and [`reap`] read every message and node of the namespace.

use corewalk_base::futex;
use rustix::io::Errno;
use std::collections::BTreeSet;

use super::handover::pipelined_send;
use super::message::{Message, Truth};
use super::node::{self, Node, Role, Status, Wakes};
use super::queue::{LOCK, Queue, QueueGuard, QueueName};
use crate::field::{get, refuse_if};
use crate::ids::{Ids, Kind};
use crate::lock::{Held, Owner, Wait, is_left, lock};
use crate::shared::{Shared, now_s};
use crate::task_line::Absent;

/// Message queues, for the code that all kinds share.
pub(crate) const QUEUES: &Kind = &Kind {
    layout: |layout| layout.msg_ids,
    repair: |_, _| 0,
    end: end_slot,
    sweep: |_| {},
    may_ctl: |hook, cred, perm, cmd| hook.msg_msgctl(cred, perm, cmd),
};

impl<'s> Queue<'s> {
    /// Acquires the queue's lock. If its holder has died, this first repairs the queue.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the queue is gone (trap I3: every path checks this again under the lock); `EIO`
    /// if a living holder does not release the lock.
    #[inline]
    pub(super) fn lock(self, owner: Owner) -> Result<QueueGuard<'s>, Errno> {
        let held = self.hold(owner, Wait::Long)?;
        refuse_if(self.live() != self.name.payload(), Errno::IDRM)?;
        Ok(QueueGuard { queue: self, owner, _held: Some(held) })
    }

    /// Like [`Queue::lock`], whichever queue the slot has.
    #[inline]
    pub(super) fn hold(self, owner: Owner, wait: Wait) -> Result<Held<'s>, Errno> {
        lock(self.shared, &self.line()[LOCK], owner, wait, || {
            recover(self, owner);
            Ok(())
        })
    }

    /// Repairs the queue that the slot has, whichever queue that is.
    ///
    /// # Errors
    ///
    /// `EIO` if the lock cannot be acquired.
    pub(super) fn recover(self, owner: Owner) -> Result<(), Errno> {
        let _held = self.hold(owner, Wait::Short)?;
        recover(self, owner);
        Ok(())
    }
}

/// Repairs the newest queue of a slot, after the caller has taken the queue's lock from a dead
/// task. `queue` may be any queue of the slot.
pub(super) fn recover(queue: Queue<'_>, owner: Owner) {
    let locked = QueueGuard { queue: queue.last_of_slot(), owner, _held: None };
    let is_set = locked.redo_set();
    let is_there = queue.is_published();
    let mut wakes = rebuild(&locked);
    if !is_there {
        wakes.extend(locked.end());
    } else if is_set {
        wakes.extend(locked.call(Role::Receiver));
    }
    locked.end_set();
    node::wake(queue.shared, &wakes);
}

/// Rebuilds the lists and counts of a queue. Returns the nodes to wake.
pub(super) fn rebuild(locked: &QueueGuard<'_>) -> Wakes {
    let shared = locked.queue.shared;
    let name = locked.queue.name;
    let mut wakes = Wakes::new();
    // The caller holds the queue's lock, so no message enters or leaves the queue meanwhile.
    let (_, messages) = shared.layout.msgs.collect_used(&shared.region, |line, _| {
        let truth = Message { shared, line }.truth();
        let is_own = matches!(truth, Truth::Queued(of) | Truth::Delivered(of, _) if of == name);
        is_own.then_some((line, truth))
    });
    let mut queued = BTreeSet::new();
    let mut last_ticket = 0;
    for (line, truth) in messages {
        let message = Message { shared, line };
        last_ticket = last_ticket.max(message.ticket());
        match truth {
            Truth::Queued(_) => drop(queued.insert((message.ticket(), line))),
            Truth::Delivered(_, node) => {
                let node = Node { shared, line: node };
                if node.waits_as() != Some((Role::Receiver, name)) {
                    continue;
                }
                if node.status() == Status::Interrupted {
                    // The message was not sent, since its receiver gave up. So the message belongs
                    // to its sender, which has died.
                    message.set_truth(Truth::Private);
                } else {
                    node.tell(Ok(line));
                    wakes.push(node.line);
                }
            }
            Truth::Private => {}
        }
    }
    let sizes = queued.iter().map(|(_, line)| locked.message(*line).size() as u64);
    let counts = (sizes.sum(), queued.len() as u64);
    locked.set_counts(|_, _| counts);
    locked.messages().set(queued.iter().map(|(_, line)| *line));
    for role in [Role::Receiver, Role::Sender] {
        let waiting = nodes(shared).filter(|(node, _)| node.waits_as() == Some((role, name)));
        let waiting: BTreeSet<_> = waiting.map(|(node, _)| (node.ticket(), node.line)).collect();
        last_ticket = last_ticket.max(waiting.last().map_or(0, |(ticket, _)| *ticket));
        locked.waiting(role).set(waiting.iter().map(|(_, line)| *line));
    }
    locked.set_last_ticket(last_ticket);
    wakes.extend(locked.call(Role::Sender));
    wakes
}

/// Frees the nodes and private messages of the dead task numbered `task`.
///
/// Messages that were passed to that task go to other receivers. Returns the tasks of these
/// receivers if they may have died.
///
/// # Errors
///
/// `EIO` if a living task does not release a queue's lock. Then the task must be reaped again.
pub(crate) fn reap(shared: &Shared, owner: Owner, task: u32) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    for (node, _) in nodes(shared).filter(|(_, whose)| *whose == task) {
        absent.extend(end_node(shared, owner, node)?);
    }
    let (joins, seen) = shared.layout.msgs.collect_used(&shared.region, |line, whose| {
        (whose == task && Message { shared, line }.truth() == Truth::Private).then_some(line)
    });
    free_private(shared, owner, task, joins, seen);
    Ok(absent)
}

/// Frees the messages in `seen` that are private messages of the dead task `task`, unless another
/// task has received them meanwhile. `seen` and the count `joins` come from `Pool::collect_used`.
pub(super) fn free_private(shared: &Shared, owner: Owner, task: u32, joins: u64, seen: Vec<u32>) {
    let pool = &shared.layout.msgs;
    for line in seen {
        let message = Message { shared, line };
        // Another task may take a message of the dead task meanwhile. It records itself as the
        // owner before it makes the message private. So read the owner again after the truth word.
        pool.free_seen(shared, line, joins, owner, || {
            message.truth() == Truth::Private && pool.whose(&shared.region, line) == Some(task)
        });
    }
}

/// Unlinks a node from its list, and frees the node. If a message was passed to the node, passes it
/// on to another receiver. Returns the task of that receiver if it may have died.
///
/// # Errors
///
/// `EIO` if a living task does not release the queue's lock. The node then stays.
pub(super) fn end_node(shared: &Shared, owner: Owner, node: Node<'_>) -> Result<Absent, Errno> {
    let absent = match node.whose() {
        Some((role, name)) => leave_queue(shared, owner, node, role, name)?,
        None => Absent::new(),
    };
    node.free(owner);
    Ok(absent)
}

/// Unlinks a node from its queue, for [`end_node`]. `role` and `name` tell how and at which queue
/// the call of the node waits or has waited.
fn leave_queue(
    shared: &Shared,
    owner: Owner,
    node: Node<'_>,
    role: Role,
    name: QueueName,
) -> Result<Absent, Errno> {
    // Under the lock, the node is in its list or has its outcome. If the queue was removed, the
    // removal has stored the outcome.
    let guard = match (Queue { shared, name }).lock(owner) {
        Err(Errno::IDRM) => None,
        guard => Some(guard?),
    };
    if let Some(guard) = &guard
        && node.waits_as().is_some()
    {
        guard.waiting(role).unlink(node.line);
    }
    let Status::Done(Ok(line)) = node.status() else { return Ok(Absent::new()) };
    let message = Message { shared, line };
    if message.truth() != Truth::Delivered(name, node.line) {
        return Ok(Absent::new());
    }
    let Some(guard) = guard else {
        message.make_private(owner.index);
        message.free(owner);
        return Ok(Absent::new());
    };
    // While the message is private, it belongs to this task. If this task dies, the message is
    // freed.
    shared.layout.msgs.set_whose(&shared.region, line, owner.index);
    let sent = pipelined_send(&guard, message, now_s());
    if sent.handed.is_none() {
        guard.put_back(message);
    }
    drop(guard);
    Ok(sent.wake(shared))
}

/// Clears the remains in a slot without a queue. The caller holds the lock of all queues. Returns
/// true if no remains are left.
fn end_slot(ids: Ids<'_>, index: u32) -> bool {
    let slot = Queue::of_slot(ids.shared, index);
    slot.live() == 0 || slot.recover(ids.owner).is_ok()
}

/// Returns the nodes in use, each with the number of its task.
pub(super) fn nodes(shared: &Shared) -> impl Iterator<Item = (Node<'_>, u32)> {
    let used = shared.layout.msg_waits.used(&shared.region);
    used.map(move |(line, whose)| (Node { shared, line }, whose))
}

/// Looks after the calls that wait at queues, for the watcher. Repairs the queues whose lock has a
/// dead holder and those whose removal was interrupted. Wakes calls that have an outcome or whose
/// queue is gone. Returns the receivers that may not have taken the message passed to them.
pub(crate) fn look_at_waits(shared: &Shared, owner: Owner) -> Vec<u32> {
    let (mut suspects, mut queues) = (Vec::new(), BTreeSet::new());
    for (node, task) in nodes(shared) {
        let status = node.status();
        if matches!(status, Status::Done(Ok(_))) {
            suspects.push(task);
        }
        let name = node.waits_as().map(|(_, name)| name);
        let is_there = |name: &QueueName| Queue { shared, name: *name }.live() == name.payload();
        match name.filter(is_there).filter(|_| status == Status::Waits) {
            Some(name) => drop(queues.insert(name.index)),
            None => drop(futex::wake(node.word(), 1, shared.scope)),
        }
    }
    for index in queues {
        let queue = Queue::of_slot(shared, index);
        if queue.live() != 0
            && !queue.is_published()
            && let Ok(ids) = (Ids { shared, kind: QUEUES, owner }).lock()
        {
            ids.end_left_at(index);
        }
        if is_left(shared, get(&queue.line()[LOCK])) {
            // Taking the lock from the dead holder repairs the queue. If that fails, a later check
            // tries again.
            drop(queue.hold(owner, Wait::Short));
        }
    }
    suspects
}
