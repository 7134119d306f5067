//! A mount as the holder of a lease: it acknowledges changes of other mounts, renews its session,
//! and replaces a session that has ended.

use super::change::{expire, make_busy, waits_for_inode};
use super::database;
use super::reader::see_boot;
use super::state::{
    ABSENT, DIRS, FileLock, Holder, HolderStep, Intent, LateAck, Mount, Reader, Renewal, State,
};
use super::steps::{Event, Steps};

pub(crate) fn steps(steps: &mut Steps, m: usize) {
    late_ack(steps, m);
    if steps.from.mounts[m].is_killed {
        return;
    }
    match steps.from.mounts[m].holder.step {
        HolderStep::Idle => begin(steps, m),
        HolderStep::Marked => expire_for_intent(steps, m),
        HolderStep::Ready => acknowledge(steps, m),
    }
    renew(steps, m);
    open_session(steps, m);
    take_file_lock(steps, m);
}

/// Begins to acknowledge a waiting change. The holder learns of the change by a notification or by
/// a renewal. A notification can be lost, so progress may depend on the renewal alone.
fn begin(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    if from.mounts[m].is_dead {
        return;
    }
    let ids = database::waiting_for(steps.scenario, &from, m);
    for (owner, id) in (0..).zip(ids).filter(|&(_, id)| id != 0) {
        let mut next = from;
        let mount = &mut next.mounts[m];
        let step = if !rules.drops_before_ack {
            HolderStep::Ready
        } else if !rules.marks_before_expiring {
            expire(steps, mount);
            mount.stage = from.mounts[m].stage;
            HolderStep::Marked
        } else {
            let expires = drop_for_intent(steps, mount) && rules.intent_expires_kernel;
            if expires { HolderStep::Marked } else { HolderStep::Ready }
        };
        mount.holder = Holder { step, owner, id };
        if rules.renewal_tells {
            steps.add(Event::HolderMarked, m, next);
        } else {
            steps.add_fault(Event::HolderMarked, m, next);
        }
    }
}

fn drop_for_intent(steps: &Steps, mount: &mut Mount) -> bool {
    if steps.scenario.rules.intent_marks_fills {
        mount.mark_fill();
    }
    mount.cache = [ABSENT; DIRS];
    make_busy(steps, mount)
}

fn expire_for_intent(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    // Without `expiry_takes_no_lock`, an expiry needs the kernel's lock of the directory. A change
    // on the same mount holds that lock until it is answered.
    let is_locked = !rules.expiry_takes_no_lock && from.mounts[m].is_writing();
    if is_locked || waits_for_inode(steps, m) {
        return;
    }
    let mut next = from;
    let mount = &mut next.mounts[m];
    if rules.marks_before_expiring {
        expire(steps, mount);
    } else {
        drop_for_intent(steps, mount);
    }
    mount.holder.step = HolderStep::Ready;
    steps.add(Event::HolderExpired, m, next);
}

fn acknowledge(steps: &mut Steps, m: usize) {
    let mut next = *steps.from;
    let Holder { owner, id, .. } = next.mounts[m].holder;
    next.mounts[m].holder = Holder::default();
    if next.faults.losses > 0 {
        let mut lost = next;
        lost.faults.losses -= 1;
        steps.add_fault(Event::AckLost, m, lost);
        if lost.mounts[m].late_ack.id == 0 {
            let session = lost.mounts[m].session;
            lost.mounts[m].late_ack = LateAck { id, owner, session };
            steps.add_fault(Event::AckLate, m, lost);
        }
    }
    if !steps.scenario.rules.drops_before_ack {
        drop_for_intent(steps, &mut next.mounts[m]);
        expire(steps, &mut next.mounts[m]);
    }
    database::acknowledge(steps.scenario, &mut next, m, owner, id);
    steps.add(Event::AckRun, m, next);
}

fn late_ack(steps: &mut Steps, m: usize) {
    let LateAck { id, owner, session } = steps.from.mounts[m].late_ack;
    if id == 0 {
        return;
    }
    let mut next = *steps.from;
    next.mounts[m].late_ack = LateAck::default();
    if session == next.db.session[m] {
        database::acknowledge(steps.scenario, &mut next, m, owner, id);
    }
    steps.add(Event::LateAckRun, m, next);
}

