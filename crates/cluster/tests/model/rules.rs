//! The protections of the protocol, and the scenarios. For each protection, a control turns it off.

use super::state::{CACHED, Faults, FileLock, MOUNTS, NONE, State, WriteStep, Writer};

/// Declares `Rules` with one flag for each protection.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The protections. All are on, except one in each control.
        #[derive(Clone, Copy)]
        pub(crate) struct Rules { $($(#[$doc])* pub(crate) $name: bool,)* }

        impl Rules {
            pub(crate) const ALL: Self = Self { $($name: true,)* };
        }
    };
}

rules! {
    /// For guarantee K.1 of `lib.rs`: a session trusts its lease for less time than the database
    /// does.
    margin,
    /// For guarantee K.1 of `lib.rs`: the lease time counts from the moment when the renewal is
    /// sent.
    counts_from_send,
    /// For guarantee K.1 of `lib.rs`: the clock is read before each cached answer.
    checks_clock,
    /// For guarantee K.1 of `lib.rs`: the clock is read after the request has arrived.
    clock_after_arrival,
    /// For guarantee K.8 of `lib.rs`: a renewal does not revive a session whose time is over.
    revives_no_session,
    /// For guarantee K.8 of `lib.rs`: a session is marked dead under the lock of its row.
    locks_session_row,
    /// For guarantee K.2 of `lib.rs`: a fill reads after it has taken the directory's lock.
    fill_locks_first,
    /// For guarantee K.2 of `lib.rs`: a fill caches no attributes of an inode with another home.
    caches_only_at_home,
    /// For guarantee K.2 of `lib.rs`: the answer of a fill reports pending intents, and is then not
    /// cached.
    fill_tells_intents,
    /// For guarantee K.2 of `lib.rs`: a fill ignores intents of dead sessions.
    ignores_dead_intents,
    /// For guarantee K.2 of `lib.rs`: a fill deletes the intents that it ignores.
    deletes_dead_intents,
    /// For guarantee K.3 of `lib.rs`: a change looks for leases after it has taken the directory's
    /// lock.
    change_locks_first,
    /// For guarantee K.3 of `lib.rs`: locks are taken in ascending order.
    locks_ascend,
    /// For guarantee K.3 of `lib.rs`: a change reads the home of the inode again under the lock.
    reads_home_again,
    /// For guarantee K.5 of `lib.rs`: a change whose directories are others than before gets a new
    /// intent.
    replaces_intent,
    /// For guarantee K.4 of `lib.rs`: fills that are under way when an intent arrives are not
    /// cached.
    intent_marks_fills,
    /// For guarantee K.4 of `lib.rs`: the acknowledgement is sent after the caches are dropped.
    drops_before_ack,
    /// For guarantee K.5 of `lib.rs`: an acknowledgement counts for one intent only.
    ack_names_intent,
    /// For guarantee K.6 of `lib.rs`: a change drops the mount's own cached answers before it is
    /// sent.
    drops_own_cache,
    /// For guarantee K.6 of `lib.rs`: fills that are under way when a change begins are not cached.
    change_marks_fills,
    /// For guarantee K.6 of `lib.rs`: fills that begin during a change are not cached.
    fills_see_change,
    /// For guarantee K.6 of `lib.rs`: the result of a change is cached only if the directory was
    /// held all the time.
    installs_only_if_held,
    /// For guarantee K.7 of `lib.rs`: a kernel timeout is at most what is left of the lease.
    timeout_is_left,
    /// For guarantee K.7 of `lib.rs`: the kernel takes a reply before a tick of the clock has
    /// passed.
    reply_in_time,
    /// For guarantee K.7 of `lib.rs`: the timeouts of the kernel run while the machine is
    /// suspended.
    kernel_counts_suspension,
    /// For guarantee K.7 of `lib.rs`: a change expires the kernel's entries.
    change_expires_kernel,
    /// For guarantee K.7 of `lib.rs`: an intent expires the kernel's entries.
    intent_expires_kernel,
    /// For guarantee K.7 of `lib.rs`: timeouts are 0 before the kernel's entries are expired, not
    /// only after.
    marks_before_expiring,
    /// For guarantee K.7 of `lib.rs`: an expiry of the kernel's entries also invalidates the
    /// replies that are under way (`FUSE_NOTIFY_INC_EPOCH`).
    expiry_reaches_replies,
    /// For guarantee K.7 of `lib.rs`: a thread does not skip the expiry that another thread has
    /// begun but not ended.
    waits_for_expiry,
    /// For guarantee K.7 of `lib.rs`: timeouts are 0 in a busy directory.
    no_timeout_if_busy,
    /// For guarantee K.7 of `lib.rs`: a reply that brings the kernel a new inode has an attribute
    /// timeout of 0.
    no_timeout_if_new,
    /// For guarantee K.7 of `lib.rs`: an expiry needs no lock that a local change holds.
    expiry_takes_no_lock,
    /// For guarantee K.8 of `lib.rs`: a change of a dead session is refused.
    fences,
    /// For guarantee K.8 of `lib.rs`: the slot is read before the session is checked.
    slot_before_fence,
    /// For guarantee K.8 of `lib.rs`: a change of unknown result is first repeated under its own
    /// session.
    asks_old_session,
    /// For guarantee K.8 of `lib.rs`: a session that is dead drops its caches.
    death_drops_cache,
    /// For guarantees K.8 and K.10 of `lib.rs`: dropping the caches also invalidates the fills
    /// under way.
    drop_marks_fills,
    /// For guarantee K.8 of `lib.rs`: a change under a file lock that the old session has lost is
    /// not made by the new session.
    locked_changes_fail,
    /// For guarantee K.9 of `lib.rs`: changes have request slots.
    has_slots,
    /// For guarantee K.9 of `lib.rs`: the slot is read and written under one lock.
    slot_under_lock,
    /// For guarantee K.10 of `lib.rs`: changes wait after a crash.
    waits_after_crash,
    /// For guarantee K.10 of `lib.rs`: a session counts as registered after it has dropped its
    /// caches.
    registers_after_drop,
    /// For guarantee K.10 of `lib.rs`: a session that sees a new boot id drops its caches.
    boot_drops_cache,
    /// For guarantee K.10 of `lib.rs`: intent ids do not start again after a crash.
    ids_survive,
    /// For guarantee K.10 of `lib.rs`: no session that has not renewed since the crash is found
    /// dead in the grace period.
    grace_protects,
    /// For guarantee K.10 of `lib.rs`: changes are on disk before they are confirmed.
    syncs_commits,
    /// For guarantee K.11 of `lib.rs`: a lost change is sent again.
    retries,
    /// For guarantee K.12 of `lib.rs`: a renewal tells of the intents that wait for the session.
    renewal_tells,
}

/// The effect of an acknowledgement in the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ack {
    /// The acknowledgement deletes the lease.
    DeletesLease,
    /// The acknowledgement is a row of its own, and the lease stays.
    KeepsLease,
}

