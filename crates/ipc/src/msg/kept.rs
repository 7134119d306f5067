//! How tasks allocate and free messages, and the lines that a task keeps.
//!
//! A task that has read a message keeps the lines of that message for its next one. It keeps the
//! lines of at most one message. They stay a private message of the task. So a task that receives
//! and sends in turn does not take the lock of the pool, which all queues share. All tasks together
//! keep at most a quarter of the lines.

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::message::{LINE_BYTES, Message};
use crate::recover;
use crate::task::Task;

/// All tasks together keep at most 1/`KEPT_SHARE` of the lines.
const KEPT_SHARE: u32 = 4;

impl<'s> Message<'s> {
    /// Returns a private message of `task` with a copy of `text`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are too few free lines.
    #[inline]
    pub(super) fn alloc(task: &'s Task, mtype: i64, text: &[u8]) -> Result<Self, Errno> {
        let shared = &*task.shared;
        let lines = 1 + text.len().div_ceil(LINE_BYTES) as u32;
        let line = match take_kept(task, lines) {
            Some(line) => line,
            None => alloc_lines(task, lines)?,
        };
        let message = Self { shared, line };
        message.fill(mtype, text);
        Ok(message)
    }

    /// Frees a private message of `task`. If the task keeps no lines yet, it keeps these instead.
    ///
    /// If the task dies, the kept lines are reaped like any private message.
    #[inline]
    pub(super) fn let_go(self, task: &Task) {
        let layout = &self.shared.layout;
        let kept_max = layout.msgs.lines / (KEPT_SHARE * layout.tasks_max.max(1));
        let is_small = layout.msgs.len(&self.shared.region, self.line) <= kept_max;
        // ORDERING(ipc-kept): Release. Pairs with `take_kept`: the next writer of these lines comes
        // after all reads of the message.
        let kept = is_small
            && task
                .hot
                .kept_message
                .compare_exchange(0, self.line, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if !kept {
            self.free(task.owner);
        }
    }
}

/// Allocates lines. If too few are free, reaps dead tasks and tries again.
fn alloc_lines(task: &Task, lines: u32) -> Result<u32, Errno> {
    let (shared, owner) = (&*task.shared, task.owner);
    let alloc = || shared.layout.msgs.alloc(shared, lines, owner, owner.index);
    recover::with_room(shared, owner, alloc)
}

/// Returns the kept lines of `task` if their number is right for a message of `lines` lines.
/// Otherwise frees them.
#[inline]
fn take_kept(task: &Task, lines: u32) -> Option<u32> {
    // ORDERING: Relaxed. Only a hint: the swap below decides.
    if task.hot.kept_message.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // ORDERING(ipc-kept): Acquire. See `Message::let_go`.
    let line = Some(task.hot.kept_message.swap(0, Ordering::Acquire)).filter(|line| *line != 0)?;
    let (pool, region) = (&task.shared.layout.msgs, &task.shared.region);
    let is_own = pool.whose(region, line) == Some(task.owner.index);
    if is_own && pool.len(region, line) == lines.next_power_of_two() {
        return Some(line);
    }
    if is_own {
        pool.free(&task.shared, line, task.owner);
    }
    None
}

/// Frees the kept lines of a task, at its end.
pub(crate) fn exit_msg(task: &Task) {
    // ORDERING(ipc-kept): Acquire. See `Message::let_go`.
    let line = task.hot.kept_message.swap(0, Ordering::Acquire);
    let pool = &task.shared.layout.msgs;
    if line != 0 && pool.whose(&task.shared.region, line) == Some(task.owner.index) {
        pool.free(&task.shared, line, task.owner);
    }
}
