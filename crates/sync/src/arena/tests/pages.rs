//! Tests of which pages of an arena are resident. They read this from the kernel, page by page.
//!
//! The tests write one word in a block of 2 MiB, and read `/proc/self/pagemap`. If all pages of the
//! block are resident then, the block is a huge page.
//!
//! Source: Linux `Documentation/admin-guide/mm/pagemap.rst`.

use super::*;
use corewalk_testkit::require::{Need, skip};
use std::{fs, fs::File, os::unix::fs::FileExt};

/// The size of a page on x86-64.
const PAGE: usize = 4096;
/// The size of a huge page on x86-64.
const BLOCK: usize = 2 << 20;
const SLOTS: u32 = (BLOCK / 64) as u32;
const TRIES: usize = 8;

/// Returns how many pages of block `nth` are resident.
fn resident_pages(arena: &SlotArena<8>, nth: u32) -> usize {
    let start = std::ptr::from_ref(arena.get(nth * SLOTS)).addr();
    assert!(start.is_multiple_of(BLOCK), "M.3");
    let mut entries = vec![0_u8; 8 * (BLOCK / PAGE)];
    let pagemap = File::open("/proc/self/pagemap").expect("a process may read its own");
    pagemap.read_exact_at(&mut entries, (start / PAGE * 8) as u64).expect("the range is mapped");
    let is_present = |entry: &&[u8]| entry[7] & 0x80 != 0;
    entries.chunks(8).filter(is_present).count()
}

fn touch(arena: &SlotArena<8>, slot: u32) {
    // ORDERING: Relaxed. One thread.
    arena.get(slot)[0].store(1, Ordering::Relaxed);
}

/// Returns true if `madvise` can give huge pages to this process.
fn has_huge_pages() -> bool {
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let setting = read("/sys/kernel/mm/transparent_hugepage/enabled");
    !setting.is_empty()
        && !setting.contains("[never]")
        && !read("/proc/self/status").contains("THP_enabled:\t0")
}

fn huge_pages_missed() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let value = |line: &str| line.strip_prefix("thp_fault_fallback ")?.parse().ok();
    counters.lines().find_map(value).unwrap_or(0)
}

/// Returns true if the kernel supports `MADV_COLLAPSE`.
fn can_collapse() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(1))
}

/// Writes one slot in the first block of 2 MiB, then calls `grow`, then writes one slot in the
/// second block. `grow` must hand out all slots of the first block.
///
/// The measurement uses `TRIES` arenas, because the kernel may lack huge pages. Returns the numbers
/// of resident pages in the two blocks, for the arena with the most resident pages in the first
/// block.
fn pages_of_a_big_arena(grow: fn(&SlotArena<8>)) -> (usize, usize) {
    let one = |_| {
        let arena: SlotArena<8> = SlotArena::new("big", 4 * SLOTS).unwrap();
        touch(&arena, 1);
        let before = resident_pages(&arena, 0);
        assert!(before < 64, "{before} pages of a block that is kept small");
        grow(&arena);
        touch(&arena, SLOTS);
        assert_eq!(resident_pages(&arena, 2), 0, "a block without a slot handed out");
        // ORDERING: Relaxed. One thread.
        assert_eq!(arena.get(1)[0].load(Ordering::Relaxed), 1, "the word written before");
        (resident_pages(&arena, 0), resident_pages(&arena, 1))
    };
    (0..TRIES).map(one).max().expect("there are tries")
}

fn assert_gets_huge_pages(grow: fn(&SlotArena<8>)) {
    let missed = huge_pages_missed();
    let (first, second) = pages_of_a_big_arena(grow);
    if !has_huge_pages() || (second < BLOCK / PAGE && huge_pages_missed() > missed) {
        skip(Need::Machine, "the kernel has no huge pages to give");
        return;
    }
    assert_eq!(second, BLOCK / PAGE, "the second block is on small pages");
    if !can_collapse() {
        skip(Need::Machine, format_args!("no MADV_COLLAPSE, {first} small pages"));
        return;
    }
    assert_eq!(first, BLOCK / PAGE, "the first block stays on small pages");
}

#[test]
fn arena_with_few_slots_in_use_takes_few_pages() {
    let arenas: Vec<SlotArena<8>> =
        (0..10).map(|_| SlotArena::new("small", 1 << 20).unwrap()).collect();
    for arena in &arenas {
        for _ in 0..10 {
            touch(arena, arena.alloc().expect("there is room"));
        }
    }
    let pages: usize = arenas.iter().map(|arena| resident_pages(arena, 0)).sum();
    // The ten written slots of an arena fit into one page, but some kernels map 16 pages at the
    // first access, so allow that many.
    assert!((10..=160).contains(&pages), "ten arenas of ten slots take {pages} pages");
}

#[test]
fn arena_that_enters_its_second_block_gets_huge_pages() {
    assert_gets_huge_pages(|arena| {
        let allocated = std::iter::from_fn(|| arena.alloc()).take(SLOTS as usize);
        assert_eq!(allocated.max(), Some(SLOTS));
    });
}

#[test]
fn arena_that_is_extended_into_its_second_block_gets_huge_pages() {
    assert_gets_huge_pages(|arena| {
        (1..=SLOTS).for_each(|slot| arena.extend_to(slot));
    });
}
