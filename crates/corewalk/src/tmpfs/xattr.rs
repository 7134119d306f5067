//! Extended attributes and ACLs of inodes. Equal sets are stored once.
//!
//! Attributes of the classes `user`, `trusted` and `security` are stored as given. ACLs are stored
//! parsed (`FileSystem::get_acl`), because the mode and the access ACL change each other.
//!
//! # Mechanism
//! An inode has one set of extended attributes and ACLs (`set`), behind a pointer. Up to 1024
//! inodes share one set (`blocks`), so a million files with one security label need a thousand
//! copies.
//! - The first change in an epoch: the new set is de-duplicated immediately, that is, replaced by
//!   an equal shared set. An epoch ends when space runs out, and at `FileSystem::maintain` (called
//!   once per second) and `Tmpfs::share_xattrs`.
//! - Further changes in the epoch: the inode gets a private set. If other inodes use its old set,
//!   the private set is a copy. The private set is changed in place, and de-duplicated when the
//!   epoch ends. At most [`QUEUED_MAX`] inodes wait for that.
//! - Sets over [`SHARED_BYTES_MAX`] are not shared, which bounds the cost of a copy. With
//!   `share_xattrs` off no set is shared.
//!
//! # Cost
//! Sharing saves memory if many files have equal sets, and makes reading faster. Setting a short
//! value takes longer, because of the search for an equal set. The index takes 2.1 MB from the
//! first shared set on. Measurements: `docs/results/xattr-sharing.md`.
//!
//! # Charges
//! The budget of pages is also charged for each attribute (name, value and 48 bytes) and each ACL
//! (its stored form). A shared set is charged once. A change that makes a shared set private needs
//! space. So `removexattr`, and chmod of a file with an ACL, may fail with `ENOSPC`, as in ext4.
//! Before that, all queued sets are de-duplicated. A failed call has changed nothing.
//!
//! # Invariants
//! - X.2: the bytes of every private set of attributes are charged to the budget of pages. The
//!   bytes of every block (a shared set) are charged once.
//! - X.3: an inode without attributes has no set.
//!
//! # Limits
//! Attribute names of an unknown class, or without a suffix, are refused. So are `user` attributes
//! of anything but a regular file or a directory (xattr(7)).
//!
//! Source: xattr(7), setxattr(2), getxattr(2), listxattr(2); Linux `fs/ext4/xattr.c`.

use std::sync::{Arc, OnceLock};

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Budget, CachePadded};
use corewalk_mbcache::{Change as ChangeInEpoch, Deferral};

use crate::Errno;
use crate::attr::Timespec;

use blocks::{Blocks, FindResult, IndexCounts, Leave, Released};
use set::{Effect, Secret};

pub(super) use blocks::Block;
pub(super) use set::{Change, Set};

mod blocks;
mod set;

/// The largest set that is shared, in bytes. A set with one value of the largest size is still
/// shared.
const SHARED_BYTES_MAX: u64 = 2 * 65536;
/// Maximum number of inodes that wait for the de-duplication of their set (about a second). Enough
/// for 4 threads that change the attributes of 1000 files each.
const QUEUED_MAX: u64 = 4096;

pub(super) type OwnSet = Option<Arc<Block>>;

/// The extended attributes and ACLs of all inodes of a tmpfs.
///
/// # Invariants
/// X.2 and X.3 of the module documentation.
pub(super) struct Xattrs {
    is_sharing: bool,
    secret: Secret,
    /// The table of shared sets is made when the first set is shared. None if it could not be made.
    blocks: OnceLock<Option<Blocks>>,
    /// Inodes whose private set the next `maintain` replaces by an equal shared set, if there is
    /// one.
    queued: Deferral<u64>,
    /// The time at which the running epoch began, in milliseconds since 1970. Each `maintain`
    /// begins a new one.
    epoch_ms: CachePadded<AtomicU64>,
}

impl Xattrs {
    pub(super) fn new(is_sharing: bool, now: Timespec) -> Xattrs {
        Xattrs {
            is_sharing,
            secret: Secret::new(),
            blocks: OnceLock::new(),
            queued: Deferral::new(QUEUED_MAX),
            epoch_ms: CachePadded::new(AtomicU64::new(milliseconds(now))),
        }
    }

