//! A message that goes to a waiting receiver.
//!
//! # A receiver that has died
//!
//! A sender does not ask whether the receiver lives: that takes several system calls, under the queue's lock (trap X6). The sender hands
//! the message over and wakes the receiver. A wake-up that meets a sleeper is all that is needed. One that meets none is rare:
//! the receiver is about to sleep, and then takes the message within a few instructions, or it has died. Only
//! if the message is not taken does the sender look closer, and reaps a dead receiver.
//!
//! Reaping sends the message on (`rebuild`): to the next receiver, or back to its place in the queue. So a message that is handed
//! to a process that had died before msgsnd(2) began is received by another before msgsnd returns. A process that is
//! killed while the message is on its way leaves the message to others as well. Linux loses such a message.
//!
//! Source: Linux `ipc/msg.c` (`pipelined_send`); futex(2) for the number of those woken.

use corewalk_base::futex::{self, Scope};
use corewalk_base::primitives::{IS_MODEL, hint};
use rustix::io::Errno;
use smallvec::smallvec;

use super::message::{Message, Truth};
use super::node::{self, Wakes};
use super::queue::{Place, QueueGuard};
use crate::namespace::Shared;
use crate::sem::{Absent, STATUS};

/// Looks at a message until its receiver is presumed absent: some microseconds.
const LOOKS: u32 = if IS_MODEL { 1 } else { 200 };

/// What a send has told to waiting receivers.
#[derive(Default)]
#[must_use = "the receivers are asleep until they are woken"]
pub(super) struct Sent {
    /// Receivers whose buffers were too small.
    failed: Wakes,
    handed: Option<Handed>,
}

/// A message that was handed to a receiver.
#[derive(Clone, Copy)]
struct Handed {
    message: u32,
    place: Place,
    node: u32,
    /// The receiver's task.
    task: u32,
}

impl Sent {
    /// Returns true if a receiver has the message. Otherwise it goes to the queue.
    pub(super) fn is_handed(&self) -> bool {
        self.handed.is_some()
    }

    /// Wakes the receivers; no lock is held. Returns the receiver's task if it may have died.
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
    /// Looks for some time whether the receiver takes the message.
    #[cold]
    fn is_taken_soon(&self, shared: &Shared) -> bool {
        let message = Message { shared, line: self.message };
        (0..LOOKS).any(|_| {
            hint::spin_loop();
            message.truth() != Truth::Delivered(self.place, self.node)
        })
    }
}

/// Hands a message to the first receiver that takes it.
///
/// A receiver whose buffer is too small ends with `E2BIG`, and the message goes on.
pub(super) fn pipelined_send(guard: &QueueGuard<'_>, message: Message<'_>, now_s: u64) -> Sent {
    let mut sent = Sent::default();
    let (mtype, size, place) = (message.mtype(), message.size(), guard.queue.place);
    for line in guard.receivers().iter() {
        let node = guard.node(line);
        if node.is_left() {
            guard.receivers().unlink(line);
            node.free(guard.owner);
            continue;
        }
        if !node.filter().takes(mtype) {
            continue;
        }
        guard.receivers().unlink(line);
        let task = node.task();
        let is_long = node.size() < size;
        if !is_long {
            guard.note_receive(node.pid(), now_s);
            message.set_ticket(guard.next_ticket());
            message.set_truth(Truth::Delivered(place, line));
        }
        if !node.tell(if is_long { Err(Errno::TOOBIG) } else { Ok(message.line) }) {
            // It was left just now.
            message.set_truth(Truth::Private);
            node.free(guard.owner);
            continue;
        }
        if !is_long {
            sent.handed = Some(Handed { message: message.line, place, node: line, task });
            break;
        }
        sent.failed.push(line);
    }
    sent
}
