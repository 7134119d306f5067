//! Scripts of the corner cases of message queues.

use crate::corners::Script;
use crate::msg::MsgOp;
use crate::op::{Answer, Op, Step};
use crate::pairing::Pairing;

const NOWAIT: i32 = libc::IPC_NOWAIT;
const NOERROR: i32 = libc::MSG_NOERROR;
const COPY: i32 = libc::MSG_COPY | NOWAIT;

pub(crate) const SCRIPTS: [(&str, Script); 13] = [
    ("types: first, equal, except, lowest, least", types),
    ("a message that is too long stays, or is truncated", too_long),
    ("MSG_COPY counts from zero and takes nothing", copies),
    ("bytes and messages of a queue are limited", room),
    ("errors of msgsnd and msgrcv are checked in the order of Linux", errors),
    ("errors of msgctl are checked in the order of Linux", ctl_errors),
    ("a message is handed to the first receiver that takes it", handed_over),
    ("a receiver with a short buffer fails, and the next one gets the message", small_receiver),
    ("a waiting sender completes once its message has room", sender_goes_on),
    ("of the waiting senders only those with room complete", senders_that_fit),
    ("IPC_SET makes waiting calls check their permission again", asked_again),
    ("a waiting call ends with EIDRM and EINTR", wait_ends),
    ("ids are the same on both sides", ids),
];

impl Pairing {
    fn queue(&mut self) -> i32 {
        let made = self.msg(0, MsgOp::Get { key: 0, flags: 0o666 }).expect("no wait");
        made[1] as i32
    }

    fn msg(&mut self, task: usize, op: MsgOp) -> Option<Answer> {
        self.call(task, Op::Msg(op))
    }

    fn send(&mut self, task: usize, id: i32, mtype: i64, size: i32, flags: i32) -> Option<Answer> {
        let mark = size + mtype as i32;
        self.msg(task, MsgOp::Send { id, mtype, size, mark, flags })
    }

    fn receive(
        &mut self,
        task: usize,
        id: i32,
        msgtyp: i64,
        size: i32,
        flags: i32,
    ) -> Option<Answer> {
        self.msg(task, MsgOp::Receive { id, size, msgtyp, flags })
    }

    fn msg_stat(&mut self, id: i32) {
        self.msg(3, MsgOp::Stat { id, cmd: libc::IPC_STAT });
    }

    fn set_queue(&mut self, task: usize, id: i32, mode: u32, qbytes: u64) {
        self.msg(task, MsgOp::Set { id, uid: 0, gid: 0, mode, qbytes });
    }
}

fn types(both: &mut Pairing) {
    let id = both.queue();
    let asked = [0, 1, 3, 4, -1, -3, -9, i64::MIN, i64::MAX, -i64::MAX];
    for flags in [NOWAIT, NOWAIT | libc::MSG_EXCEPT] {
        for msgtyp in asked {
            for (at, mtype) in [5, 3, 3, 1, i64::MAX].into_iter().enumerate() {
                both.send(0, id, mtype, at as i32, 0);
            }
            for _ in 0..3 {
                both.receive(1, id, msgtyp, 100, flags);
            }
            while both.receive(1, id, 0, 100, NOWAIT).expect("no wait")[0] == 0 {}
        }
    }
}

fn too_long(both: &mut Pairing) {
    let id = both.queue();
    for size in [0, 1, 99, 100, 101, 8192] {
        both.send(0, id, 1, size, 0);
        both.receive(1, id, 0, 100, NOWAIT);
        both.msg_stat(id);
        both.receive(1, id, 0, 100, NOWAIT | NOERROR);
        both.receive(1, id, 0, 0, NOWAIT | NOERROR);
    }
}

