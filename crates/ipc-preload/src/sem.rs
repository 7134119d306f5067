//! semget(2), semop(2), semtimedop(2), semctl(2).
//!
//! The library copies the operations of semop(2) before it checks them, as the kernel does, because
//! another thread may change them after the check.
//!
//! Source: semop(2), semctl(2), `<sys/sem.h>` of glibc.

use corewalk_ipc::{
    GETALL, GETNCNT, GETPID, GETVAL, GETZCNT, IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, SEM_INFO,
    SEM_STAT, SEM_STAT_ANY, SEMAEM, SEMVMX, SETALL, SETVAL, SemBuf, SemId, SemStat, Task,
};
use libc::{c_int, key_t, seminfo, size_t, timespec};
use rustix::io::Errno;
use smallvec::SmallVec;
use std::time::Duration;

use crate::call;
use crate::perm::{get_flags, ipc_perm};
use crate::user::{self, Access};

const SOPS_INLINE: usize = 8;

/// Constants that Linux returns for `IPC_INFO`: in `semmap` and `semmnu`, in `semume`, and in
/// `semusz`.
const SEMMNU: c_int = 1_024_000_000;
const SEMUME: c_int = 500;
const SEMUSZ: c_int = 20;

/// semget(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn semget(key: key_t, nsems: c_int, semflg: c_int) -> c_int {
    let (flags, mode) = get_flags(semflg);
    call::make(|task| task.semget(key, nsems, flags, mode).map(SemId::raw))
}

/// semop(2).
///
/// # Safety
///
/// Any pointer is allowed. If the memory cannot be read, the call returns `EFAULT`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semop(semid: c_int, sops: *mut SemBuf, nsops: size_t) -> c_int {
    call::make(|task| operate(task, semid, sops.cast_const(), nsops, None))
}

/// semtimedop(2).
///
/// # Safety
///
/// Any pointer is allowed. If the memory cannot be read, the call returns `EFAULT`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semtimedop(
    semid: c_int,
    sops: *mut SemBuf,
    nsops: size_t,
    timeout: *const timespec,
) -> c_int {
    call::make(|task| {
        let read = |timeout: *const timespec| {
            // SAFETY: any bytes are a valid `timespec`, which consists of numbers.
            unsafe { user::read(timeout.expose_provenance()) }
        };
        let timeout = (!timeout.is_null()).then(|| read(timeout)).transpose()?;
        operate(task, semid, sops.cast_const(), nsops, timeout)
    })
}

/// Copies the operations and carries them out.
#[inline]
fn operate(
    task: &Task,
    semid: c_int,
    sops: *const SemBuf,
    nsops: size_t,
    timeout: Option<timespec>,
) -> Result<c_int, Errno> {
    let (id, sops) = (SemId::from_raw(semid), sops.expose_provenance());
    let read = |at: usize| {
        // SAFETY: any bytes are a valid `SemBuf`, which consists of numbers.
        unsafe { user::read::<SemBuf>(sops.wrapping_add(at * size_of::<SemBuf>())) }
    };
    if nsops == 1 {
        let sop = [read(0)?];
        return task.semtimedop(id, &sop, duration(timeout)?).map(|()| 0);
    }
    if nsops > task.limits().semopm as usize {
        return Err(Errno::TOOBIG);
    }
    if nsops == 0 {
        return Err(Errno::INVAL);
    }
    let sops: Result<SmallVec<[SemBuf; SOPS_INLINE]>, Errno> = (0..nsops).map(read).collect();
    task.semtimedop(id, &sops?, duration(timeout)?).map(|()| 0)
}

#[inline]
fn duration(timeout: Option<timespec>) -> Result<Option<Duration>, Errno> {
    let Some(timespec { tv_sec, tv_nsec, .. }) = timeout else { return Ok(None) };
    let nsec = u32::try_from(tv_nsec).ok().filter(|nsec| *nsec < 1_000_000_000);
    let sec = u64::try_from(tv_sec).map_err(|_| Errno::INVAL)?;
    Ok(Some(Duration::new(sec, nsec.ok_or(Errno::INVAL)?)))
}

