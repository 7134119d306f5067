//! A value on a cache line of its own.
//!
//! What one thread writes often must not lie beside what another one reads or writes. Some processors
//! fetch the neighbour of a line along with it, which is why [`CachePadded`](crate::CachePadded) keeps
//! two lines apart; that is right for the few words that everybody meets on. Where there is an array of
//! values, each nearly always met by the same thread (shards of a counter or an allocator) or seldom by
//! anybody (stripes of a lock), half the room does.
//!
//! Source: Intel, "64 and IA-32 Architectures Optimization Reference Manual" (spatial prefetcher).

use std::ops::Deref;

/// A value aligned to, and alone on, 64-byte lines.
///
/// # Examples
///
/// ```
/// use corewalk_sync::OwnLine;
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
