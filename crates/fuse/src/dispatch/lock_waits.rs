//! Requests that wait for a lock of a file.
//!
//! - A back end never waits for a lock: it returns `EAGAIN` ([`FileSystem::set_lock`]). So a
//!   request that waits needs no thread of its own. One thread repeats the calls of all waiting
//!   requests, with pauses that grow from 2 ms to 100 ms.
//! - When an unlock of a file passes through this mount, the requests for this file are tried next,
//!   the oldest first.
//! - The request that is due for the longest time is tried first. So each request is tried again
//!   and again, even if the calls of the back end take long.
//!
//! Any signal ends a wait for a lock with `EINTR`. The kernel then repeats the system call, if the
//! program has asked for that (`SA_RESTART`). There is no detection of deadlocks (`EDEADLK`).
//!
//! # Locks
//! A thread that holds the mutex of the queue takes no other lock, calls no back end and sends no
//! answer.
//!
//! [`FileSystem::set_lock`]: corewalk::FileSystem::set_lock

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use corewalk_base::{Condvar, Mutex, MutexGuard};

use super::Requests;
use crate::interrupts::{CancelledBy, Interruptible, Interrupts};
use crate::service::Reply;
use crate::wire::{Body, OwnedMessage};

const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// The requests that wait for locks, and the thread that retries them. The destructor answers the
/// requests with `EINTR`.
pub(super) struct LockWaits {
    shared: Arc<Shared>,
    /// The retrying thread, which the first waiting request starts. Protected by its own mutex,
    /// under which no other lock is taken.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

struct Shared {
    /// Protected by its own mutex.
    queue: Mutex<Queue>,
    /// Wakes the retrying thread when the queue has changed. Used with the mutex of `queue`.
    changed: Condvar,
    interrupts: Arc<Interrupts>,
}

/// Protected by `Shared::queue`.
#[derive(Default)]
struct Queue {
    waits: Vec<Wait>,
    asked: Option<(u64, bool)>,
    is_closed: bool,
}

struct Wait {
    message: OwnedMessage,
    reply: Reply,
    signal: Arc<Signal>,
    due: Instant,
    pause: Duration,
}

struct Signal {
    pid: u32,
    has_come: AtomicBool,
    shared: Arc<Shared>,
}

impl LockWaits {
    pub(super) fn new(interrupts: Arc<Interrupts>) -> LockWaits {
        let (queue, changed) = (Mutex::default(), Condvar::default());
        LockWaits {
            shared: Arc::new(Shared { queue, changed, interrupts }),
            thread: Mutex::default(),
        }
    }

    pub(super) fn wait(&self, message: OwnedMessage, reply: Reply, requests: &Arc<Requests>) {
        let header = message.get().header;
        let signal = Arc::new(Signal {
            pid: header.caller.pid,
            has_come: AtomicBool::new(false),
            shared: Arc::clone(&self.shared),
        });
        let interruptible: Arc<dyn Interruptible> = Arc::clone(&signal) as _;
        let interrupts = &self.shared.interrupts;
        let is_signalled = interrupts.enter(header.unique, Arc::clone(&interruptible));
        let pause = PAUSES[0];
        let wait = Wait { message, reply, signal, due: Instant::now() + pause, pause };
        self.shared.queue.lock().waits.push(wait);
        if is_signalled {
            interrupts.signalled(&interruptible);
        }
        self.shared.changed.notify_one();
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let (shared, requests) = (Arc::clone(&self.shared), Arc::clone(requests));
            let builder = thread::Builder::new().name("corewalk-locks".into());
            match builder.spawn(move || shared.serve(&requests)) {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    log::error!("cannot start the thread for requests that wait: {error}");
                    drop(thread);
                    self.shared.fail(Errno::NOLCK);
                }
            }
        }
    }

    pub(super) fn unlocked(&self, node: u64) {
        let mut queue = self.shared.queue.lock();
        if let Some((asked, is_unlocked)) = &mut queue.asked
            && *asked == node
        {
            *is_unlocked = true;
        }
        let now = Instant::now();
        let mut is_any = false;
        for wait in queue.waits.iter_mut().filter(|wait| wait.message.get().header.node == node) {
            (wait.due, wait.pause, is_any) = (now, PAUSES[0], true);
        }
        drop(queue);
        if is_any {
            self.shared.changed.notify_one();
        }
    }
}

impl Shared {
    fn serve(&self, requests: &Requests) {
        let mut queue = self.queue.lock();
        while !queue.is_closed {
            let now = Instant::now();
            if let Some(at) = queue.next_due(now) {
                self.retry(&mut queue, at, requests);
                continue;
            }
            match queue.waits.iter().map(|wait| wait.due).min() {
                Some(due) => {
                    self.changed.wait_for(&mut queue, due - now);
                }
                None => self.changed.wait(&mut queue),
            }
        }
        drop(queue);
        self.fail(Errno::INTR);
    }

