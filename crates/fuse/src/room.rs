//! Room: keeping the cache within its budget although the kernel holds what is in it.
//!
//! Whatever the kernel has looked up it holds until it forgets, and it forgets when it is short of
//! memory itself, which has nothing to do with our budget. So a thread of its own watches the
//! budget. While the cache is over it, the thread goes round by round: it evicts what is not in use,
//! asks the kernel to forget some of what is pinned, and evicts that when the forgets have come.
//!
//! While there is room the thread has the back end do what that has put off, once in a while.
//!
//! # Never on a request's thread
//! What the kernel does when it is asked may wait for a request: for a lock that whoever waits for
//! an answer holds, or for pages to be written. A thread that serves requests would wait for itself.
//!
//! # How the kernel is asked
//! - By node (`FUSE_NOTIFY_PRUNE`, Linux 6.18): many nodes with one call, each of which the kernel
//!   drops unless it is in use. This suits directories too.
//! - By name (`FUSE_NOTIFY_INVAL_ENTRY`), where the kernel does not know the former. It unhashes the
//!   name even if it is in use. For a file that has no effect, but the working directory of a process
//!   would lose its path. So files are asked for, and directories follow when the kernel itself is
//!   short of memory.
//!
//! # What is not bounded
//! What is in use: open files, working directories, and the directories above both; the tables, which
//! do not shrink; and a directory for which the kernel remembers a name that does not exist, until
//! the kernel drops that by itself. If nothing can be had the thread tries a few times a second.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_notify_prune`), `fs/fuse/dir.c` (`fuse_reverse_inval_entry`),
//! `fs/dcache.c` (`d_prune_aliases`, `d_invalidate`).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use corewalk::{EntryId, Errno, FileKind, Name, Pinned, Pressure};
use corewalk_base::primitives::thread;
use fuser::{INodeNo, Notifier};

use crate::mount::Device;
use crate::server::Server;

/// How often the budget is looked at if nobody says that it is exceeded.
const TICK: Duration = Duration::from_secs(1);
/// How long the kernel gets between two rounds to forget what it was asked for.
const ROUND: Duration = Duration::from_millis(1);
/// Entries that are asked for in one round, at most.
const ASK_MAX: u64 = 4096;
/// Rounds after which an entry that is still in use is given up for now.
const TRIES_MAX: u32 = 16;
/// Rounds in a row that may bring nothing, each twice as long as the one before.
const FRUITLESS_MAX: u32 = 6;
/// How long to rest after that: whatever was asked for is in use.
const REST: Duration = Duration::from_millis(200);
/// What one entry takes, roughly: its dentry, its inode, its places in the tables.
const ENTRY_BYTES: u64 = 128;
/// Room is made for one in so many bytes of the budget more than is missing.
const SPARE_SHARE: u64 = 16;

/// The thread that keeps the budget; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    wakes: SyncSender<Wake>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Why the thread is to look up.
enum Wake {
    /// The cache is over its budget.
    Needed,
    /// The mount ends.
    Stop,
}

/// The side of the queue that the cache knows.
struct Bell(SyncSender<Wake>);

/// What the thread works with.
struct Keeper {
    server: Arc<Server>,
    notifier: Notifier,
    device: Arc<Device>,
    way: Way,
    asked: Vec<Asked>,
    /// The goal is the budget less the spare share: work has begun and is not done.
    is_making: bool,
}

/// How the kernel is asked to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Many nodes with one call.
    ByNode,
    /// Name by name.
    ByName,
}

/// An entry that the kernel has been asked to forget.
struct Asked {
    entry: EntryId,
    tries: u32,
}

impl Room {
    /// Starts the thread, and has the cache of the server wake it.
    pub(crate) fn start(server: Arc<Server>, notifier: Notifier, device: Arc<Device>) -> Room {
        let (wakes, woken) = sync_channel(1);
        if server.vfs().set_pressure(Box::new(Bell(wakes.clone()))).is_err() {
            log::debug!("somebody else hears that the cache needs room");
        }
        let (way, asked) = (Way::ByNode, Vec::new());
        let keeper = Keeper { server, notifier, device, way, asked, is_making: false };
        let thread = thread::spawn(move || keeper.run(&woken));
        Room { wakes, thread: Some(thread) }
    }
}

