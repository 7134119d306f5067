//! Sets of attributes that are shared late: when a transaction is about to be committed.
//!
//! To share a set takes a hash, a look, a comparison and counts that others write too. That is wasted on a set
//! that is replaced before it reaches the disk. So the set of a file that is changed more than once in the running
//! transaction is kept in a private block (`blocks`), which is changed in place from then on, and its inode waits
//! here. Before a commit, whoever asked for it shares what waits: it hashes each set once, and either finds a
//! block with that content, so that the private one is dropped and was never written, or makes the private one a
//! block that others find. (Not before those that a change of names asks for, with `dirsync`, and those of a transaction
//! that is full: what waits is committed as it is then, and goes on to wait.) The lowest numbers come first: of two that
//! are equal the older one stays, in whose place the disk has something already, and of the younger one there is mostly
//! nothing to remove.
//!
//! # Who waits
//! The transaction, and not a time, tells: what is replaced within one is never written, however long that is, and
//! what is committed in between is. So a set that replaces another one for the second time in a transaction begins to
//! wait, until the next commit: it is likely to be replaced again, and to copy it takes less time than to find an equal
//! one. A first set never waits, nor does a file that is changed once in each transaction, as when a tree is labelled
//! anew. A file that was changed more than once in a transaction while it waited the last time is *busy*: it begins to
//! wait with its first change, if hardly anybody has its block ([`FEW_USERS`]). That ends when it waits and is not changed
//! so. Where many have the block it is likely to find another one, which is cheaper than a copy; then it is the second
//! change even so.
//!
//! That is so as long as the copies are in the processors' caches. If one thread, or all together, have let many wait
//! ([`CACHED_MAX`]), and many have the block that a file is about to leave ([`FEW_USERS`]), it is likely to find another one:
//! fewer contents are then in use at once than there would be copies, so it is shared at once, and the blocks that the last
//! commit wrote stay as they are. Whose block hardly anybody has is likely to find none, and waits even so.
//!
//! Processor time of 50,000 sets by each of 1, 2 and 4 threads, with a commit, over that of a store that does not share:
//! medians of the ratios of 16 rounds in which all took turns (of the last two columns of the last row 61, 31 and 31), on
//! two processors with much else to do, so that 5 % mean nothing, by a program that is not in the tree. *512*: so many could
//! wait, whoever had changed them, none was busy, and who came first was shared first:
//!
//! | files of each | values | at once | 512 | this |
//! |---|---|---|---|---|
//! | 100 | 10 | 1.15, 1.23, 1.39 | 0.95, 0.98, 0.98 | 0.93, 0.96, 0.98 |
//! | 100 | 100 | 1.47, 1.66, 1.48 | 1.02, 1.00, 1.01 | 0.99, 1.02, 1.02 |
//! | 100 | 1000 | 1.43, 1.55, 1.63 | 1.05, 1.01, 1.01 | 1.02, 0.98, 0.98 |
//! | 1000 | 10 | 0.80, 1.03, 0.77 | 0.86, 1.03, 0.77 | 0.80, 1.02, 0.72 |
//! | 1000 | 100 | 0.88, 0.93, 0.70 | 0.91, 1.00, 0.76 | 0.92, 0.99, 0.73 |
//! | 1000 | 1000 | 1.27, 1.27, 1.07 | 1.01, 1.10, 0.97 | 1.00, 1.08, 0.99 |
//!
//! Between, with one thread and 10 values: 400 files 0.95 at once, 0.90, 0.95; 600: 0.95, 0.93, 0.97; 1500: 0.73, 0.81, 0.75
//! (lower quartiles of 24 rounds). There is no number that is best for both ends, since it is the mixture that costs.
//!
//! Where there are as many values as files, a file costs in each transaction what it does not without sharing. With 1000 of
//! both, one thread and 50 changes, medians of 60 rounds, in microseconds: 0.3 of 2.9 for the first two changes (the block
//! is taken out of the index), 0.7 to share it, and 0.1 to 0.3 of 5.7 for the commit (records of users and of what is
//! removed beside a third fewer contents), of 39 in all; the other changes take the same. To share takes 2 where the content
//! is in another processor's cache.
//!
//! # Invariants
//! - L.1: an inode that says that it waits is in a list, or in the hands of who has the turn, or no longer in
//!   memory; it is there once, and once more for each time that it was out of memory.
//! - L.2: a block without a hash that may be shared belongs to an inode that waits, or one that waited when the store
//!   crashed; that shares with its next change.
//! - L.3: no more than [`WAITING_MAX`] inodes wait, but for one more of each thread that looks at the same time, and each
//!   for a set of at most one block. Who does not get a place shares at once.
//! - L.4: a file that is changed once in each transaction does not wait, but for the first one after it was busy.
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
//! - *commit*: what begins to wait between the beginning of a turn and the closing of the gate is committed as it is,
//!   and shared by the next turn; the thread that commits in time is told that there is something to do.
//! - *abort, a store that is read-only*: nothing becomes durable any more, so nothing is shared; what is in memory
//!   stays as it is.
//! - *no room*: to share late takes none. An operation that the budget of blocks has refused is tried again after what
//!   waits has been shared, so that nobody sees `ENOSPC` because of copies that are about to go.
//! - *EIO*: a block that cannot be read is not found; a set that cannot be read does not wait any more.
//!
//! # Locks
//! The turn: before the gate, and so with nothing else held. The lists: leaves.
//!
//! Source: `corewalk::tmpfs`, which shares late by time alone.

