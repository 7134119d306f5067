//! Deferred de-duplication of attribute sets: it happens just before a commit.
//!
//! To de-duplicate a set takes a hash, a lookup, a comparison, and updates of shared counters.
//! That is wasted on a set that is soon replaced. So a set that changes more than once in the
//! running transaction is kept in a private block (`blocks`), changed in place, and its inode is
//! queued here. Before a commit, the thread that asked for it looks each queued set up once. If a
//! block has that content, the private one is dropped; if not, it becomes a shared one. Ascending
//! order keeps the older of two equal blocks. Commits that skip this (`dirsync`, a full
//! transaction) write the private blocks, and their inodes stay queued.
//!
//! # Which inodes are queued
//! - The second new set of an inode in one transaction queues it: more changes are likely. A first
//!   set, or one change per transaction, does not.
//! - An inode is *busy* if its set changed more than once in a transaction while it was queued. The
//!   first change queues a busy inode, if at most [`FEW_USERS`] inodes use its block. With more
//!   users, an equal block is likely, and sharing it is cheaper than a copy.
//! - If the queued sets exceed the processors' caches ([`CACHED_MAX`]), a block with more than
//!   [`FEW_USERS`] users is shared at once.
//!
//! # Invariants
//! - L.1: an inode with `is_waiting` is in a list, or taken by the thread with the turn, or out of
//!   memory. It is queued once, and once more for each time that it was out of memory.
//! - L.2: a block without a hash that may be shared belongs to a queued inode, or to one that was
//!   queued at a crash. The next change of the latter shares it.
//! - L.3: at most [`WAITING_MAX`] inodes are queued, plus one per thread that checks at the same
//!   time. Each has a set of at most one block. Beyond that, sets are shared at once.
//! - L.4: an inode that changes once per transaction is not queued, except the first time after it
//!   was busy.
//!
//! # Concurrency
//! A private block is stored like a block with one user, in the transaction of its inode. So every
//! commit has exact counts. De-duplication of a set is an operation of its own: it holds a handle
//! (J.1) and the inode's lock. So it comes before or after any other change of that inode. A
//! private block cannot be found until it is shared (K.8). The turn keeps two threads from moving
//! two inodes to each other's block.
//!
//! # Locks
//! `turn` comes before the transaction barrier and every other lock. The lists are leaves.
//!
//! Source: `corewalk::tmpfs`, which defers by time alone.

use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread::available_parallelism;
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{Budget, Mutex, OwnLine};

use crate::blocks::{Block, Blocks, When};
use crate::content::BLOCK_BYTES;
use crate::inode::State;
use crate::inode_table::InodeTable;
use crate::journal::{Journal, View};

/// Maximum number of queued inodes. Their attribute sets take up to 32 MiB, which is also the
/// default maximum of a transaction.
const WAITING_MAX: u64 = 8192;
/// Maximum number of inodes that one thread queues even if their blocks have many users. Their
/// attribute sets take up to 1 MiB, so they fit into a second-level cache. For all threads together
/// the maximum is this number per processor.
const CACHED_MAX: u64 = 256;
/// A shared block with at most this many users saves little memory. So its users may get private
/// blocks.
const FEW_USERS: u32 = 4;
/// Maximum number of inodes that `share` de-duplicates under one handle of the journal. A commit of
/// another thread has to wait until `share` drops the handle.
const BATCH: usize = 32;

/// The queue of inodes whose sets are to be de-duplicated. The module's documentation describes it.
pub(crate) struct Late {
    is_on: bool,
    journal: Arc<Journal>,
    table: Arc<InodeTable>,
    blocks: Arc<Blocks>,
    space: Arc<Budget>,
    lists: Box<[OwnLine<List>]>,
    /// Number of queued inodes, including those that the thread with the turn has taken.
    count: AtomicU64,
    /// Maximum number of queued inodes whose attribute sets fit into the second-level caches of all
    /// processors.
    cached_max: u64,
    /// Locked by the thread that de-duplicates queued sets. The mutex protects no data, but allows
    /// only one such thread at a time.
    turn: Mutex<()>,
}

/// The inodes queued by one shard of threads.
#[derive(Default)]
struct List {
    /// The id of the inode's block when it was queued, and the inode number. Protected by its own
    /// mutex.
    inos: Mutex<Vec<(u64, u64)>>,
    /// Length of `inos`. Stored under `inos`.
    len: AtomicU64,
}

impl Late {
    /// Returns an empty queue.
    pub(crate) fn new(
        is_on: bool,
        journal: Arc<Journal>,
        table: Arc<InodeTable>,
        blocks: Arc<Blocks>,
        space: Arc<Budget>,
    ) -> Late {
        let processors = available_parallelism().map_or(1, |processors| processors.get() as u64);
        Late {
            is_on,
            journal,
            table,
            blocks,
            space,
            lists: (0..SHARDS).map(|_| OwnLine::default()).collect(),
            count: AtomicU64::new(0),
            cached_max: processors * CACHED_MAX,
            turn: Mutex::new(()),
        }
    }

