//! Operations on message queues: their encoding, random operations, and how a process makes them
//! through libc.

use corewalk_testkit::rng::Rng;
use corewalk_testkit::sysv::msg as sysv;

use crate::op::{Answer, answer, chance, pick};

const ROOM: usize = 9000;
const NOWAIT: i32 = libc::IPC_NOWAIT;
const MSG_STAT: i32 = 11;
const MSG_INFO: i32 = 12;
const MSG_STAT_ANY: i32 = 13;

/// A call about message queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MsgOp {
    Get {
        key: i32,
        flags: i32,
    },
    /// Sends a message. Its text has `size` bytes, which are computed from `mark`.
    Send {
        id: i32,
        mtype: i64,
        size: i32,
        mark: i32,
        flags: i32,
    },
    Receive {
        id: i32,
        size: i32,
        msgtyp: i64,
        flags: i32,
    },
    /// A command of msgctl(2) without an argument.
    Ctl {
        id: i32,
        cmd: i32,
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
        qbytes: u64,
    },
    Totals {
        cmd: i32,
    },
}

impl MsgOp {
    pub(crate) fn is_prompt(&self) -> bool {
        !matches!(self, Self::Send { flags, .. } | Self::Receive { flags, .. } if flags & NOWAIT == 0)
    }

    /// True means a send, and false a receive.
    pub(crate) fn waits_at(&self) -> Option<(i32, bool)> {
        match self {
            Self::Send { id, .. } => Some((*id, true)),
            Self::Receive { id, .. } => Some((*id, false)),
            _ => None,
        }
    }

    pub(crate) fn encode(&self) -> Vec<i64> {
        let int = i64::from;
        match *self {
            Self::Get { key, flags } => vec![0, int(key), int(flags)],
            Self::Send { id, mtype, size, mark, flags } => {
                vec![1, int(id), mtype, int(size), int(mark), int(flags)]
            }
            Self::Receive { id, size, msgtyp, flags } => {
                vec![2, int(id), int(size), msgtyp, int(flags)]
            }
            Self::Ctl { id, cmd } => vec![3, int(id), int(cmd)],
            Self::Stat { id, cmd } => vec![4, int(id), int(cmd)],
            Self::Set { id, uid, gid, mode, qbytes } => {
                let [uid, gid, mode] = [uid, gid, mode].map(i64::from);
                vec![5, int(id), uid, gid, mode, qbytes.cast_signed()]
            }
            Self::Totals { cmd } => vec![6, int(cmd)],
        }
    }

    pub(crate) fn decode(words: &[i64]) -> Self {
        let int = |at: usize| words[at] as i32;
        let id = int(1);
        match words[0] {
            0 => Self::Get { key: int(1), flags: int(2) },
            1 => Self::Send { id, mtype: words[2], size: int(3), mark: int(4), flags: int(5) },
            2 => Self::Receive { id, size: int(2), msgtyp: words[3], flags: int(4) },
            3 => Self::Ctl { id, cmd: int(2) },
            4 => Self::Stat { id, cmd: int(2) },
            5 => Self::Set {
                id,
                uid: words[2] as u32,
                gid: words[3] as u32,
                mode: words[4] as u32,
                qbytes: words[5].cast_unsigned(),
            },
            _ => Self::Totals { cmd: int(1) },
        }
    }

    /// Replaces the pids in an answer.
    pub(crate) fn map_pids(&self, answer: &mut [i64], map: impl Fn(i64) -> i64) {
        if let (Self::Stat { .. }, [0, .., lspid, lrpid, _, _]) = (self, answer) {
            (*lspid, *lrpid) = (map(*lspid), map(*lrpid));
        }
    }
}

/// Returns a random operation. `waits(id, true)` returns how many tasks wait to send to a queue,
/// and `waits(id, false)` how many wait to receive.
pub(crate) fn call(rng: &mut Rng, ids: &[i32], waits: impl Fn(i32, bool) -> usize) -> MsgOp {
    if ids.is_empty() {
        return get(rng);
    }
    let id = match rng.next_u64() % 60 {
        0 => pick(rng, &[-1, 0, 7, 32768, i32::MAX, i32::MIN]),
        1..4 => pick(rng, ids),
        _ => ids[ids.len() - 1 - (rng.next_u64() % 2) as usize % ids.len()],
    };
    match rng.next_u64() % 100 {
        0..4 => get(rng),
        4..44 => send(rng, id, waits(id, true) > 0),
        44..84 => receive(rng, id),
        84..92 => MsgOp::Stat { id, cmd: pick(rng, &[libc::IPC_STAT, MSG_STAT, MSG_STAT_ANY]) },
        // `IPC_SET` makes all waiting calls at a queue check the queue again, in any order. So the
        // script uses it only while at most one call waits.
        92..95 if waits(id, true) + waits(id, false) < 2 => set(rng, id),
        95..97 => MsgOp::Ctl { id, cmd: libc::IPC_RMID },
        97 => MsgOp::Ctl { id, cmd: pick(rng, &[99, -1, 14]) },
        _ => MsgOp::Totals { cmd: pick(rng, &[libc::IPC_INFO, MSG_INFO]) },
    }
}

