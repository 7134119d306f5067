//! A global allocator for tests that an operation stores nothing into memory that other threads can
//! read.
//!
//! A test builds the system under test in memory that is then made read-only (*sealed*). A store of
//! the operation into sealed memory ends the process with SIGSEGV.
//!
//! # How it works
//!
//! A [`Seal`] is a global allocator. During a [`Phase`], in which the test builds its system, it
//! serves all threads from one large mapping, the region. Otherwise it is the system's allocator.
//! [`Phase::protect`] ends the phase and makes read-only:
//! 1. the region;
//! 2. all private, anonymous, writable mappings that were created during the phase, such as arenas.
//!    A comparison of `/proc/self/maps` finds them;
//! 3. with [`Reach::WithStatics`], `.data` and `.bss` of the program.
//!
//! Stacks and thread-local variables of older threads stay writable, and so does memory that is
//! allocated after [`Phase::protect`]. Such memory is private to its thread until a store into
//! read-only memory publishes it, and that store is caught.
//!
//! # Rules
//!
//! - Create helper threads before the [`Phase`], or create and join them in it. A thread that is
//!   created while memory is sealed may get a sealed stack.
//! - The operation must not print, because the buffer of standard output may be sealed.
//! - A process has only one phase. Memory of the phase is never reused. A block that grows is
//!   copied to new memory.
//!
//! [`prove`] does all steps of a test. It runs the operation in one child process, which must
//! succeed, and a control, which stores into sealed memory, in another, which must die. So the test
//! also fails if the memory is not read-only.
//!
//! # Limits
//!
//! Three kinds of stores are not caught. They are those to shared file mappings, those by the
//! kernel, and those to memory that C code got from malloc before [`Seal::begin`].
//!
//! Source: `mprotect(2)`, `proc_pid_maps(5)`; Clements et al., "The scalable commutativity rule",
//! 2013.
#![expect(unsafe_code, reason = "an allocator, and mprotect of its memory")]

use crate::{
    real::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    reexec::{self, Reexec},
};
use rustix::{
    io::write,
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect},
    stdio::stdout,
};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    ffi::c_void,
    fs::File,
    io::Read as _,
    ptr,
};

/// Only touched pages use memory.
const REGION_BYTES: usize = 16 << 30;

const REGION_ALIGN_MAX: usize = 4_096;

const RANGES_MAX: usize = 1_024;

const MAPS_BYTES_MAX: usize = 256 << 10;

const SEALED_ROLE: &str = "sealed";
const CONTROL_ROLE: &str = "control";
const SEALED_LINE: &str = "corewalk-testkit: memory is sealed\n";
const UNSEALED_LINE: &str = "corewalk-testkit: memory was sealed until here\n";

/// A global allocator whose memory can be made read-only.
///
/// ```no_run
/// use corewalk_testkit::seal::{Reach, Seal};
///
/// #[global_allocator]
/// static SEAL: Seal = Seal::new();
///
/// let phase = SEAL.begin();
/// let tree = vec![1, 2, 3];
/// let sealed = phase.protect(Reach::WithStatics);
/// let sum: i32 = tree.iter().sum();
/// drop(sealed);
/// assert_eq!(sum, 6);
/// ```
#[derive(Debug)]
pub struct Seal {
    /// The start of the region, or null before the phase.
    region: AtomicPtr<u8>,
    used: AtomicUsize,
    is_building: AtomicBool,
}

impl Seal {
    /// Returns an allocator that is not in a phase.
    pub const fn new() -> Self {
        Self {
            region: AtomicPtr::new(ptr::null_mut()),
            used: AtomicUsize::new(0),
            is_building: AtomicBool::new(false),
        }
    }

    /// Begins a phase of a test. Until it ends, new memory comes from one region, which
    /// [`Phase::protect`] can make read-only.
    ///
    /// # Panics
    ///
    /// Panics if `begin` was called before in this process, or if the region cannot be mapped.
    pub fn begin(&'static self) -> Phase {
        let before = Ranges::read(Reach::Built);
        // ORDERING(region): Acquire, for the Release store of the address in `begin`. Without it, a
        // thread that sees the address might not see the mapping.
        assert!(self.region.load(Ordering::Acquire).is_null(), "the process had a phase before");
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so the mapping overlaps no memory in use.
        let region = unsafe { mmap_anonymous(ptr::null_mut(), REGION_BYTES, access, flags) }
            .expect("the region can be mapped");
        // ORDERING(region): Release, for the Acquire loads in `bump` and `is_in_region`. Without
        // it, a thread that sees the address might not see the mapping.
        self.region.store(region.cast(), Ordering::Release);
        // ORDERING(building): Release, for the Acquire load in `bump`. Without it, a thread that
        // sees true might still see a null `region`.
        self.is_building.store(true, Ordering::Release);
        Phase { seal: self, before }
    }

