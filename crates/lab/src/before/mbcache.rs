//! The designs of the de-duplication index that document 004 replaced or compared.
//!
//! - `before-mbcache` (Linux before 4.6): one lock of the cache protects all lookups and releases.
//!   A lookup waits for a thread that holds the entry exclusively. Unused entries are in an LRU
//!   list under the same lock.
//! - `plain-lru`: a lookup takes the lock of one hash chain. One LRU list has its own lock, and
//!   each use moves the entry to the end of the list.
//! - `lru-per-shard`: as `plain-lru`, with one LRU list and one lock per processor (`list_lru`).
//!
//! In `before-mbcache` a thread that removes a user of a block holds the entry of the block
//! exclusively, and a lookup waits for the thread. Document 004 measured the other two designs and
//! did not submit them. In these two designs several lookups may use an entry at once. Each checks
//! under the block's own lock whether the block can be shared.
//!
//! Each design is as fast as its protocol allows: no devices, no second key per entry, short
//! chains, and entries in arrays that are linked by index. The locks are those of `corewalk_base`,
//! which sleep when a wait is long; the kernel's locks spin. No design skips a block that has the
//! maximum number of users: document 004 added a flag for such full blocks later (trap T39).
//!
//! Source: document 004 (Kara, "ext\[24\]: MBCache rewrite", December 2015). `before-mbcache`
//! follows Linux 4.5 `fs/mbcache.c`.

mod lru;
mod one_lock;
mod rings;

pub(crate) use lru::Lru;
pub(crate) use one_lock::OneLock;

/// Returns the number of hash chains of an index for `entries` entries: a power of two.
fn chains(entries: usize) -> usize {
    entries.next_power_of_two().max(16)
}

/// Returns the hash chain of `word`, which is a key or the number of a block.
fn chain(word: u64, chains: usize) -> usize {
    // The upper bits of a product with the golden ratio depend on all bits of `word`.
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (chains - 1)
}

#[cfg(test)]
mod tests;
