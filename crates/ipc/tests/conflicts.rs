//! Operations on different semaphores of a set share no line that one of them writes (guarantee G.4):
//! proved from a trace of all loads and stores, not argued.
//!
//! The test starts itself again under valgrind's tool lackey, which prints the address of every access.
//! There the cases run one after the other, on one thread: each of its two calls is made twice to warm
//! up, and then once in a window of the trace, which begins and ends with a store to a mark. Two calls
//! conflict if one stores to a line that the other stores to or loads from. The stack, which they have
//! in common here and would not have as threads, is left out.
//!
//! The controls are calls that must conflict: on the same semaphore, and two that take the set's lock,
//! which is free again before and after, so that no comparison of memory would show it.
//!
//! # What it cannot see
//!
//! Rare paths, and what another layout of memory would bring together. Without valgrind it is skipped,
//! and says so.
//!
//! Source: Clements et al., "The scalable commutativity rule", 2013; valgrind's manual, "Lackey".

use corewalk_ipc::{
    Capacity, Cred, IPC_PRIVATE, Namespace, NamespaceOptions, SEM_UNDO, SemBuf, Task,
};
use corewalk_sync::CachePadded;
use corewalk_sync::primitives::thread;
use corewalk_sync::primitives::unmodelled::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

const ROLE: &str = "COREWALK_IPC_TRACED";
const TEST: &str = "operations_on_different_semaphores_share_no_written_line";
const LINE: u64 = 64;
/// The part of the stack that calls may use, below a variable of their caller, and what is above that.
/// Both are well inside of a thread's stack, beside which the region may lie.
const STACK: (u64, u64) = (256 << 10, 4 << 10);

static MARK: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(0));

/// Two calls, and whether they have to conflict.
struct Case {
    name: &'static str,
    calls: [fn(&Task, [i32; 2]); 2],
    is_control: bool,
}

fn op(task: &Task, id: i32, num: u16, op: i16, flags: i16) {
    task.semop(id, &[SemBuf::new(num, op, flags)]).unwrap();
}

/// Adds to two semaphores at once, and takes it back.
fn two(task: &Task, id: i32, nums: [u16; 2]) {
    for op in [1, -1] {
        task.semop(id, &nums.map(|num| SemBuf::new(num, op, 0))).unwrap();
    }
}

/// Adds to a semaphore, and takes it back.
fn pair(task: &Task, id: i32, num: u16, flags: i16) {
    op(task, id, num, 1, flags);
    op(task, id, num, -1, flags);
}

