//! A change, from the call of a program to its confirmation, and the late copies of changes from
//! broken connections.

use super::database::{self, Change, Leases, Verdict};
use super::reader::see_boot;
use super::rules::IDLE_WRITER;
use super::state::{
    ABSENT, CACHED, FileLock, HELD, LateChange, Mount, NONE, Reader, Stage, State, WriteStep,
    Writer,
};
use super::steps::{Event, Steps};

pub(crate) fn steps(steps: &mut Steps, m: usize) {
    late_copy(steps, m);
    if steps.from.mounts[m].is_killed {
        return;
    }
    let mount = &steps.from.mounts[m];
    match mount.writer.step {
        WriteStep::Idle => begin(steps, m),
        WriteStep::Marked if waits_for_inode(steps, m) => {}
        WriteStep::Marked => {
            let mut next = *steps.from;
            expire(steps, &mut next.mounts[m]);
            next.mounts[m].writer.step = WriteStep::Ready;
            steps.add(Event::OwnExpired, m, next);
        }
        WriteStep::Ready => {
            send(steps, m);
            lose(steps, m);
        }
        WriteStep::Started => started(steps, m),
        WriteStep::Made => {
            confirm(steps, m);
            lose(steps, m);
        }
        WriteStep::Lost => {}
    }
}

/// Makes the kernel drop its entry, and also a reply that is on its way to the kernel. An expiry
/// cannot reach an inode that the kernel does not know yet, so a reply that brings this inode
/// stays.
pub(crate) fn expire(steps: &Steps, mount: &mut Mount) {
    let scenario = steps.scenario;
    let reaches_inode = !scenario.is_attribute || mount.kernel_knows;
    mount.expire_kernel(scenario.rules.expiry_reaches_replies && reaches_inode);
    mount.stage = Stage::Busy;
}

pub(crate) fn waits_for_inode(steps: &Steps, m: usize) -> bool {
    let mount = &steps.from.mounts[m];
    let is_under_way = matches!(mount.reader, Reader::Reply { .. }) && !mount.kernel_knows;
    steps.scenario.waits_for_inode && is_under_way
}

pub(crate) fn make_busy(steps: &Steps, mount: &mut Mount) -> bool {
    if !steps.scenario.has_kernel {
        return false;
    }
    match mount.stage {
        Stage::Calm => {
            mount.stage = Stage::Expiring;
            true
        }
        Stage::Expiring => steps.scenario.rules.waits_for_expiry,
        Stage::Busy => false,
    }
}

fn begin(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    if from.mounts[m].done >= steps.scenario.changes[m] || from.mounts[m].is_dead {
        return;
    }
    if loses_lock(steps, &from) && from.mounts[m].session > 0 {
        let mut next = from;
        fail(&mut next.mounts[m]);
        steps.add(Event::ChangeFailed, m, next);
        return;
    }
    for moves in [false, true] {
        if moves && !steps.scenario.has_moves {
            continue;
        }
        let mut next = from;
        let mount = &mut next.mounts[m];
        if rules.change_marks_fills {
            mount.mark_fill();
        }
        if rules.drops_own_cache {
            forget_item(mount);
        }
        let expires = if rules.expiry_takes_no_lock {
            make_busy(steps, mount) && rules.change_expires_kernel
        } else {
            // Without `expiry_takes_no_lock`, the kernel drops its own entry under its lock of the
            // directory, and holds the lock until the change is answered.
            mount.expire_kernel(true);
            false
        };
        let step = if expires { WriteStep::Marked } else { WriteStep::Ready };
        mount.writer = Writer { step, moves, session: mount.session, ..IDLE_WRITER };
        steps.add(Event::ChangeBegun, m, next);
    }
}

fn loses_lock(steps: &Steps, state: &State) -> bool {
    state.db.file_lock != FileLock::None && steps.scenario.rules.locked_changes_fail
}

fn fail(mount: &mut Mount) {
    mount.writer = IDLE_WRITER;
    mount.done += 1;
    mount.has_failed = true;
}

