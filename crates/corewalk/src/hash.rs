//! Keyed hashes of names and inode numbers.
//!
//! Every [`Keys`] is seeded at random, so that a caller who chooses the names cannot choose the
//! buckets (trap T54); a fixed seed makes runs repeatable. A name is hashed once, on its own, and
//! then mixed with what tells its directory apart, so a walk hashes each component before it knows
//! the directory and the two steps overlap.
//!
//! The tables index with 32 bits. A collision costs one look at a dentry whose name differs.

use std::hash::{BuildHasher, Hasher};

use foldhash::SharedSeed;
use foldhash::fast::SeedableRandomState;

use crate::name::Name;

/// The secret of one namespace.
#[derive(Clone)]
pub(crate) struct Keys {
    names: SeedableRandomState,
    directories: u64,
    inodes: u64,
}

impl Keys {
    /// Returns keys made from `seed`, or from the system's randomness.
    pub(crate) fn new(seed: Option<u64>) -> Keys {
        let seed = seed.unwrap_or_else(|| std::hash::RandomState::new().hash_one(0_u64));
        Keys {
            names: SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()),
            directories: fold(seed ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93) | 1,
            inodes: fold(seed ^ 0xc2b2_ae3d_27d4_eb4f, 0xa076_1d64_78bd_642f) | 1,
        }
    }

    /// Returns the hash of the name alone.
    #[inline]
    pub(crate) fn name(&self, name: Name<'_>) -> u64 {
        let mut hasher = self.names.build_hasher();
        hasher.write(name.as_bytes());
        hasher.finish()
    }

    /// Returns the hash of a name in the directory that `key` stands for.
    #[inline]
    pub(crate) fn child(&self, key: u64, name_hash: u64) -> u64 {
        fold(key.wrapping_add(name_hash), self.directories)
    }

    /// Returns the hash of an inode number within a superblock.
    #[inline]
    pub(crate) fn inode(&self, superblock: u32, ino: u64) -> u64 {
        fold(ino ^ (u64::from(superblock) << 48), self.inodes)
    }
}

/// Multiplies to 128 bits and folds the halves together.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_decides_the_hash() {
        let name = Name::new(b"passwd").unwrap();
        assert_eq!(Keys::new(Some(7)).name(name), Keys::new(Some(7)).name(name));
        assert_ne!(Keys::new(Some(7)).name(name), Keys::new(Some(8)).name(name));
        assert_ne!(Keys::new(None).name(name), Keys::new(None).name(name));
    }
}