fn get(rng: &mut Rng) -> MsgOp {
    let key = pick(rng, &[0, 0, 1, 2, -3]);
    let mode = pick(rng, &[0o600, 0o666, 0o666, 0o644, 0o062, 0o004, 0]);
    let flags = pick(rng, &[0, 0o1000, 0o1000, 0o1000, 0o1000, 0o3000, 0o2000]);
    MsgOp::Get { key, flags: flags | mode }
}

fn send(rng: &mut Rng, id: i32, must_not_wait: bool) -> MsgOp {
    let mtype = pick(rng, &[1, 1, 2, 2, 3, 4, 9, i64::MAX, 0, -1, i64::MIN]);
    let size = pick(rng, &[0, 1, 7, 8, 9, 63, 64, 65, 100, 200, 1000, 4096, 8192, 8192, 8193]);
    // At most one sender waits at a queue. Of several senders whose messages fit, any may go first,
    // so the two sides could differ.
    let flags = if must_not_wait || chance(rng, 3) { NOWAIT } else { 0 };
    MsgOp::Send { id, mtype, size, mark: rng.below(250) as i32, flags }
}

fn receive(rng: &mut Rng, id: i32) -> MsgOp {
    let types = [0, 0, 0, 1, 2, 3, 9, -1, -2, -3, -9, i64::MAX, i64::MIN, -i64::MAX];
    let size = pick(rng, &[9000, 9000, 8192, 8192, 4096, 100, 64, 10, 0]);
    let mut flags = if chance(rng, 3) { NOWAIT } else { 0 };
    if chance(rng, 4) {
        flags |= libc::MSG_NOERROR;
    }
    if chance(rng, 5) {
        flags |= libc::MSG_EXCEPT;
    }
    if chance(rng, 8) {
        flags |= libc::MSG_COPY;
        flags |= if chance(rng, 6) { 0 } else { NOWAIT };
    }
    MsgOp::Receive { id, size, msgtyp: pick(rng, &types), flags }
}

fn set(rng: &mut Rng, id: i32) -> MsgOp {
    let mode = pick(rng, &[0, 0o600, 0o666, 0o666, 0o222, 0o444, 0o1777]);
    let uid = pick(rng, &[0, 1000, 1001, u32::MAX]);
    let qbytes = pick(rng, &[0, 1, 3, 100, 200, 1000, 16384, 16384, 16385, 100_000, u64::MAX]);
    MsgOp::Set { id, uid, gid: pick(rng, &[0, 1000, 1001]), mode, qbytes }
}

pub(crate) fn text(size: i32, mark: i32) -> Vec<u8> {
    (0..size).map(|at| (at.wrapping_mul(31) + mark) as u8).collect()
}

pub(crate) fn received(mtype: i64, text: &[u8]) -> Vec<i64> {
    let sum = text.iter().fold(1i64, |sum, byte| {
        sum.wrapping_mul(1_000_003).wrapping_add(i64::from(*byte)) & 0xffff_ffff
    });
    vec![text.len() as i64, mtype, sum]
}

fn number(value: i32) -> Vec<i64> {
    vec![i64::from(value)]
}

/// Makes the call by libc.
pub(crate) fn by_libc(op: &MsgOp) -> Answer {
    match *op {
        MsgOp::Get { key, flags } => answer(sysv::msgget(key, flags), number),
        MsgOp::Send { id, mtype, size, mark, flags } => {
            let mut buffer = sysv::Buffer { mtype, text: [0u8; ROOM] };
            let text = text(size, mark);
            buffer.text[..text.len()].copy_from_slice(&text);
            answer(sysv::msgsnd(id, &buffer, text.len(), flags), number)
        }
        MsgOp::Receive { id, size, msgtyp, flags } => {
            let mut buffer = sysv::Buffer { mtype: 0, text: [0u8; ROOM] };
            let result = sysv::msgrcv(id, &mut buffer, size as usize, msgtyp, flags);
            answer(result, |size| received(buffer.mtype, &buffer.text[..size]))
        }
        MsgOp::Ctl { id, cmd } => answer(sysv::msgctl(id, cmd), number),
        MsgOp::Stat { id, cmd } => answer(sysv::stat(id, cmd), |(result, stat)| {
            let mut numbers = vec![i64::from(result)];
            numbers.extend(stat.ids);
            numbers.push(i64::from(stat.mode));
            numbers.extend(stat.numbers.map(u64::cast_signed));
            numbers.extend(stat.pids.map(i64::from));
            numbers.extend(stat.has_times.map(i64::from));
            numbers
        }),
        MsgOp::Set { id, uid, gid, mode, qbytes } => {
            answer(sysv::set(id, uid, gid, mode, qbytes), number)
        }
        MsgOp::Totals { cmd } => answer(sysv::totals(cmd), |(result, numbers)| {
            [result].into_iter().chain(numbers).map(i64::from).collect()
        }),
    }
}
