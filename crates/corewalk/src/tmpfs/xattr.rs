//! Extended attributes and ACLs: what an inode has, and how equal sets of them are stored once.
//!
//! Attributes of the classes `user`, `trusted` and `security` are kept as they are given. ACLs
//! are kept parsed, because the mode and the access ACL change each other; the attributes
//! `system.posix_acl_*` are therefore no attributes here (see `FileSystem::get_acl`).
//!
//! # How it works
//! All that an inode has is one set (`set`) behind one pointer. A million files with one security label
//! have a thousand copies of it, of 1024 users each (`blocks`).
//!
//! - The first set of an inode is shared at once: it is hashed and looked for, and only if nobody has it
//!   is memory taken.
//! - A change of an inode that was left alone for 100 ms looks for the new set in the same way.
//! - A change soon after another one makes a private copy, or takes the set out if the inode is its only
//!   user. A private set is changed in place. It is shared again when the inode was left alone for a
//!   while (`deferred`): a set that is about to be replaced cannot pay for being shared.
//! - What waits when nothing is changed any more is shared by `FileSystem::maintain`, which a server calls.
//! - Not shared: sets over [`SHARED_BYTES_MAX`], which also bounds what a copy costs; and all of them
//!   with `share_xattrs` off.
//!
//! # What it costs and saves
//! Time is over that without sharing. Of xattr-bench: `docs/results/xattr.txt`, rows `store=tmpfs`. All else: runs of
//! `examples/xattr_sharing.rs`, one thread, with machine and how often in `docs/results/xattr-sharing.md`.
//!
//! - The workload of xattr-bench (F of 100 and 1000, V of 10 to 1000, values of 3,900 bytes, up to four threads):
//!   1.00 to 1.03.
//! - Lost: the first label of each of 100,000 files takes 1.3 to 1.5; another label after a rest 2.5 to 2.8; one at
//!   once after the first, and sharing it later, 3.3 to 3.7. Nothing is saved in time by a hit of a short value:
//!   to hash, find, compare and count costs more than to copy. Until something is to be shared there is no index,
//!   then it takes 2.1 MB.
//! - Won: reading labels of 100,000 files at random takes 0.50 to 0.56, since the values are in the processor's
//!   caches. A million files with one label of 48 bytes take 2.3 bytes each for it, index and all, 0.2 without the
//!   index; without sharing they take 160.
//!
//! # What is charged
//! Names, values and ACLs in their stored form, byte by byte, and 48 bytes for each attribute, to the same
//! budget as pages, so that attributes cannot take memory without bound where file data cannot. A shared set is charged once.
//! So what makes a shared set private takes room: also `removexattr` and chmod of a file with an ACL may
//! say `ENOSPC`, as in ext4, and then nothing has changed. Before that, what waits to be shared is.
//!
//! # Invariants
//! - X.2: every private set, and every block once, has its bytes taken from the budget.
//! - X.3: a set that an inode points at is not empty.
//!
//! # What it refuses
//! Classes it does not know, and names that are only a class. `user` attributes of anything but a
//! regular file or a directory, as xattr(7) says. Of locks, see `blocks` and `deferred`: the sets
//! themselves are part of the inode, and to read one takes no other lock.
//!
//! Source: xattr(7), setxattr(2), getxattr(2), listxattr(2); Linux `fs/ext4/xattr.c`.

use std::sync::{Arc, OnceLock};

use corewalk_base::Budget;

use crate::Errno;
use crate::attr::{FileKind, Timespec};

use blocks::{Blocks, Found, Leave, Released};
use deferred::{DELAY_MS, Deferred};
use set::{Effect, NAME_BYTES_MAX, Secret};

pub(super) use blocks::Block;
pub(super) use set::{Change, Set};

mod blocks;
mod deferred;
mod set;

/// The most bytes of a set that is shared. One value of the greatest length fits.
const SHARED_BYTES_MAX: u64 = 2 * 65536;
/// The classes that are kept.
const CLASSES: [&[u8]; 3] = [USER, b"trusted.", b"security."];
/// The class of attributes that belong to users.
const USER: &[u8] = b"user.";

/// What an inode points at: None if it has no attributes.
pub(super) type Own = Option<Arc<Block>>;

/// The sets of attributes of a file system.
///
/// # Invariants
/// X.2, X.3.
pub(super) struct Xattrs {
    is_sharing: bool,
    secret: Secret,
    /// Made for the first set that is to be shared; None if that failed.
    blocks: OnceLock<Option<Blocks>>,
    deferred: Deferred,
}

