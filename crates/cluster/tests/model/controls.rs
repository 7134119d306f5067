//! Controls: each one turns off one protection of the protocol. Its search must then find a
//! failure, and prints the shortest trace to it.

use super::rules::{Ack, Rules, Scenario};
use super::scenarios::{
    CRASH, FILE_LOCK, HOMES, INODES, KERNEL, KILL, LOCKS, LOSSES, NAMES, SESSION, TIME, TIMEOUTS,
};
use super::search::explore;
use super::state::Faults;

const OLD: &str = "a read returned an older version";
const TWICE: &str = "a change was applied twice";
const TAKEN: &str = "a change was made under a file lock that another mount had taken over";
const LOST: &str = "a confirmed change is lost";
const STUCK: &str = "no helpful step leads from here";

struct Control {
    name: &'static str,
    leave_out: fn(&mut Rules),
    scenario: Scenario,
    fails: &'static str,
    /// True if the protection matters only in models in which an acknowledgement deletes the lease.
    is_for_deletion: bool,
}

macro_rules! control {
    ($rule:literal, $field:ident, $scenario:expr, $fails:expr) => {
        Control {
            name: concat!($rule, " without ", stringify!($field)),
            leave_out: |rules| rules.$field = false,
            scenario: $scenario,
            fails: $fails,
            is_for_deletion: false,
        }
    };
}

fn all_fail(controls: &[Control]) {
    for control in controls {
        for ack in [Ack::KeepsLease, Ack::DeletesLease] {
            if ack == Ack::KeepsLease && control.is_for_deletion {
                continue;
            }
            let mut scenario = Scenario { ack, ..control.scenario };
            (control.leave_out)(&mut scenario.rules);
            let outcome = explore(&scenario);
            let failure = outcome.failure;
            let failure = failure.unwrap_or_else(|| panic!("{} does not fail", control.name));
            assert!(failure.reason.starts_with(control.fails), "{}: {}", control.name, failure);
            if ack == Ack::DeletesLease {
                println!("{} ({} states): {failure}", control.name, outcome.states);
            }
        }
    }
}

#[test]
fn control_time() {
    all_fail(&[
        control!("K.1", margin, TIME, OLD),
        control!("K.1", counts_from_send, TIME, OLD),
        control!("K.1", checks_clock, TIME, OLD),
        control!("K.1", clock_after_arrival, TIME, OLD),
    ]);
}

#[test]
fn control_fills_and_changes() {
    all_fail(&[
        control!("K.2", fill_locks_first, NAMES, OLD),
        control!("K.2", caches_only_at_home, HOMES, OLD),
        control!("K.2", fill_tells_intents, NAMES, OLD),
        control!("K.2", ignores_dead_intents, KILL, STUCK),
        Control { is_for_deletion: true, ..control!("K.2", deletes_dead_intents, TIME, OLD) },
        control!("K.3", change_locks_first, NAMES, OLD),
        control!("K.3", locks_ascend, LOCKS, STUCK),
        control!("K.3", reads_home_again, HOMES, OLD),
    ]);
}

#[test]
fn control_holders() {
    all_fail(&[
        control!("K.4", intent_marks_fills, NAMES, OLD),
        control!("K.4", drops_before_ack, LOSSES, OLD),
        control!("K.5", ack_names_intent, LOSSES, OLD),
        // Without `replaces_intent`, a change keeps its intent although its inode has moved. Then a
        // holder may never get the intent, or an acknowledgement may count for the wrong directory.
        // So any failure is accepted.
        Control { fails: "", ..control!("K.5", replaces_intent, HOMES, STUCK) },
        control!("K.12", renewal_tells, NAMES, STUCK),
    ]);
}

#[test]
fn control_own_changes() {
    all_fail(&[
        control!("K.6", drops_own_cache, NAMES, OLD),
        control!("K.6", change_marks_fills, NAMES, OLD),
        control!("K.6", fills_see_change, NAMES, OLD),
        control!("K.6", installs_only_if_held, NAMES, OLD),
    ]);
}

#[test]
fn control_kernel_entries() {
    all_fail(&[
        control!("K.7", change_expires_kernel, KERNEL, OLD),
        control!("K.7", intent_expires_kernel, KERNEL, OLD),
        control!("K.7", marks_before_expiring, KERNEL, OLD),
        control!("K.7", expiry_reaches_replies, KERNEL, OLD),
        control!("K.7", waits_for_expiry, KERNEL, OLD),
        control!("K.7", no_timeout_if_busy, KERNEL, OLD),
        control!("K.7", no_timeout_if_new, INODES, OLD),
        control!("K.7", expiry_takes_no_lock, KERNEL, STUCK),
    ]);
}

const SUSPENDED: Scenario =
    Scenario { faults: Faults { slow_ticks: 2, ..TIMEOUTS.faults }, ..TIMEOUTS };

#[test]
fn control_kernel_timeouts() {
    all_fail(&[
        control!("K.7", timeout_is_left, TIMEOUTS, OLD),
        control!("K.7", reply_in_time, TIMEOUTS, OLD),
        control!("K.7", kernel_counts_suspension, SUSPENDED, OLD),
    ]);
}

#[test]
fn control_sessions() {
    all_fail(&[
        control!("K.8", revives_no_session, TIME, OLD),
        control!("K.8", locks_session_row, TIME, OLD),
        control!("K.8", death_drops_cache, TIME, OLD),
        control!("K.8", drop_marks_fills, TIME, OLD),
        control!("K.8", fences, FILE_LOCK, TAKEN),
        control!("K.8", locked_changes_fail, FILE_LOCK, TAKEN),
        control!("K.8", slot_before_fence, SESSION, TWICE),
        control!("K.8", asks_old_session, SESSION, TWICE),
        control!("K.9", has_slots, LOSSES, TWICE),
        control!("K.9", slot_under_lock, LOSSES, TWICE),
        control!("K.11", retries, LOSSES, STUCK),
    ]);
}

#[test]
fn control_crashes() {
    all_fail(&[
        control!("K.10", waits_after_crash, CRASH, OLD),
        control!("K.10", registers_after_drop, CRASH, OLD),
        control!("K.10", boot_drops_cache, CRASH, OLD),
        control!("K.10", drop_marks_fills, CRASH, OLD),
        control!("K.10", ids_survive, CRASH, OLD),
        control!("K.10", syncs_commits, CRASH, LOST),
        control!("K.10", grace_protects, CRASH, OLD),
    ]);
}
