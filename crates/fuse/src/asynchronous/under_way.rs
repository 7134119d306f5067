//! The requests that have a future: how many run, and how they end.
//!
//! A request is in the index from its start until its future has ended. At most `running_max`
//! futures run. Further requests wait in a queue.
//!
//! A future that waits for another request ([`UnderWay::wait_for`]) does not count as running.
//! Otherwise the requests that wait for one hung answer of the back end could stop all others. A
//! future whose wait ends goes on at once. So more than `running_max` futures may run after an
//! answer that many requests waited for.
//!
//! # The end of a request
//! A request and its cancellation may end at the same time. [`Request::take_reply`] returns the
//! reply only once, so there is exactly one answer. When a future ends, the destructor of its
//! [`Running`] does two things:
//! - If the future has sent no answer, the destructor sends one: `EINTR` after a cancellation, and
//!   `EIO` after a panic.
//! - It starts the next request of the queue.
//!
//! A future calls [`Request::begin`] right before its first call that changes something:
//! - Until then, a cancelled request is dropped.
//! - After `begin`, the future runs to its end. A killed client gets `EINTR` before that end, with
//!   two exceptions.
//!   - If the content of a file changes, the client waits for the end. Otherwise the change could
//!     overwrite data that a later request has written.
//!   - If `/proc` does not show whether the client was killed, the client gets the result of the
//!     change. A living client would take `EINTR` to mean that nothing has changed. An open changes
//!     nothing, so its client gets `EINTR` all the same.
//!
//! # Locks
//! A thread that holds the mutex of the queue may lock the mutex of a request. Neither mutex is
//! held while a future is spawned, aborted or dropped, or while an answer is sent.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use corewalk::{Errno, FileKind, Name};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, AtomicUsize, Ordering};
use futures_util::FutureExt as _;
use futures_util::future::{AbortHandle, AbortRegistration, Abortable};

use super::stale::{Stale, Touched};
use super::{AsyncNode, BoxedFuture, Spawn};
use crate::interrupts::{CancelledBy, Interruptible, Interrupts};
use crate::mount::Pages;
use crate::service::Reply;
use crate::wire::{Header, Opcode};

pub(super) struct UnderWay {
    spawn: Box<dyn Spawn>,
    running_max: usize,
    interrupts: Interrupts,
    queue: Mutex<Queue>,
    /// The number of calls of `start_waiting` after which the queue was not checked yet. The call
    /// that finds 0 checks the queue for all of them.
    starts: AtomicUsize,
    stale: Arc<Stale>,
}

/// The futures that wait for their start, and the number of running ones. All fields are protected
/// by `UnderWay::queue`.
#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<(Arc<Request>, BoxedFuture)>,
}

pub(super) struct Request {
    unique: u64,
    pid: u32,
    cancelled_by: CancelledBy,
    /// True if the request opens a file. An open changes nothing that a client sees.
    is_open: bool,
    state: Mutex<State>,
    abort: AbortHandle,
    runs: AtomicBool,
}

/// Protected by `Request::state`.
struct State {
    reply: Option<Reply>,
    has_begun: bool,
    changes_content: bool,
    is_cancelled: bool,
    touched: Touched,
    /// True if the kernel must drop what it has cached about `touched`, because no answer tells the
    /// kernel about the change.
    is_stale: bool,
}

/// A future that waits for another request. It does not count as running until this value is
/// dropped.
struct Waiting<'u> {
    under_way: &'u UnderWay,
}

/// A request with a future. Dropping the value ends the request.
struct Running {
    under_way: Arc<UnderWay>,
    request: Arc<Request>,
}