fn copies(both: &mut Pairing) {
    let id = both.queue();
    for (at, size) in [8, 200, 0].into_iter().enumerate() {
        both.send(0, id, 1 + at as i64, size, 0);
    }
    for flags in [COPY, COPY | NOERROR, COPY | libc::MSG_EXCEPT, libc::MSG_COPY] {
        for index in [-1, 0, 1, 2, 3, i64::MIN, i64::MAX] {
            both.receive(1, id, index, 100, flags);
        }
    }
    both.msg_stat(id);
}

fn room(both: &mut Pairing) {
    let id = both.queue();
    for size in [8192, 8191, 2, 1, 1, 0] {
        both.send(0, id, 1, size, NOWAIT);
        both.msg_stat(id);
    }
    for qbytes in [0, 1, 2, 3, 16_384, 16_385, u64::MAX] {
        both.set_queue(0, id, 0o600, qbytes);
        both.send(0, id, 1, 0, NOWAIT);
        both.send(0, id, 1, 1, NOWAIT);
        both.msg(3, MsgOp::Totals { cmd: 12 });
    }
    let other = both.queue();
    both.set_queue(0, other, 0o600, 3);
    for _ in 0..4 {
        both.send(0, other, 1, 0, NOWAIT);
    }
    both.msg_stat(other);
}

fn errors(both: &mut Pairing) {
    let id = both.queue();
    both.set_queue(0, id, 0o600, 16_384);
    for (uid, gid) in [(0, 0), (1000, 1000)] {
        both.call(1, Op::ActAs { uid, gid });
        for id in [id, -1, id + 32_768, id + 1] {
            for mtype in [1, 0, -1, i64::MIN] {
                for size in [1, 8192, 8193] {
                    both.send(1, id, mtype, size, NOWAIT);
                }
            }
            for flags in [NOWAIT, NOWAIT | libc::MSG_COPY, libc::MSG_COPY] {
                both.receive(1, id, 9, 10, flags);
                both.receive(1, id, -9, 0, flags | NOWAIT);
            }
        }
    }
    for flags in [0, 0o1000, 0o3000, 0o1600, 0o666, 0o2000] {
        both.msg(0, MsgOp::Get { key: 9, flags });
        both.msg(1, MsgOp::Get { key: 9, flags });
    }
}

fn ctl_errors(both: &mut Pairing) {
    let id = both.queue();
    both.set_queue(0, id, 0o600, 16_384);
    for (uid, gid) in [(1000, 1000), (0, 0)] {
        both.call(1, Op::ActAs { uid, gid });
        for id in [id, -1, id + 32_768, 70_000] {
            for cmd in [libc::IPC_STAT, 11, 13] {
                both.msg(1, MsgOp::Stat { id, cmd });
            }
            for (owner, qbytes) in [(0, 100), (0, 100_000), (u32::MAX, 100), (1000, 1)] {
                both.msg(1, MsgOp::Set { id, uid: owner, gid: 0, mode: 0o7600, qbytes });
            }
            for cmd in [99, -1, 14, libc::IPC_RMID] {
                both.msg(1, MsgOp::Ctl { id, cmd });
            }
        }
        both.msg(1, MsgOp::Totals { cmd: libc::IPC_INFO });
        both.msg(1, MsgOp::Totals { cmd: 12 });
    }
}

fn handed_over(both: &mut Pairing) {
    let id = both.queue();
    both.receive(0, id, 2, 100, 0);
    both.receive(1, id, 0, 100, 0);
    both.receive(2, id, 0, 100, 0);
    both.send(3, id, 1, 5, 0);
    both.msg_stat(id);
    both.send(3, id, 2, 6, 0);
    both.send(3, id, 3, 7, 0);
    both.msg_stat(id);
    both.receive(0, id, -5, 100, 0);
    both.receive(1, id, 5, 100, libc::MSG_EXCEPT);
    both.receive(2, id, i64::MIN, 100, 0);
    for mtype in [6, 5, 5, i64::MAX] {
        both.send(3, id, mtype, 1, 0);
        both.msg_stat(id);
    }
}

