//! A message: one cache line with its state, and its text in the lines after that.
//!
//! The *truth word* contains the state of the message. A store to the truth word sends or receives
//! the message.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0-1 | state | private, queued, delivered |
//! | 2-16 | index | the queue's slot |
//! | 17-36 | tag | the tag of the queue, which differs from that of earlier queues in the slot |
//! | 37-63 | node | of a delivered message: the node of the receiver |
//!
//! A message is in one of three states:
//! - Private: the message belongs to one task, its owner. The memory pool's header of the message
//!   names the owner.
//! - Queued: the message is in its queue.
//! - Delivered: the message was passed to a waiting receiver.
//!
//! A sender writes a private message, and then stores the state queued or delivered. A receiver
//! first stores itself as the owner, then makes the message private, and then reads it. Everything
//! else, such as links and the queue's counts, can be rebuilt from the truth words and the tickets
//! (numbers in the order of arrival).
//!
//! A sender writes type, size and ticket (number in the order of arrival) before the truth word.
//! They do not change while the message is queued. Only the sender writes the text, and only the
//! receiver reads it, so the text needs no lock. The queue's lock, or the status word of a wait
//! node, orders the write before the read.

use corewalk_base::Line;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};

use super::queue::QueueName;
use crate::field::{get, put};
use crate::limits::MSGMAX_MAX;
use crate::lock::Owner;
use crate::shared::Shared;

// Indices of words in the first line of a message. Word 1 contains the links of the list. Words 6
// and 7 belong to the memory pool.
const TRUTH: usize = 0;
const TICKET: usize = 2;
const TYPE: usize = 3;
const SIZE: usize = 4;

/// The size of a line in bytes.
pub(super) const LINE_BYTES: usize = 64;
const WORD_BYTES: usize = 8;

const NODE_SHIFT: u32 = 37;

/// The state of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Truth {
    /// The message belongs to one task, which the pool's header of the message names.
    Private,
    /// It is in this queue.
    Queued(QueueName),
    /// Passed to a waiting receiver: its queue and its wait node.
    Delivered(QueueName, u32),
}

impl Truth {
    fn to_word(self) -> u64 {
        let word = |state: u64, name: QueueName, node: u32| {
            state | name.to_bits() << 2 | u64::from(node) << NODE_SHIFT
        };
        match self {
            Self::Private => 0,
            Self::Queued(name) => word(1, name, 0),
            Self::Delivered(name, node) => word(2, name, node),
        }
    }

    fn from_word(word: u64) -> Self {
        let name = QueueName::from_bits(word >> 2);
        match word & 3 {
            1 => Self::Queued(name),
            2 => Self::Delivered(name, (word >> NODE_SHIFT) as u32),
            _ => Self::Private,
        }
    }
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message<'s> {
    pub(super) shared: &'s Shared,
    pub(super) line: u32,
}

impl<'s> Message<'s> {
    /// Writes the type, the size and the text of a message. The caller has allocated enough cache
    /// lines for the text.
    #[inline]
    pub(super) fn fill(&self, mtype: i64, text: &[u8]) {
        // ORDERING(ipc-joins): Release fence. `collect_used` walks over the pool without a lock,
        // and may mistake the text below for the header of a former range. The fence puts the
        // change of the count `JOINS` before the text. So such a walk notices that the count has
        // changed.
        fence(Ordering::Release);
        let first = self.first();
        put(&first[TYPE], mtype.cast_unsigned());
        put(&first[SIZE], text.len() as u64);
        self.write(text);
    }

    /// Frees the lines of a private message.
    #[inline]
    pub(super) fn free(self, owner: Owner) {
        self.shared.layout.msgs.free(self.shared, self.line, owner);
    }

    /// Makes the message private to the task numbered `task`.
    #[inline]
    pub(super) fn make_private(&self, task: u32) {
        // Store the new owner in the memory pool's header of the message, and only then the state
        // `Private`. So at any time, the header of a private message names its owner.
        self.shared.layout.msgs.set_whose(&self.shared.region, self.line, task);
        self.set_truth(Truth::Private);
    }

    #[inline]
    pub(super) fn mtype(&self) -> i64 {
        get(&self.first()[TYPE]).cast_signed()
    }

    /// Returns the length of the text in bytes. It is at most [`MSGMAX_MAX`], even if the shared
    /// memory is damaged.
    #[inline]
    pub(super) fn size(&self) -> usize {
        get(&self.first()[SIZE]).min(u64::from(MSGMAX_MAX)) as usize
    }

    pub(super) fn ticket(&self) -> u64 {
        get(&self.first()[TICKET])
    }

    #[inline]
    pub(super) fn set_ticket(&self, ticket: u64) {
        put(&self.first()[TICKET], ticket);
    }

    pub(super) fn truth(&self) -> Truth {
        // ORDERING(ipc-truth): Acquire. `set_truth` stores the state with Release. Without this
        // order, a thread that reads the state could miss the type, size, ticket or text.
        Truth::from_word(self.first()[TRUTH].load(Ordering::Acquire))
    }

    /// Stores the state of the message.
    #[inline]
    pub(super) fn set_truth(&self, truth: Truth) {
        // ORDERING(ipc-truth): Release. See `truth`.
        self.first()[TRUTH].store(truth.to_word(), Ordering::Release);
    }

    #[inline]
    pub(super) fn read(&self, out: &mut [u8]) -> usize {
        let size = self.size().min(out.len());
        for (line, bytes) in self.text_lines().zip(out[..size].chunks_mut(LINE_BYTES)) {
            if let Ok(bytes) = <&mut [u8; LINE_BYTES]>::try_from(&mut *bytes) {
                for (word, bytes) in line.iter().zip(bytes.as_chunks_mut::<WORD_BYTES>().0) {
                    *bytes = get(word).to_ne_bytes();
                }
                continue;
            }
            for (word, bytes) in line.iter().zip(bytes.chunks_mut(WORD_BYTES)) {
                bytes.copy_from_slice(&get(word).to_ne_bytes()[..bytes.len()]);
            }
        }
        size
    }

    /// Copies `text` into the lines after the first line.
    #[inline]
    fn write(&self, text: &[u8]) {
        for (line, bytes) in self.text_lines().zip(text.chunks(LINE_BYTES)) {
            if let Ok(bytes) = <&[u8; LINE_BYTES]>::try_from(bytes) {
                for (word, bytes) in line.iter().zip(bytes.as_chunks::<WORD_BYTES>().0) {
                    put(word, u64::from_ne_bytes(*bytes));
                }
                continue;
            }
            for (word, bytes) in line.iter().zip(bytes.chunks(WORD_BYTES)) {
                let mut last = [0; WORD_BYTES];
                last[..bytes.len()].copy_from_slice(bytes);
                put(word, u64::from_ne_bytes(last));
            }
        }
    }

    #[inline]
    fn text_lines(&self) -> impl Iterator<Item = &'s Line> + use<'s> {
        let (region, first) = (&self.shared.region, self.line);
        (1..).map(move |at: u32| region.line(first.wrapping_add(at)))
    }

    #[inline]
    fn first(&self) -> &'s [AtomicU64; 8] {
        self.shared.region.line(self.line)
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn truth_survives_its_word() {
        let name = QueueName { index: (1 << 15) - 1, tag: (1 << 20) - 1 };
        let other = QueueName { index: 3, tag: 1 };
        let truths = [
            Truth::Private,
            Truth::Queued(name),
            Truth::Delivered(other, (1 << 27) - 1),
            Truth::Delivered(name, 0),
        ];
        assert!(truths.iter().all(|truth| Truth::from_word(truth.to_word()) == *truth));
    }
}
