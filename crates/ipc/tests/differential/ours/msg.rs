//! Operations on message queues, by this crate.

use corewalk_ipc::{MsgFlags, MsgId, MsgStat, Task};
use rustix::io::Errno;

use super::{Mutation, errno, get_flags, number};
use crate::msg::{MsgOp, received, text};
use crate::op::{Answer, answer};

/// Makes the call by this crate.
pub(crate) fn on_ours(task: &Task, op: &MsgOp, mutation: Mutation) -> Answer {
    match *op {
        MsgOp::Get { key, flags } => {
            let (flags, mode) = get_flags(flags);
            answer(task.msgget(key, flags, mode).map_err(errno), |id| number(id.raw()))
        }
        MsgOp::Send { id, mtype, size, mark, flags } => {
            let flags = MsgFlags::from_bits_retain(flags);
            let sent = task.msgsnd(MsgId::from_raw(id), mtype, &text(size, mark), flags);
            answer(sent.map(|()| 0).map_err(errno), number)
        }
        MsgOp::Receive { id, size, msgtyp, flags } => {
            let msgtyp = match mutation {
                Mutation::NoLowest if msgtyp < 0 => 0,
                _ => msgtyp,
            };
            let mut text = vec![0; size as usize];
            let flags = MsgFlags::from_bits_retain(flags);
            let result = task.msgrcv(MsgId::from_raw(id), &mut text, msgtyp, flags);
            answer(result.map_err(errno), |got| received(got.mtype, &text[..got.size_bytes]))
        }
        MsgOp::Ctl { id, cmd } => {
            // As in the preload library.
            let is_known = cmd == libc::IPC_RMID;
            let done =
                if is_known { task.msg_rmid(MsgId::from_raw(id)) } else { Err(Errno::INVAL) };
            answer(done.map(|()| 0).map_err(errno), number)
        }
        MsgOp::Stat { id, cmd } => answer(stat(task, id, cmd).map_err(errno), |stat| {
            let result = if cmd == libc::IPC_STAT { 0 } else { stat.id.raw() };
            let perm = stat.perm;
            let mut numbers = vec![i64::from(result), i64::from(perm.key)];
            numbers.extend([perm.uid, perm.gid, perm.cuid, perm.cgid].map(i64::from));
            numbers.push(i64::from(perm.mode));
            numbers.extend([stat.cbytes, stat.qnum, stat.qbytes].map(u64::cast_signed));
            numbers.extend([stat.lspid, stat.lrpid].map(i64::from));
            numbers.extend([stat.stime_s != 0, stat.rtime_s != 0].map(i64::from));
            numbers
        }),
        MsgOp::Set { id, uid, gid, mode, qbytes } => {
            let done = task.msg_set(MsgId::from_raw(id), uid, gid, mode as u16, qbytes);
            answer(done.map(|()| 0).map_err(errno), number)
        }
        MsgOp::Totals { cmd } => answer(totals(task, cmd).map_err(errno), |numbers| numbers),
    }
}

fn stat(task: &Task, id: i32, cmd: i32) -> Result<MsgStat, Errno> {
    match cmd {
        libc::IPC_STAT => task.msg_stat(MsgId::from_raw(id)),
        // A negative number is no index, as in the preload library.
        _ if id < 0 => Err(Errno::INVAL),
        libc::MSG_STAT => task.msg_stat_index(id),
        _ => task.msg_stat_any(id),
    }
}

/// Returns the highest index and the numbers of `struct msginfo`.
fn totals(task: &Task, cmd: i32) -> Result<Vec<i64>, Errno> {
    let (totals, limits) = (task.msg_totals()?, task.limits());
    let (msgpool, msgmap, msgtql) = if cmd == libc::IPC_INFO {
        (512_000, 16_384, 16_384)
    } else {
        (totals.queues, totals.messages, totals.bytes)
    };
    let limits = [limits.msgmax, limits.msgmnb, limits.msgmni].map(i64::from);
    let first = [totals.index_max, msgpool].map(i64::from);
    let [msgmap, msgtql] = [msgmap, msgtql].map(u64::cast_signed);
    Ok([&first[..], &[msgmap], &limits, &[16, msgtql, 0xffff]].concat())
}
