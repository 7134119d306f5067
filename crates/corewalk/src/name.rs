//! One component of a path.
//!
//! A [`Name`] is checked when it is made: it has 1 to 255 bytes, contains neither `/` nor NUL, and
//! is neither `.` nor `..`. All code relies on that.
//!
//! Source: path_resolution(7); `NAME_MAX` of limits.h.

use std::fmt;

use corewalk_base::WordPair;

use crate::Errno;

/// The longest component, in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// The longest path, in bytes, with its terminating NUL (`PATH_MAX`).
pub const PATH_MAX: usize = 4096;

/// A checked path component.
///
/// # Invariants
/// 1 to [`NAME_MAX`] bytes, no `/`, no NUL, not `.` or `..`.
///
/// # Examples
/// ```
/// use corewalk::{Errno, Name};
/// assert_eq!(Name::new(b"etc").unwrap().as_bytes(), b"etc");
/// assert_eq!(Name::new(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
/// assert_eq!(Name::new(b"a/b"), Err(Errno::INVAL));
/// ```
#[doc(alias = "qstr")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Returns `bytes` as a name.
    ///
    /// # Errors
    /// `ENOENT` for an empty name, `ENAMETOOLONG` for more than 255 bytes, `EINVAL` for `.`, `..`,
    /// a `/` or a NUL.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Errno, Name};
    /// assert_eq!(Name::new(b"file")?.as_bytes(), b"file");
    /// assert_eq!(Name::new(b"..").err(), Some(Errno::INVAL));
    /// assert_eq!(Name::new(&[b'a'; 256]).err(), Some(Errno::NAMETOOLONG));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>, Errno> {
        match bytes {
            [] => Err(Errno::NOENT),
            b"." | b".." => Err(Errno::INVAL),
            _ if bytes.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
            _ if has_slash_or_nul(bytes) => Err(Errno::INVAL),
            _ => Ok(Name(bytes)),
        }
    }

    /// Returns `bytes` as a name without the checks, for a lookup in the cache, which contains no
    /// invalid name. Before a call of a back end, check the bytes with [`Name::new`].
    #[inline]
    pub(crate) fn unchecked(bytes: &'a [u8]) -> Name<'a> {
        Name(bytes)
    }

    /// Returns the bytes of the name.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

const LANES: u64 = 0x0101_0101_0101_0101;
/// The number of words of a name that are checked without a branch on the name's length. Most names
/// have at most this many words.
const USUAL_WORDS: usize = 5;

/// Searches `word` for zero bytes. The lowest set bit of the result is the highest bit of the first
/// zero byte. Returns 0 if there is no zero byte.
#[inline]
fn zeroes(word: u64) -> u64 {
    word.wrapping_sub(LANES) & !word & (0x80 * LANES)
}

#[inline]
pub(crate) fn padded(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    let byte = |i: usize| u64::from(bytes[i]) << (8 * i);
    let four = |at: usize| {
        let chunk = bytes[at..].first_chunk::<4>().expect("four bytes before the end");
        u64::from(u32::from_le_bytes(*chunk)) << (8 * at)
    };
    match len {
        0 => 0,
        // Combine the first, the middle and the last byte. Some of them are the same byte if `len`
        // is 1 or 2, which does not change the OR.
        1..4 => byte(0) | byte(len / 2) | byte(len - 1),
        4..8 => four(0) | four(len - 4),
        _ => eight(bytes, 0),
    }
}

#[inline]
pub(crate) fn eight(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes before the end"))
}

/// Returns eight bytes of a name as a word, from byte `at` on. If fewer remain, returns the last
/// eight bytes of the name.
///
/// # Panics
/// Panics if the name has fewer than eight bytes.
#[inline]
pub(crate) fn name_word(name: &[u8], at: usize) -> u64 {
    eight(name, at.min(name.len() - 8))
}

/// Returns the words of a name. If the name is shorter than eight bytes, each word is the whole
/// name, padded with zeroes. The only branch tests for such short names, because branches on
/// lengths are often mispredicted.
#[inline(always)]
pub(crate) fn name_words<const N: usize>(name: &[u8]) -> [u64; N] {
    let Some(last) = name.len().checked_sub(8) else { return [padded(name); N] };
    std::array::from_fn(|i| eight(name, last.min(8 * i)))
}

/// Returns true if the name contains a slash or a NUL. Tests a fixed number of words first, because
/// branches on the length are often mispredicted. In a shorter name, the last eight bytes are
/// tested several times.
#[inline]
fn has_slash_or_nul(bytes: &[u8]) -> bool {
    let bad = |word: u64| zeroes(word) | zeroes(word ^ (u64::from(b'/') * LANES));
    let Some(last) = bytes.len().checked_sub(8) else {
        let beyond = LANES.unbounded_shl(8 * bytes.len() as u32);
        return bad(padded(bytes) | beyond) != 0;
    };
    let usual = (0..USUAL_WORDS).fold(0, |found, i| found | bad(eight(bytes, last.min(8 * i))));
    let rest = bytes.get(8 * USUAL_WORDS..).unwrap_or_default();
    usual != 0 || rest.iter().any(|&byte| byte == b'/' || byte == 0)
}

const GROUP: usize = 64;

pub(crate) struct Slashes<'a> {
    path: &'a [u8],
    /// A bit for each slash in the current 64 bytes that `next` has not returned yet. Bit i stands
    /// for a slash at byte `from + i`.
    found: u64,
    from: usize,
}

