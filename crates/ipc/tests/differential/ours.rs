//! The corewalk side of a differential test: each task has a thread, which gets operations through
//! a channel.

mod msg;
mod shm;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_ipc::{Cred, GetFlags, Namespace, SEMVMX, SemBuf, SemFlags, SemId, SemStat, Task};
use rustix::io::Errno;

use crate::op::{Answer, Op, answer};
use crate::pairing::Side;

const LOOK: Duration = Duration::from_micros(30);

/// A deliberate error of this side, which the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// `SEM_UNDO` is ignored.
    NoUndo,
    /// An injected bug: a call of several operations is not atomic, since corewalk makes a separate
    /// semop(2) for each operation.
    NotAtomic,
    /// `GETNCNT` counts no call.
    NoCounts,
    /// An injected bug: msgrcv(2) with a negative type receives any message.
    NoLowest,
    /// An injected bug: the bit `SHM_DEST` is missing in the mode of a segment that is marked for
    /// removal.
    NoDest,
}

pub(crate) struct Worker {
    task: Option<Arc<Task>>,
    requests: Option<Sender<Op>>,
    answers: Receiver<Answer>,
    thread: Option<thread::JoinHandle<()>>,
    pid: u32,
}

impl Worker {
    pub(crate) fn start(namespace: &Namespace, pid: u32, mutation: Mutation) -> Self {
        let task = Arc::new(namespace.register(cred(0, 0), pid).expect("room for a task"));
        let (requests, served) = channel::<Op>();
        let (reply, answers) = channel();
        let thread = thread::spawn({
            let task = Arc::clone(&task);
            move || {
                let mut state = shm::State::default();
                for op in served {
                    let answer = carry_out(&task, &op, mutation, &mut state);
                    if reply.send(answer).is_err() {
                        break;
                    }
                }
            }
        });
        Self { task: Some(task), requests: Some(requests), answers, thread: Some(thread), pid }
    }

    fn task(&self) -> &Task {
        self.task.as_ref().expect("a running worker")
    }

    fn stop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            while !thread.is_finished() {
                self.task().interrupt();
                thread::yield_now();
            }
            let _ended = thread.join();
        }
        self.task = None;
    }
}

impl Side for Worker {
    fn send(&mut self, op: &Op) {
        let requests = self.requests.as_ref().expect("a running worker");
        requests.send(op.clone()).expect("the worker reads");
    }

    fn poll(&mut self, is_prompt: bool) -> Option<Answer> {
        loop {
            // Check first whether the task waits, and then whether its call has returned. A call
            // that is completed between the two checks counts as returned.
            let is_waiting = self.task().waiting() != 0;
            // If the task waits, do not wait for an answer. If the task still runs, wait for the
            // answer, which comes soon.
            let patience = if is_waiting && !is_prompt { Duration::ZERO } else { LOOK };
            match self.answers.recv_timeout(patience) {
                Ok(answer) => return Some(answer),
                Err(_) if is_waiting && !is_prompt => return None,
                Err(_) => {}
            }
        }
    }

    fn interrupt(&mut self) {
        assert_eq!(self.task().interrupt(), 1);
    }

