//! Message queues: msgget(2), msgsnd(2), msgrcv(2), msgctl(2).
//!
//! | module | content |
//! |---|---|
//! | `queue` | the words of a queue, and its lock |
//! | `message` | a message: its truth word, and its text in a range of lines |
//! | `node` | a waiting call |
//! | `filter` | the messages that a receiver takes |
//! | `send`, `receive`, `wait` | msgsnd and msgrcv |
//! | `handover` | passing a message to a waiting receiver, which may have died |
//! | `ctl` | msgget and msgctl |
//! | `rebuild` | the queue's lock, and repair of a queue from its messages and nodes |
//!
//! # How it works
//! A text is copied without the queue's lock: by the sender before it takes the lock, by the
//! receiver after it has released the lock. Under the lock:
//! - A sender passes its message to the first waiting receiver whose filter fits, or else appends
//!   the message to the queue.
//! - A receiver takes the first message that fits its filter, and wakes the waiting senders whose
//!   messages now fit.
//! - A call checks the queue and starts to wait, so no change is missed (trap I5 in `traps.md`).
//!
//! # One truth word per message
//! One word of a message, its truth word, contains its state: private, queued, or delivered to a
//! wait node. A store to that word sends or receives the message.
//!
//! Messages and wait nodes have tickets: numbers in the order of arrival. They define the order of
//! the lists. All other words can be rebuilt from them (`rebuild`), so no log is needed.
//!
//! # Rules, as in Linux
//! - A message fits if the queue, together with this message, has at most `msg_qbytes` bytes and at
//!   most `msg_qbytes` messages.
//! - A receiver without `MSG_NOERROR` whose buffer is too small gets `E2BIG`. The message goes to
//!   the next receiver.
//! - After `IPC_SET`, waiting receivers and senders whose messages now fit check permission again.
//! - A woken sender whose message does not fit waits again, as the last one.
//! - `MSG_COPY` selects a message by its position in the queue, from zero. The message stays in the
//!   queue. It is never truncated: if the buffer is too small, the call fails.
//!
//! Source: Linux `ipc/msg.c` for the semantics; msgop(2), msgctl(2), msgget(2).

#[cfg(all(test, corewalk_crash))]
mod crash_models;
mod ctl;
#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod ends;
mod filter;
mod handover;
mod kept;
#[cfg(all(test, corewalk_loom))]
mod loom_models;
mod message;
mod node;
mod queue;
mod rebuild;
mod receive;
mod send;
mod wait;

pub(crate) use kept::exit_msg;
pub(crate) use rebuild::{QUEUES, look_at_waits, reap};
pub(crate) use wait::exit_waits;

pub use ctl::{MSG_INFO, MSG_STAT, MSG_STAT_ANY, MsgTotals};
pub use queue::MsgStat;
pub use receive::{Arrived, Received};

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
