//! Reads of programs. The kernel answers a read from its cache, or the server from its own cache.
//! Otherwise the database answers by a *fill*, and the server caches this answer.
//!
//! In the model, a read takes a single step, while real reads take longer. Longer reads would show
//! no further failure. A read that begins earlier may return an older version. A read that ends
//! later requires its version of fewer other reads (`State::floor`).

use super::database;
use super::rules::Ack;
use super::state::{CACHED, Fill, FillStep, HELD, Intent, NONE, Reader, Stage, State};
use super::steps::{Event, Steps};

const OLD: &str = "a read returned an older version than an operation that had ended before it";

pub(crate) fn steps(steps: &mut Steps, m: usize) {
    if !steps.scenario.readers[m] {
        return;
    }
    kernel_read(steps, m);
    take_reply(steps, m);
    if steps.from.mounts[m].is_killed {
        return;
    }
    cached_read(steps, m);
    fill(steps, m);
    end_fill(steps, m);
}

fn read(state: &mut State, version: u8) -> Option<&'static str> {
    let is_old = version < state.floor;
    state.floor = state.floor.max(version);
    is_old.then_some(OLD)
}

fn kernel_read(steps: &mut Steps, m: usize) {
    let mount = &steps.from.mounts[m];
    if mount.kernel > 0 {
        let mut next = *steps.from;
        let broken = read(&mut next, mount.kernel - 1);
        steps.add_checked(Event::KernelRead, m, next, broken);
    }
}

fn cached_read(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    let mount = &from.mounts[m];
    let Some(item) = mount.cache.into_iter().find(|&item| item >= CACHED) else { return };
    let trusts = mount.own > 0 || !rules.checks_clock;
    let mut next = from;
    match mount.reader {
        Reader::Idle if !rules.clock_after_arrival && trusts => {
            next.mounts[m].reader = Reader::Checked;
            steps.add(Event::ClockChecked, m, next);
        }
        Reader::Idle if trusts => answer(steps, m, next, item - CACHED),
        Reader::Checked => {
            next.mounts[m].reader = Reader::Idle;
            answer(steps, m, next, item - CACHED);
        }
        _ => {}
    }
}

fn answer(steps: &mut Steps, m: usize, mut next: State, version: u8) {
    let (scenario, rules) = (*steps.scenario, steps.scenario.rules);
    let broken = read(&mut next, version);
    let mount = &mut next.mounts[m];
    let is_locked = mount.is_writing() && !rules.expiry_takes_no_lock;
    let is_calm = (mount.stage == Stage::Calm && !is_locked) || !rules.no_timeout_if_busy;
    if scenario.has_kernel && is_calm && mount.own > 0 {
        let left = if rules.timeout_is_left { mount.own } else { scenario.own_lease() };
        let is_new = scenario.is_attribute && !mount.kernel_knows;
        let is_without = rules.no_timeout_if_new && !scenario.waits_for_inode;
        let left = if is_new && is_without { 0 } else { left };
        mount.reader = Reader::Reply { version, left };
    }
    steps.add_checked(Event::CachedRead, m, next, broken);
}

/// Lets the kernel take a reply. A reply that the server has written before its kill still arrives.
fn take_reply(steps: &mut Steps, m: usize) {
    if let Reader::Reply { version, left } = steps.from.mounts[m].reader {
        let mut next = *steps.from;
        let mount = &mut next.mounts[m];
        mount.reader = Reader::Idle;
        mount.kernel_knows = steps.scenario.is_attribute;
        if left > 0 {
            (mount.kernel, mount.kernel_left) = (version + 1, left);
        }
        steps.add(Event::ReplyTaken, m, next);
    }
}

