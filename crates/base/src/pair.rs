//! Pairs of atomic words in one register. With them, a comparison of a whole cache line takes fewer
//! instructions.
//!
//! A lock-free lookup compares a name, or the eight 16-bit tags in a line of a hash index, with
//! words in shared memory. For each word it executes a load, an exclusive or and an or. All three
//! instructions wait for the same cache line.
//!
//! The instructions of two or three lookups in flight fill the processor's reorder buffer, and then
//! the buffer limits the speed, not the memory. A 128-bit register, which holds two words, halves
//! the number of instructions.
//!
//! # Guarantees
//!
//! - W.1: each of the two words is loaded like [`AtomicU64::load`], with the ordering that the
//!   loading method documents. The two loads may happen at different instants. `half_of` loads its
//!   word in the same way, and returns 32 bits of it.
//!
//! # Mechanism
//!
//! On x86-64 a pair is an SSE2 register. Its load is one instruction of assembly, because the
//! language has no atomic load of two words. A processor reads an aligned word of eight bytes
//! whole, even if the word is half of a longer access. Intel promises this for aligned pairs on
//! processors with AVX. Loads are not reordered with later loads or stores.
//!
//! On other processors, under Miri and under the model checkers, a pair is two words that are
//! loaded one by one.
//!
//! Source: Intel, Software Developer's Manual, volume 3, 9.1.1 and 9.2.
#![cfg_attr(
    all(target_arch = "x86_64", not(any(miri, corewalk_loom, corewalk_shuttle))),
    expect(
        unsafe_code,
        reason = "a load of two words is an instruction that the language has not"
    )
)]

use crate::primitives::atomic::AtomicU64;

#[cfg(all(target_arch = "x86_64", not(any(miri, corewalk_loom, corewalk_shuttle))))]
use sse2 as chosen;
#[cfg(not(all(target_arch = "x86_64", not(any(miri, corewalk_loom, corewalk_shuttle)))))]
use words as chosen;

/// Two words.
///
/// # Examples
///
/// ```
/// use corewalk_base::WordPair;
/// use std::sync::atomic::AtomicU64;
///
/// let words = [AtomicU64::new(7), AtomicU64::new(0x0005_0000_0000_0005)];
/// let pair = WordPair::load(&words);
/// assert!(pair.xor(WordPair::new(7, 0x0005_0000_0000_0005)).is_zero());
/// // Of the lanes of 16 bits, the fifth and the eighth are 5.
/// assert!(pair.lanes_equal(5).map(|lane| lane.index()).eq([4, 7]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WordPair(chosen::Pair);

impl WordPair {
    /// Returns the pair of two words.
    #[inline(always)]
    #[must_use]
    pub fn new(first: u64, second: u64) -> WordPair {
        WordPair(chosen::new(first, second))
    }

    /// Returns two words, each loaded with `Relaxed`.
    #[inline(always)]
    #[must_use]
    pub fn load(words: &[AtomicU64; 2]) -> WordPair {
        WordPair(chosen::load(words))
    }

    /// Returns two words, each loaded with `Acquire`.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire(words: &[AtomicU64; 2]) -> WordPair {
        WordPair(chosen::load_acquire(words))
    }

    /// Returns the bits in which two pairs differ.
    #[inline(always)]
    #[must_use]
    pub fn xor(self, other: WordPair) -> WordPair {
        WordPair(chosen::xor(self.0, other.0))
    }

    /// Returns the bitwise and of two pairs.
    #[inline(always)]
    #[must_use]
    pub fn and(self, other: WordPair) -> WordPair {
        WordPair(chosen::and(self.0, other.0))
    }

    /// Returns the bitwise or of two pairs.
    #[inline(always)]
    #[must_use]
    pub fn or(self, other: WordPair) -> WordPair {
        WordPair(chosen::or(self.0, other.0))
    }

    /// Returns true if both words are zero.
    #[inline(always)]
    #[must_use]
    pub fn is_zero(self) -> bool {
        chosen::is_zero(self.0)
    }

    /// Compares each of the sixteen bytes of the two words with `byte`. Bit i of the result is set
    /// if byte i equals `byte`. Byte 0 is the lowest byte of the first word.
    #[inline(always)]
    #[must_use]
    pub fn bytes_equal(self, byte: u8) -> u32 {
        chosen::bytes_equal(self.0, byte)
    }

    /// Compares each of the eight lanes (groups of 16 bits) of the two words with `lane`. Returns
    /// the set of the equal lanes. Lane 0 is the lowest 16 bits of the first word.
    #[inline(always)]
    #[must_use]
    pub fn lanes_equal(self, lane: u16) -> Lanes {
        Lanes(chosen::lanes_equal(self.0, lane))
    }
}

/// A set of lanes, iterated from the lowest to the highest.
///
/// # Invariants
///
/// If lane i (0 to 7) is in the set, bit 2 * i of the `u32` is set. No other bit is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes(u32);