fn forget_item(mount: &mut Mount) {
    for item in &mut mount.cache {
        *item = (*item).min(HELD);
    }
}

fn current(mount: &Mount, m: usize, dirs: u8) -> Change {
    let Writer { session, moves, .. } = mount.writer;
    let number = mount.change_number();
    Change { mount: m, number, session, moves, dirs, is_past_slot: false }
}

fn session_of_change(steps: &Steps, mount: &Mount) -> u8 {
    let is_first = mount.writer.session == NONE || !steps.scenario.rules.asks_old_session;
    if is_first { mount.session } else { mount.writer.session }
}

fn send(steps: &mut Steps, m: usize) {
    let (from, scenario) = (*steps.from, *steps.scenario);
    if from.mounts[m].is_dead {
        return;
    }
    let mut next = from;
    next.mounts[m].writer.session = session_of_change(steps, &from.mounts[m]);
    let writer = next.mounts[m].writer;
    let dirs = scenario.concerned(writer.moves, from.db.home);
    let change = current(&next.mounts[m], m, dirs);
    if scenario.locks_one_by_one {
        lock_next(steps, next, m);
    } else if scenario.has_moves && !writer.moves {
        next.mounts[m].writer.step = WriteStep::Started;
        next.mounts[m].writer.seen = from.db.home;
        steps.add(Event::ChangeStarted, m, next);
    } else if scenario.rules.change_locks_first {
        finish(steps, next, change);
    } else if matches!(database::foreign_leases(&scenario, &from, m, dirs), Leases::Free) {
        next.mounts[m].writer.step = WriteStep::Started;
        steps.add(Event::ChangeStarted, m, next);
    } else {
        finish(steps, next, change);
    }
}

fn started(steps: &mut Steps, m: usize) {
    let (from, scenario) = (*steps.from, *steps.scenario);
    let writer = from.mounts[m].writer;
    let mut next = from;
    if scenario.locks_one_by_one {
        lock_next(steps, next, m);
    } else if scenario.has_moves {
        next.mounts[m].writer.step = WriteStep::Ready;
        next.mounts[m].writer.seen = 0;
        if writer.seen != from.db.home && scenario.rules.reads_home_again {
            steps.add(Event::ChangeRefused, m, next);
        } else {
            finish(steps, next, current(&from.mounts[m], m, 1 << writer.seen));
        }
    } else {
        // Without `change_locks_first`, the database has checked the leases before it took the
        // lock.
        database::apply(&scenario, &mut next, current(&from.mounts[m], m, 0));
        answer(steps, next, m, Verdict::Applied);
    }
}

fn lock_next(steps: &mut Steps, mut next: State, m: usize) {
    let taken = next.mounts[m].writer.seen;
    let descends = m == 1 && !steps.scenario.rules.locks_ascend;
    let lock = usize::from(if descends { 1 - taken } else { taken });
    if next.db.locks[lock] != 0 {
        return;
    }
    let owner = if m == 0 { 1 } else { 2 };
    next.db.locks[lock] = owner;
    let writer = &mut next.mounts[m].writer;
    if taken == 0 {
        writer.step = WriteStep::Started;
        writer.seen = 1;
        steps.add(Event::ChangeStarted, m, next);
        return;
    }
    writer.step = WriteStep::Ready;
    writer.seen = 0;
    let change = current(&next.mounts[m], m, 0b11);
    next.db.locks = next.db.locks.map(|lock| if lock == owner { 0 } else { lock });
    finish(steps, next, change);
}

fn finish(steps: &mut Steps, mut next: State, change: Change) {
    let verdict = database::run(steps.scenario, &mut next, change);
    answer(steps, next, change.mount, verdict);
}

