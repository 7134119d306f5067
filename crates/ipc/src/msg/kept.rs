//! Allocates and frees messages. A task keeps the memory of one message that it has read.
//!
//! A task that has read a message keeps the memory of that message for the next message that it
//! sends. So a task that receives and sends in turn does not take the lock of the memory pool,
//! which all queues share.
//!
//! A task keeps the memory of at most one message, which is still marked as its private message
//! (one that is in no queue). All tasks together keep at most a quarter of the memory pool of
//! messages.

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::message::{LINE_BYTES, Message};
use crate::recover;
use crate::task::Task;

/// The part of the memory pool that all tasks together may keep: 1/`KEPT_SHARE` of the lines.
const KEPT_SHARE: u32 = 4;

impl<'s> Message<'s> {
    /// Returns a private message of `task` with a copy of `text`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there are too few free lines.
    #[inline]
    pub(super) fn alloc(task: &'s Task, mtype: i64, text: &[u8]) -> Result<Self, Errno> {
        let (shared, owner, pool) = (&*task.shared, task.owner, &task.shared.layout.msgs);
        let lines = 1 + text.len().div_ceil(LINE_BYTES) as u32;
        let line = match take_kept(task) {
            Some(line) if pool.len(&shared.region, line) == lines.next_power_of_two() => line,
            other => {
                other.into_iter().for_each(|line| pool.free(shared, line, owner));
                let alloc = || pool.alloc(shared, lines, owner, owner.index);
                recover::with_room(shared, owner, alloc)?
            }
        };
        let message = Self { shared, line };
        message.fill(mtype, text);
        Ok(message)
    }

    /// Frees a received message, or keeps its memory for the next message that the task sends. The
    /// task keeps the memory if the message is small and the task keeps no other memory.
    ///
    /// The kept memory stays marked as a private message of the task, so that the cleanup after a
    /// dead task frees it.
    #[inline]
    pub(super) fn let_go(self, task: &Task) {
        let layout = &self.shared.layout;
        let kept_max = layout.msgs.lines / (KEPT_SHARE * layout.tasks_max.max(1));
        let is_small = layout.msgs.len(&self.shared.region, self.line) <= kept_max;
        // ORDERING(ipc-kept): Release. `take_kept` takes the memory with Acquire, to write a new
        // text. Without this order, those writes could come before this thread's reads of the old
        // text.
        let (kept, order) = (&task.kept_message, Ordering::Release);
        if !is_small || kept.compare_exchange(0, self.line, order, Ordering::Relaxed).is_err() {
            self.free(task.owner);
        }
    }
}

/// Takes the lines that the task keeps, if there are any.
#[inline]
fn take_kept(task: &Task) -> Option<u32> {
    // ORDERING: Relaxed. Only a hint: the swap below decides.
    if task.kept_message.load(Ordering::Relaxed) == 0 {
        return None;
    }
    // ORDERING(ipc-kept): Acquire. See `Message::let_go`.
    let line = task.kept_message.swap(0, Ordering::Acquire);
    let whose = task.shared.layout.msgs.whose(&task.shared.region, line);
    (line != 0 && whose == Some(task.owner.index)).then_some(line)
}

/// When a task ends, frees the memory of the message that the task keeps.
pub(crate) fn exit_msg(task: &Task) {
    if let Some(line) = take_kept(task) {
        task.shared.layout.msgs.free(&task.shared, line, task.owner);
    }
}