impl UnderWay {
    pub(super) fn new(running_max: usize, spawn: Box<dyn Spawn>) -> Arc<UnderWay> {
        Arc::new(UnderWay {
            spawn,
            running_max,
            interrupts: Interrupts::default(),
            queue: Mutex::default(),
            starts: AtomicUsize::new(0),
            stale: Arc::default(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.interrupts.len()
    }

    pub(super) fn stale(&self) -> &Stale {
        &self.stale
    }

    /// Starts the future that `serve` returns, or queues it if too many futures run. The future
    /// takes the reply from the request and answers with it.
    pub(super) fn start<S: Future<Output = ()> + Send + 'static>(
        self: &Arc<Self>,
        header: Header,
        reply: Reply,
        serve: impl FnOnce(Arc<Request>) -> S,
    ) {
        let (abort, registration) = AbortHandle::new_pair();
        let touched = Touched::default();
        let state = State {
            reply: Some(reply),
            has_begun: false,
            changes_content: false,
            is_cancelled: false,
            touched,
            is_stale: false,
        };
        let request = Arc::new(Request {
            unique: header.unique,
            pid: header.caller.pid,
            cancelled_by: match header.opcode {
                Opcode::RELEASE | Opcode::FLUSH => CancelledBy::Nothing,
                Opcode::SETLKW => CancelledBy::AnySignal,
                _ => CancelledBy::Kill,
            },
            is_open: header.opcode == Opcode::OPEN,
            state: Mutex::new(state),
            abort,
            runs: AtomicBool::new(false),
        });
        let interruptible: Arc<dyn Interruptible> = Arc::clone(&request) as _;
        let is_interrupted = self.interrupts.enter(request.unique, Arc::clone(&interruptible));
        let running = Running { under_way: Arc::clone(self), request: Arc::clone(&request) };
        let future = run(running, registration, serve(Arc::clone(&request)));
        if request.waits_for_lock() {
            self.spawn_caught(Box::pin(future));
        } else {
            self.queue.lock().waiting.push_back((Arc::clone(&request), Box::pin(future)));
        }
        if is_interrupted && self.interrupts.signalled(&interruptible) {
            self.drop_cancelled();
        }
        self.start_waiting();
    }

    fn start_waiting(&self) {
        // ORDERING: SeqCst. The thread that finds 0 starts the queued requests. Its `fetch_sub`
        // sees each later addition to `starts`, and it checks the queue again. Otherwise a queued
        // request might never start.
        if self.starts.fetch_add(1, Ordering::SeqCst) != 0 {
            return;
        }
        let mut seen = 1;
        while seen > 0 {
            while let Some(future) = self.next_waiting() {
                self.spawn_caught(future);
            }
            // ORDERING: SeqCst. Another thread queues a request before its `fetch_add`. The
            // `fetch_sub` returns the new count, and the loop checks the queue again; otherwise the
            // request might never start.
            seen = self.starts.fetch_sub(seen, Ordering::SeqCst) - seen;
        }
    }

    /// Passes `future` to the runtime. A runtime that has ended may drop the future immediately, or
    /// panic.
    fn spawn_caught(&self, future: BoxedFuture) {
        let spawn = AssertUnwindSafe(|| self.spawn.spawn(future));
        if catch_unwind(spawn).is_err() {
            log::error!("the runtime has refused a request");
        }
    }

    fn next_waiting(&self) -> Option<BoxedFuture> {
        let mut queue = self.queue.lock();
        if queue.running >= self.running_max {
            return None;
        }
        let (request, future) = queue.waiting.pop_front()?;
        queue.running += 1;
        // ORDERING: Relaxed. Only the future loads `runs`, in the destructor of `Running`, and the
        // runtime gets the future after the store.
        request.runs.store(true, Ordering::Relaxed);
        Some(future)
    }

    /// Waits for the lock of a flight. Only a future that counts as running may call this method.
    /// It does not count as running while it waits.
    pub(super) async fn wait_for<T>(&self, lock: impl Future<Output = T> + Send) -> T {
        let mut lock = pin!(lock);
        if let Poll::Ready(locked) = poll_fn(|cx| Poll::Ready(lock.as_mut().poll(cx))).await {
            return locked;
        }
        // A future that is dropped here drops `waiting` first, and then the request's `Running`. So
        // it counts as running again when `Running` is dropped.
        let waiting = Waiting::new(self);
        let locked = lock.await;
        drop(waiting);
        locked
    }

    pub(super) fn interrupt(&self, unique: u64) {
        if self.interrupts.interrupt(unique) {
            self.drop_cancelled();
        }
    }

    fn drop_cancelled(&self) {
        let mut queue = self.queue.lock();
        let (dropped, kept) = std::mem::take(&mut queue.waiting)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(request, _)| request.is_cancelled());
        queue.waiting = kept;
        drop(queue);
        // Drop the futures after the queue is unlocked, since the end of a future locks the queue.
        drop(dropped);
    }

    /// Cancels the requests at the end of the connection, except those that close files. Changes
    /// that have begun go on.
    pub(super) fn end(&self) {
        let is_kept =
            |request: &Arc<dyn Interruptible>| request.cancelled_by() == CancelledBy::Nothing;
        let all = self.interrupts.all();
        all.iter().filter(|request| !is_kept(request)).for_each(|request| request.cancel());
        self.drop_cancelled();
        self.start_waiting();
    }
}

async fn run(
    running: Running,
    registration: AbortRegistration,
    serve: impl Future<Output = ()> + Send,
) {
    // If the future has panicked or was aborted, the destructor of `running` sends the answer.
    let _ = Abortable::new(AssertUnwindSafe(serve).catch_unwind(), registration).await;
    drop(running);
}

impl Request {
    pub(super) fn take_reply(&self) -> Option<Reply> {
        self.state.lock().reply.take()
    }

