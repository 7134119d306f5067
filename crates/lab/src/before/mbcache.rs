//! The designs of the de-duplication index that document 004 started from and compared.
//!
//! - `before-mbcache`: to find an entry: the cache's lock; waits for a thread that has the entry
//!   alone; to release it: the cache's lock; recency: a list of entries that no thread holds, under
//!   the same lock.
//! - `plain-lru`: to find an entry: the lock of one chain; to release it: a count; recency: one
//!   list with its own lock, moved at each use.
//! - `lru-per-shard`: to find an entry: the lock of one chain; to release it: a count; recency: a
//!   list with a lock per processor (`list_lru`).
//!
//! `before-mbcache` is Linux before 4.6: a thread that takes a user off a block has its entry alone
//! meanwhile, and a finder waits. Document 004 measured the other two and did not submit them:
//! finders share an entry, and the block's own lock decides.
//!
//! Each design is as fast as its protocol allows: no devices, no second key per entry, entries in
//! arrays that are linked by number, short chains. Locks are those of `corewalk_base`, which sleep
//! when they wait long; the kernel's locks spin. No design leaves out a block that has as many
//! users as it may: the flag for that came later (trap T39).
//!
//! Source: document 004 (Kara, "ext\[24\]: MBCache rewrite", December 2015); Linux 4.5
//! `fs/mbcache.c` for the first.

mod lru;
mod one_lock;
mod rings;

pub(crate) use lru::Lru;
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
