//! Names crafted to collide.
//!
//! The attacker knows how corewalk hashes and, in the control, also the key: he tries names until he
//! has as many as he wants that end up in one of 512 parts of the index. Who knows the key makes
//! chains of hundreds of entries with them; who does not, makes a directory like any other.

use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, Make, Name, Vfs, VfsOptions};

use super::cpu_time;

/// Names that are made.
const NAMES: usize = 100_000;
/// Long names that are made: all of them collide, so few are enough.
const LONG_NAMES: u64 = 2000;
/// The bits of the hash that all crafted names share.
const SHARED_BITS: u32 = 9;
/// The key that the attacker knows.
const SEED: u64 = 1;

/// Returns a name that is different for each number.
fn nth(number: u64) -> [u8; 9] {
    let mut name = *b"n00000000";
    for (i, byte) in name[1..].iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (4 * i)) as usize % 16];
    }
    name
}

/// Returns the nth secret that is made from [`SEED`].
fn secret(n: u64) -> u64 {
    let start = fold(SEED ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
    fold(start ^ n.wrapping_mul(0xc2b2_ae3d_27d4_eb4f), 0xa076_1d64_78bd_642f)
}

/// Returns long names that collide under the key made from [`SEED`]: the word behind the first forty
/// bytes makes a product 0, whatever the word after it is.
fn crafted_long() -> Vec<Vec<u8>> {
    let word = secret(11).to_le_bytes();
    assert!(word.iter().all(|byte| ![0, b'/'].contains(byte)), "take another seed: {word:x?}");
    let name = |free: &[u8]| [&[b'a'; 40], &word[..], free, &[b'b'; 16]].concat();
    (0..LONG_NAMES).map(|number| name(&nth(number)[1..])).collect()
}

/// Returns names that collide in the root directory under the key made from [`SEED`]. It repeats
/// what `hash.rs` does: whoever reads it can do the same.
fn crafted() -> Vec<[u8; 9]> {
    let [k0, k1, k4, k5] = [1, 2, 5, 6].map(secret);
    // What tells a directory of the first file system apart is its inode number.
    let root = 1_u64;
    let is_wanted = |name: &[u8; 9]| {
        // A name of nine bytes is its first eight and, from there on, its last eight.
        let first = u64::from_le_bytes(*name.first_chunk().expect("eight bytes"));
        let last = u64::from_le_bytes(*name.last_chunk().expect("eight bytes"));
        let (a, b) = (fold(first ^ k0, last ^ k1), (name.len() as u64).wrapping_mul(k4));
        let hash = fold(root.wrapping_add(a).wrapping_add(b), last ^ k5);
        (hash as u32) & ((1 << SHARED_BITS) - 1) == 0
    };
    (0..).map(nth).filter(is_wanted).take(NAMES).collect()
}

fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

/// Returns the processor time of looking all `names` up, once they have been made.
fn time_of(names: &[impl AsRef<[u8]>], hash_seed: Option<u64>) -> Duration {
    let options = VfsOptions { hash_seed, entries_max: 1 << 17, ..VfsOptions::default() };
    let vfs = Vfs::new(std::sync::Arc::new(Tmpfs::new(TmpfsOptions::default())), options).unwrap();
    let (root, cred) = (vfs.root(), Cred::root());
    let names: Vec<Name<'_>> = names.iter().map(|name| Name::new(name.as_ref()).unwrap()).collect();
    for &name in &names {
        vfs.make(&cred, &root, name, Make::new(S_IFREG | 0o644, 0, 0)).unwrap();
    }
    let look_all_up = || {
        for &name in &names {
            assert!(vfs.lookup(&cred, &root, name).is_ok());
        }
    };
    (0..3).map(|_| cpu_time(look_all_up).0).min().expect("three runs")
}

/// Trap T54: 100,000 names that collide under one key are like any others under a random one. The
/// control is in the same test: with the key that they were made for they are slow.
#[test]
fn names_crafted_for_another_key_are_like_any_others() {
    let crafted = crafted();
    let plain: Vec<[u8; 9]> = (0..NAMES as u64).map(nth).collect();
    let (usual, attacked) = (time_of(&plain, None), time_of(&crafted, None));
    assert!(attacked < usual * 3, "plain: {usual:?}, crafted for another key: {attacked:?}");
    let known = time_of(&crafted, Some(SEED));
    assert!(known > attacked * 4, "the attack fails: {known:?}, against {attacked:?}");
}

/// Trap T54: the same for names that do not fit their dentries, of which all but the first words are
/// hashed in another way.
#[test]
fn long_names_crafted_for_another_key_are_like_any_others() {
    let crafted = crafted_long();
    let plain: Vec<[u8; 72]> = (0..LONG_NAMES)
        .map(|number| {
            let mut name = [b'c'; 72];
            name[60..69].copy_from_slice(&nth(number));
            name
        })
        .collect();
    let (usual, attacked) = (time_of(&plain, None), time_of(&crafted, None));
    assert!(attacked < usual * 3, "plain: {usual:?}, crafted for another key: {attacked:?}");
    let known = time_of(&crafted, Some(SEED));
    assert!(known > attacked * 4, "the attack fails: {known:?}, against {attacked:?}");
}