/// The number of one of the eight 16-bit lanes of a `WordPair`.
///
/// # Invariants
///
/// The field is twice the lane's number, which is below 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lane(u32);

impl Iterator for Lanes {
    type Item = Lane;

    #[inline(always)]
    fn next(&mut self) -> Option<Lane> {
        // INVARIANT: a `Lane` stores twice its number, 0 to 14. The position of each set bit in a
        // `Lanes` is twice a lane's number. So the position of the lowest set bit is a valid
        // `Lane`.
        let lowest = (self.0 != 0).then(|| Lane(self.0.trailing_zeros()))?;
        self.0 &= self.0 - 1;
        Some(lowest)
    }
}

impl Lane {
    /// Returns the number of the lane, below 8.
    #[inline(always)]
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize / 2
    }

    /// Loads one of the `words` with `Acquire` and returns a 32-bit half of it. The number of this
    /// lane selects the half. Half 0 is the lower half of the first word, and half 1 is its upper
    /// half.
    #[inline(always)]
    #[must_use]
    pub fn half_of(self, words: &[AtomicU64; 4]) -> u32 {
        chosen::half_of(words, self.0)
    }
}

#[cfg(all(target_arch = "x86_64", not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod sse2 {
    use super::AtomicU64;
    use std::arch::{asm, x86_64::*};

    pub(super) type Pair = __m128i;

    /// Calls an intrinsic of SSE2.
    macro_rules! sse2 {
        ($intrinsic:ident ( $($argument:expr),* )) => {
            // SAFETY: every x86-64 processor has SSE2, and these intrinsics only compute.
            unsafe { $intrinsic($($argument),*) }
        };
    }

    #[inline(always)]
    pub(super) fn new(first: u64, second: u64) -> Pair {
        sse2!(_mm_set_epi64x(second.cast_signed(), first.cast_signed()))
    }

    #[inline(always)]
    pub(super) fn load(words: &[AtomicU64; 2]) -> Pair {
        let pair;
        // SAFETY: the 16 bytes behind the reference are readable. The processor reads each aligned
        // 8-byte word whole, so the instruction has the effect of two relaxed loads.
        unsafe {
            asm!("movdqu {}, [{}]", out(xmm_reg) pair, in(reg) words.as_ptr(),
                options(readonly, nostack, preserves_flags));
        }
        pair
    }

    #[inline(always)]
    pub(super) fn load_acquire(words: &[AtomicU64; 2]) -> Pair {
        let pair;
        // SAFETY: the 16 bytes behind the reference are readable, and the processor reads each
        // aligned 8-byte word whole. The processor does not reorder a load with later accesses. Nor
        // does the compiler move an access across the assembly, because the assembly is not marked
        // `readonly`.
        unsafe {
            asm!("movdqu {}, [{}]", out(xmm_reg) pair, in(reg) words.as_ptr(),
                options(nostack, preserves_flags));
        }
        pair
    }

    #[inline(always)]
    pub(super) fn xor(a: Pair, b: Pair) -> Pair {
        sse2!(_mm_xor_si128(a, b))
    }

    #[inline(always)]
    pub(super) fn and(a: Pair, b: Pair) -> Pair {
        sse2!(_mm_and_si128(a, b))
    }

    #[inline(always)]
    pub(super) fn or(a: Pair, b: Pair) -> Pair {
        sse2!(_mm_or_si128(a, b))
    }

    #[inline(always)]
    pub(super) fn is_zero(pair: Pair) -> bool {
        let zero = sse2!(_mm_setzero_si128());
        let equal = sse2!(_mm_cmpeq_epi8(pair, zero));
        sse2!(_mm_movemask_epi8(equal)) == 0xffff
    }

    #[inline(always)]
    pub(super) fn bytes_equal(pair: Pair, byte: u8) -> u32 {
        let wanted = sse2!(_mm_set1_epi8(byte.cast_signed()));
        let equal = sse2!(_mm_cmpeq_epi8(pair, wanted));
        sse2!(_mm_movemask_epi8(equal)).cast_unsigned()
    }

    #[inline(always)]
    pub(super) fn lanes_equal(pair: Pair, lane: u16) -> u32 {
        let wanted = sse2!(_mm_set1_epi16(lane.cast_signed()));
        let equal = sse2!(_mm_cmpeq_epi16(pair, wanted));
        sse2!(_mm_movemask_epi8(equal)).cast_unsigned() & 0x5555
    }

    /// Returns half `twice / 2` of `words`.
    #[inline(always)]
    pub(super) fn half_of(words: &[AtomicU64; 4], twice: u32) -> u32 {
        let half;
        // SAFETY: the instruction loads four bytes of `words`, at the byte offset 2 * `twice`.
        // `twice` is at most 14 (invariant of `Lane`), so these bytes are inside the array, and are
        // one half of an aligned word. The processor reads an aligned word whole, so the
        // instruction has the effect of an atomic load of that word. As in `load_acquire`, the
        // processor does not move later accesses before the load.
        unsafe {
            asm!("mov {:e}, dword ptr [{} + 2 * {}]", out(reg) half, in(reg) words.as_ptr(),
                in(reg) u64::from(twice), options(nostack, preserves_flags));
        }
        half
    }
}

