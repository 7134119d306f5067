//! Deferred de-duplication of attribute sets: it happens just before a commit.
//!
//! De-duplicating an attribute set costs a hash, a lookup and a comparison, which are wasted on a
//! set that is soon replaced. So only an inode's first new set in a transaction is de-duplicated
//! immediately. The second set queues the inode ([`Deferral`]) and gets a private block (see
//! `blocks`), which later sets change in place.
//!
//! Before a thread commits, it de-duplicates the queued sets in ascending order of block ids. If a
//! shared block has the same content, the inode uses that block, and its private block is freed.
//! Otherwise the private block becomes a shared one. So of two equal blocks the older one usually
//! stays.
//!
//! Two kinds of commits do not de-duplicate the queued sets. One kind makes a change of names
//! durable (`dirsync`). The other kind is for a transaction with too many records in memory.
//!
//! # Invariants
//! - L.1: an inode with the flag `is_waiting` is in the queue, or `Deferral::share` is about to
//!   handle it. A queued inode that leaves memory may be queued a second time when it is read
//!   again.
//! - L.2: an inode with a private block that could be shared is queued, or was queued before a
//!   crash. After a crash, the next change of the inode's attributes de-duplicates them.
//! - L.3: at most [`QUEUED_MAX`] inodes are queued. Threads that check this limit at the same time
//!   may exceed it by one inode each. While the queue is full, attribute sets are de-duplicated
//!   immediately.
//! - L.4: an inode whose attributes change once per transaction is not queued.
//!
//! # Concurrency
//! - A private block is stored like a block with one user, in the transaction of its inode. So user
//!   counts are right in every commit. No lookup of equal blocks finds it (invariant K.8 of
//!   `blocks`).
//! - The de-duplication of a set holds a handle of the journal, so all its changes are in one
//!   transaction (guarantee J.1 of `journal`). It also holds the inode's lock, so the set does not
//!   change.
//! - `Deferral::share` runs in one thread at a time. Otherwise two threads could move two inodes to
//!   each other's block.
//!
//! # Locks
//! The mutex `turn` of the `Deferral` is locked before the transaction barrier and every other
//! lock. No other lock is taken under the mutex of the queue.

use std::sync::Arc;

use corewalk_base::Budget;
use corewalk_mbcache::{Change, Deferral};

use crate::blocks::{Block, Blocks, When};
use crate::content::BLOCK_BYTES;
use crate::inode::State;
use crate::inode_table::InodeTable;
use crate::journal::{Journal, View};

/// Maximum number of queued inodes. It limits the memory of their private blocks to 16 MiB, as in
/// corewalk's tmpfs.
const QUEUED_MAX: u64 = 4096;
/// Number of inodes that `share` handles under one handle of the journal. It is small, because
/// commits wait for that handle.
const BATCH: usize = 32;

pub(crate) struct Late {
    is_on: bool,
    journal: Arc<Journal>,
    table: Arc<InodeTable>,
    blocks: Arc<Blocks>,
    space: Arc<Budget>,
    queued: Deferral<(u64, u64)>,
}

impl Late {
    pub(crate) fn new(
        is_on: bool,
        journal: Arc<Journal>,
        table: Arc<InodeTable>,
        blocks: Arc<Blocks>,
        space: Arc<Budget>,
    ) -> Late {
        Late { is_on, journal, table, blocks, space, queued: Deferral::new(QUEUED_MAX) }
    }

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

    /// The caller has locked `state`.
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

    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.queued.len()
    }

    /// De-duplicates the attribute sets of all queued inodes. The caller holds no lock and no
    /// handle of the journal.
    pub(crate) fn share(&self) {
        self.queued.share(|mut inos| {
            inos.sort_unstable();
            for inos in inos.chunks(BATCH) {
                // The journal refuses changes after a failed commit. Then the queued sets stay as
                // they are.
                if let Ok(view) = self.journal.change() {
                    inos.iter().for_each(|(_, ino)| self.share_one(*ino, &view));
                }
            }
        });
    }

    fn share_one(&self, ino: u64, view: &View) {
        let found = self.table.find(ino);
        let is_in_memory = found.is_some();
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

    fn block_of(&self, state: &mut State, view: &View) -> Option<Arc<Block>> {
        match (state.block.take(), state.record.xattr) {
            (_, 0) => None,
            (None, id) => self.blocks.get(id, view).ok(),
            (block, _) => block,
        }
    }
}
