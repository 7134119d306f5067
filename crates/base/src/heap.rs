//! Freed memory of the heap, given back to the system.
//!
//! When a program frees memory, its allocator gives only the free pages at the end of the heap back
//! to the system. One living object at the end of the heap keeps all freed pages before it
//! resident. A program that has freed many objects calls [`give_back_freed`].
//!
//! Source: malloc_trim(3).
#![expect(unsafe_code, reason = "the C library is called")]

/// Gives the unused pages of the heap back to the system.
///
/// This function scans the whole heap, which takes tens of milliseconds for a heap of some
/// gigabytes. Allocations of other threads may wait during the scan. With a C library other than
/// glibc the function does nothing.
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
