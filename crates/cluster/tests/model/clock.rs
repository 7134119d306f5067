//! Time and faults.

use super::change::late;
use super::state::{
    Fill, FillStep, HolderStep, LateAck, LateChange, MOUNTS, Mount, NONE, Reader, Renewal, Stage,
    State, WriteStep,
};
use super::steps::{Event, Step, Steps};

pub(crate) fn steps(steps: &mut Steps) {
    crash(steps);
    let (from, scenario) = (*steps.from, *steps.scenario);
    if !scenario.has_time() {
        return;
    }
    let waits_for_kernel = from
        .mounts
        .iter()
        .any(|mount| matches!(mount.reader, Reader::Reply { left, .. } if left > 0));
    if waits_for_kernel && scenario.rules.reply_in_time {
        return;
    }
    tick(steps, None);
    if from.faults.slow_ticks > 0 {
        (0..scenario.mounts).for_each(|m| tick(steps, Some(m)));
    }
}

fn tick(steps: &mut Steps, slow: Option<usize>) {
    let (from, scenario) = (*steps.from, *steps.scenario);
    let mut next = from;
    let mut expires = false;
    let is_suspended = !scenario.rules.kernel_counts_suspension;
    next.db.grace = from.db.grace.saturating_sub(1);
    for m in 0..scenario.mounts {
        if from.db.until[m] == 1 && !from.mounts[m].is_killed {
            expires = true;
            if next.faults.expiries == 0 {
                return;
            }
            next.faults.expiries -= 1;
        }
        next.db.until[m] = from.db.until[m].saturating_sub(1);
        let mount = &mut next.mounts[m];
        mount.renewal.pending = mount.renewal.pending.saturating_sub(1);
        if slow != Some(m) {
            pass_on(mount);
        } else if is_suspended {
            let (kernel, left) = (mount.kernel, mount.kernel_left);
            pass_on(mount);
            (mount.kernel, mount.kernel_left) = (kernel, left);
        }
    }
    if let Some(m) = slow {
        next.faults.slow_ticks -= 1;
        let event = if is_suspended { Event::Suspended } else { Event::SlowTick };
        steps.add_fault(event, m, next);
    } else if expires {
        steps.add_fault(Event::SessionExpired, MOUNTS, next);
    } else if next != from {
        steps.add(Event::Tick, MOUNTS, next);
    }
}

fn pass_on(mount: &mut Mount) {
    mount.own = mount.own.saturating_sub(1);
    mount.renewal.candidate = mount.renewal.candidate.saturating_sub(1);
    mount.kernel_left = mount.kernel_left.saturating_sub(1);
    if mount.kernel_left == 0 {
        mount.kernel = 0;
    }
}

/// Crashes the database. Rows of UNLOGGED tables and late copies of requests do not survive.
/// Answers that were sent before the crash may still arrive.
fn crash(steps: &mut Steps) {
    let (from, scenario) = (*steps.from, *steps.scenario);
    if from.faults.crashes == 0 {
        return;
    }
    let mut next = from;
    next.faults.crashes -= 1;
    let db = &mut next.db;
    db.leases = [0; 2];
    db.intents = Default::default();
    db.locks = [0; 2];
    db.boot += 1;
    db.registered = 0;
    db.grace = scenario.lease;
    if !scenario.rules.ids_survive {
        db.last_id = 0;
    }
    let mut broken = None;
    if !scenario.rules.syncs_commits {
        broken = lose_last_commit(&mut next);
    }
    for mount in &mut next.mounts[..scenario.mounts] {
        break_connections(mount);
    }
    add_crash(steps, Event::Crash, next, broken);
    // A renewal may be confirmed before it is on disk. So after a crash the sessions may have older
    // deadlines.
    next.db.until = [0; 3];
    add_crash(steps, Event::CrashWithOldRows, next, broken);
}

fn add_crash(steps: &mut Steps, event: Event, state: State, broken: Option<&'static str>) {
    steps.found.push(Step { event, mount: MOUNTS, state, is_helpful: false, broken });
}

fn lose_last_commit(next: &mut State) -> Option<&'static str> {
    let m = usize::from(next.db.last);
    let db = &mut next.db;
    if db.applied[m] == 0 {
        return None;
    }
    db.version -= 1;
    db.applied[m] -= 1;
    for slot in &mut db.slot[m] {
        *slot = slot.saturating_sub(1);
    }
    let failed = u8::from(next.mounts[m].has_failed);
    let is_lost = db.applied[m] + failed < next.mounts[m].done;
    is_lost.then_some("a confirmed change is lost")
}

fn break_connections(mount: &mut Mount) {
    if mount.writer.step == WriteStep::Started {
        mount.writer.step = WriteStep::Ready;
        mount.writer.seen = 0;
    }
    if mount.fill.step == FillStep::Snapped {
        mount.fill = Fill::default();
    }
    mount.renewal = Renewal::default();
    mount.late_change = LateChange::default();
    mount.late_ack = LateAck::default();
}

pub(crate) fn steps_of(steps: &mut Steps, m: usize) {
    let from = *steps.from;
    let mount = &from.mounts[m];
    if mount.is_killed {
        return;
    }
    if mount.stage == Stage::Busy {
        let mut next = from;
        next.mounts[m].stage = Stage::Calm;
        steps.add(Event::Calmed, m, next);
    }
    if from.faults.kills > 0 {
        let mut next = from;
        next.faults.kills -= 1;
        kill(&mut next.mounts[m]);
        steps.add_fault(Event::Killed, m, next);
    }
}

/// Kills a server. The kernel's entries stay until their timeouts, and the database still runs the
/// requests that the server has sent.
fn kill(mount: &mut Mount) {
    let is_sent = matches!(mount.writer.step, WriteStep::Ready | WriteStep::Started);
    if mount.writer.session == NONE {
        mount.writer.session = mount.session;
    }
    let late_change = if is_sent { late(mount) } else { mount.late_change };
    let late_ack = if mount.holder.step == HolderStep::Ready {
        LateAck { id: mount.holder.id, owner: mount.holder.owner, session: mount.session }
    } else {
        mount.late_ack
    };
    let reader = match mount.reader {
        Reader::Checked => Reader::Idle,
        reader => reader,
    };
    *mount = Mount {
        is_killed: true,
        session: mount.session,
        done: mount.done,
        kernel: mount.kernel,
        kernel_left: mount.kernel_left,
        kernel_knows: mount.kernel_knows,
        reader,
        late_change,
        late_ack,
        writer: super::rules::IDLE_WRITER,
        ..Mount::default()
    };
}
