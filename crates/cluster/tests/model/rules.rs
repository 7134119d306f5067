//! The protections of the protocol, each of which a control leaves out, and the scenarios.

use super::state::{CACHED, Faults, FileLock, MOUNTS, NONE, State, WriteStep, Writer};

/// Declares `Rules` with one flag for each protection.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The protections. All are on but in a control.
        #[derive(Clone, Copy)]
        pub(crate) struct Rules { $($(#[$doc])* pub(crate) $name: bool,)* }

        impl Rules {
            pub(crate) const ALL: Self = Self { $($name: true,)* };
        }
    };
}

rules! {
    /// K.1: a session trusts its lease for less time than the database does.
    margin,
    /// K.1: a lease counts from the sending of the renewal.
    counts_from_send,
    /// K.1: the clock is read before each cached answer.
    checks_clock,
    /// K.1: the clock is read after the request has arrived.
    clock_after_arrival,
    /// K.8: a renewal does not revive a session whose time is over.
    revives_no_session,
    /// K.8: a session is found dead under the lock of its row.
    locks_session_row,
    /// K.2: a fill reads after it has its lock.
    fill_locks_first,
    /// K.2: a fill caches no attributes of an inode with another home.
    caches_only_at_home,
    /// K.2: a fill tells of pending intents, and is not cached then.
    fill_tells_intents,
    /// K.2: a fill ignores intents of dead sessions.
    ignores_dead_intents,
    /// K.2: a fill deletes the intents that it ignores.
    deletes_dead_intents,
    /// K.3: a change looks for leases after it has its lock.
    change_locks_first,
    /// K.3: locks are taken in ascending order.
    locks_ascend,
    /// K.3: the home is read again under the lock.
    reads_home_again,
    /// K.3: a change that comes to concern other directories gets a new intent.
    replaces_intent,
    /// K.4: fills that are under way when an intent arrives are not cached.
    intent_marks_fills,
    /// K.4: the acknowledgement is sent after the caches are dropped.
    drops_before_ack,
    /// K.5: an acknowledgement counts for one intent only.
    ack_names_intent,
    /// K.6: a change drops the mount's own cached answers before it is sent.
    drops_own_cache,
    /// K.6: fills that are under way when a change begins are not cached.
    change_marks_fills,
    /// K.6: fills that begin during a change are not cached.
    fills_see_change,
    /// K.6: the result of a change is cached only if the directory was held all the time.
    installs_only_if_held,
    /// K.7: a kernel timeout is at most what is left of the lease.
    timeout_is_left,
    /// K.7: the kernel takes the reply before the clock has moved on.
    reply_in_time,
    /// K.7: the timeouts of the kernel run while the machine is suspended.
    kernel_counts_suspension,
    /// K.7: a change expires the kernel's entries.
    change_expires_kernel,
    /// K.7: an intent expires the kernel's entries.
    intent_expires_kernel,
    /// K.7: timeouts are 0 before the kernel's entries are expired, not only after.
    marks_before_expiring,
    /// K.7: an expiry reaches the replies that are under way (`FUSE_NOTIFY_INC_EPOCH`).
    expiry_reaches_replies,
    /// K.7: no thread skips the expiry that another thread has only begun.
    waits_for_expiry,
    /// K.7: timeouts are 0 in a busy directory.
    no_timeout_if_busy,
    /// K.7: a reply that brings the kernel a new inode has no timeout of attributes.
    no_timeout_if_new,
    /// K.7: an expiry needs no lock that a local change holds.
    expiry_takes_no_lock,
    /// K.8: a change of a dead session is refused.
    fences,
    /// K.8: the slot is read before the fence.
    slot_before_fence,
    /// K.8: a change of unknown result is asked for under its own session first.
    asks_old_session,
    /// K.8: a session that is dead drops its caches.
    death_drops_cache,
    /// K.8, K.10: such a drop reaches fills under way.
    drop_marks_fills,
    /// K.8: a change of a session that has lost a file lock is not made by the next session.
    locked_changes_fail,
    /// K.9: changes have slots.
    has_slots,
    /// K.9: the slot is read and written under one lock.
    slot_under_lock,
    /// K.10: changes wait after a crash.
    waits_after_crash,
    /// K.10: a session counts as registered after it has dropped its caches.
    registers_after_drop,
    /// K.10: a session that sees a new boot id drops its caches.
    boot_drops_cache,
    /// K.10: intent ids do not start again after a crash.
    ids_survive,
    /// K.10: no session that has not renewed since the crash is found dead in the grace period.
    grace_protects,
    /// K.10: changes are on disk before they are confirmed.
    syncs_commits,
    /// K.11: a lost change is sent again.
    retries,
    /// K.12: a renewal tells of the intents that wait for the session.
    renewal_tells,
}

/// The effect of an acknowledgement in the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ack {
    /// It deletes the lease.
    DeletesLease,
    /// It leaves the lease, and is a row of its own.
    KeepsLease,
}