    /// Returns `When::Late` if an inode that gets the attributes `set` should be queued, and
    /// `When::AtOnce` if its set should be de-duplicated now.
    pub(crate) fn when(&self, state: &State, set: &[u8], view: &View) -> When {
        if !self.is_on || set.len() as u64 > BLOCK_BYTES {
            return When::AtOnce;
        }
        let Some(block) = &state.block else { return When::AtOnce };
        if state.is_waiting && block.is_private() {
            return When::Late;
        }
        let is_again = state.changed_at == view.tid;
        let can_wait = (is_again || state.is_busy) && self.len() < WAITING_MAX;
        let is_better = || (is_again && self.has_cache()) || block.users() <= FEW_USERS;
        if can_wait && is_better() { When::Late } else { When::AtOnce }
    }

    /// Returns true if the sets of all queued inodes, and one more of this thread, fit into the
    /// processors' caches.
    fn has_cache(&self) -> bool {
        // ORDERING: Relaxed. A hint: another thread may queue an inode meanwhile.
        let of_thread = self.lists[shard_index()].len.load(Ordering::Relaxed);
        of_thread < CACHED_MAX && self.len() < self.cached_max
    }

    /// Records that the attribute set of inode `ino` was replaced. The caller has locked its
    /// `state`.
    pub(crate) fn note(&self, ino: u64, state: &mut State, view: &View) {
        // A queued inode is busy only after a second change in one transaction. It may have been
        // queued in an earlier transaction, so this may be its first change in the running one.
        let is_again = std::mem::replace(&mut state.changed_at, view.tid) == view.tid;
        if state.block.as_ref().is_some_and(|block| block.is_private()) {
            match state.is_waiting {
                true => state.is_busy |= is_again,
                false => self.push(ino, state),
            }
        }
    }

    /// Queues inode `ino`, whose attribute set is private. Does nothing if the set cannot be
    /// shared.
    fn push(&self, ino: u64, state: &mut State) {
        let is_short = |block: &&Arc<Block>| block.content().len() as u64 <= BLOCK_BYTES;
        let can_wait = self.is_on && self.blocks.is_sharing();
        let Some(block) = state.block.as_ref().filter(|block| can_wait && is_short(block)) else {
            return;
        };
        let id = block.id();
        (state.is_waiting, state.is_busy) = (true, false);
        // ORDERING: Relaxed. A thread that must see this inode as queued is ordered after this call
        // by other means, such as the inode's lock.
        self.count.fetch_add(1, Ordering::Relaxed);
        let list = &self.lists[shard_index()];
        let mut inos = list.inos.lock();
        inos.push((id, ino));
        // ORDERING: Relaxed. The length changes under the lock of the list. A reader without the
        // lock uses the length only as a hint.
        list.len.store(inos.len() as u64, Ordering::Relaxed);
    }

    /// Returns the number of queued inodes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // ORDERING: Relaxed. See `push`.
        self.count.load(Ordering::Relaxed)
    }

    /// De-duplicates the attribute sets that were queued before this call. The caller holds no lock
    /// and no handle.
    pub(crate) fn share(&self) {
        if self.len() == 0 {
            return;
        }
        let _turn = self.turn.lock();
        let mut inos: Vec<_> = self.lists.iter().flat_map(|list| list.take()).collect();
        inos.sort_unstable();
        for inos in inos.chunks(BATCH) {
            // If the journal refuses changes, nothing becomes durable any more, so nothing has to
            // be de-duplicated.
            if let Ok(view) = self.journal.change() {
                inos.iter().for_each(|(_, ino)| self.share_one(*ino, &view));
            }
            // ORDERING: Relaxed. See `push`.
            self.count.fetch_sub(inos.len() as u64, Ordering::Relaxed);
        }
    }

    fn share_one(&self, ino: u64, view: &View) {
        let found = self.table.find(ino);
        let is_in_memory = found.is_some();
        // A freed inode is `ESTALE`.
        let Ok(inode) = found.map_or_else(|| self.table.get(ino, view), Ok) else { return };
        let mut state = inode.state.write();
        state.is_waiting = false;
        if !state.is_dead
            && let Some(mut block) = self.block_of(&mut state, view)
        {
            if self.blocks.share_late(&mut block, view, &self.space) {
                state.record.xattr = block.id();
                inode.save(&state, view);
            }
            state.block = Some(block);
        }
        drop(state);
        if !is_in_memory {
            self.table.release(inode);
        }
    }

    /// Takes the attribute block out of an inode's state, if it has one that can be read.
    fn block_of(&self, state: &mut State, view: &View) -> Option<Arc<Block>> {
        match (state.block.take(), state.record.xattr) {
            (_, 0) => None,
            (None, id) => self.blocks.get(id, view).ok(),
            (block, _) => block,
        }
    }
}

impl List {
    fn take(&self) -> Vec<(u64, u64)> {
        let mut inos = self.inos.lock();
        // ORDERING: Relaxed. As in `push`.
        self.len.store(0, Ordering::Relaxed);
        std::mem::take(&mut *inos)
    }
}
