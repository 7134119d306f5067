//! The models: which mounts, how many changes, which faults.

use super::rules::{Ack, Scenario};
use super::search::{Outcome, holds};
use super::state::Faults;
use super::steps::Event;

const NONE: Faults = Scenario::SMALL.faults;

pub(crate) const NAMES: Scenario =
    Scenario { name: "names", changes: [1, 2, 0], ..Scenario::SMALL };

pub(crate) const LOSSES: Scenario =
    Scenario { name: "losses", faults: Faults { losses: 2, ..NONE }, ..NAMES };

pub(crate) const THREE: Scenario = Scenario {
    name: "three mounts",
    mounts: 3,
    changes: [1; 3],
    readers: [true; 3],
    ..Scenario::SMALL
};

pub(crate) const KERNEL: Scenario = Scenario { name: "kernel", has_kernel: true, ..NAMES };

/// The kernels of two mounts cache an attribute. An expiry of entries does not reach an inode that
/// is new to a kernel.
pub(crate) const INODES: Scenario = Scenario { name: "inodes", is_attribute: true, ..KERNEL };

pub(crate) const HOMES: Scenario =
    Scenario { name: "homes", dirs: 2, has_moves: true, ..Scenario::SMALL };

/// Two directories: each change concerns both, and takes their locks one after the other.
pub(crate) const LOCKS: Scenario =
    Scenario { name: "locks", dirs: 2, locks_one_by_one: true, ..Scenario::SMALL };

pub(crate) const TIME: Scenario = Scenario {
    name: "time",
    lease: 2,
    faults: Faults { expiries: 1, slow_ticks: 1, ..NONE },
    ..Scenario::SMALL
};

pub(crate) const TIMEOUTS: Scenario = Scenario {
    name: "timeouts",
    lease: 3,
    changes: [1, 0, 0],
    readers: [false, true, false],
    has_kernel: true,
    ..TIME
};

pub(crate) const KILL: Scenario = Scenario {
    name: "kill",
    lease: 2,
    has_kernel: true,
    faults: Faults { kills: 1, ..NONE },
    ..Scenario::SMALL
};

pub(crate) const CRASH: Scenario = Scenario {
    name: "crash",
    lease: 2,
    changes: [1, 0, 0],
    faults: Faults { crashes: 1, ..NONE },
    ..Scenario::SMALL
};

pub(crate) const SESSION: Scenario = Scenario {
    name: "session",
    lease: 2,
    changes: [1, 0, 0],
    faults: Faults { losses: 1, expiries: 1, ..NONE },
    ..Scenario::SMALL
};

pub(crate) const FILE_LOCK: Scenario =
    Scenario { name: "file lock", has_file_lock: true, ..SESSION };

fn both(scenario: Scenario, reached: &[Event]) -> Outcome {
    holds(&Scenario { ack: Ack::KeepsLease, ..scenario }, reached);
    holds(&Scenario { ack: Ack::DeletesLease, ..scenario }, reached)
}

const CONTENTION: [Event; 6] = [
    Event::CachedRead,
    Event::FillCached,
    Event::ChangeContended,
    Event::HolderMarked,
    Event::AckRun,
    Event::ChangeConfirmed,
];

#[test]
fn names_are_linearizable() {
    both(NAMES, &CONTENTION);
    both(THREE, &CONTENTION);
}

#[test]
fn late_and_repeated_messages_change_nothing_twice() {
    let reached = [Event::ChangeRepeated, Event::LateRun, Event::LateAckRun, Event::AckLost];
    both(LOSSES, &reached);
}

#[test]
fn kernels_answer_nothing_old() {
    let reached = [Event::KernelRead, Event::ReplyTaken, Event::OwnExpired, Event::HolderExpired];
    both(KERNEL, &reached);
    both(INODES, &reached);
    both(Scenario { name: "inodes, waiting", waits_for_inode: true, ..INODES }, &reached);
}

#[test]
fn homes_may_move() {
    both(HOMES, &[Event::ChangeRefused, Event::ChangeContended]);
    both(LOCKS, &[Event::ChangeStarted, Event::ChangeContended]);
}

#[test]
fn leases_run_out() {
    let reached = [
        Event::SlowTick,
        Event::SessionExpired,
        Event::RenewalRefused,
        Event::SessionOpened,
        Event::RenewalUnanswered,
        Event::ChangeFenced,
    ];
    both(TIME, &reached);
}

#[test]
fn timeouts_end_before_leases() {
    let reached = [Event::KernelRead, Event::SlowTick, Event::SessionExpired, Event::Calmed];
    both(TIMEOUTS, &reached);
}

#[test]
fn killed_mounts_stop_no_other() {
    both(KILL, &[Event::Killed, Event::KernelRead, Event::LateRun]);
}

#[test]
fn crashes_of_the_database_lose_nothing() {
    both(CRASH, &[Event::Crash, Event::BootSeen, Event::ChangeInGrace]);
}

#[test]
fn changes_survive_their_session() {
    let reached = [Event::ChangeFenced, Event::ChangeRepeated, Event::LateRun];
    both(SESSION, &reached);
    both(FILE_LOCK, &[Event::FileLockTaken, Event::ChangeFenced, Event::ChangeRepeated]);
}
