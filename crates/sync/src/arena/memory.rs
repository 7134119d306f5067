//! The memory behind a `SlotArena`: one mapping, reserved whole and backed page by page.
//!
//! On the machine it is a private anonymous mapping with `MAP_NORESERVE`: the kernel sets aside
//! addresses only, and backs a page with zeroes when it is first written (a page that was only
//! read stays the common zero page). Huge pages are asked for, because a random walk over more
//! than 64 MiB is 9 to 26 % faster with them on the machine of the notes; a kernel that declines
//! changes nothing else. Under Miri and the model checkers, which cannot map memory or need to
//! see each atomic created, it is a boxed slice.
//!
//! # Invariants
//!
//! - M.1: `base` is the start of a readable and writable mapping of `max_slots` slots, unmapped
//!   only by the drop.
//! - M.2: the words are only ever reached as `AtomicU64`.
//!
//! # What it refuses
//!
//! It keeps no account of its slots, and gives nothing back before the drop. `MAP_NORESERVE`
//! means that running out of memory shows as the kernel's out-of-memory handling at first touch,
//! not as an error of `reserve`: callers keep a byte budget.
//!
//! Source: mmap(2), madvise(2).

#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
pub(super) use boxed::SlotMemory;
#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
pub(super) use mapped::SlotMemory;

#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
mod mapped {
    #![expect(unsafe_code, reason = "a mapping is reached through raw pointers")]

    use crate::primitives::atomic::AtomicU64;
    use rustix::{
        io::Errno,
        mm::{self, Advice, MapFlags, ProtFlags},
    };
    use std::{ffi::c_void, io, ptr::NonNull};

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
                .filter(|len| *len != 0 && isize::try_from(*len).is_ok())
                .ok_or(Errno::INVAL)?;
            // SAFETY: no address is asked for, so no mapping in use is replaced.
            let base = unsafe {
                mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            }?;
            // A kernel without huge pages says EINVAL and serves small ones.
            // SAFETY: the range is exactly the mapping made above, and the advice changes only
            // the size of the pages behind it.
            let _advised = unsafe { mm::madvise(base, len, Advice::LinuxHugepage) };
            let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
            Ok(Self { base: base.cast(), max_slots })
        }

        #[inline]
        pub(in crate::arena) fn max_slots(&self) -> u32 {
            self.max_slots
        }

        #[inline]
        pub(in crate::arena) fn slot(&self, index: u32) -> &[AtomicU64; WORDS] {
            assert!(index < self.max_slots, "slot {index} is out of range");
            // SAFETY: the index is below `max_slots`, so the result stays inside the mapping
            // (M.1), whose size fits in an `isize`.
            let slot = unsafe { self.base.add(index as usize) };
            // SAFETY: the mapping is readable, writable, page-aligned and lives as long as `self`
            // (M.1); zero pages are valid words, and they are only reached as atomics (M.2).
            unsafe { slot.as_ref() }
        }
    }

    // SAFETY: the mapping belongs to the process, not to a thread, and M.2 makes it a shared
    // array of atomics.
    unsafe impl<const WORDS: usize> Send for SlotMemory<WORDS> {}

    // SAFETY: as above.
    unsafe impl<const WORDS: usize> Sync for SlotMemory<WORDS> {}

    impl<const WORDS: usize> Drop for SlotMemory<WORDS> {
        fn drop(&mut self) {
            let len = self.max_slots as usize * size_of::<[AtomicU64; WORDS]>();
            // SAFETY: the range is the mapping of `reserve` (M.1), and `&mut self` proves that no
            // reference into it is left.
            let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast::<c_void>(), len) };
            debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
        }
    }
}

#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
mod boxed {
    use crate::primitives::atomic::AtomicU64;
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
