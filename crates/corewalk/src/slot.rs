//! The number types of the cache: the slot of a dentry, the slot of an inode, and the sequence of a
//! dentry.
//!
//! A slot has room for a dentry and an inode (module `dentry`). The type of a slot number tells
//! which of the two is meant, at no cost at run time. Bare numbers appear only in packed words, in
//! atomics and in calls of the slot arena.

use std::marker::PhantomData;

/// The number of a slot that holds a `K`, which is a dentry or an inode. Slot 0 is never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub(crate) struct Slot<K> {
    number: u32,
    kind: PhantomData<K>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfDentry {}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OfInode {}

pub(crate) type DentrySlot = Slot<OfDentry>;
pub(crate) type InodeSlot = Slot<OfInode>;

/// The sequence of a dentry when a reader read it. If it is odd, a writer was inside a write
/// section of the dentry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Seq(pub(crate) u64);

impl<K: Copy> Slot<K> {
    pub(crate) const NONE: Slot<K> = Slot::new(0);

    #[inline(always)]
    pub(crate) const fn new(number: u32) -> Slot<K> {
        Slot { number, kind: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn get(self) -> u32 {
        self.number
    }

    #[inline(always)]
    pub(crate) fn is_none(self) -> bool {
        self.number == 0
    }

    #[inline(always)]
    pub(crate) fn some(self) -> Option<Slot<K>> {
        if self.is_none() { None } else { Some(self) }
    }
}

impl DentrySlot {
    #[inline(always)]
    pub(crate) fn inode_half(self) -> InodeSlot {
        Slot::new(self.number)
    }
}

impl InodeSlot {
    #[inline(always)]
    pub(crate) fn dentry_half(self) -> DentrySlot {
        Slot::new(self.number)
    }
}

impl Seq {
    #[inline(always)]
    pub(crate) fn is_odd(self) -> bool {
        self.0 & 1 != 0
    }
}
