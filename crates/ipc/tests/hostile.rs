//! While a hostile process overwrites words of a namespace, each call must return and must not
//! crash.
//!
//! A test changes words of a namespace in batches. After each batch, a task makes calls. Their
//! results may be wrong, but each call must return within [`CALL_MAX`]. The test interrupts calls
//! that wait.
//!
//! Another test changes a copy of a namespace's file, including its header and its length, and
//! opens it. Either the open must fail, or the calls in the namespace must return.
//!
//! `COREWALK_IPC_MUTATIONS` sets how many changes the tests make. The default is 50,000. Some tests
//! make only a part of them.

use corewalk_base::Region;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::thread;
use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, OpenError,
    SemBuf, SemFlags, SemId, ShmFlags, ShmId, Task,
};
use corewalk_testkit::fuzz::Fuzz;
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

const BATCH: u64 = 64;
const BATCHES: u64 = 16;

/// The time limit for a call. An overwritten word may look like a lock that a living task holds. A
/// call waits 10 s for such a lock, and may wait for two. The rest is a margin for a slow machine.
const CALL_MAX: Duration = Duration::from_secs(45);

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

/// The pid of all tasks. A random change may copy the pid into a word for a task number. So the pid
/// is larger than any task number, and then the word names no living task.
const PID: u32 = 3_000_000;

struct Victim {
    namespace: Namespace,
    file: File,
    task: Task,
    others: [Task; 2],
    region: Region,
    ids: Vec<i32>,
}

const SETS: Capacity =
    Capacity { sets: 8, sems: 64, undos: 128, waits: 64, tasks: 16, ..Capacity::LEAST };

const OTHERS: Capacity = Capacity {
    queues: 8,
    msgs: 256,
    waits: 32,
    segments: 8,
    attaches: 32,
    tasks: 16,
    ..Capacity::LEAST
};

impl Victim {
    /// Makes a namespace in which most lines belong to semaphore sets.
    fn with_sets() -> Self {
        let mut victim = Self::new(SETS);
        let task = &victim.task;
        let ids = (0..3)
            .map(|key| task.semget(key, 4, GetFlags::CREATE, 0o600).unwrap())
            .collect::<Vec<_>>();
        for id in &ids {
            task.sem_setall(*id, &[9; 4]).unwrap();
            for task in [task, &victim.others[0], &victim.others[1]] {
                task.semop(
                    *id,
                    &[SemBuf::new(1, 1, SemFlags::UNDO), SemBuf::new(0, -1, SemFlags::UNDO)],
                )
                .unwrap();
            }
        }
        victim.ids = ids.into_iter().map(SemId::raw).collect();
        victim
    }

    fn with_others() -> Self {
        let mut victim = Self::new(OTHERS);
        for key in 1..4 {
            let task = &victim.task;
            let queue = task.msgget(key, GetFlags::CREATE, 0o600).unwrap();
            for size in [1, 70, 200] {
                task.msgsnd(queue, 1 + size as i64 % 3, &vec![7; size], NOWAIT).unwrap();
            }
            let segment = task.shmget(key, 4096, GetFlags::CREATE, 0o600).unwrap();
            for task in [task, &victim.others[0], &victim.others[1]] {
                task.shmat(segment, 0, ShmFlags::empty())
                    .unwrap()
                    .attached_at(0x1000 * key as usize);
            }
            victim.ids.extend([queue.raw(), segment.raw()]);
        }
        victim
    }

    fn new(capacity: Capacity) -> Self {
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = File::from(memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap());
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let lines = u32::try_from(fstat(&file).unwrap().st_size / 64).unwrap();
        let region = Region::shared(&file, lines).unwrap();
        let register = || namespace.register(Cred::root(), PID).unwrap();
        drop(register());
        let (task, others) = (register(), [register(), register()]);
        Self { namespace, file, task, others, region, ids: Vec::new() }
    }

    /// An interrupt must end each wait, whatever values the shared memory contains.
    fn wait(&self, task: &Task, call: impl FnOnce() + Send) {
        thread::scope(|scope| {
            let waits = scope.spawn(call);
            while !waits.is_finished() {
                task.interrupt();
                thread::yield_now();
            }
        });
    }

