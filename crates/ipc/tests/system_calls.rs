//! An operation that completes a blocked call of another process must make only one system call.
//!
//! The test runs this program again as a child, and traces the child. The child's operations
//! complete calls in which threads of the parent sleep.
//!
//! Source: futex(2); ptrace(2).

use corewalk_base::primitives::thread;
use corewalk_ipc::{
    Capacity, Cred, GetFlags, MsgFlags, Namespace, NamespaceOptions, SemBuf, SemFlags, Task,
};
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::trace;
use rustix::thread::gettid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const CHILD: &str = "COREWALK_IPC_CHILD";
const OTHER: &str = "COREWALK_IPC_OTHER";
const KEY: i32 = 0x5ca1;
const ROUNDS: u64 = 50;
const UP: SemBuf = SemBuf::new(0, 1, SemFlags::empty());
const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());

/// The path of a file. The drop removes the file.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed early has not created the file.
        let _gone = fs::remove_file(&self.0);
    }
}

/// Registers a task that does not poll before it sleeps. Polling would make system calls that the
/// test counts.
fn task(path: &Path) -> Task {
    let capacity = Capacity {
        sets: 4,
        sems: 16,
        undos: 16,
        waits: 64,
        queues: 4,
        msgs: 256,
        tasks: 8,
        ..Capacity::LEAST
    };
    let options = NamespaceOptions { capacity, spin_ns_max: 0, ..NamespaceOptions::default() };
    let namespace = Namespace::open(path, options).unwrap();
    namespace.register(Cred::root(), std::process::id()).unwrap()
}

/// Waits until a thread sleeps in futex(2).
fn await_sleep(thread: &str) {
    loop {
        let call = fs::read_to_string(format!("/proc/{thread}/syscall")).unwrap_or_default();
        if call.split(' ').next() == Some(&libc::SYS_futex.to_string()) {
            return;
        }
        thread::yield_now();
    }
}

/// Returns how often the child made each system call. In the child itself, returns none.
fn calls_for_a_sleeper(test: &str, act: fn(&Task), other: fn(&Task)) -> Option<trace::Counts> {
    let _watchdog = Watchdog::start("traced calls", Duration::from_secs(300));
    if let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) {
        let (task, sleeper) = (task(&path), std::env::var(OTHER).unwrap());
        trace::trace_me().unwrap();
        for _ in 0..ROUNDS {
            await_sleep(&sleeper);
            trace::mark();
            act(&task);
            trace::mark();
        }
        return None;
    }
    let name = format!("corewalk-ipc-test-calls-{}-{test}", std::process::id());
    let file = Scratch(Path::new("/dev/shm").join(name));
    let task = task(&file.0);
    task.semget(KEY, 1, GetFlags::CREATE, 0o600).unwrap();
    task.msgget(KEY, GetFlags::CREATE, 0o600).unwrap();
    thread::scope(|scope| {
        let (tell, told) = std::sync::mpsc::channel();
        let task = &task;
        scope.spawn(move || {
            tell.send(gettid().as_raw_nonzero().get()).unwrap();
            (0..ROUNDS).for_each(|_| other(task));
        });
        let sleeper = format!("{}/task/{}", std::process::id(), told.recv().unwrap());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--test-threads=1"]).env(CHILD, &file.0);
        let child = command.env(OTHER, sleeper).stdout(Stdio::null()).spawn().unwrap();
        let counts = trace::count().unwrap();
        drop(child);
        Some(counts)
    })
}

/// The child must have made one futex(2) call per round, and almost no other system call.
fn check(counts: Option<trace::Counts>) {
    let Some(counts) = counts else { return };
    let all: u64 = counts.values().sum();
    let futex = counts.get(&(libc::SYS_futex as u64)).copied().unwrap_or(0);
    assert!(futex >= ROUNDS, "{counts:?}: some rounds met no sleeping thread");
    // In some rounds, the sleeping thread still holds a lock of the namespace when the child
    // completes its call. Then the child makes a few more system calls.
    assert!(all <= ROUNDS + ROUNDS / 2, "{all} calls in {ROUNDS} rounds: {counts:?}");
}

/// Sending a message to a blocked receiver must take one system call. Trap X6 in `traps.md`.
#[test]
fn message_for_a_blocked_receiver_makes_one_system_call() {
    check(calls_for_a_sleeper(
        "message_for_a_blocked_receiver_makes_one_system_call",
        |task| {
            task.msgsnd(
                task.msgget(KEY, GetFlags::empty(), 0).unwrap(),
                1,
                b"text",
                MsgFlags::empty(),
            )
            .unwrap()
        },
        |task| {
            assert!(
                task.msgrcv(
                    task.msgget(KEY, GetFlags::empty(), 0).unwrap(),
                    &mut [0; 8],
                    0,
                    MsgFlags::empty()
                )
                .is_ok()
            )
        },
    ));
}

#[test]
fn semop_for_a_blocked_waiter_makes_one_system_call() {
    check(calls_for_a_sleeper(
        "semop_for_a_blocked_waiter_makes_one_system_call",
        |task| task.semop(task.semget(KEY, 1, GetFlags::empty(), 0).unwrap(), &[UP]).unwrap(),
        |task| task.semop(task.semget(KEY, 1, GetFlags::empty(), 0).unwrap(), &[DOWN]).unwrap(),
    ));
}
