//! The request that a thread serves: its caller, and whether the caller still waits for the answer.
//!
//! A back end gets the request from [`Request::current`], as a file system in Linux uses `current`.
//! A server wraps each request in [`Request::run`]. Calls that no request has caused, such as
//! `maintain`, have no current request.
//!
//! # Cancelling
//! A thread of a client waits for the answer to its request. If a signal kills the thread, the
//! server calls [`Cancel::cancel`]. A back end that waits for another machine looks at
//! [`Request::is_cancelled`] now and then, and may return `EINTR`. A `flush` or a `release` is
//! never cancelled, because the kernel sends it only once.
//!
//! Two events do not cancel a request. One is a signal that the client handles, because such a
//! signal must not make read(2) or write(2) of a file fail. The other is the death of a client that
//! waits for the page cache, because Linux does not report it to a FUSE server.

use std::cell::RefCell;
use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

/// The process that has made a request.
///
/// # Examples
/// ```
/// use corewalk::Caller;
///
/// let caller = Caller { uid: 1000, gid: 1000, pid: 0 };
/// assert_eq!(caller.pid, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The file system user ID.
    pub uid: u32,
    /// The file system group ID.
    pub gid: u32,
    /// The ID of the thread that has sent the request and waits for the answer. It is 0 if no
    /// thread waits, or if the thread has no ID in the server's PID namespace.
    pub pid: u32,
}

/// A request that a thread serves.
///
/// # Examples
/// ```
/// use corewalk::{Caller, Cancel, Request};
///
/// let caller = Caller { uid: 1000, gid: 1000, pid: 7 };
/// let cancel = Cancel::default();
/// let request = Request::new(caller).with_cancel(cancel.clone());
/// request.run(|| {
///     // A back end that is called here sees the request.
///     let request = Request::current().expect("a request is served");
///     assert_eq!((request.caller(), request.is_cancelled()), (caller, false));
///     cancel.cancel();
///     assert!(request.is_cancelled());
/// });
/// assert!(Request::current().is_none());
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    caller: Caller,
    cancel: Option<Cancel>,
}

/// A flag by which a server tells a back end that the caller of a request no longer waits. All
/// clones of a `Cancel` share one flag.
///
/// # Examples
/// ```
/// use corewalk::{Caller, Cancel, Request};
///
/// let cancel = Cancel::default();
/// let caller = Caller { uid: 0, gid: 0, pid: 7 };
/// let request = Request::new(caller).with_cancel(cancel.clone());
/// cancel.cancel();
/// assert!(request.is_cancelled());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<AtomicBool>);

thread_local! {
    static CURRENT: RefCell<Option<Request>> = const { RefCell::new(None) };
}

impl Request {
    /// Returns a request that is never cancelled.
    pub fn new(caller: Caller) -> Request {
        Request { caller, cancel: None }
    }

    /// Returns this request with the flag `cancel`. [`Cancel::cancel`] then cancels the request.
    #[must_use]
    pub fn with_cancel(self, cancel: Cancel) -> Request {
        Request { cancel: Some(cancel), ..self }
    }

    /// Runs `serve` with this request as the current request of the calling thread.
    pub fn run<T>(self, serve: impl FnOnce() -> T) -> T {
        /// Restores the previous request, even after a panic.
        struct Restore(Option<Request>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(|current| *current = self.0.take());
            }
        }
        let _restore = Restore(CURRENT.replace(Some(self)));
        serve()
    }

    /// Returns the request that the calling thread serves. Returns `None` if the thread serves no
    /// request, for example in a call of `maintain`.
    ///
    /// If several requests wait for one answer of the back end, the back end is called once, for
    /// the first of them.
    pub fn current() -> Option<Request> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Returns the process that has made the request.
    pub fn caller(&self) -> Caller {
        self.caller
    }

    /// Returns true if the caller was killed, so that nothing waits for the answer.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(Cancel::is_cancelled)
    }
}

impl Cancel {
    /// Cancels the request.
    pub fn cancel(&self) {
        // ORDERING: Relaxed. The flag publishes nothing but itself.
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_cancelled(&self) -> bool {
        // ORDERING: Relaxed. See `cancel`.
        self.0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    fn request(pid: u32) -> Request {
        Request::new(Caller { uid: 0, gid: 0, pid })
    }

    fn current_pid() -> Option<u32> {
        Request::current().map(|request| request.caller().pid)
    }

    #[test]
    fn inner_request_hides_the_outer_one_until_it_ends() {
        request(1).run(|| {
            request(2).run(|| assert_eq!(current_pid(), Some(2)));
            assert_eq!(current_pid(), Some(1));
        });
        assert_eq!(current_pid(), None);
    }

    #[test]
    fn request_that_panics_is_no_longer_current() {
        let panics = || request(1).run(|| std::panic::resume_unwind(Box::new(())));
        assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
        assert_eq!(current_pid(), None);
    }
}
