//! The shrinker: a thread that makes the kernel forget inodes, so that the cache keeps within its
//! budget.
//!
//! The kernel keeps each inode that it has looked up, until it sends a forget of that inode. Before
//! the forget, the cache cannot evict the inode. The kernel forgets inodes when memory is short,
//! but it does not know the budget of the cache.
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
//! request. It may also wait for pages that must be written first. If a thread that serves requests
//! sent the notification, it could wait for itself.
//!
//! # The two notifications
//! - By node (`FUSE_NOTIFY_PRUNE`, Linux 6.18). One call names many nodes. The kernel drops the
//!   nodes that are not in use, even directories.
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

/// The pause while the cache is within its budget. If the cache exceeds its budget, it wakes the
/// shrinker thread earlier.
const TICK: Duration = Duration::from_secs(1);
/// The shortest pause between two rounds. Forgets arrive during the pause.
const ROUND: Duration = Duration::from_millis(1);
const REQUEST_MAX: u64 = 4096;
/// Maximum number of attempts to evict an entry that the kernel was requested to forget. Each round
/// makes one attempt, which fails while the entry is in use.
const TRIES_MAX: u32 = 16;
/// Maximum number of successive rounds without an eviction, each of which doubles the pause. After
/// one more such round, the shrinker rests for the time `REST`.
const FRUITLESS_MAX: u32 = 6;
const REST: Duration = Duration::from_millis(200);
const ENTRY_BYTES: u64 = 128;
/// The shrinker frees memory until the cache is 1 / `SPARE_SHARE` below its budget. Otherwise it
/// would have to start again immediately.
const SPARE_SHARE: u64 = 16;

/// Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Shrinker {
    wakes: SyncSender<Wake>,
    thread: Option<thread::JoinHandle<()>>,
}

enum Wake {
    OverBudget,
    Stop,
}

struct WakeOnPressure(SyncSender<Wake>);

struct ShrinkThread {
    server: Arc<dyn Service>,
    device: Arc<Device>,
    notification: Notification,
    requested: Vec<Requested>,
    is_shrinking: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notification {
    ByNode,
    ByName,
}

struct Requested {
    entry: EntryId,
    tries: u32,
}

impl Shrinker {
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
                // Evict negative entries, which removed names leave. Their number has a limit of
                // its own.
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

    fn missing_bytes(&mut self) -> u64 {
        let stats = self.server.vfs().stats();
        self.is_shrinking |= stats.bytes > stats.budget_bytes;
        let spare = if self.is_shrinking { stats.budget_bytes / SPARE_SHARE } else { 0 };
        let missing = stats.bytes.saturating_sub(stats.budget_bytes - spare);
        self.is_shrinking &= missing > 0;
        missing
    }

    /// Evicts entries, and returns their number. Requests the kernel to forget further entries if
    /// fewer than `missing` entries are evicted or requested already.
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

    /// Requests the kernel to forget `nodes`. If the kernel does not know `FUSE_NOTIFY_PRUNE`,
    /// later rounds request it to drop names instead.
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

/// Waits for the time `pause`. Returns false if the shrinker must stop. `Wake::OverBudget` ends
/// only a pause of length `TICK` early. During a shorter pause, the shrinker knows already that the
/// cache is over its budget.
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
        // One wake-up message in the queue is enough, because it names no entry.
        let _ = self.0.try_send(Wake::OverBudget);
    }
}

impl Drop for Shrinker {
    fn drop(&mut self) {
        // If the queue is full, `send` blocks until the shrinker thread has received the message in
        // it. So the message `Stop` is not lost.
        let _ = self.wakes.send(Wake::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that keeps the cache within its budget panicked");
        }
    }
}
