//! How a call waits at a message queue, for space or for a message.
//!
//! Source: msgop(2); Linux `ipc/msg.c` (`do_msgsnd`, `do_msgrcv`).

use corewalk_base::futex::{self, Deadline, Ended};
use corewalk_base::primitives::IS_MODEL;
use rustix::io::Errno;

use super::filter::Filter;
use super::message::Message;
use super::node::{Node, Role, Status};
use super::queue::{Queue, QueueGuard};
use super::rebuild::end_node;
use crate::field::refuse_if;
use crate::ids::Object;
use crate::task::Task;
use crate::task_line::Absent;
use crate::watch::{self, Turn};

impl Task {
    /// Adds a wait node for a call to the queue, and waits until the call ends. For a receiver,
    /// returns the first cache line of its message.
    ///
    /// Another task may tell the waiting call to check the queue again. Then `may` first checks the
    /// permission of this task, and `again` checks under the queue's lock whether the call can
    /// complete. `size` is the size of a sender's message or of a receiver's buffer.
    pub(super) fn wait_at<'q>(
        &self,
        guard: QueueGuard<'q>,
        filter: Filter,
        size: usize,
        role: Role,
        may: impl Fn(&Object) -> Result<(), Errno>,
        again: impl Fn(QueueGuard<'q>, Node<'_>) -> bool,
    ) -> Result<u32, Errno> {
        let queue = guard.queue;
        // The caller found under the queue's lock that the call has to wait, and still holds that
        // lock. So no wake-up is lost.
        let node = Node::alloc(&guard, role, self.pid, size, filter)?;
        guard.waiting(role).push(node.line);
        let outer = self.begin_wait(node.line);
        drop(guard);
        let outcome = self.wait_in_queue(queue, node, role, may, again);
        refuse_if(!self.end_wait(node.line, outer), Errno::INTR)?;
        let (outcome, is_out) = node.leave(outcome);
        if let Ok(line) = outcome
            && role == Role::Receiver
        {
            // Mark the message as private before the wait node is freed. If this task dies earlier,
            // recovery finds the delivered message through its wait node.
            Message { shared: &self.shared, line }.make_private(self.owner.index);
        }
        if is_out {
            node.free(self.owner);
        } else {
            self.waiting.enter(node.line);
        }
        outcome
    }

    fn wait_in_queue<'q>(
        &self,
        queue: Queue<'q>,
        node: Node<'_>,
        role: Role,
        may: impl Fn(&Object) -> Result<(), Errno>,
        again: impl Fn(QueueGuard<'q>, Node<'_>) -> bool,
    ) -> Result<u32, Errno> {
        let mut turn = Turn::first();
        loop {
            let errno = match node.status() {
                _ if self.is_copy() => return Err(Errno::INTR),
                Status::Done(outcome) => return outcome,
                Status::Interrupted => Errno::INTR,
                Status::Called => match self.permitted_still(queue, &may) {
                    Err(errno) => errno,
                    // If the queue has been removed, `lock` fails with `EIDRM`. `Node::leave` then
                    // returns the outcome that the removal has stored in the wait node.
                    Ok(()) => {
                        if again(queue.lock(self.owner)?, node) {
                            return Ok(0);
                        }
                        continue;
                    }
                },
                Status::Waits => match self.sleep(queue, node, &mut turn)? {
                    Ended::Interrupted => Errno::INTR,
                    _ => continue,
                },
            };
            let guard = queue.lock(self.owner);
            if let Status::Done(outcome) = node.status() {
                return outcome;
            }
            let guard = guard?;
            guard.waiting(role).unlink(node.line);
            // Take the queue's lock, and then mark the wait node as not waiting. Without the lock,
            // a rebuild of the queue could link the node again.
            node.forget();
            return Err(errno);
        }
    }

    /// Sleeps until the wait node's status changes, or until the call's *turn* (a span of time, see
    /// `watch`) is over. After the turn, the call may become the watcher, which looks for dead
    /// tasks.
    fn sleep(&self, queue: Queue<'_>, node: Node<'_>, turn: &mut Turn) -> Result<Ended, Errno> {
        let scope = self.shared.scope;
        let end = turn.end(scope, Deadline::NEVER);
        let ended = futex::wait(node.word(), node.asleep(), end, scope);
        if self.is_copy() {
            return Ok(Ended::Woken);
        }
        if ended == Ended::TimedOut && turn.is_watcher(&self.shared) {
            watch::look(&self.shared, self.owner);
        }
        // The watcher also wakes the calls of removed queues, so check whether the queue still
        // exists. If the queue's lock cannot be acquired, the wait continues.
        let may_be_gone = !IS_MODEL && queue.live() != queue.name.payload();
        refuse_if(may_be_gone && queue.lock(self.owner).err() == Some(Errno::IDRM), Errno::IDRM)?;
        Ok(ended)
    }

    /// Checks permission again for a call that has waited at `queue`.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the queue is gone, and the errors of `may`.
    fn permitted_still(
        &self,
        queue: Queue<'_>,
        may: impl FnOnce(&Object) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let object = self.msg_ids().obtain_object(queue.name.index);
        let object = object.map_err(|_| Errno::IDRM)?;
        refuse_if(object.payload != queue.name.payload(), Errno::IDRM)?;
        may(&object)
    }
}

/// Frees the wait nodes that the calls of an ending task could not remove. A message that was
/// passed to such a node goes to another receiver. Returns the tasks of these receivers if they may
/// have died.
pub(crate) fn exit_waits(task: &Task) -> Result<Absent, Errno> {
    let (shared, owner) = (&*task.shared, task.owner);
    let mut absent = Absent::new();
    for line in task.kept_waits(&shared.layout.msg_waits) {
        absent.extend(end_node(shared, owner, Node { shared, line })?);
    }
    Ok(absent)
}