    /// Changes the set `own` of the inode `ino`, which the caller has locked. `changed` is the time
    /// of the inode's last change.
    ///
    /// # Errors
    /// `E2BIG` for a value that is too long; `EEXIST` and `ENODATA` as the kind of change requires;
    /// `ENOSPC` for too many names or lack of space. On failure the set is unchanged.
    pub(super) fn change(
        &self,
        own: &mut OwnSet,
        ino: u64,
        change: Change<'_>,
        changed: Timespec,
        now: Timespec,
        space: &Budget,
    ) -> Result<(), Errno> {
        let Some(block) = own else {
            let mut set = Set::default();
            if set.effect(change)? != Effect::Nothing {
                set.apply(change);
                *own = self.first(set, space)?;
            }
            return Ok(());
        };
        let Effect::Bytes(before, after) = block.set().effect(change)? else { return Ok(()) };
        let can_share = self.is_sharing && after <= SHARED_BYTES_MAX;
        let is_deferred = can_share && self.defers(block, changed, now);
        if after > 0 && can_share && !is_deferred {
            let mut set = block.set().clone();
            set.apply(change);
            // `Xattrs::first` may charge the new set while the old one is still charged. Without
            // space for both, change the old set in place, which charges only the difference.
            if let Ok(new) = self.first(set, space) {
                self.drop_set(own, space);
                *own = new;
                return Ok(());
            }
        }
        let result = self.change_private(own, change, (before, after), space);
        if is_deferred {
            self.queue(own, ino);
        } else {
            self.share(own, space);
        }
        result
    }

    /// Changes a set in place if only this inode uses it. Otherwise the inode gets a private,
    /// changed copy. `before` and `after` are the bytes of the set.
    ///
    /// # Errors
    /// `ENOSPC` if there is no space for the change. The attributes are then unchanged, but perhaps
    /// no longer shared.
    fn change_private(
        &self,
        own: &mut OwnSet,
        change: Change<'_>,
        (before, after): (u64, u64),
        space: &Budget,
    ) -> Result<(), Errno> {
        let Some(block) = own else { return Ok(()) };
        if !block.is_private() && !self.make_private_if_last(own) {
            space.take(after)?;
            self.copy(own, change, space);
            return Ok(());
        }
        space.exchange(before, after)?;
        if after == 0 {
            *own = None;
            return Ok(());
        }
        let block =
            own.as_mut().and_then(Arc::get_mut).expect("only one inode has a private block");
        block.set.apply(change);
        Ok(())
    }

    /// Returns an equal shared block if there is one, otherwise a new block that is charged to
    /// `space`. `set` is not empty.
    ///
    /// # Errors
    /// `ENOSPC` if there is no space.
    pub(super) fn first(&self, mut set: Set, space: &Budget) -> Result<OwnSet, Errno> {
        let bytes = set.bytes();
        if let Some(blocks) = self.blocks_for(bytes) {
            let key = set.key(&self.secret);
            match blocks.find(key, &set) {
                FindResult::Block(block) => return Ok(Some(block)),
                FindResult::NotFound => {
                    space.take(bytes)?;
                    return Ok(Some(blocks.enter(key, Block::private(set))));
                }
                FindResult::Collisions => {}
            }
        }
        space.take(bytes)?;
        Ok(Some(Arc::new(Block::private(set))))
    }

    pub(super) fn drop_set(&self, own: &mut OwnSet, space: &Budget) {
        let Some(block) = own.take() else { return };
        let bytes = block.set().bytes();
        let is_last = block.is_private()
            || self.blocks().is_none_or(|blocks| {
                matches!(blocks.release(block, Leave::Always), Released::Last(_))
            });
        if is_last {
            space.give_back(bytes);
        }
    }

    /// Ends the epoch and empties the queue of inodes. `handle` gets these inodes, and calls
    /// [`Xattrs::share_queued`] for each.
    pub(super) fn end_epoch(&self, now: Timespec, handle: impl FnOnce(Vec<u64>)) {
        // ORDERING: Relaxed. A thread may still load the start of the old epoch. It may then queue
        // an inode at its first change in the new epoch. That is harmless: this or the next
        // `end_epoch` de-duplicates the inode's set.
        self.epoch_ms.store(milliseconds(now), Ordering::Relaxed);
        self.queued.share(handle);
    }

    pub(super) fn queued(&self) -> u64 {
        self.queued.len()
    }