    /// Changes a random word of the region. The header is left as it is, since only the opening of
    /// a namespace reads it.
    fn mutate(&self, rng: &mut Rng) {
        let line = rng.range(5..u64::from(self.region.lines())) as u32;
        let word = &self.region.line(line)[rng.index(8)];
        // ORDERING: Relaxed. A hostile process guarantees no order of its stores.
        let seen = word.load(Ordering::Relaxed);
        let next = match rng.below(8) {
            0 => rng.next_u64(),
            1 => rng.below(u64::from(self.region.lines())),
            2 => rng.below(64) << 32 | rng.below(u64::from(self.region.lines())),
            3 => u64::MAX,
            4 => 0,
            // A copy of another word.
            5 => {
                let from = rng.below(u64::from(self.region.lines())) as u32;
                // ORDERING: Relaxed. As above.
                self.region.line(from)[rng.index(8)].load(Ordering::Relaxed)
            }
            _ => seen ^ 1 << rng.below(64),
        };
        // ORDERING: Relaxed. As above.
        word.store(next, Ordering::Relaxed);
        if rng.chance(1, 50) {
            // ORDERING: Relaxed. As above.
            self.region.line(line).iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// Makes a random call, and ignores its result: in damaged memory, any result is allowed.
    fn call_others(&self, rng: &mut Rng) {
        let task = if rng.chance(1, 2) { &self.task } else { &self.others[rng.index(2)] };
        let id = *rng.pick(&self.ids);
        let (queue, segment) = (MsgId::from_raw(id), ShmId::from_raw(id));
        let (num, at) = (rng.below(8) as i32, 0x1000 * rng.below(8) as usize);
        let msgtyp = rng.below(7) as i64 - 3;
        match rng.below(19) {
            16 => self.wait(task, || _ = task.msgsnd(queue, 1, &[1; 200], MsgFlags::empty())),
            17 => {
                self.wait(task, || _ = task.msgrcv(queue, &mut [0; 64], msgtyp, MsgFlags::NOERROR))
            }
            18 if rng.chance(1, 4) => drop(self.namespace.recover()),
            18 => drop(task.fork(PID)),
            0..3 => drop(task.msgsnd(queue, 1 + rng.below(3) as i64, &[1; 100], NOWAIT)),
            3..6 => drop(task.msgrcv(queue, &mut [0; 64], msgtyp, NOWAIT | MsgFlags::NOERROR)),
            6 => drop(task.msgrcv(queue, &mut [0; 4096], i64::from(num), NOWAIT | MsgFlags::COPY)),
            7 => drop((task.msg_stat(queue), task.msg_totals(), task.msg_stat_any(num))),
            8 => drop(task.msg_set(queue, 1, 1, 0o666, 100 + rng.below(2000))),
            9 => {
                let queue = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600);
                _ = queue.map(|queue| task.msg_rmid(queue));
            }
            10 => _ = task.msgget(num, GetFlags::CREATE, 0o600),
            11..13 => drop(
                task.shmat(segment, 0, ShmFlags::empty()).map(|mapping| mapping.attached_at(at)),
            ),
            13 => drop((task.shmdt(at), task.shm_totals(), task.shm_stat_any(num))),
            14 => drop(task.shmget(num, 1, GetFlags::CREATE, 0o600).map(|id| task.shm_rmid(id))),
            _ => drop((
                task.shm_stat(segment),
                task.shm_set(segment, 1, 1, 0o666),
                task.shm_lock(segment),
            )),
        }
    }

    /// Makes a random call on semaphore sets, and ignores its result.
    fn call(&self, rng: &mut Rng) {
        let task = if rng.chance(1, 2) { &self.task } else { &self.others[rng.index(2)] };
        let id = SemId::from_raw(*rng.pick(&self.ids));
        let flags = *rng.pick(&[
            SemFlags::empty(),
            SemFlags::UNDO,
            SemFlags::NOWAIT,
            SemFlags::UNDO | SemFlags::NOWAIT,
        ]);
        let sop = |rng: &mut Rng| SemBuf::new(rng.below(4) as u16, rng.below(5) as i16 - 2, flags);
        let timeout = Some(Duration::from_micros(rng.below(100)));
        let num = rng.below(4) as i32;
        match rng.below(15) {
            13 => {
                let sops = [sop(rng), sop(rng)];
                self.wait(task, || _ = task.semop(id, &sops));
            }
            14 if rng.chance(1, 4) => drop(self.namespace.recover()),
            14 => drop(task.fork(PID)),
            0..3 => drop(task.semtimedop(id, &[sop(rng)], timeout)),
            3..6 => drop(task.semtimedop(id, &[sop(rng), sop(rng), sop(rng)], timeout)),
            6 => drop(task.sem_getall(id)),
            7 => drop(task.sem_setall(id, &[3; 4])),
            8 => drop((task.sem_getval(id, num), task.sem_getncnt(id, num), task.sem_stat(id))),
            9 => drop((task.sem_set(id, 1, 1, 0o666), task.sem_totals(), task.sem_stat_index(num))),
            10 => drop(task.semget(num, 2, GetFlags::CREATE, 0o600)),
            11 => drop(
                task.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600).map(|id| task.sem_rmid(id)),
            ),
            _ => drop(task.sem_setval(id, num, 2)),
        }
    }
}