    /// Notes that a change begins. A future calls this method right before its first change. From
    /// then on, a kill of the client does not drop the future.
    ///
    /// # Errors
    /// `EINTR` if the request was cancelled before.
    pub(super) fn begin(&self, node: &AsyncNode, pages: Pages) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.is_cancelled && !state.has_begun {
            return Err(Errno::INTR);
        }
        state.has_begun = true;
        state.changes_content |= pages == Pages::Drop && node.kind() != FileKind::Directory;
        state.touched.nodes.push((node.number(), pages));
        Ok(())
    }

    pub(super) fn touch_name(&self, dir: &AsyncNode, name: Name<'_>) {
        self.state.lock().touched.names.push((dir.number(), name.as_bytes().into()));
    }

    pub(super) fn set_stale(&self) {
        self.state.lock().is_stale = true;
    }

    fn is_cancelled(&self) -> bool {
        let state = self.state.lock();
        state.is_cancelled && !state.has_begun
    }

    /// Returns true if the request waits for a lock of a file. Such a request does not count as
    /// running. Otherwise it could keep the request that drops the lock from running.
    fn waits_for_lock(&self) -> bool {
        self.cancelled_by == CancelledBy::AnySignal
    }
}

impl Waiting<'_> {
    fn new(under_way: &UnderWay) -> Waiting<'_> {
        under_way.queue.lock().running -= 1;
        under_way.start_waiting();
        Waiting { under_way }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.under_way.queue.lock().running += 1;
    }
}

impl Interruptible for Request {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn cancelled_by(&self) -> CancelledBy {
        self.cancelled_by
    }

    fn is_answered(&self) -> bool {
        self.state.lock().reply.is_none()
    }

    /// Cancels the request. This drops its future, unless the future has begun a change. The client
    /// gets `EINTR` immediately, with two exceptions:
    /// - A request that changes the content of a file goes on as if it was not cancelled.
    /// - A request that waits for a lock answers when its future has ended. The future may get the
    ///   lock at the same time.
    fn cancel(&self) {
        let mut state = self.state.lock();
        if state.changes_content {
            return;
        }
        state.is_cancelled = true;
        let reply = if self.waits_for_lock() { None } else { state.reply.take() };
        let has_begun = state.has_begun;
        // `EINTR` does not tell the kernel what the change has done, so the kernel must drop what
        // it has cached.
        state.is_stale |= has_begun;
        drop(state);
        if let Some(reply) = reply {
            reply(Err(Errno::INTR));
        }
        if !has_begun {
            self.abort.abort();
        }
    }

    /// Cancels a request whose client may be killed or alive. Exception: a change that has begun
    /// answers with its result, because a living client would take `EINTR` to mean that nothing has
    /// changed.
    fn cancel_unproven(&self) -> bool {
        let mut state = self.state.lock();
        if state.has_begun && !self.is_open {
            return false;
        }
        // From now on `begin` fails. So no change begins before `cancel` has taken the reply.
        state.is_cancelled = true;
        drop(state);
        self.cancel();
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut state = self.request.state.lock();
        let reply = state.reply.take();
        let is_stale = state.is_stale || reply.is_some();
        let error = if state.is_cancelled { Errno::INTR } else { Errno::IO };
        let touched = std::mem::take(&mut state.touched);
        drop(state);
        if let Some(reply) = reply {
            reply(Err(error));
        }
        if is_stale {
            self.under_way.stale.drop_later(touched);
        }
        self.under_way.interrupts.remove(self.request.unique);
        // ORDERING: Relaxed. `next_waiting` stored `runs` before the runtime got the future, so the
        // load sees the value.
        if self.request.runs.load(Ordering::Relaxed) {
            self.under_way.queue.lock().running -= 1;
            self.under_way.start_waiting();
        }
    }
}

impl fmt::Debug for UnderWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnderWay").field("len", &self.len()).finish_non_exhaustive()
    }
}
