//! The protections of the protocol that keeps caches coherent, and the scenarios of the models. For
//! each protection, a control turns it off.

use super::state::{CACHED, Faults, FileLock, MOUNTS, NONE, State, WriteStep, Writer};

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Clone, Copy)]
        pub(crate) struct Rules { $($(#[$doc])* pub(crate) $name: bool,)* }

        impl Rules {
            pub(crate) const ALL: Self = Self { $($name: true,)* };
        }
    };
}

rules! {
    /// For guarantee K.1 of `lib.rs`: a mount stops trusting its lease some time before the
    /// database ends the lease.
    margin,
    /// For guarantee K.1 of `lib.rs`: a mount counts its lease time from the moment when it sends
    /// the renewal, not from the answer.
    counts_from_send,
    /// For guarantee K.1 of `lib.rs`: a mount reads the clock before each answer from its cache, to
    /// check that its lease still holds.
    checks_clock,
    /// For guarantee K.1 of `lib.rs`: a mount reads the clock only after the request of a program
    /// has arrived. Otherwise the lease could end before the request arrives.
    clock_after_arrival,
    /// For guarantee K.8 of `lib.rs`: a renewal does not revive a session (the registration of a
    /// mount) whose lease time is over.
    revives_no_session,
    /// For guarantee K.8 of `lib.rs`: the database marks a session as dead only under the lock of
    /// its row. So it waits for a renewal that is not committed yet.
    locks_session_row,
    /// For guarantee K.2 of `lib.rs`: a fill (a read from the database for a mount's cache) reads
    /// only after it has taken the directory's lock.
    fill_locks_first,
    /// For guarantee K.2 of `lib.rs`: a fill caches the attributes of an inode only with the
    /// inode's home directory, whose lease covers them.
    caches_only_at_home,
    /// For guarantee K.2 of `lib.rs`: if a change waits for leases on a directory, a fill of the
    /// directory reports that. Then the mount does not cache the answer.
    fill_tells_intents,
    /// For guarantee K.2 of `lib.rs`: a fill ignores intents (changes that wait for leases) whose
    /// session is dead.
    ignores_dead_intents,
    /// For guarantee K.2 of `lib.rs`: a fill deletes the intents of dead sessions. Otherwise a late
    /// acknowledgement of such an intent could delete the fill's new lease.
    deletes_dead_intents,
    /// For guarantee K.3 of `lib.rs`: a change looks for leases of other mounts only after it has
    /// taken the directory's lock.
    change_locks_first,
    /// For guarantee K.3 of `lib.rs`: locks are taken in ascending order.
    locks_ascend,
    /// For guarantee K.3 of `lib.rs`: under the lock, a change reads the home directory of its
    /// inode again, because the inode may have moved.
    reads_home_again,
    /// For guarantee K.5 of `lib.rs`: a waiting change has an intent with its directories. If it
    /// has other directories at the next attempt, it gets a new intent.
    replaces_intent,
    /// For guarantee K.4 of `lib.rs`: if an intent (a waiting change of another mount) arrives
    /// during a fill, the fill's answer is not cached.
    intent_marks_fills,
    /// For guarantee K.4 of `lib.rs`: a mount drops its caches before it acknowledges a change of
    /// another mount.
    drops_before_ack,
    /// For guarantee K.5 of `lib.rs`: an acknowledgement names one intent (a waiting change), and
    /// counts for no other intent.
    ack_names_intent,
    /// For guarantee K.6 of `lib.rs`: before a mount sends a change, it drops the cached answers
    /// that the change makes outdated.
    drops_own_cache,
    /// For guarantee K.6 of `lib.rs`: if a mount begins a change during a fill (a read for its
    /// cache), the fill's answer is not cached.
    change_marks_fills,
    /// For guarantee K.6 of `lib.rs`: the answer of a fill (a read for the cache) that begins
    /// during the mount's own change is not cached.
    fills_see_change,
    /// For guarantee K.6 of `lib.rs`: a mount caches its own change's result only if the directory
    /// has been cached since the change was sent.
    installs_only_if_held,
    /// For guarantee K.7 of `lib.rs`: the timeouts that the server gives the kernel are at most as
    /// long as the rest of its lease.
    timeout_is_left,
    /// For guarantee K.7 of `lib.rs`: the clock does not tick while a reply of the server is on its
    /// way to the kernel.
    reply_in_time,
    /// For guarantee K.7 of `lib.rs`: the kernel's timeouts also run while the machine is
    /// suspended.
    kernel_counts_suspension,
    /// For guarantee K.7 of `lib.rs`: before a mount sends a change, it makes the kernel drop
    /// (expire) its entries.
    change_expires_kernel,
    /// For guarantee K.7 of `lib.rs`: before a mount acknowledges an intent, it makes the kernel
    /// drop (expire) its entries.
    intent_expires_kernel,
    /// For guarantee K.7 of `lib.rs`: the server sets timeouts to 0 before it expires the kernel's
    /// entries. Otherwise a reply in between could bring a new entry.
    marks_before_expiring,
    /// For guarantee K.7 of `lib.rs`: an expiry of the kernel's entries also covers the replies
    /// that are on their way to the kernel (`FUSE_NOTIFY_INC_EPOCH`).
    expiry_reaches_replies,
    /// For guarantee K.7 of `lib.rs`: a thread relies on an expiry of the kernel's entries by
    /// another thread only if that expiry has ended.
    waits_for_expiry,
    /// For guarantee K.7 of `lib.rs`: the server gives the kernel timeouts of 0 for a directory
    /// that has changed lately.
    no_timeout_if_busy,
    /// For guarantee K.7 of `lib.rs`: a reply with an inode that is new to the kernel has an
    /// attribute timeout of 0. An expiry could not reach the attributes of such an inode.
    no_timeout_if_new,
    /// For guarantee K.7 of `lib.rs`: to expire the kernel's entries, the server needs no lock that
    /// a change on its own mount holds.
    expiry_takes_no_lock,
    /// For guarantee K.8 of `lib.rs`: the database refuses a change that a dead session sends.
    fences,
    /// For guarantee K.8 of `lib.rs`: the database looks for a repeated change's stored result (its
    /// slot) before it checks that the session is alive. Otherwise the next session could make the
    /// change again.
    slot_before_fence,
    /// For guarantee K.8 of `lib.rs`: if the result of a change is unknown, the mount first repeats
    /// the change under the session that sent it. Otherwise the change could be made twice.
    asks_old_session,
    /// For guarantee K.8 of `lib.rs`: a mount whose session is dead drops its caches before it
    /// opens a new session.
    death_drops_cache,
    /// For guarantees K.8 and K.10 of `lib.rs`: if a mount drops its caches during a fill (see
    /// `fills_see_change`), the fill's answer is not cached.
    drop_marks_fills,
    /// For guarantee K.8 of `lib.rs`: a change under a file lock fails if the session that had the
    /// lock is dead. A new session does not make this change.
    locked_changes_fail,
    /// For guarantee K.9 of `lib.rs`: changes have request slots, which store their results.
    has_slots,
    /// For guarantee K.9 of `lib.rs`: the database reads and writes the stored result of a change
    /// (its slot) under one lock.
    slot_under_lock,
    /// For guarantee K.10 of `lib.rs`: after a crash of the database, changes wait until each
    /// session has registered again or has ended. They wait at most for a grace period.
    waits_after_crash,
    /// For guarantee K.10 of `lib.rs`: after a crash of the database, a session counts as
    /// registered again only after its mount has dropped its caches.
    registers_after_drop,
    /// For guarantee K.10 of `lib.rs`: a mount drops its caches when it sees a new boot id, which
    /// shows that the database has crashed.
    boot_drops_cache,
    /// For guarantee K.10 of `lib.rs`: after a crash of the database, new intents get new ids. So
    /// an old acknowledgement fits no new intent.
    ids_survive,
    /// For guarantee K.10 of `lib.rs`: a session that has not renewed since a database crash is not
    /// marked as dead in the grace period.
    grace_protects,
    /// For guarantee K.10 of `lib.rs`: a change is on the database's disk before it is confirmed.
    syncs_commits,
    /// For guarantee K.11 of `lib.rs`: a lost change is sent again.
    retries,
    /// For guarantee K.12 of `lib.rs`: the answer to a renewal tells the session which changes wait
    /// for its leases.
    renewal_tells,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ack {
    DeletesLease,
    KeepsLease,
}

#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) rules: Rules,
    pub(crate) ack: Ack,
    pub(crate) mounts: usize,
    pub(crate) dirs: usize,
    pub(crate) changes: [u8; MOUNTS],
    /// For each mount, whether its programs read.
    pub(crate) readers: [bool; MOUNTS],
    /// Lease length in ticks of the database's clock, or 0 in a model without time.
    pub(crate) lease: u8,
    pub(crate) has_kernel: bool,
    /// True if programs change an attribute, false if they change a name. The kernel keeps an
    /// attribute with its inode, which may be new to the kernel.
    pub(crate) is_attribute: bool,
    /// If true, an expiry waits for replies with an inode that is new to the kernel. Otherwise such
    /// replies have a timeout of 0.
    pub(crate) waits_for_inode: bool,
    pub(crate) has_file_lock: bool,
    pub(crate) has_moves: bool,
    pub(crate) locks_one_by_one: bool,
    pub(crate) faults: Faults,
}

impl Scenario {
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

    /// Returns how many ticks a session trusts a new lease. In a model without time, the number
    /// only must not be 0.
    pub(crate) fn own_lease(&self) -> u8 {
        self.lease_in_database() - u8::from(self.rules.margin && self.has_time())
    }

    pub(crate) fn lease_in_database(&self) -> u8 {
        self.lease.max(1)
    }

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

    pub(crate) fn is_goal(&self, state: &State) -> bool {
        (0..self.mounts).all(|m| {
            let mount = &state.mounts[m];
            let is_cached = mount.cache.iter().any(|&item| item >= CACHED) && mount.own > 0;
            mount.is_killed || (!mount.is_writing() && (is_cached || !self.readers[m]))
        })
    }

    pub(crate) fn concerned(&self, moves: bool, home: u8) -> u8 {
        if moves || self.locks_one_by_one { 0b11 } else { 1 << home }
    }
}

pub(crate) const IDLE_WRITER: Writer =
    Writer { step: WriteStep::Idle, moves: false, session: NONE, seen: 0, version: 0, boot: 0 };
