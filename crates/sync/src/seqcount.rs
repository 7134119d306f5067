//! A sequence counter: readers copy words and check that no writer ran meanwhile.
//!
//! The counter is odd while a writer is inside a section. A reader remembers an even count and
//! copies the words that it needs. If the count has changed since, the reader starts again.
//!
//! Readers never write shared memory, so they scale. A steady stream of writers can starve them.
//! Callers therefore bound the retries and then take the writers' lock, as `SeqLock` does.
//!
//! The counter has 64 bits on every machine, and does not wrap in practice. A count of 32 bits
//! could return to the value that a sleeping reader remembers (trap T32 in `traps.md`).
//!
//! The type is a transparent newtype of one word, so a word of a `SlotArena` slot can be a counter
//! (`SeqCount::from_word`).
//!
//! Analogous to Linux's `seqcount_t`.
//!
//! # Guarantees
//!
//! - A.1: if `read_retry` returns false, the words read since `read_begin` come from one finished
//!   write section. They are not a mixture of two sections.
//! - A.2: that section is the last one that had finished when the reader got `start`, not an older
//!   one.
//! - A.3: a panic inside a section opened by `write` makes the count even again, so readers do not
//!   spin (trap T30 in `traps.md`). The stores that the section made before the panic stay.
//!
//! # Rules
//!
//! - The caller excludes other writers with its own lock. This type has no lock and never blocks.
//! - Words read inside a section are atomics read with `Relaxed`. Plain or volatile fields are a
//!   data race, even if the value is thrown away (trap T31 in `traps.md`).
//! - Pointers read inside a section may be stale. Only RCU or type-stable memory makes it safe to
//!   follow them.
//!
//! Source: Linux `include/linux/seqlock.h`; Boehm, "Can seqlocks get along with programming
//! language memory models?", MSPC 2012.
#![expect(unsafe_code, reason = "a view over a word is a reference cast")]

use corewalk_base::primitives::{
    atomic::{AtomicU64, Ordering, fence},
    hint, thread,
};
use std::{fmt, marker::PhantomData};

/// Rounds that `read_begin` spins before it yields the processor.
const SPIN_ROUNDS: u32 = if corewalk_base::primitives::IS_MODEL { 1 } else { 128 };

/// A counter that is odd while a writer is inside a section.
///
/// # Examples
///
/// ```
/// use corewalk_sync::SeqCount;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// let seq = SeqCount::new();
/// let (low, high) = (AtomicU64::new(1), AtomicU64::new(10));
///
/// let start = seq.read_begin();
/// let pair = (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
/// assert!(!seq.read_retry(start));
/// assert_eq!(pair, (1, 10));
///
/// {
///     // The caller's lock excludes other writers here.
///     let _section = seq.write();
///     low.store(2, Ordering::Relaxed);
///     high.store(20, Ordering::Relaxed);
/// }
/// assert!(seq.read_retry(start));
/// ```
#[doc(alias = "seqcount_t")]
#[repr(transparent)]
pub struct SeqCount {
    /// Number of calls of `write_begin` and `write_end` so far. Protected by the lock of the
    /// writers, which belongs to the caller.
    count: AtomicU64,
}

