//! Requests that find the store full, perhaps only for a moment.
//!
//! unlink(2) returns when the kernel has queued the forget that frees a removed file; the server may
//! not have got to it when the next write comes. A program that removes one file to make room for
//! another would fail. So a request that finds the store full is tried again a few times, and fails
//! when the forgets have had their time.
//!
//! That happens on a thread beside (`aside`): the one that serves has the forgets to read. Whoever asked
//! waits for the answer, so nothing overtakes anything.

use std::time::Duration;

use corewalk_base::primitives::thread;

use super::{Adapter, guarded};
use crate::server::Server;

/// How long the forgets get before each new try.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4)];

/// A request with everything that it needs to be tried again.
pub(super) type Again<T> = Box<dyn Fn(&Server) -> Result<T, corewalk::Errno> + Send>;

impl Adapter {
    /// Gives `result` to `answer`; but if the store is full what `again` returns is run until it is
    /// not, or the time is up.
    pub(super) fn answer_with_room<T: 'static>(
        &self,
        result: Result<T, fuser::Errno>,
        again: impl FnOnce() -> Again<T>,
        answer: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        // fuser's numbers are not comparable.
        let is_full = |error: &fuser::Errno| i32::from(*error) == i32::from(fuser::Errno::ENOSPC);
        if !result.as_ref().is_err_and(is_full) {
            return answer(result);
        }
        let (server, again) = (self.server.clone(), again());
        self.aside.run(Box::new(move || {
            let tries = PAUSES.into_iter().map(|pause| {
                thread::sleep(pause);
                guarded(&server, &again)
            });
            let mut last = Err(fuser::Errno::ENOSPC);
            for result in tries {
                let is_over = !result.as_ref().is_err_and(is_full);
                last = result;
                if is_over {
                    break;
                }
            }
            answer(last);
        }));
    }
}