#[test]
fn calls_on_sets_that_a_process_overwrites_return() {
    overwrite(Victim::with_sets, Victim::call, 1);
}

/// This test overwrites a quarter as many words as the test of semaphores: queues and segments have
/// fewer protocols between tasks.
#[test]
fn calls_on_queues_and_segments_that_a_process_overwrites_return() {
    overwrite(Victim::with_others, Victim::call_others, 4);
}

fn changes_wanted() -> u64 {
    let wanted = std::env::var("COREWALK_IPC_MUTATIONS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(50_000)
}

fn overwrite(make: fn() -> Victim, call: fn(&Victim, &mut Rng), part: u64) {
    let wanted = changes_wanted() / part;
    let seed = Seed::choose();
    let _report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let (mut mutations, mut slowest) = (0, Duration::ZERO);
    let mut slow = 0;
    while mutations < wanted {
        let victim = make();
        let mut is_slow = false;
        for _ in 0..BATCHES {
            (0..BATCH).for_each(|_| victim.mutate(&mut rng));
            mutations += BATCH;
            let _watchdog = Watchdog::start("calls on a hostile region", 10 * CALL_MAX);
            for _ in 0..8 {
                let start = Instant::now();
                call(&victim, &mut rng);
                slowest = slowest.max(start.elapsed());
                is_slow |= start.elapsed() > Duration::from_secs(1);
            }
            if is_slow {
                // A damaged word looks like a lock of a living task. Each further call would wait
                // for it, so make a new namespace.
                break;
            }
        }
        slow += u32::from(is_slow);
        if is_slow {
            // Dropping `victim` would end its task, and wait for the damaged lock once for each
            // undo record.
            std::mem::forget(victim);
        } else {
            let _watchdog = Watchdog::start("the end of a task in a hostile region", 4 * CALL_MAX);
            drop(victim);
        }
    }
    println!("{slow} regions had a lock that a living task seemed to hold");
    println!("{mutations} changes, slowest call {slowest:?}");
    assert!(slowest < CALL_MAX, "a call took {slowest:?}");
}

type Kind = (Capacity, fn(&Victim, &mut Rng));

/// The number of lines at the start of the file: the unused first line, and the header.
const HEADER_LINES: u64 = 5;

/// Changes the bytes of a file at random. Half of the changes are in the header. A change may also
/// truncate or extend the file, or zero a page.
fn change(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.range(1..5) {
        let words = bytes.len() as u64 / 8;
        if words == 0 {
            return;
        }
        let most = if rng.chance(1, 2) { words.min(HEADER_LINES * 8) } else { words };
        let at = rng.below(most) as usize * 8;
        let word = &mut bytes[at..at + 8];
        let seen = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        let next = match rng.below(6) {
            0 => 0,
            1 => u64::MAX,
            2 => rng.below(1 << 20),
            3 => rng.next_u64(),
            _ => seen ^ 1 << rng.below(64),
        };
        word.copy_from_slice(&next.to_ne_bytes());
        match rng.below(24) {
            0 => bytes.truncate(rng.below(words * 8) as usize),
            1 => bytes.resize(bytes.len() + rng.below(10_000) as usize, 0),
            2 => {
                let from = at & !4095;
                let to = (from + 4096).min(bytes.len());
                bytes[from..to].fill(0);
            }
            _ => {}
        }
    }
}

fn open_and_call(bytes: &[u8], kind: Kind, rng: &mut Rng) -> Opened {
    let file = File::from(memfd_create("changed", MemfdFlags::CLOEXEC).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    let options = NamespaceOptions { capacity: kind.0, ..NamespaceOptions::default() };
    let namespace = match Namespace::open_fd(&file, options) {
        Ok(namespace) => namespace,
        Err(OpenError::NotANamespace) => return Opened::NotANamespace,
        Err(OpenError::Damaged) => return Opened::Damaged,
        Err(_) => return Opened::Otherwise,
    };
    let lines = u32::try_from(fstat(&file).unwrap().st_size / 64).unwrap();
    let region = Region::shared(&file, lines).unwrap();
    let register = || namespace.register(Cred::root(), PID);
    if let (Ok(task), Ok(one), Ok(other)) = (register(), register(), register()) {
        let ids: Vec<i32> = (0..4).flat_map(|at| [at, at + 0x8000]).collect();
        let victim = Victim { namespace, file, task, others: [one, other], region, ids };
        (0..4).for_each(|_| (kind.1)(&victim, rng));
    }
    Opened::Namespace
}

/// The outcome of an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Opened {
    Namespace,
    NotANamespace,
    Damaged,
    /// The open fails for another reason, such as another format version, boot or pid namespace.
    Otherwise,
}

/// If a file was truncated, zeroed or changed, either its open must fail, or all calls in its
/// namespace must return.
#[test]
fn file_that_was_changed_is_refused_or_its_calls_return() {
    let seed = Seed::choose();
    let _report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let images = [Victim::with_sets(), Victim::with_others()].map(|victim| {
        let mut bytes = vec![0; victim.region.lines() as usize * 64];
        victim.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    });
    let kinds: [Kind; 2] = [(SETS, Victim::call), (OTHERS, Victim::call_others)];
    let (mut counts, mut slowest) = (BTreeMap::new(), Duration::ZERO);
    let mut watchdog = None;
    for round in 0..changes_wanted() / 32 {
        let which = round as usize % 2;
        let mut bytes = images[which].clone();
        change(&mut bytes, &mut rng);
        if round % 64 == 0 {
            watchdog.replace(Watchdog::start("calls on changed files", 20 * CALL_MAX));
        }
        let start = Instant::now();
        *counts.entry(open_and_call(&bytes, kinds[which], &mut rng)).or_insert(0_u64) += 1;
        slowest = slowest.max(start.elapsed());
    }
    println!("{counts:?}, slowest {slowest:?}");
    assert_eq!(counts.len(), 4, "an outcome was not reached: {counts:?}");
    let whole = open_and_call(&images[0], kinds[0], &mut rng);
    assert_eq!(whole, Opened::Namespace, "control: the unchanged file");
}

/// Changes the bytes of a file as `edits` says. An edit has 16 bytes: the index of a word, the kind
/// of change, and its argument.
fn edit(bytes: &mut Vec<u8>, edits: &[u8]) {
    for &[a, b, c, d, how, _, _, _, ref number @ ..] in edits.as_chunks::<16>().0.iter().take(64) {
        let (words, place) = (bytes.len() / 8, u32::from_le_bytes([a, b, c, d]) as usize);
        if words == 0 {
            return;
        }
        let number = u64::from_le_bytes(*number);
        // Half of the edits change the header.
        let most = if how & 1 == 0 { words.min(HEADER_LINES as usize * 8) } else { words };
        let word = &mut bytes[place % most * 8..][..8];
        let seen = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        match how / 2 % 4 {
            0 => word.copy_from_slice(&number.to_ne_bytes()),
            1 => word.copy_from_slice(&(seen ^ 1 << (number % 64)).to_ne_bytes()),
            2 => word.copy_from_slice(&seen.wrapping_add(number).to_ne_bytes()),
            _ => bytes.truncate(place % (words * 8)),
        }
    }
}

#[test]
fn fuzz_file_of_a_namespace_is_refused_or_its_calls_return() {
    let images = [Victim::with_sets(), Victim::with_others()].map(|victim| {
        let mut bytes = vec![0; victim.region.lines() as usize * 64];
        victim.file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    });
    let kinds: [Kind; 2] = [(SETS, Victim::call), (OTHERS, Victim::call_others)];
    let answers = Fuzz::of("ipc-file").runs(400).run(|input| {
        let (first, edits) = input.split_first().unwrap_or((&0, &[]));
        let which = usize::from(first % 2);
        let mut bytes = images[which].clone();
        edit(&mut bytes, edits);
        let _watchdog = Watchdog::start("calls on an edited file", 20 * CALL_MAX);
        open_and_call(&bytes, kinds[which], &mut Rng::new(Seed(u64::from(*first))))
    });
    for answer in [Opened::Namespace, Opened::NotANamespace, Opened::Damaged] {
        assert!(answers.contains_key(&answer), "{answer:?} of {answers:?}");
    }
}
