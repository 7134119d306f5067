//! The lookup key: a name, its hash, and its words in the form in which dentries store names.
//!
//! Analogous to Linux's `struct qstr`. Word i of a name holds its bytes from 8 * i on. If fewer
//! than eight bytes remain, the word holds the last eight bytes of the name instead, which overlap
//! the word before ([`name_word_at`]).
//!
//! Because of the overlap, the words of a name are read without shift and mask. Names of equal
//! length are equal if their words are. A name shorter than eight bytes has one distinct word, the
//! name padded with zeroes, which is stored repeatedly.
//!
//! Branches on the length of a name are often mispredicted, so this code avoids them. It compares
//! names two words at a time, together with the dentry's body word, which contains the length.

use corewalk_base::WordPair;

use super::{Body, DIRECTORY_ROOM, Flags, INLINE_MAX, INLINE_WORDS, PAIRS};
use crate::hash::{HashKeys, NameHash, SHORT_WORDS};
use crate::name::{Name, eight, name_words, padded};

pub(super) const LONG_NAMED: Flags = Flags::HASHED.union(Flags::LONG);
/// The bits of a dentry's body word that a comparison of names includes: the name's length,
/// [`Flags::HASHED`] and [`Flags::LONG`].
pub(super) const NAMED_MASK: u64 =
    (0xff << 24) | (Flags::HASHED.bits() | Flags::LONG.bits()) as u64;

/// The length in bytes up to which a name is inline in any dentry. The dentries of directories have
/// the least room.
pub(crate) const SHORT_MAX: usize = 8 * DIRECTORY_ROOM;
/// The bits of a dentry's body word that tell the name's length, and whether the dentry is plain. A
/// plain dentry is neither a symbolic link nor a mount point.
const PLAIN_MASK: u64 = NAMED_MASK | Flags::SYMLINK.union(Flags::MOUNTED).bits() as u64;

#[derive(Clone, Copy)]
pub(crate) struct Component<'a> {
    pub(crate) path: &'a [u8],
    pub(crate) start: usize,
}

/// The lookup key of a path component of at most [`SHORT_MAX`] bytes. It matches only plain
/// dentries, which are neither symbolic links nor mount points.
#[derive(Clone, Copy)]
pub(crate) struct ShortLookupKey {
    pub(crate) hash: NameHash,
    len: usize,
    needed: Flags,
    pub(super) words: [u64; SHORT_WORDS],
}

impl ShortLookupKey {
    /// Returns the lookup key of a component. It matches only dentries that have the flags
    /// `needed`. Branches on lengths are often mispredicted. So this function has only one, for a
    /// path of fewer than eight bytes.
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

    #[inline(always)]
    pub(super) fn is_of(&self, body: Body) -> bool {
        let needed = u64::from(self.needed.bits());
        let plain = ((self.len as u64) << 24) | u64::from(Flags::HASHED.bits()) | needed;
        body.0 & (PLAIN_MASK | needed) == plain
    }
}

/// A name, and the 64-bit words that a dentry with this name contains. A lookup compares these
/// words with those of a dentry.
#[derive(Clone, Copy)]
pub(crate) struct LookupKey<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) hash: NameHash,
    /// The words of a dentry called `name`, as pairs of adjacent words: the body word, then the
    /// words of the name.
    pub(super) pairs: [WordPair; PAIRS],
    /// A mask for the last pair in `pairs`: only its set bits are compared.
    pub(super) last: WordPair,
}

impl<'a> LookupKey<'a> {
    #[inline(always)]
    pub(crate) fn new(name: Name<'a>, keys: &HashKeys) -> LookupKey<'a> {
        LookupKey::of_words(name, name_words(name.as_bytes()), keys)
    }

    #[inline(always)]
    pub(crate) fn of_component(component: Component<'a>, keys: &HashKeys) -> LookupKey<'a> {
        let name = Name::unchecked(&component.path[component.start..]);
        LookupKey::of_words(name, component.words(), keys)
    }

    #[inline(always)]
    fn of_words(name: Name<'a>, words: [u64; INLINE_WORDS], keys: &HashKeys) -> LookupKey<'a> {
        let len = name.as_bytes().len();
        let flags = if len > INLINE_MAX { LONG_NAMED } else { Flags::HASHED };
        let named = ((len as u64) << 24) | u64::from(flags.bits());
        // In a directory's dentry, the last pair of words is no part of the name. So compare it
        // only for a name that is long enough to have words there.
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
        self.name.as_bytes().len() > INLINE_MAX
    }
}

#[inline]
pub(super) fn words_of(len: usize) -> usize {
    len.div_ceil(8)
}

/// Returns the index at which the eight-byte word for byte `at` begins. The word must not extend
/// past the end of the name, so it may begin before `at`.
#[inline(always)]
pub(super) fn name_word_at(at: usize, len: usize) -> usize {
    at.min(len.saturating_sub(8))
}

impl Component<'_> {
    #[inline(always)]
    pub(crate) fn len(self) -> usize {
        self.path.len() - self.start
    }

    /// Returns the words of the component. The word of a component with fewer than eight bytes is
    /// loaded with preceding bytes of the path, which a shift removes.
    #[inline(always)]
    fn words<const N: usize>(self) -> [u64; N] {
        let Component { path, start } = self;
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