    /// Returns the number of bytes of the region that are allocated.
    pub fn used_bytes(&self) -> usize {
        // ORDERING: Relaxed. A statistic, which is exact after the phase.
        self.used.load(Ordering::Relaxed)
    }

    /// Allocates a block of the region. Returns None outside of a [`Phase`], if the region is full,
    /// or if the alignment is too large.
    fn bump(&self, layout: Layout) -> Option<*mut u8> {
        // ORDERING(building): Acquire, for the Release store in `begin`, so that the address in
        // `region` is visible. The region is only aligned to a page. So a block with a larger
        // alignment comes from the system's allocator.
        if !self.is_building.load(Ordering::Acquire) || layout.align() > REGION_ALIGN_MAX {
            return None;
        }
        // ORDERING(region): Acquire, for the Release store in `begin`. Without it, a thread that
        // sees the address might not see the mapping.
        let region = self.region.load(Ordering::Acquire);
        let step = |used: usize| {
            let start = used.checked_next_multiple_of(layout.align())?;
            start.checked_add(layout.size()).filter(|end| *end <= REGION_BYTES)
        };
        // ORDERING: Relaxed. The addition alone ensures that no two blocks overlap.
        let used = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).ok()?;
        Some(region.wrapping_add(used.next_multiple_of(layout.align())))
    }

    fn is_in_region(&self, block: *mut u8) -> bool {
        // ORDERING(region): Acquire, for the Release store in `begin`. Without it, a thread that
        // sees the address might not see the mapping.
        let region = self.region.load(Ordering::Acquire);
        !region.is_null() && (block.addr().wrapping_sub(region.addr())) < REGION_BYTES
    }
}

impl Default for Seal {
    fn default() -> Self {
        Self::new()
    }
}

/// The memory that [`Phase::protect`] seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The memory that was allocated or mapped during the phase.
    Built,
    /// The memory of the [`Phase`], and also `.data` and `.bss` of the program, which hold its
    /// global variables, for example counters.
    WithStatics,
}

/// A phase, during which the system under test is built.
#[derive(Debug)]
#[must_use = "`protect` ends a phase"]
pub struct Phase {
    seal: &'static Seal,
    before: Ranges,
}

impl Phase {
    /// Makes the memory that was allocated since [`Seal::begin`] read-only until the returned guard
    /// is dropped. Aborts if mprotect(2) fails.
    ///
    /// # Panics
    ///
    /// Panics if the calling thread was created after [`Seal::begin`], because its stack would
    /// become read-only.
    pub fn protect(self, reach: Reach) -> Sealed {
        let mut built = self.into_ranges();
        if reach == Reach::WithStatics {
            let mut statics = Ranges::read(Reach::WithStatics);
            statics.subtract(&Ranges::read(Reach::Built));
            built.append(&statics);
        }
        let here = ptr::from_ref(&built).addr();
        assert!(!built.contains(here), "protect was called on a thread created in the phase");
        let sealed = Sealed { ranges: built };
        sealed.set(MprotectFlags::READ);
        sealed
    }

    /// Ends the phase and returns the address ranges of its memory.
    pub(crate) fn into_ranges(self) -> Ranges {
        // ORDERING: Relaxed. By the rules of this module, no other thread allocates during this
        // call. A thread that does may die at its first store to the block.
        self.seal.is_building.store(false, Ordering::Relaxed);
        let mut built = Ranges::read(Reach::Built);
        built.subtract(&self.before);
        built
    }
}

/// While this guard lives, the memory that was allocated between [`Seal::begin`] and
/// [`Phase::protect`] is read-only.
#[derive(Debug)]
pub struct Sealed {
    ranges: Ranges,
}

impl Sealed {
    /// Returns the number of bytes that are read-only as long as this [`Sealed`] lives.
    pub fn sealed_bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    fn set(&self, access: MprotectFlags) {
        for range in self.ranges.iter() {
            let start = ptr::with_exposed_provenance_mut::<c_void>(range.start);
            // SAFETY: the kernel has reported the range as private and writable. Without write
            // access, a later store to it can only end the process.
            let done = unsafe { mprotect(start, range.end - range.start, access) };
            if done.is_err() {
                // A panic would store into memory that may be read-only now.
                std::process::abort();
            }
        }
    }
}