/// Handles an answer of the database. Only the answer "the change was made" reaches the mount in a
/// later step. Every other answer reaches the mount at once, so the model needs no state for it.
fn answer(steps: &mut Steps, mut next: State, m: usize, verdict: Verdict) {
    let (version, boot) = (next.db.result[m], next.db.boot);
    let mount = &mut next.mounts[m];
    let writer = &mut mount.writer;
    writer.seen = 0;
    let event = match verdict {
        Verdict::Blocked => return,
        Verdict::Applied | Verdict::Repeated => {
            writer.step = WriteStep::Made;
            (writer.version, writer.boot) = (version, boot);
            if verdict == Verdict::Applied { Event::ChangeApplied } else { Event::ChangeRepeated }
        }
        Verdict::Contended => Event::ChangeContended,
        Verdict::Grace => Event::ChangeInGrace,
        Verdict::Fenced => {
            mount.is_dead |= writer.session == mount.session;
            writer.session = NONE;
            if loses_lock(steps, steps.from) {
                fail(mount);
            }
            Event::ChangeFenced
        }
    };
    let broken = database::wrongly_applied(steps.from, &next, m);
    steps.add_checked(event, m, next, broken);
}

fn confirm(steps: &mut Steps, m: usize) {
    let (mut next, rules) = (*steps.from, steps.scenario.rules);
    let writer = next.mounts[m].writer;
    if writer.boot > next.mounts[m].boot && rules.boot_drops_cache {
        see_boot(steps, next, m, writer.boot);
        return;
    }
    next.floor = next.floor.max(writer.version);
    let mount = &mut next.mounts[m];
    mount.done += 1;
    mount.writer = IDLE_WRITER;
    if !rules.drops_own_cache {
        forget_item(mount);
    }
    // The result of a change may be cached if the server has cached the directory since it sent the
    // change. An item that can move may be in the other directory by now, so it is not cached.
    let is_held = mount.cache[0] == HELD || !rules.installs_only_if_held;
    if !steps.scenario.has_moves && is_held {
        mount.cache[0] = CACHED + writer.version;
    } else if mount.cache[0] >= CACHED {
        mount.cache[0] = ABSENT;
    }
    let failed = u8::from(next.mounts[m].has_failed);
    let is_lost = next.db.applied[m] + failed < next.mounts[m].done;
    let broken = is_lost.then_some("a change was confirmed that was not applied");
    steps.add_checked(Event::ChangeConfirmed, m, next, broken);
}

/// Loses a request or an answer with its connection. If the request is still in a buffer of the
/// broken connection, the database may run the change later.
fn lose(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    if from.faults.losses == 0 || from.mounts[m].is_dead {
        return;
    }
    let mut next = from;
    next.faults.losses -= 1;
    let mount = &mut next.mounts[m];
    let moves = mount.writer.moves;
    let session = session_of_change(steps, mount);
    let step = if rules.retries { WriteStep::Ready } else { WriteStep::Lost };
    mount.writer = Writer { step, moves, session, ..IDLE_WRITER };
    steps.add_fault(Event::ChangeLost, m, next);
    let mount = &mut next.mounts[m];
    if from.mounts[m].writer.step == WriteStep::Ready && mount.late_change.number == 0 {
        mount.late_change = late(mount);
        steps.add_fault(Event::ChangeLate, m, next);
    }
}

pub(crate) fn late(mount: &Mount) -> LateChange {
    let Writer { session, moves, .. } = mount.writer;
    LateChange { number: mount.change_number(), session, moves, is_started: false }
}

fn late_copy(steps: &mut Steps, m: usize) {
    let (from, scenario) = (*steps.from, *steps.scenario);
    let LateChange { number, session, moves, is_started } = from.mounts[m].late_change;
    if number == 0 {
        return;
    }
    let dirs = scenario.concerned(moves, from.db.home);
    let change = Change { mount: m, number, session, moves, dirs, is_past_slot: is_started };
    let mut next = from;
    if !scenario.rules.slot_under_lock && !is_started {
        next.mounts[m].late_change.is_started = true;
        if database::is_in_slot(&scenario, &from, change) {
            next.mounts[m].late_change = LateChange::default();
        }
        steps.add_fault(Event::LateStarted, m, next);
        return;
    }
    next.mounts[m].late_change = LateChange::default();
    if database::run(&scenario, &mut next, change) != Verdict::Blocked {
        let broken = database::wrongly_applied(steps.from, &next, m);
        steps.add_checked(Event::LateRun, m, next, broken);
    }
}