#[cfg(any(
    test,
    not(all(target_arch = "x86_64", not(any(miri, corewalk_loom, corewalk_shuttle))))
))]
#[cfg_attr(test, allow(dead_code, reason = "tested beside the other on a machine that has that"))]
mod words {
    use super::AtomicU64;
    use crate::primitives::atomic::Ordering;

    pub(super) type Pair = [u64; 2];

    #[inline(always)]
    pub(super) fn new(first: u64, second: u64) -> Pair {
        [first, second]
    }

    #[inline(always)]
    pub(super) fn load(words: &[AtomicU64; 2]) -> Pair {
        // ORDERING: Relaxed. `WordPair::load` promises no more.
        [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)]
    }

    #[inline(always)]
    pub(super) fn load_acquire(words: &[AtomicU64; 2]) -> Pair {
        // ORDERING: Acquire. `WordPair::load_acquire` promises it.
        [words[0].load(Ordering::Acquire), words[1].load(Ordering::Acquire)]
    }

    #[inline(always)]
    pub(super) fn xor(a: Pair, b: Pair) -> Pair {
        [a[0] ^ b[0], a[1] ^ b[1]]
    }

    #[inline(always)]
    pub(super) fn and(a: Pair, b: Pair) -> Pair {
        [a[0] & b[0], a[1] & b[1]]
    }

    #[inline(always)]
    pub(super) fn or(a: Pair, b: Pair) -> Pair {
        [a[0] | b[0], a[1] | b[1]]
    }

    #[inline(always)]
    pub(super) fn is_zero(pair: Pair) -> bool {
        pair[0] | pair[1] == 0
    }

    #[inline(always)]
    pub(super) fn bytes_equal(pair: Pair, byte: u8) -> u32 {
        let is_equal = |i: usize| (pair[i / 8] >> (8 * (i % 8))) as u8 == byte;
        (0..16).fold(0, |found, i| found | (u32::from(is_equal(i)) << i))
    }

    #[inline(always)]
    pub(super) fn lanes_equal(pair: Pair, lane: u16) -> u32 {
        let is_equal = |i: usize| (pair[i / 4] >> (16 * (i % 4))) as u16 == lane;
        (0..8).fold(0, |found, i| found | (u32::from(is_equal(i)) << (2 * i)))
    }

    #[inline(always)]
    pub(super) fn half_of(words: &[AtomicU64; 4], twice: u32) -> u32 {
        // ORDERING: Acquire. `Lane::half_of` promises it.
        let word = words[twice as usize / 4].load(Ordering::Acquire);
        (word >> (32 * (twice / 2 % 2))) as u32
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    /// Both implementations agree on random words.
    #[test]
    fn pair_is_its_words() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut draw = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Keep only a few random bits of each group of 16 bits. Otherwise two groups would
            // almost never be equal, and the test would not check matches.
            random & 0x0003_0001_0003_0001
        };
        for _ in 0..if cfg!(miri) { 20 } else { 10_000 } {
            let (a, b) = ([draw(), draw()], [draw(), draw()]);
            let shared = a.map(AtomicU64::new);
            let other = WordPair::new(b[0], b[1]);
            for pair in [WordPair::load(&shared), WordPair::load_acquire(&shared)] {
                let is = |pair: WordPair, words| {
                    let words: [u64; 2] = words;
                    assert_eq!(pair.is_zero(), words::is_zero(words));
                    for lane in 0..4 {
                        assert_eq!(pair.lanes_equal(lane).0, words::lanes_equal(words, lane));
                        let byte = lane as u8;
                        assert_eq!(pair.bytes_equal(byte), words::bytes_equal(words, byte));
                    }
                };
                is(pair, a);
                is(pair.xor(other), words::xor(a, b));
                is(pair.and(other), words::and(a, b));
                is(pair.or(other), words::or(a, b));
                assert!(pair.xor(WordPair::new(a[0], a[1])).is_zero());
            }
            let four = [a[0], a[1], b[0], b[1]];
            let shared = four.map(AtomicU64::new);
            for (i, lane) in Lanes(0x5555).enumerate() {
                assert_eq!(lane.half_of(&shared), (four[i / 2] >> (32 * (i % 2))) as u32);
                assert_eq!(lane.half_of(&shared), words::half_of(&shared, 2 * i as u32));
            }
        }
    }
}
