//! Answers that the kernel keeps for a time, and that the back end takes back
//! ([`corewalk::Leases`]).
//!
//! # Time
//! A time in an answer begins when the kernel takes the answer, not when the back end gives it. The
//! server may be stopped in between. So the time that has passed since the request arrived is
//! subtracted as the last step before the answer is written. And a server that needed longer than
//! [`LATE`] until the answer was written makes the kernel drop the answer immediately.
//! - A stop between these two steps lets the kernel use an old answer for the few instructions
//!   until the drop.
//! - The times stand still while the whole machine is suspended.
//!
//! # Transports
//! Only the threads of `/dev/fuse` write each answer immediately, so only they hand out the
//! [`ClientCache`]. Over io_uring, an answer may wait for the next request.
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

/// A server that needs longer than this for an answer makes the kernel drop it. A back end must
/// distrust each lease for a last part of its time that is longer than this.
const LATE: Duration = Duration::from_millis(100);

/// The kernel's cache of a mount, as its back end sees it.
#[derive(Debug)]
struct Client {
    notifier: Notifier,
    /// The inode number of the root.
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
    /// Gives the back end the way to the kernel's cache, if it wants one.
    pub(crate) fn attach_client(&self, notifier: Notifier) {
        let root = self.vfs().root();
        if let Some(leases) = self.vfs().leases(&root) {
            leases.attach(Arc::new(Client { notifier, root: root.ino() }));
        }
    }

    /// Returns how long the kernel may remember that the directory `parent` has no `name`, after a
    /// lookup has said so.
    pub(crate) fn absent_ttl(&self, parent: u64, name: &[u8]) -> Option<Duration> {
        let (dir, name) = (self.vfs().inode(self.translate(parent)).ok()?, Name::new(name).ok()?);
        Some(self.vfs().leases(&dir)?.absent_ttl(dir.ino(), name))
    }

    /// Makes the kernel drop an answer that was written later than [`LATE`] after the arrival of
    /// its request. `begun` is the instant at which its request arrived.
    pub(crate) fn expire_late(&self, message: &Message<'_>, begun: Instant) {
        if begun.elapsed() <= LATE {
            return;
        }
        let Some(notifier) = self.notifier() else { return };
        let header = message.header;
        let expired = match header.opcode {
            Opcode::LOOKUP => notifier.expire_names(),
            Opcode::GETATTR | Opcode::STATX => {
                notifier.drop_attributes(header.node);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = expired {
            log::debug!("the kernel keeps an answer that was late: {error}");
        }
    }
}
