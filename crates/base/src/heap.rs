//! Returns freed memory of the heap to the system.
//!
//! An allocator returns only the free pages at the end of the heap to the system. If one object at
//! the end is still in use, all free pages before it stay resident. A program that has freed many
//! objects calls [`give_back_freed`].
//!
//! The allocator of glibc has several heaps, up to eight for each processor, and a thread allocates
//! from one of them. Freed memory of one heap cannot serve threads that use another heap. A program
//! whose threads fill and empty one cache calls [`limit_heaps`] first.
//!
//! Source: malloc_trim(3), mallopt(3).
#![expect(unsafe_code, reason = "the C library is called")]

/// Returns the unused pages of the heap to the system.
///
/// Scans the whole heap, which takes tens of milliseconds for some gigabytes, and may block
/// allocations of other threads. With a C library other than glibc it does nothing.
///
/// # Examples
///
/// ```
/// drop(vec![vec![0_u8; 1000]; 1000]);
/// corewalk_base::heap::give_back_freed();
/// ```
pub fn give_back_freed() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `malloc_trim` takes the allocator's own locks, and gives back only memory that is not
    // in use.
    let _was_any = unsafe { libc::malloc_trim(0) };
}

/// The maximum number of heaps that [`limit_heaps`] sets.
#[cfg(all(target_env = "gnu", not(miri)))]
const HEAPS: libc::c_int = 4;

/// Limits the allocator to four heaps, unless it already has more. Threads then wait for each other
/// more often when they allocate blocks of more than a kilobyte.
///
/// The limit of four heaps is for the whole process. With a C library other than glibc the function
/// does nothing.
///
/// # Examples
///
/// ```
/// corewalk_base::heap::limit_heaps();
/// ```
pub fn limit_heaps() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: `mallopt` takes the allocator's own lock, and only limits how many heaps are made
    // from now on.
    let _is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
}
