//! Waiting calls must sleep without periodic wake-ups, and must still notice the death of a
//! process.
//!
//! Source: semop(2) `SEM_UNDO`; proc(5) `/proc/pid/task/tid/status`.

use corewalk_base::primitives::thread;
use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions, SemBuf, SemFlags,
    Task,
};
use corewalk_testkit::race::Watchdog;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use rustix::thread::gettid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const CHILD: &str = "COREWALK_IPC_CHILD";
const KEY: i32 = 0x1d1e;

fn options() -> NamespaceOptions {
    let capacity = Capacity {
        sets: 16,
        sems: 64,
        undos: 64,
        waits: 2048,
        queues: 2,
        msgs: 64,
        tasks: 16,
        ..Capacity::LEAST
    };
    NamespaceOptions { capacity, ..NamespaceOptions::default() }
}

/// Sleeps for `time` in a semtimedop of another namespace.
fn pass(time: Duration) {
    let namespace = Namespace::new(options()).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    assert_eq!(
        task.semtimedop(id, &[SemBuf::new(0, -1, SemFlags::empty())], Some(time)),
        Err(Errno::AGAIN)
    );
}

fn sleeps(threads: &[i32]) -> u64 {
    let of = |thread: &i32| {
        let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse::<u64>().unwrap()
    };
    threads.iter().map(of).sum()
}

/// Trap X8 (`docs/developing/traps.md`): a waiting call must not wake up periodically.
#[test]
fn idle_waiters_of_a_shared_namespace_sleep_until_they_are_woken() {
    const WAITERS: usize = 200;
    let _watchdog = Watchdog::start("idle waiters", Duration::from_secs(300));
    let file = memfd_create("idle", MemfdFlags::CLOEXEC).unwrap();
    let namespace = Namespace::open_fd(&file, options()).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let set = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    let queue = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let threads = Mutex::new(Vec::new());
    let slept = thread::scope(|scope| {
        for waiter in 0..WAITERS {
            let (task, threads) = (&task, &threads);
            scope.spawn(move || {
                threads.lock().unwrap().push(gettid().as_raw_nonzero().get());
                if waiter % 2 == 0 {
                    task.semop(set, &[SemBuf::new(0, -1, SemFlags::empty())]).map(drop)
                } else {
                    task.msgrcv(queue, &mut [0; 8], 0, MsgFlags::empty()).map(drop)
                }
            });
        }
        while task.waiting() != WAITERS {
            thread::yield_now();
        }
        // Each waiting call wakes up once, after 100 ms. Then one call, the watcher, checks for
        // dead processes, and the others wake up rarely (`src/watch.rs`).
        pass(Duration::from_secs(1));
        let threads = threads.lock().unwrap().clone();
        let before = sleeps(&threads);
        pass(Duration::from_millis(1500));
        let slept = sleeps(&threads) - before;
        let woken = task.sem_rmid(set).and(task.msg_rmid(queue));
        woken.map(|()| slept).unwrap()
    });
    assert!(slept < WAITERS as u64, "{WAITERS} idle threads woke {slept} times in 1.5 s");
}

/// The path of a file. The drop removes the file.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed early has not created the file.
        let _gone = fs::remove_file(&self.0);
    }
}

fn task(path: &Path) -> Task {
    let namespace = Namespace::open(path, options()).unwrap();
    namespace.register(Cred::root(), std::process::id()).unwrap()
}

/// A process that holds a semaphore dies, and its own call is the watcher (the waiting call that
/// looks for dead processes). Another waiting call must notice the death.
///
/// The call of the child waits for more than 100 ms, so it becomes the watcher. The test kills the
/// child while another call waits for its semaphore.
#[test]
fn death_of_a_holder_that_was_the_watcher_is_noticed_by_the_next_call() {
    const NAME: &str = "death_of_a_holder_that_was_the_watcher_is_noticed_by_the_next_call";
    if let Some(path) = std::env::var_os(CHILD).map(PathBuf::from) {
        let task = task(&path);
        let id = task.semget(KEY, 2, GetFlags::empty(), 0).unwrap();
        task.semop(id, &[SemBuf::new(0, -1, SemFlags::UNDO)]).unwrap();
        task.semop(id, &[SemBuf::new(1, -1, SemFlags::empty())]).unwrap();
        return;
    }
    let _watchdog = Watchdog::start("a holder that dies", Duration::from_secs(300));
    let name = format!("corewalk-ipc-test-idle-{}", std::process::id());
    let file = Scratch(Path::new("/dev/shm").join(name));
    let task = task(&file.0);
    let id = task.semget(KEY, 2, GetFlags::CREATE, 0o600).unwrap();
    task.sem_setval(id, 0, 1).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([NAME, "--exact"]).env(CHILD, &file.0).stdout(Stdio::null());
    let mut child: Child = command.spawn().unwrap();
    while task.sem_getncnt(id, 1).unwrap() == 0 {
        thread::yield_now();
    }
    pass(Duration::from_millis(300));
    let noticed = thread::scope(|scope| {
        let waits = scope.spawn(|| task.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]));
        while task.sem_getncnt(id, 0).unwrap() == 0 {
            thread::yield_now();
        }
        pass(Duration::from_millis(300));
        child.kill().unwrap();
        let killed = Instant::now();
        assert_eq!(waits.join().unwrap(), Ok(()));
        killed.elapsed()
    });
    child.wait().unwrap();
    println!("noticed after {noticed:?}");
    assert!(noticed < Duration::from_secs(10), "{noticed:?}");
}
