//! Operations on shared memory, by this crate.
//!
//! This side acts as the caller of `shmat`. It maps nothing, but records the addresses.

use std::collections::BTreeMap;

use corewalk_ipc::{ShmStat, Task, raw};
use rustix::io::Errno;

use super::Mutation;
use crate::op::{Answer, answer};
use crate::shm::{FIXED, ShmOp, place};

/// The first pid of children on this side. The side of the kernel does not know these pids.
const CHILD_PIDS: u32 = 1 << 20;

/// The attaches and the children of a worker.
#[derive(Default)]
pub(crate) struct State {
    attached: Vec<usize>,
    /// The size of each mapping, by address.
    mapped: BTreeMap<usize, usize>,
    next: usize,
    children: Vec<Task>,
}

impl State {
    /// Removes the attach at position `nth`, and returns its address. Returns an unused address if
    /// there is none.
    fn forget(&mut self, nth: i32) -> usize {
        let nth = nth as usize;
        if nth < self.attached.len() { self.attached.remove(nth) } else { 4096 }
    }
}

fn number(value: i32) -> Vec<i64> {
    vec![i64::from(value)]
}

/// Makes the call by this crate.
pub(crate) fn on_ours(task: &Task, op: &ShmOp, mutation: Mutation, state: &mut State) -> Answer {
    let errno = |error: Errno| error.raw_os_error();
    match *op {
        ShmOp::Get { key, size, flags } => {
            answer(raw::shmget(task, key, size, flags).map_err(errno), number)
        }
        ShmOp::At { id, offset, flags } => {
            let attached = attach(task, state, id, offset, flags);
            state.attached.extend(attached.ok());
            answer(attached.map_err(errno), |address| place(address, offset))
        }
        ShmOp::Dt { nth } => {
            let address = state.forget(nth);
            state.mapped.remove(&address);
            answer(task.shmdt(address).map(|_| 0).map_err(errno), number)
        }
        ShmOp::Ctl { id, cmd } => {
            answer(raw::shmctl(task, id, cmd, raw::ShmArg::None).map_err(errno), number)
        }
        ShmOp::Stat { id, cmd } => {
            let mut stat = ShmStat::default();
            let arg = raw::ShmArg::Buf(&mut stat);
            answer(raw::shmctl(task, id, cmd, arg).map_err(errno), |result| {
                let perm = stat.perm;
                let mut numbers = vec![i64::from(result), i64::from(perm.key)];
                numbers.extend([perm.uid, perm.gid, perm.cuid, perm.cgid].map(i64::from));
                let hidden = if mutation == Mutation::NoDest { 0o1000 } else { 0 };
                numbers.push(i64::from(perm.mode & !hidden));
                numbers.extend([stat.size_bytes, stat.nattch].map(u64::cast_signed));
                numbers.extend([stat.cpid, stat.lpid].map(i64::from));
                numbers.extend([stat.atime_s != 0, stat.dtime_s != 0].map(i64::from));
                numbers
            })
        }
        ShmOp::Set { id, uid, gid, mode } => {
            let mut stat = ShmStat::default();
            (stat.perm.uid, stat.perm.gid, stat.perm.mode) = (uid, gid, mode as u16);
            let arg = raw::ShmArg::Buf(&mut stat);
            answer(raw::shmctl(task, id, libc::IPC_SET, arg).map_err(errno), number)
        }
        ShmOp::Totals { cmd } => answer(totals(task, cmd).map_err(errno), |numbers| numbers),
        ShmOp::Fork => {
            let pid = CHILD_PIDS + state.children.len() as u32;
            answer(task.fork(pid).map_err(errno), |child| {
                state.children.push(child);
                Vec::new()
            })
        }
        ShmOp::EndChildren => {
            state.children.clear();
            vec![0]
        }
    }
}

/// Attaches a segment without a mapping. The address is refused if it overlaps another attach.
fn attach(
    task: &Task,
    state: &mut State,
    id: i32,
    offset: Option<i32>,
    flags: i32,
) -> Result<usize, Errno> {
    let address = offset.map_or(0, |offset| FIXED + offset as usize);
    let mapping = raw::shmat(task, id, address, flags)?;
    let size = mapping.size_bytes().next_multiple_of(4096) as usize;
    let start = mapping.address().unwrap_or_else(|| {
        state.next += 1 << 32;
        state.next
    });
    let is_apart =
        |(other, length): (&usize, &usize)| other + length <= start || *other >= start + size;
    if !state.mapped.iter().all(is_apart) {
        return Err(Errno::INVAL);
    }
    assert!(flags & libc::SHM_RND != 0 || mapping.address().is_none_or(|at| at == address));
    mapping.attached_at(start);
    state.mapped.insert(start, size);
    Ok(start)
}

fn totals(task: &Task, cmd: i32) -> Result<Vec<i64>, Errno> {
    if cmd == libc::IPC_INFO {
        let mut info = raw::Shminfo::default();
        let result = raw::shmctl(task, 0, cmd, raw::ShmArg::Shminfo(&mut info))?;
        let numbers = [info.shmmax, info.shmmin, info.shmmni, info.shmseg, info.shmall];
        return Ok([i64::from(result)].into_iter().chain(numbers.map(u64::cast_signed)).collect());
    }
    let mut info = raw::ShmUsage::default();
    let result = raw::shmctl(task, 0, cmd, raw::ShmArg::ShmUsage(&mut info))?;
    Ok(vec![i64::from(result), i64::from(info.used_ids), info.shm_tot.cast_signed(), 0, 0, 0])
}
