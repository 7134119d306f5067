//! Two ways to keep a name that readers cannot see torn, with everything else alike.
//!
//! A reader without a lock may take one name's length with another's bytes: that was Viro's objection
//! to translating dentries into paths without `rename_lock`. Both layouts here make it impossible;
//! they differ in what a reader pays.
//!
//! | layout | a name lives in | a reader pays | a rename |
//! |---|---|---|---|
//! | `slots` ([`Slots`]) | words of a slot that is never unmapped | two loads of the slot's sequence | writes the words inside a write section |
//! | `links` ([`Links`]) | an immutable object behind one pointer, the first one inline | a read section per operation | publishes a new object, the old one waits for a grace period |
//!
//! `links-held` is `links` with one read section for 64 operations, which shows what the section
//! itself costs. All of them find names through the same table (`buckets`), hash alike, and check a
//! path by collecting it and looking again at every version they saw.
//!
//! # What they leave out
//! Reference counts, negative entries, permissions, reclaim: all that does not depend on the choice.
//!
//! Source: Long, "dcache: Translating dentry into pathname without taking rename_lock", and Viro's
//! answer, September 2013.

mod buckets;
mod links;
mod slots;

pub(crate) use links::{Links, LinksHeld};
pub(crate) use slots::Slots;

/// Levels that a path usually has, at most.
const DEPTH: usize = 16;
/// Bytes behind a name that may be overwritten while a path is put together.
const SLACK: usize = 40;

/// A way from a leaf to its root: which dentries, under which versions, with names how long.
///
/// The names are copied in a second pass, straight to where they belong in the path. What they were
/// copied from may have changed by then, as it may have before; the versions tell.
struct Climb {
    levels: Vec<Level>,
    len: usize,
}

#[derive(Clone, Copy)]
struct Level {
    slot: u32,
    name_len: u32,
    version: u64,
}

impl Climb {
    fn new() -> Climb {
        Climb { levels: Vec::with_capacity(DEPTH), len: 0 }
    }

    /// Adds the next dentry on the way up.
    #[inline]
    fn add(&mut self, slot: u32, version: u64, name_len: usize) {
        self.levels.push(Level { slot, name_len: name_len as u32, version });
        self.len += name_len + 1;
    }

    /// Returns the path, whose names `copy` stores: it gets the slot, the length of the name, and
    /// room for it and [`SLACK`] bytes more, which it may overwrite.
    ///
    /// So a short name is copied as a whole line, without a branch on its length. That length comes
    /// from memory that is often not in a cache: a branch that is predicted wrong there throws away
    /// all that was begun meanwhile.
    #[inline]
    fn path(&self, mut copy: impl FnMut(u32, usize, &mut [u8])) -> Vec<u8> {
        let mut path = vec![b'/'; self.len.max(1) + SLACK];
        let mut start = 0;
        for level in self.levels.iter().rev() {
            path[start] = b'/';
            copy(level.slot, level.name_len as usize, &mut path[start + 1..]);
            start += level.name_len as usize + 1;
        }
        path.truncate(self.len.max(1));
        path
    }

    /// Returns true if every version is what `now` says it is.
    #[inline]
    fn is_snapshot(&self, now: impl Fn(u32) -> u64) -> bool {
        self.levels.iter().all(|level| now(level.slot) == level.version)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::baseline::Namespace;
    use crate::corpus::Corpus;

    /// Returns each layout, loaded.
    pub(crate) fn all(corpus: &Corpus) -> Vec<Box<dyn Namespace>> {
        vec![
            Box::new(Slots::load(corpus).unwrap()),
            Box::new(Links::load(corpus).unwrap()),
            Box::new(LinksHeld(Links::load(corpus).unwrap())),
        ]
    }

    #[test]
    fn every_layout_answers_every_question_about_the_tree() {
        let corpus = Corpus::collect(3000);
        for layout in all(&corpus) {
            for ino in corpus.inodes().skip(1) {
                let (parent, name) = (corpus.parent(ino), corpus.name(ino));
                assert_eq!(layout.lookup(parent, name), Some(ino));
                assert_eq!(layout.path(ino), Some(corpus.path(ino)));
                assert_eq!(layout.walk(&corpus.path(ino)), Some(ino));
            }
            assert_eq!(layout.lookup(1, b"no-such-name"), None);
            assert_eq!((layout.path(0), layout.path(3001)), (None, None));
        }
    }
}