fn small_receiver(both: &mut Pairing) {
    let id = both.queue();
    both.receive(0, id, 0, 4, 0);
    both.receive(1, id, 0, 5, 0);
    both.receive(2, id, 0, 4, NOERROR);
    both.send(3, id, 1, 6, 0);
    both.msg_stat(id);
    both.receive(0, id, 0, 4, 0);
    both.send(3, id, 1, 6, 0);
    both.msg_stat(id);
}

fn sender_goes_on(both: &mut Pairing) {
    let id = both.queue();
    both.send(0, id, 1, 8192, 0);
    both.send(0, id, 2, 8192, 0);
    both.receive(2, id, 3, 8192, 0);
    both.send(1, id, 3, 100, 0);
    both.msg_stat(id);
    // Task 2 waits for a message of type 3, and task 1 waits to send one to the full queue. When
    // this receive frees space, the message must go straight to task 2.
    both.receive(3, id, 2, 8192, 0);
    both.msg_stat(id);
    both.send(1, id, 1, 8192, 0);
    both.send(1, id, 1, 8192, 0);
    both.set_queue(3, id, 0o666, 30_000);
    both.msg_stat(id);
}

fn senders_that_fit(both: &mut Pairing) {
    let id = both.queue();
    both.set_queue(3, id, 0o666, 100);
    both.send(3, id, 1, 40, 0);
    both.send(3, id, 2, 50, 0);
    both.send(0, id, 3, 80, 0);
    both.send(1, id, 4, 60, 0);
    both.send(2, id, 5, 30, 0);
    // After the first receive the queue has 50 free bytes. Of the waiting senders, only the one
    // with 30 bytes fits.
    both.receive(3, id, 1, 100, 0);
    both.msg_stat(id);
    both.receive(3, id, 5, 100, 0);
    both.msg_stat(id);
}

fn asked_again(both: &mut Pairing) {
    let id = both.queue();
    both.call(1, Op::ActAs { uid: 1000, gid: 1000 });
    both.receive(1, id, 0, 100, 0);
    both.set_queue(0, id, 0o644, 100);
    both.set_queue(0, id, 0o600, 100);
    both.set_queue(0, id, 0o666, 100);
    both.send(1, id, 1, 90, 0);
    both.send(1, id, 1, 20, 0);
    // A sender whose message does not fit does not check its permission again.
    both.set_queue(0, id, 0o600, 100);
    both.set_queue(0, id, 0o600, 200);
    both.set_queue(0, id, 0o666, 100);
    both.send(1, id, 1, 20, 0);
    both.set_queue(0, id, 0o666, 120);
    both.msg_stat(id);
}

fn wait_ends(both: &mut Pairing) {
    let id = both.queue();
    both.receive(1, id, 7, 100, 0);
    both.step(1, &Step::Interrupt);
    both.receive(1, id, 7, 100, 0);
    both.step(1, &Step::Exit);
    both.send(0, id, 1, 8192, 0);
    both.send(0, id, 1, 8192, 0);
    both.send(1, id, 1, 1, 0);
    both.step(1, &Step::Interrupt);
    both.send(1, id, 1, 1, 0);
    both.step(1, &Step::Exit);
    both.receive(0, id, 7, 100, 0);
    both.send(1, id, 1, 1, 0);
    both.msg(3, MsgOp::Ctl { id, cmd: libc::IPC_RMID });
    both.receive(0, id, 7, 100, 0);
    both.msg(3, MsgOp::Totals { cmd: 12 });
}

fn ids(both: &mut Pairing) {
    for round in 0..70 {
        let id = both.queue();
        if round % 3 != 0 {
            both.msg(0, MsgOp::Ctl { id, cmd: libc::IPC_RMID });
            both.send(1, id, 1, 1, 0);
        }
    }
    both.msg(0, MsgOp::Totals { cmd: 12 });
}
