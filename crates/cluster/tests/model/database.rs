//! A change in the database: one transaction under the locks of its directories.

use super::rules::{Ack, Scenario};
use super::state::{FileLock, State};

/// Maximum number of intents in a run. Dead sessions would write intents for ever in a control that
/// does not refuse them.
const MOST_INTENTS: u8 = 7;

#[derive(Clone, Copy)]
pub(crate) struct Change {
    pub(crate) mount: usize,
    pub(crate) number: u8,
    pub(crate) session: u8,
    pub(crate) moves: bool,
    /// The directories whose leases are checked, as a mask.
    pub(crate) dirs: u8,
    pub(crate) is_past_slot: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Applied,
    Repeated,
    Contended,
    Grace,
    Fenced,
    Blocked,
}

pub(crate) enum Leases {
    Free,
    Held,
    /// The lease time of a holder is over, but its session cannot be marked as dead yet. For
    /// example, its renewal may not be committed.
    Unknown,
}

/// Returns true if the database may mark a session as dead. It must not if a renewal of the session
/// is not committed. It must not in the grace period after a crash either, because the row of the
/// session may have an old deadline.
pub(crate) fn is_over(scenario: &Scenario, state: &State, m: usize) -> bool {
    let (db, rules) = (&state.db, scenario.rules);
    let is_renewed = rules.locks_session_row && state.mounts[m].renewal.is_evaluated;
    let is_registered = db.registered & (1 << m) != 0;
    let is_protected = rules.grace_protects && db.grace > 0 && !is_registered;
    db.until[m] == 0 && !is_renewed && !is_protected
}

pub(crate) fn foreign_leases(scenario: &Scenario, state: &State, m: usize, dirs: u8) -> Leases {
    let db = &state.db;
    let intent = db.intents[m];
    let mut is_free = true;
    for holder in (0..scenario.mounts).filter(|&holder| holder != m) {
        let has_lease =
            (0..scenario.dirs).any(|d| dirs & (1 << d) != 0 && db.leases[d] & (1 << holder) != 0);
        let has_acked = scenario.ack == Ack::KeepsLease
            && intent.id != 0
            && (intent.dirs == dirs || !scenario.rules.replaces_intent)
            && intent.acked & (1 << holder) != 0;
        if !has_lease || has_acked {
            continue;
        }
        if db.until[holder] > 0 {
            is_free = false;
        } else if !is_over(scenario, state, holder) {
            return Leases::Unknown;
        }
    }
    if is_free { Leases::Free } else { Leases::Held }
}

pub(crate) fn is_in_slot(scenario: &Scenario, state: &State, change: Change) -> bool {
    let slots = state.db.slot[change.mount];
    scenario.rules.has_slots
        && !change.is_past_slot
        && slots[usize::from(change.session)] >= change.number
}

pub(crate) fn run(scenario: &Scenario, state: &mut State, change: Change) -> Verdict {
    let (rules, m) = (scenario.rules, change.mount);
    if rules.slot_before_fence && is_in_slot(scenario, state, change) {
        return Verdict::Repeated;
    }
    if rules.fences && !state.is_session_live(m, change.session) {
        let is_dead = state.db.session[m] != change.session || is_over(scenario, state, m);
        return if is_dead { Verdict::Fenced } else { Verdict::Blocked };
    }
    if is_in_slot(scenario, state, change) {
        return Verdict::Repeated;
    }
    if rules.waits_after_crash && state.db.grace > 0 && !all_registered(scenario, state) {
        return Verdict::Grace;
    }
    match foreign_leases(scenario, state, m, change.dirs) {
        Leases::Unknown => Verdict::Blocked,
        Leases::Held => {
            let db = &mut state.db;
            let is_other = db.intents[m].dirs != change.dirs && rules.replaces_intent;
            if db.intents[m].id == 0 || is_other {
                if db.last_id == MOST_INTENTS {
                    assert!(!rules.fences, "a model with more intents than its keys can name");
                    return Verdict::Blocked;
                }
                db.last_id += 1;
                db.intents[m].id = db.last_id;
                db.intents[m].dirs = change.dirs;
                if rules.ack_names_intent {
                    db.intents[m].acked = 0;
                }
            }
            Verdict::Contended
        }
        Leases::Free => {
            apply(scenario, state, change);
            Verdict::Applied
        }
    }
}

fn all_registered(scenario: &Scenario, state: &State) -> bool {
    (0..scenario.mounts).all(|m| state.db.registered & (1 << m) != 0 || is_over(scenario, state, m))
}

pub(crate) fn apply(scenario: &Scenario, state: &mut State, change: Change) {
    let (db, m) = (&mut state.db, change.mount);
    db.version += 1;
    if change.moves {
        db.home = 1 - db.home;
    }
    db.applied[m] += 1;
    db.slot[m][usize::from(change.session)] = change.number;
    db.result[m] = db.version;
    // If acknowledgements name an intent, they are deleted together with it.
    db.intents[m].id = 0;
    db.intents[m].dirs = 0;
    if scenario.rules.ack_names_intent {
        db.intents[m].acked = 0;
    }
    db.last = u8::from(m == 1) + 2 * u8::from(m == 2);
}

pub(crate) fn wrongly_applied(before: &State, state: &State, m: usize) -> Option<&'static str> {
    let mount = &state.mounts[m];
    let made = mount.done + u8::from(mount.is_killed || mount.is_writing());
    let applied = state.db.applied[m];
    if applied + u8::from(mount.has_failed) > made {
        return Some("a change was applied twice, or after it had failed");
    }
    let is_late = state.db.file_lock == FileLock::TakenOver && m == 0;
    (is_late && applied > before.db.applied[m])
        .then_some("a change was made under a file lock that another mount had taken over")
}

pub(crate) fn acknowledge(scenario: &Scenario, state: &mut State, m: usize, owner: u8, id: u8) {
    let intent = &mut state.db.intents[usize::from(owner)];
    let names_it = intent.id == id || !scenario.rules.ack_names_intent;
    if !names_it {
        return;
    }
    match scenario.ack {
        Ack::KeepsLease => intent.acked |= 1 << m,
        Ack::DeletesLease => {
            let dirs = if intent.id == id { intent.dirs } else { 0b11 };
            for (d, leases) in state.db.leases.iter_mut().enumerate() {
                if dirs & (1 << d) != 0 {
                    *leases &= !(1 << m);
                }
            }
        }
    }
}

/// For each mount, the intent of its change that waits for a lease of mount `m`, or 0.
pub(crate) fn waiting_for(scenario: &Scenario, state: &State, m: usize) -> [u8; 3] {
    let mut ids = [0; 3];
    for owner in (0..scenario.mounts).filter(|&owner| owner != m) {
        let intent = state.db.intents[owner];
        let is_concerned = (0..scenario.dirs)
            .any(|d| intent.dirs & (1 << d) != 0 && state.db.leases[d] & (1 << m) != 0);
        if intent.id != 0 && is_concerned && intent.acked & (1 << m) == 0 {
            ids[owner] = intent.id;
        }
    }
    ids
}
