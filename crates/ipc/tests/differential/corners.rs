//! Scripts of the corner cases of semaphores.

use crate::op::{Answer, Op, Step};
use crate::pairing::Pairing;

const UNDO: i16 = libc::SEM_UNDO as i16;
const NOWAIT: i16 = libc::IPC_NOWAIT as i16;

/// A script that runs both on the kernel and on corewalk.
pub(crate) type Script = fn(&mut Pairing);

pub(crate) const SCRIPTS: [(&str, Script); 13] = [
    ("undo is applied when a task is killed, and clamped at zero", undo_clamps),
    ("SETVAL and SETALL clear adjustments", set_forgets),
    ("the pid changes with waits for zero and SETVAL", pids),
    ("operations of a call see each other, and leave nothing if they fail", atomic),
    ("errors of semop", semop_errors),
    ("errors of semctl are checked in the order of Linux", semctl_errors),
    ("a waiting call ends with EIDRM, EINTR, EAGAIN", wait_ends),
    ("a call that can complete does not wait behind one that cannot", barging),
    ("waiting calls complete in the order of their arrival", order),
    ("waiting calls are counted at the operation that blocks", counts),
    ("a waiting call that would overflow fails", waiting_overflow),
    ("a value that is zero only before and after a change wakes no call", passing_zero),
    ("ids are the same on both sides", ids),
];

impl Pairing {
    pub(crate) fn call(&mut self, task: usize, op: Op) -> Option<Answer> {
        self.step(task, &Step::Call(op))
    }

    fn set(&mut self, nsems: i32) -> i32 {
        let made = self.call(0, Op::Get { key: 0, nsems, flags: 0o600 }).expect("no wait");
        made[1] as i32
    }

    fn semop(&mut self, task: usize, id: i32, sops: &[(u16, i16, i16)]) -> Option<Answer> {
        self.call(task, Op::Semop { id, sops: sops.to_vec(), timeout: None })
    }

    fn ctl(&mut self, task: usize, id: i32, num: i32, cmd: i32, value: i32) -> Option<Answer> {
        self.call(task, Op::Ctl { id, num, cmd, value })
    }

    fn value(&mut self, id: i32, num: i32) -> i64 {
        self.ctl(3, id, num, libc::GETVAL, 0).expect("no wait")[1]
    }

    fn counts(&mut self, id: i32) {
        for num in 0..4 {
            for cmd in [libc::GETNCNT, libc::GETZCNT] {
                self.ctl(3, id, num, cmd, 0);
            }
        }
    }
}

fn undo_clamps(both: &mut Pairing) {
    let id = both.set(2);
    both.semop(1, id, &[(0, 3, UNDO)]);
    both.semop(2, id, &[(0, -2, 0)]);
    both.step(1, &Step::Exit);
    assert_eq!(both.value(id, 0), 0);
    both.ctl(0, id, 1, libc::SETVAL, 32767);
    both.semop(1, id, &[(1, -5, UNDO)]);
    both.semop(2, id, &[(1, 3, 0)]);
    both.step(1, &Step::Exit);
    assert_eq!(both.value(id, 1), 32767);
    both.ctl(3, id, 1, libc::GETPID, 0);
    // The undo of a waiting call that another task completed must still be applied when its task
    // ends.
    both.semop(1, id, &[(0, 1, UNDO), (1, -1, UNDO)]);
    both.semop(2, id, &[(1, 0, 0)]);
    both.step(1, &Step::Exit);
}

fn set_forgets(both: &mut Pairing) {
    let id = both.set(4);
    both.semop(1, id, &[(0, 2, UNDO), (1, 2, UNDO)]);
    both.ctl(0, id, 0, libc::SETVAL, 7);
    both.step(1, &Step::Exit);
    assert_eq!((both.value(id, 0), both.value(id, 1)), (7, 0));
    both.semop(1, id, &[(0, 2, UNDO), (1, 2, UNDO)]);
    both.call(0, Op::SetAll { id, values: vec![5; 4] });
    both.step(1, &Step::Exit);
    assert_eq!((both.value(id, 0), both.value(id, 1)), (5, 5));
    both.semop(1, id, &[(0, 20000, UNDO)]);
    both.semop(1, id, &[(0, -20000, 0)]);
    both.semop(1, id, &[(0, 20000, UNDO)]);
}