impl SeqCount {
    /// Returns a counter with the count 0: no write section has begun.
    #[cfg(not(corewalk_loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { count: AtomicU64::new(0) }
    }

    /// Returns a counter with the count 0: no write section has begun.
    #[cfg(corewalk_loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { count: AtomicU64::new(0) }
    }

    /// Returns a view of `word` as a counter. An even word means that no writer is inside a
    /// section.
    #[inline]
    #[must_use]
    pub fn from_word(word: &AtomicU64) -> &Self {
        // SAFETY: `SeqCount` is a transparent newtype of `AtomicU64` and every bit pattern is
        // valid. The returned reference has the lifetime of the argument.
        unsafe { &*std::ptr::from_ref(word).cast::<Self>() }
    }

    /// Returns the current count without waiting. The count is odd if a writer is inside a section.
    #[doc(alias = "raw_seqcount_begin")]
    #[inline]
    #[must_use]
    pub fn raw_begin(&self) -> u64 {
        // ORDERING(seq-end): Acquire. `write_end` stores the count with Release. Without this
        // order, a reader could see the count after a section but miss words stored in it.
        self.count.load(Ordering::Acquire)
    }

    /// Returns an even count. If a writer is inside a section, waits until the section ends.
    ///
    /// The call spins a bounded number of rounds and then yields the processor in a loop. Use a
    /// `SeqLock` if a reader may have to wait for a long writer.
    ///
    /// # Examples
    /// ```
    /// let seq = corewalk_sync::SeqCount::new();
    /// let start = seq.read_begin();
    /// assert!(!seq.read_retry(start));
    /// drop(seq.write());
    /// assert!(seq.read_retry(start), "a writer was inside");
    /// ```
    #[doc(alias = "read_seqcount_begin")]
    #[inline]
    #[must_use]
    pub fn read_begin(&self) -> u64 {
        self.read_begin_or(thread::yield_now)
    }

    /// Returns true if a writer was inside a section since `start` was read.
    ///
    /// `read_retry` also returns true if `start` is odd: a writer was then inside a section.
    #[doc(alias = "read_seqcount_retry")]
    #[inline]
    #[must_use]
    pub fn read_retry(&self, start: u64) -> bool {
        // ORDERING(seq-begin): Acquire fence. `write_begin` has a Release fence between the odd
        // count and the words. Without this fence, this thread could have read a word of a later
        // section, and still load the old count below.
        fence(Ordering::Acquire);
        // ORDERING: Relaxed. The Acquire fence orders this load after the reads of the read
        // section.
        self.count.load(Ordering::Relaxed) != start || Self::is_write_in_progress(start)
    }

    /// Orders the reads of a read section before the load of the count that `difference` makes
    /// later.
    ///
    /// `end_of_reads` is the first half of `read_retry`. A reader that validates many counts calls
    /// it once, and then calls `difference` for each count.
    #[inline(always)]
    pub fn end_of_reads() {
        // ORDERING(seq-begin): Acquire fence. `write_begin` has a Release fence between the odd
        // count and the words. Without this fence, this thread could have read a word of a later
        // section, and still load the old count.
        fence(Ordering::Acquire);
    }

    /// Returns the bits in which the count differs from `start`.
    ///
    /// The reader must call `end_of_reads` first, and `start` must be even. A result of zero then
    /// means that no writer disturbed the read section. Unlike `read_retry`, this function does not
    /// branch, so a reader can combine the results of several counts and branch once.
    #[inline(always)]
    #[must_use]
    pub fn difference(&self, start: u64) -> u64 {
        // ORDERING: Relaxed. The fence of `end_of_reads` orders this load after the reads of the
        // read section.
        self.count.load(Ordering::Relaxed) ^ start
    }

    /// Makes the count odd. The caller holds the writers' lock.
    ///
    /// A panic before `write_end` makes readers retry forever. Use `write` where code that may
    /// panic runs inside the section.
    #[doc(alias = "write_seqcount_begin")]
    #[inline]
    pub fn write_begin(&self) {
        // ORDERING: Relaxed. The caller's lock excludes other writers.
        let count = self.count.load(Ordering::Relaxed);
        debug_assert!(!Self::is_write_in_progress(count), "a writer is already inside");
        // ORDERING: Relaxed. The Release fence below orders this store before the stores that the
        // caller makes in its write section.
        self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        // ORDERING(seq-begin): Release fence. `read_retry` and `end_of_reads` have Acquire fences.
        // Without this fence, a reader could see a word of this section but not the odd count, and
        // would not retry.
        fence(Ordering::Release);
    }

    /// Makes the count even again.
    #[doc(alias = "write_seqcount_end")]
    #[inline]
    pub fn write_end(&self) {
        // ORDERING: Relaxed. The caller's lock excludes other writers.
        let count = self.count.load(Ordering::Relaxed);
        debug_assert!(Self::is_write_in_progress(count), "no writer is inside");
        // ORDERING(seq-end): Release. `raw_begin` loads the count with Acquire. Without this order,
        // a reader could see this even count but miss words stored in the section.
        self.count.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Returns the guard of a write section. The section ends when the guard is dropped, also by a
    /// panic.
    ///
    /// The caller holds the writers' lock until the guard is dropped.
    #[inline]
    pub fn write(&self) -> SeqWriteGuard<'_> {
        self.write_begin();
        SeqWriteGuard { seq: self, not_send: PhantomData }
    }

    /// Returns true if `count` was read while a writer was inside.
    #[inline]
    #[must_use]
    pub const fn is_write_in_progress(count: u64) -> bool {
        !count.is_multiple_of(2)
    }

    /// Returns an even count. While the count is odd, reads it `SPIN_ROUNDS` times without a pause,
    /// and then calls `pause` before each further read.
    #[inline]
    pub(crate) fn read_begin_or(&self, pause: impl Fn()) -> u64 {
        let count = self.raw_begin();
        if Self::is_write_in_progress(count) { self.read_begin_slow(pause) } else { count }
    }

    #[cold]
    fn read_begin_slow(&self, pause: impl Fn()) -> u64 {
        let mut rounds = 0;
        loop {
            let count = self.raw_begin();
            if !Self::is_write_in_progress(count) {
                return count;
            }
            if rounds < SPIN_ROUNDS {
                rounds += 1;
                hint::spin_loop();
            } else {
                pause();
            }
        }
    }
}

