//! Operations on message queues, by this crate.

use corewalk_ipc::{MsgStat, Task, raw};
use rustix::io::Errno;

use super::Mutation;
use crate::msg::{MsgOp, received, text};
use crate::op::{Answer, answer};

/// Makes the call by this crate.
pub(crate) fn on_ours(task: &Task, op: &MsgOp, mutation: Mutation) -> Answer {
    let errno = |error: Errno| error.raw_os_error();
    match *op {
        MsgOp::Get { key, flags } => answer(raw::msgget(task, key, flags).map_err(errno), number),
        MsgOp::Send { id, mtype, size, mark, flags } => {
            let sent = raw::msgsnd(task, id, mtype, &text(size, mark), flags);
            answer(sent.map(|()| 0).map_err(errno), number)
        }
        MsgOp::Receive { id, size, msgtyp, flags } => {
            let msgtyp = match mutation {
                Mutation::NoLowest if msgtyp < 0 => 0,
                _ => msgtyp,
            };
            let mut text = vec![0; size as usize];
            let result = raw::msgrcv(task, id, &mut text, msgtyp, flags).map_err(errno);
            answer(result, |got| received(got.mtype, &text[..got.size_bytes]))
        }
        MsgOp::Ctl { id, cmd } => {
            answer(raw::msgctl(task, id, cmd, raw::MsgArg::None).map_err(errno), number)
        }
        MsgOp::Stat { id, cmd } => {
            let mut stat = MsgStat::default();
            let arg = raw::MsgArg::Buf(&mut stat);
            answer(raw::msgctl(task, id, cmd, arg).map_err(errno), |result| {
                let perm = stat.perm;
                let mut numbers = vec![i64::from(result), i64::from(perm.key)];
                numbers.extend([perm.uid, perm.gid, perm.cuid, perm.cgid].map(i64::from));
                numbers.push(i64::from(perm.mode));
                numbers.extend([stat.cbytes, stat.qnum, stat.qbytes].map(u64::cast_signed));
                numbers.extend([stat.lspid, stat.lrpid].map(i64::from));
                numbers.extend([stat.stime_s != 0, stat.rtime_s != 0].map(i64::from));
                numbers
            })
        }
        MsgOp::Set { id, uid, gid, mode, qbytes } => {
            let mut stat = MsgStat { qbytes, ..MsgStat::default() };
            (stat.perm.uid, stat.perm.gid, stat.perm.mode) = (uid, gid, mode as u16);
            let arg = raw::MsgArg::Buf(&mut stat);
            answer(raw::msgctl(task, id, libc::IPC_SET, arg).map_err(errno), number)
        }
        MsgOp::Totals { cmd } => {
            let mut info = raw::Msginfo::default();
            let arg = raw::MsgArg::Msginfo(&mut info);
            answer(raw::msgctl(task, 0, cmd, arg).map_err(errno), |result| {
                let raw::Msginfo { msgpool, msgmap, msgmax, msgmnb, .. } = info;
                let raw::Msginfo { msgmni, msgssz, msgtql, msgseg, .. } = info;
                let seg = i32::from(msgseg);
                let numbers =
                    [result, msgpool, msgmap, msgmax, msgmnb, msgmni, msgssz, msgtql, seg];
                numbers.into_iter().map(i64::from).collect()
            })
        }
    }
}

fn number(value: i32) -> Vec<i64> {
    vec![i64::from(value)]
}