/// The parts and the bounds of one model.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) rules: Rules,
    pub(crate) ack: Ack,
    pub(crate) mounts: usize,
    pub(crate) dirs: usize,
    /// How many changes each mount makes.
    pub(crate) changes: [u8; MOUNTS],
    /// For each mount, whether its programs read.
    pub(crate) readers: [bool; MOUNTS],
    /// The ticks of a lease on the database's clock, or 0 if no time passes.
    pub(crate) lease: u8,
    /// True if the kernel has a cache.
    pub(crate) has_kernel: bool,
    /// True if the item is an attribute. The kernel keeps it in an inode that it may not know yet.
    pub(crate) is_attribute: bool,
    /// True if an expiry waits for replies that bring the kernel a new inode. Otherwise these
    /// replies have a timeout of 0.
    pub(crate) waits_for_inode: bool,
    /// True if a program on the first mount makes its change under a file lock.
    pub(crate) has_file_lock: bool,
    /// True if changes may move the item to the other directory.
    pub(crate) has_moves: bool,
    /// True if changes concern both directories, and take their locks in two steps.
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

    /// Returns the ticks for which a session trusts a new lease. Without time, any number but 0
    /// would do.
    pub(crate) fn own_lease(&self) -> u8 {
        self.lease_in_database() - u8::from(self.rules.margin && self.has_time())
    }

    pub(crate) fn lease_in_database(&self) -> u8 {
        self.lease.max(1)
    }

    /// Returns the first state: every mount has a session, and nothing is cached.
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

    /// Returns true if all changes that were begun have ended, and every reader has its answer
    /// cached.
    pub(crate) fn is_goal(&self, state: &State) -> bool {
        (0..self.mounts).all(|m| {
            let mount = &state.mounts[m];
            let is_cached = mount.cache.iter().any(|&item| item >= CACHED) && mount.own > 0;
            mount.is_killed || (!mount.is_writing() && (is_cached || !self.readers[m]))
        })
    }

    /// Returns a bit mask of the directories that a change concerns. `home` is the directory of the
    /// item.
    pub(crate) fn concerned(&self, moves: bool, home: u8) -> u8 {
        if moves || self.locks_one_by_one { 0b11 } else { 1 << home }
    }
}

/// A writer without a change.
pub(crate) const IDLE_WRITER: Writer =
    Writer { step: WriteStep::Idle, moves: false, session: NONE, seen: 0, version: 0, boot: 0 };
