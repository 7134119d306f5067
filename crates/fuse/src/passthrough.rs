//! Passthrough: the kernel reads and writes a file of the host itself, without the server.
//!
//! - A back end names the file of the host that holds the content of an open file
//!   ([`FileSystem::backing_file`](corewalk::FileSystem::backing_file)).
//! - The server registers that file with the kernel, which assigns a number. The answer to the open
//!   contains this number.
//! - From then on, read(2), write(2) and mmap(2) go to the file of the host. All other requests
//!   still come to the server.
//!
//! The kernel demands that all opens of one inode agree: either all use the same registered file,
//! or none uses one. So the server decides at the first open of an inode, and keeps the decision
//! until the last release. The kernel sends the release only when it no longer uses the open file.
//!
//! Only root may register files. If the kernel refuses the first file, the mount continues without
//! passthrough.
//!
//! # Set-user-ID, set-group-ID and capabilities
//! The kernel writes to the file of the host without `CAP_FSETID`, so the host clears set-user-ID,
//! set-group-ID and capabilities with each write. But the kernel may still have the old mode of the
//! mounted file in its cache. It could then execute the new content with the privileges of the old
//! mode. So before such a write, the kernel sends a setattr request without any attribute
//! ([`Passthrough::has`]). The server then clears the bits itself, and its answer has the new mode.
//!
//! # Files that are not passed through
//! - A file whose first open has `O_APPEND`. If a program later clears that flag with fcntl(2), the
//!   kernel would still append to the file of the host.
//! - A file with set-user-ID or set-group-ID. A writer with `CAP_FSETID` must keep these bits, but
//!   the host would clear them.
//!
//! # Locks
//! A thread that holds the mutex of the decisions takes no other lock. While a thread decides about
//! an inode, it does not hold the mutex, and only further opens of the same inode wait for it.
//!
//! Source: Linux `fs/fuse/passthrough.c`, `backing.c`, `iomode.c`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::num::NonZero;

use corewalk::Errno;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::{Condvar, Mutex};
use foldhash::fast::RandomState;
use rustix::fs::OFlags;

use crate::server::Server;

pub(crate) type BackingId = NonZero<u32>;

#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    /// Protected by its own mutex.
    open: Mutex<HashMap<u64, Decision, RandomState>>,
    /// Wakes the opens that wait for the decision about their inode. Used with the mutex of `open`.
    decided: Condvar,
    /// True if the kernel has refused to register a file, for a reason that holds for all files.
    is_refused: AtomicBool,
}

#[derive(Debug)]
enum Decision {
    Pending,
    Made {
        id: Option<BackingId>,
        /// The number of open files.
        opens: u64,
    },
}

/// A decision that is not made yet. The destructor makes the decision even if the back end panics,
/// so that other opens do not wait for ever.
struct Deciding<'a> {
    passthrough: &'a Passthrough,
    node: u64,
    id: Option<BackingId>,
}

impl Passthrough {
    /// Decides at the first open of an inode whether the kernel reads and writes the file of the
    /// host itself. Returns the decision at each open of the inode.
    pub(crate) fn opened(
        &self,
        server: &Server,
        node: u64,
        handle: u64,
        flags: u32,
    ) -> Option<BackingId> {
        let mut open = self.open.lock();
        loop {
            match open.entry(node) {
                Entry::Vacant(entry) => {
                    entry.insert(Decision::Pending);
                    break;
                }
                Entry::Occupied(mut entry) => {
                    if let Decision::Made { id, opens } = entry.get_mut() {
                        *opens += 1;
                        return *id;
                    }
                }
            }
            self.decided.wait(&mut open);
        }
        drop(open);
        // `register` may wait for the back end, so `open` is unlocked: opens of other inodes go on.
        let mut deciding = Deciding { passthrough: self, node, id: None };
        if !OFlags::from_bits_retain(flags).contains(OFlags::APPEND) {
            deciding.id = self.register(server, node, handle);
        }
        deciding.id
    }

    pub(crate) fn released(&self, server: &Server, node: u64) {
        let mut open = self.open.lock();
        let Some(Decision::Made { id, opens }) = open.get_mut(&node) else { return };
        *opens -= 1;
        if *opens > 0 {
            return;
        }
        let id = *id;
        open.remove(&node);
        if let (Some(id), Some(device)) = (id, server.device())
            && let Err(error) = device.close_backing_file(id)
        {
            log::warn!("a registered file was not closed: {error}");
        }
    }

    pub(crate) fn has(&self, node: u64) -> bool {
        matches!(self.open.lock().get(&node), Some(Decision::Made { id: Some(_), .. }))
    }

    fn register(&self, server: &Server, node: u64, handle: u64) -> Option<BackingId> {
        // ORDERING: Relaxed. The flag only saves a system call. A thread that misses the store of
        // `true` in `register` makes the call, which fails.
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let file = server.backing_file(node, handle)?;
        match server.device()?.open_backing_file(&file) {
            Ok(id) => Some(id),
            Err(error) => {
                // Remember a refusal that holds for every file. This process may not register files
                // (`EPERM`), or the host's file system lies over another one (`ELOOP`).
                if matches!(error, Errno::PERM | Errno::LOOP) {
                    // ORDERING: Relaxed. The flag only saves a system call. A thread whose load in
                    // `register` misses the value makes the call, which fails.
                    self.is_refused.store(true, Ordering::Relaxed);
                }
                log::debug!("the kernel does not pass a file through: {error}");
                None
            }
        }
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        let made = Decision::Made { id: self.id, opens: 1 };
        self.passthrough.open.lock().insert(self.node, made);
        self.passthrough.decided.notify_all();
    }
}
