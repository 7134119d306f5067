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

use crate::dentry::INLINE_WORDS;

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

    /// Returns the hash of the name alone: of `words`, if the name fits there, which has no branch
    /// on its length.
    #[inline]
    pub(crate) fn name(&self, name: &[u8], words: &[u64; INLINE_WORDS]) -> u64 {
        let mut hasher = self.names.build_hasher();
        if name.len() <= 8 * INLINE_WORDS {
            for &word in words {
                hasher.write_u64(word);
            }
        } else {
            hasher.write(name);
        }
        hasher.finish()
    }

    /// Returns the hash of a name in the directory that `id` stands for.
    #[inline]
    pub(crate) fn child(&self, id: u64, name_hash: u64) -> u64 {
        fold(id.wrapping_add(name_hash), self.directories)
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
        let words = [1; INLINE_WORDS];
        for name in [&b"passwd"[..], &[b'x'; 8 * INLINE_WORDS + 1]] {
            let hash = |seed| Keys::new(seed).name(name, &words);
            assert_eq!(hash(Some(7)), hash(Some(7)));
            assert_ne!(hash(Some(7)), hash(Some(8)));
            assert_ne!(hash(None), hash(None));
        }
    }
}
