//! A region of memory, divided into cache lines. Callers name a line by its number, and every
//! number is checked against the size of the region.
//!
//! Other processes may write anything into a shared mapping at any time, so it can hold no
//! pointers. A region hands out only atomic words, in lines of eight, and takes only line numbers.
//!
//! A line number that is out of range means line 0, the *scratch* line, which no protocol relies
//! on. So a hostile line number reads and writes only garbage, and fast paths need no error path.
//!
//! A region is type-stable memory: each cache line always consists of atomic words, and only
//! dropping the region unmaps it. So a caller may keep the number of a line, and read the line at
//! any later time. It must then check that the line still belongs to the same object.
//!
//! # Invariants
//!
//! - R.1: `base` is the start of a readable and writable mapping of `lines` cache lines. `lines` is
//!   at least 1.
//! - R.2: the words are only ever accessed as `AtomicU64`.
//!
//! # Limits
//!
//! A region does not record which of its cache lines are in use. The kernel may have no memory left
//! when a line is accessed for the first time:
//! - Private memory is mapped with `MAP_NORESERVE`. Callers limit how many lines they use.
//! - If another process truncates the mapped file, an access beyond the new end raises `SIGBUS`. A
//!   memfd with `F_SEAL_SHRINK` cannot be truncated.
//! - If the file system of the mapped file is full, the first access also raises `SIGBUS`. So a
//!   caller reserves the lines of a file before their first use ([`Region::reserve`]).
//!
//! Source: mmap(2), madvise(2) `MADV_POPULATE_WRITE`; userspace-rcu's rule that type-stable memory
//! needs no grace period.

#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
pub use boxed::Region;
#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
pub use mapped::Region;

use crate::primitives::atomic::AtomicU64;

/// Number of words of a line.
pub const LINE_WORDS: usize = 8;

/// A cache line of words.
pub type Line = [AtomicU64; LINE_WORDS];

#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
mod mapped {
    #![expect(unsafe_code, reason = "a mapping is reached through raw pointers")]

    use super::Line;
    use rustix::{
        fs::{fstat, fstatfs},
        io::Errno,
        mm::{self, Advice, MapFlags, ProtFlags},
        param::page_size,
    };
    use std::{fmt, io, ops::Range, os::fd::AsFd, ptr::NonNull};

