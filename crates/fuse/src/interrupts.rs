//! Interrupts: messages of the kernel about signals, which may cancel requests.
//!
//! When a thread that waits for an answer gets a signal, the kernel sends the server an interrupt.
//! It does so once per request, and does not name the signal. The kind of the request decides which
//! signals cancel it:
//! - A request that waits for a lock: any signal, as fcntl(2) and flock(2) demand.
//! - A request that closes a file: none.
//! - Any other request: only a signal that kills the thread, as with Linux's NFS client. A signal
//!   that the program handles must not make a system call on a file fail.
//!
//! `/proc` shows whether `SIGKILL` is pending. A signal that kills a process makes `SIGKILL`
//! pending for each of its threads.
//!
//! `/proc` may hide the client, for example in another PID namespace. Then the server cannot know
//! whether the client was killed, and calls [`Interruptible::cancel_unproven`]. That method cancels
//! the request, unless `EINTR` would be a wrong answer for a living client.
//!
//! The kernel reports only the first signal during a request. So until the interrupted request has
//! ended, a thread checks whether a later signal has killed the client.
//!
//! # Early interrupts
//! An interrupt may arrive on one thread before another thread has entered its request into the
//! index. The index remembers such an interrupt, and reports it when the request is entered.
//!
//! # Locks
//! A thread that holds the mutex of a shard, or that of the watched requests, takes no other lock.
//!
//! Source: Linux `fs/fuse/dev.c` (`request_wait_answer`), `kernel/signal.c` (`complete_signal`).

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use foldhash::fast::RandomState;

const TICK: Duration = Duration::from_millis(50);
const SIGKILL_BIT: u64 = 1 << 8;
const SHARDS: u64 = 16;
/// Maximum number of early interrupts that a shard remembers. An interrupt is early if its request
/// is not in the index yet.
const EARLY_MAX: usize = 64;

pub(crate) trait Interruptible: Send + Sync {
    fn pid(&self) -> u32;

    fn cancelled_by(&self) -> CancelledBy;

    fn is_answered(&self) -> bool {
        false
    }

    fn cancel(&self);

    /// Cancels the request, if that is right for a client that may be killed or alive. Returns
    /// false if the request goes on instead.
    fn cancel_unproven(&self) -> bool {
        self.cancel();
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelledBy {
    /// No signal cancels a request that closes a file. The kernel sends it only once, so it must
    /// run even if its client is killed.
    Nothing,
    Kill,
    AnySignal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    No,
    Proven,
    /// It is unknown whether the client was killed, because `/proc` does not show the client.
    Unknown,
}

#[derive(Default)]
pub(crate) struct Interrupts {
    shards: [Mutex<Shard>; SHARDS as usize],
    interrupted: Arc<Interrupted>,
}

/// A part of the index of requests. All fields are protected by the mutex of the shard.
#[derive(Default)]
struct Shard {
    requests: HashMap<u64, Arc<dyn Interruptible>, RandomState>,
    /// The numbers of interrupted requests that were not in the index. Such a request has ended, or
    /// was not entered yet.
    early: VecDeque<u64>,
}

impl Interrupts {
    fn shard(&self, unique: u64) -> &Mutex<Shard> {
        // The kernel numbers requests in steps of 2, so divide by 2 to use all shards.
        &self.shards[(unique / 2 % SHARDS) as usize]
    }

    /// Enters a request into the index. Returns true if an interrupt of the request has arrived
    /// before. Then the caller must call [`Interrupts::signalled`] as soon as the request can be
    /// cancelled.
    #[must_use]
    pub(crate) fn enter(&self, unique: u64, request: Arc<dyn Interruptible>) -> bool {
        let mut shard = self.shard(unique).lock();
        shard.requests.insert(unique, request);
        shard.early.contains(&unique)
    }

    pub(crate) fn remove(&self, unique: u64) {
        self.shard(unique).lock().requests.remove(&unique);
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn Interruptible>> {
        let requests =
            |shard: &Mutex<Shard>| -> Vec<_> { shard.lock().requests.values().cloned().collect() };
        self.shards.iter().flat_map(requests).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().requests.len()).sum()
    }

    /// Handles an interrupt of the request with the number `unique`. Returns true if the interrupt
    /// has cancelled the request.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut shard = self.shard(unique).lock();
        match shard.requests.get(&unique).cloned() {
            Some(request) => {
                drop(shard);
                self.signalled(&request)
            }
            None => {
                // The kernel reports a signal only once, so remember the number until the request
                // is entered.
                if shard.early.len() == EARLY_MAX {
                    shard.early.pop_front();
                }
                shard.early.push_back(unique);
                false
            }
        }
    }

    /// Handles a signal to the client of `request`, and returns true if it cancels the request. A
    /// later signal may cancel a request that goes on. So such a request is watched until it ends.
    pub(crate) fn signalled(&self, request: &Arc<dyn Interruptible>) -> bool {
        let is_cancelled = match request.cancelled_by() {
            CancelledBy::Nothing => return false,
            CancelledBy::AnySignal => {
                request.cancel();
                true
            }
            CancelledBy::Kill => is_cancelled_by_kill(&**request),
        };
        if !is_cancelled {
            self.interrupted.watch(request);
        }
        is_cancelled
    }
}

impl fmt::Debug for Interrupts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interrupts").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Interrupted {
    /// The interrupted requests that are watched for later signals. Protected by its own mutex,
    /// under which no other lock is taken.
    watched: Mutex<Watched>,
}

