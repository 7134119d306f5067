//! Interrupts: which requests a signal cancels.
//!
//! When a signal comes to the thread that waits for an answer, the kernel tells the server. It does
//! so once per request, and does not name the signal. The request decides which signals cancel it:
//! - A request that waits for a lock: any signal, as fcntl(2) and flock(2) demand.
//! - A request that closes a file: none.
//! - Any other request: only a signal that kills the thread, as with Linux's NFS client. A signal
//!   that the program handles must not make a system call on a file fail.
//!
//! `/proc` shows whether `SIGKILL` is pending. A signal that kills a process makes `SIGKILL`
//! pending for each of its threads.
//!
//! `/proc` may hide the client, for example in another PID namespace. Then the kill is unproven,
//! and [`Interruptible::cancel_unproven`] decides. It cancels the request, unless a living client
//! would take a wrong answer from that.
//!
//! The kernel reports only the first signal to a client. So a thread checks whether a later signal
//! kills the client, until the interrupted request has ended.
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
/// An interrupt is early if its request is not in the index yet.
const EARLY_MAX: usize = 64;

pub(crate) trait Interruptible: Send + Sync {
    fn pid(&self) -> u32;

    fn cancelled_by(&self) -> CancelledBy;

    fn is_answered(&self) -> bool {
        false
    }

    fn cancel(&self);

    /// Called instead of `cancel` if the client may be killed or alive. Returns false if the
    /// request goes on.
    fn cancel_unproven(&self) -> bool {
        self.cancel();
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CancelledBy {
    /// The kernel sends a request that closes a file only once, so it must run even if its client
    /// is killed.
    Nothing,
    Kill,
    AnySignal,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    No,
    Proven,
    /// `/proc` does not show the client.
    Unknown,
}

#[derive(Default)]
pub(crate) struct Interrupts {
    shards: [Mutex<Shard>; SHARDS as usize],
    interrupted: Arc<Interrupted>,
}

/// All fields are protected by the mutex of the shard.
#[derive(Default)]
struct Shard {
    requests: HashMap<u64, Arc<dyn Interruptible>, RandomState>,
    /// Interrupted requests that were not in the index: each has ended, or was not entered yet.
    early: VecDeque<u64>,
}

impl Interrupts {
    fn shard(&self, unique: u64) -> &Mutex<Shard> {
        // The kernel counts requests in steps of 2.
        &self.shards[(unique / 2 % SHARDS) as usize]
    }

    /// Returns true if an interrupt has arrived before the request. Then the caller must call
    /// [`Interrupts::signalled`] as soon as the request can be cancelled.
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

    /// Returns true if that has cancelled the request.
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

    /// A signal that does not cancel the request may be followed by one that does. So the request
    /// is watched until it ends.
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
    /// Protected by its own mutex, which is held alone.
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

/// The thread of an unanswered request exists. So if its status is missing, `/proc` hides it.
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
