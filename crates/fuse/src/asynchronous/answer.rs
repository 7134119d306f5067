//! The answer to a request that a future has served.

use bytes::Bytes;
use corewalk::Errno;

use super::AsyncNode;
use crate::wire::Body;

const BODY_BYTES: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) body: Bytes,
    /// The inodes that the answer gives to the kernel. When the answer is sent, the kernel gets one
    /// lookup of each.
    pub(super) entries: Vec<AsyncNode>,
    /// The file that the request has opened. If the answer is not sent, the server must close the
    /// file.
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

    /// Counts the lookups that the answer gives to the kernel. Call this method right before the
    /// answer is sent. As soon as the kernel has the answer, it may forget an inode.
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
