//! The steps of a script, and the encoding of operations and answers for the socket of a worker
//! process.

use corewalk_testkit::rng::Rng;

use crate::msg::{self, MsgOp};
use crate::shm::{self, ShmOp};

/// The limit for the semaphores of a set in random scripts.
const NSEMS: u64 = 4;

/// An operation of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Get {
        key: i32,
        nsems: i32,
        flags: i32,
    },
    Semop {
        id: i32,
        sops: Vec<(u16, i16, i16)>,
        timeout: Option<(i64, i64)>,
    },
    /// A command of semctl(2) that takes a number or no argument.
    Ctl {
        id: i32,
        num: i32,
        cmd: i32,
        value: i32,
    },
    GetAll {
        id: i32,
    },
    SetAll {
        id: i32,
        values: Vec<u16>,
    },
    Stat {
        id: i32,
        cmd: i32,
    },
    Set {
        id: i32,
        uid: u32,
        gid: u32,
        mode: u32,
    },
    Totals {
        cmd: i32,
    },
    ActAs {
        uid: u32,
        gid: u32,
    },
    Msg(MsgOp),
    Shm(ShmOp),
}

/// The result of an operation: 0 and the numbers that the call returned, or -1 and an errno.
pub(crate) type Answer = Vec<i64>;

pub(crate) fn answer<T>(result: Result<T, i32>, numbers: impl FnOnce(T) -> Vec<i64>) -> Answer {
    match result {
        Ok(value) => [vec![0], numbers(value)].concat(),
        Err(errno) => vec![-1, i64::from(errno)],
    }
}

impl Op {
    /// Returns true if the call cannot wait for another task.
    pub(crate) fn is_prompt(&self) -> bool {
        match self {
            Self::Semop { timeout, .. } => timeout.is_some(),
            Self::Msg(op) => op.is_prompt(),
            _ => true,
        }
    }

    pub(crate) fn encode(&self) -> Vec<i64> {
        match self {
            Self::Get { key, nsems, flags } => {
                vec![0, i64::from(*key), i64::from(*nsems), i64::from(*flags)]
            }
            Self::Semop { id, sops, timeout } => {
                let (has, sec, nsec) = timeout.map_or((0, 0, 0), |(sec, nsec)| (1, sec, nsec));
                let sops = sops.iter().flat_map(|(num, op, flags)| {
                    [i64::from(*num), i64::from(*op), i64::from(*flags)]
                });
                [1, i64::from(*id), has, sec, nsec].into_iter().chain(sops).collect()
            }
            Self::Ctl { id, num, cmd, value } => {
                vec![2, i64::from(*id), i64::from(*num), i64::from(*cmd), i64::from(*value)]
            }
            Self::GetAll { id } => vec![3, i64::from(*id)],
            Self::SetAll { id, values } => [4, i64::from(*id)]
                .into_iter()
                .chain(values.iter().map(|v| i64::from(*v)))
                .collect(),
            Self::Stat { id, cmd } => vec![5, i64::from(*id), i64::from(*cmd)],
            Self::Set { id, uid, gid, mode } => {
                vec![6, i64::from(*id), i64::from(*uid), i64::from(*gid), i64::from(*mode)]
            }
            Self::Totals { cmd } => vec![7, i64::from(*cmd)],
            Self::ActAs { uid, gid } => vec![8, i64::from(*uid), i64::from(*gid)],
            Self::Msg(op) => [vec![9], op.encode()].concat(),
            Self::Shm(op) => [vec![10], op.encode()].concat(),
        }
    }

    pub(crate) fn decode(words: &[i64]) -> Self {
        let int = |at: usize| words[at] as i32;
        // An operation without an id is encoded as one word.
        let id = words.get(1).map_or(0, |id| *id as i32);
        match words[0] {
            0 => Self::Get { key: int(1), nsems: int(2), flags: int(3) },
            1 => {
                let timeout = (words[2] == 1).then(|| (words[3], words[4]));
                let sops = words[5..].chunks(3);
                let sops = sops.map(|sop| (sop[0] as u16, sop[1] as i16, sop[2] as i16));
                Self::Semop { id, sops: sops.collect(), timeout }
            }
            2 => Self::Ctl { id, num: int(2), cmd: int(3), value: int(4) },
            3 => Self::GetAll { id },
            4 => Self::SetAll { id, values: words[2..].iter().map(|v| *v as u16).collect() },
            5 => Self::Stat { id, cmd: int(2) },
            6 => {
                Self::Set { id, uid: words[2] as u32, gid: words[3] as u32, mode: words[4] as u32 }
            }
            7 => Self::Totals { cmd: int(1) },
            8 => Self::ActAs { uid: words[1] as u32, gid: words[2] as u32 },
            9 => Self::Msg(MsgOp::decode(&words[1..])),
            _ => Self::Shm(ShmOp::decode(&words[1..])),
        }
    }
}

/// A step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The task makes a call. It must not be waiting in an earlier call.
    Call(Op),
    /// A waiting task gets a signal.
    Interrupt,
    /// The task ends, and a new task gets its number in the script.
    Exit,
}

pub(crate) fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[(rng.next_u64() % from.len() as u64) as usize]
}

pub(crate) fn chance(rng: &mut Rng, one_in: u64) -> bool {
    rng.chance(1, one_in)
}

/// The kind of objects of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sem,
    Msg,
    Shm,
}

pub(crate) struct Scene<'a> {
    pub(crate) kinds: &'a [Kind],
    /// The ids of objects that the script has made, by kind.
    pub(crate) ids: &'a [Vec<i32>; 3],
    /// The call in which each task waits.
    pub(crate) waiting: &'a [Option<Op>],
}