/// Renews the session in two steps. The database computes the new deadline in the first step, and
/// commits it in the second. The mount counts its lease time from the first step, so a late answer
/// leaves it less time.
fn renew(steps: &mut Steps, m: usize) {
    let (from, scenario) = (*steps.from, *steps.scenario);
    let mount = &from.mounts[m];
    let mut next = from;
    if mount.renewal.is_evaluated {
        next.mounts[m].renewal = Renewal::default();
        steps.add_fault(Event::RenewalLost, m, next);
        commit(&mut next, m, from.mounts[m].renewal, scenario.rules.registers_after_drop);
        steps.add_fault(Event::RenewalUnanswered, m, next);
        renewed(steps, m, next);
        return;
    }
    let is_unregistered = from.db.boot > 0 && from.db.registered & (1 << m) == 0;
    let is_useful = is_unregistered || mount.own < scenario.own_lease();
    if !mount.runs() || !is_useful {
        return;
    }
    if database::is_over(&scenario, &from, m) && scenario.rules.revives_no_session {
        next.mounts[m].is_dead = true;
        steps.add(Event::RenewalRefused, m, next);
        return;
    }
    next.mounts[m].renewal = Renewal {
        is_evaluated: true,
        knew_boot: mount.boot == from.db.boot,
        candidate: scenario.own_lease(),
        pending: scenario.lease_in_database(),
    };
    steps.add(Event::RenewalEvaluated, m, next);
}

fn commit(next: &mut State, m: usize, renewal: Renewal, registers_after_drop: bool) {
    next.db.until[m] = next.db.until[m].max(renewal.pending);
    if next.db.boot > 0 && (renewal.knew_boot || !registers_after_drop) {
        next.db.registered |= 1 << m;
    }
}

fn renewed(steps: &mut Steps, m: usize, mut next: State) {
    let rules = steps.scenario.rules;
    let (boot, full) = (next.db.boot, steps.scenario.own_lease());
    let candidate = steps.from.mounts[m].renewal.candidate;
    let mount = &mut next.mounts[m];
    mount.own = mount.own.max(if rules.counts_from_send { candidate } else { full });
    if boot > mount.boot && rules.boot_drops_cache {
        see_boot(steps, next, m, boot);
    } else {
        steps.add(Event::RenewalCommitted, m, next);
    }
}

fn open_session(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    if !from.mounts[m].is_dead {
        return;
    }
    let mut next = from;
    if rules.death_drops_cache {
        next.drop_everything(m, rules.drop_marks_fills);
    }
    register(steps, &mut next, m);
    let boot = next.db.boot;
    let mount = &mut next.mounts[m];
    mount.is_dead = false;
    mount.session += 1;
    mount.boot = boot;
    mount.own = steps.scenario.own_lease();
    mount.holder = Holder::default();
    mount.renewal = Renewal::default();
    if mount.reader == Reader::Checked {
        mount.reader = Reader::Idle;
    }
    steps.add(Event::SessionOpened, m, next);
}

fn register(steps: &Steps, next: &mut State, m: usize) {
    let db = &mut next.db;
    db.session[m] += 1;
    db.until[m] = steps.scenario.lease_in_database();
    db.leases = db.leases.map(|leases| leases & !(1 << m));
    db.intents[m] = Intent::default();
    for intent in &mut db.intents {
        intent.acked &= !(1 << m);
    }
    if db.boot > 0 {
        db.registered |= 1 << m;
    }
}

fn take_file_lock(steps: &mut Steps, m: usize) {
    let mut next = *steps.from;
    let is_over = next.db.session[0] > 0 || database::is_over(steps.scenario, &next, 0);
    if m != 0 && is_over && next.db.file_lock == FileLock::Held {
        next.db.file_lock = FileLock::TakenOver;
        steps.add(Event::FileLockTaken, m, next);
    }
}
