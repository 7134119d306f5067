//! Keyed hashes of names and inode numbers.
//!
//! Every [`HashKeys`] has a random seed, so a client that chooses names cannot choose hash buckets
//! (trap T54 in `traps.md`). With a fixed seed, runs are repeatable.
//!
//! The hash of a name alone has two words ([`NameHash`]). One multiplication mixes these words with
//! the directory's number. So a walk can hash a component while it still looks up the component's
//! directory.
//!
//! The mixing follows the folded multiply of wyhash and foldhash. Its input is the words of a name,
//! in the same form in which dentries store them. Each factor of a product contains a secret.
//!
//! foldhash 0.2 multiplies the words of a long input by a public constant. So an attacker can
//! construct names that collide there under every seed. This module uses only secrets.

use std::hash::BuildHasher;

use crate::name::name_word;

pub(crate) const SHORT_WORDS: usize = 3;

#[derive(Clone)]
pub(crate) struct HashKeys {
    names: [u64; 6],
    rests: [u64; 5],
    inodes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NameHash {
    first: u64,
    second: u64,
}

impl HashKeys {
    pub(crate) fn new(seed: Option<u64>) -> HashKeys {
        let seed = seed.unwrap_or_else(|| std::hash::RandomState::new().hash_one(0_u64));
        let start = fold(seed ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
        let key =
            |n: u64| fold(start ^ n.wrapping_mul(0xc2b2_ae3d_27d4_eb4f), 0xa076_1d64_78bd_642f);
        HashKeys {
            names: std::array::from_fn(|i| key(i as u64 + 1)),
            rests: std::array::from_fn(|i| key(i as u64 + 11)),
            inodes: key(9) | 1,
        }
    }

    /// Returns the hash of `name`, whose words are `words`. If the name has at most [`SHORT_WORDS`]
    /// words, only the first [`SHORT_WORDS`] elements of `words` affect the hash.
    #[inline(always)]
    pub(crate) fn name<const N: usize>(&self, name: &[u8], words: &[u64; N]) -> NameHash {
        let [.., k2, k3, _, _] = self.names;
        let short = self.short_name(name.len(), [words[0], words[1], words[2]]);
        let more = match words.get(3) {
            Some(word) => fold(word ^ k2, words[N - 1] ^ k3),
            None => 0,
        };
        // The compiler turns this `if` into a select instruction. A branch on the name's length
        // would often be mispredicted.
        let more = if name.len() > 8 * SHORT_WORDS { more } else { 0 };
        let hash = NameHash { second: short.second ^ more, ..short };
        if name.len() > 8 * N { self.rest::<N>(hash, name) } else { hash }
    }

    #[inline(always)]
    pub(crate) fn short_name(&self, len: usize, words: [u64; SHORT_WORDS]) -> NameHash {
        let [k0, k1, _, _, k4, k5] = self.names;
        let first = fold(words[0] ^ k0, words[1] ^ k1);
        // `NameHash::child` adds the directory's number to `first`. Both this number and the length
        // are often small, and two small numbers could cancel each other out. So multiply the
        // length by a secret.
        let first = first.wrapping_add((len as u64).wrapping_mul(k4));
        NameHash { first, second: words[2] ^ k5 }
    }

    /// Adds the words of a long name after its first `N` words to the hash. Four words suffice for
    /// nearly all long names, so the first four are hashed without a branch on the length. Each
    /// product has a secret in both factors, so that no name can make a factor 0.
    #[inline(never)]
    fn rest<const N: usize>(&self, start: NameHash, name: &[u8]) -> NameHash {
        let mut hash = self.four(start.first, name, 8 * N);
        for at in (8 * (N + 4)..name.len()).step_by(32) {
            hash = self.four(hash, name, at);
        }
        NameHash { first: hash, ..start }
    }

    #[inline(always)]
    fn four(&self, hash: u64, name: &[u8], at: usize) -> u64 {
        let [k0, k1, k2, k3, k4] = self.rests;
        let word = |i: usize| name_word(name, at + 8 * i);
        let (first, second) = (fold(word(0) ^ k0, word(1) ^ k1), fold(word(2) ^ k2, word(3) ^ k3));
        fold(hash ^ first, second ^ k4)
    }

    #[inline]
    pub(crate) fn inode(&self, superblock: u32, ino: u64) -> u64 {
        fold(ino ^ (u64::from(superblock) << 48), self.inodes)
    }
}

impl NameHash {
    #[inline(always)]
    pub(crate) fn child(self, id: u64) -> u64 {
        fold(id.wrapping_add(self.first), self.second)
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 5;

    #[test]
    fn seed_decides_the_hash() {
        let words = [1; WORDS];
        let keys = HashKeys::new(Some(7));
        assert_ne!(keys.name(b"aaaaaaaa", &words), keys.name(b"aaaaaaaaa", &words));
        for name in [&b"passwd"[..], &[b'x'; 8 * WORDS + 1], &[b'x'; 255]] {
            let hash = |seed| HashKeys::new(seed).name(name, &words);
            assert_eq!(hash(Some(7)), hash(Some(7)));
            assert_ne!(hash(Some(7)), hash(Some(8)));
            assert_ne!(hash(None), hash(None));
        }
    }

    #[test]
    fn every_byte_of_a_name_counts() {
        let keys = HashKeys::new(Some(7));
        for len in 8 * WORDS..=255 {
            let mut name = vec![b'x'; len];
            let words = [1; WORDS];
            let hash = keys.name(&name, &words);
            for at in 8 * WORDS..len {
                name[at] = b'y';
                assert_ne!(keys.name(&name, &words), hash, "byte {at} of {len}");
                name[at] = b'x';
            }
        }
    }
}
