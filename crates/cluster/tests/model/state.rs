//! The state of the model: one database, up to three mounts, and the answers that are under way
//! between them.
//!
//! A deadline is a number of ticks that are left, and not a point in time. So a run may last for
//! ever, and the number of states is finite all the same.
//!
//! The model merges states that behave in the same way. For example, a request that is run late has
//! the same effect as one that is sent late. So a request that was sent has no state of its own,
//! but a second copy of it has one (`LateChange`, `LateAck`). An answer has a state only if it
//! shows a value or ends a change.

/// The most mounts that a scenario may have.
pub(crate) const MOUNTS: usize = 3;
/// The number of directories. Most scenarios use one.
pub(crate) const DIRS: usize = 2;

/// The server caches nothing of the directory.
pub(crate) const ABSENT: u8 = 0;
/// The server caches the directory, but not the item.
pub(crate) const HELD: u8 = 1;
/// A cached item of version `v` is `CACHED + v`.
pub(crate) const CACHED: u8 = 2;
/// No value, where a version or a session is expected.
pub(crate) const NONE: u8 = 255;

/// An intent: the record of a change that waits until other mounts give up leases. Its owner, the
/// mount that makes the change, is its index in `Database::intents`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Intent {
    /// 0 if there is none.
    pub(crate) id: u8,
    /// The directories, as a mask.
    pub(crate) dirs: u8,
    /// The mounts that have acknowledged the intent, for `Ack::KeepsLease`.
    pub(crate) acked: u8,
}

/// The database. A session is identified by its mount and by a number, `session`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Database {
    pub(crate) version: u8,
    /// The directory of the item, which all programs read and change. If the item is a name, it is
    /// in this directory. If the item is an attribute, its inode is at home there.
    pub(crate) home: u8,
    /// The mounts with a lease on each directory.
    pub(crate) leases: [u8; DIRS],
    /// The ticks until each session ends.
    pub(crate) until: [u8; MOUNTS],
    /// The newest session of each mount.
    pub(crate) session: [u8; MOUNTS],
    pub(crate) intents: [Intent; MOUNTS],
    pub(crate) last_id: u8,
    /// The number of the last applied change, by mount and session.
    pub(crate) slot: [[u8; 2]; MOUNTS],
    /// The version that the last change of each mount made.
    pub(crate) result: [u8; MOUNTS],
    /// How many changes of each mount were applied.
    pub(crate) applied: [u8; MOUNTS],
    /// The mount of the last change, which a crash may lose.
    pub(crate) last: u8,
    pub(crate) boot: u8,
    /// The ticks until changes are allowed after a crash.
    pub(crate) grace: u8,
    /// The mounts that have renewed since the crash.
    pub(crate) registered: u8,
    /// The file lock of a program on the first mount. It is lost when the session of this mount
    /// dies.
    pub(crate) file_lock: FileLock,
    /// For each directory, the number of the mount that has its lock, plus one, or 0. Used only
    /// with `Scenario::locks_one_by_one`.
    pub(crate) locks: [u8; DIRS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FileLock {
    #[default]
    None,
    /// The first session of the first mount has the file lock, and makes its change under it.
    Held,
    /// Another mount has taken the lock, because that session was over.
    TakenOver,
}

/// A local program's read that the server answers from its cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reader {
    #[default]
    Idle,
    /// The server has read the clock before a request arrived. Only a control, which turns a
    /// protection off, reaches this state.
    Checked,
    /// A reply is on its way to the kernel, which may keep it for `left` ticks.
    Reply { version: u8, left: u8 },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FillStep {
    #[default]
    Idle,
    /// The database has read the item (a name or an attribute) before it took the directory's lock.
    /// Only a control, which turns a protection off, reaches this state.
    Snapped,
    /// An answer that may be cached is under way.
    Answered,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fill {
    pub(crate) step: FillStep,
    pub(crate) dir: u8,
    pub(crate) boot: u8,
    /// The version of the item (a name or an attribute) in the answer, or `NONE` if the item is not
    /// in this directory.
    pub(crate) value: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WriteStep {
    #[default]
    Idle,
    /// The server has dropped its cache, but not the kernel's.
    Marked,
    /// The change may be sent, or sent again.
    Ready,
    /// The transaction of the change has read the home of the item or the leases before it took a
    /// lock, or has taken only the first of its locks.
    Started,
    /// The answer that the change was made is under way.
    Made,
    /// The change was lost, and the mount does not send it again. Only a control, which turns a
    /// protection off, reaches this state.
    Lost,
}

/// A change of the item (a name or an attribute) by a program. It gives the item a new version, and
/// may also move it to the other directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) step: WriteStep,
    pub(crate) moves: bool,
    /// The session to which the change belongs. `NONE` if that session is over, so that the next
    /// session sends the change.
    pub(crate) session: u8,
    /// The meaning depends on the model. If the item can move, it is the home of the item that the
    /// database has read before it took the lock. Otherwise it is the number of locks that the
    /// change has taken.
    pub(crate) seen: u8,
    pub(crate) version: u8,
    pub(crate) boot: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HolderStep {
    #[default]
    Idle,
    Marked,
    /// The acknowledgement is sent.
    Ready,
}

/// The holder's work on one intent.
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
    /// True if the session knew the current boot id of the database when it sent the renewal.
    pub(crate) knew_boot: bool,
    /// The deadline on the session's clock, counted from the sending.
    pub(crate) candidate: u8,
    /// The deadline on the database's clock.
    pub(crate) pending: u8,
}

/// A late copy of a change. It is in the buffer of a connection that the mount has given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateChange {
    /// 0 if there is none.
    pub(crate) number: u8,
    pub(crate) session: u8,
    pub(crate) moves: bool,
    /// True if the copy has looked for a stored result of its change (in the slot of its session)
    /// before it took the lock. Only one control, which turns a protection off, does so.
    pub(crate) is_started: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateAck {
    pub(crate) id: u8,
    pub(crate) owner: u8,
    pub(crate) session: u8,
}

/// Tells whether the directory has changed lately. Unless it is calm, the server gives the kernel
/// timeouts of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    Calm,
    /// From now on the server gives the kernel timeouts of 0, but the kernel still has older
    /// entries.
    Expiring,
    Busy,
}

/// A mount: the server and the kernel of its machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) is_killed: bool,
    pub(crate) session: u8,
    pub(crate) boot: u8,
    /// The number of ticks for which the server still trusts its cache, by its own clock.
    pub(crate) own: u8,
    /// True if the database has said that this session is over.
    pub(crate) is_dead: bool,
    pub(crate) cache: [u8; DIRS],
    /// The version of the item (a name or an attribute) in the kernel's cache, plus one. It is 0 if
    /// the kernel has not cached the item.
    pub(crate) kernel: u8,
    pub(crate) kernel_left: u8,
    /// True if the kernel knows the inode. Otherwise an invalidation of the inode has no effect.
    pub(crate) kernel_knows: bool,
    pub(crate) stage: Stage,
    pub(crate) reader: Reader,
    pub(crate) fill: Fill,
    pub(crate) writer: Writer,
    /// How many changes of this mount's programs have ended, either confirmed or failed.
    pub(crate) done: u8,
    pub(crate) has_failed: bool,
    pub(crate) holder: Holder,
    pub(crate) renewal: Renewal,
    pub(crate) late_change: LateChange,
    pub(crate) late_ack: LateAck,
}