    /// Repeats the request at position `at`. Answers the request, unless the lock is still refused.
    fn retry(&self, queue: &mut MutexGuard<'_, Queue>, at: usize, requests: &Requests) {
        let mut wait = queue.waits.remove(at);
        queue.asked = Some((wait.message.get().header.node, false));
        let result = MutexGuard::unlocked(queue, || match wait.signal.has_come() {
            true => Err(Errno::INTR),
            false => requests.run(&wait.message.get(), &mut Body::new(&mut [])),
        });
        let is_unlocked = queue.asked.take().is_some_and(|(_, is_unlocked)| is_unlocked);
        if result != Err(Errno::AGAIN) || queue.is_closed {
            return MutexGuard::unlocked(queue, || self.answer(wait, result));
        }
        if !is_unlocked {
            wait.due = Instant::now() + wait.pause;
            wait.pause = (wait.pause * 2).min(PAUSES[1]);
        }
        queue.waits.insert(at, wait);
    }

    fn answer(&self, wait: Wait, result: Result<(), Errno>) {
        self.interrupts.remove(wait.message.get().header.unique);
        let result = if result == Err(Errno::AGAIN) { Err(Errno::INTR) } else { result };
        (wait.reply)(result.map(|()| &[][..]));
    }

    fn fail(&self, error: Errno) {
        let waits = std::mem::take(&mut self.queue.lock().waits);
        waits.into_iter().for_each(|wait| self.answer(wait, Err(error)));
    }
}

impl Queue {
    /// Returns the position of the request to retry next. A request that a signal has ended comes
    /// first, and then the one that is due for the longest time. So each request is tried, however
    /// long the calls of the back end take.
    fn next_due(&self, now: Instant) -> Option<usize> {
        let signalled = self.waits.iter().position(|wait| wait.signal.has_come());
        let due = || {
            let waits = self.waits.iter().enumerate();
            waits.filter(|(_, wait)| wait.due <= now).min_by_key(|(_, wait)| wait.due)
        };
        signalled.or_else(|| due().map(|(at, _)| at))
    }
}

impl Signal {
    fn has_come(&self) -> bool {
        // ORDERING: Relaxed. `cancel` sets the flag and then locks the queue. `next_due` loads the
        // flag under the same lock. `retry` loads it without the lock, and then calls the back end
        // and takes the lock. So at the latest the next load sees the flag.
        self.has_come.load(Ordering::Relaxed)
    }
}

impl Interruptible for Signal {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn cancelled_by(&self) -> CancelledBy {
        CancelledBy::AnySignal
    }

    fn cancel(&self) {
        // ORDERING: Relaxed. After the store, `cancel` locks and unlocks the queue. The retrying
        // thread loads the flag in `has_come` under the same lock, so it sees the flag.
        self.has_come.store(true, Ordering::Relaxed);
        // Lock the queue once. After that, the retrying thread either sleeps, so that the
        // notification wakes it, or will see the flag.
        drop(self.shared.queue.lock());
        self.shared.changed.notify_one();
    }
}

impl Drop for LockWaits {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.get_mut().take() {
            // A request that panics is answered with `EIO`, so the thread never panics.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for LockWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = self.shared.queue.lock().waits.len();
        f.debug_struct("LockWaits").field("waits", &waits).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Features, Message, Opcode};

    #[test]
    fn request_that_is_due_for_the_longest_time_is_next() {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            changed: Condvar::default(),
            interrupts: Arc::default(),
        });
        let now = Instant::now();
        let wait = |ms: u64| {
            let signal =
                Signal { pid: 0, has_come: AtomicBool::new(false), shared: Arc::clone(&shared) };
            let bytes = crate::wire::tests::message(Opcode::SETLKW, 0, &[0; 48]);
            let message = Message::parse(&bytes, Features(0)).expect("a whole message").to_owned();
            let due = now + Duration::from_millis(ms);
            let (reply, signal) = (Box::new(|_: Result<&[u8], Errno>| ()), Arc::new(signal));
            Wait { message, reply, signal, due, pause: PAUSES[0] }
        };
        let mut queue = Queue { waits: [30, 10, 20, 90].map(wait).into(), ..Queue::default() };
        let later = now + Duration::from_millis(50);
        assert_eq!(queue.next_due(now), None);
        assert_eq!(queue.next_due(later), Some(1));
        queue.waits[1].due = later + PAUSES[1];
        assert_eq!(queue.next_due(later), Some(2));
        queue.waits[3].signal.cancel();
        assert_eq!(queue.next_due(now), Some(3));
    }
}