impl Xattrs {
    /// Returns the sets of a file system in which no inode has any.
    pub(super) fn new(is_sharing: bool) -> Xattrs {
        let (secret, deferred) = (Secret::new(), Deferred::new());
        Xattrs { is_sharing, secret, blocks: OnceLock::new(), deferred }
    }

    /// Changes the set of the inode `ino`, which is locked and was changed last at `changed`.
    ///
    /// # Errors
    /// `E2BIG` for a value that is too long; `EEXIST` and `ENODATA` as the change says; `ENOSPC` if
    /// there would be too many names or there is no room. Then the set is as it was.
    pub(super) fn change(
        &self,
        own: &mut Own,
        ino: u64,
        change: Change<'_>,
        (changed, now): (Timespec, Timespec),
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
        if after > 0 && !block.is_private() && !is_near(changed, now) {
            let mut set = block.set().clone();
            set.apply(change);
            // Without room for another set there may still be some for a greater one.
            if let Ok(new) = self.first(set, space) {
                self.drop_set(own, space);
                *own = new;
                return Ok(());
            }
        }
        let Some(block) = own else { return Ok(()) };
        if !block.is_private() && !self.take_out(own) {
            space.take(after)?;
            self.copy(own, ino, change, now, space);
            return Ok(());
        }
        let block = own.as_mut().and_then(Arc::get_mut).expect("nobody else has a private block");
        let result = space.exchange(before, after);
        if result.is_ok() && after == 0 {
            *own = None;
            return Ok(());
        }
        if result.is_ok() {
            block.set.apply(change);
        }
        self.queue(block, ino, now);
        result
    }

    /// Returns what an inode points at that gets `set`, which is not empty, as its first one.
    ///
    /// # Errors
    /// `ENOSPC` if there is no room.
    pub(super) fn first(&self, mut set: Set, space: &Budget) -> Result<Own, Errno> {
        let bytes = set.bytes();
        if let Some(blocks) = self.blocks_for(bytes) {
            let key = set.key(&self.secret);
            match blocks.find(key, &set) {
                Found::Block(block) => return Ok(Some(block)),
                Found::Nothing => {
                    space.take(bytes)?;
                    return Ok(Some(blocks.enter(key, Block::private(set))));
                }
                Found::Others => {}
            }
        }
        space.take(bytes)?;
        Ok(Some(Arc::new(Block::private(set))))
    }

