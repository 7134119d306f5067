//! Programs that lock their memory.

use corewalk_testkit::require::{Need, skip};
use std::fs;

use crate::roles::{child, exited, remove, semop, set, wait};

/// The most memory that may be locked or resident, in KiB. The program needs less, and the whole
/// namespace would need more.
const SMALL_KB: u64 = 512 * 1024;

const PAGE: usize = 4096;
const PAGES: usize = 64;

/// mlockall(2) must lock and populate all memory of the program, but not the memory of the
/// namespace.
pub(crate) fn locked() {
    let ways: [fn(i32) -> i32; 2] = [
        // SAFETY: the call takes a number.
        |flags| unsafe { libc::mlockall(flags) },
        // SAFETY: as above.
        |flags| unsafe { libc::syscall(libc::SYS_mlockall, flags) as i32 },
    ];
    for (at, way) in ways.into_iter().enumerate() {
        for flags in [libc::MCL_CURRENT, libc::MCL_FUTURE, libc::MCL_CURRENT | libc::MCL_FUTURE] {
            for is_before in [true, false] {
                let pid = child(|| lock(way, flags, is_before));
                assert_eq!(exited(wait(pid)), 0, "way {at}, {flags}, {is_before}");
            }
        }
    }
}

fn lock(way: fn(i32) -> i32, flags: i32, is_before: bool) -> i32 {
    let before = map();
    let mut id = 0;
    if !is_before {
        id = set(1);
    }
    if way(flags) != 0 {
        skip(Need::Root, std::io::Error::last_os_error());
        return 0;
    }
    let later = map();
    if is_before {
        id = set(1);
    }
    assert_eq!(semop(id, (0, 1, 0)), Ok(0));
    remove(id);
    let (locked, resident) = (status_kb("VmLck:"), status_kb("VmRSS:"));
    if locked == 0 || locked > SMALL_KB || resident > SMALL_KB {
        println!("{locked} kB locked, {resident} kB resident");
        return 1;
    }
    let [current, future] = [libc::MCL_CURRENT, libc::MCL_FUTURE].map(|flag| flags & flag != 0);
    if (is_resident(before), is_resident(later)) != (current, future) {
        return 2;
    }
    0
}

/// Maps pages that nothing has touched.
fn map() -> *mut libc::c_void {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: the call names no address, so it replaces no mapping in use.
    let mapped = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGES * PAGE, access, kind | libc::MAP_ANONYMOUS, -1, 0)
    };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped
}

/// Returns true if all pages of a mapping have memory.
fn is_resident(mapped: *mut libc::c_void) -> bool {
    let mut pages = [0; PAGES];
    // SAFETY: the range is mapped, and `pages` has a byte for each page.
    let done = unsafe { libc::mincore(mapped, PAGES * PAGE, pages.as_mut_ptr()) };
    done == 0 && pages.iter().all(|page| page & 1 != 0)
}

fn status_kb(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it has a line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
