//! semget(2), semop(2), semtimedop(2), semctl(2).
//!
//! Operations are copied before they are looked at, as the kernel does: another thread may change
//! them meanwhile.
//!
//! Source: semop(2), semctl(2), `<sys/sem.h>` of glibc.

use corewalk_ipc::raw::{self, Arg, Seminfo, Timespec};
use corewalk_ipc::{
    GETALL, IPC_INFO, IPC_SET, IPC_STAT, SEM_INFO, SEM_STAT, SEM_STAT_ANY, SETALL, SETVAL, SemBuf,
    SemId, SemStat, Task,
};
use libc::{c_int, key_t, size_t};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::call::Call;
use crate::errno;
use crate::process;
use crate::user::{self, Access};

/// Operations that are copied to the stack.
const SOPS_INLINE: usize = 8;

/// Bits of an id that are its index.
const INDEX_MASK: c_int = 0x7fff;

/// semget(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn semget(key: key_t, nsems: c_int, semflg: c_int) -> c_int {
    let _call = Call::enter();
    errno::number(process::task().and_then(|task| raw::semget(task, key, nsems, semflg)))
}

/// semop(2).
///
/// # Safety
///
/// None: what cannot be read is `EFAULT`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semop(semid: c_int, sops: *mut SemBuf, nsops: size_t) -> c_int {
    errno::number(operate(semid, sops, nsops, None))
}

/// semtimedop(2).
///
/// # Safety
///
/// None: what cannot be read is `EFAULT`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semtimedop(
    semid: c_int,
    sops: *mut SemBuf,
    nsops: size_t,
    timeout: *const Timespec,
) -> c_int {
    let read = |timeout: *const Timespec| {
        // SAFETY: it is a structure of numbers.
        unsafe { user::read(timeout.expose_provenance()) }
    };
    let timeout = (!timeout.is_null()).then(|| read(timeout)).transpose();
    let done = timeout.and_then(|timeout| operate(semid, sops, nsops, timeout));
    errno::number(done)
}

/// Copies the operations and carries them out.
#[inline]
fn operate(
    semid: c_int,
    sops: *const SemBuf,
    nsops: size_t,
    timeout: Option<Timespec>,
) -> Result<i32, Errno> {
    let task = process::task()?;
    let _call = Call::enter();
    let sops = sops.expose_provenance();
    let read = |at: usize| {
        // SAFETY: it is a structure of numbers.
        unsafe { user::read::<SemBuf>(sops.wrapping_add(at * size_of::<SemBuf>())) }
    };
    if nsops == 1 {
        return raw::semtimedop(task, semid, &[read(0)?], timeout).map(|()| 0);
    }
    if nsops > task.limits().semopm as usize {
        return Err(Errno::TOOBIG);
    }
    if nsops == 0 {
        return Err(Errno::INVAL);
    }
    let sops: Result<SmallVec<[SemBuf; SOPS_INLINE]>, Errno> = (0..nsops).map(read).collect();
    raw::semtimedop(task, semid, &sops?, timeout).map(|()| 0)
}

/// semctl(2).
///
/// The function is variadic in C. A caller passes the fourth argument, a number or a pointer, in
/// the register of a fourth argument of a plain function, on the machines that this crate supports.
///
/// # Safety
///
/// `arg` is what `cmd` needs: a number, or a pointer to what it reads or writes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semctl(semid: c_int, semnum: c_int, cmd: c_int, arg: usize) -> c_int {
    let task = process::task();
    let _call = Call::enter();
    // SAFETY: the caller's promise.
    let control = |task| unsafe { control(task, semid, semnum, cmd, arg) };
    errno::number(task.and_then(control))
}

/// # Safety
///
/// That of [`semctl`].
unsafe fn control(
    task: &Task,
    semid: c_int,
    semnum: c_int,
    cmd: c_int,
    arg: usize,
) -> Result<i32, Errno> {
    match cmd {
        SETVAL => raw::semctl(task, semid, semnum, cmd, Arg::Val(arg as i32)),
        IPC_STAT | SEM_STAT | SEM_STAT_ANY => {
            let mut stat = SemStat::default();
            let done = raw::semctl(task, semid, semnum, cmd, Arg::Buf(&mut stat))?;
            // SAFETY: the command writes one of these there.
            unsafe { user::write(arg, semid_ds(&stat)) }?;
            Ok(done)
        }
        IPC_SET => {
            // SAFETY: it is a structure of numbers.
            let ds = unsafe { user::read::<libc::semid_ds>(arg) }?;
            let mut stat = SemStat::default();
            stat.perm.uid = ds.sem_perm.uid;
            stat.perm.gid = ds.sem_perm.gid;
            stat.perm.mode = ds.sem_perm.mode as _;
            raw::semctl(task, semid, semnum, cmd, Arg::Buf(&mut stat))
        }
        IPC_INFO | SEM_INFO => {
            let mut info = Seminfo::default();
            let done = raw::semctl(task, semid, semnum, cmd, Arg::Seminfo(&mut info))?;
            // SAFETY: the command writes one of these there.
            unsafe { user::write(arg, info) }?;
            Ok(done)
        }
        GETALL => {
            let values = task.sem_getall(SemId::from_raw(semid))?;
            user::check(arg, size_of_val(&values[..]), Access::Write)?;
            let to = std::ptr::with_exposed_provenance_mut::<u16>(arg);
            // SAFETY: there is room for a value per semaphore.
            values.iter().enumerate().for_each(|(at, value)| unsafe {
                to.wrapping_add(at).write_unaligned(*value);
            });
            Ok(0)
        }
        SETALL => {
            let count = nsems(task, semid);
            if user::check(arg, count * size_of::<u16>(), Access::Read).is_err() {
                return raw::semctl(task, semid, semnum, cmd, Arg::None);
            }
            let from = std::ptr::with_exposed_provenance::<u16>(arg);
            // SAFETY: there is a value per semaphore.
            let values = (0..count).map(|at| unsafe { from.wrapping_add(at).read_unaligned() });
            let values: Vec<u16> = values.collect();
            raw::semctl(task, semid, semnum, cmd, Arg::Values(&values))
        }
        _ => raw::semctl(task, semid, semnum, cmd, Arg::None),
    }
}

/// Returns how many semaphores the set has, or 0 if there is none.
fn nsems(task: &Task, semid: c_int) -> usize {
    let stat = task.sem_stat_any(semid & INDEX_MASK).ok();
    stat.filter(|stat| stat.id.raw() == semid).map_or(0, |stat| stat.nsems as usize)
}

/// Returns what `IPC_STAT` tells as C has it.
fn semid_ds(stat: &SemStat) -> libc::semid_ds {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
    ds.sem_perm = crate::perm::ipc_perm(&stat.perm);
    ds.sem_otime = stat.otime_s.cast_signed();
    ds.sem_ctime = stat.ctime_s.cast_signed();
    ds.sem_nsems = u64::from(stat.nsems);
    ds
}
