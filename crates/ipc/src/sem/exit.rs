//! The end of a live task in semaphore sets: its adjustments, and its waits that could not leave
//! their queues.
//!
//! Source: Linux `ipc/sem.c` (`exit_sem`).

use rustix::io::Errno;

use super::reap::{Gone, Reaper};
use crate::task::Task;
use crate::task_line::Absent;

/// First ends the waits of the task that could not leave their queues. Then applies its
/// adjustments, set by set. Returns the tasks that got a grant by this and may have died.
///
/// # Errors
///
/// `EIO` if another task does not release a set's lock or a semaphore. Another task reaps the rest
/// after the process has ended.
pub(crate) fn exit_sem(task: &Task) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    for line in task.kept_waits(&task.shared.layout.waits) {
        absent.extend(own_reaper(task).end_node(line)?);
    }
    for record in task.undos.take().into_iter().rev() {
        absent.extend(own_reaper(task).end_record(record)?);
    }
    Ok(absent)
}

/// Returns a reaper with which a live task ends its own calls and adjustments.
fn own_reaper(task: &Task) -> Reaper<'_> {
    let gone = Gone { task: task.owner.index, pid: task.pid };
    Reaper { shared: &task.shared, owner: task.owner, gone }
}
