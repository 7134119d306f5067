//! The side of this crate: a thread for each task, which gets its operations through a channel.

mod msg;
mod shm;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_ipc::raw::{self, Arg, Seminfo, Timespec};
use corewalk_ipc::{Cred, Namespace, SemBuf, SemFlags, SemId, SemStat, Task};
use rustix::io::Errno;

use crate::op::{Answer, Op, answer};
use crate::pairing::Side;

/// The interval between checks whether a task waits, while it does not answer.
const LOOK: Duration = Duration::from_micros(30);

/// A deliberate error of this side, for the control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    None,
    /// `SEM_UNDO` is ignored.
    NoUndo,
    /// The operations of a call are carried out one by one.
    NotAtomic,
    /// `GETNCNT` counts no call.
    NoCounts,
    /// msgrcv(2) with a negative type receives any message.
    NoLowest,
    /// The mode of a segment that is marked for removal lacks `SHM_DEST`.
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
            // The check precedes the read of the answer. A call that completes in between has an
            // answer to read.
            let is_waiting = self.task().waiting() != 0;
            // A waiting call is only polled. Any other call answers soon.
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

fn carry_out(task: &Task, op: &Op, mutation: Mutation, state: &mut shm::State) -> Answer {
    let number = |value: i32| vec![i64::from(value)];
    let errno = |error: Errno| error.raw_os_error();
    match op {
        Op::Get { key, nsems, flags } => {
            answer(raw::semget(task, *key, *nsems, *flags).map_err(errno), number)
        }
        Op::Semop { id, sops, timeout } => {
            let mask = if mutation == Mutation::NoUndo { !SemFlags::UNDO.bits() } else { -1 };
            let kept = |flags: i16| SemFlags::from_bits_retain(flags & mask);
            let sops = sops.iter().map(|&(num, op, flags)| SemBuf::new(num, op, kept(flags)));
            let sops: Vec<SemBuf> = sops.collect();
            let timeout = timeout.map(|(sec, nsec)| Timespec { sec, nsec });
            let call = |sops: &[SemBuf]| raw::semtimedop(task, *id, sops, timeout);
            let done = match mutation {
                Mutation::NotAtomic => sops.chunks(1).try_for_each(call),
                _ => call(&sops),
            };
            answer(done.map(|()| 0).map_err(errno), number)
        }
        Op::Ctl { cmd: libc::GETNCNT, .. } if mutation == Mutation::NoCounts => vec![0, 0],
        Op::Ctl { id, num, cmd, value } => {
            answer(raw::semctl(task, *id, *num, *cmd, Arg::Val(*value)).map_err(errno), number)
        }
        Op::GetAll { id } => answer(task.sem_getall(SemId::from_raw(*id)).map_err(errno), |v| {
            v.into_iter().map(i64::from).collect()
        }),
        Op::SetAll { id, values } => {
            let mut values = values.clone();
            values.resize(1 << 15, 0);
            let arg = Arg::Values(&values);
            answer(raw::semctl(task, *id, 0, libc::SETALL, arg).map_err(errno), number)
        }
        Op::Stat { id, cmd } => {
            let mut stat = SemStat::default();
            let done = raw::semctl(task, *id, 0, *cmd, Arg::Buf(&mut stat)).map_err(errno);
            answer(done, |result| {
                let perm = stat.perm;
                let owner = [perm.uid, perm.gid, perm.cuid, perm.cgid].map(i64::from);
                let mut numbers = vec![i64::from(result), i64::from(perm.key)];
                numbers.extend(owner);
                let has_otime = i64::from(stat.otime_s != 0);
                numbers.extend([i64::from(perm.mode), i64::from(stat.nsems), has_otime]);
                numbers
            })
        }
        Op::Set { id, uid, gid, mode } => {
            let mut stat = SemStat::default();
            (stat.perm.uid, stat.perm.gid, stat.perm.mode) = (*uid, *gid, *mode as u16);
            let arg = Arg::Buf(&mut stat);
            answer(raw::semctl(task, *id, 0, libc::IPC_SET, arg).map_err(errno), number)
        }
        Op::Totals { cmd } => {
            let mut info = Seminfo::default();
            let done = raw::semctl(task, 0, 0, *cmd, Arg::Seminfo(&mut info)).map_err(errno);
            answer(done, |result| {
                let Seminfo { semmap, semmni, semmns, semmnu, semmsl, .. } = info;
                let Seminfo { semopm, semume, semusz, semvmx, semaem, .. } = info;
                let first = [result, semmap, semmni, semmns, semmnu, semmsl];
                let last = [semopm, semume, semusz, semvmx, semaem];
                first.into_iter().chain(last).map(i64::from).collect()
            })
        }
        Op::ActAs { uid, gid } => {
            task.set_cred(cred(*uid, *gid));
            vec![0, 0]
        }
        Op::Msg(op) => msg::on_ours(task, op, mutation),
        Op::Shm(op) => shm::on_ours(task, op, mutation, state),
    }
}

/// Returns the credentials of a user. Root gets the capabilities of this process, which may lack
/// some in a container.
fn cred(uid: u32, gid: u32) -> Cred {
    let caps = || {
        let status = std::fs::read_to_string("/proc/self/status").expect("proc");
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        u64::from_str_radix(line.expect("a line").trim(), 16).expect("a number")
    };
    Cred { caps: if uid == 0 { caps() } else { 0 }, ..Cred::user(uid, gid) }
}
