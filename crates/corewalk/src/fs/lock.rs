//! Locks of files, as in fcntl(2) and flock(2).

/// A lock of a part of a file, as in fcntl(2), or of a whole file, as in flock(2).
///
/// # Examples
/// ```
/// use corewalk::{FileLock, LockKind};
///
/// let held = FileLock::new(1, LockKind::Read).with_range(0, 99);
/// let wanted = FileLock::new(2, LockKind::Write).with_range(50, 60);
/// assert!(held.conflicts(&wanted));
/// assert!(!held.conflicts(&wanted.with_range(100, 200)));
/// assert!(!held.conflicts(&FileLock { kind: LockKind::Read, ..wanted }));
/// ```
///
/// A back end that keeps the locks of a file in memory:
/// ```
/// use corewalk::{Errno, FileLock, LockKind};
///
/// fn set_lock(locks: &mut Vec<FileLock>, new: &FileLock) -> Result<(), Errno> {
///     if locks.iter().any(|other| other.conflicts(new)) {
///         return Err(Errno::AGAIN);
///     }
///     for old in std::mem::take(locks) {
///         if old.owner != new.owner || old.is_flock != new.is_flock {
///             locks.push(old);
///             continue;
///         }
///         // The owner keeps its lock of the bytes before and behind the new range.
///         if old.start < new.start {
///             locks.push(old.with_range(old.start, old.end.min(new.start - 1)));
///         }
///         if old.end > new.end {
///             locks.push(old.with_range(old.start.max(new.end + 1), old.end));
///         }
///     }
///     locks.extend(Some(*new).filter(|new| new.kind != LockKind::Unlock));
///     Ok(())
/// }
///
/// fn get_lock(locks: &[FileLock], wanted: &FileLock) -> Option<FileLock> {
///     locks.iter().find(|other| other.conflicts(wanted)).copied()
/// }
/// # let mut locks = vec![];
/// # let lock = FileLock::new(1, LockKind::Write).with_range(0, 99);
/// # set_lock(&mut locks, &lock)?;
/// # let other = FileLock { owner: 2, ..lock };
/// # assert_eq!(set_lock(&mut locks, &other), Err(Errno::AGAIN));
/// # assert_eq!(get_lock(&locks, &other), Some(lock));
/// # set_lock(&mut locks, &FileLock { kind: LockKind::Unlock, ..lock }.with_range(40, 59))?;
/// # assert_eq!(locks, [lock.with_range(0, 39), lock.with_range(60, 99)]);
/// # set_lock(&mut locks, &other.with_range(40, 59))?;
/// # Ok::<(), Errno>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// The number by which the client identifies the owner of the lock. The owner is an open file
    /// for flock(2), and a process for fcntl(2). The number is unique among the owners of one
    /// mount.
    pub owner: u64,
    /// The kind of lock.
    pub kind: LockKind,
    /// The first locked byte.
    pub start: u64,
    /// The last locked byte. 2^63 - 1 stands for the end of the file, however long it gets.
    pub end: u64,
    /// The ID of the process that has the lock, which fcntl(2) returns for `F_GETLK`. It is 0 if
    /// the process is not known.
    pub pid: u32,
    /// True for a lock of flock(2). Locks of flock(2) and of fcntl(2) do not conflict.
    pub is_flock: bool,
}

/// The kind of a [`FileLock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// A read lock: other owners may have read locks of the same bytes.
    Read,
    /// A write lock: no other owner may have a lock of the same bytes.
    Write,
    /// No lock. Setting this kind drops the locks that the owner has of these bytes.
    Unlock,
}

impl FileLock {
    /// The largest value of [`FileLock::end`]. It stands for the end of the file, however long the
    /// file gets.
    pub const END_MAX: u64 = i64::MAX as u64;

    /// Returns a lock of fcntl(2) on the whole file.
    pub fn new(owner: u64, kind: LockKind) -> FileLock {
        FileLock { owner, kind, start: 0, end: FileLock::END_MAX, pid: 0, is_flock: false }
    }

    /// Sets the locked bytes: those from `start` to `end`, both included.
    #[must_use]
    pub fn with_range(self, start: u64, end: u64) -> FileLock {
        FileLock { start, end, ..self }
    }

    /// Returns true if the two locks cannot exist at the same time.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileLock, LockKind};
    ///
    /// let [a, b] = [1, 2].map(|owner| FileLock::new(owner, LockKind::Read));
    /// assert!(!a.conflicts(&b));
    /// assert!(a.conflicts(&FileLock::new(2, LockKind::Write)));
    /// ```
    pub fn conflicts(&self, other: &FileLock) -> bool {
        let kinds = [self.kind, other.kind];
        self.is_flock == other.is_flock
            && self.owner != other.owner
            && self.start <= other.end
            && other.start <= self.end
            && !kinds.contains(&LockKind::Unlock)
            && kinds != [LockKind::Read; 2]
    }
}
