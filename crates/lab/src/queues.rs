//! The message queues of the host kernel and of corewalk, behind one trait.
//!
//! The type, the length and the number of each received message are checked. If its text has more
//! than 8 bytes, the last byte is checked, too. Before each receive, the number and the last byte
//! are cleared.
//!
//! Source: msgop(2).

use anyhow::Context as _;
use corewalk_base::sysv::MsgQueue;
use corewalk_ipc::{GetFlags, IPC_PRIVATE, MsgFlags, MsgId};

use crate::crew::{Laps, Turn};
use crate::sems::Ours;

/// The last byte of each message of more than 8 bytes. The receiver checks it.
pub(crate) const LAST: u8 = 0x5a;

/// Message queues, numbered from 0.
pub(crate) trait Queues: Sync {
    /// Room for a message.
    type Message;

    fn message(&self, bytes: usize) -> Self::Message;

    /// Sends a message with a type, and with a number in its text. Returns true on success.
    fn send(&self, queue: usize, kind: u8, number: u64, message: &mut Self::Message) -> bool;

    /// Receives the first message of a type, and returns the number in its text. Returns None if
    /// the call fails, or if the length or the last byte is wrong.
    fn receive(&self, queue: usize, kind: u8, message: &mut Self::Message) -> Option<u64>;

    /// Returns true if nothing can be received from a queue.
    fn is_empty(&self, queue: usize) -> bool;
}

/// The host kernel's queues.
pub(crate) struct Linux(Vec<MsgQueue>);

/// A message of `bytes` bytes. The first word is its type, and the further words are the text.
pub(crate) struct Words {
    words: Vec<u64>,
    bytes: usize,
}

/// Returns as many low bytes of `number` as fit into a message of `bytes` bytes.
fn cut(number: u64, bytes: usize) -> u64 {
    if bytes < 8 { number & ((1 << (8 * bytes)) - 1) } else { number }
}

impl Linux {
    pub(crate) fn new(queues: usize) -> anyhow::Result<Linux> {
        let queues = (0..queues).map(|_| MsgQueue::private()).collect::<Result<_, _>>();
        Ok(Linux(queues.context("msgget(2)")?))
    }

    /// Returns queues that another process has made.
    pub(crate) fn join(ids: &[i32]) -> Linux {
        Linux(ids.iter().copied().map(MsgQueue::attach).collect())
    }

    pub(crate) fn ids(&self) -> Vec<i32> {
        self.0.iter().map(MsgQueue::id).collect()
    }
}

impl Queues for Linux {
    type Message = Words;

    fn message(&self, bytes: usize) -> Words {
        let mut words = vec![0; 1 + bytes.div_ceil(8)];
        if bytes > 8 {
            words[bytes.div_ceil(8)] = u64::from_le_bytes([LAST; 8]);
        }
        Words { words, bytes }
    }

    fn send(&self, queue: usize, kind: u8, number: u64, message: &mut Words) -> bool {
        let Words { words, bytes } = message;
        (words[0], words[1]) = (kind.into(), cut(number, *bytes));
        self.0[queue].send(words, *bytes).is_ok()
    }

    fn receive(&self, queue: usize, kind: u8, message: &mut Words) -> Option<u64> {
        let Words { words, bytes } = message;
        let last = words.len() - 1;
        (words[1], words[last]) = (0, 0);
        let got = self.0[queue].receive(words, *bytes, kind.into());
        let has_last = *bytes <= 8 || words[last].to_le_bytes()[(*bytes - 1) % 8] == LAST;
        (got == Ok(*bytes) && words[0] == u64::from(kind) && has_last).then_some(words[1])
    }

    fn is_empty(&self, queue: usize) -> bool {
        self.0[queue].is_empty() == Ok(true)
    }
}

impl Ours {
    /// Returns the numbers of the queues, for another process.
    pub(crate) fn raw_ids(&self) -> Vec<i32> {
        self.queues.iter().map(|id| id.raw()).collect()
    }

    /// Returns the namespace with queues that another process has made.
    pub(crate) fn join_queues(mut self, ids: &[i32]) -> Ours {
        self.queues = ids.iter().copied().map(MsgId::from_raw).collect();
        self
    }

    pub(crate) fn with_queues(mut self, count: usize) -> anyhow::Result<Ours> {
        let get = |_| self.users[0].msgget(IPC_PRIVATE, GetFlags::empty(), 0o600);
        self.queues = (0..count).map(get).collect::<Result<_, _>>().context("msgget")?;
        Ok(self)
    }
}

impl Queues for Ours {
    type Message = Vec<u8>;

    fn message(&self, bytes: usize) -> Vec<u8> {
        vec![LAST; bytes]
    }

    fn send(&self, queue: usize, kind: u8, number: u64, text: &mut Vec<u8>) -> bool {
        let head = text.len().min(8);
        text[..head].copy_from_slice(&number.to_le_bytes()[..head]);
        self.users[0].msgsnd(self.queues[queue], kind.into(), text, MsgFlags::empty()).is_ok()
    }

    fn receive(&self, queue: usize, kind: u8, text: &mut Vec<u8>) -> Option<u64> {
        let (bytes, head) = (text.len(), text.len().min(8));
        text[..head].fill(0);
        text[bytes - 1] = 0;
        let got = self.users[0].msgrcv(self.queues[queue], text, kind.into(), MsgFlags::empty());
        let is_right = got.is_ok_and(|got| got.size_bytes == bytes && got.mtype == i64::from(kind))
            && (bytes <= 8 || text[bytes - 1] == LAST);
        let mut number = [0; 8];
        number[..head].copy_from_slice(&text[..head]);
        is_right.then_some(u64::from_le_bytes(number))
    }

    fn is_empty(&self, queue: usize) -> bool {
        let mut text = [0; 1];
        self.users[0]
            .msgrcv(self.queues[queue], &mut text, 0, MsgFlags::NOWAIT)
            .is_err_and(|errno| errno == rustix::io::Errno::NOMSG)
    }
}

/// Sends a message and receives it again, until the time slice ends.
pub(crate) fn pairs<Q: Queues>(
    queues: &Q,
    queue: usize,
    kind: u8,
    bytes: usize,
    turn: Turn<'_>,
) -> Laps {
    let mut message = queues.message(bytes);
    turn.run(|number| {
        queues.send(queue, kind, number, &mut message)
            && queues.receive(queue, kind, &mut message) == Some(cut(number, bytes))
    })
}
