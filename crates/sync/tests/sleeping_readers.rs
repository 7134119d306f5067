//! Trap T30: a preempted writer must not make readers spin.
//!
//! A writer stays in its section for `SECTION`, and each test measures the processor time that the
//! reader uses meanwhile.
#![cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]

use corewalk_base::primitives::{Arc, thread};
use corewalk_sync::{Lockref, SeqCount, SeqLock, SeqRwLock};
use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The time that the writer stays in its section.
const SECTION: Duration = Duration::from_millis(200);

const BURN_MAX: Duration = Duration::from_millis(3);

/// Returns the processor time that this thread has used.
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}

/// Returns the processor time that `read` took.
fn reader<S: Send + Sync + 'static>(shared: &Arc<S>, read: fn(&S)) -> thread::JoinHandle<Duration> {
    let shared = Arc::clone(shared);
    thread::spawn(move || {
        let before = thread_time();
        read(&shared);
        thread_time() - before
    })
}

#[test]
fn seqlock_reader_sleeps_while_the_writer_is_away() {
    let lock = Arc::new(SeqLock::new());
    let section = lock.write();
    let reader = reader(&lock, |lock| assert_eq!(lock.read_begin(), 2));
    thread::sleep(SECTION);
    drop(section);
    let burnt = reader.join().unwrap();
    assert!(burnt < BURN_MAX, "the reader burnt {burnt:?}");
}

#[test]
fn seqrwlock_reader_sleeps_while_the_writer_is_away() {
    let lock = Arc::new(SeqRwLock::new());
    let section = lock.write();
    let reader = reader(&lock, |lock| assert_eq!(lock.read_begin(), 2));
    thread::sleep(SECTION);
    drop(section);
    let burnt = reader.join().unwrap();
    assert!(burnt < BURN_MAX, "the reader burnt {burnt:?}");
}

#[test]
fn lockref_user_sleeps_while_the_locker_is_away() {
    let lockref = Arc::new(Lockref::new(1));
    let guard = lockref.lock();
    let user = reader(&lockref, Lockref::get);
    thread::sleep(SECTION);
    drop(guard);
    let burnt = user.join().unwrap();
    assert!(burnt < BURN_MAX, "the user burnt {burnt:?}");
}

/// Control: a `SeqCount` has no lock to sleep on, so the measured processor time must show that its
/// reader spins.
#[test]
fn control_seqcount_reader_burns_time_while_the_writer_is_away() {
    let seq = Arc::new(SeqCount::new());
    let section = seq.write();
    let reader = reader(&seq, |seq| assert_eq!(seq.read_begin(), 2));
    thread::sleep(SECTION);
    drop(section);
    let burnt = reader.join().unwrap();
    assert!(burnt > BURN_MAX, "the reader burnt only {burnt:?}");
}
