//! Passing a message to a waiting receiver.
//!
//! # A receiver that has died
//!
//! A sender does not check whether the receiver is alive. That would take several system calls
//! under the queue's lock (trap X6). The sender passes the message on and wakes the receiver. If
//! the wake-up finds a sleeping thread, the receiver is alive. If not, either the receiver is about
//! to sleep, and takes the message within a few instructions, or it has died. So the sender polls
//! the message for some microseconds. If the receiver does not take the message, the sender checks
//! whether it is dead, and reaps it.
//!
//! The reaping passes the message to the next receiver, or puts it back into the queue (`rebuild`).
//! So if a receiver died before msgsnd(2) began, its message can be received before msgsnd returns.
//! The message also goes to another receiver if the process is killed later, before it takes the
//! message. Linux loses such a message.
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

/// The number of times that the sender reads the state of a message that it has passed to a
/// receiver. After that, the sender checks whether the receiver is dead. The reads take some
/// microseconds.
const LOOKS: u32 = if IS_MODEL { 1 } else { 200 };

/// The receivers to which a send has given an outcome.
#[derive(Default)]
#[must_use = "the receivers are asleep until they are woken"]
pub(super) struct Sent {
    /// The receivers whose buffers were too small.
    failed: Wakes,
    /// The message, if a receiver has it. Otherwise the caller must queue the message.
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
    /// Wakes the receivers. The caller holds no lock. If the receiver of the message may have died,
    /// returns its task.
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
    /// Returns true if the receiver takes the message within a short time.
    #[cold]
    fn is_taken_soon(&self, shared: &Shared) -> bool {
        let message = Message { shared, line: self.message };
        (0..LOOKS).any(|_| {
            hint::spin_loop();
            message.truth() != Truth::Delivered(self.name, self.node)
        })
    }
}

/// Passes a message to the first waiting receiver whose filter takes it.
///
/// The message has a ticket already, and keeps it. If receivers die one after the other, the
/// message is put back by its first ticket, before all messages that were sent later.
///
/// If the buffer of a receiver is too small, it gets `E2BIG`, and the next receiver is tried.
pub(super) fn pipelined_send(guard: &QueueGuard<'_>, message: Message<'_>, now_s: u64) -> Sent {
    let mut sent = Sent::default();
    let (mtype, size, name) = (message.mtype(), message.size(), guard.queue.name);
    for line in guard.waiting(Role::Receiver).iter() {
        let node = guard.node(line);
        // An interrupted call gets no message: it will end with `EINTR`, or a signal handler has
        // left it by siglongjmp(3).
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
