//! Operations on different semaphores of a set must not write a common cache line (guarantee G.4 of
//! the crate). The test records the loads and stores of two such calls.
//!
//! A thread makes a call twice to warm up. Then it makes the call once more, while the test records
//! the cache lines that it reads and writes. The two calls are made by one task, or by two tasks.
//! They conflict if one call writes a cache line that the other call reads or writes.
//!
//! The controls are calls that must conflict: two calls on the same semaphore, and two calls that
//! take the lock of the set.
//!
//! # Limits
//!
//! The test finds only conflicts on the code paths that it runs, and in the memory layout of this
//! run. It does not watch static variables, but calls of this crate write none.
//!
//! Source: Clements et al., "The scalable commutativity rule", 2013.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]

use corewalk_base::primitives::thread;
use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, SemId,
    Task,
};
use corewalk_testkit::lines::{Lines, Watched};
use corewalk_testkit::seal::Seal;

#[global_allocator]
static SEAL: Seal = Seal::new();

/// Two calls.
struct Case {
    name: &'static str,
    calls: [fn(&Task, [SemId; 2]); 2],
    /// The calls must conflict.
    is_control: bool,
}

fn op(task: &Task, id: SemId, num: u16, op: i16, flags: SemFlags) {
    task.semop(id, &[SemBuf::new(num, op, flags)]).unwrap();
}

fn two(task: &Task, id: SemId, nums: [u16; 2]) {
    for op in [1, -1] {
        task.semop(id, &nums.map(|num| SemBuf::new(num, op, SemFlags::empty()))).unwrap();
    }
}

fn pair(task: &Task, id: SemId, num: u16, flags: SemFlags) {
    op(task, id, num, 1, flags);
    op(task, id, num, -1, flags);
}

const CASES: [Case; 9] = [
    Case {
        name: "one operation, neighbours",
        calls: [
            |task, ids| pair(task, ids[0], 0, SemFlags::empty()),
            |task, ids| pair(task, ids[0], 1, SemFlags::empty()),
        ],
        is_control: false,
    },
    Case {
        name: "with undo",
        calls: [
            |task, ids| pair(task, ids[0], 2, SemFlags::UNDO),
            |task, ids| pair(task, ids[0], 3, SemFlags::UNDO),
        ],
        is_control: false,
    },
    Case {
        name: "a wait for zero that is over at once",
        calls: [
            |task, ids| op(task, ids[0], 4, 0, SemFlags::empty()),
            |task, ids| op(task, ids[0], 5, 0, SemFlags::empty()),
        ],
        is_control: false,
    },
    Case {
        name: "two operations at once",
        calls: [|task, ids| two(task, ids[0], [6, 7]), |task, ids| two(task, ids[0], [8, 9])],
        is_control: false,
    },
    Case {
        name: "an operation and GETVAL of its neighbour",
        calls: [
            |task, ids| pair(task, ids[0], 10, SemFlags::empty()),
            |task, ids| assert_eq!(task.sem_getval(ids[0], 11), Ok(0)),
        ],
        is_control: false,
    },
    Case {
        name: "two sets",
        calls: [
            |task, ids| pair(task, ids[0], 12, SemFlags::UNDO),
            |task, ids| pair(task, ids[1], 12, SemFlags::UNDO),
        ],
        is_control: false,
    },
    Case {
        name: "GETVAL of the same semaphore",
        calls: [
            |task, ids| assert_eq!(task.sem_getval(ids[0], 13), Ok(0)),
            |task, ids| assert_eq!(task.sem_getval(ids[0], 13), Ok(0)),
        ],
        is_control: false,
    },
    Case {
        name: "control: the same semaphore",
        calls: [
            |task, ids| pair(task, ids[0], 14, SemFlags::empty()),
            |task, ids| pair(task, ids[0], 14, SemFlags::empty()),
        ],
        is_control: true,
    },
    Case {
        name: "control: SETVAL, which takes the set's lock",
        calls: [
            |task, ids| task.sem_setval(ids[0], 15, 0).unwrap(),
            |task, ids| task.sem_setval(ids[0], 16, 0).unwrap(),
        ],
        is_control: true,
    },
];

/// The tasks and sets of the test. The value is leaked, so that its memory stays valid during the
/// recording.
struct System {
    tasks: [Task; 2],
    ids: [SemId; 2],
}

fn build() -> &'static System {
    let capacity = Capacity { sems: 1024, undos: 1024, ..Capacity::default() };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let tasks = [1, 2].map(|pid| namespace.register(Cred::user(1000, 1000), pid).unwrap());
    let ids = [(); 2].map(|()| tasks[0].semget(IPC_PRIVATE, 20, GetFlags::empty(), 0o600).unwrap());
    Box::leak(Box::new(System { tasks, ids }))
}

fn lines(watched: &Watched, call: fn(&Task, [SemId; 2]), task: &Task, ids: [SemId; 2]) -> Lines {
    let record = || {
        call(task, ids);
        call(task, ids);
        watched.record(|| call(task, ids))
    };
    thread::scope(|scope| scope.spawn(record).join().unwrap())
}

fn count(lines: &Lines) -> usize {
    lines.read.len() + lines.written.len()
}

/// Guarantee G.4 of the crate.
#[test]
fn operations_on_different_semaphores_share_no_written_line() {
    let phase = SEAL.begin();
    let system = build();
    let watched = phase.watch();
    for case in &CASES {
        for (tasks, name) in [([0, 0], "one task"), ([0, 1], "two tasks")] {
            let [one, other] = [0, 1]
                .map(|at| lines(&watched, case.calls[at], &system.tasks[tasks[at]], system.ids));
            let shared = one.conflicts(&other);
            let name = format!("{}, {name}", case.name);
            println!(
                "{name}: {} and {} lines, conflicts {}",
                count(&one),
                count(&other),
                shared.len()
            );
            assert!(!one.read.is_empty() && !other.read.is_empty(), "{name}: nothing was recorded");
            assert_eq!(!shared.is_empty(), case.is_control, "{name}: lines {shared:x?}");
        }
    }
}