impl Default for SeqCount {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SeqCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SeqCount").field(&self.raw_begin()).finish()
    }
}

/// A write section of a `SeqCount`. The section ends when the guard is dropped.
///
/// The guard stays on the thread that holds the writers' lock:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// let seq = corewalk_sync::SeqCount::new();
/// assert_send(seq.write());
/// ```
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub struct SeqWriteGuard<'a> {
    seq: &'a SeqCount,
    not_send: PhantomData<*const ()>,
}

impl Drop for SeqWriteGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.seq.write_end();
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::{Arc, thread};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn read_retry_is_true_only_after_a_section() {
        let seq = SeqCount::new();
        let start = seq.read_begin();
        assert!(!seq.read_retry(start));
        seq.write_begin();
        assert!(seq.read_retry(start));
        let inside = seq.raw_begin();
        assert!(SeqCount::is_write_in_progress(inside));
        assert!(seq.read_retry(inside), "an odd start never validates");
        seq.write_end();
        assert!(seq.read_retry(start) && seq.read_retry(inside));
        assert!(!seq.read_retry(seq.read_begin()));
    }

    #[test]
    fn from_word_views_the_word_in_place() {
        let word = AtomicU64::new(6);
        let seq = SeqCount::from_word(&word);
        assert_eq!(seq.read_begin(), 6);
        drop(seq.write());
        // ORDERING: Relaxed. One thread.
        assert_eq!(word.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn read_begin_waits_for_the_writer() {
        let seq = Arc::new(SeqCount::new());
        let section = seq.write();
        let reader = thread::spawn({
            let seq = Arc::clone(&seq);
            move || seq.read_begin()
        });
        for _ in 0..3 {
            thread::yield_now();
        }
        drop(section);
        assert_eq!(reader.join().unwrap(), 2);
    }

    /// A reader must not wait for ever after a panic in a write section. Trap T30 in `traps.md`.
    #[test]
    fn panic_in_a_section_makes_the_count_even() {
        let seq = SeqCount::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _section = seq.write();
            panic!("in the section");
        }));
        assert!(panicked.is_err());
        assert_eq!(seq.read_begin(), 2);
    }

    /// Control (a variant with the bug must fail): without a guard, a panic in a write section
    /// leaves the sequence count odd. Trap T30 in `traps.md`.
    #[test]
    fn control_panic_between_begin_and_end_leaves_the_count_odd() {
        let seq = SeqCount::new();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            seq.write_begin();
            panic!("in the section");
        }));
        assert!(panicked.is_err());
        assert!(SeqCount::is_write_in_progress(seq.raw_begin()));
    }

    /// A reader must retry if 2^31 write sections, each of which adds 2, have run since it read the
    /// sequence count. A 32-bit count would have its old value again. Trap T32 in `traps.md`.
    #[test]
    fn read_retry_after_a_32_bit_wrap_is_true() {
        let word = AtomicU64::new(4);
        let seq = SeqCount::from_word(&word);
        let start = seq.read_begin();
        // ORDERING: Relaxed. One thread.
        word.store(4 + (1 << 32), Ordering::Relaxed);
        let now = seq.raw_begin();
        assert_eq!(start & u64::from(u32::MAX), now & u64::from(u32::MAX), "the trap is set");
        assert!(seq.read_retry(start));
    }

    #[test]
    fn write_at_the_64_bit_end_wraps_to_even() {
        let word = AtomicU64::new(u64::MAX - 1);
        let seq = SeqCount::from_word(&word);
        let start = seq.read_begin();
        drop(seq.write());
        assert!(seq.read_retry(start));
        assert_eq!(seq.read_begin(), 0);
    }
}
