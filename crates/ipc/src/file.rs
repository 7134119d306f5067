//! The file of a namespace that several processes share: how a process creates the file, joins the
//! namespace in it, or refuses the file.
//!
//! The namespace's file contains the region (the memory of the namespace), and a header that
//! describes the region. A process checks the header against the size of the file before it maps
//! anything. It then accesses the region only by bounds-checked line numbers.
//!
//! # Making and joining
//!
//! A process makes a namespace under an flock(2) lock, which the kernel releases if the process
//! dies. The maker writes the magic number last. If a maker dies early, the file is empty or has no
//! magic number. No process can have joined such a file, so the next process makes the namespace
//! anew.
//!
//! A process that joins a namespace does not lock its file. The file is sparse: parts of the region
//! (the memory of the namespace) that were never used take no memory.
//!
//! # Refused files
//!
//! A process does not join the namespace in one of these files:
//! - A file from before the last boot, or from another machine: the processes that used it have
//!   ended, or run elsewhere.
//! - A file of another pid namespace: pids would not tell which processes are alive. A child that
//!   is forked into another pid namespace inherits its parent's mapping. But the registration of
//!   the child fails ([`is_in_other_pid_namespace`]).
//! - A file of another user, unless the caller is root: a user with write access to the file could
//!   make calls return anything.
//!
//! If a mapped file is truncated, each process that uses it gets `SIGBUS`. A memfd is sealed
//! against truncation.
//!
//! Source: flock(2), memfd_create(2) `F_SEAL_SHRINK`, pid_namespaces(7).

use corewalk_base::futex::{self, Deadline, Scope};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Region, errno_of};
use rustix::fs::{
    FileType, FlockOperation, Mode, OFlags, SealFlags, fcntl_add_seals, flock, fstat, ftruncate,
    open,
};
use rustix::io::{Errno, pread};
use rustix::process::geteuid;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::{error, fmt};

use crate::backing::lengthen;
use crate::field::{get, put, refuse_if};
use crate::layout::{Capacity, HEADER, HEADER_LINES, Layout};
use crate::limits::Limits;
use crate::lock::{BEAT_NS, WAIT_MAX_NS};
use crate::process::{Program, pid_namespace, read_small};
use crate::task_line::LAST_GENERATION;

/// The magic number of a complete namespace.
const MAGIC: u64 = u64::from_le_bytes(*b"corewlk\x01");

/// The version of the format of a namespace file. Every change of the format raises it.
const VERSION: u64 = 10;

const LINE_BYTES: u64 = 64;
const HEADER_WORDS: usize = HEADER_LINES as usize * 8;

// Indices of words in the header.
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 1;
const LINES_AT: usize = 2;
const PIDNS_AT: usize = 3;
/// The boot id, in two words.
const BOOT_AT: usize = 4;
const _: () = assert!(LAST_GENERATION == 7, "the last generation is a word of the first line");
/// The first of the nine words with the capacities. The limits take eleven words.
const CAPACITY_AT: usize = 8;
const LIMITS_AT: usize = 18;

/// The reason why a namespace could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenError {
    /// A system call failed.
    Os(Errno),
    /// The file is not a namespace.
    NotANamespace,
    /// The file was made by another version of this library.
    OtherVersion,
    /// The words of the file's header contradict each other, or the file is shorter than the header
    /// says.
    Damaged,
    /// The namespace's file was made before the last boot of this machine, or on another machine.
    OtherBoot,
    /// The file belongs to another pid namespace.
    OtherPidNamespace,
    /// The file belongs to another user.
    OtherUser,
    /// Another process kept the file locked for 10 s.
    Busy,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parts() {
            (errno, "") => fmt::Display::fmt(&errno, f),
            (_, text) => f.write_str(text),
        }
    }
}

impl error::Error for OpenError {}

impl From<Errno> for OpenError {
    fn from(errno: Errno) -> Self {
        Self::Os(errno)
    }
}

impl OpenError {
    /// Returns the errno for this error.
    #[must_use]
    pub fn errno(self) -> Errno {
        self.parts().0
    }