impl Keeper {
    fn run(mut self, woken: &Receiver<Wake>) {
        let (mut fruitless, mut pause) = (0, TICK);
        while has_waited(woken, pause) {
            let missing = self.missing_bytes();
            if missing == 0 {
                self.asked.clear();
                // Removed names may have become more negative entries than there should be.
                self.server.vfs().reclaim(0, &mut |_| {});
                self.server.vfs().maintain_backend(&self.server.vfs().root());
                (fruitless, pause) = (0, TICK);
                continue;
            }
            let evicted = self.round(missing.div_ceil(ENTRY_BYTES));
            fruitless = if evicted > 0 { 0 } else { fruitless + 1 };
            pause = ROUND * (1 << fruitless);
            if fruitless > FRUITLESS_MAX {
                self.asked.clear();
                (fruitless, pause) = (0, REST);
            }
        }
    }

    /// Returns by how many bytes the cache is to shrink.
    fn missing_bytes(&mut self) -> u64 {
        let stats = self.server.vfs().stats();
        self.is_making |= stats.bytes > stats.budget_bytes;
        let spare = if self.is_making { stats.budget_bytes / SPARE_SHARE } else { 0 };
        let missing = stats.bytes.saturating_sub(stats.budget_bytes - spare);
        self.is_making &= missing > 0;
        missing
    }

    /// Evicts what the kernel has forgotten and what nobody uses, and asks it for as many entries as
    /// are missing then. Returns how many entries went.
    fn round(&mut self, missing: u64) -> u64 {
        let vfs = self.server.vfs();
        let mut evicted = 0;
        self.asked.retain_mut(|asked| {
            let now = vfs.evict(asked.entry);
            evicted += now;
            asked.tries += 1;
            now == 0 && asked.tries < TRIES_MAX
        });
        let expected = evicted + self.asked.len() as u64;
        let want = missing.saturating_sub(expected).min(ASK_MAX);
        if want == 0 {
            return evicted;
        }
        let (way, mut nodes, mut names) = (self.way, Vec::new(), Vec::new());
        evicted += vfs.reclaim(want, &mut |pinned: Pinned<'_>| {
            self.asked.push(Asked { entry: pinned.entry, tries: 0 });
            match way {
                Way::ByNode => nodes.push(self.server.translate(pinned.ino)),
                Way::ByName if pinned.kind == FileKind::Directory => {}
                Way::ByName => names.push((pinned.parent, Box::from(pinned.name.as_bytes()))),
            }
        });
        self.ask_by_node(&nodes);
        self.ask_by_name(&names);
        evicted
    }

    /// Has the kernel drop these nodes; if it does not know how, names are what it gets from then on.
    fn ask_by_node(&mut self, nodes: &[u64]) {
        match self.device.notify_prune(nodes) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOSYS) => self.way = Way::ByName,
            // The connection ends.
            Err(error) => log::debug!("the kernel was asked to forget: {error}"),
        }
    }

    fn ask_by_name(&self, names: &[(u64, Box<[u8]>)]) {
        for (parent, name) in names {
            let node = INodeNo(self.server.translate(*parent));
            if let Err(error) = self.notifier.inval_entry(node, OsStr::from_bytes(name)) {
                log::debug!("the kernel was asked to forget a name: {error}");
            }
        }
    }
}

/// Waits for `pause`. A wake cuts a tick short; between rounds it says nothing new.
/// Returns false if the thread is to end.
fn has_waited(woken: &Receiver<Wake>, pause: Duration) -> bool {
    let end = Instant::now() + pause;
    loop {
        match woken.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(Wake::Needed) if pause == TICK => return true,
            Ok(Wake::Needed) => {}
        }
    }
}

impl Pressure for Bell {
    fn please_forget(&self, _: u64, _: Name<'_>) {
        // If one waits already that is enough. The thread finds out itself what is pinned.
        let _ = self.0.try_send(Wake::Needed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Waits for room, which the thread makes.
        let _ = self.wakes.send(Wake::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread that keeps the budget panicked");
        }
    }
}