    fn numbers(&self) -> Vec<u32> {
        vec![self.pid]
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn number(value: i32) -> Vec<i64> {
    vec![i64::from(value)]
}

fn errno(error: Errno) -> i32 {
    error.raw_os_error()
}

fn get_flags(word: i32) -> (GetFlags, u16) {
    (GetFlags::from_bits_retain(word & !0o777), (word & 0o777) as u16)
}

fn carry_out(task: &Task, op: &Op, mutation: Mutation, state: &mut shm::State) -> Answer {
    match op {
        Op::Get { key, nsems, flags } => {
            let (flags, mode) = get_flags(*flags);
            answer(task.semget(*key, *nsems, flags, mode).map_err(errno), |id| number(id.raw()))
        }
        Op::Semop { id, sops, timeout } => {
            let mask = if mutation == Mutation::NoUndo { !SemFlags::UNDO.bits() } else { -1 };
            let kept = |flags: i16| SemFlags::from_bits_retain(flags & mask);
            let sops = sops.iter().map(|&(num, op, flags)| SemBuf::new(num, op, kept(flags)));
            let sops: Vec<SemBuf> = sops.collect();
            let call = |sops: &[SemBuf]| match duration(*timeout) {
                Some(timeout) => task.semtimedop(SemId::from_raw(*id), sops, timeout),
                // A call with an invalid timeout fails with `EINVAL`. But if it has too many
                // operations, it fails with `E2BIG`, as in the preload library.
                None if sops.len() > task.limits().semopm as usize => Err(Errno::TOOBIG),
                None => Err(Errno::INVAL),
            };
            let done = match mutation {
                Mutation::NotAtomic => sops.chunks(1).try_for_each(call),
                _ => call(&sops),
            };
            answer(done.map(|()| 0).map_err(errno), number)
        }
        Op::Ctl { cmd: libc::GETNCNT, .. } if mutation == Mutation::NoCounts => vec![0, 0],
        Op::Ctl { id, num, cmd, value } => {
            let done = command(task, SemId::from_raw(*id), *cmd, (*num, *value));
            answer(done.map_err(errno), number)
        }
        Op::GetAll { id } => answer(task.sem_getall(SemId::from_raw(*id)).map_err(errno), |v| {
            v.into_iter().map(i64::from).collect()
        }),
        Op::SetAll { id, values } => {
            let set = |nsems: usize| {
                let mut values = values.clone();
                values.resize(nsems, 0);
                task.sem_setall(SemId::from_raw(*id), &values)
            };
            let done = task.sem_nsems(SemId::from_raw(*id)).and_then(set);
            answer(done.map(|()| 0).map_err(errno), number)
        }
        Op::Stat { id, cmd } => answer(stat(task, *id, *cmd).map_err(errno), |stat| {
            let perm = stat.perm;
            let owner = [perm.uid, perm.gid, perm.cuid, perm.cgid].map(i64::from);
            let result = if *cmd == libc::IPC_STAT { 0 } else { stat.id.raw() };
            let mut numbers = vec![i64::from(result), i64::from(perm.key)];
            numbers.extend(owner);
            let has_otime = i64::from(stat.otime_s != 0);
            numbers.extend([i64::from(perm.mode), i64::from(stat.nsems), has_otime]);
            numbers
        }),
        Op::Set { id, uid, gid, mode } => {
            let done = task.sem_set(SemId::from_raw(*id), *uid, *gid, *mode as u16);
            answer(done.map(|()| 0).map_err(errno), number)
        }
        Op::Totals { cmd } => answer(totals(task, *cmd).map_err(errno), |numbers| numbers),
        Op::ActAs { uid, gid } => {
            task.set_cred(cred(*uid, *gid));
            vec![0, 0]
        }
        Op::Msg(op) => msg::on_ours(task, op, mutation),
        Op::Shm(op) => shm::on_ours(task, op, mutation, state),
    }
}

fn duration(timeout: Option<(i64, i64)>) -> Option<Option<Duration>> {
    let Some((sec, nsec)) = timeout else { return Some(None) };
    let nsec = u32::try_from(nsec).ok().filter(|nsec| *nsec < 1_000_000_000)?;
    Some(Some(Duration::new(u64::try_from(sec).ok()?, nsec)))
}

fn command(task: &Task, id: SemId, cmd: i32, (num, value): (i32, i32)) -> Result<i32, Errno> {
    match cmd {
        // As in the preload library.
        _ if id.raw() < 0 => Err(Errno::INVAL),
        libc::IPC_RMID => task.sem_rmid(id).map(|()| 0),
        libc::GETVAL => task.sem_getval(id, num),
        libc::GETPID => task.sem_getpid(id, num).map(u32::cast_signed),
        libc::GETNCNT => task.sem_getncnt(id, num),
        libc::GETZCNT => task.sem_getzcnt(id, num),
        libc::SETVAL => task.sem_setval(id, num, value).map(|()| 0),
        _ => Err(Errno::INVAL),
    }
}

fn stat(task: &Task, id: i32, cmd: i32) -> Result<SemStat, Errno> {
    match cmd {
        libc::IPC_STAT => task.sem_stat(SemId::from_raw(id)),
        // A negative number is no index, as in the preload library.
        _ if id < 0 => Err(Errno::INVAL),
        libc::SEM_STAT => task.sem_stat_index(id),
        _ => task.sem_stat_any(id),
    }
}

/// Returns the highest index and the numbers of `struct seminfo`.
fn totals(task: &Task, cmd: i32) -> Result<Vec<i64>, Errno> {
    let (totals, limits) = (task.sem_totals()?, task.limits());
    let (sets, sems) =
        if cmd == libc::IPC_INFO { (20, 32_767) } else { (totals.sets, totals.sems) };
    let semmns = 1_024_000_000;
    let first = [totals.index_max, semmns, limits.semmni, limits.semmns, semmns, limits.semmsl];
    let last = [limits.semopm, 500, sets, SEMVMX.cast_unsigned()];
    let numbers = first.into_iter().chain(last).map(i64::from);
    Ok(numbers.chain([i64::try_from(sems).unwrap()]).collect())
}

/// Root gets the capabilities of this process, which may lack some in a container.
fn cred(uid: u32, gid: u32) -> Cred {
    let caps = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("proc");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        u64::from_str_radix(line.expect("a line").trim(), 16).expect("a number")
    };
    Cred { caps: if uid == 0 { caps() } else { 0 }, ..Cred::user(uid, gid) }
}