    fn parts(self) -> (Errno, &'static str) {
        match self {
            Self::Os(errno) => (errno, ""),
            Self::NotANamespace => (Errno::INVAL, "the file is not an IPC namespace"),
            Self::OtherVersion => (Errno::INVAL, "the IPC namespace was made by another version"),
            Self::Damaged => (Errno::INVAL, "the header of the IPC namespace is damaged"),
            Self::OtherBoot => (Errno::STALE, "the IPC namespace is from before the last boot"),
            Self::OtherPidNamespace => {
                (Errno::XDEV, "the IPC namespace belongs to another pid namespace")
            }
            Self::OtherUser => {
                (Errno::ACCESS, "the file of the IPC namespace belongs to another user")
            }
            Self::Busy => {
                (Errno::BUSY, "another process keeps the file of the IPC namespace locked")
            }
        }
    }
}

type Mapped = (Region, Layout, Limits);

/// Writes a structure to the header of a namespace's file, and reads it. Each field takes one word:
/// first the numbers, then the flags.
macro_rules! words_of {
    ($type:ident: $($number:ident)*; $($flag:ident)*) => {
        impl $type {
            fn words(&self) -> Vec<u64> {
                vec![$(self.$number.into(),)* $(self.$flag.into(),)*]
            }

            fn from_words(words: &[u64]) -> Option<Self> {
                let (mut this, mut words) = (Self::default(), words.iter().copied());
                $(this.$number = words.next()?.try_into().ok()?;)*
                $(this.$flag = words.next()? != 0;)*
                Some(this)
            }
        }
    };
}

words_of!(Capacity: sets sems undos waits tasks queues msgs segments attaches;);
words_of!(
    Limits: semmsl semmns semopm semmni msgmax msgmnb msgmni shmmax shmall shmmni;
    is_shm_rmid_forced
);

/// Refuses a file of another user.
pub(crate) fn open_path(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = fstat(&file)?;
    let user = geteuid();
    refuse_if(!user.is_root() && stat.st_uid != user.as_raw(), OpenError::OtherUser)?;
    Ok(file)
}

pub(crate) fn map(
    file: BorrowedFd<'_>,
    capacity: &Capacity,
    limits: Limits,
) -> Result<Mapped, OpenError> {
    let kind = FileType::from_raw_mode(fstat(file)?.st_mode);
    refuse_if(kind != FileType::RegularFile, OpenError::NotANamespace)?;
    if let Some(joined) = join(file)? {
        return Ok(joined);
    }
    lock(file)?;
    // Another process may have made the namespace meanwhile.
    let made =
        join(file).and_then(|joined| joined.map_or_else(|| make(file, capacity, limits), Ok));
    // The unlock cannot fail, since the file is open.
    let _unlocked = flock(file, FlockOperation::Unlock);
    made
}

/// Maps the namespace in the file. Returns none if the file has no magic number, so that a
/// namespace must be made first.
///
/// Joining takes no lock. The maker of a namespace writes the magic number last, so a file with the
/// magic number is complete. A flock(2) lock would not exclude a maker that shares its open file
/// description with this process.
fn join(file: BorrowedFd<'_>) -> Result<Option<Mapped>, OpenError> {
    let (words, _) = read_header(file)?;
    if words[MAGIC_AT] != MAGIC {
        return Ok(None);
    }
    // The first read of the header may have returned the magic number, but older values of the
    // other words. So read the header again.
    let (words, size) = read_header(file)?;
    let (layout, limits) = validate(&words, size)?;
    let region = Region::shared(file, layout.lines).map_err(errno_of)?;
    Ok(Some((region, layout, limits)))
}

fn make(file: BorrowedFd<'_>, capacity: &Capacity, limits: Limits) -> Result<Mapped, OpenError> {
    let layout = Layout::new(capacity)?;
    let (words, size) = read_header(file)?;
    // If an earlier maker has died, the file's header has no magic number. If that file has the
    // size that this process would choose, make the namespace anew. Otherwise refuse the file.
    let is_unfinished = words[MAGIC_AT] == 0 && size == u64::from(layout.lines) * LINE_BYTES;
    refuse_if(size != 0 && !is_unfinished, OpenError::NotANamespace)?;
    lengthen(file, u64::from(layout.lines) * LINE_BYTES)?;
    // Only a memfd can be sealed. Any other file is used without a seal.
    let _sealed = fcntl_add_seals(file, SealFlags::SHRINK);
    let region = Region::shared(file, layout.lines).map_err(errno_of)?;
    if let Err(error) = layout.fixed().into_iter().try_for_each(|lines| region.reserve(lines)) {
        drop(region);
        // The file system is too full for this namespace. Empty the file, so that its reserved
        // space is free and another process can make the namespace.
        let _emptied = ftruncate(file, 0);
        return Err(errno_of(error).into());
    }
    let set = |at: usize, value| put(&region.line(HEADER + at as u32 / 8)[at % 8], value);
    set(VERSION_AT, VERSION);
    set(LINES_AT, u64::from(layout.lines));
    set(PIDNS_AT, pid_namespace());
    boot_id().into_iter().zip(BOOT_AT..).for_each(|(word, at)| set(at, word));
    capacity.words().into_iter().zip(CAPACITY_AT..).for_each(|(word, at)| set(at, word));
    limits.words().into_iter().zip(LIMITS_AT..).for_each(|(word, at)| set(at, word));
    // ORDERING: Release. `join` reads the magic number without the lock of the file. Without this
    // order, it could read an incomplete header.
    region.line(HEADER)[MAGIC_AT].store(MAGIC, Ordering::Release);
    Ok((region, layout, limits))
}

