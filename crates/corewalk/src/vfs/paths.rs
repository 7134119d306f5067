//! A path lock keeps the path of a file valid during a call of the back end that has asked for this
//! path.
//!
//! A back end by path acts on whatever its path leads to. If a directory on the path is renamed
//! during the call, the path leads nowhere, or to another file (trap X1 in `traps.md`). So calls
//! and renames exclude each other:
//! - A call that asks for a path takes a shared lock on the inode and on every directory above it.
//!   It holds these locks until the back end has answered.
//! - A rename or removal takes an exclusive lock on the inodes that lose or change a name, until
//!   the cache shows the change. So no path is built from a name that the back end no longer has.
//!
//! Each file system has one table of locks, with an entry for each running call, rename and
//! removal. The entry of a call lists the inodes on its path, and a rename searches these entries
//! for the inode that it moves. A call searches the entries of renames for the inodes on its path.
//! A call also holds the last dentry of its path, so no directory on the path can be evicted and
//! loaded again as another inode.
//!
//! # Guarantees
//! - L.1: while a call holds an inode's path lock, the back end does not rename or remove the inode
//!   or a directory above it. The cache shows each such change that was made before.
//! - L.2: a call that already holds a path lock waits only for renames that already have their path
//!   locks. A waiting rename holds no path lock.
//! - L.3: no starvation. A rename waits for each conflicting rename or call that arrived earlier. A
//!   call waits for its first path lock until each conflicting rename that arrived earlier has
//!   ended. For a second path lock, it overtakes waiting renames, as they may wait for its first.
//!
//! # Why no deadlock
//! - A rename with path locks takes no further path lock, so it ends.
//! - A call with a path lock waits only for renames that have theirs, so it ends too.
//! - All other waits are for a call or rename with a lower ticket (that arrived earlier).
//! - In-lookup and attribute locks are taken before a path lock, never after it.
//! - Two renames would deadlock if each moved a directory above the other's target. `InFlightMoves`
//!   (in `rename`) admits only one of them.
//!
//! # Locks
//! The mutex of the table of path locks is taken after in-lookup locks and before the lock
//! `topology` of the dentry tree. It is not held during calls of the back end.
//!
//! Source: libfuse `lib/fuse.c` (`get_path_wrlock`, `try_get_path2`), which locks each node of the
//! path.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use corewalk_base::{Condvar, Mutex};

use crate::Errno;
use crate::attr::FileKind;
use crate::dcache::Dcache;
use crate::dpath::{self, Chain};
use crate::fs::Addressing;
use crate::slot::{DentrySlot, InodeSlot};

pub(crate) struct Paths {
    /// Protected by its own mutex.
    table: Mutex<Table>,
    /// Calls wait here for renames and removals, under `table`.
    move_ended: Condvar,
    /// Renames and removals wait here for other renames, removals or calls, under `table`.
    any_ended: Condvar,
    addressing: Addressing,
    /// The prefix of hidden names. Clients cannot guess it.
    hidden_prefix: String,
}

/// The path locks that are held or waited for. All fields are protected by `Paths::table`.
#[derive(Default)]
struct Table {
    last_ticket: u64,
    calls: Vec<CallEntry>,
    /// Renames and removals that have their locks, or wait for them.
    moves: Vec<MoveEntry>,
    waiting_calls: u32,
    waiting_moves: u32,
    /// The open count of each inode. Used only for [`Addressing::PathOnly`].
    opens: HashMap<InodeSlot, u32>,
    hidden: HashMap<InodeSlot, Hidden>,
    hidden_count: u64,
}

pub(crate) struct Hidden {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
}

struct CallEntry {
    ticket: u64,
    is_granted: bool,
    inodes: Vec<InodeSlot>,
}

struct MoveEntry {
    ticket: u64,
    is_granted: bool,
    /// The inodes that lose or change a name in a rename or removal. If there is only one, the
    /// second is `InodeSlot::NONE`.
    moved: [InodeSlot; 2],
    /// The inodes on the paths of the directories in which the rename or removal changes a name.
    above: Vec<InodeSlot>,
}

