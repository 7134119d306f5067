//! The file of a namespace that several processes share: making it, joining it, refusing it.
//!
//! The file is the region, line for line. Its header says what it is; everything that is read from it
//! is checked against the size of the file before anything is mapped, and once mapped the region is
//! reached by bounds-checked numbers only.
//!
//! # Making and joining
//!
//! Both happen under flock(2), which a process that dies gives back. Who finds the file empty, or
//! without the word that is written last, makes it: nobody can have joined it. The file is sparse:
//! what is not used takes no memory.
//!
//! # What it refuses
//!
//! - A file of another boot: all its processes have gone with their machine, or are on another one.
//! - Another pid namespace: pids are how a dead process is told from a living one. A child that is forked into another
//!   one has its parent's mapping, and is refused when it registers ([`is_in_other_pid_namespace`]).
//! - A file of another user, unless the caller is root: who can write to it can make calls return anything.
//! - To guard against truncation: who cuts the file short while it is mapped ends everybody who uses
//!   it by `SIGBUS`. A memfd is sealed against it.
//!
//! Source: flock(2), memfd_create(2) `F_SEAL_SHRINK`, pid_namespaces(7).

use corewalk_base::Region;
use corewalk_base::futex::{self, Deadline, Scope};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, SealFlags, fcntl_add_seals, flock, fstat, ftruncate,
    open,
};
use rustix::io::{Errno, pread};
use rustix::process::{Resource, geteuid, getrlimit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::{error, fmt};

use crate::field::{get, put};
use crate::layout::{Capacity, HEADER, HEADER_LINES, Layout};
use crate::lock::{BEAT_NS, WAIT_MAX_NS};
use crate::namespace::Limits;
use crate::process::read_small;
use crate::task::LAST_GENERATION;

/// Says that a file is a namespace, complete.
const MAGIC: u64 = u64::from_le_bytes(*b"corewlk\x01");

/// The version of everything that is in the region. It changes when any of it changes.
const VERSION: u64 = 6;

const LINE_BYTES: u64 = 64;
const HEADER_WORDS: usize = HEADER_LINES as usize * 8;

// Words of the header; the words of the first line come first.
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 1;
const LINES_AT: usize = 2;
const PIDNS_AT: usize = 3;
/// Two words.
const BOOT_AT: usize = 4;
const _: () = assert!(LAST_GENERATION == 7, "the words of the header are apart");
/// Nine words, and thirteen.
const CAPACITY_AT: usize = 8;
const LIMITS_AT: usize = 18;

/// Why a namespace could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// The system said no.
    Os(Errno),
    /// The file is something else.
    NotANamespace,
    /// The file was made by another version of this library.
    OtherVersion,
    /// The header contradicts itself or the size of the file.
    Damaged,
    /// The file is from before the machine was started, or of another machine.
    OtherBoot,
    /// The file belongs to another pid namespace.
    OtherPidNamespace,
    /// The file belongs to another user.
    OtherUser,
    /// Somebody has kept the file locked for 10 s.
    Busy,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::Os(errno) => return fmt::Display::fmt(errno, f),
            Self::NotANamespace => "the file is not an IPC namespace",
            Self::OtherVersion => "the IPC namespace was made by another version",
            Self::Damaged => "the header of the IPC namespace is damaged",
            Self::OtherBoot => "the IPC namespace is from before the last start of the machine",
            Self::OtherPidNamespace => "the IPC namespace belongs to another pid namespace",
            Self::OtherUser => "the file of the IPC namespace belongs to another user",
            Self::Busy => "somebody keeps the file of the IPC namespace locked",
        };
        f.write_str(text)
    }
}

impl error::Error for OpenError {}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl OpenError {
    /// Returns the errno that says the same.
    #[must_use]
    pub fn errno(self) -> Errno {
        match self {
            Self::Os(errno) => errno,
            Self::NotANamespace | Self::OtherVersion | Self::Damaged => Errno::INVAL,
            Self::OtherBoot => Errno::STALE,
            Self::OtherPidNamespace => Errno::XDEV,
            Self::OtherUser => Errno::ACCESS,
            Self::Busy => Errno::BUSY,
        }
    }
}

