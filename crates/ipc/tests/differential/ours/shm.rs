//! Operations on shared memory, on the corewalk side of a differential test.
//!
//! This code plays the caller of `shmat`. It maps nothing, and only records the addresses.

use std::collections::BTreeMap;

use corewalk_ipc::{SHM_STAT, ShmFlags, ShmId, ShmStat, Task};
use rustix::io::Errno;

use super::{Mutation, errno, get_flags, number};
use crate::op::{Answer, answer};
use crate::shm::{FIXED, ShmOp, place};

/// The first pid for forked children. No other task has such a pid. The comparison replaces these
/// pids by -1, like the pid of a child that was forked on the kernel's side.
const CHILD_PIDS: u32 = 1 << 20;

/// The attaches of a worker, and its forked children.
#[derive(Default)]
pub(crate) struct State {
    attached: Vec<usize>,
    /// The size of each mapping, by address.
    mapped: BTreeMap<usize, usize>,
    next: usize,
    children: Vec<Task>,
}

impl State {
    /// Removes an attach from the list, and returns its address. If the list is too short, returns
    /// an address at which nothing is attached.
    fn forget(&mut self, nth: i32) -> usize {
        let nth = nth as usize;
        if nth < self.attached.len() { self.attached.remove(nth) } else { 4096 }
    }
}

/// Makes the call by this crate.
pub(crate) fn on_ours(task: &Task, op: &ShmOp, mutation: Mutation, state: &mut State) -> Answer {
    match *op {
        ShmOp::Get { key, size, flags } => {
            let (flags, mode) = get_flags(flags);
            answer(task.shmget(key, size, flags, mode).map_err(errno), |id| number(id.raw()))
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
            answer(command(task, ShmId::from_raw(id), cmd).map(|()| 0).map_err(errno), number)
        }
        ShmOp::Stat { id, cmd } => answer(stat(task, id, cmd).map_err(errno), |stat| {
            let result = if cmd == libc::IPC_STAT { 0 } else { stat.id.raw() };
            let perm = stat.perm;
            let mut numbers = vec![i64::from(result), i64::from(perm.key)];
            numbers.extend([perm.uid, perm.gid, perm.cuid, perm.cgid].map(i64::from));
            let hidden = if mutation == Mutation::NoDest { 0o1000 } else { 0 };
            numbers.push(i64::from(perm.mode & !hidden));
            numbers.extend([stat.size_bytes, stat.nattch].map(u64::cast_signed));
            numbers.extend([stat.cpid, stat.lpid].map(i64::from));
            numbers.extend([stat.atime_s != 0, stat.dtime_s != 0].map(i64::from));
            numbers
        }),
        ShmOp::Set { id, uid, gid, mode } => {
            let done = task.shm_set(ShmId::from_raw(id), uid, gid, mode as u16);
            answer(done.map(|()| 0).map_err(errno), number)
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

/// Makes a call of shmat(2). Refuses an address that overlaps another attach.
fn attach(
    task: &Task,
    state: &mut State,
    id: i32,
    offset: Option<i32>,
    flags: i32,
) -> Result<usize, Errno> {
    let address = offset.map_or(0, |offset| FIXED + offset as usize);
    let mapping = task.shmat(ShmId::from_raw(id), address, ShmFlags::from_bits_retain(flags))?;
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

/// Makes a call of shmctl(2) for a command without an argument.
fn command(task: &Task, id: ShmId, cmd: i32) -> Result<(), Errno> {
    match cmd {
        libc::IPC_RMID => task.shm_rmid(id),
        libc::SHM_LOCK => task.shm_lock(id),
        libc::SHM_UNLOCK => task.shm_unlock(id),
        // As in the preload library.
        _ => Err(Errno::INVAL),
    }
}

fn stat(task: &Task, id: i32, cmd: i32) -> Result<ShmStat, Errno> {
    match cmd {
        libc::IPC_STAT => task.shm_stat(ShmId::from_raw(id)),
        // A negative number is no index, as in the preload library.
        _ if id < 0 => Err(Errno::INVAL),
        SHM_STAT => task.shm_stat_index(id),
        _ => task.shm_stat_any(id),
    }
}

fn totals(task: &Task, cmd: i32) -> Result<Vec<i64>, Errno> {
    let (totals, limits) = (task.shm_totals()?, task.limits());
    let index_max = i64::from(totals.index_max);
    if cmd == libc::IPC_INFO {
        let shmmni = limits.shmmni.into();
        let numbers = [limits.shmmax, 1, shmmni, shmmni, limits.shmall];
        return Ok([index_max].into_iter().chain(numbers.map(u64::cast_signed)).collect());
    }
    Ok(vec![index_max, i64::from(totals.segments), totals.pages.cast_signed(), 0, 0, 0])
}