/// semctl(2).
///
/// semctl(2) is variadic in C. On the machines that this crate supports, its fourth argument is in
/// the same register as that of a function that is not variadic.
///
/// # Safety
///
/// `arg` is the argument that `cmd` needs: a number, or a pointer to memory that `cmd` reads or
/// writes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semctl(semid: c_int, semnum: c_int, cmd: c_int, arg: usize) -> c_int {
    call::make(|task| {
        let id = SemId::from_raw(semid);
        let stat = match cmd {
            _ if semid < 0 => return Err(Errno::INVAL),
            IPC_STAT => task.sem_stat(id)?,
            SEM_STAT => task.sem_stat_index(semid)?,
            SEM_STAT_ANY => task.sem_stat_any(semid)?,
            IPC_RMID => return task.sem_rmid(id).map(|()| 0),
            IPC_SET => {
                // SAFETY: any bytes are a valid `semid_ds`, which consists of numbers.
                let perm = unsafe { user::read::<libc::semid_ds>(arg) }?.sem_perm;
                return task.sem_set(id, perm.uid, perm.gid, perm.mode as _).map(|()| 0);
            }
            IPC_INFO | SEM_INFO => {
                let (index_max, info) = info(task, cmd)?;
                // SAFETY: `IPC_INFO` and `SEM_INFO` write a `struct seminfo` to `arg`, which the
                // program has passed.
                return unsafe { user::write(arg, info) }.map(|()| index_max);
            }
            GETVAL => return task.sem_getval(id, semnum),
            GETPID => return task.sem_getpid(id, semnum).map(u32::cast_signed),
            GETNCNT => return task.sem_getncnt(id, semnum),
            GETZCNT => return task.sem_getzcnt(id, semnum),
            SETVAL => return task.sem_setval(id, semnum, arg as c_int).map(|()| 0),
            GETALL => {
                let values = task.sem_getall(id)?;
                let bytes = size_of_val(&values[..]);
                user::check(arg, bytes, Access::Write)?;
                let to = std::ptr::with_exposed_provenance_mut::<u8>(arg);
                // SAFETY: `check` has found that the program's memory at `to` is writable. It has
                // space for one value per semaphore.
                unsafe { to.copy_from_nonoverlapping(values.as_ptr().cast(), bytes) };
                return Ok(0);
            }
            SETALL => {
                let count = task.sem_nsems(id)?;
                user::check(arg, count * size_of::<u16>(), Access::Read)?;
                let from = std::ptr::with_exposed_provenance::<u16>(arg);
                // SAFETY: `check` has found that the memory of `count` values can be read.
                let values = (0..count).map(|at| unsafe { from.wrapping_add(at).read_unaligned() });
                return task.sem_setall(id, &values.collect::<Vec<u16>>()).map(|()| 0);
            }
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: `IPC_STAT` and its variants write a `struct semid_ds` to `arg`, which the program
        // has passed.
        unsafe { user::write(arg, semid_ds(&stat)) }?;
        Ok(if cmd == IPC_STAT { 0 } else { stat.id.raw() })
    })
}

fn info(task: &Task, cmd: c_int) -> Result<(c_int, seminfo), Errno> {
    let (totals, limits) = (task.sem_totals()?, task.limits());
    let (semusz, semaem) = match cmd {
        SEM_INFO => (totals.sets.cast_signed(), i32::try_from(totals.sems).unwrap_or(i32::MAX)),
        _ => (SEMUSZ, SEMAEM),
    };
    let info = seminfo {
        semmap: SEMMNU,
        semmni: limits.semmni.cast_signed(),
        semmns: limits.semmns.cast_signed(),
        semmnu: SEMMNU,
        semmsl: limits.semmsl.cast_signed(),
        semopm: limits.semopm.cast_signed(),
        semume: SEMUME,
        semusz,
        semvmx: SEMVMX,
        semaem,
    };
    Ok((totals.index_max.cast_signed(), info))
}

/// Returns the structure of `IPC_STAT`.
fn semid_ds(stat: &SemStat) -> libc::semid_ds {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
    ds.sem_perm = ipc_perm(&stat.perm);
    ds.sem_otime = stat.otime_s.cast_signed();
    ds.sem_ctime = stat.ctime_s.cast_signed();
    ds.sem_nsems = u64::from(stat.nsems);
    ds
}