impl Drop for Sealed {
    fn drop(&mut self) {
        self.set(MprotectFlags::READ | MprotectFlags::WRITE);
    }
}

/// Proves that `operation` stores nothing into memory that `build` has allocated, and that
/// `control` stores something into it.
///
/// Call this function as the whole body of the test named `test`, in a binary whose global
/// allocator is `seal`. The test starts itself twice, as a child process. The child that runs
/// `operation` must succeed, and the one that runs `control` must die.
///
/// The result of `build` is put into a box, so that it is in read-only memory and not on the stack.
///
/// # Panics
///
/// Panics if the child that runs `operation` was killed, or the child that runs `control` was not.
pub fn prove<S>(
    seal: &'static Seal,
    test: &str,
    build: impl FnOnce() -> S,
    operation: impl FnOnce(&S),
    control: impl FnOnce(&S),
) {
    let Some(role) = reexec::role() else {
        let child = Reexec::test(test).role(SEALED_ROLE).run();
        let is_sealed = child.stdout.contains(SEALED_LINE.trim_end());
        assert!(is_sealed && child.stdout.contains(UNSEALED_LINE.trim_end()), "{child}");
        child.assert_success();
        let child = Reexec::test(test).role(CONTROL_ROLE).run();
        let is_sealed = child.stdout.contains(SEALED_LINE.trim_end());
        let is_killed = child.signal() == Some(reexec::SIGSEGV);
        assert!(is_sealed && is_killed, "the store of the control was not caught: {child}");
        return;
    };
    let phase = seal.begin();
    // The box puts the system on the heap, which becomes read-only, unlike the stack.
    let system = Box::new(build());
    // Do not use `println!`, because its buffer may become read-only.
    write(stdout(), SEALED_LINE.as_bytes()).expect("stdout is open");
    let sealed = phase.protect(Reach::WithStatics);
    match role.as_str() {
        SEALED_ROLE => operation(&system),
        CONTROL_ROLE => control(&system),
        other => panic!("unknown role {other}"),
    }
    drop(sealed);
    write(stdout(), UNSEALED_LINE.as_bytes()).expect("stdout is open");
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// A list of address ranges that does not allocate.
pub(crate) struct Ranges {
    list: [Range; RANGES_MAX],
    len: usize,
}

impl Ranges {
    const EMPTY: Self = Self { list: [Range { start: 0, end: 0 }; RANGES_MAX], len: 0 };

    /// Returns the private writable ranges of the process that `reach` includes.
    ///
    /// Must not allocate: malloc might map memory, which would then be taken for memory of the
    /// system under test.
    fn read(reach: Reach) -> Self {
        let mut text = [0_u8; MAPS_BYTES_MAX];
        let mut maps = File::open("/proc/self/maps").expect("/proc is mounted");
        let mut len = 0;
        loop {
            match maps.read(&mut text[len..]).expect("/proc/self/maps can be read") {
                0 => break,
                more => len += more,
            }
        }
        assert!(len < text.len(), "/proc/self/maps has more than {MAPS_BYTES_MAX} bytes");
        Self::parse(&text[..len], reach)
    }

    fn parse(text: &[u8], reach: Reach) -> Self {
        let mut ranges = Self::EMPTY;
        let mut program: Option<&[u8]> = None;
        let mut is_after_program = false;
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let Some(mapping) = Mapping::parse(line) else { continue };
            // The first mapping with a path in `/proc/self/maps` is the program, on all supported
            // machines.
            if program.is_none() && mapping.name.starts_with(b"/") {
                program = Some(mapping.name);
            }
            let is_program = program == Some(mapping.name) && !mapping.name.is_empty();
            // The anonymous mapping directly behind .data is .bss.
            let is_bss = is_after_program && mapping.name.is_empty();
            let is_static = is_program || is_bss;
            let is_anonymous = mapping.name.is_empty() && !is_bss;
            if mapping.is_private_writable
                && (is_anonymous || (is_static && reach == Reach::WithStatics))
            {
                ranges.push(mapping.range);
            }
            is_after_program = is_program;
        }
        ranges
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range> {
        self.list[..self.len].iter()
    }

    fn push(&mut self, range: Range) {
        assert!(self.len < RANGES_MAX, "too many mappings");
        self.list[self.len] = range;
        self.len += 1;
    }

    fn append(&mut self, other: &Self) {
        other.iter().for_each(|range| self.push(*range));
    }

    pub(crate) fn contains(&self, address: usize) -> bool {
        self.iter().any(|range| (range.start..range.end).contains(&address))
    }

    /// Removes from `self` the addresses that are in `other`. A range of `self` may be only partly
    /// in `other`, since the kernel merges adjacent mappings.
    fn subtract(&mut self, other: &Self) {
        let mut left = Self::EMPTY;
        for range in self.iter() {
            let mut start = range.start;
            for hole in other.iter().filter(|hole| hole.end > range.start) {
                if hole.start >= range.end {
                    break;
                }
                if hole.start > start {
                    left.push(Range { start, end: hole.start });
                }
                start = start.max(hole.end);
            }
            if start < range.end {
                left.push(Range { start, end: range.end });
            }
        }
        *self = left;
    }
}

impl std::fmt::Debug for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// One line of `/proc/self/maps`.
struct Mapping<'t> {
    range: Range,
    is_private_writable: bool,
    name: &'t [u8],
}

