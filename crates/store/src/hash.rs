//! The keyed hash of names and attribute sets.
//!
//! The database stores the hash of a name in its directory, and the hash of an attribute set in the
//! record of its block. So the algorithm is part of the format.
//!
//! The secret is derived from a seed in the superblock, drawn when the store is made. So an
//! attacker cannot craft names that collide (trap T54 in `traps.md`).
//!
//! As in wyhash, a step mixes two words with two secret words, multiplies them to 128 bits, and
//! folds the two halves together. Four chains of such steps run in parallel.
//!
//! # Long attribute sets
//! Names and most attribute sets are hashed as a whole. Of an input longer than [`WHOLE_MAX`]
//! bytes, [`Secret::hash`] hashes only the length and [`SAMPLES`] pieces, evenly spaced from the
//! first byte to the last. The reason is speed: hashing 4 KiB takes longer than comparing 4 KiB.
//!
//! Long sets may differ and yet have the same hash. So sets with equal hashes are compared byte by
//! byte before they share a block. If several different sets have one hash, `blocks` uses
//! [`Secret::hash_whole`] for further sets.
//!
//! Source: `corewalk`'s `hash` and `corewalk-mbcache` use the same fold.

const WHOLE_MAX: usize = 512;
const PIECE_BYTES: usize = 64;
const SAMPLES: usize = 5;

#[derive(Clone, Debug)]
pub(crate) struct Secret([u64; 8]);

impl Secret {
    pub(crate) fn new(seed: u64) -> Secret {
        let start = fold(seed ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
        let key =
            |n: u64| fold(start ^ n.wrapping_mul(0xc2b2_ae3d_27d4_eb4f), 0xa076_1d64_78bd_642f);
        Secret(std::array::from_fn(|i| key(i as u64 + 1) | 1))
    }

    /// Returns the hash of `bytes`. If `bytes` is long, only its length and samples of it are
    /// hashed.
    pub(crate) fn hash(&self, bytes: &[u8]) -> u64 {
        if bytes.len() <= WHOLE_MAX {
            return self.hash_whole(bytes);
        }
        let mut lanes = self.lanes();
        for nth in 0..SAMPLES {
            let start = (bytes.len() - PIECE_BYTES) * nth / (SAMPLES - 1);
            let (pieces, _) = bytes[start..].as_chunks::<PIECE_BYTES>();
            self.add(&mut lanes, &pieces[0]);
        }
        fold(self.join(lanes) ^ bytes.len() as u64, self.0[0])
    }

    pub(crate) fn hash_whole(&self, bytes: &[u8]) -> u64 {
        let secret = &self.0;
        let mut lanes = self.lanes();
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            self.add(&mut lanes, block);
        }
        let mut hash = self.join(lanes);
        let (pairs, rest) = rest.as_chunks::<16>();
        for pair in pairs {
            hash = mix(secret, hash, pair);
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        hash = mix(secret, hash, &last);
        fold(hash ^ bytes.len() as u64, secret[0])
    }

    fn lanes(&self) -> [u64; 4] {
        [self.0[0], self.0[1], self.0[2], self.0[3]]
    }

    #[inline(always)]
    fn add(&self, lanes: &mut [u64; 4], block: &[u8; 64]) {
        for (lane, pair) in lanes.iter_mut().zip(block.as_chunks::<16>().0) {
            *lane = mix(&self.0, *lane, pair);
        }
    }

    fn join(&self, lanes: [u64; 4]) -> u64 {
        let secret = &self.0;
        fold(lanes[0] ^ secret[4], lanes[1] ^ secret[5])
            ^ fold(lanes[2] ^ secret[6], lanes[3] ^ secret[7])
    }
}

/// Mixes two words of the input into `hash`. Both factors of the multiplication depend on the
/// secret. So an attacker cannot make one of them 0, which would hide the other word.
#[inline(always)]
fn mix(secret: &[u64; 8], hash: u64, pair: &[u8; 16]) -> u64 {
    let (words, _) = pair.as_chunks::<8>();
    let [first, second] = [u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])];
    fold(first ^ hash ^ secret[4], second ^ secret[5]).wrapping_add(hash.rotate_left(29))
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hash is part of the format, so the hashes of fixed inputs must never change.
    #[test]
    fn hash_is_that_of_the_format() {
        let secret = Secret::new(7);
        let bytes: Vec<u8> = (0..=255).collect();
        let got = [0, 1, 16, 17, 64, 65, 255].map(|len| secret.hash(&bytes[..len]));
        assert_eq!(got, EXPECTED, "{got:#x?}");
        let bytes: Vec<u8> = (0..4000_u32).map(|at| (at / 7) as u8).collect();
        let got = [512, 513, 4000].map(|len| secret.hash(&bytes[..len]));
        assert_eq!(got, EXPECTED_LONG, "{got:#x?}");
    }

    const EXPECTED: [u64; 7] = [
        0xa807_b134_dfc9_4e9c,
        0xc496_101d_1976_1ffb,
        0xe468_615b_9757_a510,
        0x46ee_b8c4_4962_e049,
        0xfa04_bd1f_060c_fe50,
        0xbfde_9526_26df_120b,
        0x4388_da03_a125_6105,
    ];
    const EXPECTED_LONG: [u64; 3] =
        [0x0a01_2179_1800_22d8, 0x3d90_1659_3f43_0358, 0x64af_d41f_0ba2_7fa3];

    #[test]
    fn every_byte_and_the_length_count() {
        let secret = Secret::new(7);
        for len in [1, 15, 16, 17, 63, 64, 65, 129, 300, WHOLE_MAX, 700] {
            let mut bytes = vec![0; len];
            let hash = secret.hash_whole(&bytes);
            assert_eq!(hash == secret.hash(&bytes), len <= WHOLE_MAX, "{len}");
            assert_ne!(hash, secret.hash_whole(&bytes[1..]), "{len}");
            for at in 0..len {
                bytes[at] = 1;
                assert_ne!(hash, secret.hash_whole(&bytes), "byte {at} of {len}");
                bytes[at] = 0;
            }
        }
        assert_ne!(Secret::new(8).hash(b"a"), secret.hash(b"a"));
    }

    #[test]
    fn of_many_bytes_the_pieces_count_and_the_length_and_nothing_else() {
        let secret = Secret::new(7);
        for len in [WHOLE_MAX + 1, 1000, 4096, 65_536] {
            let mut bytes = vec![0; len];
            let hash = secret.hash(&bytes);
            assert_ne!(hash, secret.hash(&vec![0; len + 1]), "{len}");
            let mut count = 0;
            for at in 0..len {
                bytes[at] = 1;
                let counts = hash != secret.hash(&bytes);
                assert!(counts || (PIECE_BYTES..len - PIECE_BYTES).contains(&at), "{at} of {len}");
                count += usize::from(counts);
                bytes[at] = 0;
            }
            assert_eq!(count, SAMPLES * PIECE_BYTES, "{len}");
        }
    }
}