/// Bounds of one model, and what is in it.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) rules: Rules,
    pub(crate) ack: Ack,
    pub(crate) mounts: usize,
    pub(crate) dirs: usize,
    /// How many changes each mount makes.
    pub(crate) changes: [u8; MOUNTS],
    /// The mounts whose programs read.
    pub(crate) readers: [bool; MOUNTS],
    /// The ticks of a lease on the database's clock, or 0 if no time passes.
    pub(crate) lease: u8,
    /// The kernel caches.
    pub(crate) has_kernel: bool,
    /// The item is an attribute, which the kernel keeps in an inode that it may not know yet.
    pub(crate) is_attribute: bool,
    /// An expiry waits until the kernel has the inodes that replies under way bring. Otherwise such
    /// replies have no timeout.
    pub(crate) waits_for_inode: bool,
    /// A program on the first mount makes its change under a file lock.
    pub(crate) has_file_lock: bool,
    /// Changes move the item to the other directory.
    pub(crate) has_moves: bool,
    /// Changes concern both directories and take one lock after the other.
    pub(crate) locks_one_by_one: bool,
    pub(crate) faults: Faults,
}

impl Scenario {
    /// Two mounts and one directory, without time, kernel or faults.
    pub(crate) const SMALL: Self = Self {
        name: "",
        rules: Rules::ALL,
        ack: Ack::DeletesLease,
        mounts: 2,
        dirs: 1,
        changes: [1, 1, 0],
        readers: [true, true, false],
        lease: 0,
        has_kernel: false,
        is_attribute: false,
        waits_for_inode: false,
        has_file_lock: false,
        has_moves: false,
        locks_one_by_one: false,
        faults: Faults { losses: 0, crashes: 0, kills: 0, expiries: 0, slow_ticks: 0 },
    };

    pub(crate) fn has_time(&self) -> bool {
        self.lease > 0
    }

    /// The ticks for which a session trusts a new lease. Without time, any number but 0.
    pub(crate) fn own_lease(&self) -> u8 {
        self.lease_in_database() - u8::from(self.rules.margin && self.has_time())
    }

    pub(crate) fn lease_in_database(&self) -> u8 {
        self.lease.max(1)
    }

    /// The first state: every mount has a session, nothing is cached.
    pub(crate) fn start(&self) -> State {
        let mut state = State { faults: self.faults, ..State::default() };
        if self.has_file_lock {
            state.db.file_lock = FileLock::Held;
        }
        for m in 0..self.mounts {
            state.db.until[m] = self.lease_in_database();
            state.mounts[m].own = self.own_lease();
            state.mounts[m].writer = IDLE_WRITER;
        }
        state
    }

    /// All changes that were begun have ended, and every reader has its answer cached again.
    pub(crate) fn is_goal(&self, state: &State) -> bool {
        (0..self.mounts).all(|m| {
            let mount = &state.mounts[m];
            let is_cached = mount.cache.iter().any(|&item| item >= CACHED) && mount.own > 0;
            mount.is_killed || (!mount.is_writing() && (is_cached || !self.readers[m]))
        })
    }

    /// The directories that a change concerns, as a mask, if the item is in `home`.
    pub(crate) fn concerned(&self, moves: bool, home: u8) -> u8 {
        if moves || self.locks_one_by_one { 0b11 } else { 1 << home }
    }
}

/// A writer without a change.
pub(crate) const IDLE_WRITER: Writer =
    Writer { step: WriteStep::Idle, moves: false, session: NONE, seen: 0, version: 0, boot: 0 };
