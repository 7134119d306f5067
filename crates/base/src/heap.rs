//! Freed memory of the heap, given back to the system.
//!
//! An allocator gives only the free pages at the end of the heap back to the system. One living
//! object there keeps all freed pages before it resident. A program that has freed many objects
//! calls [`give_back_freed`].
//!
//! Source: malloc_trim(3).
#![expect(unsafe_code, reason = "the C library is called")]

/// Gives the unused pages of the heap back to the system.
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