impl<'a> Slashes<'a> {
    #[inline(always)]
    pub(crate) fn from(path: &'a [u8], from: usize) -> Slashes<'a> {
        Slashes { path, found: slashes_in(path, from), from }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> usize {
        while self.found == 0 {
            self.from += GROUP;
            if self.from >= self.path.len() {
                self.from = self.path.len();
                return self.from;
            }
            self.found = slashes_in(self.path, self.from);
        }
        let at = self.from + self.found.trailing_zeros() as usize;
        self.found &= self.found - 1;
        at
    }
}

#[inline(always)]
fn slashes_in(path: &[u8], from: usize) -> u64 {
    let slashes = |bytes: &[u8; 16]| {
        u64::from(WordPair::new(eight(bytes, 0), eight(bytes, 8)).bytes_equal(b'/'))
    };
    let rest = path.get(from..).unwrap_or_default();
    if let Some(group) = rest.first_chunk::<GROUP>() {
        let (sixteens, _) = group.as_chunks();
        return (0..4).fold(0, |found, i| found | (slashes(&sixteens[i]) << (16 * i)));
    }
    let Some(last) = path.last_chunk() else {
        // The whole path has fewer than sixteen bytes, so fill up to sixteen with zeroes.
        let pair = match path.len().checked_sub(8) {
            Some(rest) => {
                let second = eight(path, rest).unbounded_shr(64 - 8 * rest as u32);
                WordPair::new(eight(path, 0), second)
            }
            None => WordPair::new(padded(path), 0),
        };
        return u64::from(pair.bytes_equal(b'/') >> from);
    };
    let (sixteens, fewer) = rest.as_chunks();
    let found = sixteens.iter().enumerate();
    let found = found.fold(0, |found, (i, bytes)| found | (slashes(bytes) << (16 * i)));
    // The last sixteen bytes of the path begin with bytes that were searched already. Shift out
    // their bits.
    let again = slashes(last).unbounded_shr(16 - fewer.len() as u32);
    found | again.unbounded_shl(16 * sixteens.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_or_nul_is_found_wherever_it_is() {
        for len in 1..100 {
            let clean = vec![0xaf; len];
            assert!(!has_slash_or_nul(&clean), "{len}");
            for at in 0..len {
                for bad in [b'/', 0] {
                    let mut bytes = clean.clone();
                    bytes[at] = bad;
                    assert!(has_slash_or_nul(&bytes), "{bad} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn slashes_come_in_order_and_then_the_end() {
        for len in 0..200_usize {
            for step in [1, 2, 3, 15, 16, 17, 63, 64, 65, 100] {
                let path: Vec<u8> =
                    (0..len).map(|i| if i % step == step / 2 { b'/' } else { b'x' }).collect();
                for from in 0..=len {
                    let mut slashes = Slashes::from(&path, from);
                    for at in (from..len).filter(|i| i % step == step / 2) {
                        assert_eq!(slashes.next(), at, "{step} of {len} from {from}");
                    }
                    assert_eq!((slashes.next(), slashes.next()), (len, len), "{step} of {len}");
                }
            }
        }
    }
}
