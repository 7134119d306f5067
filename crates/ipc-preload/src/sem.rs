//! semget(2), semop(2), semtimedop(2), semctl(2).
//!
//! Operations are copied before they are looked at, as the kernel does: another thread may change
//! them meanwhile. A null pointer is `EFAULT`; any other address that is not mapped ends the process,
//! where the kernel would return `EFAULT`: to know would cost a system call.
//!
//! Source: semop(2), semctl(2), `<sys/sem.h>` of glibc.

use corewalk_ipc::raw::{self, Arg, Seminfo, Timespec};
use corewalk_ipc::{
    GETALL, IPC_INFO, IPC_SET, IPC_STAT, SEM_INFO, SEM_STAT, SEM_STAT_ANY, SETALL, SETVAL, SemBuf,
    SemStat, Task,
};
use libc::{c_int, key_t, size_t};
use rustix::io::Errno;
use smallvec::SmallVec;

use crate::call::Call;
use crate::errno;
use crate::process;

/// Operations that are copied to the stack.
const SOPS_INLINE: usize = 8;

/// Bits of an id that are its index.
const INDEX_MASK: c_int = 0x7fff;

/// semget(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn semget(key: key_t, nsems: c_int, semflg: c_int) -> c_int {
    let _call = Call::enter();
    errno::number(raw::semget(process::task(), key, nsems, semflg))
}

/// semop(2).
///
/// # Safety
///
/// `sops` is null or points to `nsops` operations.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semop(semid: c_int, sops: *mut SemBuf, nsops: size_t) -> c_int {
    // SAFETY: the caller's promise.
    let done = unsafe { operate(semid, sops, nsops, None) };
    errno::number(done)
}

/// semtimedop(2).
///
/// # Safety
///
/// `sops` is null or points to `nsops` operations; `timeout` is null or points to a time.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semtimedop(
    semid: c_int,
    sops: *mut SemBuf,
    nsops: size_t,
    timeout: *const Timespec,
) -> c_int {
    // SAFETY: the caller's promise; the time is copied.
    let timeout = (!timeout.is_null()).then(|| unsafe { timeout.read_unaligned() });
    // SAFETY: the caller's promise.
    let done = unsafe { operate(semid, sops, nsops, timeout) };
    errno::number(done)
}

/// Copies the operations and carries them out.
///
/// # Safety
///
/// That of [`semop`].
#[inline]
unsafe fn operate(
    semid: c_int,
    sops: *const SemBuf,
    nsops: size_t,
    timeout: Option<Timespec>,
) -> Result<i32, Errno> {
    let task = process::task();
    let _call = Call::enter();
    if nsops == 1 && !sops.is_null() {
        // SAFETY: there is one operation; it is copied, since others may change it meanwhile.
        let sop = unsafe { sops.read_unaligned() };
        return raw::semtimedop(task, semid, &[sop], timeout).map(|()| 0);
    }
    if nsops > task.limits().semopm as usize {
        return Err(Errno::TOOBIG);
    }
    if nsops == 0 || semid < 0 {
        return Err(Errno::INVAL);
    }
    if sops.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: as above, for as many as there are.
    let sops = (0..nsops).map(|at| unsafe { sops.wrapping_add(at).read_unaligned() });
    let sops: SmallVec<[SemBuf; SOPS_INLINE]> = sops.collect();
    raw::semtimedop(task, semid, &sops, timeout).map(|()| 0)
}

/// semctl(2).
///
/// The function is variadic in C. A caller puts the fourth argument, a number or a pointer, into the
/// register that a fourth argument of a plain function has, on the machines that this crate is for.
///
/// # Safety
///
/// `arg` is what `cmd` needs: a number, or a pointer to what it reads or writes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn semctl(semid: c_int, semnum: c_int, cmd: c_int, arg: usize) -> c_int {
    let task = process::task();
    let _call = Call::enter();
    // SAFETY: the caller's promise.
    errno::number(unsafe { control(task, semid, semnum, cmd, arg) })
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
            // SAFETY: the command writes one of these.
            unsafe { put(arg, semid_ds(&stat)) }?;
            Ok(done)
        }
        IPC_SET => {
            // SAFETY: the command reads one of these.
            let ds = unsafe { take::<libc::semid_ds>(arg) }?;
            let mut stat = SemStat::default();
            stat.perm.uid = ds.sem_perm.uid;
            stat.perm.gid = ds.sem_perm.gid;
            stat.perm.mode = ds.sem_perm.mode as _;
            raw::semctl(task, semid, semnum, cmd, Arg::Buf(&mut stat))
        }
        IPC_INFO | SEM_INFO => {
            let mut info = Seminfo::default();
            let done = raw::semctl(task, semid, semnum, cmd, Arg::Seminfo(&mut info))?;
            // SAFETY: the command writes one of these.
            unsafe { put(arg, info) }?;
            Ok(done)
        }
        GETALL => {
            let values = task.sem_getall(semid)?;
            let to = std::ptr::with_exposed_provenance_mut::<u16>(arg);
            if to.is_null() {
                return Err(Errno::FAULT);
            }
            // SAFETY: there is room for a value per semaphore.
            values.iter().enumerate().for_each(|(at, value)| unsafe {
                to.wrapping_add(at).write_unaligned(*value);
            });
            Ok(0)
        }
        SETALL => {
            let count = nsems(task, semid);
            let from = std::ptr::with_exposed_provenance::<u16>(arg);
            if from.is_null() {
                return raw::semctl(task, semid, semnum, cmd, Arg::None);
            }
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
    stat.filter(|stat| stat.id == semid).map_or(0, |stat| stat.nsems as usize)
}

/// Writes what a command tells.
///
/// # Safety
///
/// `to` is null or the address of room for a `T`.
pub(crate) unsafe fn put<T>(to: usize, value: T) -> Result<(), Errno> {
    let to = std::ptr::with_exposed_provenance_mut::<T>(to);
    if to.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: there is room for a `T`; the address may be odd.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Reads what a command is given.
///
/// # Safety
///
/// `from` is null or the address of a `T`.
pub(crate) unsafe fn take<T: Copy>(from: usize) -> Result<T, Errno> {
    let from = std::ptr::with_exposed_provenance::<T>(from);
    if from.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: there is a `T`; the address may be odd.
    Ok(unsafe { from.read_unaligned() })
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
