//! Repeats requests that have failed with `ENOSPC`.
//!
//! unlink(2) returns before the server has handled the forget that frees the removed file. So a
//! program that removes one file to make space for another could get `ENOSPC`. To avoid that, the
//! adapter repeats a request that failed with `ENOSPC` a few times, with pauses in which forgets
//! can arrive.
//!
//! An offload thread (`offload`) repeats the request. The thread that has read the request must go
//! on reading, because the forgets that free space are among the next requests.

use std::time::Duration;

use corewalk::Caller;
use corewalk_base::primitives::thread;

use super::{Adapter, guarded};
use crate::server::Server;

const PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4)];

pub(super) type Retry<T> = Box<dyn Fn(&Server) -> Result<T, corewalk::Errno> + Send>;

impl Adapter {
    /// Passes the result of a request to `answer`. If the result is `ENOSPC`, first repeats the
    /// request up to three times, with a pause before each time.
    ///
    /// `retry` copies the arguments of the request. It is called only before a repetition, so a
    /// request that succeeds copies nothing.
    pub(super) fn answer_or_retry<T: 'static>(
        &self,
        caller: Caller,
        result: Result<T, fuser::Errno>,
        retry: impl FnOnce() -> Retry<T>,
        answer: impl FnOnce(Result<T, fuser::Errno>) + Send + 'static,
    ) {
        let is_full = |error: &fuser::Errno| i32::from(*error) == i32::from(fuser::Errno::ENOSPC);
        if !result.as_ref().is_err_and(is_full) {
            return answer(result);
        }
        let (server, retry) = (self.server.clone(), retry());
        self.offload.run(Box::new(move || {
            let tries = PAUSES.into_iter().map(|pause| {
                thread::sleep(pause);
                guarded(&server, caller, &retry)
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
