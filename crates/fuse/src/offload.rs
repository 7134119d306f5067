//! Offload threads. They serve fsync(2), and retry requests that have failed with `ENOSPC`.
//!
//! A mount should have as many threads that read requests as there are processors. The kernel wakes
//! these threads in turn. With one thread more, a request and the process that waits for it run on
//! different processors each time. Then the request takes up to three times as long.
//!
//! A reading thread that waits for a disk reads no requests. So it passes a request that waits for
//! a disk to an offload thread, which also sends the answer. Other requests run on the reading
//! thread, even if the back end waits ([`FileSystem::waits`](corewalk::FileSystem::waits)).
//!
//! If all threads of the pool are busy, the pool starts another one, up to a limit. At the limit,
//! requests wait in a queue. Threads stay until the pool is dropped.
//!
//! Source: Linux `fs/fuse/dev.c` (`fuse_dev_do_read`, `wait_event_interruptible_exclusive`).

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk_base::primitives::thread;
use corewalk_base::{Condvar, Mutex, MutexGuard};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

const THREADS_MAX: usize = 32;

pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// A pool of offload threads. Dropping it waits until all queued jobs have run.
pub(crate) struct Offload {
    shared: Arc<Shared>,
    /// The processors of the thread that made the pool, on which all offload threads run. Otherwise
    /// an offload thread would inherit the processors of the thread that starts it, which may be
    /// fewer.
    cpus: Option<CpuSet>,
    /// The started threads. Protected by its own mutex, which no thread holds together with the
    /// mutex of `Shared::queue`.
    threads: Mutex<Vec<thread::JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// The jobs that wait for a thread. Protected by its own mutex, which is unlocked while a job
    /// runs.
    queue: Mutex<Queue>,
    /// Wakes idle threads when the queue has changed. Used with the mutex of `queue`.
    changed: Condvar,
}

/// Protected by `Shared::queue`.
#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    started: usize,
    /// The number of idle threads. A thread that was woken counts as idle until it has locked the
    /// queue.
    idle: usize,
    is_closed: bool,
}

impl Default for Offload {
    fn default() -> Offload {
        let cpus = sched_getaffinity(None).ok();
        Offload { shared: Arc::default(), cpus, threads: Mutex::default() }
    }
}

impl Offload {
    /// Runs `job` on an offload thread. If the pool has no thread and cannot start one, `job` runs
    /// on the calling thread.
    pub(crate) fn run(&self, job: Job) {
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
        let (shared, cpus) = (self.shared.clone(), self.cpus);
        let builder = thread::Builder::new().name("corewalk-offload".into());
        let run = move || {
            if let Some(cpus) = cpus {
                // The jobs can run on any processor, so ignore an error.
                let _ = sched_setaffinity(None, &cpus);
            }
            shared.work();
        };
        match builder.spawn(run) {
            Ok(thread) => self.threads.lock().push(thread),
            Err(error) => {
                log::error!("cannot start a thread for a request that waits: {error}");
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

    fn work_off(&self, queue: &mut MutexGuard<'_, Queue>) {
        while let Some(job) = queue.jobs.pop_front() {
            MutexGuard::unlocked(queue, || {
                // Ignore a panic. Jobs of the dispatcher do not panic. If a job of the adapter
                // panics, the destructor of fuser's reply answers `EIO`.
                let _ = catch_unwind(AssertUnwindSafe(job));
            });
        }
    }
}

impl Drop for Offload {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.shared.queue.lock();
        f.debug_struct("Offload")
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

    /// The pool must run `THREADS_MAX` jobs at the same time. Each job waits until the test wakes
    /// it. The test wakes the first `THREADS_MAX` jobs in reverse order, so a pool with fewer
    /// threads would hang.
    #[test]
    fn jobs_wait_side_by_side_and_all_are_done() {
        let offload = Offload::default();
        let (done, all) = channel();
        let mut wakes = Vec::new();
        for number in 0..THREADS_MAX + 8 {
            let (wake, woken) = channel::<()>();
            wakes.push(wake);
            let done = done.clone();
            offload.run(Box::new(move || {
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
        let offload = Offload::default();
        let (done, all) = channel();
        for number in 0..100 {
            let done = done.clone();
            offload.run(Box::new(move || done.send(number).unwrap()));
            assert_eq!(all.recv_timeout(SOON), Ok(number));
            while offload.shared.queue.lock().idle == 0 {
                thread::yield_now();
            }
        }
        assert_eq!(offload.shared.queue.lock().started, 1);
    }

    #[test]
    fn thread_survives_a_job_that_panics() {
        let offload = Offload::default();
        let (done, all) = channel();
        for _ in 0..2 * THREADS_MAX {
            offload.run(Box::new(|| std::panic::resume_unwind(Box::new("a job"))));
        }
        offload.run(Box::new(move || done.send(()).unwrap()));
        assert_eq!(all.recv_timeout(SOON), Ok(()));
    }

    #[test]
    fn drop_waits_for_started_jobs() {
        let (done, all) = channel();
        let offload = Offload::default();
        offload.run(Box::new(move || {
            thread::sleep(Duration::from_millis(50));
            done.send(()).unwrap();
        }));
        drop(offload);
        assert_eq!(all.try_recv(), Ok(()));
    }
}
