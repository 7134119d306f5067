//! If a signal handler forks in the middle of a blocking call and returns in the child, the child's
//! copy of the call must end. The parent's call must go on waiting, so the child must not remove
//! the parent's entry from the wait queue.
//!
//! These tests do not fork. They change the word that was given to `tell_copies_by`, by which the
//! library recognises a forked child. Then they interrupt the waiting call, which ends as it would
//! in a child, and change the word back.
//!
//! The tests of `corewalk-ipc-preload` fork real processes.
//!
//! Source: fork(2), signal(7).

use corewalk_base::primitives::atomic::{AtomicU32, Ordering};
use corewalk_base::primitives::thread;
use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions, SemBuf, SemFlags,
    Task,
};
use corewalk_testkit::race::Watchdog;
use rustix::io::Errno;
use std::time::Duration;

const OWN: u32 = 1;
const OTHER: u32 = 2;

/// Ends a waiting call as in a forked child: the call must return `EINTR`, and its entry must stay
/// in the wait queue.
fn end_in_a_child(task: &Task, home: &AtomicU32, call: impl FnOnce(&Task) -> Errno + Send) {
    thread::scope(|scope| {
        let waits = scope.spawn(|| call(task));
        while task.waiting() == 0 {
            thread::yield_now();
        }
        // ORDERING: Relaxed. `interrupt` makes a system call, which orders this store before the
        // wake-up.
        home.store(OTHER, Ordering::Relaxed);
        task.interrupt();
        assert_eq!(waits.join().unwrap(), Errno::INTR);
        // ORDERING: Relaxed. As above.
        home.store(OWN, Ordering::Relaxed);
    });
}

fn two(home: &'static AtomicU32) -> (Task, Task, Watchdog) {
    let watchdog = Watchdog::start("calls that end as in a child", Duration::from_secs(60));
    let capacity = Capacity { waits: 2, msgs: 16, tasks: 4, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), OWN).unwrap();
    (task.tell_copies_by(home), namespace.register(Cred::root(), 9).unwrap(), watchdog)
}

#[test]
fn semop_of_the_parent_waits_on() {
    static HOME: AtomicU32 = AtomicU32::new(OWN);
    let (task, other, _watchdog) = two(&HOME);
    let id = other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    end_in_a_child(&task, &HOME, |task| {
        task.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]).unwrap_err()
    });
    assert_eq!(other.sem_getncnt(id, 0), Ok(1));
}

#[test]
fn msgrcv_of_the_parent_waits_on() {
    static HOME: AtomicU32 = AtomicU32::new(OWN);
    let (task, other, _watchdog) = two(&HOME);
    let id = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    end_in_a_child(&task, &HOME, |task| {
        task.msgrcv(id, &mut [0; 4], 0, MsgFlags::empty()).unwrap_err()
    });
    // The namespace has memory for one waiting call. The parent's call must still occupy it, so a
    // second waiting call must fail.
    assert_eq!(other.msgrcv(id, &mut [0; 4], 0, MsgFlags::empty()), Err(Errno::NOMEM));
}

#[test]
fn msgsnd_of_the_parent_waits_on() {
    static HOME: AtomicU32 = AtomicU32::new(OWN);
    let (task, other, _watchdog) = two(&HOME);
    let id = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    other.msg_set(id, 0, 0, 0o600, 4).unwrap();
    other.msgsnd(id, 1, b"full", MsgFlags::empty()).unwrap();
    end_in_a_child(&task, &HOME, |task| {
        task.msgsnd(id, 1, b"more", MsgFlags::empty()).unwrap_err()
    });
    // The namespace has memory for one waiting call. The parent's call must still occupy it, so a
    // second waiting call must fail.
    assert_eq!(other.msgrcv(id, &mut [0; 4], 5, MsgFlags::empty()), Err(Errno::NOMEM));
}
