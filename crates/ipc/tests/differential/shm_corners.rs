//! Scripts of the corner cases of shared memory.

use crate::corners::Script;
use crate::op::{Answer, Op, Step};
use crate::pairing::Pairing;
use crate::shm::ShmOp;

const READ_ONLY: i32 = libc::SHM_RDONLY;

pub(crate) const SCRIPTS: [(&str, Script); 8] = [
    ("attaches set the count, the pid and the time", counts),
    ("a removed segment is gone after its last detach", removal),
    ("a fork attaches the segments again, and an exit detaches them", fork),
    ("permissions depend on the requested access", permissions),
    ("addresses are rounded or refused", addresses),
    ("errors of shmget are checked in the order of Linux", get_errors),
    ("errors of shmctl are checked in the order of Linux, and locking sets a mark", ctl_errors),
    ("ids and totals are the same on both sides", ids),
];

impl Pairing {
    fn segment(&mut self, size: u64, mode: i32) -> i32 {
        let made = self.shm(0, ShmOp::Get { key: 0, size, flags: mode }).expect("no wait");
        made[1] as i32
    }

    fn shm(&mut self, task: usize, op: ShmOp) -> Option<Answer> {
        self.call(task, Op::Shm(op))
    }

    fn attach(&mut self, task: usize, id: i32, flags: i32) -> Option<Answer> {
        self.shm(task, ShmOp::At { id, offset: None, flags })
    }

    fn shm_stat(&mut self, id: i32) {
        self.shm(3, ShmOp::Stat { id, cmd: libc::IPC_STAT });
    }
}

fn counts(both: &mut Pairing) {
    let id = both.segment(100, 0o600);
    both.shm_stat(id);
    for task in [0, 1, 1, 2] {
        both.attach(task, id, 0);
        both.shm_stat(id);
    }
    for task in [1, 2, 2, 1, 1] {
        both.shm(task, ShmOp::Dt { nth: 0 });
        both.shm_stat(id);
    }
    both.step(0, &Step::Exit);
    both.shm_stat(id);
}

fn removal(both: &mut Pairing) {
    let id = both.segment(100, 0o666);
    both.shm(0, ShmOp::Get { key: 7, size: 10, flags: 0o1666 });
    let keyed = both.shm(0, ShmOp::Get { key: 7, size: 0, flags: 0 }).expect("no wait")[1] as i32;
    for id in [id, keyed] {
        both.attach(1, id, 0);
        both.shm(0, ShmOp::Ctl { id, cmd: libc::IPC_RMID });
        both.shm_stat(id);
        both.shm(0, ShmOp::Ctl { id, cmd: libc::IPC_RMID });
        both.attach(2, id, READ_ONLY);
        both.shm(3, ShmOp::Totals { cmd: 14 });
        both.shm(1, ShmOp::Dt { nth: 0 });
        both.shm_stat(id);
        both.shm(0, ShmOp::Get { key: 7, size: 0, flags: 0 });
        both.shm(2, ShmOp::Dt { nth: 0 });
        both.shm_stat(id);
        both.attach(2, id, 0);
    }
    let id = both.segment(8192, 0o600);
    both.attach(1, id, 0);
    both.shm(0, ShmOp::Ctl { id, cmd: libc::IPC_RMID });
    both.step(1, &Step::Exit);
    both.shm_stat(id);
    both.shm(3, ShmOp::Totals { cmd: 14 });
}

fn fork(both: &mut Pairing) {
    let (one, other) = (both.segment(100, 0o600), both.segment(5000, 0o600));
    for id in [one, other, one] {
        both.attach(1, id, 0);
    }
    both.attach(2, one, 0);
    both.shm(1, ShmOp::Fork);
    both.shm_stat(one);
    both.shm_stat(other);
    both.shm(1, ShmOp::Dt { nth: 1 });
    both.shm(0, ShmOp::Ctl { id: other, cmd: libc::IPC_RMID });
    both.shm_stat(other);
    both.shm(1, ShmOp::EndChildren);
    both.shm_stat(one);
    both.shm_stat(other);
}

fn permissions(both: &mut Pairing) {
    for mode in [0, 0o444, 0o222, 0o666, 0o555, 0o777, 0o600] {
        let id = both.segment(100, mode);
        for uid in [1000, 0] {
            both.call(1, Op::ActAs { uid, gid: uid });
            for flags in [0, READ_ONLY, libc::SHM_EXEC, READ_ONLY | libc::SHM_EXEC] {
                both.attach(1, id, flags);
            }
            both.shm(1, ShmOp::Stat { id, cmd: libc::IPC_STAT });
        }
        both.step(1, &Step::Exit);
    }
}

fn addresses(both: &mut Pairing) {
    let id = both.segment(5000, 0o600);
    for flags in [0, libc::SHM_RND, libc::SHM_RND | READ_ONLY] {
        for offset in [0, 1, 4095, 4096, 8191, 8192, 1 << 20, 5 << 20] {
            both.shm(1, ShmOp::At { id, offset: Some(offset), flags });
        }
        both.shm_stat(id);
        for _ in 0..2 {
            both.shm(1, ShmOp::Dt { nth: 0 });
        }
    }
    both.attach(1, id, libc::SHM_REMAP);
    both.attach(1, id, libc::SHM_REMAP | libc::SHM_RND);
    both.shm(1, ShmOp::Dt { nth: 99 });
}

fn get_errors(both: &mut Pairing) {
    both.shm(0, ShmOp::Get { key: 9, size: 100, flags: 0o1600 });
    for uid in [0, 1000] {
        both.call(1, Op::ActAs { uid, gid: uid });
        for key in [9, 10, 0] {
            for size in [0, 1, 100, 101, u64::MAX, u64::MAX - (1 << 24), 1 << 60] {
                for flags in [0, 0o600, 0o3600, 0o2000] {
                    both.shm(1, ShmOp::Get { key, size, flags });
                }
            }
        }
    }
}

fn ctl_errors(both: &mut Pairing) {
    let id = both.segment(100, 0o600);
    for (uid, gid) in [(1000, 1000), (0, 0)] {
        both.call(1, Op::ActAs { uid, gid });
        for id in [id, -1, id + 32_768, 70_000] {
            for cmd in [libc::IPC_STAT, 13, 15] {
                both.shm(1, ShmOp::Stat { id, cmd });
            }
            for cmd in [11, 12, 99, -1] {
                both.shm(1, ShmOp::Ctl { id, cmd });
                both.shm_stat(id);
            }
            both.shm(1, ShmOp::Ctl { id, cmd: 11 });
            for owner in [0, u32::MAX, 1000] {
                both.shm(1, ShmOp::Set { id, uid: owner, gid: 0, mode: 0o7604 });
                both.shm_stat(id);
            }
        }
        both.shm(1, ShmOp::Totals { cmd: libc::IPC_INFO });
        both.shm(1, ShmOp::Totals { cmd: 14 });
    }
    both.shm(1, ShmOp::Ctl { id, cmd: libc::IPC_RMID });
}

fn ids(both: &mut Pairing) {
    for round in 0..70u64 {
        let id = both.segment(1 + 1000 * round, 0o600);
        if round % 3 != 0 {
            both.shm(0, ShmOp::Ctl { id, cmd: libc::IPC_RMID });
            both.attach(1, id, 0);
        }
    }
    both.shm(0, ShmOp::Totals { cmd: 14 });
}
