//! A value on a cache line of its own.
//!
//! A word that one thread writes often must not share a cache line with a word that another thread
//! uses. Some processors also fetch the neighbouring line. So [`CachePadded`](crate::CachePadded),
//! for the few words that all threads share, separates values by two lines.
//!
//! [`OwnLine`] needs half that space. It suits arrays of values that are mostly used by one thread,
//! or seldom used. Examples are the shards of a counter or an allocator, and the stripes of a lock.
//!
//! Source: Intel, "64 and IA-32 Architectures Optimization Reference Manual" (spatial prefetcher).

use std::ops::Deref;

/// A value that is aligned to 64-byte lines and shares them with no other value.
///
/// # Examples
///
/// ```
/// use corewalk_base::OwnLine;
///
/// let words = [OwnLine::new(1_u64), OwnLine::new(2)];
/// assert_eq!(size_of_val(&words), 2 * 64);
/// assert_eq!(*words[1], 2);
/// ```
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct OwnLine<T>(T);

impl<T> OwnLine<T> {
    /// Returns `value` on lines of its own.
    #[must_use]
    pub const fn new(value: T) -> OwnLine<T> {
        OwnLine(value)
    }
}

impl<T> Deref for OwnLine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}
