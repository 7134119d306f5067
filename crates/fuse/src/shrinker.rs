//! The shrinker: a thread that makes the kernel forget inodes, so that the cache keeps within its
//! budget.
//!
//! The kernel keeps each inode that it has looked up, until it sends a forget of the inode. Until
//! then, the cache cannot evict the inode. The kernel forgets inodes when memory is short, but it
//! does not know the budget of the cache.
//!
//! The shrinker watches the budget. While the cache is over its budget, the shrinker works in
//! rounds. In each round it evicts unused entries, and requests the kernel to forget others. When
//! the kernel has forgotten these, the shrinker evicts them too.
//!
//! While the cache is within its budget, the shrinker makes the back end do deferred work once per
//! second.
//!
//! # Never on a request's thread
//! While the kernel handles a notification, it may wait for a lock whose holder waits for a
//! request, or for pages that must be written first. If a thread that serves requests sent the
//! notification, it could wait for itself.
//!
//! # The two notifications
//! - By node (`FUSE_NOTIFY_PRUNE`, Linux 6.18). One call names many nodes. The kernel drops those
//!   that are not in use, even directories.
//! - By name (`FUSE_NOTIFY_INVAL_ENTRY`), for older kernels. The kernel unhashes the name even if
//!   the inode is in use. A process would then lose the path of its working directory. So the
//!   shrinker names only files.
//!
//! # Memory that the budget does not bound
//! - Open files, working directories, and the directories above them.
//! - The hash tables, which do not shrink.
//! - A directory for which the kernel remembers that a name is missing, until the kernel drops that
//!   name.
//!
//! If all entries are in use, so that none can be evicted, the shrinker tries again a few times per
//! second.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_notify_prune`), `fs/fuse/dir.c`
//! (`fuse_reverse_inval_entry`), `fs/dcache.c` (`d_prune_aliases`, `d_invalidate`).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use corewalk::{EntryId, Errno, FileKind, Name, Pinned, Pressure};
use corewalk_base::primitives::thread;

use crate::mount::Device;
use crate::service::Service;

/// The time between two checks whether the cache exceeds its budget. If the cache wakes the
/// shrinker thread, the check comes earlier.
const TICK: Duration = Duration::from_secs(1);
/// The pause between two rounds, during which forgets arrive.
const ROUND: Duration = Duration::from_millis(1);
/// Maximum number of entries that one round requests the kernel to forget.
const REQUEST_MAX: u64 = 4096;
/// Maximum number of attempts to evict an entry that the kernel was requested to forget. Each round
/// makes one attempt, which fails while the entry is in use.
const TRIES_MAX: u32 = 16;
/// Maximum number of successive rounds without an eviction. Each of them doubles the pause. After
/// one more, the shrinker rests for the time `REST`.
const FRUITLESS_MAX: u32 = 6;
/// How long the shrinker rests after more than `FRUITLESS_MAX` rounds without an eviction. By then,
/// the remaining entries are probably in use.
const REST: Duration = Duration::from_millis(200);
/// The approximate memory of one entry in bytes: its dentry, its inode, and its slots in the
/// tables.
const ENTRY_BYTES: u64 = 128;
/// The shrinker stops when the cache is 1 / `SPARE_SHARE` below its budget, so that the cache does
/// not exceed its budget again immediately.
const SPARE_SHARE: u64 = 16;

/// The handle of the shrinker thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Shrinker {
    wakes: SyncSender<Wake>,
    thread: Option<thread::JoinHandle<()>>,
}

/// A message to the shrinker thread.
enum Wake {
    /// The cache is over its budget.
    OverBudget,
    /// The mount ends.
    Stop,
}

/// The end of the message queue that the cache has.
struct WakeOnPressure(SyncSender<Wake>);

/// The state of the shrinker thread.
struct ShrinkThread {
    server: Arc<dyn Service>,
    device: Arc<Device>,
    notification: Notification,
    requested: Vec<Requested>,
    /// True from the time the cache exceeds its budget until it has shrunk to 1 / `SPARE_SHARE`
    /// below the budget.
    is_shrinking: bool,
}

/// The notification that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notification {
    /// `FUSE_NOTIFY_PRUNE`: many nodes with one call.
    ByNode,
    /// `FUSE_NOTIFY_INVAL_ENTRY`: one name with one call.
    ByName,
}

/// An entry that the kernel was requested to forget.
struct Requested {
    entry: EntryId,
    tries: u32,
}

impl Shrinker {
    /// Starts the thread, and registers it with the server's cache.
    pub(crate) fn start(server: Arc<dyn Service>, device: Arc<Device>) -> Shrinker {
        let (wakes, woken) = sync_channel(1);
        if server.vfs().set_pressure(Box::new(WakeOnPressure(wakes.clone()))).is_err() {
            log::debug!(
                "the cache wakes another shrinker already; this one checks once per second"
            );
        }
        let (notification, requested) = (Notification::ByNode, Vec::new());
        let state = ShrinkThread { server, device, notification, requested, is_shrinking: false };
        let thread = thread::spawn(move || state.run(&woken));
        Shrinker { wakes, thread: Some(thread) }
    }
}