impl<'t> Mapping<'t> {
    fn parse(line: &'t [u8]) -> Option<Self> {
        let mut words = line.splitn(6, |byte| *byte == b' ');
        let (range, access) = (words.next()?, words.next()?);
        let dash = range.iter().position(|byte| *byte == b'-')?;
        let address = |digits| usize::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        Some(Self {
            range: Range { start: address(&range[..dash])?, end: address(&range[dash + 1..])? },
            is_private_writable: access.get(1) == Some(&b'w') && access.get(3) == Some(&b'p'),
            name: words.nth(3).unwrap_or_default().trim_ascii(),
        })
    }
}

// SAFETY: a block comes from `System` and goes back to it, or is a part of the region that is given
// out only once.
unsafe impl GlobalAlloc for Seal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match self.bump(layout) {
            Some(block) => block,
            // SAFETY: the caller promises a layout of non-zero size.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !self.is_in_region(block) {
            // SAFETY: the block is not in the region, so `alloc` got it from `System` with this
            // layout.
            unsafe { System.dealloc(block, layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &[u8] = b"\
5600-5700 r--p 00000000 fd:00 99 /opt/tests/walk one
5700-5800 rw-p 00001000 fd:00 99 /opt/tests/walk one
5800-5900 rw-p 00000000 00:00 0
6000-6100 rw-p 00000000 00:00 0                          [heap]
7000-7400 rw-p 00000000 00:00 0
7400-7500 ---p 00000000 00:00 0
7500-7600 rw-s 00000000 00:01 7 /dev/zero (deleted)
7600-7700 rw-p 00000000 fd:00 98 /lib/libc.so.6
7800-7900 r--p 00000000 00:00 0
ff00-ff80 rw-p 00000000 00:00 0                          [stack]
";

    fn pairs(ranges: &Ranges) -> Vec<(usize, usize)> {
        ranges.iter().map(|range| (range.start, range.end)).collect()
    }

    fn ranges(pairs: &[(usize, usize)]) -> Ranges {
        let mut ranges = Ranges::EMPTY;
        pairs.iter().for_each(|&(start, end)| ranges.push(Range { start, end }));
        ranges
    }

    #[test]
    fn maps_give_anonymous_private_writable_ranges_only() {
        assert_eq!(pairs(&Ranges::parse(MAPS, Reach::Built)), [(0x7000, 0x7400)]);
    }

    #[test]
    fn maps_with_statics_give_data_and_bss_of_the_program_too() {
        let with = Ranges::parse(MAPS, Reach::WithStatics);
        assert_eq!(pairs(&with), [(0x5700, 0x5800), (0x5800, 0x5900), (0x7000, 0x7400)]);
    }

    #[test]
    fn subtraction_cuts_ranges_that_the_kernel_merged() {
        let mut after = ranges(&[(10, 50), (60, 70), (80, 90)]);
        after.subtract(&ranges(&[(0, 12), (20, 30), (40, 60), (80, 90)]));
        assert_eq!(pairs(&after), [(12, 20), (30, 40), (60, 70)]);
    }

    #[test]
    fn bump_outside_of_a_phase_returns_none() {
        assert!(Seal::new().bump(Layout::new::<u64>()).is_none());
        assert!(!Seal::new().is_in_region(ptr::dangling_mut()));
    }
}