    /// Takes what an inode points at away from it.
    pub(super) fn drop_set(&self, own: &mut Own, space: &Budget) {
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

    /// Returns true if an inode may have waited long enough at `now`.
    #[inline]
    pub(super) fn is_due(&self, now: Timespec) -> bool {
        self.deferred.is_due(now)
    }

    /// Takes some inodes out of those that wait; see `Deferred::pop`.
    pub(super) fn pop_waiting(&self, now: Option<Timespec>) -> Vec<u64> {
        self.deferred.pop(now)
    }

    /// Shares the set of the inode `ino`, which waited and was changed last at `changed`; if that is too
    /// near to `now` it waits again.
    pub(super) fn share(
        &self,
        own: &mut Own,
        ino: u64,
        changed: Timespec,
        now: Option<Timespec>,
        space: &Budget,
    ) {
        let Some(block) = own.as_mut().and_then(Arc::get_mut) else { return };
        if !std::mem::take(&mut block.is_queued) {
            return;
        }
        if now.is_some_and(|now| is_near(changed, now)) {
            return self.queue(block, ino, changed);
        }
        let bytes = block.set.bytes();
        let Some(blocks) = self.blocks_for(bytes) else { return };
        let key = block.set.key(&self.secret);
        match blocks.find(key, &block.set) {
            Found::Block(shared) => {
                space.give_back(bytes);
                *own = Some(shared);
            }
            Found::Nothing => {
                *own = own.take().and_then(Arc::into_inner).map(|b| blocks.enter(key, b))
            }
            Found::Others => {}
        }
    }

    /// Returns what is stored; exact while nobody changes it.
    pub(super) fn stats(&self) -> XattrStats {
        let blocks = self.blocks.get().and_then(Option::as_ref);
        XattrStats { shared_sets: blocks.map_or(0, Blocks::len), waiting: self.deferred.len() }
    }

    /// Makes a shared block private, if the inode is its only user; false if it is not.
    fn take_out(&self, own: &mut Own) -> bool {
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

    /// Puts a changed copy, for which room was taken, in the place of a shared block.
    fn copy(&self, own: &mut Own, ino: u64, change: Change<'_>, now: Timespec, space: &Budget) {
        let Some(shared) = own else { return };
        let mut copy = Block::private(shared.set().clone());
        copy.set.apply(change);
        self.drop_set(own, space);
        if !copy.set.is_empty() {
            self.queue(&mut copy, ino, now);
            *own = Some(Arc::new(copy));
        }
    }

    /// Lets an inode with a private set wait.
    #[inline]
    fn queue(&self, block: &mut Block, ino: u64, changed: Timespec) {
        let is_waiting = block.is_queued || !self.is_sharing;
        if !is_waiting && block.set.bytes() <= SHARED_BYTES_MAX {
            block.is_queued = true;
            self.deferred.push(ino, changed);
        }
    }

    /// Returns the blocks, if a set of so many bytes is to be shared.
    fn blocks_for(&self, bytes: u64) -> Option<&Blocks> {
        if bytes <= SHARED_BYTES_MAX { self.blocks() } else { None }
    }

    fn blocks(&self) -> Option<&Blocks> {
        let blocks = || self.blocks.get_or_init(Blocks::new).as_ref();
        if self.is_sharing { blocks() } else { None }
    }
}

/// What is stored of extended attributes and ACLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct XattrStats {
    /// Sets that several inodes have or can have, each stored once per 1024 inodes.
    pub shared_sets: u64,
    /// Inodes that may have a set for themselves until they were left alone for 100 ms.
    pub waiting: u64,
}

fn is_near(changed: Timespec, now: Timespec) -> bool {
    let (changed, now) = (deferred::milliseconds(changed), deferred::milliseconds(now));
    // A time ahead of the clock, which was set back or is the caller's, says nothing.
    now.checked_sub(changed).is_some_and(|rest| rest < DELAY_MS)
}

/// Checks the name of an attribute that is to be changed.
///
/// # Errors
/// `ERANGE` for a name that is empty or too long; `EOPNOTSUPP` for an unknown class; `EINVAL` for a
/// name that is only a class; `EPERM` for a user attribute of a file that can have none.
pub(super) fn check_name(kind: FileKind, name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Errno::RANGE);
    }
    let class = CLASSES.into_iter().find(|class| name.starts_with(class));
    let class = class.ok_or(Errno::OPNOTSUPP)?;
    if name.len() == class.len() || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    let has_user_class = matches!(kind, FileKind::Regular | FileKind::Directory);
    if class == USER && !has_user_class { Err(Errno::PERM) } else { Ok(()) }
}

/// Checks the name of an attribute that is to be read: as [`check_name`], but `ENODATA` instead of
/// `EPERM`.
pub(super) fn check_name_to_read(kind: FileKind, name: &[u8]) -> Result<(), Errno> {
    check_name(kind, name).map_err(|errno| if errno == Errno::PERM { Errno::NODATA } else { errno })
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;

#[cfg(test)]
mod name_tests {
    use super::*;

    #[test]
    fn names_are_checked_as_xattr7_says() {
        let long = [b"user.".as_slice(), &[b'x'; 250]].concat();
        let too_long = [b"user.".as_slice(), &[b'x'; 251]].concat();
        for (kind, name, expected) in [
            (FileKind::Regular, b"user.a".as_slice(), Ok(())),
            (FileKind::Directory, b"user.a", Ok(())),
            (FileKind::Regular, &long, Ok(())),
            (FileKind::Regular, &too_long, Err(Errno::RANGE)),
            (FileKind::Regular, b"", Err(Errno::RANGE)),
            (FileKind::Symlink, b"user.a", Err(Errno::PERM)),
            (FileKind::Fifo, b"user.a", Err(Errno::PERM)),
            (FileKind::Symlink, b"trusted.a", Ok(())),
            (FileKind::CharDevice, b"security.selinux", Ok(())),
            (FileKind::Regular, b"user.", Err(Errno::INVAL)),
            (FileKind::Regular, b"user.a\0b", Err(Errno::INVAL)),
            (FileKind::Regular, b"system.posix_acl_access", Err(Errno::OPNOTSUPP)),
            (FileKind::Regular, b"userx.a", Err(Errno::OPNOTSUPP)),
        ] {
            assert_eq!(check_name(kind, name), expected, "{kind:?} {}", name.escape_ascii());
        }
        assert_eq!(check_name_to_read(FileKind::Symlink, b"user.a"), Err(Errno::NODATA));
    }
}