/// A shared lock of an inode and of the directories above it, for one call of a back end. Other
/// calls can lock the same inodes; renames of these inodes wait.
#[must_use]
pub(crate) struct PathLock<'a> {
    paths: &'a Paths,
    ticket: u64,
    /// A reference on the last dentry of the path. Its drop may call `Paths::forget`, which takes
    /// the mutex `Paths::table`. So drop it without this mutex, after the call's entry has left the
    /// table.
    leaf: Option<Leaf<'a>>,
}

struct Leaf<'a> {
    dcache: &'a Dcache,
    slot: DentrySlot,
}

#[must_use]
pub(crate) struct MoveLock<'a> {
    paths: &'a Paths,
    ticket: u64,
    pub(crate) above: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    /// The call does not hold a path lock yet.
    First,
    /// The call already holds another path lock. A waiting rename may wait for that lock, so the
    /// call must not wait for the rename. It waits only for renames that have their path locks.
    Further,
}

impl Paths {
    pub(crate) fn new(addressing: Addressing) -> Option<Paths> {
        (addressing != Addressing::Number).then(|| Paths {
            table: Mutex::new(Table::default()),
            move_ended: Condvar::new(),
            any_ended: Condvar::new(),
            addressing,
            hidden_prefix: format!(".corewalk-hidden-{:016x}-", RandomState::new().hash_one(0)),
        })
    }