    pub(super) fn share_queued(&self, own: &mut OwnSet, space: &Budget) {
        let Some(block) = own.as_mut().and_then(Arc::get_mut) else { return };
        if std::mem::take(&mut block.is_queued) {
            self.share(own, space);
        }
    }

    fn share(&self, own: &mut OwnSet, space: &Budget) {
        let Some(block) = own.as_mut().filter(|block| block.is_private()) else { return };
        let block = Arc::get_mut(block).expect("only one inode has a private block");
        let bytes = block.set.bytes();
        let Some(blocks) = self.blocks_for(bytes) else { return };
        block.is_queued = false;
        let key = block.set.key(&self.secret);
        match blocks.find(key, &block.set) {
            FindResult::Block(shared) => {
                space.give_back(bytes);
                *own = Some(shared);
            }
            FindResult::NotFound => {
                *own = own.take().and_then(Arc::into_inner).map(|b| blocks.enter(key, b))
            }
            FindResult::Collisions => {}
        }
    }

    /// Returns the statistics. They are exact only while no set changes.
    pub(super) fn stats(&self) -> XattrStats {
        let blocks = self.blocks.get().and_then(Option::as_ref);
        XattrStats { shared_sets: blocks.map_or(0, Blocks::len), waiting: self.queued() }
    }

    pub(super) fn index_counts(&self) -> IndexCounts {
        let blocks = self.blocks.get().and_then(Option::as_ref);
        blocks.map_or_else(IndexCounts::default, Blocks::counts)
    }

    fn make_private_if_last(&self, own: &mut OwnSet) -> bool {
        let (Some(blocks), Some(block)) = (self.blocks(), own.take()) else { return false };
        match blocks.release(block, Leave::IfLast) {
            Released::Last(block) => {
                *own = Some(Arc::new(block));
                true
            }
            Released::Shared(block) => {
                *own = Some(block);
                false
            }
            Released::Left => false,
        }
    }

    /// Replaces a shared set by a private, changed copy. The caller has charged the copy to the
    /// budget.
    fn copy(&self, own: &mut OwnSet, change: Change<'_>, space: &Budget) {
        let Some(shared) = own else { return };
        let mut copy = Block::private(shared.set().clone());
        copy.set.apply(change);
        self.drop_set(own, space);
        if !copy.set.is_empty() {
            *own = Some(Arc::new(copy));
        }
    }

    fn defers(&self, block: &Block, changed: Timespec, now: Timespec) -> bool {
        // ORDERING: Relaxed. See `end_epoch`.
        let epoch_ms = self.epoch_ms.load(Ordering::Relaxed);
        // An epoch lasts about one second. Only a second change of a set in one epoch is queued. If
        // `changed` is after `now`, the clock was set back, or a caller has set the time. Then
        // treat the change as the first.
        let is_again = (epoch_ms..=milliseconds(now)).contains(&milliseconds(changed));
        self.queued.defers(match (block.is_queued, is_again) {
            (true, _) => ChangeInEpoch::Waiting,
            (false, true) => ChangeInEpoch::Again,
            (false, false) => ChangeInEpoch::First,
        })
    }

    #[inline]
    fn queue(&self, own: &mut OwnSet, ino: u64) {
        let Some(block) = own.as_mut().filter(|block| block.is_private()) else { return };
        let block = Arc::get_mut(block).expect("only one inode has a private block");
        if !std::mem::replace(&mut block.is_queued, true) {
            self.queued.push(ino);
        }
    }

    fn blocks_for(&self, bytes: u64) -> Option<&Blocks> {
        if bytes <= SHARED_BYTES_MAX { self.blocks() } else { None }
    }

    fn blocks(&self) -> Option<&Blocks> {
        let blocks = || self.blocks.get_or_init(Blocks::new).as_ref();
        if self.is_sharing { blocks() } else { None }
    }
}

/// Statistics of extended attributes and ACLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XattrStats {
    /// The number of shared sets of extended attributes. Up to 1024 inodes use one stored set.
    pub shared_sets: u64,
    /// Inodes with a private set that are queued for de-duplication.
    pub waiting: u64,
}

fn milliseconds(time: Timespec) -> u64 {
    (time.secs.max(0) as u64).saturating_mul(1000).saturating_add(u64::from(time.nanos) / 1_000_000)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
