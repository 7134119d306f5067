//! Passing a message to a waiting receiver.
//!
//! # A receiver that has died
//!
//! A sender passes its message on without a check whether the receiver is alive. The check would
//! take several system calls under the queue's lock (trap X6 in `traps.md`). After it has passed
//! the message, the sender wakes the receiver:
//! - If the wake-up finds a sleeping thread, the receiver is alive.
//! - Otherwise the receiver has died, or is about to sleep and takes the message within a few
//!   instructions. So the sender polls the message for some microseconds. If the receiver does not
//!   take the message, the sender checks whether it is dead, and reaps it (cleans up after it).
//!
//! The cleanup after a dead receiver passes its message to the next receiver, or puts the message
//! back into the queue (`rebuild`). This has two consequences:
//! - If a receiver is already dead when msgsnd(2) begins, another task can receive the message
//!   before msgsnd returns.
//! - If a receiver is killed later, before it takes its message, corewalk passes that message to
//!   another receiver. Linux loses the message.
//!
//! Source: Linux `ipc/msg.c` (`pipelined_send`); futex(2) for the number of woken threads.

use corewalk_base::futex::{self, Scope};
use corewalk_base::primitives::{IS_MODEL, hint};
use rustix::io::Errno;
use smallvec::smallvec;

use super::message::{Message, Truth};
use super::node::{self, Role, Status, Wakes};
use super::queue::{QueueGuard, QueueName};
use crate::shared::Shared;
use crate::status::STATUS;
use crate::task_line::Absent;

/// The number of times that a sender polls a message that it has passed to a receiver. These polls
/// take some microseconds.
const LOOKS: u32 = if IS_MODEL { 1 } else { 200 };

/// The receivers to which a send has given an outcome.
#[derive(Default)]
#[must_use = "the receivers are asleep until they are woken"]
pub(super) struct Sent {
    /// The receivers whose buffers were too small.
    failed: Wakes,
    /// The receiver that got the message. If none, the caller must queue the message.
    pub(super) handed: Option<Handed>,
}

/// A message that was passed to a receiver.
#[derive(Clone, Copy)]
pub(super) struct Handed {
    message: u32,
    name: QueueName,
    node: u32,
    /// The number of the receiver's task.
    task: u32,
}

impl Sent {
    /// Wakes the receivers. If the message went to a receiver that may have died, returns the task
    /// of this receiver. The caller holds no lock.
    pub(super) fn wake(self, shared: &Shared) -> Absent {
        node::wake(shared, &self.failed);
        let Some(handed) = self.handed else { return Absent::new() };
        let word = &shared.region.line(handed.node)[STATUS];
        let is_met = futex::wake(word, 1, shared.scope) != 0;
        if is_met || shared.scope == Scope::Private || handed.is_taken_soon(shared) {
            return Absent::new();
        }
        smallvec![handed.task]
    }
}

impl Handed {
    #[cold]
    fn is_taken_soon(&self, shared: &Shared) -> bool {
        let message = Message { shared, line: self.message };
        (0..LOOKS).any(|_| {
            hint::spin_loop();
            message.truth() != Truth::Delivered(self.name, self.node)
        })
    }
}

/// Passes a message to the first waiting receiver whose filter takes it. If there is no such
/// receiver, the caller must queue the message.
///
/// The message keeps its ticket (its number in the order of arrival). If the receiver dies, the
/// ticket puts the message back before all messages that were sent later.
///
/// A receiver whose buffer is too small gets `E2BIG`, and the next receiver is tried.
pub(super) fn pipelined_send(guard: &QueueGuard<'_>, message: Message<'_>, now_s: u64) -> Sent {
    let mut sent = Sent::default();
    let (mtype, size, name) = (message.mtype(), message.size(), guard.queue.name);
    for line in guard.waiting(Role::Receiver).iter() {
        let node = guard.node(line);
        // Skip an interrupted receiver: its call returns `EINTR` or was left by siglongjmp(3), so a
        // message passed to it would be lost.
        if node.status() == Status::Interrupted || !node.filter().takes(mtype) {
            continue;
        }
        guard.waiting(Role::Receiver).unlink(line);
        let task = node.task();
        if node.size() < size {
            node.tell(Err(Errno::TOOBIG));
            sent.failed.push(line);
            continue;
        }
        guard.note_receive(node.pid(), now_s);
        message.set_truth(Truth::Delivered(name, line));
        node.tell(Ok(message.line));
        sent.handed = Some(Handed { message: message.line, name, node: line, task });
        break;
    }
    sent
}
