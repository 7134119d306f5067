//! The answer to a request that a future has served.

use bytes::Bytes;
use corewalk::Errno;

use super::AsyncNode;
use crate::wire::Body;

const BODY_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) body: Bytes,
    /// When the answer is sent, the kernel gets one lookup of each inode.
    pub(super) entries: Vec<AsyncNode>,
    /// If the answer is not sent, the file must be closed.
    pub(super) opened: Option<AsyncNode>,
}

impl Answer {
    pub(super) fn with_body(
        write: impl FnOnce(&mut Body<'_>) -> Result<(), Errno>,
    ) -> Result<Answer, Errno> {
        let mut buffer = [0; BODY_BYTES];
        let mut body = Body::new(&mut buffer);
        write(&mut body)?;
        let len = body.len();
        Ok(Answer::from(Bytes::copy_from_slice(&buffer[..len])))
    }

    pub(super) fn with_entry(mut self, entry: AsyncNode) -> Answer {
        self.entries.push(entry);
        self
    }

    /// Called right before the answer is sent: the kernel may forget an inode as soon as it has the
    /// answer.
    pub(super) fn count_lookups(&mut self) {
        for entry in self.entries.drain(..) {
            entry.table_node().get().into_lookups();
        }
    }
}

impl From<Bytes> for Answer {
    fn from(body: Bytes) -> Answer {
        Answer { body, ..Answer::default() }
    }
}
