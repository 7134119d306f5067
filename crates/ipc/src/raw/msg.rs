//! Message queues.
//!
//! Source: `include/uapi/linux/msg.h`; msgop(2), msgctl(2).

use rustix::io::Errno;

use super::get_flags;
use crate::ctl::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT};
use crate::flags::MsgFlags;
use crate::handle::MsgId;
use crate::msg::{Arrived, MSG_INFO, MSG_STAT, MSG_STAT_ANY, MsgStat, Received};
use crate::task::Task;

/// The fixed part of the result of `IPC_INFO`: kilobytes, and the size and number of pieces.
const MSGPOOL: i32 = 512_000;
const MSGSSZ: i32 = 16;
const MSGSEG: u16 = 0xffff;
const MSGMNB: i32 = 16_384;

/// The limits as `IPC_INFO` and `MSG_INFO` tell them. Laid out like `struct msginfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of msgctl(2)")]
pub struct Msginfo {
    /// With `MSG_INFO`: queues that there are.
    pub msgpool: i32,
    /// With `MSG_INFO`: messages that there are.
    pub msgmap: i32,
    pub msgmax: i32,
    pub msgmnb: i32,
    pub msgmni: i32,
    pub msgssz: i32,
    /// With `MSG_INFO`: bytes of all messages.
    pub msgtql: i32,
    pub msgseg: u16,
}

/// The last argument of msgctl(2).
#[derive(Debug)]
pub enum MsgArg<'a> {
    /// Nothing.
    None,
    /// The structure that `IPC_SET` reads, and `IPC_STAT` and its like write.
    Buf(&'a mut MsgStat),
    /// The structure that `IPC_INFO` and `MSG_INFO` write.
    Msginfo(&'a mut Msginfo),
}

/// msgget(2).
///
/// # Errors
///
/// Those of [`Task::msgget`].
pub fn msgget(task: &Task, key: i32, msgflg: i32) -> Result<i32, Errno> {
    let (flags, mode) = get_flags(msgflg);
    task.msgget(key, flags, mode).map(MsgId::raw)
}

/// Checks the arguments that msgsnd(2) checks before it reads the text. Callers with an address of
/// the text use it.
///
/// # Errors
///
/// `EINVAL` for a negative `msqid`, an `mtype` below 1, or a size above `MSGMAX`.
pub fn msgsnd_check(task: &Task, msqid: i32, mtype: i64, msgsz: usize) -> Result<(), Errno> {
    let is_good = msqid >= 0 && mtype >= 1 && msgsz <= task.limits().msgmax as usize;
    if is_good { Ok(()) } else { Err(Errno::INVAL) }
}

/// msgsnd(2).
///
/// # Errors
///
/// Those of [`Task::msgsnd`].
#[inline]
pub fn msgsnd(task: &Task, msqid: i32, mtype: i64, text: &[u8], msgflg: i32) -> Result<(), Errno> {
    task.msgsnd(MsgId::from_raw(msqid), mtype, text, MsgFlags::from_bits_retain(msgflg))
}

/// msgrcv(2).
///
/// # Errors
///
/// Those of [`Task::msgrcv`].
#[inline]
pub fn msgrcv(
    task: &Task,
    msqid: i32,
    text: &mut [u8],
    msgtyp: i64,
    msgflg: i32,
) -> Result<Received, Errno> {
    task.msgrcv(MsgId::from_raw(msqid), text, msgtyp, MsgFlags::from_bits_retain(msgflg))
}

/// msgrcv(2) for callers that have an address only: the message tells how much there is to write.
///
/// # Errors
///
/// Those of [`Task::msgrcv`]; `EINVAL` also for a size above `isize::MAX`.
#[inline]
pub fn msgrcv_owned(
    task: &Task,
    msqid: i32,
    msgsz: usize,
    msgtyp: i64,
    msgflg: i32,
) -> Result<Arrived<'_>, Errno> {
    if isize::try_from(msgsz).is_err() {
        return Err(Errno::INVAL);
    }
    let flags = MsgFlags::from_bits_retain(msgflg);
    task.msgrcv_owned(MsgId::from_raw(msqid), msgsz, msgtyp, flags)
}

/// msgctl(2).
///
/// # Errors
///
/// Those of the command's own method of [`Task`]; `EINVAL` for an unknown command or a negative
/// `msqid`; `EFAULT` if `arg` is not what the command needs.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::raw::{self, MsgArg};
/// use corewalk_ipc::{Cred, IPC_PRIVATE, IPC_RMID, IPC_STAT, MsgStat, Namespace, NamespaceOptions};
/// use rustix::io::Errno;
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let task = namespace.register(Cred::root(), 1)?;
/// let id = raw::msgget(&task, IPC_PRIVATE, 0o600)?;
/// raw::msgsnd(&task, id, 1, b"text", 0)?;
/// let mut stat = MsgStat::default();
/// raw::msgctl(&task, id, IPC_STAT, MsgArg::Buf(&mut stat))?;
/// assert_eq!((stat.qnum, stat.cbytes), (1, 4));
/// assert_eq!(raw::msgctl(&task, id, IPC_STAT, MsgArg::None), Err(Errno::FAULT));
/// raw::msgctl(&task, id, IPC_RMID, MsgArg::None)?;
/// # Ok::<(), Errno>(())
/// ```
pub fn msgctl(task: &Task, msqid: i32, cmd: i32, arg: MsgArg<'_>) -> Result<i32, Errno> {
    if msqid < 0 {
        return Err(Errno::INVAL);
    }
    let id = MsgId::from_raw(msqid);
    match cmd {
        IPC_RMID => task.msg_rmid(id).map(|()| 0),
        IPC_SET => {
            let MsgArg::Buf(MsgStat { perm, qbytes, .. }) = arg else { return Err(Errno::FAULT) };
            task.msg_set(id, perm.uid, perm.gid, perm.mode, *qbytes).map(|()| 0)
        }
        IPC_STAT | MSG_STAT | MSG_STAT_ANY => {
            let stat = match cmd {
                IPC_STAT => task.msg_stat(id)?,
                MSG_STAT => task.msg_stat_index(msqid)?,
                _ => task.msg_stat_any(msqid)?,
            };
            let MsgArg::Buf(buf) = arg else { return Err(Errno::FAULT) };
            *buf = stat;
            Ok(if cmd == IPC_STAT { 0 } else { stat.id.raw() })
        }
        IPC_INFO | MSG_INFO => info(task, cmd, arg),
        _ => Err(Errno::INVAL),
    }
}

fn info(task: &Task, cmd: i32, arg: MsgArg<'_>) -> Result<i32, Errno> {
    let totals = task.msg_totals()?;
    let limits = task.limits();
    let MsgArg::Msginfo(msginfo) = arg else { return Err(Errno::FAULT) };
    let int = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    let is_totals = cmd == MSG_INFO;
    *msginfo = Msginfo {
        msgpool: if is_totals { totals.queues.cast_signed() } else { MSGPOOL },
        msgmap: if is_totals { int(totals.messages) } else { MSGMNB },
        msgmax: int(u64::from(limits.msgmax)),
        msgmnb: int(u64::from(limits.msgmnb)),
        msgmni: int(u64::from(limits.msgmni)),
        msgssz: MSGSSZ,
        msgtql: if is_totals { int(totals.bytes) } else { MSGMNB },
        msgseg: MSGSEG,
    };
    Ok(totals.index_max.cast_signed())
}
