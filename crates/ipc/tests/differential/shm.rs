//! Operations on shared memory: their encoding, random operations, and how a process makes them
//! through libc.
//!
//! A script (a sequence of calls) runs on the kernel and on corewalk. It names an attach by its
//! position in the list of attaches, since the two sides attach at different addresses.

use corewalk_testkit::rng::Rng;
use corewalk_testkit::sysv::shm as sysv;

use crate::op::{Answer, answer, chance, pick};

const SHM_STAT: i32 = 13;
const SHM_INFO: i32 = 14;
const SHM_STAT_ANY: i32 = 15;

/// An unused address, aligned to many pages.
pub(crate) const FIXED: usize = 0x3000_0000_0000;

/// A call about shared memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShmOp {
    Get {
        key: i32,
        size: u64,
        flags: i32,
    },
    At {
        id: i32,
        offset: Option<i32>,
        flags: i32,
    },
    /// `shmdt` of the attach at position `nth`.
    Dt {
        nth: i32,
    },
    /// A command of shmctl(2) without an argument.
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
    },
    Totals {
        cmd: i32,
    },
    /// The task forks. Its child makes no call.
    Fork,
    /// All children of the task end.
    EndChildren,
}

impl ShmOp {
    pub(crate) fn encode(&self) -> Vec<i64> {
        let int = i64::from;
        match *self {
            Self::Get { key, size, flags } => vec![0, int(key), size.cast_signed(), int(flags)],
            Self::At { id, offset, flags } => {
                vec![1, int(id), int(offset.unwrap_or(-1)), int(flags)]
            }
            Self::Dt { nth } => vec![2, int(nth)],
            Self::Ctl { id, cmd } => vec![3, int(id), int(cmd)],
            Self::Stat { id, cmd } => vec![4, int(id), int(cmd)],
            Self::Set { id, uid, gid, mode } => {
                vec![5, int(id), i64::from(uid), i64::from(gid), i64::from(mode)]
            }
            Self::Totals { cmd } => vec![6, int(cmd)],
            Self::Fork => vec![7],
            Self::EndChildren => vec![8],
        }
    }

    pub(crate) fn decode(words: &[i64]) -> Self {
        let int = |at: usize| words[at] as i32;
        match words[0] {
            0 => Self::Get { key: int(1), size: words[2].cast_unsigned(), flags: int(3) },
            1 => {
                let offset = Some(int(2)).filter(|offset| *offset >= 0);
                Self::At { id: int(1), offset, flags: int(3) }
            }
            2 => Self::Dt { nth: int(1) },
            3 => Self::Ctl { id: int(1), cmd: int(2) },
            4 => Self::Stat { id: int(1), cmd: int(2) },
            5 => {
                let [uid, gid, mode] = [2, 3, 4].map(|at| words[at] as u32);
                Self::Set { id: int(1), uid, gid, mode }
            }
            6 => Self::Totals { cmd: int(1) },
            7 => Self::Fork,
            _ => Self::EndChildren,
        }
    }

    /// Replaces the pids in an answer.
    pub(crate) fn map_pids(&self, answer: &mut [i64], map: impl Fn(i64) -> i64) {
        if let (Self::Stat { .. }, [0, .., cpid, lpid, _, _]) = (self, answer) {
            (*cpid, *lpid) = (map(*cpid), map(*lpid));
        }
    }
}

/// Returns a random call.
pub(crate) fn call(rng: &mut Rng, ids: &[i32]) -> ShmOp {
    if ids.is_empty() {
        return get(rng);
    }
    let id = match rng.next_u64() % 60 {
        0 => pick(rng, &[-1, 0, 7, 32768, i32::MAX, i32::MIN]),
        _ => ids[ids.len() - 1 - (rng.next_u64() % 3) as usize % ids.len()],
    };
    match rng.next_u64() % 100 {
        0..8 => get(rng),
        8..34 => at(rng, id),
        34..56 => ShmOp::Dt { nth: rng.below(6) as i32 },
        56..74 => ShmOp::Stat { id, cmd: pick(rng, &[libc::IPC_STAT, SHM_STAT, SHM_STAT_ANY]) },
        74..80 => {
            let mode = pick(rng, &[0, 0o600, 0o644, 0o666, 0o420, 0o1777]);
            let uid = pick(rng, &[0, 1000, 1001, u32::MAX]);
            ShmOp::Set { id, uid, gid: pick(rng, &[0, 1000, 1001]), mode }
        }
        80..88 => ShmOp::Ctl { id, cmd: libc::IPC_RMID },
        88..94 => ShmOp::Ctl { id, cmd: pick(rng, &[11, 12, 99, -1]) },
        _ => ShmOp::Totals { cmd: pick(rng, &[libc::IPC_INFO, SHM_INFO]) },
    }
}

