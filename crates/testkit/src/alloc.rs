//! A global allocator that counts allocations, for tests that an operation does not allocate or
//! does not leak.
//!
//! A test binary makes a [`Counting`] its global allocator, and compares counts before and after an
//! operation. Other threads may allocate at any time, so there are counts of the process and counts
//! of one thread.
//!
//! For the process, the allocator counts the bytes and blocks that are not freed yet
//! ([`Counting::live`]), for bounds on memory. For the calling thread, it counts the allocations
//! ([`thread_allocations`]), for exact numbers.
//!
//! The byte counts add up the requested sizes, without malloc's rounding.
//!
//! The counters of the process are atomics. The counter of a thread is a thread-local cell without
//! a destructor. Access to it does not allocate, and is possible even while the thread ends.
//!
//! ```
//! use corewalk_testkit::alloc::{Counting, thread_allocations};
//!
//! #[global_allocator]
//! static ALLOC: Counting = Counting::new();
//!
//! let before = thread_allocations();
//! let boxed = Box::new(7_u64);
//! assert_eq!(thread_allocations() - before, 1);
//! assert!(ALLOC.live().bytes >= 8);
//! drop(boxed);
//! ```
//!
//! Source: `std::alloc::GlobalAlloc`.
#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait with unsafe methods")]

use crate::real::atomic::{AtomicU64, Ordering};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// The system's allocator with counters.
#[derive(Debug, Default)]
pub struct Counting {
    allocated_bytes: AtomicU64,
    allocated_blocks: AtomicU64,
    freed_bytes: AtomicU64,
    freed_blocks: AtomicU64,
}

impl Counting {
    /// Returns an allocator whose counts are zero.
    pub const fn new() -> Self {
        Self {
            allocated_bytes: AtomicU64::new(0),
            allocated_blocks: AtomicU64::new(0),
            freed_bytes: AtomicU64::new(0),
            freed_blocks: AtomicU64::new(0),
        }
    }

    /// Returns the memory that the process has allocated and not freed.
    ///
    /// Reads four counters one after the other, so the result is exact only if no other thread
    /// allocates or frees meanwhile.
    pub fn live(&self) -> Live {
        // ORDERING: Relaxed. The counts are statistics. The counts of freed memory are read before
        // those of allocated memory. So a difference is seldom negative, and a negative one counts
        // as 0.
        let freed_bytes = self.freed_bytes.load(Ordering::Relaxed);
        let freed_blocks = self.freed_blocks.load(Ordering::Relaxed);
        // ORDERING: Relaxed. The counts are statistics.
        let allocated_bytes = self.allocated_bytes.load(Ordering::Relaxed);
        let allocated_blocks = self.allocated_blocks.load(Ordering::Relaxed);
        Live {
            bytes: allocated_bytes.saturating_sub(freed_bytes),
            blocks: allocated_blocks.saturating_sub(freed_blocks),
        }
    }

    fn count_allocated(&self, bytes: usize) {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.allocated_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.allocated_blocks.fetch_add(1, Ordering::Relaxed);
        let _ = THREAD_ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }

    fn count_freed(&self, bytes: usize) {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.freed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.freed_blocks.fetch_add(1, Ordering::Relaxed);
    }
}

/// The memory that a process has allocated and not freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Requested bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

thread_local! {
    static THREAD_ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of allocations of the calling thread with a [`Counting`] allocator.
///
/// A reallocation counts as one.
pub fn thread_allocations() -> u64 {
    THREAD_ALLOCATIONS.with(Cell::get)
}

// SAFETY: `Counting` passes each call to `System` unchanged, so a block goes back with its layout.
// Counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a layout of non-zero size.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            self.count_allocated(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller promises a layout of non-zero size.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            self.count_allocated(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.count_freed(layout.size());
        // SAFETY: by the caller's promise, `block` came from `System` with `layout`.
        unsafe { System.dealloc(block, layout) };
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: by the caller's promise, `block` came from `System` with `layout`, and the new
        // size is valid.
        let moved = unsafe { System.realloc(block, layout, new_size) };
        if !moved.is_null() {
            self.count_freed(layout.size());
            self.count_allocated(new_size);
        }
        moved
    }
}
