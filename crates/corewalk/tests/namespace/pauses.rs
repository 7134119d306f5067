//! Helpers with which a test stops a thread at a chosen call of the back end.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use corewalk::{Errno, Vfs};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::over;

/// Two channels between a test and a thread that stops in the back end. `arrived` reports that the
/// thread has stopped. Through `go_on` the test sends the result with which the thread continues.
pub(crate) struct Stop {
    pub(crate) arrived: Receiver<()>,
    pub(crate) go_on: Sender<Result<(), Errno>>,
}

pub(crate) fn once() -> (impl Fn() -> Result<(), Errno> + Send + Sync, Stop) {
    let (said, arrived) = channel();
    let (go_on, told) = channel();
    let once = Mutex::new(Some((said, told)));
    let pause = move || {
        let first = once.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((said, told)) = first else { return Ok(()) };
        said.send(()).expect("the test waits for it");
        told.recv().expect("the test answers")
    };
    (pause, Stop { arrived, go_on })
}

pub(crate) fn stopping(
    matches: impl Fn(Call<'_>) -> bool + Send + Sync + 'static,
) -> (Arc<Vfs>, Stop) {
    let (pause, stop) = once();
    (over(HookedTmpfs::new(move |_, call| if matches(call) { pause() } else { Ok(()) })), stop)
}