    /// An array of cache lines. Its memory is private to this process, or shared through a file.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_base::Region;
    /// use std::sync::atomic::Ordering;
    ///
    /// let region = Region::private(16)?;
    /// region.line(3)[0].store(7, Ordering::Relaxed);
    /// assert_eq!(region.line(3)[0].load(Ordering::Relaxed), 7);
    /// // A number out of range means the scratch line.
    /// assert!(std::ptr::eq(region.line(16), region.line(0)));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub struct Region {
        base: NonNull<Line>,
        lines: u32,
        /// Whether the file system of the mapped file may become full. False for a memfd.
        is_limited: bool,
    }

    impl Region {
        /// Maps `lines` cache lines of private memory, all zero.
        ///
        /// # Errors
        ///
        /// `EINVAL` if `lines` is 0, `ENOMEM` if there is no address space left.
        pub fn private(lines: u32) -> io::Result<Self> {
            let len = (lines as usize).checked_mul(size_of::<Line>()).ok_or(Errno::INVAL)?;
            if len == 0 {
                return Err(Errno::INVAL.into());
            }
            // SAFETY: the address passed to mmap(2) is null, so the new mapping replaces no mapping
            // in use.
            let base = unsafe {
                mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            }?;
            let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
            Ok(Self { base: base.cast(), lines, is_limited: false })
        }

        /// Maps the first `lines` lines of a file, shared with every process that maps it.
        ///
        /// Other processes may write any value into the mapped cache lines at any time. So the
        /// caller must not trust the values that it reads.
        ///
        /// # Errors
        ///
        /// `EINVAL` if `lines` is 0, or if the file is shorter than `lines` cache lines of 64
        /// bytes. `EACCES` if the file is not open for reading and writing. `ENODEV` if the file
        /// cannot be mapped. `ENOMEM` if there is no address space left.
        ///
        /// # Examples
        ///
        /// ```
        /// use corewalk_base::Region;
        /// use std::sync::atomic::Ordering;
        ///
        /// let file = rustix::fs::memfd_create("lines", rustix::fs::MemfdFlags::CLOEXEC)?;
        /// rustix::fs::ftruncate(&file, 4 * 64)?;
        /// let (one, other) = (Region::shared(&file, 4)?, Region::shared(&file, 4)?);
        /// one.line(3)[0].store(7, Ordering::Relaxed);
        /// assert_eq!(other.line(3)[0].load(Ordering::Relaxed), 7);
        /// assert!(Region::shared(&file, 5).is_err());
        /// # Ok::<(), std::io::Error>(())
        /// ```
        pub fn shared(file: impl AsFd, lines: u32) -> io::Result<Self> {
            let len = (lines as usize).checked_mul(size_of::<Line>()).ok_or(Errno::INVAL)?;
            let size = u64::try_from(fstat(&file)?.st_size).unwrap_or(0);
            if len == 0 || size < len as u64 {
                return Err(Errno::INVAL.into());
            }
            let is_limited = fstatfs(&file).is_ok_and(|room| room.f_blocks != 0);
            // SAFETY: mmap(2) gets no address, so it replaces no mapping in use. The words are
            // atomics (invariant R.2), so a store by another process is no data race.
            let base = unsafe {
                mm::mmap(
                    std::ptr::null_mut(),
                    len,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    file,
                    0,
                )
            }?;
            let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
            Ok(Self { base: base.cast(), lines, is_limited })
        }

        /// Reserves memory for the cache lines in `lines`, so that no access to them by any process
        /// raises `SIGBUS`. Ignores numbers that are out of range.
        ///
        /// Does nothing for private memory, for a file in a file system without a limit, and on a
        /// kernel before 5.14, which cannot reserve memory.
        ///
        /// # Errors
        ///
        /// `ENOSPC` if the file system is full; `ENOMEM` if the machine has no memory left. After
        /// an error, only some of the cache lines in `lines` may have reserved memory.
        ///
        /// # Examples
        ///
        /// ```
        /// use corewalk_base::Region;
        ///
        /// let file = rustix::fs::memfd_create("lines", rustix::fs::MemfdFlags::CLOEXEC)?;
        /// rustix::fs::ftruncate(&file, 1000 * 64)?;
        /// let region = Region::shared(&file, 1000)?;
        /// region.reserve(10..700)?;
        /// # Ok::<(), std::io::Error>(())
        /// ```
        pub fn reserve(&self, lines: Range<u32>) -> io::Result<()> {
            let line_bytes = size_of::<Line>();
            let first = lines.start as usize * line_bytes / page_size() * page_size();
            let end = lines.end.min(self.lines) as usize * line_bytes;
            if !self.is_limited || end <= first {
                return Ok(());
            }
            // SAFETY: `first` is below `end`, which is inside the mapping (R.1).
            let start = unsafe { self.base.as_ptr().byte_add(first) };
            // SAFETY: the pages from `start` on that contain the cache lines to reserve are inside
            // the mapping. madvise(2) with `MADV_POPULATE_WRITE` only allocates memory for these
            // pages, and changes none of their words.
            match unsafe { mm::madvise(start.cast(), end - first, Advice::LinuxPopulateWrite) } {
                // `EINVAL` means that the kernel does not know the advice.
                Ok(()) | Err(Errno::INVAL) => Ok(()),
                // `EFAULT`: a write to the page would raise `SIGBUS`, because the file system is
                // full.
                Err(Errno::FAULT) => Err(Errno::NOSPC.into()),
                Err(errno) => Err(errno.into()),
            }
        }

        /// Returns the cache line with the number `index`, or line 0, the scratch line, if `index`
        /// is out of range.
        #[inline]
        #[must_use]
        pub fn line(&self, index: u32) -> &Line {
            let index = if index < self.lines { index } else { 0 };
            // SAFETY: the index is below `lines`, so the result stays inside the mapping (invariant
            // R.1).
            let line = unsafe { self.base.add(index as usize) };
            // SAFETY: the mapping is readable, writable, page-aligned and lives as long as `self`
            // (invariant R.1). Any bits are valid words, and the words are only accessed as atomics
            // (invariant R.2).
            unsafe { line.as_ref() }
        }

        /// Returns the number of lines.
        #[must_use]
        pub fn lines(&self) -> u32 {
            self.lines
        }

        /// Returns the addresses of the lines, in whole pages.
        #[must_use]
        pub fn addresses(&self) -> Range<usize> {
            let start = self.base.as_ptr().expose_provenance();
            let bytes = self.lines as usize * size_of::<Line>();
            start..start + bytes.next_multiple_of(page_size())
        }
    }

    impl fmt::Debug for Region {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Region").field("lines", &self.lines).finish_non_exhaustive()
        }
    }

    // SAFETY: the mapping belongs to the process, not to a thread. The words are only accessed as
    // atomics (invariant R.2), so threads may share them.
    unsafe impl Send for Region {}

    // SAFETY: as above.
    unsafe impl Sync for Region {}

    impl Drop for Region {
        fn drop(&mut self) {
            let len = self.lines as usize * size_of::<Line>();
            // SAFETY: the range is the mapping that the constructor has made (invariant R.1), and
            // `&mut self` proves that no reference into the mapping is left.
            let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), len) };
            debug_assert!(unmapped.is_ok(), "munmap of a whole mapping cannot fail");
        }
    }
}