fn pids(both: &mut Pairing) {
    let id = both.set(1);
    both.ctl(3, id, 0, libc::GETPID, 0);
    both.call(3, Op::Stat { id, cmd: libc::IPC_STAT });
    both.semop(1, id, &[(0, 0, 0)]);
    both.call(3, Op::Stat { id, cmd: libc::IPC_STAT });
    both.ctl(3, id, 0, libc::GETPID, 0);
    both.ctl(2, id, 0, libc::SETVAL, 1);
    both.ctl(3, id, 0, libc::GETPID, 0);
    both.semop(0, id, &[(0, -3, 0)]);
    both.semop(1, id, &[(0, 2, 0)]);
    both.ctl(3, id, 0, libc::GETPID, 0);
}

fn atomic(both: &mut Pairing) {
    let id = both.set(2);
    both.semop(1, id, &[(0, 1, 0), (0, -1, 0), (0, 0, 0)]);
    assert_eq!(both.value(id, 0), 0);
    both.semop(1, id, &[(0, 1, 0), (1, -1, NOWAIT)]);
    both.semop(1, id, &[(0, 1, UNDO), (0, 32767, UNDO)]);
    assert_eq!(both.value(id, 0), 0);
    both.semop(1, id, &[(0, 2, UNDO), (0, -2, NOWAIT), (0, -1, NOWAIT)]);
    both.step(1, &Step::Exit);
    assert_eq!(both.value(id, 0), 0);
}

fn semop_errors(both: &mut Pairing) {
    let id = both.set(4);
    for count in [0, 500, 501] {
        both.semop(1, id, &vec![(0, 1, 0); count]);
        both.semop(1, -1, &vec![(0, 1, 0); count]);
    }
    both.semop(1, id, &[(4, 1, 0)]);
    both.semop(1, id, &[(0, 1, 0), (9, 1, 0)]);
    both.ctl(0, id, 0, libc::SETVAL, 32767);
    both.semop(1, id, &[(0, 1, 0)]);
    both.semop(1, id, &[(0, 1, UNDO)]);
    both.semop(1, id + 32768, &[(0, 1, 0)]);
    for timeout in [(-1, 0), (0, -1), (0, 1_000_000_000), (0, 0), (0, 1)] {
        let sops = vec![(1, -1, 0)];
        both.call(1, Op::Semop { id, sops, timeout: Some(timeout) });
    }
    both.call(1, Op::ActAs { uid: 1000, gid: 1000 });
    both.semop(1, id, &[(0, -1, 0)]);
    both.semop(1, id, &[(4, -1, 0)]);
    both.semop(1, id, &[(1, 0, 0)]);
}

fn semctl_errors(both: &mut Pairing) {
    let id = both.set(4);
    let commands = [
        libc::IPC_RMID + 90,
        libc::GETVAL,
        libc::GETPID,
        libc::GETNCNT,
        libc::GETZCNT,
        libc::SETVAL,
    ];
    for (uid, gid) in [(0, 0), (1000, 1000)] {
        both.call(1, Op::ActAs { uid, gid });
        for cmd in commands {
            for num in [-1, 0, 4, 70000] {
                for value in [-1, 0, 40000] {
                    for id in [id, -1, id + 32768] {
                        both.ctl(1, id, num, cmd, value);
                    }
                }
            }
        }
        for id in [id, -1, id + 32768] {
            both.call(1, Op::GetAll { id });
            both.call(1, Op::SetAll { id, values: vec![0, 0, 0, 40000] });
            for cmd in [libc::IPC_STAT, 18, 20] {
                both.call(1, Op::Stat { id, cmd });
            }
            for uid in [0, u32::MAX] {
                both.call(1, Op::Set { id, uid, gid: 0, mode: 0o7600 });
            }
        }
        for cmd in [libc::IPC_INFO, 19] {
            both.call(1, Op::Totals { cmd });
        }
    }
    both.ctl(1, id, 0, libc::IPC_RMID, 0);
}