/// What a file holds, or is to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) capacity: Capacity,
    pub(crate) limits: Limits,
}

/// Opens or makes the file at `path`, which is nobody's but ours.
pub(crate) fn open_path(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = fstat(&file)?;
    let user = geteuid();
    if !user.is_root() && stat.st_uid != user.as_raw() {
        return Err(OpenError::OtherUser);
    }
    Ok(file)
}

/// Maps the namespace in a file, which is made with `wanted` if there is none in it.
pub(crate) fn map(file: BorrowedFd<'_>, wanted: Shape) -> Result<(Region, Shape), OpenError> {
    if FileType::from_raw_mode(fstat(file)?.st_mode) != FileType::RegularFile {
        return Err(OpenError::NotANamespace);
    }
    let _lock = FileLock::take(file)?;
    let layout = Layout::new(&wanted.capacity)?;
    let mut words = [0; HEADER_WORDS];
    let size = read_header(file, &mut words)?;
    // What a maker that died has left has no magic number, and is as long as we would make it.
    let is_unfinished = words[MAGIC_AT] == 0 && size == u64::from(layout.lines) * LINE_BYTES;
    if size == 0 || is_unfinished {
        return make(file, wanted, &layout);
    }
    let shape = validate(file, &words)?;
    let layout = Layout::new(&shape.capacity).map_err(|_| OpenError::Damaged)?;
    let region = map_lines(file, layout.lines)?;
    Ok((region, shape))
}

/// Lengthens an empty file. A length over the limit of `ulimit -f` is refused before the kernel sees it: the kernel
/// would send SIGXFSZ, which ends the process, and its disposition is the program's own.
///
/// # Errors
/// `EFBIG`, and those of ftruncate(2).
pub(crate) fn lengthen(file: impl AsFd, len: u64) -> Result<(), Errno> {
    if getrlimit(Resource::Fsize).current.is_some_and(|most| len > most) {
        return Err(Errno::FBIG);
    }
    ftruncate(file, len)
}

fn map_lines(file: BorrowedFd<'_>, lines: u32) -> Result<Region, OpenError> {
    let error = |error| OpenError::Os(Errno::from_io_error(&error).unwrap_or(Errno::NOMEM));
    Region::shared(file, lines).map_err(error)
}

/// Makes a namespace in an empty file, or in one whose maker has died.
fn make(file: BorrowedFd<'_>, shape: Shape, layout: &Layout) -> Result<(Region, Shape), OpenError> {
    lengthen(file, u64::from(layout.lines) * LINE_BYTES)?;
    // A file that cannot be sealed is as good as any other file.
    let _sealed = fcntl_add_seals(file, SealFlags::SHRINK);
    let region = map_lines(file, layout.lines)?;
    let set = |at: usize, value| put(&region.line(HEADER + at as u32 / 8)[at % 8], value);
    set(VERSION_AT, VERSION);
    set(LINES_AT, u64::from(layout.lines));
    set(PIDNS_AT, pid_namespace());
    let boot = boot_id();
    set(BOOT_AT, boot[0]);
    set(BOOT_AT + 1, boot[1]);
    let numbers = shape.capacity.numbers();
    numbers.iter().enumerate().for_each(|(at, number)| set(CAPACITY_AT + at, u64::from(*number)));
    let numbers = shape.limits.numbers();
    numbers.iter().enumerate().for_each(|(at, number)| set(LIMITS_AT + at, u64::from(*number)));
    // ORDERING: Release. The header is complete before the file is a namespace, also for who reads it
    // without the lock of the file.
    region.line(HEADER)[MAGIC_AT].store(MAGIC, Ordering::Release);
    Ok((region, shape))
}

