//! Sets of attributes that are shared late: when a transaction is about to be committed.
//!
//! To share a set takes a hash, a look, a comparison and counts that others write too. That is wasted on a set
//! that is replaced before it reaches the disk. So the set of a file that was changed several times in the running
//! transaction is kept in a private block (`blocks`), which is changed in place from then on, and its inode waits
//! here. Before a commit, whoever asked for it shares what waits: it hashes each set once, and either finds a
//! block with that content, so that the private one is dropped and was never written, or makes the private one a
//! block that others find.
//!
//! # Who waits
//! The transaction, and not a time, tells: what is replaced within one is never written, however long that is, and
//! what is committed in between is. To be private and then shared costs about as much as to share some sets at
//! once, of which one that finds an equal block, so that nothing is allocated and nothing written, costs the
//! least. So an inode begins to wait when what its changes in one transaction have cost is as much ([`ENOUGH`]);
//! whatever comes after that, it has paid about twice as much as who knew beforehand, at most. A file that is
//! changed once in a transaction, as when a tree is labelled anew, never waits; nor does a first set.
//! Who waits does so until the next commit.
//!
//! # Invariants
//! - L.1: an inode that says that it waits is in a list, or in the hands of who has the turn, or no longer in
//!   memory; it is there once, and once more for each time that it was out of memory.
//! - L.2: a block without a hash that may be shared belongs to an inode that waits, or one that waited when the store
//!   crashed; that shares with its next change.
//! - L.3: no more than [`WAITING_MAX`] inodes wait, and each for a set of at most one block. Who does not get a
//!   place shares at once.
//!
//! # Against everything else
//! A private block is stored like any other with one user, in the same transaction as the inode that names it. So
//! every commit is a state in which all counts are exact, whether what waited was shared before it or not, and a
//! crash at any moment leaves one: what was not shared takes a block more, until it is changed or shared. To share
//! an inode's set is an operation like others: it holds the gate, so that it is in one transaction (J.1), and the
//! inode, so that of it and any other change of that inode one comes first:
//! - *set, chmod with an ACL*: before, and what is shared is the new set; after, and the block that was just
//!   shared is left as any other.
//! - *remove of the last attribute*: before, and there is nothing to share; after, and a user leaves.
//! - *rename, link, unlink*: they do not touch the set. *The end of an inode*: before, and its number leads to
//!   nothing (numbers of inodes are not used again); after, and it leaves like any user.
//! - *out of memory*: the inode is read again, its block by its record. That has no hash, so nobody finds the block,
//!   and it cannot find itself, until it is shared or changed (K.8).
//! - *two that share late*: take turns, so two inodes do not each move to the other's block, and who calls `sync`
//!   knows that what waited before is done, whoever does it.
//! - *another user of the block that is found*: under its lock; the cap of users is that of every share (K.2).
//! - *commit*: what begins to wait between the end of a turn and the closing of the gate is committed as it is,
//!   and shared by the next commit; the thread that commits in time is told that there is something to do.
//! - *abort, a store that is read-only*: nothing becomes durable any more, so nothing is shared; what is in memory
//!   stays as it is.
//! - *no room*: to share late takes none. An operation that is refused for want of room is tried again after what
//!   waits has been shared, so that nobody sees `ENOSPC` because of copies that are about to go.
//! - *EIO*: a block that cannot be read is not found; a set that cannot be read does not wait any more.
//!
//! # Locks
//! The turn: before the gate, and so with nothing else held. The lists: leaves.
//!
//! Source: `corewalk::tmpfs`, which shares late by time alone.

use std::sync::Arc;

use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::primitives::{SHARDS, shard_index};
use corewalk_sync::{Budget, Mutex, OwnLine};

use crate::blocks::{Block, Blocks, Stored, When};
use crate::content::BLOCK_BYTES;
use crate::inode::State;
use crate::journal::{Journal, View};
use crate::table::Table;

/// The most inodes that wait: 32 MiB of sets, as much as a transaction has by default.
const WAITING_MAX: u64 = 8192;
/// What a set costs that is shared at once, if it finds a block, and if it has to make one: then nothing was saved, and
/// the next one is likely to miss as well.
const FOUND: u32 = 1;
const MADE: u32 = 32;
/// From which cost on an inode waits. Twenty changes of each file that all find their blocks are better shared at once.
const ENOUGH: u32 = 32;
/// How many are shared in one step, which a commit of somebody else waits for.
const BATCH: usize = 32;

