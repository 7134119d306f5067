//! A multimap from the hash of a name to its entries, by linear hashing.
//!
//! A hash table that doubles its size moves every entry in one step, and blocks its directory
//! meanwhile. A tree of hashes has a cache miss per level.
//!
//! Linear hashing adds one bucket at a time, and moves some entries of one existing bucket to the
//! new one. A search finds the bucket by its number, and then looks through the bucket's few
//! entries.
//!
//! # Mechanism
//! The table stores pairs of a hash and a value. Let n be the number of buckets and m the smallest
//! power of two that is at least n. Hash h belongs to bucket h mod m if that bucket exists,
//! otherwise to bucket h mod m/2. A new bucket n - 1 gets its pairs from bucket n - 1 - m/2. When
//! bucket n - 1 is removed, its pairs move back to that bucket.
//!
//! A search returns the [`Position`] of the pair, so that a change or removal of the pair need not
//! search again.
//!
//! # Invariants
//! - H.1: every pair of a hash and a value is in the bucket to which its hash belongs.
//! - H.2: there are at most [`FILL_MAX`] pairs per bucket on average, and at least one bucket if
//!   there is a pair.
//!
//! # Limits
//! A search for a hash visits all values under this hash, because the index compares no names. So
//! the hash must be keyed (trap T54 in `traps.md`). The lock of the directory's inode protects the
//! index.
//!
//! Source: Litwin, "Linear Hashing: A New Tool for File and Table Addressing", 1980.

/// The maximum average number of pairs per bucket. An insertion that would exceed it adds a bucket.
const FILL_MAX: usize = 4;
/// The average number of pairs per bucket below which the table shrinks. Far below [`FILL_MAX`], so
/// that alternating insertions and removals do not split and merge buckets.
const FILL_MIN: usize = 2;

/// # Invariants
/// H.1, H.2.
pub(super) struct HashIndex {
    buckets: Vec<Vec<Pair>>,
    len: usize,
    /// m - 1; see the module documentation.
    mask: usize,
}

#[derive(Clone, Copy)]
struct Pair {
    hash: u32,
    value: u32,
}

/// The position of a pair in the index. It is valid until the index changes.
#[derive(Clone, Copy)]
pub(super) struct Position {
    bucket: u32,
    at: u32,
}

impl HashIndex {
    pub(super) fn new() -> HashIndex {
        HashIndex { buckets: Vec::new(), len: 0, mask: 0 }
    }

    #[inline]
    pub(super) fn find<R>(
        &self,
        hash: u32,
        mut is_wanted: impl FnMut(u32) -> Option<R>,
    ) -> Option<(Position, R)> {
        let bucket = bucket_of(hash, self.buckets.len(), self.mask);
        for (at, pair) in self.buckets.get(bucket)?.iter().enumerate() {
            if pair.hash == hash
                && let Some(found) = is_wanted(pair.value)
            {
                return Some((Position { bucket: bucket as u32, at: at as u32 }, found));
            }
        }
        None
    }

    pub(super) fn insert(&mut self, hash: u32, value: u32) {
        if self.len == self.buckets.len() * FILL_MAX {
            self.split();
        }
        self.push(Pair { hash, value });
        self.len += 1;
    }

    pub(super) fn remove(&mut self, position: Position) {
        self.take(position);
        self.len -= 1;
        if self.len < self.buckets.len() * FILL_MIN && self.buckets.len() > 1 {
            self.merge();
        }
    }

    #[inline]
    pub(super) fn rehash(&mut self, position: Position, hash: u32) {
        let Pair { value, .. } = self.take(position);
        self.push(Pair { hash, value });
    }

    #[inline]
    fn take(&mut self, position: Position) -> Pair {
        self.buckets[position.bucket as usize].swap_remove(position.at as usize)
    }

    #[inline]
    fn push(&mut self, pair: Pair) {
        let bucket = bucket_of(pair.hash, self.buckets.len(), self.mask);
        self.buckets[bucket].push(pair);
    }