/// Returns what the header says, if it is true of the file and of where we are.
fn validate(file: BorrowedFd<'_>, words: &[u64; HEADER_WORDS]) -> Result<Shape, OpenError> {
    if words[MAGIC_AT] != MAGIC {
        return Err(OpenError::NotANamespace);
    }
    if words[VERSION_AT] != VERSION {
        return Err(OpenError::OtherVersion);
    }
    let number = |at: usize| u32::try_from(words[at]).map_err(|_| OpenError::Damaged);
    let capacity = Capacity::from_numbers(|at| number(CAPACITY_AT + at))?;
    let limits = Limits::from_numbers(|at| number(LIMITS_AT + at))?;
    let layout = Layout::new(&capacity).map_err(|_| OpenError::Damaged)?;
    let size = u64::from(layout.lines) * LINE_BYTES;
    let is_whole = u64::try_from(fstat(file)?.st_size).is_ok_and(|is| is >= size);
    if words[LINES_AT] != u64::from(layout.lines) || !is_whole || !limits.are_possible() {
        return Err(OpenError::Damaged);
    }
    if [words[BOOT_AT], words[BOOT_AT + 1]] != boot_id() {
        return Err(OpenError::OtherBoot);
    }
    if words[PIDNS_AT] != pid_namespace() {
        return Err(OpenError::OtherPidNamespace);
    }
    Ok(Shape { capacity, limits })
}

/// Reads the header, and returns how long the file is.
fn read_header(file: BorrowedFd<'_>, words: &mut [u64; HEADER_WORDS]) -> Result<u64, OpenError> {
    let mut bytes = [0; HEADER_WORDS * 8];
    let mut read = 0;
    while read < bytes.len() {
        let offset = u64::from(HEADER) * LINE_BYTES + read as u64;
        match pread(file, &mut bytes[read..], offset)? {
            0 => break,
            more => read += more,
        }
    }
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
    }
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    if size != 0 && read < bytes.len() {
        return Err(OpenError::NotANamespace);
    }
    Ok(size)
}

/// Returns the boot id, or zeroes where there is none to be read.
fn boot_id() -> [u64; 2] {
    let text = read_small("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    let half = |at: usize| {
        let digits = digits.get(at..at + 16).unwrap_or_default();
        u64::from_str_radix(digits, 16).unwrap_or(0)
    };
    [half(0), half(16)]
}

/// Returns true if this process is known to be in another pid namespace than those that share the file: it was forked
/// there by one that has it mapped. Where there is no `/proc` to ask, as in an empty root directory, nothing is known.
pub(crate) fn is_in_other_pid_namespace(region: &Region) -> bool {
    let (theirs, own) = (get(&region.line(HEADER)[PIDNS_AT]), pid_namespace());
    theirs != 0 && own != 0 && theirs != own
}

/// Returns the number of the pid namespace, or 0 where it is not to be had.
fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// flock(2), held.
struct FileLock<'f> {
    file: BorrowedFd<'f>,
}

impl<'f> FileLock<'f> {
    fn take(file: BorrowedFd<'f>) -> Result<Self, OpenError> {
        for _ in 0..WAIT_MAX_NS / BEAT_NS {
            match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let until = Deadline { monotonic_ns: futex::now().monotonic_ns + BEAT_NS };
            futex::wait(&AtomicU64::new(0), 0, until, Scope::Private);
        }
        Err(OpenError::Busy)
    }
}

impl Drop for FileLock<'_> {
    fn drop(&mut self) {
        // The file is open: this cannot fail.
        let _unlocked = flock(self.file, FlockOperation::Unlock);
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::{Cred, Namespace, NamespaceOptions};

    /// As a child finds it that was forked into another pid namespace: what is mapped is its parent's.
    #[test]
    fn process_in_another_pid_namespace_is_not_registered() {
        let capacity = Capacity { tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("pids", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let parent = namespace.register(Cred::root(), 1).unwrap();
        let word = &namespace.shared().region.line(HEADER)[PIDNS_AT];
        let own = get(word);
        assert_eq!(own, pid_namespace());
        put(word, own ^ 1);
        let refused = if own == 0 { None } else { Some(Errno::XDEV) };
        assert_eq!(namespace.register(Cred::root(), 2).err(), refused);
        assert_eq!(namespace.adopt(Cred::root(), 2).err(), refused);
        assert_eq!(parent.fork(2).err(), refused);
        assert_eq!(namespace.recover().err(), refused);
        assert_eq!(namespace.pids().len(), 1, "none of them took a line");
        // Nothing is known, or it is the same.
        for known in [0, own] {
            put(word, known);
            assert!(namespace.register(Cred::root(), 2).is_ok());
        }
    }
}