/// How often each fault may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Connections that end with a change or an acknowledgement under way.
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    pub(crate) kills: u8,
    /// Ends of sessions of running mounts, because a renewal did not come in time.
    pub(crate) expiries: u8,
    /// Ticks that the clock of one machine misses.
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
    /// Returns true if, by its committed row, `session` is the newest session of mount `m`, and its
    /// lease time is not over.
    pub(crate) fn is_session_live(&self, m: usize, session: u8) -> bool {
        self.db.session[m] == session && self.db.until[m] > 0
    }

    /// Drops all answers that the server and the kernel of mount `m` have cached, and the replies
    /// on their way to the kernel.
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

    /// Returns the number of the mount's current change, or of its next change if it makes none
    /// now.
    pub(crate) fn change_number(&self) -> u8 {
        self.done + 1
    }

    /// Returns true if the mount runs, and does not know that its session is over.
    pub(crate) fn runs(&self) -> bool {
        !self.is_killed && !self.is_dead
    }

    /// Marks the running fill, so that its answer will not be cached. Then the model needs no state
    /// for it.
    pub(crate) fn mark_fill(&mut self) {
        self.fill = Fill::default();
    }

    /// Drops the entries in the kernel's cache. If `reaches_replies`, also drops the reply that is
    /// on its way to the kernel.
    pub(crate) fn expire_kernel(&mut self, reaches_replies: bool) {
        self.kernel = 0;
        self.kernel_left = 0;
        if reaches_replies {
            self.reader = Reader::Idle;
        }
    }
}
