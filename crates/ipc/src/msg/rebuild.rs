//! Rebuilds a queue from its messages and nodes.
//!
//! A task that takes over a queue's lock from a dead task calls [`recover`], which reads all
//! messages and wait nodes of the namespace. A word in each of them says whether it belongs to the
//! queue. `recover` rebuilds the queue's lists and counts from them. So it completes or undoes the
//! change of the dead task, as the table shows.
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
//! Recovery may be interrupted, and then started again by another task. It does not free the wait
//! nodes and private messages of a dead task: [`reap`] does that.
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
    /// Takes the queue's lock. If the last holder of the lock has died, first repairs the queue.
    ///
    /// Returns `EIDRM` if the queue was removed after the lookup. Returns `EIO` if a living holder
    /// does not release the lock.
    #[inline]
    pub(super) fn lock(self, owner: Owner) -> Result<QueueGuard<'s>, Errno> {
        let held = self.hold(owner, Wait::Long)?;
        refuse_if(self.live() != self.name.payload(), Errno::IDRM)?;
        Ok(QueueGuard { queue: self, owner, _held: Some(held) })
    }

    /// Like [`Queue::lock`], but does not check whether the slot still has this queue.
    #[inline]
    pub(super) fn hold(self, owner: Owner, wait: Wait) -> Result<Held<'s>, Errno> {
        lock(self.shared, &self.line()[LOCK], owner, wait, || {
            recover(self, owner);
            Ok(())
        })
    }

    /// Repairs whichever queue the slot has.
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

/// Rebuilds a queue, and completes an interrupted `IPC_SET` or removal. The caller holds the
/// queue's lock, and may have taken it from a dead task.
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

pub(super) fn rebuild(locked: &QueueGuard<'_>) -> Wakes {
    let shared = locked.queue.shared;
    let name = locked.queue.name;
    let mut wakes = Wakes::new();
    // The caller holds the queue's lock. So no message enters or leaves the queue while this
    // function walks over all messages.
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
                    // The receiver gave up before it got an outcome, so the message was not sent.
                    // It still belongs to the dead sender.
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

/// Frees the wait nodes and private messages of a dead task. If a sender had passed a message to
/// the task, the message goes to another receiver. Returns the tasks of these receivers if they may
/// have died too.
///
/// # Errors
///
/// `EIO` if a living task keeps a queue's lock. The caller must then clean up after the task later.
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

/// Frees the private messages of a dead task that a walk over the pool has found (`seen`). Skips a
/// message that another task has received since.
pub(super) fn free_private(shared: &Shared, owner: Owner, task: u32, joins: u64, seen: Vec<u32>) {
    let pool = &shared.layout.msgs;
    for line in seen {
        let message = Message { shared, line };
        // Another task may be receiving this message now. A receiver stores itself as the owner and
        // then the state `Private`. So read the state first and the owner second.
        pool.free_seen(shared, line, joins, owner, || {
            message.truth() == Truth::Private && pool.whose(&shared.region, line) == Some(task)
        });
    }
}

/// Ends a call whose task has died or is ending, and frees the wait node. A message that was passed
/// to the node goes to another receiver. If that receiver may have died, returns its task, so
/// that the caller can clean up after it.
///
/// # Errors
///
/// `EIO` if a living task keeps the queue's lock. The wait node `node` is then not freed.
pub(super) fn end_node(shared: &Shared, owner: Owner, node: Node<'_>) -> Result<Absent, Errno> {
    let absent = match node.whose() {
        Some((role, name)) => leave_queue(shared, owner, node, role, name)?,
        None => Absent::new(),
    };
    node.free(owner);
    Ok(absent)
}

fn leave_queue(
    shared: &Shared,
    owner: Owner,
    node: Node<'_>,
    role: Role,
    name: QueueName,
) -> Result<Absent, Errno> {
    // Under the queue's lock, a wait node without an outcome is in the queue's list. If the queue
    // was removed, `lock` fails, and the removal has stored the outcome.
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
    // This task may die before it has passed the message on. Record it as the owner, so that the
    // cleanup after it frees the message.
    shared.layout.msgs.set_whose(&shared.region, line, owner.index);
    let sent = pipelined_send(&guard, message, now_s());
    if sent.handed.is_none() {
        guard.put_back(message);
    }
    drop(guard);
    Ok(sent.wake(shared))
}

/// Completes the removal of the queue in a slot. Returns true if nothing of the queue is left. The
/// caller holds the lock of all queues.
fn end_slot(ids: Ids<'_>, index: u32) -> bool {
    let slot = Queue::of_slot(ids.shared, index);
    slot.live() == 0 || slot.recover(ids.owner).is_ok()
}

pub(super) fn nodes(shared: &Shared) -> impl Iterator<Item = (Node<'_>, u32)> {
    let used = shared.layout.msg_waits.used(&shared.region);
    used.map(move |(line, whose)| (Node { shared, line }, whose))
}

/// Checks all calls that wait at message queues, on behalf of the watcher (the one waiting call
/// that looks for dead tasks):
/// - Repairs queues whose lock has a dead holder or whose removal was interrupted.
/// - Wakes calls that have an outcome or whose queue is gone.
///
/// Returns the tasks that another task has passed a message, and that may have died before they
/// took it.
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
            // `lock` repairs the queue if the holder is dead. If the lock cannot be taken, the
            // watcher (the waiting call that looks for dead tasks) tries again at its next check.
            drop(queue.hold(owner, Wait::Short));
        }
    }
    suspects
}
