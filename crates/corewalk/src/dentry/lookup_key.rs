//! The lookup key: a name with its hash, and with the words by which names are compared.
//!
//! Analogous to Linux's `struct qstr`. Word i of a name holds the eight bytes from byte 8 * i on.
//! Where the name ends within these bytes, the word holds the last eight bytes of the name instead
//! ([`name_word_at`]). So reading the words needs no shift and no mask, and equal words with equal
//! lengths mean equal names. If a name is shorter than a word, each of its words is the name padded
//! with zeroes.
//!
//! A processor predicts branches on the length of a name badly, so there is almost no such branch.
//! Names are compared two words at a time, together with the length, which is in the body word of
//! the dentry. The instructions of a comparison wait until the dentry's cache line arrives. The
//! fewer they are, the more lookups the processor can run at the same time.

use corewalk_base::WordPair;

use super::{Body, DIRECTORY_ROOM, Flags, INLINE_WORDS, PAIRS};
use crate::hash::{HashKeys, NameHash, SHORT_WORDS};
use crate::name::{Name, eight, name_words, padded};

/// The flags of a hashed dentry with a long name.
pub(super) const LONG_NAMED: Flags = Flags::HASHED.union(Flags::LONG);
/// The bits of a dentry's body that a comparison of names uses: length, [`Flags::HASHED`],
/// [`Flags::LONG`].
pub(super) const NAMED_MASK: u64 =
    (0xff << 24) | (Flags::HASHED.bits() | Flags::LONG.bits()) as u64;

/// The longest name, in bytes, that is inline in every dentry, also in that of a directory. Nearly
/// all names of directories are shorter.
pub(crate) const SHORT_MAX: usize = 8 * DIRECTORY_ROOM;
/// The bits of a dentry's body that tell the length of the name and whether the dentry is plain.
const PLAIN_MASK: u64 = NAMED_MASK | Flags::SYMLINK.union(Flags::MOUNTED).bits() as u64;

/// The last component of a path: the bytes from `start` to the end of `path`.
#[derive(Clone, Copy)]
pub(crate) struct Component<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) start: usize,
}

/// The lookup key of a component of at most [`SHORT_MAX`] bytes, for plain dentries only: neither a
/// symbolic link nor a mount point.
#[derive(Clone, Copy)]
pub(crate) struct ShortLookupKey {
    pub(crate) hash: NameHash,
    len: usize,
    needed: Flags,
    pub(super) words: [u64; SHORT_WORDS],
}

impl ShortLookupKey {
    /// Returns the key of the component from `start` to the end of a path, for a dentry with the
    /// flags in `needed`. Its only branch on a length tests whether the path has fewer than eight
    /// bytes.
    #[inline(always)]
    pub(crate) fn of_component(
        component: Component<'_>,
        needed: Flags,
        keys: &HashKeys,
    ) -> ShortLookupKey {
        let len = component.len();
        debug_assert!(len <= SHORT_MAX);
        let words = component.words();
        ShortLookupKey { hash: keys.short_name(len, words), len, needed, words }
    }

    /// Returns true if a dentry with this body is hashed and plain, has the needed flags, and has a
    /// name of the same length.
    #[inline(always)]
    pub(super) fn is_of(&self, body: Body) -> bool {
        let needed = u64::from(self.needed.bits());
        let plain = ((self.len as u64) << 24) | u64::from(Flags::HASHED.bits()) | needed;
        body.0 & (PLAIN_MASK | needed) == plain
    }
}

/// A name, ready to be compared with the words of a dentry.
#[derive(Clone, Copy)]
pub(crate) struct LookupKey<'a> {
    pub(crate) name: Name<'a>,
    /// The keyed hash of the name alone.
    pub(crate) hash: NameHash,
    /// The words that the dentry of a file with this name has, from its body word on, in pairs.
    pub(super) pairs: [WordPair; PAIRS],
    /// The mask for the last pair of words: the bits that are set in it are compared.
    pub(super) last: WordPair,
}

impl<'a> LookupKey<'a> {
    #[inline(always)]
    pub(crate) fn new(name: Name<'a>, keys: &HashKeys) -> LookupKey<'a> {
        LookupKey::of_words(name, name_words(name.as_bytes()), keys)
    }

    /// Returns the key of a component, without a branch on its length.
    #[inline(always)]
    pub(crate) fn of_component(component: Component<'a>, keys: &HashKeys) -> LookupKey<'a> {
        let name = Name::unchecked(&component.path[component.start..]);
        LookupKey::of_words(name, component.words(), keys)
    }

    #[inline(always)]
    fn of_words(name: Name<'a>, words: [u64; INLINE_WORDS], keys: &HashKeys) -> LookupKey<'a> {
        let len = name.as_bytes().len();
        let flags = if len > 8 * INLINE_WORDS { LONG_NAMED } else { Flags::HASHED };
        let named = ((len as u64) << 24) | u64::from(flags.bits());
        // In a directory, the last pair of words is the inode number and the child generation. So
        // compare the last pair only if the name is long enough to reach into it. Such a name is
        // never inline in a directory's dentry.
        let last = if len > 8 * DIRECTORY_ROOM { u64::MAX } else { 0 };
        LookupKey {
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

/// Returns the number of words that `len` bytes of a name take.
#[inline]
pub(super) fn words_of(len: usize) -> usize {
    len.div_ceil(8)
}

/// Returns the position at which the word of byte `at` begins, in a name of `len` bytes. A word
/// that would pass the end of the name begins earlier.
#[inline(always)]
pub(super) fn name_word_at(at: usize, len: usize) -> usize {
    at.min(len.saturating_sub(8))
}

impl Component<'_> {
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.path.len() - self.start
    }

    /// Returns the first words of this component, as [`name_words`] does. If the component is
    /// shorter than a word, the read begins before the component, and the excess bytes are shifted
    /// out.
    #[inline(always)]
    fn words<const N: usize>(self) -> [u64; N] {
        let Component { path, start } = self;
        // No byte precedes the first component.
        let Some(last) = path.len().checked_sub(8) else { return [padded(&path[start..]); N] };
        let excess = 8 * (start - start.min(last)) as u32;
        std::array::from_fn(|i| eight(path, (start + 8 * i).min(last)).wrapping_shr(excess))
    }
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
                    let component = Component { path: &path[..end], start };
                    let words: [u64; INLINE_WORDS] = component.words();
                    assert_eq!(
                        words,
                        name_words::<INLINE_WORDS>(&path[start..end]),
                        "{start}..{end} of {len}"
                    );
                }
            }
        }
    }
}
