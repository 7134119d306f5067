//! The designs of the de-duplication index (mbcache) that Kara compared in 2015.
//!
//! - `before-mbcache` (Linux before 4.6): one lock protects all lookups and releases, and an LRU
//!   list of unused entries. A lookup waits for a thread that holds the entry exclusively.
//! - `plain-lru`: a lookup takes the lock of one hash chain. One LRU list has its own lock, and
//!   each use moves the entry to its end.
//! - `lru-per-shard`: as `plain-lru`, with one LRU list and one lock per processor (`list_lru`).
//!
//! The users of a block are the files that share it. In `before-mbcache` a thread that removes a
//! user holds the block's index entry exclusively, and lookups of the entry wait for it.
//!
//! In `plain-lru` and `lru-per-shard`, which Kara measured in 2015 but did not submit, several
//! lookups may use an entry at the same time. Each then takes the block's own lock, and checks
//! whether the block can be shared.
//!
//! These indexes have less work than the kernel's: no devices, no second key per entry, short
//! chains, and entries in arrays. Their locks, those of `corewalk_base`, sleep when a wait is long;
//! the kernel's locks spin.
//!
//! No index skips a block that has the maximum number of users. A later version of Kara's patches
//! added a flag for such blocks. Without it, searches read long chains of them in vain (trap T39 in
//! `traps.md`).
//!
//! Source: Kara, "ext\[24\]: MBCache rewrite", December 2015 (document 004 in `documents.md`).
//! `before-mbcache` follows Linux 4.5 `fs/mbcache.c`.

mod lru;
mod one_lock;
mod rings;

pub(crate) use lru::Lru;
pub(crate) use one_lock::OneLock;

/// Returns the number of hash chains for `entries` entries, a power of two.
fn chains(entries: usize) -> usize {
    entries.next_power_of_two().max(16)
}

/// Returns the index of the hash chain for `word`, a key or the number of a block.
fn chain(word: u64, chains: usize) -> usize {
    // The upper bits of a product with the golden ratio depend on all bits of `word`.
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (chains - 1)
}

#[cfg(test)]
mod tests;
