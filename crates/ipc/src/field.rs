//! Functions that read and write words of shared memory under a lock or a sequence count, and that
//! pack two numbers into one word.
//!
//! A lock or a sequence count orders most accesses to the region (the memory of a namespace), so
//! these accesses are relaxed. They are atomic all the same, since another process may write to the
//! shared mapping at any time.
//!
//! Source: `docs/developing/style.md` section 4.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

#[inline]
pub(crate) fn get(word: &AtomicU64) -> u64 {
    // ORDERING: Relaxed. The caller's lock or sequence count orders it.
    word.load(Ordering::Relaxed)
}

/// Stores a word that a lock or a sequence count protects.
#[inline]
pub(crate) fn put(word: &AtomicU64, value: u64) {
    // ORDERING: Relaxed. The caller's lock or sequence count orders it.
    word.store(value, Ordering::Relaxed);
}

pub(crate) fn errno_of(number: i32) -> Errno {
    if (1..=4095).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::IO }
}

/// Returns the error if the condition holds.
///
/// # Errors
///
/// `error`.
#[inline]
pub(crate) fn refuse_if<E>(is_refused: bool, error: E) -> Result<(), E> {
    if is_refused { Err(error) } else { Ok(()) }
}

/// Returns a word with the given low half and high half.
#[inline]
pub(crate) const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

/// Returns the low half of a word.
#[inline]
pub(crate) const fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

/// Returns the high half of a word.
#[inline]
pub(crate) const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}
