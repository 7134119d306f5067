//! Passthrough: the kernel reads and writes a file of the host itself, without the server.
//!
//! A back end names the file of the host that holds the content of an open file
//! ([`FileSystem::backing_file`](corewalk::FileSystem::backing_file)). The server registers that
//! file with the kernel, and the answer to the open has its number. From then on, read(2), write(2)
//! and mmap(2) go to the file of the host. All other requests still come to the server.
//!
//! The kernel demands that all opens of one inode agree: either all have the same registered file,
//! or none has one. So the server decides at the first open of an inode, and keeps the decision
//! until the last open has ended. The kernel ends its use of an open file before it sends the
//! release, so the server never ends a decision too early.
//!
//! Only root may register files. If the kernel refuses the first one, the mount goes on without.
//!
//! # Files that are not passed through
//! - A file whose first open has `O_APPEND`. If a program clears that flag later, with fcntl(2),
//!   the kernel still appends to the file of the host.
//! - A file with set-group-ID that its group may not execute. The kernel does not clear that bit
//!   when a user outside of the group writes.
//!
//! # Locks
//! The mutex of the decisions is held alone, and while a file is registered. That takes no lock of
//! the mount.
//!
//! Source: Linux `fs/fuse/passthrough.c`, `backing.c`, `iomode.c`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZero;

use corewalk::Errno;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use foldhash::fast::RandomState;
use rustix::fs::OFlags;

use crate::server::Server;

/// The number of a registered file.
pub(crate) type BackingId = NonZero<u32>;

/// The registered files of a connection.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    /// The inodes that are open, by their node numbers. Protected by its own mutex.
    open: Mutex<HashMap<u64, Decision, RandomState>>,
    /// True after the kernel has refused a file for a reason that holds for all files.
    is_refused: AtomicBool,
}

/// The decision about the opens of one inode.
#[derive(Debug)]
struct Decision {
    id: Option<BackingId>,
    /// The number of open files.
    opens: u64,
}

impl Passthrough {
    /// Counts an open of `node`, and returns the registered file for the answer. If this is the
    /// only open of the inode, registers the file of the open file `handle`. `flags` are those of
    /// open(2).
    pub(crate) fn opened(
        &self,
        server: &Server,
        node: u64,
        handle: u64,
        flags: u32,
    ) -> Option<BackingId> {
        let mut open = self.open.lock();
        match open.entry(node) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().opens += 1;
                entry.get().id
            }
            Entry::Vacant(entry) => {
                let appends = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
                let id = if appends { None } else { self.register(server, node, handle) };
                entry.insert(Decision { id, opens: 1 });
                id
            }
        }
    }

    /// Takes back an open of `node`, because the file was released.
    pub(crate) fn released(&self, server: &Server, node: u64) {
        let mut open = self.open.lock();
        let Entry::Occupied(mut entry) = open.entry(node) else { return };
        entry.get_mut().opens -= 1;
        if entry.get().opens > 0 {
            return;
        }
        if let (Some(id), Some(device)) = (entry.remove().id, server.device())
            && let Err(error) = device.close_backing_file(id)
        {
            log::warn!("a registered file was not closed: {error}");
        }
    }

    fn register(&self, server: &Server, node: u64, handle: u64) -> Option<BackingId> {
        // ORDERING: Relaxed. A hint, which saves a system call.
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let file = server.backing_file(node, handle)?;
        match server.device()?.open_backing_file(&file) {
            Ok(id) => Some(id),
            Err(error) => {
                // Neither changes for another file of the host: this process may not register
                // files, or the host's file system lies over another one.
                if matches!(error, Errno::PERM | Errno::LOOP) {
                    // ORDERING: Relaxed. See above.
                    self.is_refused.store(true, Ordering::Relaxed);
                }
                log::debug!("the kernel does not pass a file through: {error}");
                None
            }
        }
    }
}
