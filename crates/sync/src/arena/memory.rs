//! The memory behind a `SlotArena`: one mapping, reserved whole and backed page by page.
//!
//! In a normal build, the memory is a private anonymous mapping with `MAP_NORESERVE`. Under Miri
//! and the model checkers, it is a boxed slice. Miri cannot map memory, and a model checker must
//! see the creation of each atomic.
//!
//! # Huge pages
//!
//! A random walk over more than 64 MiB is 9 to 26 % faster on huge pages (dependent loads on a
//! virtual Sapphire Rapids Xeon). But the first write to a huge page makes 2 MiB resident, and a
//! namespace with ten arenas would take 20 MiB for ten entries.
//!
//! To save memory, the first block of 2 MiB of an arena stays on small pages until half of its
//! slots are handed out. Then `MADV_COLLAPSE` (Linux 6.1) turns it into a huge page; an older
//! kernel does so in the background.
//!
//! From the second block on, huge pages are requested immediately. If the huge pages of a machine
//! are not 2 MiB, as with base pages of 16 or 64 KiB, none are requested.
//!
//! # Invariants
//!
//! - M.1: `base` is the start of a readable and writable mapping of at least `max_slots` slots.
//!   Only the drop unmaps it.
//! - M.2: the words are only ever accessed as `AtomicU64`.
//! - M.3: if the slots take more than 2 MiB (one huge page), `base` is aligned to 2 MiB.
//! - M.4: if slots are handed out in rising order, only pages that were touched are resident. With
//!   huge pages, at most one of them is resident but touched only in part.
//!
//! # Limits
//!
//! This module does not count the slots in use, and returns no memory to the kernel before the
//! arena is dropped. The mapping has `MAP_NORESERVE`, so `reserve` does not fail for lack of
//! memory. Instead, the first write to a page invokes the kernel's out-of-memory handling. Callers
//! keep a byte budget.
//!
//! Source: mmap(2), madvise(2); Linux `Documentation/admin-guide/mm/transhuge.rst`.

#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
pub(super) use boxed::SlotMemory;
#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
pub(super) use mapped::SlotMemory;

#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
mod mapped {
    #![expect(unsafe_code, reason = "a mapping is reached through raw pointers")]

    use corewalk_base::primitives::atomic::AtomicU64;
    use rustix::{
        io::Errno,
        mm::{self, Advice, MapFlags, ProtFlags},
    };
    use std::{ffi::c_void, io, ptr::NonNull};

    /// The size of a huge page, and of the blocks for which this module requests huge pages.
    const BLOCK: usize = 2 << 20;

    /// A mapping of `max_slots` slots.
    pub(in crate::arena) struct SlotMemory<const WORDS: usize> {
        base: NonNull<[AtomicU64; WORDS]>,
        max_slots: u32,
    }

    impl<const WORDS: usize> SlotMemory<WORDS> {
        pub(in crate::arena) fn reserve(max_slots: u32) -> io::Result<Self> {
            let len = usize::try_from(max_slots)
                .ok()
                .and_then(|slots| slots.checked_mul(size_of::<[AtomicU64; WORDS]>()))
                .filter(|len| *len != 0 && *len <= isize::MAX as usize - 2 * BLOCK)
                .ok_or(Errno::INVAL)?;
            let base = map_aligned(len)?;
            if has_blocks() {
                advise(base, len.min(BLOCK), Advice::LinuxNoHugepage);
                if let Some(rest) = len.checked_sub(BLOCK).filter(|rest| *rest != 0) {
                    advise(base.wrapping_byte_add(BLOCK), rest, Advice::LinuxHugepage);
                }
            }
            let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
            Ok(Self { base: base.cast(), max_slots })
        }

        /// Turns the first block of 2 MiB into a huge page, when the number of slots handed out
        /// passes the middle of the block. `before` and `now` are the old and the new number.
        pub(in crate::arena) fn note_handed_out(&self, before: u64, now: u64) {
            let end = |slots: u64| slots * size_of::<[AtomicU64; WORDS]>() as u64;
            let middle = BLOCK as u64 / 2;
            let is_longer = self.max_slots as usize * size_of::<[AtomicU64; WORDS]>() >= BLOCK;
            if end(before) <= middle && end(now) > middle && is_longer && has_blocks() {
                let base = self.base.as_ptr().cast();
                advise(base, BLOCK, Advice::LinuxHugepage);
                collapse(base);
            }
        }

        /// Hints to the processor that slot `index` is about to be read. An index out of range has
        /// no effect.
        #[inline]
        pub(in crate::arena) fn prefetch(&self, index: u32) {
            let slot = self.base.as_ptr().wrapping_add(index as usize);
            #[cfg(target_arch = "x86_64")]
            // SAFETY: every x86-64 processor has the prefetch instruction. It changes no register
            // and never faults, whatever the address.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(slot.cast());
            }
            #[cfg(not(target_arch = "x86_64"))]
            let _no_stable_intrinsic = slot;
        }

        #[inline]
        pub(in crate::arena) fn max_slots(&self) -> u32 {
            self.max_slots
        }

