//! A map of the contents of a file. Each piece is a range of the file whose bytes are in an object
//! or are zeros. A range without a piece has inline bytes, or is a hole.
//!
//! A newer piece hides the older ones. Pieces in the map never overlap: a new piece replaces the
//! parts of older pieces that it hides.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The source of a range of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Zeros,
    /// Bytes of an object: its key, the offset of the first byte in the object, and the length of
    /// the object.
    Object(Arc<str>, u64, u64),
}

impl Source {
    /// Returns the source without its first `skip` bytes.
    fn after(&self, skip: u64) -> Source {
        match self {
            Source::Zeros => Source::Zeros,
            Source::Object(key, offset, len) => Source::Object(key.clone(), offset + skip, *len),
        }
    }
}

/// The pieces of a file. The key is the offset of a piece in the file, and the value its end and
/// its source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces(BTreeMap<u64, (u64, Source)>);

impl Pieces {
    /// Adds a piece over all others.
    pub(crate) fn add(&mut self, range: Range<u64>, source: Source) {
        if range.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let hidden: Vec<u64> = self.0.range(range.clone()).map(|(start, _)| *start).collect();
        for start in hidden {
            self.0.remove(&start);
        }
        self.0.insert(range.start, (range.end, source));
    }

    /// Removes all bytes at `size` and behind it.
    pub(crate) fn cut(&mut self, size: u64) {
        self.split(size);
        self.0.split_off(&size);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the pieces that overlap a range, each cut to the range.
    pub(crate) fn in_range(&self, range: Range<u64>) -> Vec<(Range<u64>, Source)> {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.clone());
        before
            .into_iter()
            .chain(inside)
            .filter_map(|(start, (end, source))| {
                let part = (*start).max(range.start)..(*end).min(range.end);
                (!part.is_empty()).then(|| (part.clone(), source.after(part.start - start)))
            })
            .collect()
    }

    /// Returns the source of the piece that contains the byte `at`. If there is none, returns the
    /// source of the next piece.
    pub(crate) fn next(&self, at: u64) -> Option<&Source> {
        let before = self.0.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
        before.or_else(|| self.0.range(at..).next()).map(|(_, (_, source))| source)
    }

    /// If a piece begins before `at` and ends behind it, cuts the piece in two at `at`.
    fn split(&mut self, at: u64) {
        let Some((start, (end, source))) = self.0.range_mut(..at).next_back() else { return };
        if *end > at {
            let (start, rest) = (*start, (*end, source.after(at - *start)));
            *end = at;
            debug_assert!(start < at);
            self.0.insert(at, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_testkit::rng::{Rng, Seed};

    #[test]
    fn newer_piece_hides_older_ones() {
        let mut pieces = Pieces::default();
        let object = |key: &str, offset| Source::Object(key.into(), offset, 100);
        pieces.add(0..100, object("a", 0));
        pieces.add(40..60, object("b", 0));
        pieces.add(50..55, Source::Zeros);
        assert_eq!(
            pieces.in_range(30..70),
            [
                (30..40, object("a", 30)),
                (40..50, object("b", 0)),
                (50..55, Source::Zeros),
                (55..60, object("b", 15)),
                (60..70, object("a", 60)),
            ]
        );
        pieces.cut(52);
        assert_eq!(pieces.in_range(45..200), [(45..50, object("b", 5)), (50..52, Source::Zeros)]);
    }

    /// Compares random pieces with an array of bytes.
    #[test]
    fn random_pieces_are_where_they_were_put() {
        let mut rng = Rng::new(Seed::parse("0x7").unwrap());
        for _ in 0..200 {
            let (mut pieces, mut model) = (Pieces::default(), [None; 64]);
            for key in 0..12_u64 {
                let (from, to) = (rng.below(64), rng.below(65));
                if rng.below(6) == 0 {
                    pieces.cut(from);
                    model[from as usize..].fill(None);
                } else if from < to {
                    pieces.add(from..to, Source::Object(key.to_string().into(), 0, 64));
                    for at in from..to {
                        model[at as usize] = Some((key, at - from));
                    }
                }
            }
            let mut found = [None; 64];
            for (range, source) in pieces.in_range(0..64) {
                let Source::Object(key, offset, _) = source else { panic!("{source:?}") };
                for at in range.clone() {
                    found[at as usize] = Some((key.parse().unwrap(), offset + at - range.start));
                }
            }
            assert_eq!(found, model);
        }
    }
}