fn wait_ends(both: &mut Pairing) {
    let id = both.set(2);
    both.semop(1, id, &[(0, -1, 0)]);
    both.step(1, &Step::Interrupt);
    both.semop(1, id, &[(0, -1, 0), (1, 0, 0)]);
    both.semop(2, id, &[(0, -1, UNDO)]);
    both.step(2, &Step::Exit);
    both.ctl(0, id, 1, libc::SETVAL, 1);
    both.semop(2, id, &[(1, 0, 0)]);
    both.counts(id);
    both.ctl(0, id, 0, libc::IPC_RMID, 0);
    both.semop(2, id, &[(1, 0, 0)]);
}

fn barging(both: &mut Pairing) {
    let id = both.set(1);
    both.ctl(0, id, 0, libc::SETVAL, 3);
    assert_eq!(both.semop(1, id, &[(0, -5, 0)]), None);
    assert_eq!(both.semop(2, id, &[(0, -1, NOWAIT)]), Some(vec![0, 0]));
    both.semop(0, id, &[(0, 3, 0)]);
    assert_eq!(both.value(id, 0), 0);
}

fn order(both: &mut Pairing) {
    let id = both.set(2);
    both.semop(0, id, &[(0, -1, 0)]);
    both.semop(1, id, &[(0, -2, 0)]);
    both.semop(2, id, &[(0, -1, 0)]);
    both.semop(3, id, &[(0, 2, 0)]);
    both.semop(3, id, &[(0, 2, 0)]);
    both.semop(0, id, &[(0, -1, 0), (1, 1, 0)]);
    both.semop(1, id, &[(1, -1, 0), (0, 1, 0)]);
    both.semop(2, id, &[(0, -1, 0)]);
    both.semop(3, id, &[(0, 1, 0)]);
    both.semop(3, id, &[(0, 1, 0)]);
}

fn counts(both: &mut Pairing) {
    let id = both.set(4);
    both.ctl(0, id, 3, libc::SETVAL, 1);
    both.semop(0, id, &[(0, -1, 0), (1, -1, 0), (3, 0, 0)]);
    both.semop(1, id, &[(3, 0, 0), (2, 0, 0)]);
    both.semop(2, id, &[(3, 0, 0)]);
    both.counts(id);
    both.semop(3, id, &[(0, 1, 0)]);
    both.counts(id);
    both.semop(3, id, &[(1, 1, 0)]);
    both.counts(id);
    both.semop(3, id, &[(2, 1, 0)]);
    both.semop(3, id, &[(3, -1, 0)]);
    both.counts(id);
}

fn waiting_overflow(both: &mut Pairing) {
    let id = both.set(2);
    both.semop(1, id, &[(0, 1, 0), (1, -1, 0)]);
    both.ctl(0, id, 0, libc::SETVAL, 32767);
    both.ctl(0, id, 0, libc::SETVAL, 32767);
    both.semop(1, id, &[(1, -1, UNDO)]);
    both.semop(2, id, &[(1, 1, 0)]);
}

fn passing_zero(both: &mut Pairing) {
    let id = both.set(2);
    both.ctl(3, id, 0, libc::SETVAL, 2);
    both.semop(2, id, &[(1, -1, UNDO)]);
    both.semop(1, id, &[(1, 0, NOWAIT), (0, 0, 0)]);
    both.ctl(3, id, 1, libc::SETVAL, 1);
    both.counts(id);
}

fn ids(both: &mut Pairing) {
    for round in 0..70 {
        let id = both.set(1);
        if round % 3 != 0 {
            both.ctl(0, id, 0, libc::IPC_RMID, 0);
            both.semop(1, id, &[(0, 1, 0)]);
        }
    }
    both.call(0, Op::Totals { cmd: 19 });
    for flags in [0, 0o1000, 0o3000, 0o1600, 0o666] {
        for nsems in [0, 1, 2, -1, 32001] {
            both.call(0, Op::Get { key: 9, nsems, flags });
        }
    }
}
