//! The state of the model: one database, up to three mounts, and the answers that are under way
//! between them.
//!
//! A deadline is a number of ticks that are left, and not a point in time. So a run may last for
//! ever, and the number of states is finite all the same.
//!
//! The model merges states that behave in the same way. For example, a request that the database
//! runs late has the same effect as one that the mount sends late. So only a second copy of a
//! request has a state of its own (`LateChange`, `LateAck`). An answer has a state only if it shows
//! a value or ends a change.

pub(crate) const MOUNTS: usize = 3;
pub(crate) const DIRS: usize = 2;

/// The server caches nothing of the directory.
pub(crate) const ABSENT: u8 = 0;
/// The server caches the directory, but not the item.
pub(crate) const HELD: u8 = 1;
/// A cached item of version `v` is `CACHED + v`.
pub(crate) const CACHED: u8 = 2;
/// Stands for a version or a session that does not exist.
pub(crate) const NONE: u8 = 255;

/// A record of a change that waits until other mounts have given up leases. Its index in
/// `Database::intents` is the number of the mount that makes the change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intent {
    pub(crate) id: u8,
    /// The directories, as a mask.
    pub(crate) dirs: u8,
    /// The mounts that have acknowledged the intent, for `Ack::KeepsLease`.
    pub(crate) acked: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Database {
    pub(crate) version: u8,
    /// The directory that has the name which programs change. If programs change an attribute, the
    /// home of its inode.
    pub(crate) home: u8,
    pub(crate) leases: [u8; DIRS],
    pub(crate) until: [u8; MOUNTS],
    pub(crate) session: [u8; MOUNTS],
    pub(crate) intents: [Intent; MOUNTS],
    pub(crate) last_id: u8,
    /// The number of the last applied change, by mount and session.
    pub(crate) slot: [[u8; 2]; MOUNTS],
    pub(crate) result: [u8; MOUNTS],
    pub(crate) applied: [u8; MOUNTS],
    pub(crate) last: u8,
    pub(crate) boot: u8,
    /// The ticks until changes are allowed after a crash.
    pub(crate) grace: u8,
    pub(crate) registered: u8,
    /// A lock that a program on the first mount has at the start. The program loses the lock when
    /// the first session of this mount dies.
    pub(crate) file_lock: FileLock,
    /// The lock of each directory: the number of the mount that has the lock, plus one, or 0.
    pub(crate) locks: [u8; DIRS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileLock {
    #[default]
    None,
    /// The first session of the first mount has the file lock.
    Held,
    /// Another mount has taken the file lock, because the first session of the first mount was
    /// over.
    TakenOver,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reader {
    #[default]
    Idle,
    /// Used only in a control: the server has read the clock before the request of a program
    /// arrived.
    Checked,
    /// The kernel may keep the reply for `left` ticks.
    Reply { version: u8, left: u8 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FillStep {
    #[default]
    Idle,
    /// Used only in a control: the database has read the item before it took the directory's lock.
    Snapped,
    Answered,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) step: FillStep,
    pub(crate) dir: u8,
    pub(crate) boot: u8,
    /// The version in the answer, or `NONE` if the item is not in the filled directory.
    pub(crate) value: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteStep {
    #[default]
    Idle,
    /// The server has dropped the item from its own cache, but not yet from the kernel's.
    Marked,
    Ready,
    /// The transaction has taken only the first of its two locks. In a control, it has read the
    /// home or the leases before it took a lock.
    Started,
    Made,
    /// Reached only in a control: the change was lost and is not sent again.
    Lost,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) step: WriteStep,
    pub(crate) moves: bool,
    /// The session that sends the change, or `NONE` if the next session will send it.
    pub(crate) session: u8,
    /// The number of locks that the change has taken. In models in which items move, the home that
    /// was read before the lock was taken.
    pub(crate) seen: u8,
    pub(crate) version: u8,
    pub(crate) boot: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HolderStep {
    #[default]
    Idle,
    Marked,
    Ready,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) step: HolderStep,
    pub(crate) owner: u8,
    pub(crate) id: u8,
}

/// A renewal that the database has evaluated, but not committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Renewal {
    pub(crate) is_evaluated: bool,
    /// Whether the session knew the current boot id of the database when it sent the renewal.
    pub(crate) knew_boot: bool,
    /// The deadline on the session's clock, counted from the sending.
    pub(crate) candidate: u8,
    pub(crate) pending: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateChange {
    pub(crate) number: u8,
    pub(crate) session: u8,
    pub(crate) moves: bool,
    /// True only in a control: the database has looked for a stored result of the change, but has
    /// not taken the lock yet.
    pub(crate) is_started: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateAck {
    pub(crate) id: u8,
    pub(crate) owner: u8,
    pub(crate) session: u8,
}

/// A directory that has changed lately is not calm, and the server gives the kernel timeouts of 0
/// for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Calm,
    /// New replies have timeouts of 0, but the kernel may still have older entries.
    Expiring,
    Busy,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) is_killed: bool,
    pub(crate) session: u8,
    pub(crate) boot: u8,
    /// Ticks for which the server still trusts its cache, by its own clock.
    pub(crate) own: u8,
    /// True if the database has said that this session is over.
    pub(crate) is_dead: bool,
    pub(crate) cache: [u8; DIRS],
    pub(crate) kernel: u8,
    pub(crate) kernel_left: u8,
    /// True if the kernel knows the inode. It ignores an invalidation of an inode that it does not
    /// know.
    pub(crate) kernel_knows: bool,
    pub(crate) stage: Stage,
    pub(crate) reader: Reader,
    pub(crate) fill: Fill,
    pub(crate) writer: Writer,
    pub(crate) done: u8,
    pub(crate) has_failed: bool,
    pub(crate) holder: Holder,
    pub(crate) renewal: Renewal,
    pub(crate) late_change: LateChange,
    pub(crate) late_ack: LateAck,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    pub(crate) kills: u8,
    pub(crate) expiries: u8,
    pub(crate) slow_ticks: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) db: Database,
    pub(crate) mounts: [Mount; MOUNTS],
    /// The highest version that any ended operation has returned or made.
    pub(crate) floor: u8,
    pub(crate) faults: Faults,
}

impl State {
    /// Returns true if a session of the mount `m` is live. An uncommitted renewal does not count.
    pub(crate) fn is_session_live(&self, m: usize, session: u8) -> bool {
        self.db.session[m] == session && self.db.until[m] > 0
    }

    /// Drops all caches of the mount `m`, and the replies on their way to its kernel.
    pub(crate) fn drop_everything(&mut self, m: usize, marks_fills: bool) {
        let mount = &mut self.mounts[m];
        mount.cache = [ABSENT; DIRS];
        mount.expire_kernel(true);
        if marks_fills {
            mount.mark_fill();
        }
    }
}

impl Mount {
    pub(crate) fn is_writing(&self) -> bool {
        self.writer.step != WriteStep::Idle
    }

    pub(crate) fn change_number(&self) -> u8 {
        self.done + 1
    }

    pub(crate) fn runs(&self) -> bool {
        !self.is_killed && !self.is_dead
    }

    /// Ensures that the answer of a fill will not be cached. For that, the model drops the fill.
    pub(crate) fn mark_fill(&mut self) {
        self.fill = Fill::default();
    }

    pub(crate) fn expire_kernel(&mut self, reaches_replies: bool) {
        self.kernel = 0;
        self.kernel_left = 0;
        if reaches_replies {
            self.reader = Reader::Idle;
        }
    }
}