    /// Locks and returns a path of an inode, for a call of the back end. The lock keeps the path
    /// valid until it is dropped. Waits for renames and removals of the inode and of directories
    /// above it.
    ///
    /// # Errors
    /// `ENOENT` if the inode has no name.
    pub(crate) fn lock<'a>(
        &'a self,
        dcache: &'a Dcache,
        inode: InodeSlot,
        nesting: Nesting,
    ) -> Result<(Vec<u8>, PathLock<'a>), Errno> {
        let mut table = self.table.lock();
        let ticket = table.next_ticket();
        table.calls.push(CallEntry { ticket, is_granted: false, inodes: Vec::new() });
        drop(table);
        // If the inode has no path, this function returns an error. Then `lock` is dropped, which
        // removes this call from the table of path locks.
        let mut lock = PathLock { paths: self, ticket, leaf: None };
        loop {
            // Take and drop the reference on the path's last dentry without the table's lock.
            lock.leaf = dpath::hold_name(dcache, inode).map(|slot| Leaf { dcache, slot });
            let leaf = lock.leaf.as_ref().map(|leaf| leaf.slot);
            let mut table = self.table.lock();
            loop {
                let chain = match leaf {
                    Some(leaf) => dpath::chain_of_name(dcache, leaf, inode),
                    None => Some(self.hidden_chain(&table, inode)?),
                };
                // The name was removed, so try another one, or the hidden name of an unlinked open
                // file.
                let Some(Chain { path, inodes }) = chain else { break };
                let must_wait = table.moves.iter().any(|other| {
                    let is_before = nesting == Nesting::First && other.ticket < ticket;
                    (other.is_granted || is_before) && other.moves_any(&inodes)
                });
                let entry = table.call(ticket);
                entry.is_granted = !must_wait;
                let before = std::mem::replace(&mut entry.inodes, inodes);
                // The inode's path has changed while this call waited. Renames and removals may
                // have waited for an inode of the old path, so wake them.
                if table.call(ticket).inodes != before && table.waiting_moves > 0 {
                    self.any_ended.notify_all();
                }
                if !must_wait {
                    return Ok((path, lock));
                }
                table.waiting_calls += 1;
                self.move_ended.wait(&mut table);
                table.waiting_calls -= 1;
            }
        }
    }

    /// Takes the path locks of a rename or a removal. `moved` are the inodes that lose or change a
    /// name; if there is only one, the second is `InodeSlot::NONE`. Waits for calls with one of
    /// these inodes on their path, and for conflicting earlier renames and removals. The lock keeps
    /// the paths of the directories `above` valid.
    ///
    /// # Errors
    /// `ENOENT` if one of the directories has no name.
    pub(crate) fn lock_move(
        &self,
        dcache: &Dcache,
        above: &[InodeSlot],
        moved: [InodeSlot; 2],
    ) -> Result<MoveLock<'_>, Errno> {
        let mut table = self.table.lock();
        let ticket = table.next_ticket();
        table.moves.push(MoveEntry { ticket, is_granted: false, moved, above: Vec::new() });
        // If a directory has no path, this function returns an error. Then `lock` is dropped, which
        // removes this rename from the table of path locks.
        let mut lock = MoveLock { paths: self, ticket, above: Vec::new() };
        loop {
            let chains: Result<Vec<Chain>, Errno> =
                above.iter().map(|&inode| dpath::chain_of_inode(dcache, inode)).collect();
            let chains = match chains {
                Ok(chains) => chains,
                Err(error) => {
                    drop(table);
                    return Err(error);
                }
            };
            let inodes: Vec<InodeSlot> =
                chains.iter().flat_map(|it| it.inodes.iter().copied()).collect();
            let is_free = table.is_free_for(ticket, moved, &inodes);
            let entry = table.entry(ticket);
            (entry.is_granted, entry.above) = (is_free, inodes);
            if is_free {
                lock.above = chains.into_iter().map(|it| it.path).collect();
                return Ok(lock);
            }
            table.waiting_moves += 1;
            self.any_ended.wait(&mut table);
            table.waiting_moves -= 1;
        }
    }

    pub(crate) fn hides(&self) -> bool {
        self.addressing == Addressing::PathOnly
    }

    /// Counts an open of `inode`, before the back end opens the file. A failed open undoes it with
    /// [`Paths::count_close`].
    pub(crate) fn count_open(&self, inode: InodeSlot) {
        if self.hides() {
            *self.table.lock().opens.entry(inode).or_default() += 1;
        }
    }

    /// Counts a close of `inode`. Returns true if it was the last close of a file with a hidden
    /// name (unlinked or replaced while open).
    pub(crate) fn count_close(&self, inode: InodeSlot) -> bool {
        if !self.hides() {
            return false;
        }
        let mut table = self.table.lock();
        let Some(count) = table.opens.get_mut(&inode) else { return false };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        table.opens.remove(&inode);
        table.hidden.contains_key(&inode)
    }

    pub(crate) fn is_open(&self, inode: InodeSlot) -> bool {
        self.table.lock().opens.contains_key(&inode)
    }

    pub(crate) fn new_hidden_name(&self) -> Vec<u8> {
        let mut table = self.table.lock();
        table.hidden_count += 1;
        format!("{}{}", self.hidden_prefix, table.hidden_count).into_bytes()
    }

    pub(crate) fn is_hidden_name(&self, name: &[u8]) -> bool {
        self.hides() && name.starts_with(self.hidden_prefix.as_bytes())
    }

    /// Stores the new hidden name of `inode`. Returns its old hidden name, if there is one.
    pub(crate) fn hide(&self, inode: InodeSlot, hidden: Hidden) -> Option<Hidden> {
        self.table.lock().hidden.insert(inode, hidden)
    }

    pub(crate) fn is_hidden(&self, inode: InodeSlot) -> bool {
        self.hides() && self.table.lock().hidden.contains_key(&inode)
    }

    /// Takes the hidden name of `inode` from the table, if there is one. The caller removes the
    /// returned name from the back end.
    pub(crate) fn take_hidden(&self, inode: InodeSlot) -> Option<Hidden> {
        if !self.hides() {
            return None;
        }
        self.table.lock().hidden.remove(&inode)
    }

    /// Drops an inode's count of opens and its hidden name, when the cache evicts the inode.
    /// Returns the hidden name.
    pub(crate) fn forget(&self, inode: InodeSlot) -> Option<Hidden> {
        if !self.hides() {
            return None;
        }
        let mut table = self.table.lock();
        table.opens.remove(&inode);
        table.hidden.remove(&inode)
    }

    pub(crate) fn take_all_hidden(&self) -> Vec<Hidden> {
        self.table.lock().hidden.drain().map(|(_, hidden)| hidden).collect()
    }

    fn hidden_chain(&self, table: &Table, inode: InodeSlot) -> Result<Chain, Errno> {
        let hidden = table.hidden.get(&inode).ok_or(Errno::NOENT)?;
        Ok(Chain { path: hidden.path(), inodes: vec![inode] })
    }
}