/// The inodes whose sets are to be shared, and what that needs. See the module's text.
pub(crate) struct Late {
    is_on: bool,
    journal: Arc<Journal>,
    table: Arc<Table>,
    blocks: Arc<Blocks>,
    space: Arc<Budget>,
    lists: Box<[OwnLine<Mutex<Vec<u64>>>]>,
    /// How many wait, those included who are in the hands of who has the turn.
    count: AtomicU64,
    turn: Mutex<()>,
}

impl Late {
    /// Returns empty lists.
    pub(crate) fn new(
        is_on: bool,
        journal: Arc<Journal>,
        (table, blocks, space): (Arc<Table>, Arc<Blocks>, Arc<Budget>),
    ) -> Late {
        Late {
            is_on,
            journal,
            table,
            blocks,
            space,
            lists: (0..SHARDS).map(|_| OwnLine::default()).collect(),
            count: AtomicU64::new(0),
            turn: Mutex::new(()),
        }
    }

    /// Returns when the set of an inode is to be shared if it becomes `set`.
    pub(crate) fn when(&self, state: &State, set: &[u8], view: &View) -> When {
        if !self.is_on || set.len() as u64 > BLOCK_BYTES {
            return When::AtOnce;
        }
        let is_private = state.block.as_ref().is_some_and(|block| block.is_private());
        let (tid, cost) = state.shared_at;
        let has_paid = tid == view.tid && cost >= ENOUGH && self.len() < WAITING_MAX;
        if state.is_waiting && is_private || has_paid { When::Late } else { When::AtOnce }
    }

    /// Notes how the set of the inode `ino`, whose `state` is locked, was stored.
    pub(crate) fn note(&self, ino: u64, state: &mut State, stored: Stored, view: &View) {
        let cost = match stored {
            Stored::Found => FOUND,
            Stored::Made => MADE,
            Stored::Private => return self.push(ino, state),
        };
        let (tid, before) = state.shared_at;
        state.shared_at =
            (view.tid, if tid == view.tid { before.saturating_add(cost) } else { cost });
    }

    /// Lets the inode `ino` wait, whose set is private, unless that is not to be shared at all.
    fn push(&self, ino: u64, state: &mut State) {
        let is_short = |block: &Arc<Block>| block.content().len() as u64 <= BLOCK_BYTES;
        let can_wait = self.is_on && self.blocks.is_sharing();
        if !can_wait || state.is_waiting || !state.block.as_ref().is_some_and(is_short) {
            return;
        }
        state.is_waiting = true;
        // ORDERING: Relaxed. Who must know of this one knows by other means that it came before.
        self.count.fetch_add(1, Ordering::Relaxed);
        self.lists[shard_index()].lock().push(ino);
    }

    /// Returns how many wait.
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        // ORDERING: Relaxed. See `push`.
        self.count.load(Ordering::Relaxed)
    }

    /// Shares what waited before this call. Nothing may be held, nor a pass.
    pub(crate) fn share(&self) {
        if self.len() == 0 {
            return;
        }
        let _turn = self.turn.lock();
        for list in &self.lists {
            let inos = std::mem::take(&mut *list.lock());
            for inos in inos.chunks(BATCH) {
                // If nothing can be changed any more, nothing becomes durable either.
                if let Ok(view) = self.journal.change() {
                    inos.iter().for_each(|ino| self.share_one(*ino, &view));
                }
                // ORDERING: Relaxed. See `push`.
                self.count.fetch_sub(inos.len() as u64, Ordering::Relaxed);
            }
        }
    }

    fn share_one(&self, ino: u64, view: &View) {
        let found = self.table.find(ino);
        let is_in_memory = found.is_some();
        // What is gone is `ESTALE`.
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

    /// Takes the block of attributes of an inode out, if it has one that can be read.
    fn block_of(&self, state: &mut State, view: &View) -> Option<Arc<Block>> {
        match (state.block.take(), state.record.xattr) {
            (_, 0) => None,
            (None, id) => self.blocks.get(id, view).ok(),
            (block, _) => block,
        }
    }
}
