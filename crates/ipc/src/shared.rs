//! The data of a namespace that all tasks of a process share. It consists of the mapped memory, the
//! limits, the security hook, and the source of segment memory.

use corewalk_base::Region;
use corewalk_base::futex::Scope;
use rustix::time::{ClockId, clock_gettime};
use std::fmt;

use crate::backing::Backing;
use crate::contention::Counts;
use crate::layout::Layout;
use crate::limits::Limits;
use crate::perm::SecurityHook;

pub(crate) struct Shared {
    pub(crate) region: Region,
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    pub(crate) hook: Option<Box<dyn SecurityHook>>,
    pub(crate) backing: Box<dyn Backing>,
    pub(crate) scope: Scope,
    /// The time for which a waiting call polls before it sleeps, in nanoseconds. With 0 it does not
    /// poll.
    pub(crate) spin_ns: u64,
    pub(crate) contention: Counts,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// Returns the time of day in seconds, from the coarse clock.
#[inline]
pub(crate) fn now_s() -> u64 {
    clock_gettime(ClockId::RealtimeCoarse).tv_sec.unsigned_abs()
}
