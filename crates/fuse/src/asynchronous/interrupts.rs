//! Interrupts: which signals cancel a request.
//!
//! The kernel tells a server once that a signal has come to the thread that waits for an answer. It
//! does not tell which signal. A signal that the program handles must not make a system call on a
//! file fail. So only a signal that kills the thread cancels the request, as with Linux's NFS
//! client. `/proc` shows whether `SIGKILL` is pending; a signal that kills a process makes
//! `SIGKILL` pending for each of its threads.
//!
//! If another signal comes first, the kernel does not report the one that kills. So a thread checks
//! the requests that were interrupted by another signal, until they have ended.
//!
//! Source: Linux `fs/fuse/dev.c` (`request_wait_answer`), `kernel/signal.c` (`complete_signal`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use corewalk_base::Mutex;
use corewalk_base::primitives::thread;

use super::under_way::Request;

/// The time between two checks of the interrupted requests.
const TICK: Duration = Duration::from_millis(50);
/// The bit of `SIGKILL` in a set of signals.
const SIGKILL_BIT: u64 = 1 << 8;

/// The requests that were interrupted by a signal that does not kill.
#[derive(Default)]
pub(super) struct Interrupted {
    /// Protected by its own mutex, which is held alone.
    watched: Mutex<Watched>,
}

/// All fields are protected by `Interrupted::watched`.
#[derive(Default)]
struct Watched {
    requests: Vec<Weak<Request>>,
    /// True if a thread checks the requests.
    has_thread: bool,
}

impl Interrupted {
    /// Cancels `request` as soon as the thread that waits for it is killed.
    pub(super) fn watch(self: &Arc<Self>, request: &Arc<Request>) {
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

    /// Checks the requests until none is left.
    fn check(&self) {
        loop {
            thread::sleep(TICK);
            let mut requests = std::mem::take(&mut self.watched.lock().requests);
            requests.retain(|request| match request.upgrade() {
                None => false,
                Some(request) if request.is_answered() => false,
                Some(request) if is_killed(request.pid()) => {
                    request.cancel();
                    false
                }
                Some(_) => true,
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

/// Returns true if a signal has killed the thread `pid`, or if the thread cannot be seen: it has
/// ended, or is in another PID namespace.
pub(super) fn is_killed(pid: u32) -> bool {
    let status = match pid {
        0 => return true,
        pid => std::fs::read_to_string(format!("/proc/{pid}/status")),
    };
    status.map_or(true, |status| has_pending_kill(&status))
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
    fn running_thread_is_not_killed_and_a_missing_one_is() {
        assert!(!is_killed(std::process::id()));
        // No process has this pid, because all pids are below 2^22.
        assert!(is_killed(u32::MAX));
        assert!(is_killed(0));
    }
}