const CASES: [Case; 9] = [
    Case {
        name: "one operation, neighbours",
        calls: [|task, ids| pair(task, ids[0], 0, 0), |task, ids| pair(task, ids[0], 1, 0)],
        is_control: false,
    },
    Case {
        name: "with undo",
        calls: [
            |task, ids| pair(task, ids[0], 2, SEM_UNDO),
            |task, ids| pair(task, ids[0], 3, SEM_UNDO),
        ],
        is_control: false,
    },
    Case {
        name: "a wait for zero that is over at once",
        calls: [|task, ids| op(task, ids[0], 4, 0, 0), |task, ids| op(task, ids[0], 5, 0, 0)],
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
            |task, ids| pair(task, ids[0], 10, 0),
            |task, ids| assert_eq!(task.sem_getval(ids[0], 11), Ok(0)),
        ],
        is_control: false,
    },
    Case {
        name: "two sets",
        calls: [
            |task, ids| pair(task, ids[0], 12, SEM_UNDO),
            |task, ids| pair(task, ids[1], 12, SEM_UNDO),
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
        calls: [|task, ids| pair(task, ids[0], 14, 0), |task, ids| pair(task, ids[0], 14, 0)],
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

#[test]
fn operations_on_different_semaphores_share_no_written_line() {
    if std::env::var_os(ROLE).is_some() {
        return work();
    }
    let Some(trace) = Trace::take() else {
        eprintln!("skipped: valgrind is not installed");
        return;
    };
    assert_eq!(trace.windows.len(), 2 * CASES.len(), "windows of the trace");
    for (case, windows) in CASES.iter().zip(trace.windows.chunks(2)) {
        let shared = conflicts(&windows[0], &windows[1]);
        assert!(!windows[0].loads.is_empty(), "{}: nothing was traced", case.name);
        assert_eq!(!shared.is_empty(), case.is_control, "{}: lines {shared:x?}", case.name);
    }
}

/// Makes the calls, with marks around them.
fn work() {
    let capacity = Capacity { sems: 1024, undos: 1024, ..Capacity::default() };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::user(1000, 1000), 1).unwrap();
    let ids = [(); 2].map(|()| task.semget(IPC_PRIVATE, 20, 0o600).unwrap());
    for case in &CASES {
        for call in case.calls {
            call(&task, ids);
            call(&task, ids);
            mark();
            call(&task, ids);
            mark();
        }
    }
    let local = 0_u8;
    println!(
        "\nmark {:x} stack {:x}",
        std::ptr::from_ref(&*MARK).addr(),
        std::ptr::from_ref(&local).addr()
    );
}

#[inline(never)]
fn mark() {
    // ORDERING: Relaxed. It is the trace that is looked at.
    MARK.store(1, Ordering::Relaxed);
}

/// Lines that one call touches.
#[derive(Default)]
struct Window {
    loads: BTreeSet<u64>,
    stores: BTreeSet<u64>,
}

struct Trace {
    windows: Vec<Window>,
}

fn conflicts(one: &Window, other: &Window) -> Vec<u64> {
    let of = |one: &Window, other: &Window| {
        let touched = other.loads.union(&other.stores).copied().collect();
        one.stores.intersection(&touched).copied().collect::<Vec<u64>>()
    };
    let mut lines = of(one, other);
    lines.extend(of(other, one));
    lines
}

impl Trace {
    /// Runs this test under valgrind; returns none if there is no valgrind.
    fn take() -> Option<Trace> {
        let mut child = Command::new("valgrind")
            .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2"])
            .arg(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut stdout = child.stdout.take().unwrap();
        let text = thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).unwrap();
            text
        });
        let lines = BufReader::new(child.stderr.take().unwrap()).split(b'\n');
        let accesses: Vec<(u8, u64)> = lines.filter_map(|line| access(&line.ok()?)).collect();
        let text = text.join().unwrap();
        assert!(child.wait().unwrap().success(), "{text}");
        let words: Vec<&str> =
            text.lines().find(|line| line.starts_with("mark ")).unwrap().split(' ').collect();
        let number = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let (mark, stack) = (number(words[1]), number(words[3]));
        Some(Trace { windows: windows(&accesses, mark, stack) })
    }
}

/// Reads a line such as ` S 04222c38,8`; returns none for instructions and messages.
fn access(line: &[u8]) -> Option<(u8, u64)> {
    let [b' ', kind @ (b'L' | b'S' | b'M'), b' ', rest @ ..] = line else { return None };
    let (address, _) = std::str::from_utf8(rest).ok()?.split_once(',')?;
    Some((*kind, u64::from_str_radix(address, 16).ok()?))
}

fn windows(accesses: &[(u8, u64)], mark: u64, stack: u64) -> Vec<Window> {
    let mut windows = vec![];
    let mut open: Option<Window> = None;
    for &(kind, address) in accesses {
        if address == mark {
            match open.take() {
                Some(window) => windows.push(window),
                None => open = Some(Window::default()),
            }
            continue;
        }
        let is_stack = (stack - STACK.0..stack + STACK.1).contains(&address);
        let Some(window) = open.as_mut().filter(|_| !is_stack) else { continue };
        // A modification is both, and an access over two lines is of words here: there is none.
        if kind != b'S' {
            window.loads.insert(address / LINE);
        }
        if kind != b'L' {
            window.stores.insert(address / LINE);
        }
    }
    windows
}