    fn split(&mut self) {
        let new = self.buckets.len();
        let mut taken = Vec::new();
        if new > 0 {
            let old = &mut self.buckets[sibling_of(new)];
            let mask = mask_of(new + 1);
            taken = old.extract_if(.., |pair| bucket_of(pair.hash, new + 1, mask) == new).collect();
            old.shrink_to(old.len() + 2);
        }
        self.buckets.push(taken);
        self.mask = mask_of(new + 1);
    }

    /// Removes the last bucket and moves its pairs to the bucket from which it was split. There
    /// must be at least two buckets.
    fn merge(&mut self) {
        if let Some(last) = self.buckets.pop() {
            self.mask = mask_of(self.buckets.len());
            let sibling = sibling_of(self.buckets.len());
            self.buckets[sibling].extend(last);
            if self.buckets.len() <= self.buckets.capacity() / 4 {
                self.buckets.shrink_to(self.buckets.len() * 2);
            }
        }
    }
}

#[inline]
fn bucket_of(hash: u32, count: usize, mask: usize) -> usize {
    let bucket = hash as usize & mask;
    if bucket < count { bucket } else { bucket & (mask >> 1) }
}

fn mask_of(count: usize) -> usize {
    count.next_power_of_two() - 1
}

fn sibling_of(new: usize) -> usize {
    new - (new + 1).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(index: &HashIndex) {
        let count = index.buckets.len();
        assert!(index.len <= count * FILL_MAX && count > 0, "H.2");
        assert_eq!(index.mask, mask_of(count));
        assert_eq!(index.buckets.iter().map(Vec::len).sum::<usize>(), index.len);
        for (number, bucket) in index.buckets.iter().enumerate() {
            let is_here = |pair: &Pair| bucket_of(pair.hash, count, mask_of(count)) == number;
            assert!(bucket.iter().all(is_here), "H.1");
        }
    }

    fn values(index: &HashIndex, hash: u32) -> Vec<u32> {
        let mut values = Vec::new();
        let none = index.find(hash, |value| {
            values.push(value);
            None::<()>
        });
        assert!(none.is_none());
        values
    }

    #[test]
    fn bucket_of_covers_all_and_sibling_is_where_it_was() {
        for count in 1..100 {
            for hash in 0..300 {
                let of = |count| bucket_of(hash, count, mask_of(count));
                let (before, after) = (of(count), of(count + 1));
                assert!(before < count);
                let is_moved = after == count && before == sibling_of(count);
                assert!(before == after || is_moved, "hash {hash} of {count}");
            }
        }
    }

    #[test]
    fn index_keeps_pairs_while_it_grows_and_shrinks() {
        let mut index = HashIndex::new();
        let hash = |value: u32| (value / 2).wrapping_mul(0x9e37_79b9) ^ 0x7f4a_7c15;
        assert!(values(&index, 0).is_empty());
        for value in 0..5_000 {
            index.insert(hash(value), value);
            check(&index);
        }
        let longest = index.buckets.iter().map(Vec::len).max();
        assert!(longest < Some(40), "a bucket of {longest:?}");
        for value in 0..5_000 {
            let found = values(&index, hash(value));
            assert!(found.len() == 2 && found.contains(&value));
        }
        for value in 0..5_000 {
            let (position, ()) = index.find(hash(value), |v| (v == value).then_some(())).unwrap();
            index.rehash(position, !hash(value));
            check(&index);
            assert!(!values(&index, hash(value)).contains(&value));
            let (position, ()) = index.find(!hash(value), |v| (v == value).then_some(())).unwrap();
            index.remove(position);
            check(&index);
            assert_eq!(values(&index, hash(value)).len(), 1 - value as usize % 2);
        }
        assert_eq!((index.len, index.buckets.len()), (0, 1));
    }
}
