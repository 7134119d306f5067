//! msgget(2), msgsnd(2), msgrcv(2), msgctl(2).
//!
//! The library copies the text of a message straight between the caller's buffer and the namespace.
//! If another thread changes the buffer meanwhile, the message mixes old and new bytes, as with the
//! kernel.
//!
//! Source: msgop(2), msgctl(2), `<sys/msg.h>` of glibc.

use corewalk_ipc::{
    IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, MSG_INFO, MSG_STAT, MSG_STAT_ANY, MsgFlags, MsgId,
    MsgStat, Task,
};
use libc::{c_int, c_long, c_void, key_t, msginfo, size_t, ssize_t};
use rustix::io::Errno;

use crate::call;
use crate::perm::{get_flags, ipc_perm};
use crate::user::{self, Access};

/// The offset of the text in a `struct msgbuf`, in bytes.
const TEXT: usize = size_of::<c_long>();

/// The values that `IPC_INFO` returns in `msgssz` and `msgseg`. They are constants in Linux.
const MSGSSZ: i32 = 16;
const MSGSEG: u16 = 0xffff;

/// msgget(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn msgget(key: key_t, msgflg: c_int) -> c_int {
    let (flags, mode) = get_flags(msgflg);
    call::make(|task| task.msgget(key, flags, mode).map(MsgId::raw))
}

/// msgsnd(2).
///
/// # Safety
///
/// No other thread unmaps the memory at `message` during the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msgsnd(
    msqid: c_int,
    message: *const c_void,
    size: size_t,
    msgflg: c_int,
) -> c_int {
    call::make(|task| {
        let address = message.expose_provenance();
        // SAFETY: any bits are a type.
        let mtype = unsafe { user::read::<c_long>(address) }?;
        if msqid < 0 || size > task.limits().msgmax as usize || mtype < 1 {
            return Err(Errno::INVAL);
        }
        user::check(address.wrapping_add(TEXT), size, Access::Read)?;
        let text = message.cast::<u8>().wrapping_add(TEXT);
        // SAFETY: `user::check` has found `size` readable bytes at `text`.
        let text = unsafe { std::slice::from_raw_parts(text, size) };
        let flags = MsgFlags::from_bits_retain(msgflg);
        task.msgsnd(MsgId::from_raw(msqid), mtype, text, flags).map(|()| 0)
    })
}

/// msgrcv(2).
///
/// # Safety
///
/// The memory at `message` may be overwritten.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msgrcv(
    msqid: c_int,
    message: *mut c_void,
    size: size_t,
    msgtyp: c_long,
    msgflg: c_int,
) -> ssize_t {
    call::make(|task| {
        if msqid < 0 || size > ssize_t::MAX as usize {
            return Err(Errno::INVAL);
        }
        let flags = MsgFlags::from_bits_retain(msgflg);
        let arrived = task.msgrcv_owned(MsgId::from_raw(msqid), size, msgtyp, flags)?;
        let length = arrived.size_bytes().min(size);
        // If the program's buffer cannot be written, the received message is lost, as with the
        // kernel.
        user::check(message.expose_provenance(), TEXT + length, Access::Write)?;
        // SAFETY: the buffer has room for the message type; `write_unaligned` allows an odd
        // address.
        unsafe { message.cast::<c_long>().write_unaligned(arrived.mtype()) };
        let text = message.cast::<u8>().wrapping_add(TEXT);
        // SAFETY: the buffer has room for `length` bytes, and any bits are valid bytes.
        let text = unsafe { std::slice::from_raw_parts_mut(text, length) };
        Ok(arrived.read(text) as ssize_t)
    })
}

/// msgctl(2).
///
/// # Safety
///
/// The call may overwrite the memory at `buf` with the result of the command `cmd`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn msgctl(msqid: c_int, cmd: c_int, buf: *mut c_void) -> c_int {
    call::make(|task| {
        let (id, buf) = (MsgId::from_raw(msqid), buf.expose_provenance());
        let stat = match cmd {
            _ if msqid < 0 => return Err(Errno::INVAL),
            IPC_STAT => task.msg_stat(id)?,
            MSG_STAT => task.msg_stat_index(msqid)?,
            MSG_STAT_ANY => task.msg_stat_any(msqid)?,
            IPC_RMID => return task.msg_rmid(id).map(|()| 0),
            IPC_SET => {
                // SAFETY: any bytes are a valid `msqid_ds`, which consists of numbers.
                let ds = unsafe { user::read::<libc::msqid_ds>(buf) }?;
                let perm = ds.msg_perm;
                let set = task.msg_set(id, perm.uid, perm.gid, perm.mode as _, ds.msg_qbytes);
                return set.map(|()| 0);
            }
            IPC_INFO | MSG_INFO => {
                let (index_max, info) = info(task, cmd)?;
                // SAFETY: `IPC_INFO` and `MSG_INFO` write a `struct msginfo` to `buf`, which the
                // program has passed.
                return unsafe { user::write(buf, info) }.map(|()| index_max);
            }
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: `IPC_STAT` and its variants write a `struct msqid_ds` to `buf`, which the program
        // has passed.
        unsafe { user::write(buf, msqid_ds(&stat)) }?;
        Ok(if cmd == IPC_STAT { 0 } else { stat.id.raw() })
    })
}

fn info(task: &Task, cmd: c_int) -> Result<(c_int, msginfo), Errno> {
    let (totals, limits) = (task.msg_totals()?, task.limits());
    let saturated = |number: u64| i32::try_from(number).unwrap_or(i32::MAX);
    let (msgpool, msgmap, msgtql) = match cmd {
        MSG_INFO => {
            (totals.queues.cast_signed(), saturated(totals.messages), saturated(totals.bytes))
        }
        // Linux computes `msgpool`, `msgmap` and `msgtql` from its default limits, even if the
        // limits were changed.
        _ => (512_000, 16_384, 16_384),
    };
    let info = msginfo {
        msgpool,
        msgmap,
        msgmax: limits.msgmax.cast_signed(),
        msgmnb: limits.msgmnb.cast_signed(),
        msgmni: limits.msgmni.cast_signed(),
        msgssz: MSGSSZ,
        msgtql,
        msgseg: MSGSEG,
    };
    Ok((totals.index_max.cast_signed(), info))
}

/// Returns the structure of `IPC_STAT`.
fn msqid_ds(stat: &MsgStat) -> libc::msqid_ds {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
    ds.msg_perm = ipc_perm(&stat.perm);
    ds.msg_stime = stat.stime_s.cast_signed();
    ds.msg_rtime = stat.rtime_s.cast_signed();
    ds.msg_ctime = stat.ctime_s.cast_signed();
    ds.__msg_cbytes = stat.cbytes;
    ds.msg_qnum = stat.qnum;
    ds.msg_qbytes = stat.qbytes;
    ds.msg_lspid = stat.lspid.cast_signed();
    ds.msg_lrpid = stat.lrpid.cast_signed();
    ds
}
