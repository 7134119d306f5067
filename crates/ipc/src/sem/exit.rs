//! The end of a live task in semaphore sets: its adjustments, and waits that failed with `EIO`.
//!
//! Source: Linux `ipc/sem.c` (`exit_sem`).

use rustix::io::Errno;

use super::node::Node;
use super::reap::{Gone, Reaper};
use super::set::Set;
use crate::recover::reap_absent;
use crate::task::Task;
use crate::task_line::Absent;

/// Applies the adjustments of a task that ends, set by set, and ends its abandoned waits. Returns
/// the tasks that got a grant by this and may have died.
///
/// # Errors
///
/// `EIO` if another task does not release a set's lock or a semaphore. The other adjustments are
/// applied when the process has ended.
pub(crate) fn exit_sem(task: &Task) -> Result<Absent, Errno> {
    let undos = task.undos.take();
    let mut absent = end_abandoned(task, None)?;
    for record in undos.into_iter().rev() {
        absent.extend(own_reaper(task).end_record(record)?);
    }
    Ok(absent)
}

/// Ends the wait of a live task whose thread has left the call. The node is in this line. If that
/// fails now, the next call that needs the set tries again, or the end of the task.
pub(crate) fn abandon(task: &Task, line: u32) {
    task.abandoned.lock().push(line);
    if let Ok(absent) = end_abandoned(task, None) {
        reap_absent(&task.shared, task.owner, absent);
    }
}

/// Ends waiting calls of a live task that failed with `EIO`: all, or those at one set. Grants since
/// then are taken back. Returns the tasks that got a grant by this and may have died.
///
/// # Errors
///
/// `EIO` if a task still does not release a set's lock or a semaphore.
#[cold]
pub(super) fn end_abandoned(task: &Task, set: Option<Set<'_>>) -> Result<Absent, Errno> {
    let is_meant = |line: &mut u32| {
        let awaited = Node::at(&task.shared, *line).awaited();
        let is_set = |set: Set<'_>| awaited.is_some_and(|it| it.index == set.index);
        set.is_none_or(is_set)
    };
    let mut lines: Vec<u32> = task.abandoned.lock().extract_if(.., is_meant).collect();
    let mut absent = Absent::new();
    while let Some(line) = lines.last() {
        match own_reaper(task).end_node(*line) {
            Ok(more) => absent.extend(more),
            Err(errno) => {
                task.abandoned.lock().append(&mut lines);
                return Err(errno);
            }
        }
        lines.pop();
    }
    Ok(absent)
}

/// Returns the reaper of a task that ends its own calls and adjustments.
fn own_reaper(task: &Task) -> Reaper<'_> {
    let gone = Gone { task: task.owner.index, pid: task.pid };
    Reaper { shared: &task.shared, owner: task.owner, gone }
}
