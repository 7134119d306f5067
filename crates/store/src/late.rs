//! Deferred de-duplication of attribute sets: it happens just before a commit.
//!
//! To de-duplicate a set takes a hash, a lookup, a comparison, and updates of shared counters. That
//! is wasted on a set that is soon replaced. So the first new set of an inode in the running
//! transaction is de-duplicated at once. A second one is kept in a private block (`blocks`),
//! changed in place, and its inode is queued (`corewalk_mbcache::Deferral`). Before a commit, the
//! thread that asked for the commit looks each queued set up once. If a shared block has that
//! content, the inode joins it and the private block is freed. If not, the private block becomes a
//! shared one. The sets are handled in ascending order of their block ids. So of two equal blocks
//! the one with the lower id, usually the older one, stays. A commit for `dirsync` or of a full
//! transaction skips this step. It writes the private blocks, and their inodes stay queued.
//!
//! # Invariants
//! - L.1: an inode with `is_waiting` is in the queue, or the thread in `Deferral::share` is
//!   handling it. If a queued inode is dropped from memory, it stays in the queue, and may be
//!   queued once more after it was read again.
//! - L.2: a block without a hash that may be shared belongs to a queued inode, or to an inode that
//!   was queued at a crash. In the second case, the next change of the attributes shares the set.
//! - L.3: at most [`QUEUED_MAX`] inodes are queued. Threads that check this limit at the same time
//!   may exceed it by one inode each. The set of a queued inode takes at most one block. At the
//!   limit, sets are de-duplicated at once.
//! - L.4: an inode that changes once per transaction is not queued.
//!
//! # Concurrency
//! A private block is stored like a block with one user, in the transaction of its inode. So every
//! commit has exact counts. De-duplication of a set is an operation of its own. It holds a handle
//! of the journal, so all its changes are in one transaction (J.1). It also holds the inode's lock.
//! So it comes before or after any other change of that inode. A lookup cannot find a private block
//! until the block is shared (K.8). `Deferral::share` runs in one thread at a time. Two threads
//! might otherwise move two inodes to each other's block.
//!
//! # Locks
//! The mutex `turn` of the `Deferral` comes before the transaction barrier and every other lock. No
//! other lock is taken under the mutex of its queue.

use std::sync::Arc;

use corewalk_base::Budget;
use corewalk_mbcache::{Change, Deferral};

use crate::blocks::{Block, Blocks, When};
use crate::content::BLOCK_BYTES;
use crate::inode::State;
use crate::inode_table::InodeTable;
use crate::journal::{Journal, View};

/// Maximum number of queued inodes, as in a tmpfs. Their private blocks take at most 16 MiB.
const QUEUED_MAX: u64 = 4096;
/// Number of inodes that `share` handles under one handle of the journal. The handle delays the
/// commits of other threads, so the number is small.
const BATCH: usize = 32;

/// The inodes whose attribute sets are de-duplicated at the next commit.
pub(crate) struct Late {
    is_on: bool,
    journal: Arc<Journal>,
    table: Arc<InodeTable>,
    blocks: Arc<Blocks>,
    space: Arc<Budget>,
    /// For each queued inode, the id of the attribute block that it had when it was queued, and the
    /// inode number.
    queued: Deferral<(u64, u64)>,
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
        Late { is_on, journal, table, blocks, space, queued: Deferral::new(QUEUED_MAX) }
    }

    /// Returns `When::Late` if an inode that gets the attributes `set` should be queued, and
    /// `When::AtOnce` if its set should be de-duplicated now.
    pub(crate) fn when(&self, state: &State, set: &[u8], view: &View) -> When {
        if !self.is_on || set.len() as u64 > BLOCK_BYTES {
            return When::AtOnce;
        }
        let Some(block) = &state.block else { return When::AtOnce };
        let change = if state.is_waiting && block.is_private() {
            Change::Waiting
        } else if state.changed_at == view.tid {
            Change::Again
        } else {
            Change::First
        };
        if self.queued.defers(change) { When::Late } else { When::AtOnce }
    }

    /// Records that the attribute set of inode `ino` was replaced. Queues the inode if its set is
    /// private and may be shared. The caller has locked its `state`.
    pub(crate) fn note(&self, ino: u64, state: &mut State, view: &View) {
        state.changed_at = view.tid;
        if state.is_waiting || !self.is_on || !self.blocks.is_sharing() {
            return;
        }
        let is_deferred =
            |block: &&Arc<Block>| block.is_private() && block.content().len() as u64 <= BLOCK_BYTES;
        if let Some(block) = state.block.as_ref().filter(is_deferred) {
            self.queued.push((block.id(), ino));
            state.is_waiting = true;
        }
    }

    /// Returns the number of queued inodes.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.queued.len()
    }

    /// De-duplicates the attribute sets that were queued before this call. The caller holds no lock
    /// and no handle of the journal.
    pub(crate) fn share(&self) {
        self.queued.share(|mut inos| {
            inos.sort_unstable();
            for inos in inos.chunks(BATCH) {
                // If the journal refuses changes, nothing becomes durable any more. So there is no
                // need to de-duplicate.
                if let Ok(view) = self.journal.change() {
                    inos.iter().for_each(|(_, ino)| self.share_one(*ino, &view));
                }
            }
        });
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
