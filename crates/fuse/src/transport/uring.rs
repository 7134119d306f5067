//! Serving requests that arrive over io_uring.
//!
//! The kernel has a queue for each possible processor, and puts a request into the queue of the
//! processor on which the client runs. Each thread has a ring, which serves one queue or several.
//! The thread runs on the processors of its queues, so a request does not have to wake another
//! processor.
//!
//! # Threads and entries
//! An entry of a ring holds one request.
//! - With at most as many threads as processors, each queue has [`DEPTH`] entries, so that a
//!   request can arrive while another one is served.
//! - With more threads, each thread serves one queue with one entry, and some queues have several
//!   threads. Then a request never waits behind a slow one while another thread of its processor is
//!   idle.
//!
//! An offload thread cannot use the ring. It adds its answer to a list and wakes the ring's thread,
//! which sends the answer.
//!
//! # The end of a ring
//! When the connection ends, the kernel completes all commands of a ring. After that, the ring's
//! thread reads the FUSE device. The error of that read tells how the connection has ended.
//!
//! If the kernel refuses all entries of the queue of one processor, it sends no request to any
//! ring. Then all threads read requests from the FUSE device.
//!
//! Source: Linux `Documentation/filesystems/fuse/fuse-io-uring.rst`.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_fuse_ring::device::possible_cpus;
use corewalk_fuse_ring::{EntryId, FuseRing, RingRequest, RingWaker};
use rustix::thread::CpuSet;

use super::device;
use crate::mount::Device;
use crate::service::{Dispatch, Outcome};
use crate::wire::{Features, Message};

const DEPTH: usize = 8;
/// Size in bytes of the buffer for the answer to a request that has data or a name. The longest
/// such answer is a value of an extended attribute.
const SCRATCH_BYTES: usize = 64 << 10;
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Queues {
    ring: FuseRing,
    cpus: Vec<u16>,
}

#[derive(Debug)]
pub(super) struct Thread {
    queues: Queues,
    dispatcher: Arc<dyn Dispatch>,
    features: Features,
    finished: Arc<Finished>,
    /// Reads the FUSE device on this thread after the ring has ended, or if the ring is not used.
    successor: device::Thread,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registered {
    Done,
    /// The kernel has refused all entries of a queue. It then sends all requests to the FUSE
    /// device.
    Refused(Errno),
    /// A system call has failed, so a queue of the kernel may lack an entry. The kernel delivers no
    /// requests until each of its queues has one.
    Failed(Errno),
}

type Answer = Result<Box<[u8]>, Errno>;

#[derive(Debug)]
struct Finished {
    /// The answers of offload threads, which the ring's thread sends. Protected by its own mutex,
    /// under which no other lock is taken.
    answers: Mutex<Vec<(EntryId, Answer)>>,
    waker: RingWaker,
}

/// Makes one ring for each thread. Every queue of the kernel belongs to at least one ring.
///
/// # Errors
/// The errors of [`FuseRing::new`].
pub(super) fn rings(
    device: &Device,
    threads: usize,
    payload_bytes: usize,
) -> io::Result<Vec<Queues>> {
    let count = possible_cpus()?;
    let depth = if threads > usize::from(count) { 1 } else { DEPTH };
    (0..threads)
        .map(|thread| {
            let cpus = queues_of(thread, threads, count);
            let ring = FuseRing::new(device.as_fd(), &cpus, depth, payload_bytes)?;
            Ok(Queues { ring, cpus })
        })
        .collect()
}

/// Returns the queues that a thread serves. Each of the `cpus` processors has a queue.
fn queues_of(thread: usize, threads: usize, cpus: u16) -> Vec<u16> {
    let first = (thread % usize::from(cpus)) as u16;
    (first..cpus).step_by(threads.max(1)).collect()
}

impl Thread {
    pub(super) fn new(queues: Queues, successor: device::Thread) -> Thread {
        let finished = Finished { answers: Mutex::default(), waker: queues.ring.waker() };
        let dispatcher = Arc::clone(successor.dispatcher());
        let features = dispatcher.features();
        Thread { queues, dispatcher, features, finished: Arc::new(finished), successor }
    }

    /// Registers the ring with the kernel. The thread that calls this method must also call
    /// [`Thread::run`].
    pub(super) fn register(&mut self) -> Registered {
        match self.queues.ring.register() {
            Ok(true) => Registered::Done,
            Ok(false) => Registered::Refused(self.queues.ring.failure().unwrap_or(Errno::IO)),
            Err(error) => Registered::Failed(error),
        }
    }