impl Hidden {
    pub(crate) fn path(&self) -> Vec<u8> {
        [b"/", &self.name[..]].concat()
    }
}

impl Table {
    fn next_ticket(&mut self) -> u64 {
        self.last_ticket += 1;
        self.last_ticket
    }

    fn call(&mut self, ticket: u64) -> &mut CallEntry {
        self.calls.iter_mut().find(|it| it.ticket == ticket).expect("the ticket has an entry")
    }

    fn entry(&mut self, ticket: u64) -> &mut MoveEntry {
        self.moves.iter_mut().find(|it| it.ticket == ticket).expect("the ticket has an entry")
    }

    /// Returns true if a rename or a removal can get its path locks now. `ticket` is its number in
    /// the order of arrival. `moved` are the inodes that it moves or removes, and `above` those on
    /// the paths of its directories.
    ///
    /// Only an operation with path locks or a lower ticket keeps this rename or removal from its
    /// path locks. It must also be one of these:
    /// - a call with one of `moved` on its path;
    /// - a rename or removal that moves one of `moved` or `above`;
    /// - a rename or removal with one of `moved` on the paths of its directories.
    fn is_free_for(&self, ticket: u64, moved: [InodeSlot; 2], above: &[InodeSlot]) -> bool {
        let is_moved =
            |inodes: &[InodeSlot]| moved.iter().any(|it| !it.is_none() && inodes.contains(it));
        let is_before = |other: &&MoveEntry| {
            other.ticket != ticket && (other.is_granted || other.ticket < ticket)
        };
        let crosses = |other: &MoveEntry| {
            other.moves_any(above) || other.moves_any(&moved) || is_moved(&other.above)
        };
        let holds = |call: &CallEntry| call.is_granted || call.ticket < ticket;
        !self.calls.iter().any(|call| holds(call) && is_moved(&call.inodes))
            && !self.moves.iter().filter(is_before).any(crosses)
    }
}

impl MoveEntry {
    fn moves_any(&self, inodes: &[InodeSlot]) -> bool {
        self.moved.iter().any(|it| !it.is_none() && inodes.contains(it))
    }
}

impl Drop for PathLock<'_> {
    fn drop(&mut self) {
        let mut table = self.paths.table.lock();
        let at = table.calls.iter().position(|call| call.ticket == self.ticket);
        let call = table.calls.swap_remove(at.expect("a lock has an entry until it is dropped"));
        // Only renames and removals wait for calls.
        let is_waited_for =
            table.moves.iter().any(|it| !it.is_granted && it.moves_any(&call.inodes));
        drop(table);
        if is_waited_for {
            self.paths.any_ended.notify_all();
        }
    }
}

impl Drop for MoveLock<'_> {
    fn drop(&mut self) {
        let mut table = self.paths.table.lock();
        let at = table.moves.iter().position(|it| it.ticket == self.ticket);
        table.moves.swap_remove(at.expect("a lock has an entry until it is dropped"));
        let (calls, moves) = (table.waiting_calls, table.waiting_moves);
        drop(table);
        if calls > 0 {
            self.paths.move_ended.notify_all();
        }
        if moves > 0 {
            self.paths.any_ended.notify_all();
        }
    }
}

impl Drop for Leaf<'_> {
    fn drop(&mut self) {
        self.dcache.put(self.slot);
    }
}
