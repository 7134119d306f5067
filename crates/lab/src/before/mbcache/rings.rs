//! Doubly linked lists of numbered entries, as `struct list_head` links structures in Linux.
//!
//! An entry is in one list or in none. One array has the links of the entries and then the heads of
//! the lists. A list is a ring through its head, so `unlink` does not need to know the list.
//!
//! Source: Linux `include/linux/list.h`, for the idea.

/// Lists of the entries `0..entries`.
pub(super) struct Rings {
    /// The numbers of the previous and the next entry: for each entry, and then for each head of a
    /// list.
    links: Vec<(u32, u32)>,
    entries: u32,
}

impl Rings {
    /// Returns `rings` empty lists for the entries `0..entries`.
    pub(super) fn new(entries: usize, rings: usize) -> Rings {
        let links = (0..(entries + rings) as u32).map(|at| (at, at)).collect();
        Rings { links, entries: entries as u32 }
    }

    /// Returns the entry that comes after `entry`.
    pub(super) fn next(&self, entry: u32) -> Option<u32> {
        Some(self.links[entry as usize].1).filter(|&next| next < self.entries)
    }

    /// Returns the first entry of a list.
    pub(super) fn first(&self, ring: usize) -> Option<u32> {
        self.next(self.head(ring))
    }

    /// Puts an unlinked entry at the front of a list.
    pub(super) fn push_front(&mut self, ring: usize, entry: u32) {
        let head = self.head(ring);
        self.insert(entry, head, self.links[head as usize].1);
    }

    /// Puts an unlinked entry at the end of a list.
    pub(super) fn push_back(&mut self, ring: usize, entry: u32) {
        let head = self.head(ring);
        self.insert(entry, self.links[head as usize].0, head);
    }

    /// Removes an entry from its list, if it is in one.
    pub(super) fn unlink(&mut self, entry: u32) {
        let (previous, next) = self.links[entry as usize];
        self.links[previous as usize].1 = next;
        self.links[next as usize].0 = previous;
        self.links[entry as usize] = (entry, entry);
    }

    /// Returns true if the entry is in a list.
    pub(super) fn is_linked(&self, entry: u32) -> bool {
        self.links[entry as usize].1 != entry
    }

    fn insert(&mut self, entry: u32, previous: u32, next: u32) {
        debug_assert!(!self.is_linked(entry), "an entry is in one list");
        self.links[entry as usize] = (previous, next);
        self.links[previous as usize].1 = entry;
        self.links[next as usize].0 = entry;
    }

    fn head(&self, ring: usize) -> u32 {
        self.entries + ring as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(rings: &Rings, ring: usize) -> Vec<u32> {
        std::iter::successors(rings.first(ring), |&entry| rings.next(entry)).collect()
    }

    #[test]
    fn entries_stand_where_they_were_put_and_go_from_anywhere() {
        let mut rings = Rings::new(4, 2);
        rings.push_back(0, 2);
        rings.push_back(0, 0);
        rings.push_front(0, 3);
        rings.push_back(1, 1);
        assert_eq!((all(&rings, 0), all(&rings, 1)), (vec![3, 2, 0], vec![1]));
        rings.unlink(2);
        rings.unlink(1);
        assert_eq!((all(&rings, 0), all(&rings, 1)), (vec![3, 0], vec![]));
        assert!(!rings.is_linked(1) && rings.is_linked(0));
        rings.unlink(1);
        rings.push_back(1, 2);
        assert_eq!(all(&rings, 1), [2]);
    }
}
