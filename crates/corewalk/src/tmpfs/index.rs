//! From the hash of a name to the cookies of the entries that have it.
//!
//! A table that doubles when it is full stops its directory for as long as it takes to move every
//! entry, and a tree of hashes misses the cache at every level. Linear hashing does neither: the
//! table grows by one bucket at a time, and adding that bucket splits one other. Finding a hash
//! takes two steps, one to the bucket and one to its few entries.
//!
//! # How it works
//! With n buckets and m the power of two at or above n, hash h belongs to bucket h mod m, or, as
//! long as that bucket does not exist yet, to bucket h mod m/2. Bucket n, when it comes, takes its
//! part out of bucket n - m/2, and gives it back when it goes.
//!
//! # Invariants
//! - H.1: every pair is in the bucket that its hash belongs to.
//! - H.2: there are at most [`FILL_MAX`] pairs per bucket on average, and at least one bucket.
//!
//! # What it refuses
//! It compares no names: pairs with one hash are all reported. The hash must be keyed (trap T54).
//! No locks: the directory's owner has one.
//!
//! Source: Litwin, "Linear Hashing: A New Tool for File and Table Addressing", 1980.

/// Pairs per bucket, on average, at which the table grows.
const FILL_MAX: usize = 8;
/// Pairs per bucket, on average, below which it shrinks; far from [`FILL_MAX`], so that a name
/// that comes and goes does not split and merge each time.
const FILL_MIN: usize = 3;

/// A multimap from hashes to cookies.
///
/// # Invariants
/// H.1, H.2.
pub(super) struct HashIndex {
    buckets: Vec<Vec<(u64, u64)>>,
    len: usize,
}

impl HashIndex {
    /// Returns an empty index.
    pub(super) fn new() -> HashIndex {
        HashIndex { buckets: Vec::new(), len: 0 }
    }

    /// Returns the cookies that go with `hash`.
    pub(super) fn get(&self, hash: u64) -> impl Iterator<Item = u64> {
        let bucket = self.buckets.get(bucket_of(hash, self.buckets.len()));
        let pairs = bucket.into_iter().flatten();
        pairs.filter(move |pair| pair.0 == hash).map(|pair| pair.1)
    }

    /// Adds a pair.
    pub(super) fn insert(&mut self, hash: u64, cookie: u64) {
        if self.len == self.buckets.len() * FILL_MAX {
            self.split();
        }
        let count = self.buckets.len();
        self.buckets[bucket_of(hash, count)].push((hash, cookie));
        self.len += 1;
    }

    /// Removes a pair.
    pub(super) fn remove(&mut self, hash: u64, cookie: u64) {
        let count = self.buckets.len();
        let Some(bucket) = self.buckets.get_mut(bucket_of(hash, count)) else { return };
        let Some(index) = bucket.iter().position(|&pair| pair == (hash, cookie)) else { return };
        bucket.swap_remove(index);
        self.len -= 1;
        if self.len < self.buckets.len() * FILL_MIN && self.buckets.len() > 1 {
            self.merge();
        }
    }

    /// Adds a bucket.
    fn split(&mut self) {
        let new = self.buckets.len();
        let mut taken = Vec::new();
        if new > 0 {
            let old = &mut self.buckets[sibling_of(new)];
            taken = old.extract_if(.., |pair| bucket_of(pair.0, new + 1) == new).collect();
            old.shrink_to(old.len() + 2);
        }
        self.buckets.push(taken);
    }

    /// Removes a bucket, of which there are at least two.
    fn merge(&mut self) {
        if let Some(last) = self.buckets.pop() {
            let sibling = sibling_of(self.buckets.len());
            self.buckets[sibling].extend(last);
            if self.buckets.len() <= self.buckets.capacity() / 4 {
                self.buckets.shrink_to(self.buckets.len() * 2);
            }
        }
    }
}

/// Returns the bucket, of `count`, that `hash` belongs to.
fn bucket_of(hash: u64, count: usize) -> usize {
    let mask = count.next_power_of_two() - 1;
    let bucket = hash as usize & mask;
    if bucket < count { bucket } else { bucket & (mask >> 1) }
}

/// Returns the bucket that bucket `new`, which is not the first, takes its part from.
fn sibling_of(new: usize) -> usize {
    new - (new + 1).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks H.1 and H.2.
    fn check(index: &HashIndex) {
        let count = index.buckets.len();
        assert!(index.len <= count * FILL_MAX && count > 0, "H.2");
        for (number, bucket) in index.buckets.iter().enumerate() {
            assert!(bucket.iter().all(|pair| bucket_of(pair.0, count) == number), "H.1");
        }
    }

    #[test]
    fn bucket_of_covers_all_and_sibling_is_where_it_was() {
        for count in 1..100 {
            for hash in 0..300 {
                let (before, after) = (bucket_of(hash, count), bucket_of(hash, count + 1));
                assert!(before < count);
                let is_moved = after == count && before == sibling_of(count);
                assert!(before == after || is_moved, "hash {hash} of {count}");
            }
        }
    }

    #[test]
    fn index_keeps_pairs_while_it_grows_and_shrinks() {
        let mut index = HashIndex::new();
        let hash = |cookie: u64| (cookie / 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 7;
        assert_eq!(index.get(0).next(), None);
        for cookie in 0..5_000 {
            index.insert(hash(cookie), cookie);
            check(&index);
        }
        let longest = index.buckets.iter().map(Vec::len).max();
        assert!(longest < Some(40), "a bucket of {longest:?}");
        for cookie in 0..5_000 {
            let found: Vec<u64> = index.get(hash(cookie)).collect();
            assert!(found.len() == 2 && found.contains(&cookie));
        }
        for cookie in 0..5_000 {
            index.remove(hash(cookie), cookie);
            index.remove(hash(cookie), cookie);
            check(&index);
            assert_eq!(index.get(hash(cookie)).count(), 1 - cookie as usize % 2);
        }
        assert_eq!((index.len, index.buckets.len()), (0, 1));
    }
}
