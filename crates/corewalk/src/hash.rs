//! Keyed hashes of names and inode numbers.
//!
//! Every [`Keys`] is seeded at random, so that a caller who chooses the names cannot choose the
//! buckets (trap T54); a fixed seed makes runs repeatable. A name is hashed once, on its own, to two
//! words ([`NameHash`]), and one multiplication mixes these with what tells its directory apart. So a
//! walk hashes each component before it knows the directory, and the two steps overlap.
//!
//! The mixing is our own, after the folded multiply that wyhash and foldhash use: it takes the words that
//! names are compared by, and every factor has a secret in it. foldhash 0.2 multiplies words of a long
//! input with a constant that can be read in its source, so that names can be made which collide under
//! every key.
//!
//! The tables index with 32 bits. A collision costs one look at a dentry whose name differs.

use std::hash::BuildHasher;

use crate::dentry::{INLINE_WORDS, name_word};

/// Words of a name that the first part of its hash is made from.
pub(crate) const SHORT_WORDS: usize = 3;

/// The secret of one namespace.
#[derive(Clone)]
pub(crate) struct Keys {
    names: [u64; 6],
    rests: [u64; 5],
    inodes: u64,
}

/// The hash of a name, before it is known which directory it is in. Both words have a secret in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameHash {
    first: u64,
    second: u64,
}

impl Keys {
    /// Returns keys made from `seed`, or from the system's randomness.
    pub(crate) fn new(seed: Option<u64>) -> Keys {
        let seed = seed.unwrap_or_else(|| std::hash::RandomState::new().hash_one(0_u64));
        let start = fold(seed ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
        let key =
            |n: u64| fold(start ^ n.wrapping_mul(0xc2b2_ae3d_27d4_eb4f), 0xa076_1d64_78bd_642f);
        Keys {
            names: std::array::from_fn(|i| key(i as u64 + 1)),
            rests: std::array::from_fn(|i| key(i as u64 + 11)),
            inodes: key(9) | 1,
        }
    }

    /// Returns the hash of the name alone. `words` tell it, with its length, unless it is longer than
    /// they are; of a name that is no longer than the first three, those are enough.
    #[inline(always)]
    pub(crate) fn name(&self, name: &[u8], words: &[u64; INLINE_WORDS]) -> NameHash {
        let [.., k2, k3, _, _] = self.names;
        let short = self.short_name(name.len(), [words[0], words[1], words[2]]);
        // Models have three words.
        let more = match words.get(3) {
            Some(word) => fold(word ^ k2, words[INLINE_WORDS - 1] ^ k3),
            None => 0,
        };
        // The branch that this is not would often be mispredicted.
        let more = if name.len() > 8 * SHORT_WORDS { more } else { 0 };
        let hash = NameHash { second: short.second ^ more, ..short };
        if name.len() > 8 * INLINE_WORDS { self.rest(hash, name) } else { hash }
    }

    /// Returns what [`Keys::name`] does, of a name of `len` bytes that is no longer than its first three
    /// words.
    #[inline(always)]
    pub(crate) fn short_name(&self, len: usize, words: [u64; SHORT_WORDS]) -> NameHash {
        let [k0, k1, _, _, k4, k5] = self.names;
        let first = fold(words[0] ^ k0, words[1] ^ k1);
        // Directories are told apart by small numbers that are added later, so the factor is secret.
        let first = first.wrapping_add((len as u64).wrapping_mul(k4));
        NameHash { first, second: words[2] ^ k5 }
    }

    /// Returns the hash of a name whose first words and length have the hash `start`. Nearly all of
    /// those that are long have no more than four words more, which takes no branch on the length.
    /// Both sides of every product have a secret in them, so that nobody can choose one to be 0.
    #[inline(never)]
    fn rest(&self, start: NameHash, name: &[u8]) -> NameHash {
        let mut hash = self.four(start.first, name, 8 * INLINE_WORDS);
        for at in (8 * (INLINE_WORDS + 4)..name.len()).step_by(32) {
            hash = self.four(hash, name, at);
        }
        NameHash { first: hash, ..start }
    }

    /// Returns `hash` with the four words of the name from `at` on.
    #[inline(always)]
    fn four(&self, hash: u64, name: &[u8], at: usize) -> u64 {
        let [k0, k1, k2, k3, k4] = self.rests;
        let word = |i: usize| name_word(name, at + 8 * i);
        let (first, second) = (fold(word(0) ^ k0, word(1) ^ k1), fold(word(2) ^ k2, word(3) ^ k3));
        fold(hash ^ first, second ^ k4)
    }

    /// Returns the hash of an inode number within a superblock.
    #[inline]
    pub(crate) fn inode(&self, superblock: u32, ino: u64) -> u64 {
        fold(ino ^ (u64::from(superblock) << 48), self.inodes)
    }
}

impl NameHash {
    /// Returns the hash of the name in the directory that `id` stands for.
    #[inline(always)]
    pub(crate) fn child(self, id: u64) -> u64 {
        fold(id.wrapping_add(self.first), self.second)
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
        let keys = Keys::new(Some(7));
        assert_ne!(keys.name(b"aaaaaaaa", &words), keys.name(b"aaaaaaaaa", &words));
        for name in [&b"passwd"[..], &[b'x'; 8 * INLINE_WORDS + 1], &[b'x'; 255]] {
            let hash = |seed| Keys::new(seed).name(name, &words);
            assert_eq!(hash(Some(7)), hash(Some(7)));
            assert_ne!(hash(Some(7)), hash(Some(8)));
            assert_ne!(hash(None), hash(None));
        }
    }

    #[test]
    fn every_byte_of_a_name_counts() {
        let keys = Keys::new(Some(7));
        for len in 8 * INLINE_WORDS..=255 {
            let mut name = vec![b'x'; len];
            let words = [1; INLINE_WORDS];
            let hash = keys.name(&name, &words);
            for at in 8 * INLINE_WORDS..len {
                name[at] = b'y';
                assert_ne!(keys.name(&name, &words), hash, "byte {at} of {len}");
                name[at] = b'x';
            }
        }
    }
}