use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread::available_parallelism;
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{Budget, Mutex, OwnLine};

use crate::blocks::{Block, Blocks, When};
use crate::content::BLOCK_BYTES;
use crate::inode::State;
use crate::journal::{Journal, View};
use crate::table::Table;

/// The most inodes that wait: 32 MiB of sets, as much as a transaction has by default.
const WAITING_MAX: u64 = 8192;
/// How many may wait because of one thread, 1 MiB of sets, before it matters whether there is somebody to share with:
/// as much as the second-level cache of a processor holds. So many times the processors may wait because of all.
const CACHED_MAX: u64 = 256;
/// With how many users a block saves little. With 8, the last who share are soon all private.
const FEW_USERS: u32 = 4;
/// How many are shared in one step, which a commit of somebody else waits for.
const BATCH: usize = 32;

/// The inodes whose sets are to be shared, and what that needs. See the module's text.
pub(crate) struct Late {
    is_on: bool,
    journal: Arc<Journal>,
    table: Arc<Table>,
    blocks: Arc<Blocks>,
    space: Arc<Budget>,
    lists: Box<[OwnLine<List>]>,
    /// How many wait, those included who are in the hands of who has the turn.
    count: AtomicU64,
    /// How many fit into the caches of all processors.
    cached_max: u64,
    turn: Mutex<()>,
}

/// Those who wait because of one thread, or a few.
#[derive(Default)]
struct List {
    /// The number of the block that each had when it began to, and of the inode.
    inos: Mutex<Vec<(u64, u64)>>,
    /// How many there are.
    len: AtomicU64,
}

impl Late {
    /// Returns empty lists.
    pub(crate) fn new(
        is_on: bool,
        journal: Arc<Journal>,
        (table, blocks, space): (Arc<Table>, Arc<Blocks>, Arc<Budget>),
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

    /// Returns when the set of an inode is to be shared if it becomes `set`.
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

    /// Returns true if one more set of this thread fits into the processors' caches, with those that wait.
    fn has_cache(&self) -> bool {
        // ORDERING: Relaxed. A hint: one of another thread may come meanwhile.
        let of_thread = self.lists[shard_index()].len.load(Ordering::Relaxed);
        of_thread < CACHED_MAX && self.len() < self.cached_max
    }

    /// Notes that the set of the inode `ino`, whose `state` is locked, has replaced another one.
    pub(crate) fn note(&self, ino: u64, state: &mut State, view: &View) {
        // What waits since an earlier transaction is changed for the first time in this one.
        let is_again = std::mem::replace(&mut state.changed_at, view.tid) == view.tid;
        if state.block.as_ref().is_some_and(|block| block.is_private()) {
            match state.is_waiting {
                true => state.is_busy |= is_again,
                false => self.push(ino, state),
            }
        }
    }

    /// Lets the inode `ino` wait, whose set is private and which does not wait yet, unless that is not to be shared at all.
    fn push(&self, ino: u64, state: &mut State) {
        let is_short = |block: &&Arc<Block>| block.content().len() as u64 <= BLOCK_BYTES;
        let can_wait = self.is_on && self.blocks.is_sharing();
        let Some(block) = state.block.as_ref().filter(|block| can_wait && is_short(block)) else {
            return;
        };
        let id = block.id();
        (state.is_waiting, state.is_busy) = (true, false);
        // ORDERING: Relaxed. Who must know of this one knows by other means that it came before.
        self.count.fetch_add(1, Ordering::Relaxed);
        let list = &self.lists[shard_index()];
        let mut inos = list.inos.lock();
        inos.push((id, ino));
        // ORDERING: Relaxed. It is changed under the lock; who reads it without takes it for a hint.
        list.len.store(inos.len() as u64, Ordering::Relaxed);
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
        let mut inos: Vec<_> = self.lists.iter().flat_map(|list| list.take()).collect();
        inos.sort_unstable();
        for inos in inos.chunks(BATCH) {
            // If nothing can be changed any more, nothing becomes durable either.
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

impl List {
    fn take(&self) -> Vec<(u64, u64)> {
        let mut inos = self.inos.lock();
        // ORDERING: Relaxed. As in `push`.
        self.len.store(0, Ordering::Relaxed);
        std::mem::take(&mut *inos)
    }
}