        #[inline]
        pub(in crate::arena) fn slot(&self, index: u32) -> &[AtomicU64; WORDS] {
            if index >= self.max_slots {
                out_of_range(index);
            }
            // SAFETY: the index is below `max_slots`, so the result is inside the mapping
            // (invariant M.1). The size of the mapping fits in an `isize`.
            let slot = unsafe { self.base.add(index as usize) };
            // SAFETY: the mapping is readable, writable, page-aligned and lives as long as `self`
            // (invariant M.1). Zero pages are valid words, and the words are only accessed as
            // atomics (invariant M.2).
            unsafe { slot.as_ref() }
        }
    }

    /// Panics because the slot number `index` is out of range. An `assert!` in `slot` would be
    /// slower, because `slot` would then store the index on the stack.
    #[cold]
    #[inline(never)]
    fn out_of_range(index: u32) -> ! {
        panic!("slot {index} is out of range");
    }

    // SAFETY: the mapping belongs to the process, not to a thread. The words are only accessed as
    // atomics (invariant M.2), so threads may share them.
    unsafe impl<const WORDS: usize> Send for SlotMemory<WORDS> {}

    // SAFETY: as above.
    unsafe impl<const WORDS: usize> Sync for SlotMemory<WORDS> {}

    impl<const WORDS: usize> Drop for SlotMemory<WORDS> {
        fn drop(&mut self) {
            let len = mapped_len(self.max_slots as usize * size_of::<[AtomicU64; WORDS]>());
            // SAFETY: the range is the mapping of `reserve` (invariant M.1), and `&mut self` proves
            // that no reference into it is left.
            let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast::<c_void>(), len) };
            debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
        }
    }

    /// Returns the length of the mapping for `len` bytes. A length above [`BLOCK`] is rounded up to
    /// a multiple of [`BLOCK`].
    fn mapped_len(len: usize) -> usize {
        if len > BLOCK { len.next_multiple_of(BLOCK) } else { len }
    }

    /// Maps memory for `len` bytes, and returns its address. A mapping longer than [`BLOCK`] starts
    /// at a multiple of [`BLOCK`].
    fn map_aligned(len: usize) -> io::Result<*mut c_void> {
        let len = mapped_len(len);
        let spare = if len > BLOCK { BLOCK } else { 0 };
        // SAFETY: the address passed to mmap(2) is null, so the new mapping replaces no mapping in
        // use.
        let start = unsafe {
            mm::mmap_anonymous(
                std::ptr::null_mut(),
                len + spare,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        if spare == 0 {
            return Ok(start);
        }
        let skipped = start.addr().next_multiple_of(BLOCK) - start.addr();
        let base = start.wrapping_byte_add(skipped);
        for (front, len) in [(start, skipped), (base.wrapping_byte_add(len), spare - skipped)] {
            if len > 0 {
                // SAFETY: the range is the unused front or back of the new mapping, which no other
                // code knows yet.
                let _unmapped = unsafe { mm::munmap(front, len) };
            }
        }
        Ok(base)
    }

    /// Asks the kernel to use huge pages for a range, or not to use them. The kernel may ignore
    /// this.
    fn advise(start: *mut c_void, len: usize, advice: Advice) {
        debug_assert!(matches!(advice, Advice::LinuxHugepage | Advice::LinuxNoHugepage));
        // SAFETY: the range lies in a mapping of the caller, and this advice concerns the size of
        // the pages, not their content.
        let _advised = unsafe { mm::madvise(start, len, advice) };
    }

    /// Turns the 2 MiB at `start` into a huge page, if the kernel can do so without waiting.
    fn collapse(start: *mut c_void) {
        /// The value of `MADV_COLLAPSE`, which neither rustix nor musl's libc names.
        const COLLAPSE: libc::c_int = 25;
        // SAFETY: the block lies in a mapping of the caller. Other threads may use the block during
        // the call, and its content does not change (madvise(2)).
        let _collapsed = unsafe { libc::madvise(start, BLOCK, COLLAPSE) };
    }

    fn has_blocks() -> bool {
        const SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";
        let is_block = |size: String| size.trim().parse() == Ok(BLOCK);
        cfg!(target_arch = "x86_64") || std::fs::read_to_string(SIZE).is_ok_and(is_block)
    }
}

#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
mod boxed {
    use corewalk_base::primitives::atomic::AtomicU64;
    use std::io;

    /// A boxed slice of `max_slots` slots.
    pub(in crate::arena) struct SlotMemory<const WORDS: usize> {
        slots: Box<[[AtomicU64; WORDS]]>,
    }

    impl<const WORDS: usize> SlotMemory<WORDS> {
        pub(in crate::arena) fn reserve(max_slots: u32) -> io::Result<Self> {
            if max_slots == 0 || WORDS == 0 {
                return Err(rustix::io::Errno::INVAL.into());
            }
            let zeroes = |_| std::array::from_fn(|_| AtomicU64::new(0));
            Ok(Self { slots: (0..max_slots).map(zeroes).collect() })
        }

        pub(in crate::arena) fn note_handed_out(&self, _before: u64, _now: u64) {}

        pub(in crate::arena) fn prefetch(&self, _index: u32) {}

        #[inline]
        pub(in crate::arena) fn max_slots(&self) -> u32 {
            u32::try_from(self.slots.len()).expect("made from a u32")
        }

        #[inline]
        pub(in crate::arena) fn slot(&self, index: u32) -> &[AtomicU64; WORDS] {
            let slot = self.slots.get(index as usize);
            slot.unwrap_or_else(|| panic!("slot {index} is out of range"))
        }
    }
}