    pub(super) fn into_successor(self) -> device::Thread {
        self.successor
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        let before = run_on(&self.queues.cpus);
        let mut scratch = vec![0; SCRATCH_BYTES];
        while self.queues.ring.live() > 0 {
            // Send each answer before the next request is served: a slow request must not hold back
            // the answer to an earlier one.
            match self.queues.ring.wait() {
                Ok(waited) if waited.is_woken => self.send_finished(),
                Ok(_) => {}
                // After an error such as `ENOMEM`, continue: this thread may be the only one that
                // serves its queues.
                Err(error) => {
                    log::error!("waiting for requests over io_uring: {error}");
                    thread::sleep(PAUSE);
                }
            }
            if let Some(entry) = self.queues.ring.next_request() {
                self.serve(entry, &mut scratch);
            }
        }
        if let Some(error) = self.queues.ring.failure().filter(|error| !is_end(*error)) {
            log::warn!("io_uring has failed: {error}");
        }
        drop(self.queues);
        if let Some(before) = before {
            set_affinity(&before);
        }
        self.successor.run()
    }

    fn serve(&mut self, entry: EntryId, scratch: &mut [u8]) {
        let RingRequest { header, op_in, payload, payload_len } = self.queues.ring.request(&entry);
        // The payload buffer holds the names and data of the request. If there are any, the
        // dispatcher reads them while it writes the body. So the body goes into `scratch` first.
        let (outcome, owned) = if payload_len == 0 {
            match Message::parse_parts(header, op_in, &[], self.features) {
                Ok(message) => {
                    let outcome = self.dispatcher.serve(&message, payload);
                    (outcome, (outcome == Outcome::Later).then(|| message.to_owned()))
                }
                Err(_) => (malformed(), None),
            }
        } else {
            match Message::parse_parts(header, op_in, &payload[..payload_len], self.features) {
                Ok(message) => {
                    let outcome = self.dispatcher.serve(&message, scratch);
                    let owned = (outcome == Outcome::Later).then(|| message.to_owned());
                    if let Outcome::Answer(Ok(len)) = outcome {
                        payload[..len].copy_from_slice(&scratch[..len]);
                    }
                    (outcome, owned)
                }
                Err(_) => (malformed(), None),
            }
        };
        match (outcome, owned) {
            (Outcome::Answer(result), _) => self.queues.ring.reply(entry, result),
            (_, Some(message)) => {
                let finished = Arc::clone(&self.finished);
                let reply = move |result: Result<&[u8], Errno>| {
                    finished.answers.lock().push((entry, result.map(Box::from)));
                    finished.waker.wake();
                };
                self.dispatcher.serve_later(message, Box::new(reply));
            }
            // The kernel sends a request without an answer only to the FUSE device. If one arrives
            // here all the same, an empty answer frees its entry for the next request.
            (_, None) => self.queues.ring.reply(entry, Ok(0)),
        }
    }

    /// Sends the answers of offload threads.
    fn send_finished(&mut self) {
        let answers = std::mem::take(&mut *self.finished.answers.lock());
        for (entry, result) in answers {
            let payload = self.queues.ring.request(&entry).payload;
            let result = result.and_then(|body| {
                payload.get_mut(..body.len()).ok_or(Errno::IO)?.copy_from_slice(&body);
                Ok(body.len())
            });
            self.queues.ring.reply(entry, result);
        }
    }
}

fn malformed() -> Outcome {
    log::error!("the kernel has sent a malformed request");
    Outcome::Answer(Err(Errno::IO))
}

fn is_end(error: Errno) -> bool {
    matches!(error, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV)
}

/// Makes the current thread run on the processors `cpus`. Returns the processors on which it could
/// run before. If it may run on none of `cpus`, changes nothing and returns `None`.
fn run_on(cpus: &[u16]) -> Option<CpuSet> {
    let allowed = rustix::thread::sched_getaffinity(None).ok()?;
    let mut set = CpuSet::new();
    let cpus = cpus.iter().map(|&cpu| usize::from(cpu)).filter(|&cpu| cpu < CpuSet::MAX_CPU);
    cpus.filter(|&cpu| allowed.is_set(cpu)).for_each(|cpu| set.set(cpu));
    if set.count() == 0 {
        return None;
    }
    set_affinity(&set);
    Some(allowed)
}

/// Makes the current thread run on the processors in `set`. Ignores an error, because the thread
/// can serve its requests on any processor.
fn set_affinity(set: &CpuSet) {
    let _ = rustix::thread::sched_setaffinity(None, set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_thread_and_every_thread_a_queue() {
        for cpus in 1..9_u16 {
            for threads in 1..20 {
                let shares: Vec<_> =
                    (0..threads).map(|thread| queues_of(thread, threads, cpus)).collect();
                assert!(shares.iter().all(|share| !share.is_empty()));
                let mut all: Vec<u16> = shares.concat();
                all.sort_unstable();
                if threads <= usize::from(cpus) {
                    assert!(all.into_iter().eq(0..cpus), "each queue has one thread");
                } else {
                    all.dedup();
                    assert!(all.into_iter().eq(0..cpus), "each queue has a thread");
                }
            }
        }
    }
}
