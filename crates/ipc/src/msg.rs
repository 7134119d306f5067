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
//!
//! Lookup and permission checks take no lock. A sender copies the text into a range of lines before
//! it takes the queue's lock. A receiver copies the text after it has released the lock. Under the
//! lock, a sender passes its message to the first waiting receiver whose filter fits, or else
//! appends it. A receiver takes the first message that fits its filter, and calls the waiting
//! senders whose messages fit now. A call checks the queue and starts to wait under one lock (I5).
//!
//! # One truth word per message
//!
//! One word of a message contains its state: private, queued, or delivered to a node. Storing that
//! word sends or receives the message. Tickets define the order of the list. Bytes, counts and
//! lists of waiting calls can be computed from the messages and nodes, whose lines keep their type
//! (`rebuild`). So no log is needed.
//!
//! # Rules, as in Linux
//!
//! - A message fits if the bytes of the queue including it are at most `msg_qbytes`, and so is the
//!   number of messages.
//! - A receiver with a too small buffer and without `MSG_NOERROR` gets `E2BIG` when a message comes
//!   for it. The message goes to the next receiver.
//! - `IPC_SET` makes waiting receivers, and senders whose messages fit now, check permission again.
//! - A called sender checks again whether its message fits. If not, it waits as the last one.
//! - `MSG_COPY` counts messages from zero and takes none. It does not truncate: with `MSG_NOERROR`
//!   and a too small buffer it fails with `EINVAL`.
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