impl ShrinkThread {
    fn run(mut self, woken: &Receiver<Wake>) {
        let (mut fruitless, mut pause) = (0, TICK);
        while has_waited(woken, pause) {
            let missing = self.missing_bytes();
            if missing == 0 {
                self.requested.clear();
                // Removals make negative entries, whose number may exceed their own limit.
                self.server.vfs().reclaim(0, &mut |_| {});
                self.server.vfs().maintain_backend(&self.server.vfs().root());
                (fruitless, pause) = (0, TICK);
                continue;
            }
            let evicted = self.round(missing.div_ceil(ENTRY_BYTES));
            fruitless = if evicted > 0 { 0 } else { fruitless + 1 };
            pause = ROUND * (1 << fruitless);
            if fruitless > FRUITLESS_MAX {
                self.requested.clear();
                (fruitless, pause) = (0, REST);
            }
        }
    }

    /// Returns the number of bytes that the cache must free now.
    fn missing_bytes(&mut self) -> u64 {
        let stats = self.server.vfs().stats();
        self.is_shrinking |= stats.bytes > stats.budget_bytes;
        let spare = if self.is_shrinking { stats.budget_bytes / SPARE_SHARE } else { 0 };
        let missing = stats.bytes.saturating_sub(stats.budget_bytes - spare);
        self.is_shrinking &= missing > 0;
        missing
    }

    /// Evicts entries that the kernel has forgotten, and other unused entries, and returns their
    /// number. If they are fewer than `missing`, requests the kernel to forget further entries.
    fn round(&mut self, missing: u64) -> u64 {
        let vfs = self.server.vfs();
        let mut evicted = 0;
        self.requested.retain_mut(|requested| {
            let now = vfs.evict(requested.entry);
            evicted += now;
            requested.tries += 1;
            now == 0 && requested.tries < TRIES_MAX
        });
        let expected = evicted + self.requested.len() as u64;
        let want = missing.saturating_sub(expected).min(REQUEST_MAX);
        if want == 0 {
            return evicted;
        }
        let (notification, mut nodes, mut names) = (self.notification, Vec::new(), Vec::new());
        evicted += vfs.reclaim(want, &mut |pinned: Pinned<'_>| {
            self.requested.push(Requested { entry: pinned.entry, tries: 0 });
            match notification {
                Notification::ByNode => nodes.push(self.server.translate(pinned.ino)),
                Notification::ByName if pinned.kind == FileKind::Directory => {}
                Notification::ByName => {
                    names.push((pinned.parent, Box::from(pinned.name.as_bytes())))
                }
            }
        });
        self.prune_nodes(&nodes);
        self.invalidate_names(&names);
        evicted
    }

    /// Requests the kernel to drop `nodes`. If the kernel does not know `FUSE_NOTIFY_PRUNE`, the
    /// later rounds of the shrinker request it to drop names instead.
    fn prune_nodes(&mut self, nodes: &[u64]) {
        match self.device.notify_prune(nodes) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS) => self.notification = Notification::ByName,
            // Any other error means that the connection ends.
            Err(error) => log::debug!("cannot request the kernel to forget nodes: {error}"),
        }
    }

    fn invalidate_names(&self, names: &[(u64, Box<[u8]>)]) {
        for (parent, name) in names {
            let node = self.server.translate(*parent);
            if let Err(error) = self.device.notify_inval_entry(node, name) {
                log::debug!("cannot request the kernel to forget a name: {error}");
            }
        }
    }
}

/// Waits for the time `pause`. Returns false if the shrinker thread must end. `Wake::OverBudget`
/// ends only a pause of length `TICK` early. During a shorter pause the shrinker knows already that
/// the cache is over its budget.
fn has_waited(woken: &Receiver<Wake>, pause: Duration) -> bool {
    let end = Instant::now() + pause;
    loop {
        match woken.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(Wake::OverBudget) if pause == TICK => return true,
            Ok(Wake::OverBudget) => {}
        }
    }
}

impl Pressure for WakeOnPressure {
    fn please_forget(&self, _: u64, _: Name<'_>) {
        // Ignore a full queue. One wake-up message is enough, because the message names no entry:
        // the shrinker itself chooses which entries to forget.
        let _ = self.0.try_send(Wake::OverBudget);
    }
}

impl Drop for Shrinker {
    fn drop(&mut self) {
        // The queue of `wakes` has space for one message. If it is full, `send` blocks until the
        // shrinker thread has received that message.
        let _ = self.wakes.send(Wake::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that keeps the cache within its budget panicked");
        }
    }
}
