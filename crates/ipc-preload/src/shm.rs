//! shmget(2), shmat(2), shmdt(2), shmctl(2), if `COREWALK_IPC_SHM` names a folder.
//!
//! If `COREWALK_IPC_SHM` is not set, this library passes the calls on to the C library. If the
//! variable names a folder, a segment is a file in that folder, and shmat(2) maps the file.
//!
//! # Locks
//!
//! One lock of the process covers every attach and detach, with its mmap(2) or munmap(2). A fork
//! takes the lock too (`fork`), so in the child the list of attached segments agrees with the
//! mappings.
//!
//! The thread that holds the lock blocks all signals.
//!
//! # Marks
//!
//! execve(2) detaches all segments, and nattch must show that even if the next program makes no IPC
//! call. So while a process has a segment attached, it has a *mark*: the file `exec-PID` in the
//! folder of segments.
//!
//! When the library is loaded into a program, it removes the mark of the process. If there was one,
//! the library registers the process immediately, which detaches the segments of the previous
//! program.
//!
//! # Differences from the kernel
//!
//! - shmdt(2), execve(2) and the end of the process end an attach. After munmap(2), mremap(2) or a
//!   new mapping over the segment, nattch still counts the attach.
//! - If the file system of the folder with the segments' files is mounted `noexec`, `SHM_EXEC` is
//!   refused with `EACCES`.
//! - `SHM_HUGETLB` is `EINVAL`; `SHM_LOCK` sets a bit in the mode, and locks no memory.
//!
//! Source: shmop(2), shmctl(2), `<sys/shm.h>` of glibc; Linux `ipc/shm.c` (`do_shmat`).

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_ipc::{
    IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, Mapping, SHM_INFO, SHM_LOCK, SHM_STAT, SHM_STAT_ANY,
    SHM_UNLOCK, SegmentFiles, ShmFlags, ShmId, ShmStat,
};
use libc::{c_int, c_ulong, c_void, key_t, size_t};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;

use crate::call;
use crate::errno::Answer;
use crate::handed;
use crate::hold;
use crate::next::next;
use crate::perm::{get_flags, ipc_perm};
use crate::process::{self, AttachLock};
use crate::user;

/// The environment variable with the path of the directory of segments.
pub(crate) const SHM_ENV: &str = "COREWALK_IPC_SHM";

static IS_ON: AtomicBool = AtomicBool::new(false);

next! {
    SHMGET: fn shmget(key_t, size_t, c_int) -> c_int;
    SHMAT: fn shmat(c_int, *const c_void, c_int) -> *mut c_void;
    SHMDT: fn shmdt(*const c_void) -> c_int;
    SHMCTL: fn shmctl(c_int, c_int, *mut c_void) -> c_int;
}

/// `struct shminfo` of C, which libc does not have: `shmmax`, `shmmin`, `shmmni`, `shmseg`,
/// `shmall`, and four unused numbers.
type Shminfo = [c_ulong; 9];

/// `struct shm_info`, which `SHM_INFO` writes: `used_ids` (an `int`) with its padding, `shm_tot`,
/// and four numbers about swapping.
type ShmUsage = [c_ulong; 6];

/// Returns the path of the folder of segments.
fn path() -> Option<OsString> {
    std::env::var_os(SHM_ENV).filter(|path| !path.is_empty())
}

pub(crate) fn segments() -> Option<SegmentFiles> {
    let path = path()?;
    let handed = handed::folder().and_then(|folder| SegmentFiles::of_descriptor(folder).ok());
    Some(handed.unwrap_or_else(|| SegmentFiles::new(path)))
}

/// Opens the folder of segments.
fn folder() -> Option<OwnedFd> {
    segments()?.open_folder().ok()
}

/// Returns true if this library handles the shared-memory calls, and false if the kernel does.
#[inline]
pub(crate) fn is_on() -> bool {
    // ORDERING: Relaxed. `IS_ON` is set once, when the library is loaded and the process has one
    // thread.
    IS_ON.load(Ordering::Relaxed)
}

pub(crate) fn resolve() {
    look_up();
    // ORDERING: Relaxed. One thread so far.
    IS_ON.store(path().is_some(), Ordering::Relaxed);
}

