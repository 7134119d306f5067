//! The keyed hash that spreads keys over the cache lines of the index.
//!
//! A key is the hash of a content, which an attacker may choose. Without a secret, crafted keys
//! could all select one line of the index (trap T54 in `traps.md`). So the key is mixed with a
//! secret by a folded multiplication.

use std::hash::BuildHasher;

#[derive(Debug)]
pub(crate) struct Secret([u64; 2]);

impl Secret {
    pub(crate) fn random() -> Secret {
        Secret::new(std::hash::RandomState::new().hash_one(0_u64))
    }

    pub(crate) fn new(seed: u64) -> Secret {
        let first = fold(seed ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
        Secret([first, fold(first, 0xa076_1d64_78bd_642f) | 1])
    }

    /// Returns the hash of `key`. All its bits are equally random, so a caller may use any of them.
    #[inline]
    pub(crate) fn hash(&self, key: u64) -> u64 {
        fold(key ^ self.0[0], self.0[1])
    }
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn seed_decides_the_hash() {
        let hash = |seed| Secret::new(seed).hash(5);
        assert_eq!(hash(7), hash(7));
        assert_ne!(hash(7), hash(8));
        assert_ne!(Secret::random().hash(5), Secret::random().hash(5));
    }

    #[test]
    fn near_keys_spread_over_buckets() {
        for shift in [0, 16, 32, 48] {
            let secret = Secret::new(3);
            let mut buckets = [0_u32; 64];
            for key in 0..6_400_u64 {
                buckets[(secret.hash(key << shift) % 64) as usize] += 1;
            }
            assert!(buckets.iter().all(|&n| (20..400).contains(&n)), "{shift}: {buckets:?}");
        }
    }
}
