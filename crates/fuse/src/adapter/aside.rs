//! Requests that wait, beside the threads that read requests.
//!
//! The kernel wakes the threads that read requests in turn. One more than there are processors has requests and
//! whoever waits for them meet on another processor each time, which takes up to three times as long; but a thread
//! that waits for a disk reads nothing. So there are few that read, and what is known to wait is done by others,
//! which give the answer.
//!
//! The threads start when they are needed and stay until the adapter ends. What comes while all of them are
//! occupied waits in order. Whoever asked waits for the answer, so nothing overtakes anything.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_dev_do_read`, `wait_event_interruptible_exclusive`).

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk_base::primitives::thread;
use corewalk_base::{Condvar, Mutex, MutexGuard};

/// Requests that wait at a time, at most.
const THREADS_MAX: usize = 32;

/// What is left to do of a request, with the answer.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The threads; dropping it waits until they have done what is there.
#[derive(Default)]
pub(super) struct Aside {
    shared: Arc<Shared>,
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    started: usize,
    /// How many of the threads wait for a job, or have been woken and have not got one yet.
    idle: usize,
    is_closed: bool,
}

impl Aside {
    /// Has `job` run by another thread, or by this one if there can be no other.
    pub(super) fn run(&self, job: Job) {
        let mut queue = self.shared.queue.lock();
        queue.jobs.push_back(job);
        if queue.idle >= queue.jobs.len() {
            drop(queue);
            self.shared.changed.notify_one();
        } else if queue.started < THREADS_MAX {
            queue.started += 1;
            drop(queue);
            self.start();
        }
    }

    fn start(&self) {
        let shared = self.shared.clone();
        let builder = thread::Builder::new().name("corewalk-aside".into());
        match builder.spawn(move || shared.work()) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => {
                log::error!("no thread for a request that waits: {error}");
                let mut queue = self.shared.queue.lock();
                queue.started -= 1;
                if queue.started == 0 {
                    self.shared.work_off(&mut queue);
                }
            }
        }
    }
}

impl Shared {
    /// Does what comes until there is to be no more.
    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            self.work_off(&mut queue);
            if queue.is_closed {
                return;
            }
            queue.idle += 1;
            self.changed.wait(&mut queue);
            queue.idle -= 1;
        }
    }

    /// Does what is there.
    fn work_off(&self, queue: &mut MutexGuard<'_, Queue>) {
        while let Some(job) = queue.jobs.pop_front() {
            MutexGuard::unlocked(queue, || {
                // A reply that is dropped answers EIO; the panic hook has said what and where.
                let _ = catch_unwind(AssertUnwindSafe(job));
            });
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // What panicked has been caught.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.queue.lock();
        f.debug_struct("Aside")
            .field("jobs", &queue.jobs.len())
            .field("started", &queue.started)
            .field("idle", &queue.idle)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// Each waits for one that comes later, as far as there are threads; then all are done.
    #[test]
    fn jobs_wait_side_by_side_and_all_are_done() {
        let aside = Aside::default();
        let (done, all) = channel();
        let mut wakes = Vec::new();
        for number in 0..THREADS_MAX + 8 {
            let (wake, woken) = channel::<()>();
            wakes.push(wake);
            let done = done.clone();
            aside.run(Box::new(move || {
                woken.recv().unwrap();
                done.send(number).unwrap();
            }));
        }
        wakes[..THREADS_MAX].iter().rev().for_each(|wake| wake.send(()).unwrap());
        wakes[THREADS_MAX..].iter().for_each(|wake| wake.send(()).unwrap());
        let mut met: Vec<usize> =
            (0..wakes.len()).map(|_| all.recv_timeout(SOON).unwrap()).collect();
        met.sort_unstable();
        assert!(met.into_iter().eq(0..wakes.len()));
    }

    #[test]
    fn idle_thread_takes_the_next_job() {
        let aside = Aside::default();
        let (done, all) = channel();
        for number in 0..100 {
            let done = done.clone();
            aside.run(Box::new(move || done.send(number).unwrap()));
            assert_eq!(all.recv_timeout(SOON), Ok(number));
            // It has answered, and is about to wait.
            while aside.shared.queue.lock().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(aside.shared.queue.lock().started, 1);
    }

    #[test]
    fn panic_leaves_the_thread_to_others() {
        let aside = Aside::default();
        let (done, all) = channel();
        for _ in 0..2 * THREADS_MAX {
            aside.run(Box::new(|| std::panic::resume_unwind(Box::new("a job"))));
        }
        aside.run(Box::new(move || done.send(()).unwrap()));
        assert_eq!(all.recv_timeout(SOON), Ok(()));
    }

    #[test]
    fn dropping_waits_for_what_was_begun() {
        let (done, all) = channel();
        let aside = Aside::default();
        aside.run(Box::new(move || {
            thread::sleep(Duration::from_millis(50));
            done.send(()).unwrap();
        }));
        drop(aside);
        assert_eq!(all.try_recv(), Ok(()));
    }
}
