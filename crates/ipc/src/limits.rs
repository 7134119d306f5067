//! The limits of a namespace.
//!
//! Source: proc(5) `/proc/sys/kernel/sem` and the like.

/// The size limit for a message in bytes, whatever `msgmax` is. The limit exists because the text
/// must fit into one contiguous range of cache lines.
pub(crate) const MSGMAX_MAX: u32 = 1 << 20;

/// The largest value of a semaphore.
pub const SEMVMX: i32 = 32_767;

/// The largest adjustment for `SEM_UNDO`.
pub const SEMAEM: i32 = 32_767;

/// The limits of a namespace, with the defaults of Linux. Analogous to `/proc/sys/kernel/sem`,
/// `msg*` and `shm*`.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::Limits;
///
/// assert_eq!(Limits::default().semopm, 500);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `SEMMSL`: semaphores of a set, at most 32,767.
    pub semmsl: u32,
    /// `SEMMNS`: semaphores of the namespace.
    pub semmns: u32,
    /// `SEMOPM`: operations of a call.
    pub semopm: u32,
    /// `SEMMNI`: sets of the namespace.
    pub semmni: u32,
    /// `MSGMAX`: bytes of a message.
    pub msgmax: u32,
    /// `MSGMNB`: the initial limit for the bytes in a queue.
    pub msgmnb: u32,
    /// `MSGMNI`: queues of the namespace.
    pub msgmni: u32,
    /// `SHMMAX`: bytes of a segment. The minimum is one.
    pub shmmax: u64,
    /// `SHMALL`: pages of all segments.
    pub shmall: u64,
    /// `SHMMNI`: segments of the namespace.
    pub shmmni: u32,
    /// Corresponds to Linux's `shm_rmid_forced`: the last detach of a segment removes the segment.
    /// A segment that no task has attached is removed when its creator ends.
    pub is_shm_rmid_forced: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            semmsl: 32_000,
            semmns: 1_024_000_000,
            semopm: 500,
            semmni: 32_000,
            msgmax: 8192,
            msgmnb: 16_384,
            msgmni: 32_000,
            shmmax: u64::MAX - (1 << 24),
            shmall: u64::MAX - (1 << 24),
            shmmni: 4096,
            is_shm_rmid_forced: false,
        }
    }
}

impl Limits {
    /// Returns true if the data structures of a namespace can hold objects as large as each limit
    /// allows.
    pub(crate) fn are_possible(&self) -> bool {
        self.semmsl <= 32_767 && self.semopm <= 32_767 && self.msgmax <= MSGMAX_MAX
    }
}