/// A read of a directory that is not cached starts a fill. The database inserts a lease and reads
/// the item and the pending intents of other mounts.
fn fill(steps: &mut Steps, m: usize) {
    let (from, rules) = (*steps.from, steps.scenario.rules);
    let mount = &from.mounts[m];
    if mount.fill.step == FillStep::Snapped {
        let mut next = from;
        next.mounts[m].fill.step = FillStep::Answered;
        grant(steps, m, next, mount.fill.dir, true);
        return;
    }
    if mount.fill.step != FillStep::Idle || !mount.runs() {
        return;
    }
    for dir in [0, 1] {
        let d = usize::from(dir);
        let is_cached = mount.cache[d] >= CACHED && mount.own > 0;
        if d >= steps.scenario.dirs || is_cached || from.db.locks[d] != 0 {
            continue;
        }
        let value =
            if from.db.home == dir || !rules.caches_only_at_home { from.db.version } else { NONE };
        let mut next = from;
        let is_told = rules.fill_tells_intents && has_intent(steps, &mut next, m, dir);
        let is_marked = mount.is_writing() && rules.fills_see_change;
        if !is_told && !is_marked {
            let step = FillStep::Answered;
            next.mounts[m].fill = Fill { step, dir, boot: from.db.boot, value };
        }
        if rules.fill_locks_first {
            grant(steps, m, next, dir, !is_told);
        } else if !is_told && !is_marked {
            next.mounts[m].fill.step = FillStep::Snapped;
            steps.add(Event::FillSnapped, m, next);
        }
    }
}

fn has_intent(steps: &Steps, next: &mut State, m: usize, dir: u8) -> bool {
    let (scenario, rules) = (steps.scenario, steps.scenario.rules);
    let mut is_told = false;
    for owner in (0..scenario.mounts).filter(|&owner| owner != m) {
        let intent = next.db.intents[owner];
        if intent.id == 0 || intent.dirs & (1 << dir) == 0 {
            continue;
        }
        let is_dead = rules.ignores_dead_intents && database::is_over(scenario, next, owner);
        is_told |= !is_dead;
        if is_dead && rules.deletes_dead_intents {
            next.db.intents[owner] = Intent::default();
        }
    }
    is_told
}

fn grant(steps: &mut Steps, m: usize, mut next: State, dir: u8, is_calm: bool) {
    let is_current = next.db.session[m] == next.mounts[m].session;
    if is_current && (is_calm || steps.scenario.ack == Ack::KeepsLease) {
        next.db.leases[usize::from(dir)] |= 1 << m;
    }
    let fill = next.mounts[m].fill;
    let is_here = next.db.home == dir;
    let value = if fill.step == FillStep::Answered { fill.value } else { next.db.version };
    let broken = if is_here && value != NONE { read(&mut next, value) } else { None };
    steps.add_checked(Event::FillRun, m, next, broken);
}

fn end_fill(steps: &mut Steps, m: usize) {
    let from = *steps.from;
    let fill = from.mounts[m].fill;
    if fill.step == FillStep::Idle {
        return;
    }
    let mut next = from;
    let mount = &mut next.mounts[m];
    mount.fill = Fill::default();
    steps.add_fault(Event::FillLost, m, next);
    if fill.step == FillStep::Snapped {
        return;
    }
    let mount = &mut next.mounts[m];
    if fill.boot > mount.boot && steps.scenario.rules.boot_drops_cache {
        see_boot(steps, next, m, fill.boot);
    } else {
        let item = if fill.value == NONE { HELD } else { CACHED + fill.value };
        mount.cache[usize::from(fill.dir)] = item;
        steps.add(Event::FillCached, m, next);
    }
}

/// Handles an answer with a new boot id, which shows that the database has crashed and lost its
/// leases. The mount drops all caches, and does not cache this answer.
pub(crate) fn see_boot(steps: &mut Steps, mut next: State, m: usize, boot: u8) {
    next.drop_everything(m, steps.scenario.rules.drop_marks_fills);
    next.mounts[m].boot = boot;
    steps.add(Event::BootSeen, m, next);
}
