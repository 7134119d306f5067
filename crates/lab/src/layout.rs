//! Two ways to keep a name that readers cannot see torn, with everything else alike.
//!
//! Viro's objection to document 001 was that a reader without a lock may take one name's length with
//! another's bytes. Both layouts here make that impossible; they differ in what a reader pays.
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
//! Source: DESIGN 4.1; section 4 of the notes on limits.

mod buckets;
mod links;
mod slots;

pub(crate) use links::{Links, LinksHeld};
pub(crate) use slots::Slots;

/// Levels of the deepest path that is translated in one pass without allocating.
const DEPTH_MAX: usize = 64;

/// A path that grows from its leaf to its root, in a buffer of its own.
struct Climb {
    bytes: [u8; 4096],
    start: usize,
    seen: [(u32, u64); DEPTH_MAX],
    depth: usize,
}

impl Climb {
    fn new() -> Climb {
        Climb { bytes: [0; 4096], start: 4096, seen: [(0, 0); DEPTH_MAX], depth: 0 }
    }

    /// Puts `/name` in front, and remembers under which version of `slot` it was read. Returns false
    /// if the path is longer or deeper than there is room for.
    #[inline]
    fn prepend(&mut self, slot: u32, version: u64, name: &[u8]) -> bool {
        if self.depth == DEPTH_MAX || self.start < name.len() + 1 {
            return false;
        }
        self.seen[self.depth] = (slot, version);
        self.depth += 1;
        let end = self.start;
        self.start -= name.len() + 1;
        self.bytes[self.start] = b'/';
        self.bytes[self.start + 1..end].copy_from_slice(name);
        true
    }

    /// Returns true if every version is what `now` says it is.
    #[inline]
    fn is_snapshot(&self, now: impl Fn(u32) -> u64) -> bool {
        self.seen[..self.depth].iter().all(|&(slot, version)| now(slot) == version)
    }

    #[inline]
    fn to_path(&self) -> Vec<u8> {
        if self.depth == 0 { b"/".to_vec() } else { self.bytes[self.start..].to_vec() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Namespace;
    use crate::corpus::Corpus;
    use crate::lane::{Lane, Op, Stop};
    use corewalk_sync::primitives::{Arc, thread};

    fn all(corpus: &Corpus) -> Vec<Arc<dyn Namespace>> {
        vec![
            Arc::new(Slots::load(corpus).unwrap()),
            Arc::new(Links::load(corpus).unwrap()),
            Arc::new(LinksHeld(Links::load(corpus).unwrap())),
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
        }
    }

    /// Viro's objection to document 001, trap T1: a name is never made of two.
    #[test]
    fn path_beside_renames_is_one_of_those_that_existed() {
        let corpus = Corpus::collect(1500);
        let moved = corpus.movable();
        let (home, away) = ((moved.home.0, &moved.home.1[..]), (moved.away.0, &moved.away.1[..]));
        for layout in all(&corpus) {
            let lane = Lane::draw(&corpus, &moved, Op::Path, 4096, 11);
            let reader = thread::spawn({
                let layout = Arc::clone(&layout);
                move || {
                    let stop = Stop::after(200_000);
                    lane.ask(0, &stop, |target, expected| {
                        lane.is_path(target, expected, layout.path(target.ino).as_deref(), 0)
                    })
                }
            });
            for _ in 0..20_000 {
                assert!(layout.rename(home, away) && layout.rename(away, home));
            }
            let tally = reader.join().expect("the reader panicked");
            assert_eq!(tally.wrong, 0, "{} of {}: {}", tally.wrong, tally.ops, layout.variant());
        }
    }
}
