//! A name to look for, and the words that names are compared by.
//!
//! A name word is the eight bytes of the name at eight times its number or, where the name would end
//! within them, the last eight of the name ([`name_word_at`]). So the words of a name are read from it
//! without a shift or a mask, and equal words of equal lengths are equal names. All words of a name
//! that is shorter than one are that one, filled up with zeroes.
//!
//! Lengths of names are not to be foreseen, so there is next to no branch on them. The words are
//! compared two at a time, with the part of the body that tells the length: all of that waits for the
//! dentry's line, and the less there is of it the more lookups a processor has under way.

use corewalk_base::WordPair;

use super::{Body, DIRECTORY_ROOM, Flags, INLINE_WORDS, PAIRS};
use crate::hash::{Keys, NameHash, SHORT_WORDS};
use crate::name::{Name, eight, padded};

/// The flags of a dentry that can be found and whose name goes on elsewhere.
pub(super) const LONG_NAMED: Flags = Flags::HASHED.union(Flags::LONG);
/// The parts of a body that a comparison of names looks at: length, [`Flags::HASHED`], [`Flags::LONG`].
pub(super) const NAMED_MASK: u64 =
    (0xff << 24) | (Flags::HASHED.bits() | Flags::LONG.bits()) as u64;

/// The longest name that no dentry has elsewhere, in bytes; nearly all names of directories are shorter.
pub(crate) const SHORT_MAX: usize = 8 * DIRECTORY_ROOM;
/// The parts of a body that say, besides the length, whether a dentry is one that a walk need not think
/// about.
const PLAIN_MASK: u64 = NAMED_MASK | Flags::SYMLINK.union(Flags::MOUNTED).bits() as u64;

/// A component of at most [`SHORT_MAX`] bytes, ready to be compared with the words of a dentry that a
/// walk need not think about: neither a symbolic link nor a mount point.
#[derive(Clone, Copy)]
pub(crate) struct ShortNeedle {
    pub(crate) hash: NameHash,
    len: usize,
    needed: Flags,
    pub(super) words: [u64; SHORT_WORDS],
}

impl ShortNeedle {
    /// Returns the component that begins at `start` of a path and ends with it, of a dentry that has the
    /// flags in `needed`. The one branch on its length is that which tells the first component.
    #[inline(always)]
    pub(crate) fn of_component(
        (path, start): (&[u8], usize),
        needed: Flags,
        keys: &Keys,
    ) -> ShortNeedle {
        let len = path.len() - start;
        debug_assert!(len <= SHORT_MAX);
        let words = component_words(path, start);
        ShortNeedle { hash: keys.short_name(len, words), len, needed, words }
    }

    /// Returns true if the name of a dentry may be this one, as far as its body tells, and it is plain.
    #[inline(always)]
    pub(super) fn is_of(&self, body: Body) -> bool {
        let needed = u64::from(self.needed.bits());
        let plain = ((self.len as u64) << 24) | u64::from(Flags::HASHED.bits()) | needed;
        body.0 & (PLAIN_MASK | needed) == plain
    }
}

/// A name ready to be compared with the words of a dentry.
#[derive(Clone, Copy)]
pub(crate) struct Needle<'a> {
    pub(crate) name: Name<'a>,
    /// The keyed hash of the name alone.
    pub(crate) hash: NameHash,
    /// What the words of a file's dentry from the body on are, as far as they count.
    pub(super) pairs: [WordPair; PAIRS],
    /// Which bits of the last pair count.
    pub(super) last: WordPair,
}

impl<'a> Needle<'a> {
    #[inline(always)]
    pub(crate) fn new(name: Name<'a>, keys: &Keys) -> Needle<'a> {
        Needle::of_words(name, name_words(name.as_bytes()), keys)
    }

    /// Returns the component that begins at `start` of a path and ends with it, with no branch on its
    /// length.
    #[inline(always)]
    pub(crate) fn of_component(path: &'a [u8], start: usize, keys: &Keys) -> Needle<'a> {
        Needle::of_words(Name::unchecked(&path[start..]), component_words(path, start), keys)
    }

    #[inline(always)]
    fn of_words(name: Name<'a>, words: [u64; INLINE_WORDS], keys: &Keys) -> Needle<'a> {
        let len = name.as_bytes().len();
        let flags = if len > 8 * INLINE_WORDS { LONG_NAMED } else { Flags::HASHED };
        let named = ((len as u64) << 24) | u64::from(flags.bits());
        // A directory has something else in the last words; a name that gets so far is long there.
        let last = if len > 8 * DIRECTORY_ROOM { u64::MAX } else { 0 };
        Needle {
            name,
            hash: keys.name(name.as_bytes(), &words),
            pairs: std::array::from_fn(|i| match i {
                0 => WordPair::new(named, words[0]),
                _ => WordPair::new(words[2 * i - 1], words[2 * i]),
            }),
            last: WordPair::new(last, last),
        }
    }

    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.name.as_bytes().len() > 8 * INLINE_WORDS
    }
}

/// Returns how many words `len` bytes of a name take.
#[inline]
pub(super) fn words_of(len: usize) -> usize {
    len.div_ceil(8)
}

/// Returns where in a name of `len` bytes the word begins that stands for the eight at `at`.
#[inline(always)]
pub(super) fn name_word_at(at: usize, len: usize) -> usize {
    at.min(len.saturating_sub(8))
}

/// Returns the word that stands for the eight bytes at `at` of a name that is no shorter than that.
///
/// # Panics
/// If the name has less than eight bytes.
#[inline]
pub(crate) fn name_word(name: &[u8], at: usize) -> u64 {
    eight(name, at.min(name.len() - 8))
}

/// Returns the first words of a name. Lengths of names are not to be foreseen, so there is no branch
/// on them but the one for very short names, of which all words are the same.
#[inline(always)]
pub(super) fn name_words(name: &[u8]) -> [u64; INLINE_WORDS] {
    let Some(last) = name.len().checked_sub(8) else { return [padded(name); INLINE_WORDS] };
    std::array::from_fn(|i| eight(name, last.min(8 * i)))
}

/// As [`name_words`] of the component that begins at `start` of a path and ends with it: what is read of
/// a short one begins before it, and is shifted out.
#[inline(always)]
fn component_words<const N: usize>(path: &[u8], start: usize) -> [u64; N] {
    // Nothing lies before the first component.
    let Some(last) = path.len().checked_sub(8) else { return [padded(&path[start..]); N] };
    let excess = 8 * (start - start.min(last)) as u32;
    std::array::from_fn(|i| eight(path, (start + 8 * i).min(last)).wrapping_shr(excess))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn component_has_the_words_of_its_name() {
        for len in 1..80 {
            let path: Vec<u8> = (1..=len).collect();
            for start in 0..path.len() {
                for end in start + 1..=path.len() {
                    let words: [u64; INLINE_WORDS] = component_words(&path[..end], start);
                    assert_eq!(words, name_words(&path[start..end]), "{start}..{end} of {len}");
                }
            }
        }
    }
}
