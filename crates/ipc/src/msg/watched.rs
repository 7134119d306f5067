//! The part of [`crate::watch`] for calls that wait at message queues.

use corewalk_base::futex;

use super::node::Status;
use super::queue::{LOCK, Queue, QueueName};
use super::rebuild::{QUEUES, nodes};
use crate::ids::Ids;
use crate::lock::{Owner, Wait, is_left};
use crate::shared::Shared;
use crate::watch::Concerns;

/// Adds to `concerns` the tasks and queues on which waiting calls depend. Wakes calls that have an
/// outcome, or whose queue is gone.
pub(crate) fn collect_concerns(shared: &Shared, concerns: &mut Concerns) {
    for (node, task) in nodes(shared) {
        let status = node.status();
        if matches!(status, Status::Done(Ok(_))) {
            concerns.suspects.push(task);
        }
        let name = node.waits_as().map(|(_, name)| name);
        let is_there = |name: &QueueName| Queue { shared, name: *name }.live() == name.payload();
        match name.filter(is_there).filter(|_| status == Status::Waits) {
            Some(name) => concerns.queues.push(name.index),
            None => drop(futex::wake(node.word(), 1, shared.scope)),
        }
    }
}

/// Repairs the awaited queue in a slot if the holder of its lock has died. Completes the removal of
/// the queue if that was interrupted.
pub(crate) fn look_at(shared: &Shared, owner: Owner, index: u32) {
    let queue = Queue { shared, name: QueueName { index, tag: 0 } };
    let ids = Ids { shared, kind: QUEUES, owner };
    if queue.live() != 0
        && !queue.is_published()
        && let Ok(ids) = ids.lock()
    {
        ids.end_left_at(index);
    }
    if is_left(shared, &queue.line()[LOCK]) {
        // Taking the lock from the dead holder repairs the queue. If that fails, a later check
        // tries again.
        drop(queue.hold(owner, Wait::Short));
    }
}