/// Refuses a header from before the last boot, or from another pid namespace.
fn validate(words: &[u64; HEADER_WORDS], size: u64) -> Result<(Layout, Limits), OpenError> {
    refuse_if(words[MAGIC_AT] != MAGIC, OpenError::NotANamespace)?;
    refuse_if(words[VERSION_AT] != VERSION, OpenError::OtherVersion)?;
    let capacity = Capacity::from_words(&words[CAPACITY_AT..]).ok_or(OpenError::Damaged)?;
    let limits = Limits::from_words(&words[LIMITS_AT..]).ok_or(OpenError::Damaged)?;
    let layout = Layout::new(&capacity).map_err(|_| OpenError::Damaged)?;
    let lines = u64::from(layout.lines);
    let is_damaged = words[LINES_AT] != lines || size < lines * LINE_BYTES;
    refuse_if(is_damaged || !limits.are_possible(), OpenError::Damaged)?;
    refuse_if([words[BOOT_AT], words[BOOT_AT + 1]] != boot_id(), OpenError::OtherBoot)?;
    refuse_if(words[PIDNS_AT] != pid_namespace(), OpenError::OtherPidNamespace)?;
    Ok((layout, limits))
}

fn read_header(file: BorrowedFd<'_>) -> Result<([u64; HEADER_WORDS], u64), OpenError> {
    let mut bytes = [0; HEADER_WORDS * 8];
    // Get the size before the header, because another process may lengthen the file in between. The
    // file of a namespace is empty, or contains a whole header. So if the size is not 0 and the
    // read is short, the file is not that of a namespace.
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    let read = pread(file, &mut bytes, u64::from(HEADER) * LINE_BYTES)?;
    let words = bytes.as_chunks::<8>().0;
    refuse_if(size != 0 && read < bytes.len(), OpenError::NotANamespace)?;
    Ok((std::array::from_fn(|at| u64::from_ne_bytes(words[at])), size))
}

fn boot_id() -> [u64; 2] {
    let text = read_small("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16).unwrap_or(0);
    [(id >> 64) as u64, id as u64]
}

/// Returns true if the process of `program` is in another pid namespace than the file. For example,
/// a child can be forked into another pid namespace. Returns false if `/proc` cannot be read.
pub(crate) fn is_in_other_pid_namespace(region: &Region, program: &Program) -> bool {
    let (theirs, own) = (get(&region.line(HEADER)[PIDNS_AT]), program.pid_namespace);
    theirs != 0 && own != 0 && theirs != own
}

/// Takes the lock of flock(2).
fn lock(file: BorrowedFd<'_>) -> Result<(), OpenError> {
    for _ in 0..WAIT_MAX_NS / BEAT_NS {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            done => return Ok(done?),
        }
        let until = Deadline { monotonic_ns: futex::now().monotonic_ns + BEAT_NS };
        futex::wait(&AtomicU64::new(0), 0, until, Scope::Private);
    }
    Err(OpenError::Busy)
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::{Cred, Namespace, NamespaceOptions};

    /// The registration of a child that was forked into another pid namespace must fail, although
    /// the child has its parent's mapping.
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
        assert_eq!(namespace.pids().len(), 1, "a refused call took a task line");
        for known in [0, own] {
            put(word, known);
            assert!(namespace.register(Cred::root(), 2).is_ok());
        }
    }
}
