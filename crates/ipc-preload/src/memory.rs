//! mlockall(2) without the namespace.
//!
//! The namespace is a mapping of more than 1 GB, of which a few pages are in use. mlockall(2) with
//! `MCL_CURRENT` would give memory to all of it. The library maps the namespace before `main`, so
//! `MCL_FUTURE` alone does not concern it.
//!
//! The kernel cannot be told to spare one mapping, and the namespace cannot be unmapped meanwhile:
//! other threads use it. So everything is locked without giving memory to it (`MCL_ONFAULT`), the
//! namespace is unlocked, and then each other mapping is locked by mlock(2), which gives memory.
//! The mappings are those of `/proc/self/maps`. If that cannot be read they are locked on fault
//! only.
//!
//! # What differs from the kernel
//!
//! `RLIMIT_MEMLOCK` is compared with the size of the address space, the namespace included. A
//! process with `CAP_IPC_LOCK`, or without a limit, does not notice.
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
        let Some(next) = MLOCKALL.found() else { return -1 };
        // SAFETY: the call takes a number.
        unsafe { next(flags) }
    })
}

/// Locks all mappings but the namespace; `next` is mlockall(2).
pub(crate) fn lock_all(flags: c_int, next: impl Fn(c_int) -> c_int) -> c_int {
    let Some(namespace) = process::namespace_memory() else { return next(flags) };
    if flags & libc::MCL_CURRENT == 0 {
        return next(flags);
    }
    let locked = next(flags | libc::MCL_ONFAULT);
    if locked != 0 {
        return locked;
    }
    let start = ptr::with_exposed_provenance::<c_void>(namespace.start);
    // SAFETY: the range is a mapping of this library.
    unsafe { libc::munlock(start, namespace.len()) };
    if flags & libc::MCL_ONFAULT == 0 {
        mappings().into_iter().filter(|range| *range != namespace).for_each(give_memory);
        if flags & libc::MCL_FUTURE != 0 {
            return next(libc::MCL_FUTURE);
        }
    }
    0
}

/// Populates a locked mapping. Errors are ignored, as by mlockall(2): some mappings have no memory.
fn give_memory(range: Range<usize>) {
    let start = ptr::with_exposed_provenance::<c_void>(range.start);
    // SAFETY: the call changes no byte, and fails where nothing is mapped any more.
    unsafe { libc::mlock(start, range.len()) };
}

/// Returns the mappings of this process. The kernel may report adjacent ones as one.
fn mappings() -> Vec<Range<usize>> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let address = |digits: &str| usize::from_str_radix(digits, 16).ok();
    let range = |line: &str| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        Some(address(start)?..address(end)?)
    };
    text.lines().filter_map(range).collect()
}