/// Returns a random step, or none if the task should make no step now.
pub(crate) fn step(rng: &mut Rng, is_waiting: bool, scene: &Scene<'_>) -> Option<Step> {
    if is_waiting {
        return match rng.next_u64() % 60 {
            0..4 => Some(Step::Interrupt),
            4 => Some(Step::Exit),
            _ => None,
        };
    }
    if chance(rng, 150) {
        return Some(Step::Exit);
    }
    if chance(rng, 33) {
        let uid = pick(rng, &[0, 0, 1000, 1001]);
        return Some(Step::Call(Op::ActAs { uid, gid: pick(rng, &[0, 1000, 1001]) }));
    }
    let kind = scene.kinds[rng.below(scene.kinds.len() as u64) as usize];
    let ids = &scene.ids[kind as usize];
    let waits = |id, sends| {
        let calls = scene.waiting.iter().flatten();
        calls.filter(|op| matches!(op, Op::Msg(op) if op.waits_at() == Some((id, sends)))).count()
    };
    Some(Step::Call(match kind {
        Kind::Sem => call(rng, ids),
        Kind::Msg => Op::Msg(msg::call(rng, ids, waits)),
        Kind::Shm => Op::Shm(shm::call(rng, ids)),
    }))
}

fn call(rng: &mut Rng, ids: &[i32]) -> Op {
    let id = match rng.next_u64() % 60 {
        0 => pick(rng, &[-1, 0, 7, 32768, i32::MAX, i32::MIN]),
        _ if ids.is_empty() => 0,
        // The latest sets mostly still exist.
        1..4 => pick(rng, ids),
        _ => ids[ids.len() - 1 - (rng.next_u64() % 2) as usize % ids.len()],
    };
    let num =
        if chance(rng, 40) { pick(rng, &[-1, 5, 32000, 70000]) } else { rng.below(NSEMS) as i32 };
    match rng.next_u64() % 97 {
        _ if ids.is_empty() => get(rng),
        0..3 => get(rng),
        3..70 => Op::Semop { id, sops: sops(rng), timeout: timeout(rng) },
        70..76 => {
            let value = pick(rng, &[0, 0, 1, 1, 2, 3, 32766, 32767, 32768, -1]);
            Op::Ctl { id, num, cmd: libc::SETVAL, value }
        }
        76..88 => {
            let cmd =
                pick(rng, &[libc::GETVAL, libc::GETPID, libc::GETNCNT, libc::GETZCNT, 99, -1]);
            Op::Ctl { id, num, cmd, value: 0 }
        }
        88..90 => Op::GetAll { id },
        90 => {
            let value = |rng: &mut Rng| pick(rng, &[0, 0, 1, 2, 32767, 32767, 32768]);
            Op::SetAll { id, values: (0..NSEMS).map(|_| value(rng)).collect() }
        }
        91..94 => Op::Stat { id, cmd: pick(rng, &[libc::IPC_STAT, 18, 20]) },
        94 => {
            let mode = pick(rng, &[0, 0o600, 0o644, 0o666, 0o420, 0o1777]);
            let uid = pick(rng, &[0, 1000, 1001, u32::MAX]);
            Op::Set { id, uid, gid: pick(rng, &[0, 1000, 1001]), mode }
        }
        95 => Op::Ctl { id, num: 0, cmd: libc::IPC_RMID, value: 0 },
        _ => Op::Totals { cmd: pick(rng, &[libc::IPC_INFO, 19]) },
    }
}

fn get(rng: &mut Rng) -> Op {
    let key = pick(rng, &[0, 0, 1, 2, -3]);
    let nsems = pick(rng, &[1, 2, 3, 4, 4, 4, 4, 0, -1, 32001]);
    let mode = pick(rng, &[0o600, 0o666, 0o644, 0o062, 0o004, 0]);
    let flags = pick(rng, &[0, 0o1000, 0o1000, 0o1000, 0o1000, 0o3000, 0o2000]);
    Op::Get { key, nsems, flags: flags | mode }
}

fn timeout(rng: &mut Rng) -> Option<(i64, i64)> {
    if !chance(rng, 20) {
        return None;
    }
    Some(pick(rng, &[(0, 0), (0, 0), (0, 1), (-1, 0), (0, -1), (0, 1_000_000_000), (1, -5)]))
}

fn sops(rng: &mut Rng) -> Vec<(u16, i16, i16)> {
    let count = match rng.next_u64() % 100 {
        0 => pick(rng, &[0, 499, 500, 501]),
        1..60 => 1,
        60..85 => 2,
        85..95 => 3,
        _ => 4,
    };
    (0..count).map(|_| sop(rng)).collect()
}

fn sop(rng: &mut Rng) -> (u16, i16, i16) {
    let num = if chance(rng, 100) { pick(rng, &[4, 5, 65535]) } else { rng.below(NSEMS) as u16 };
    let small = [-3, -2, -1, -1, -1, 0, 0, 1, 1, 1, 2, 3];
    let op = if chance(rng, 30) {
        pick(rng, &[i16::MAX, i16::MIN, -32767, 32766, 20000, -20000])
    } else {
        pick(rng, &small)
    };
    let undo = if chance(rng, 3) { libc::SEM_UNDO as i16 } else { 0 };
    let nowait = if chance(rng, 4) { libc::IPC_NOWAIT as i16 } else { 0 };
    (num, op, undo | nowait)
}