/// Detaches the segments that the previous program of this process had attached before execve(2).
///
/// If the program cannot join the namespace, its mark (a file) stays, and the next program after
/// execve(2) tries again. Until then nattch counts the old attaches. No error is printed, because
/// the program may never make an IPC call.
pub(crate) fn detach_former() {
    if unmark() && process::register().is_err() {
        mark();
    }
}

/// Makes the mark of this process. By this file, the next program after execve(2) notices that it
/// has to detach segments.
pub(crate) fn mark() {
    let Some(folder) = folder() else { return };
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Ignore an error: without this file, nattch falls at the end of the process, and not at
    // execve(2).
    let _marked = rustix::fs::openat(&folder, mark_name(), flags, Mode::RUSR | Mode::WUSR);
}

/// Removes this process's mark. Returns true if there was one.
pub(crate) fn unmark() -> bool {
    folder()
        .is_some_and(|folder| rustix::fs::unlinkat(&folder, mark_name(), AtFlags::empty()).is_ok())
}

fn mark_name() -> String {
    format!("exec-{}", rustix::process::getpid().as_raw_nonzero())
}

/// shmget(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn shmget(key: key_t, size: size_t, shmflg: c_int) -> c_int {
    if !is_on() {
        // SAFETY: the call takes numbers.
        return SHMGET.found().map_or(-1, |next| unsafe { next(key, size, shmflg) });
    }
    let (flags, mode) = get_flags(shmflg);
    call::make(|task| {
        let _lock = AttachLock::take();
        task.shmget(key, size as u64, flags, mode).map(ShmId::raw)
    })
}

/// shmat(2).
///
/// # Safety
///
/// With `SHM_REMAP`, no thread uses the mapping at `address`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmat(shmid: c_int, address: *const c_void, shmflg: c_int) -> *mut c_void {
    if !is_on() {
        let failed = <*mut c_void>::FAILED;
        // SAFETY: the caller's promise.
        return SHMAT.found().map_or(failed, |next| unsafe { next(shmid, address, shmflg) });
    }
    call::make(|task| {
        let _lock = AttachLock::take();
        let (id, flags) = (ShmId::from_raw(shmid), ShmFlags::from_bits_retain(shmflg));
        let mapping = task.shmat(id, address.expose_provenance(), flags)?;
        // SAFETY: the caller's promise.
        let mapped = unsafe { map(&mapping) }?;
        if task.attached() == 0 {
            hold::take(task);
            mark();
        }
        mapping.attached_at(mapped.expose_provenance());
        Ok(mapped)
    })
}

/// Maps the file of a segment, and returns the address.
///
/// The caller meets the requirements of [`shmat`].
unsafe fn map(mapping: &Mapping<'_>) -> Result<*mut c_void, Errno> {
    let mut access = ProtFlags::READ;
    let (flags, is_executable) = (mapping.flags(), mapping.flags().contains(ShmFlags::EXEC));
    access.set(ProtFlags::WRITE, !flags.contains(ShmFlags::RDONLY));
    access.set(ProtFlags::EXEC, is_executable);
    let place = match (mapping.address(), flags.contains(ShmFlags::REMAP)) {
        (None, _) => MapFlags::empty(),
        (Some(_), true) => MapFlags::FIXED,
        (Some(_), false) => MapFlags::FIXED_NOREPLACE,
    };
    let wanted = ptr::with_exposed_provenance_mut(mapping.address().unwrap_or(0));
    let bytes = usize::try_from(mapping.size_bytes()).map_err(|_| Errno::NOMEM)?;
    // SAFETY: the call replaces a mapping in use only if the program has passed `SHM_REMAP`.
    let mapped =
        unsafe { mmap(wanted, bytes, access, MapFlags::SHARED | place, mapping.as_fd(), 0) };
    let mapped = mapped.map_err(|errno| match errno {
        // Another mapping is there.
        Errno::EXIST => Errno::INVAL,
        Errno::PERM if is_executable => Errno::ACCESS,
        errno => errno,
    })?;
    if mapping.address().is_some() && mapped != wanted {
        // Linux before 4.17 ignores `MAP_FIXED_NOREPLACE`, and treats the address as a hint.
        // SAFETY: the range is the mapping just made, which no other thread knows.
        let _unmapped = unsafe { munmap(mapped, bytes) };
        return Err(Errno::INVAL);
    }
    Ok(mapped)
}