#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
mod boxed {
    use super::Line;
    use crate::primitives::atomic::AtomicU64;
    use std::{io, ops::Range, os::fd::AsFd};

    /// Lines of zeroes.
    #[derive(Debug)]
    pub struct Region {
        lines: Box<[Line]>,
    }

    impl Region {
        /// Returns `lines` lines of zeroes.
        ///
        /// # Errors
        ///
        /// `EINVAL` for no lines.
        pub fn private(lines: u32) -> io::Result<Self> {
            if lines == 0 {
                return Err(rustix::io::Errno::INVAL.into());
            }
            let line = |_| std::array::from_fn(|_| AtomicU64::new(0));
            Ok(Self { lines: (0..lines).map(line).collect() })
        }

        /// Fails: Miri and the model checkers cannot map a file.
        ///
        /// # Errors
        ///
        /// `ENOSYS`, always.
        pub fn shared(_file: impl AsFd, _lines: u32) -> io::Result<Self> {
            Err(rustix::io::Errno::NOSYS.into())
        }

        /// Does nothing: in this build the memory of the lines is allocated from the start.
        ///
        /// # Errors
        ///
        /// None.
        pub fn reserve(&self, _lines: Range<u32>) -> io::Result<()> {
            Ok(())
        }

        /// Returns the cache line with the number `index`, or line 0, the scratch line, if `index`
        /// is out of range.
        #[must_use]
        pub fn line(&self, index: u32) -> &Line {
            self.lines.get(index as usize).unwrap_or(&self.lines[0])
        }

        /// Returns the number of lines.
        #[must_use]
        pub fn lines(&self) -> u32 {
            u32::try_from(self.lines.len()).expect("made from a u32")
        }

        /// Returns the addresses of the lines.
        #[must_use]
        pub fn addresses(&self) -> Range<usize> {
            let lines = self.lines.as_ptr_range();
            lines.start.expose_provenance()..lines.end.expose_provenance()
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::primitives::atomic::Ordering;

    #[test]
    fn lines_are_apart_and_zero() {
        let region = Region::private(4).unwrap();
        // ORDERING: Relaxed. One thread.
        region.line(1)[7].store(1, Ordering::Relaxed);
        // ORDERING: Relaxed. One thread.
        let sum: u64 = (0..4).map(|line| region.line(line)[7].load(Ordering::Relaxed)).sum();
        assert_eq!((sum, region.lines()), (1, 4));
    }

    #[test]
    fn line_out_of_range_is_the_scratch_line() {
        let region = Region::private(4).unwrap();
        for bad in [4, 5, u32::MAX] {
            assert!(std::ptr::eq(region.line(bad), region.line(0)));
        }
        assert!(!std::ptr::eq(region.line(3), region.line(0)));
    }

    #[test]
    fn region_of_no_lines_is_refused() {
        let error = Region::private(0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::INVAL.raw_os_error()));
    }
}
