//! mlockall(2), which does not lock the memory of the namespace.
//!
//! The namespace is a mapping of more than 1 GB, of which a few pages are in use. mlockall(2) with
//! `MCL_CURRENT` would allocate memory for all its pages. `MCL_FUTURE` alone does not concern the
//! namespace, since the library maps it before `main`.
//!
//! mlockall(2) cannot exclude a mapping, and other threads use the namespace meanwhile. So
//! `lock_all` works in three steps:
//! 1. It locks everything without allocating memory (`MCL_ONFAULT`).
//! 2. It unlocks the namespace.
//! 3. It calls mlock(2) for each other mapping in `/proc/self/maps`, which allocates the memory. If
//!    `/proc/self/maps` cannot be read, the kernel allocates each page at its first use.
//!
//! # What differs from the kernel
//!
//! mlockall(2) fails if the size of the address space, which includes the namespace, is above
//! `RLIMIT_MEMLOCK`. So it may fail under a limit that would otherwise be high enough.
//!
//! Source: mlockall(2), mlock(2); Linux `mm/mlock.c` (`apply_mlockall_flags`).

use libc::{c_int, c_void};
use std::ops::Range;
use std::ptr;

use crate::next::next;
use crate::process;

next! {
    MLOCKALL: fn mlockall(c_int) -> c_int;
}

/// mlockall(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    lock_all(flags, |flags| {
        // SAFETY: the call takes a number.
        MLOCKALL.found().map_or(-1, |next| unsafe { next(flags) })
    })
}

/// Locks all mappings except the namespace. `next` calls the original mlockall(2).
pub(crate) fn lock_all(flags: c_int, next: impl Fn(c_int) -> c_int) -> c_int {
    let namespace = process::namespace_memory().filter(|_| flags & libc::MCL_CURRENT != 0);
    let Some(namespace) = namespace else { return next(flags) };
    let locked = next(flags | libc::MCL_ONFAULT);
    if locked != 0 {
        return locked;
    }
    let start = ptr::with_exposed_provenance::<c_void>(namespace.start);
    // SAFETY: the range is a mapping of this library.
    unsafe { libc::munlock(start, namespace.len()) };
    if flags & libc::MCL_ONFAULT == 0 {
        for range in mappings().into_iter().filter(|range| *range != namespace) {
            let start = ptr::with_exposed_provenance::<c_void>(range.start);
            // Errors are ignored, as mlockall(2) ignores them: the kernel cannot allocate memory
            // for some mappings.
            // SAFETY: the call changes no byte, and fails if nothing is mapped in the range any
            // more.
            unsafe { libc::mlock(start, range.len()) };
        }
        if flags & libc::MCL_FUTURE != 0 {
            return next(libc::MCL_FUTURE);
        }
    }
    0
}

/// Returns the mappings of the process. Adjacent mappings may be reported as one.
fn mappings() -> Vec<Range<usize>> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let address = |digits: &str| usize::from_str_radix(digits, 16).ok();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(address(start)?..address(end)?)
    };
    text.lines().filter_map(range).collect()
}