/// shmdt(2).
///
/// # Safety
///
/// No thread uses the segment any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmdt(address: *const c_void) -> c_int {
    if !is_on() {
        // SAFETY: the caller's promise.
        return SHMDT.found().map_or(-1, |next| unsafe { next(address) });
    }
    call::make(|task| {
        let _lock = AttachLock::take();
        let unmapped = task.shmdt_with(address.expose_provenance(), |size_bytes| {
            let bytes = size_bytes.next_multiple_of(page_size() as u64);
            // SAFETY: the segment is mapped at this address, and no thread uses it.
            unsafe { munmap(address.cast_mut(), usize::try_from(bytes).unwrap_or(0)) }
        });
        if task.attached() == 0 {
            hold::give_up();
            unmark();
        }
        unmapped?.map(|()| 0)
    })
}

/// shmctl(2).
///
/// # Safety
///
/// The call may overwrite the memory at `buf` with the result of the command `cmd`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmctl(shmid: c_int, cmd: c_int, buf: *mut c_void) -> c_int {
    if !is_on() {
        // SAFETY: the caller's promise.
        return SHMCTL.found().map_or(-1, |next| unsafe { next(shmid, cmd, buf) });
    }
    call::make(|task| {
        let (id, buf) = (ShmId::from_raw(shmid), buf.expose_provenance());
        let stat = match cmd {
            _ if shmid < 0 => return Err(Errno::INVAL),
            IPC_STAT => task.shm_stat(id)?,
            SHM_STAT => task.shm_stat_index(shmid)?,
            SHM_STAT_ANY => task.shm_stat_any(shmid)?,
            IPC_RMID => return task.shm_rmid(id).map(|()| 0),
            SHM_LOCK => return task.shm_lock(id).map(|()| 0),
            SHM_UNLOCK => return task.shm_unlock(id).map(|()| 0),
            IPC_SET => {
                // SAFETY: any bytes are a valid `shmid_ds`, which consists of numbers.
                let perm = unsafe { user::read::<libc::shmid_ds>(buf) }?.shm_perm;
                return task.shm_set(id, perm.uid, perm.gid, perm.mode as _).map(|()| 0);
            }
            IPC_INFO => {
                let (totals, limits) = (task.shm_totals()?, task.limits());
                let (max, mni, all) = (limits.shmmax, limits.shmmni.into(), limits.shmall);
                let info: Shminfo = [max, 1, mni, mni, all, 0, 0, 0, 0];
                // SAFETY: `IPC_INFO` writes a `struct shminfo` to `buf`, which the program has
                // passed.
                return unsafe { user::write(buf, info) }.map(|()| totals.index_max.cast_signed());
            }
            SHM_INFO => {
                let totals = task.shm_totals()?;
                let shift = if cfg!(target_endian = "big") { 32 } else { 0 };
                let used_ids = c_ulong::from(totals.segments) << shift;
                let usage: ShmUsage = [used_ids, totals.pages, 0, 0, 0, 0];
                // SAFETY: `SHM_INFO` writes a `struct shm_info` to `buf`, which the program has
                // passed.
                return unsafe { user::write(buf, usage) }.map(|()| totals.index_max.cast_signed());
            }
            _ => return Err(Errno::INVAL),
        };
        // SAFETY: `IPC_STAT` and its variants write a `struct shmid_ds` to `buf`, which the program
        // has passed.
        unsafe { user::write(buf, shmid_ds(&stat)) }?;
        Ok(if cmd == IPC_STAT { 0 } else { stat.id.raw() })
    })
}

/// Returns the structure of `IPC_STAT`.
fn shmid_ds(stat: &ShmStat) -> libc::shmid_ds {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    ds.shm_perm = ipc_perm(&stat.perm);
    ds.shm_segsz = stat.size_bytes as size_t;
    ds.shm_atime = stat.atime_s.cast_signed();
    ds.shm_dtime = stat.dtime_s.cast_signed();
    ds.shm_ctime = stat.ctime_s.cast_signed();
    ds.shm_cpid = stat.cpid.cast_signed();
    ds.shm_lpid = stat.lpid.cast_signed();
    ds.shm_nattch = stat.nattch;
    ds
}