/// Protected by `Interrupted::watched`.
#[derive(Default)]
struct Watched {
    requests: Vec<Weak<dyn Interruptible>>,
    has_thread: bool,
}

impl Interrupted {
    fn watch(self: &Arc<Self>, request: &Arc<dyn Interruptible>) {
        let mut watched = self.watched.lock();
        watched.requests.push(Arc::downgrade(request));
        if std::mem::replace(&mut watched.has_thread, true) {
            return;
        }
        drop(watched);
        let this = Arc::clone(self);
        let builder = thread::Builder::new().name("corewalk-signals".into());
        if let Err(error) = builder.spawn(move || this.check()) {
            log::error!("cannot start the thread that checks for killed clients: {error}");
            self.watched.lock().has_thread = false;
        }
    }

    fn check(&self) {
        loop {
            thread::sleep(TICK);
            let mut requests = std::mem::take(&mut self.watched.lock().requests);
            requests.retain(|request| match request.upgrade() {
                None => false,
                Some(request) if request.is_answered() => false,
                Some(request) => !is_cancelled_by_kill(&*request),
            });
            let mut watched = self.watched.lock();
            watched.requests.append(&mut requests);
            if watched.requests.is_empty() {
                watched.has_thread = false;
                return;
            }
        }
    }
}

fn is_cancelled_by_kill(request: &dyn Interruptible) -> bool {
    match killed(request.pid()) {
        Killed::No => false,
        Killed::Proven => {
            request.cancel();
            true
        }
        Killed::Unknown => request.cancel_unproven(),
    }
}

/// Tells whether the thread `pid`, which waits for an answer, was killed. The thread exists, so
/// `/proc` hides it if its status cannot be read.
fn killed(pid: u32) -> Killed {
    let status = match pid {
        0 => return Killed::Unknown,
        pid => std::fs::read_to_string(format!("/proc/{pid}/status")),
    };
    match status {
        Ok(status) if has_pending_kill(&status) => Killed::Proven,
        Ok(_) => Killed::No,
        Err(_) => Killed::Unknown,
    }
}

fn has_pending_kill(status: &str) -> bool {
    let pending = |line: &str| {
        let set = line.strip_prefix("SigPnd:").or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    };
    status.lines().filter_map(pending).any(|set| set & SIGKILL_BIT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pending_kill_counts() {
        let status = |own: &str, shared: &str| {
            format!("Name:\tcat\nSigQ:\t1/100\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\tffff\n")
        };
        let (none, kill, others) = ("0000000000000000", "0000000000000100", "fffffffffffffeff");
        assert!(!has_pending_kill(&status(none, none)));
        assert!(!has_pending_kill(&status(others, others)));
        assert!(has_pending_kill(&status(kill, none)));
        assert!(has_pending_kill(&status(none, kill)));
        assert!(!has_pending_kill("SigPnd:\tmalformed\n"));
    }

    #[test]
    fn kill_of_a_thread_that_cannot_be_seen_is_unproven() {
        assert_eq!(killed(std::process::id()), Killed::No);
        // All pids are below 2^22.
        assert_eq!(killed(u32::MAX), Killed::Unknown);
        assert_eq!(killed(0), Killed::Unknown);
    }
}
