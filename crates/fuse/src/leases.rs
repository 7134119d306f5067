//! Leases: answers that the kernel keeps for a time, and that the back end can take back earlier
//! ([`corewalk::Leases`]).
//!
//! # Time
//! The kernel may keep an answer for a time that begins when the kernel gets the answer. But the
//! back end has given the answer earlier. So right before the server writes an answer, it subtracts
//! the time since the request arrived. An answer that has taken longer than [`LATE`] gets no time
//! at all. If the server finds after the write that the answer was late, it makes the kernel drop
//! the answer. Two cases remain:
//! - The server may be stopped between the subtraction and the write. Then the kernel can use an
//!   old answer until the server makes it drop the answer.
//! - While the whole machine is suspended, the kernel does not count the time.
//!
//! # Transports
//! The server gives the back end a [`ClientCache`] only if the transport is `/dev/fuse`. Only the
//! threads of that transport write each answer immediately. Over io_uring, an answer may wait for
//! the next request.
//!
//! Source: Linux `fs/fuse/dir.c` (`fuse_dentry_revalidate`), `fs/fuse/inode.c`
//! (`fuse_change_attributes`, `fuse_reverse_inval_inode`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::{ClientCache, Errno, Name};

use crate::mount::Pages;
use crate::notify::Notifier;
use crate::server::{Server, translate};
use crate::wire::{Message, Opcode};

/// The longest time that an answer may take if the kernel is to keep it. So a back end must stop
/// trusting a lease this long before the lease ends.
pub(crate) const LATE: Duration = Duration::from_millis(100);

#[derive(Debug)]
struct Client {
    notifier: Notifier,
    root: u64,
}

impl ClientCache for Client {
    fn expire_names(&self) -> Result<(), Errno> {
        self.notifier.expire_names()
    }

    fn can_expire_names(&self) -> bool {
        self.notifier.can_expire_names()
    }

    fn expire_attributes(&self, ino: u64) -> Result<(), Errno> {
        let device = self.notifier.device().ok_or(Errno::NODEV)?;
        device.notify_inval_inode(translate(self.root, ino), Pages::Keep)
    }
}

impl Server {
    pub(crate) fn attach_client(&self, notifier: Notifier) {
        let root = self.vfs().root();
        if let Some(leases) = self.vfs().leases(&root) {
            leases.attach(Arc::new(Client { notifier, root: root.ino() }));
        }
    }

    pub(crate) fn absent_ttl(&self, parent: u64, name: &[u8]) -> Option<Duration> {
        let (dir, name) = (self.vfs().inode(self.translate(parent)).ok()?, Name::new(name).ok()?);
        Some(self.vfs().leases(&dir)?.absent_ttl(dir.ino(), name))
    }

    pub(crate) fn expire_late(&self, message: &Message<'_>, body: &[u8], begun: Instant) {
        let header = message.header;
        if begun.elapsed() <= LATE || !has_time(header.opcode, body) {
            return;
        }
        match header.opcode {
            Opcode::LOOKUP => {
                if let Some(leases) = self.vfs().leases(&self.vfs().root()) {
                    leases.name_was_late();
                }
            }
            _ => {
                if let Some(notifier) = self.notifier() {
                    notifier.drop_attributes(header.node);
                }
            }
        }
    }
}

fn has_time(opcode: Opcode, body: &[u8]) -> bool {
    let words = match opcode {
        // In a `fuse_entry_out`, bytes 16 to 23 are the seconds of the entry's timeout, and bytes
        // 32 to 35 its nanoseconds.
        Opcode::LOOKUP => [16..24, 32..36],
        // `fuse_attr_out` and `fuse_statx_out` begin with the timeout.
        Opcode::GETATTR | Opcode::STATX => [0..8, 8..12],
        _ => return false,
    };
    words.into_iter().any(|word| body.get(word).is_some_and(|word| word.iter().any(|b| *b != 0)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corewalk::Attr;

    use super::*;
    use crate::timeouts::Timeouts;
    use crate::wire::Body;

    #[test]
    fn answer_has_a_time_or_none() {
        let attr = Attr::file(7, 0);
        let mut buffer = [0; 512];
        let mut has = |opcode, write: &dyn Fn(&mut Body<'_>)| {
            let mut body = Body::new(&mut buffer);
            write(&mut body);
            let len = body.len();
            has_time(opcode, &buffer[..len])
        };
        for (time, is_there) in [
            (Duration::ZERO, false),
            (Duration::from_nanos(1), true),
            (Duration::from_secs(1), true),
        ] {
            let mut timeouts = Timeouts::fixed(Duration::ZERO);
            timeouts.entry = time;
            let entry =
                |body: &mut Body<'_>| body.entry_out((7, 1), timeouts, &attr).expect("room");
            let absent = |body: &mut Body<'_>| body.negative_entry(time).expect("room");
            let attributes = |body: &mut Body<'_>| body.attr_out(time, &attr).expect("room");
            let statx = |body: &mut Body<'_>| body.statx_out(time, &attr).expect("room");
            assert_eq!(has(Opcode::LOOKUP, &entry), is_there);
            assert_eq!(has(Opcode::LOOKUP, &absent), is_there);
            assert_eq!(has(Opcode::GETATTR, &attributes), is_there);
            assert_eq!(has(Opcode::STATX, &statx), is_there);
        }
        assert!(!has(Opcode::LOOKUP, &|_| ()), "an error");
    }
}
