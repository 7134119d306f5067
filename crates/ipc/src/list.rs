//! Doubly linked lists of messages, waiting calls or attaches. A link is the number of a cache
//! line.
//!
//! A word of the object contains the numbers of the first and the last member. A word of each
//! member contains the numbers of its neighbours. 0 means no member. The object's lock protects
//! these words.
//!
//! A damaged list gives wrong members, but no endless loop and no bad access. Walks are bounded,
//! and a number out of range leads to a line that no object uses (the scratch line).

use corewalk_base::Region;
use corewalk_base::primitives::atomic::AtomicU64;

use crate::field::{get, high, low, pair, put};

/// A list: its ends, and the region of its members.
#[derive(Clone, Copy)]
pub(crate) struct List<'s> {
    pub(crate) region: &'s Region,
    pub(crate) ends: &'s AtomicU64,
    /// Word with the links, in the first line of each member.
    pub(crate) links: usize,
    /// The number of lines of the members' pool. A walk ends after this many members, even if the
    /// list is damaged.
    pub(crate) max: u32,
}

impl<'s> List<'s> {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        get(self.ends) == 0
    }

    #[inline]
    pub(crate) fn push(&self, line: u32) {
        let (first, last) = (low(get(self.ends)), high(get(self.ends)));
        put(self.links(line), pair(last, 0));
        if last == 0 {
            put(self.ends, pair(line, line));
        } else {
            let before = self.links(last);
            put(before, pair(low(get(before)), line));
            put(self.ends, pair(first, line));
        }
    }

    #[inline]
    pub(crate) fn unlink(&self, line: u32) {
        let links = get(self.links(line));
        let (before, after) = (low(links), high(links));
        let (mut first, mut last) = (low(get(self.ends)), high(get(self.ends)));
        if before == 0 {
            first = after;
        } else {
            let links = self.links(before);
            put(links, pair(low(get(links)), after));
        }
        if after == 0 {
            last = before;
        } else {
            let links = self.links(after);
            put(links, pair(before, high(get(links))));
        }
        put(self.ends, pair(first, last));
    }

    /// Replaces all members of the list. The old words of the list may be damaged.
    pub(crate) fn set(&self, lines: impl IntoIterator<Item = u32>) {
        put(self.ends, 0);
        lines.into_iter().for_each(|line| self.push(line));
    }

    /// Returns the members in order. During the walk, the caller may unlink the member that was
    /// returned last.
    #[inline]
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> + use<'s> {
        let some = |line: u32| Some(line).filter(|line| *line != 0);
        let mut next = some(low(get(self.ends)));
        let walk = std::iter::from_fn(move || {
            let line = next?;
            next = some(high(get(self.links(line))));
            Some(line)
        });
        walk.take(self.max as usize)
    }

    #[inline]
    fn links(&self, line: u32) -> &'s AtomicU64 {
        &self.region.line(line)[self.links]
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn members_leave_from_any_place() {
        let region = Region::private(8).unwrap();
        let list = List { region: &region, ends: &region.line(7)[0], links: 1, max: 8 };
        assert!(list.is_empty());
        list.set([1, 2, 3, 4]);
        for (gone, left) in [(2, &[1, 3, 4][..]), (1, &[3, 4]), (4, &[3]), (3, &[])] {
            list.unlink(gone);
            assert!(list.iter().eq(left.iter().copied()), "{gone}");
        }
        assert!(list.is_empty());
    }

    #[test]
    fn walk_of_a_ring_ends() {
        let region = Region::private(8).unwrap();
        let list = List { region: &region, ends: &region.line(7)[0], links: 1, max: 5 };
        list.set([1, 2]);
        put(list.links(2), pair(1, 1));
        assert!(list.iter().eq([1, 2, 1, 2, 1]));
    }

    #[test]
    fn walk_goes_on_when_its_present_member_leaves() {
        let region = Region::private(8).unwrap();
        let list = List { region: &region, ends: &region.line(7)[0], links: 1, max: 8 };
        list.set(1..=4);
        let seen: Vec<u32> = list.iter().inspect(|line| list.unlink(*line)).collect();
        assert_eq!(seen, [1, 2, 3, 4]);
        assert!(list.is_empty());
    }
}
