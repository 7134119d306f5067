//! The designs of the de-duplication index that document 004 started from and compared.
//!
//! | variant | to find an entry | to let go of it | recency |
//! |---|---|---|---|
//! | `before-mbcache` | the cache's lock; waits for whoever has the entry alone | the cache's lock | a list of entries that nobody holds, under the same lock |
//! | `plain-lru` | the lock of one chain | a count | one list with a lock of its own, moved at each use |
//! | `lru-per-shard` | the lock of one chain | a count | a list with a lock per processor (`list_lru`) |
//!
//! `before-mbcache` is Linux before 4.6: whoever takes a user off a block holds its entry alone
//! meanwhile, also if others stay, and who looks for the entry waits. The other two are those that the
//! document measured and did not submit: finders share an entry, and the block's own lock decides.
//!
//! # How fair they are
//! They are as fast as their protocol allows: no devices, no second key per entry, entries in arrays
//! that are linked by number, chains of a few. Locks are those of `corewalk_sync`, which sleep when
//! they wait long; the kernels' spin. None of them leaves out a block that has as many users as it may:
//! the flag for that came later (trap T39).
//!
//! # Locks and their order
//! `before-mbcache` has one. In the other two: a chain, then a list.
//!
//! Source: document 004 (Kara, "ext\[24\]: MBCache rewrite", December 2015); Linux 4.5
//! `fs/mbcache.c` for the first.

mod lru;
mod one_lock;
mod rings;

pub(crate) use lru::{ListPerShard, Lru, OneList};
pub(crate) use one_lock::OneLock;

/// Returns how many chains an index of so many entries has: a power of two.
fn chains(entries: usize) -> usize {
    entries.next_power_of_two().max(16)
}

/// Returns the chain of a key, or of a block's number, of so many.
fn chain(word: u64, chains: usize) -> usize {
    // The upper bits of a product with the golden ratio depend on all of the word.
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (chains - 1)
}

#[cfg(test)]
mod tests;
