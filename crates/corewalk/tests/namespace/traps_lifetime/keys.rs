//! Names crafted to collide.
//!
//! These tests play an attacker that knows the hash function, and has found names whose hashes are
//! in the same 1/512 of the hash table. Under the key that the attacker assumes, such names make
//! chains of hundreds of entries.
//!
//! Under a random key, a directory of such names must be as fast as any other. As a control,
//! lookups under the key that the attacker knows must be slow.

use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, Make, Name, Vfs, VfsOptions};

use super::cpu_time;

const NAMES: usize = 100_000;
const LONG_NAMES: u64 = 2000;
const SHARED_BITS: u32 = 9;
const SEED: u64 = 1;

fn nth(number: u64) -> [u8; 9] {
    let mut name = *b"n00000000";
    for (i, byte) in name[1..].iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[(number >> (4 * i)) as usize % 16];
    }
    name
}

fn secret(n: u64) -> u64 {
    let start = fold(SEED ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93);
    fold(start ^ n.wrapping_mul(0xc2b2_ae3d_27d4_eb4f), 0xa076_1d64_78bd_642f)
}

/// Returns long names that collide under the key of [`SEED`]. The hash multiplies two words of a
/// name, each combined with a secret by exclusive or. Here the first of the two words equals its
/// secret, so the product is 0, whatever the second word is.
fn crafted_long() -> Vec<Vec<u8>> {
    let word = secret(11).to_le_bytes();
    assert!(
        word.iter().all(|byte| ![0, b'/'].contains(byte)),
        "the seed gives an invalid name, use another one: {word:x?}"
    );
    let name = |free: &[u8]| [&[b'a'; 40], &word[..], free, &[b'b'; 16]].concat();
    (0..LONG_NAMES).map(|number| name(&nth(number)[1..])).collect()
}

/// Returns names whose hashes agree in their low `SHARED_BITS` bits under the key of [`SEED`]. The
/// function finds such names by the same computation as `hash.rs`.
fn crafted() -> Vec<[u8; 9]> {
    let [k0, k1, k4, k5] = [1, 2, 5, 6].map(secret);
    let root = 1_u64;
    let is_wanted = |name: &[u8; 9]| {
        // The hash reads a name of nine bytes as two overlapping words: its first eight bytes and
        // its last eight bytes.
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

fn time_of(names: &[impl AsRef<[u8]>], hash_seed: Option<u64>) -> Duration {
    let options = VfsOptions::default().with_hash_seed(hash_seed).with_entries_max(1 << 17);
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

/// 100,000 names that were crafted to collide under one key must be looked up as fast as other
/// names under a random key. As a control, lookups under the key for which they were made must be
/// slow. Trap T54 in `traps.md`.
#[test]
fn names_crafted_for_another_key_do_not_collide() {
    let crafted = crafted();
    let plain: Vec<[u8; 9]> = (0..NAMES as u64).map(nth).collect();
    let (usual, attacked) = (time_of(&plain, None), time_of(&crafted, None));
    assert!(attacked < usual * 3, "plain: {usual:?}, crafted for another key: {attacked:?}");
    let known = time_of(&crafted, Some(SEED));
    assert!(known > attacked * 4, "the attack fails: {known:?}, against {attacked:?}");
}

/// Long names that are crafted for one key must not collide under another key. The hash treats the
/// words behind the beginning of a long name differently, hence a separate test. Trap T54 in
/// `traps.md`.
#[test]
fn long_names_crafted_for_another_key_do_not_collide() {
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