fn get(rng: &mut Rng) -> ShmOp {
    let key = pick(rng, &[0, 0, 1, 2, -3]);
    let size = pick(rng, &[1, 56, 4096, 4097, 10_000, 0, u64::MAX, u64::MAX - (1 << 24) + 1]);
    let mode = pick(rng, &[0o600, 0o666, 0o644, 0o777, 0o062, 0o004, 0]);
    let flags = pick(rng, &[0, 0o1000, 0o1000, 0o1000, 0o1000, 0o3000, 0o2000]);
    ShmOp::Get { key, size, flags: flags | mode }
}

fn at(rng: &mut Rng, id: i32) -> ShmOp {
    let offset = if chance(rng, 3) {
        Some(pick(rng, &[0, 1, 4096, 4097, 65536, 1 << 20, (1 << 20) + 5]))
    } else {
        None
    };
    let mut flags = 0;
    for flag in [libc::SHM_RDONLY, libc::SHM_RND, libc::SHM_EXEC] {
        flags |= if chance(rng, 3) { flag } else { 0 };
    }
    // Without an address, `SHM_REMAP` fails before any other check.
    flags |= if offset.is_none() && chance(rng, 20) { libc::SHM_REMAP } else { 0 };
    ShmOp::At { id, offset, flags }
}

/// The attaches of a worker, and its forked children.
#[derive(Default)]
pub(crate) struct State {
    attached: Vec<usize>,
    children: Vec<i32>,
}

impl State {
    /// Removes an attach from the list, and returns its address. If the list is too short, returns
    /// an address at which nothing is attached.
    fn forget(&mut self, nth: i32) -> usize {
        let nth = nth as usize;
        if nth < self.attached.len() { self.attached.remove(nth) } else { 4096 }
    }
}

fn number(value: i32) -> Vec<i64> {
    vec![i64::from(value)]
}

pub(crate) fn place(address: usize, offset: Option<i32>) -> Vec<i64> {
    vec![if offset.is_some() { address.wrapping_sub(FIXED) as i64 } else { -1 }]
}

/// Makes the call by libc.
pub(crate) fn by_libc(op: &ShmOp, state: &mut State) -> Answer {
    match *op {
        ShmOp::Get { key, size, flags } => answer(sysv::shmget(key, size, flags), number),
        ShmOp::At { id, offset, flags } => {
            let address = offset.map_or(0, |offset| FIXED + offset as usize);
            let attached = sysv::shmat(id, address, flags);
            state.attached.extend(attached.ok());
            answer(attached, |address| place(address, offset))
        }
        ShmOp::Dt { nth } => answer(sysv::shmdt(state.forget(nth)), number),
        ShmOp::Ctl { id, cmd } => answer(sysv::shmctl(id, cmd), number),
        ShmOp::Stat { id, cmd } => answer(sysv::stat(id, cmd), |(result, stat)| {
            let mut numbers = vec![i64::from(result)];
            numbers.extend(stat.ids);
            numbers.push(i64::from(stat.mode));
            numbers.extend(stat.numbers.map(u64::cast_signed));
            numbers.extend(stat.pids.map(i64::from));
            numbers.extend(stat.has_times.map(i64::from));
            numbers
        }),
        ShmOp::Set { id, uid, gid, mode } => answer(sysv::set(id, uid, gid, mode), number),
        ShmOp::Totals { cmd } => answer(sysv::totals(cmd), |(result, numbers)| {
            [i64::from(result)].into_iter().chain(numbers.map(u64::cast_signed)).collect()
        }),
        ShmOp::Fork => answer(corewalk_testkit::sysv::fork_idle(), |child| {
            state.children.push(child);
            Vec::new()
        }),
        ShmOp::EndChildren => {
            for child in state.children.drain(..) {
                corewalk_testkit::sysv::end_child(child).expect("it is ours");
            }
            vec![0]
        }
    }
}
