//! The buffer in which a path translation (dentry to path, as `d_path`) builds the path, from the
//! end. Analogous to Linux's `struct prepend_buffer`.
//!
//! The buffer has 256 bytes on the stack, which is enough for nearly all paths. A longer path moves
//! to the heap. During a rename a translation may read garbage, and its caller later discards the
//! path. Such a path could grow without bound, so a translation stops at `PATH_MAX`.
//!
//! Source: `struct prepend_buffer` of Linux `fs/d_path.c`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;

/// Bytes of the buffer on the stack.
const BYTES: usize = 256;
/// Maximum length of a path in bytes (`PATH_MAX`). A translation stops at longer paths.
const BYTES_MAX: usize = 4096;

/// A path under construction, from its end to its start.
pub(crate) struct Prepended {
    bytes: SmallVec<[u8; BYTES]>,
    start: usize,
}

impl Prepended {
    pub(super) fn new() -> Prepended {
        Prepended { bytes: SmallVec::from_buf([0; BYTES]), start: BYTES }
    }

    /// Empties the buffer, so that the translation can start again (trap T8 in `traps.md`).
    pub(super) fn clear(&mut self) {
        self.start = self.bytes.len();
    }

    /// Returns true if the path exceeds the maximum length of a path.
    #[inline]
    pub(super) fn is_too_long(&self) -> bool {
        self.bytes.len() - self.start > BYTES_MAX
    }

    /// Prepends a `/` and the first `len` bytes of a name to the path in the buffer.
    #[inline]
    pub(super) fn prepend(&mut self, words: &[AtomicU64], len: usize) {
        let len = len.min(8 * words.len());
        if self.start < len + 1 {
            self.grow(len + 1);
        }
        let end = self.start;
        self.start = end - len - 1;
        let bytes = &mut self.bytes[self.start..end];
        bytes[0] = b'/';
        for (piece, word) in bytes[1..].chunks_mut(8).zip(words) {
            // ORDERING: Relaxed. The sequence or lock of the translation orders it.
            let word = word.load(Ordering::Relaxed).to_le_bytes();
            match <&mut [u8; 8]>::try_from(&mut *piece) {
                Ok(whole) => *whole = word,
                Err(_) => piece.copy_from_slice(&word[..piece.len()]),
            }
        }
    }

    /// Returns the path, or `/` if the buffer has no name.
    pub(super) fn to_path(&self) -> Vec<u8> {
        let path = &self.bytes[self.start..];
        if path.is_empty() { vec![b'/'] } else { path.to_vec() }
    }

    #[cold]
    fn grow(&mut self, wanted: usize) {
        let more = self.bytes.len() + wanted;
        self.bytes.insert_from_slice(0, &vec![0; more]);
        self.start += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &[u8]) -> Vec<AtomicU64> {
        let word = |piece: &[u8]| {
            let mut bytes = [0; 8];
            bytes[..piece.len()].copy_from_slice(piece);
            AtomicU64::new(u64::from_le_bytes(bytes))
        };
        name.chunks(8).map(word).collect()
    }

    #[test]
    fn names_of_every_length_end_up_in_front() {
        for len in 1..=255 {
            let name = vec![b'n'; len];
            let mut path = Prepended::new();
            path.prepend(&words(b"leaf"), 4);
            path.prepend(&words(&name), len);
            let expected = [b"/", &name[..], b"/leaf"].concat();
            assert_eq!(path.to_path(), expected, "{len}");
        }
    }

    #[test]
    fn path_of_no_name_is_the_root_also_after_another_pass() {
        let mut path = Prepended::new();
        assert_eq!(path.to_path(), b"/");
        for _ in 0..1000 {
            path.prepend(&words(b"directory"), 9);
        }
        assert!(path.is_too_long() && path.to_path().len() == 10_000);
        path.clear();
        assert_eq!(path.to_path(), b"/");
        path.prepend(&words(b"a"), 1);
        assert_eq!(path.to_path(), b"/a");
    }
}
