//! The task records of a namespace, one line for each task, and the check whether the process of a
//! task is alive.
//!
//! | word | holds |
//! |---|---|
//! | `STATE` | 0, or the identity of the process (`process`); one exchange takes the line |
//! | `GENERATION` | the number of the task, counted over the whole namespace |
//! | `REAPER` | the lock for cleaning up after the task |
//! | `PID` | the pid that `GETPID` returns |
//! | `IMAGE` | the identity of the program, or 0 (`process`); 0 in a free line |
//!
//! A task frees its own record when it ends. If the task has died, another task takes the lock in
//! the record's word `REAPER`, cleans up, and frees the record.

use corewalk_base::Line;
use corewalk_base::futex::Scope;
use corewalk_base::primitives::atomic::Ordering;
use smallvec::SmallVec;

use crate::field::{get, low};
use crate::layout::HEADER;
use crate::process::{Identity, Look, has_other_image};
use crate::shared::Shared;

/// All pids are smaller than this, since a semaphore's word has 22 bits for a pid.
pub(crate) const PID_END: u32 = 1 << 22;

// Words of a task's line.
pub(crate) const STATE: usize = 0;
pub(crate) const GENERATION: usize = 1;
pub(crate) const REAPER: usize = 2;
pub(crate) const PID: usize = 3;
pub(crate) const IMAGE: usize = 4;

/// The header word that has the last generation.
pub(crate) const LAST_GENERATION: usize = 7;

/// Tasks that may have died: another task has completed a waiting call of each, and has found the
/// task neither asleep nor polling.
pub(crate) type Absent = SmallVec<[u32; 4]>;

/// Returns the record of task number `index`. If `index` is out of range, returns line 0, which is
/// the record of no task.
pub(crate) fn task_line(shared: &Shared, index: u32) -> &Line {
    let index = if index < shared.layout.tasks_max { shared.layout.tasks + index } else { 0 };
    shared.region.line(index)
}

impl Shared {
    /// True if the task is dead, if there is no such task, or if the number belongs to a later task
    /// than that of `generation`.
    pub(crate) fn is_dead(&self, index: u32, generation: Option<u32>) -> bool {
        let line = task_line(self, index);
        let is_other = generation.is_some_and(|is| is != low(get(&line[GENERATION])));
        let is_none = is_other || index >= self.layout.tasks_max;
        self.scope == Scope::Shared && (is_none || identity(line).is_gone(Look::Close))
    }

    /// True if the task is dead, or if its process has called execve(2). Either has ended the
    /// unfinished calls of the task.
    pub(crate) fn is_over(&self, index: u32, generation: Option<u32>) -> bool {
        let line = task_line(self, index);
        let has_other_image = || has_other_image(identity(line), get(&line[IMAGE]));
        self.is_dead(index, generation) || self.scope == Scope::Shared && has_other_image()
    }

    /// Returns true if the process of the task has ended. `look` says whether `/proc` is read to
    /// detect a reused pid.
    pub(crate) fn is_gone(&self, index: u32, look: Look) -> bool {
        self.scope == Scope::Shared && identity(task_line(self, index)).is_gone(look)
    }

    pub(crate) fn pid_of(&self, index: u32) -> u32 {
        low(get(&task_line(self, index)[PID])) & (PID_END - 1)
    }
}

/// Returns the pids of all tasks.
pub(crate) fn pids(shared: &Shared) -> Vec<u32> {
    let lines =
        (0..shared.layout.tasks_max).filter(|index| identity(task_line(shared, *index)).0 != 0);
    lines.map(|index| shared.pid_of(index)).collect()
}

/// Returns the identity of a task's process.
pub(crate) fn identity(line: &Line) -> Identity {
    // ORDERING(ipc-task): Acquire. A task record is freed with Release. Without this order, this
    // thread could miss stores of the task that used the record before.
    Identity(line[STATE].load(Ordering::Acquire))
}

pub(crate) fn next_generation(shared: &Shared) -> u32 {
    let last = &shared.region.line(HEADER)[LAST_GENERATION];
    // ORDERING: Relaxed. The atomic addition makes the generation unique. It publishes no data.
    last.fetch_add(1, Ordering::Relaxed) as u32
}

/// For tests: makes a task look dead to other tasks.
#[cfg(all(test, not(corewalk_shuttle)))]
pub(crate) fn forget_process(shared: &Shared, index: u32) {
    crate::field::put(&task_line(shared, index)[STATE], 1);
}
