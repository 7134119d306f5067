//! Freed memory of the heap, given back to the system.
//!
//! An allocator keeps the pages that a program frees, and gives back those at the end of its heap
//! alone. After millions of small objects have gone, one that lives at the end keeps all of them
//! resident. A program that knows of such a moment calls [`give_back_freed`].
//!
//! Source: malloc_trim(3).
#![expect(unsafe_code, reason = "the C library is called")]

/// Gives the pages of the heap that nothing uses back to the system.
///
/// It looks through the whole heap, and an allocation of another thread may wait meanwhile: some
/// tens of milliseconds for gigabytes. With a C library other than glibc it does nothing.
///
/// # Examples
///
/// ```
/// drop(vec![vec![0_u8; 1000]; 1000]);
/// corewalk_sync::heap::give_back_freed();
/// ```
pub fn give_back_freed() {
    #[cfg(all(target_env = "gnu", not(miri)))]
    // SAFETY: the function takes the allocator's own locks, and frees nothing that is in use.
    let _was_any = unsafe { libc::malloc_trim(0) };
}
