//! The body word of a dentry: its inode, the length of its name, its superblock number and its
//! flags.

use bitflags::bitflags;

use crate::name::NAME_MAX;
use crate::slot::InodeSlot;

bitflags! {
    /// The properties of a dentry that a path walk checks besides its name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// A lookup by name finds it.
        const HASHED = 1;
        /// The dentry is the root of a file system. It has no name and is its own parent.
        const ROOT = 1 << 1;
        const MOUNTED = 1 << 2;
        /// The dentry's name continues in a slot for long names.
        const LONG = 1 << 3;
        /// Any caller may search this directory: all users have execute permission, and there is no
        /// ACL.
        const SEARCHABLE = 1 << 4;
        const DIRECTORY = 1 << 5;
        const SYMLINK = 1 << 6;
    }
}

/// Word 2 of a dentry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body(pub(crate) u64);

impl Body {
    pub(crate) fn new(superblock: u32, inode: InodeSlot, len: usize, flags: Flags) -> Body {
        debug_assert!(len <= NAME_MAX && superblock < 1 << 16);
        let place = (u64::from(inode.get()) << 32) | (u64::from(superblock) << 8);
        Body(place | ((len as u64) << 24) | u64::from(flags.bits()))
    }

    #[inline]
    pub(crate) fn superblock(self) -> u32 {
        (self.0 >> 8) as u32 & 0xffff
    }

    #[inline]
    pub(crate) fn inode(self) -> InodeSlot {
        InodeSlot::new((self.0 >> 32) as u32)
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0 >> 24) as u8 as usize
    }

    #[inline]
    pub(crate) fn flags(self) -> Flags {
        Flags::from_bits_retain(self.0 as u32 & 0xff)
    }

    pub(crate) fn with_flags(self, flags: Flags) -> Body {
        Body((self.0 & !0xff) | u64::from(flags.bits()))
    }

    pub(crate) fn with_inode(self, inode: InodeSlot) -> Body {
        Body((self.0 & 0xffff_ffff) | (u64::from(inode.get()) << 32))
    }

    #[inline]
    pub(crate) fn is_hashed(self) -> bool {
        self.0 & u64::from(Flags::HASHED.bits()) != 0
    }

    #[inline]
    pub(crate) fn is_negative(self) -> bool {
        self.inode().is_none()
    }

    #[inline]
    pub(crate) fn is_directory(self) -> bool {
        self.flags().contains(Flags::DIRECTORY)
    }
}
