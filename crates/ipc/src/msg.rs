//! Message queues: msgget(2), msgsnd(2), msgrcv(2), msgctl(2).
//!
//! | module | what |
//! |---|---|
//! | `queue` | where a queue lies, and what its lock protects |
//! | `message` | a message: its truth word, its text in a range of lines |
//! | `node` | a call that waits |
//! | `filter` | which messages a receiver takes |
//! | `send`, `receive` | msgsnd and msgrcv |
//! | `handover` | a message that goes to a waiting receiver, who may have died |
//! | `get`, `ctl` | msgget and msgctl |
//! | `rebuild` | everything that can be told from the messages and nodes alone |
//!
//! # How it works
//!
//! Lookup and permission checks take no lock. The text is copied into a range of lines before the
//! queue's lock is taken, and out of it after the lock was let go. Under the lock, whoever sends
//! hands its message to the first waiting receiver that takes it, and appends it otherwise;
//! whoever receives takes the first message that fits its filter, and lets those senders look again
//! whose messages have room now. To find that one has to wait, and to be found waiting, is one
//! section of the lock (trap I5).
//!
//! # One truth per message
//!
//! A message has one word that says whose it is: private, queued, delivered to a node, or taken by a
//! task. The store of that word is what sends or receives it. The order of the list follows from
//! tickets; bytes, counts and lists of waiting calls can be told from the messages and nodes, which
//! keep their type in the region (`rebuild`). So nothing is logged.
//!
//! # Rules, which are Linux's
//!
//! - A message has room if the bytes with it are at most `msg_qbytes`, and so is the number of messages.
//! - A receiver whose buffer is too small, and who does not truncate, gets `E2BIG` when its message comes;
//!   the message goes on to the next.
//! - `IPC_SET` has all waiting receivers, and senders that now have room, ask for permission again.
//! - A sender that is let go on looks again; another may have come first, and it then waits as the last.
//! - `MSG_COPY` counts messages from zero, takes none, and with a buffer that is too small and `MSG_NOERROR`
//!   fails with `EINVAL`.
//!
//! Source: Linux `ipc/msg.c` for the semantics; msgop(2), msgctl(2), msgget(2).

#[cfg(all(test, corewalk_crash))]
mod crash_models;
mod ctl;
#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod ends;
mod filter;
mod get;
mod handover;
#[cfg(all(test, corewalk_loom))]
mod loom_models;
mod message;
mod node;
mod queue;
mod rebuild;
mod receive;
mod send;
mod watched;

pub(crate) use message::exit_msg;
pub(crate) use node::is_interruptible;
pub(crate) use queue::QUEUE_LINES;
pub(crate) use rebuild::{abandon, end_slot, reap};
pub(crate) use watched::{collect_concerns, look_at};

pub use ctl::{MSG_INFO, MSG_STAT, MSG_STAT_ANY, MsgStat, MsgTotals};
pub use receive::{Arrived, Received};

/// Bytes of a message at most, whatever the limit: a message lies in one range.
pub(crate) const MSGMAX_MAX: u32 = 1 << 20;

/// Bits of the mode that sending asks for.
const WRITE: u32 = 0o222;
/// Bits of the mode that receiving and `IPC_STAT` ask for.
const READ: u32 = 0o444;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
