//! shmget(2), shmat(2), shmdt(2), shmctl(2), if `COREWALK_IPC_SHM` names a folder.
//!
//! Without the variable the calls go on to the C library: a mapping of the kernel's segments is as
//! fast as one of ours. With it a segment is a file in the folder, which shmat maps.
//!
//! # Locks
//!
//! One lock of the process covers every call that changes the attached segments, the mapping
//! included, with all signals blocked. A fork takes the lock too (`fork`), so the child gets the
//! mappings and the list of them in one state. The lock lies in the page that is wiped in a child.
//!
//! # Marks
//!
//! execve(2) detaches everything, and the next program need not make any call of ours. So a process
//! that has a segment attached leaves a file `exec-PID` in the folder. The library removes the file
//! when a program is loaded. If there was one, the library registers the process at once, which
//! detaches the segments of the program before.
//!
//! # Differences from the kernel
//!
//! - An attach ends with shmdt(2), execve(2) or the process. munmap(2), mremap(2) or a mapping over
//!   it leave it counted.
//! - If the file system of the folder is mounted `noexec`, `SHM_EXEC` is refused with `EACCES`.
//! - `SHM_HUGETLB` is `EINVAL`; `SHM_LOCK` is a mark only.
//!
//! Source: shmop(2), shmctl(2), `<sys/shm.h>` of glibc; Linux `ipc/shm.c` (`do_shmat`).

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_ipc::raw::{self, ShmArg, ShmUsage, Shminfo};
use corewalk_ipc::{
    IPC_INFO, IPC_SET, IPC_STAT, Mapping, SHM_INFO, SHM_STAT, SHM_STAT_ANY, SegmentFiles, ShmStat,
    Task,
};
use libc::{c_int, c_void, key_t, size_t};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;

use crate::call::Call;
use crate::errno;
use crate::handed;
use crate::hold;
use crate::next::Next;
use crate::perm::ipc_perm;
use crate::process::{self, AttachLock};
use crate::user;

/// Names the folder of the segments.
pub(crate) const SHM_ENV: &str = "COREWALK_IPC_SHM";

/// The result of shmat(2) for an error.
const FAILED: *mut c_void = ptr::without_provenance_mut(usize::MAX);

static IS_ON: AtomicBool = AtomicBool::new(false);

static SHMGET: Next = Next::new(c"shmget");
static SHMAT: Next = Next::new(c"shmat");
static SHMDT: Next = Next::new(c"shmdt");
static SHMCTL: Next = Next::new(c"shmctl");

/// Returns the path of the folder of segments.
fn path() -> Option<OsString> {
    std::env::var_os(SHM_ENV).filter(|path| !path.is_empty())
}

/// Returns the segments in the folder. The descriptor that was handed on leads to the folder; its
/// path is for a process that has lost the descriptor.
pub(crate) fn segments() -> Option<SegmentFiles> {
    let path = path()?;
    let handed = handed::folder().and_then(|folder| SegmentFiles::of_descriptor(folder).ok());
    Some(handed.unwrap_or_else(|| SegmentFiles::new(path)))
}

/// Opens the folder of segments.
fn folder() -> Option<OwnedFd> {
    segments()?.open_folder().ok()
}

/// Returns true if these calls are ours.
#[inline]
pub(crate) fn is_on() -> bool {
    // ORDERING: Relaxed. Set when the library is loaded, and never again.
    IS_ON.load(Ordering::Relaxed)
}

/// Looks up the functions of the C library, and whether the calls are ours.
pub(crate) fn resolve() {
    for next in [&SHMGET, &SHMAT, &SHMDT, &SHMCTL] {
        next.address();
    }
    // ORDERING: Relaxed. One thread so far.
    IS_ON.store(path().is_some(), Ordering::Relaxed);
}

/// Detaches the segments that this process had attached before execve(2).
///
/// A program that cannot join the namespace says nothing here, because it may never make a call.
/// The mark then stays for the next program, and the attaches until the process ends.
pub(crate) fn detach_former() {
    if unmark() && process::register().is_err() {
        mark();
    }
}

/// Leaves a mark that this process has something attached, for the program that it may become.
pub(crate) fn mark() {
    let Some(folder) = folder() else { return };
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Without a mark an attach ends with the process, and not with execve(2).
    let _marked = rustix::fs::openat(&folder, mark_name(), flags, Mode::RUSR | Mode::WUSR);
}

/// Takes the mark of this process away, and returns true if there was one.
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
        type Function = unsafe extern "C" fn(key_t, size_t, c_int) -> c_int;
        let Some(address) = SHMGET.found() else { return -1 };
        // SAFETY: what the C library defines under this name has this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the call takes numbers.
        return unsafe { next(key, size, shmflg) };
    }
    let get = |task| {
        let _call = Call::enter();
        let _lock = AttachLock::take();
        raw::shmget(task, key, size as u64, shmflg)
    };
    errno::number(process::task().and_then(get))
}

/// shmat(2).
///
/// # Safety
///
/// With `SHM_REMAP`, no thread uses the mapping at `address`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmat(shmid: c_int, address: *const c_void, shmflg: c_int) -> *mut c_void {
    if !is_on() {
        type Function = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;
        let Some(next) = SHMAT.found() else { return FAILED };
        // SAFETY: what the C library defines under this name has this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
        // SAFETY: the caller's promise.
        return unsafe { next(shmid, address, shmflg) };
    }
    let attach = |task| {
        let _call = Call::enter();
        let _lock = AttachLock::take();
        // SAFETY: the caller's promise.
        unsafe { attach(task, shmid, address.expose_provenance(), shmflg) }
    };
    process::task().and_then(attach).unwrap_or_else(|errno| {
        errno::set(errno);
        FAILED
    })
}

/// Attaches a segment; the lock is held.
///
/// # Safety
///
/// That of [`shmat`].
unsafe fn attach(
    task: &Task,
    shmid: c_int,
    address: usize,
    shmflg: c_int,
) -> Result<*mut c_void, Errno> {
    let mapping = raw::shmat(task, shmid, address, shmflg)?;
    // SAFETY: the caller's promise.
    let mapped = unsafe { map(&mapping) }?;
    if task.attached() == 0 {
        hold::take(task);
        mark();
    }
    mapping.attached_at(mapped.expose_provenance());
    Ok(mapped)
}

/// Maps a segment where it is wanted.
///
/// # Safety
///
/// That of [`shmat`].
unsafe fn map(mapping: &Mapping<'_>) -> Result<*mut c_void, Errno> {
    let mut access = ProtFlags::READ;
    access.set(ProtFlags::WRITE, mapping.is_writable());
    access.set(ProtFlags::EXEC, mapping.is_executable());
    let place = match (mapping.address(), mapping.is_remap()) {
        (None, _) => MapFlags::empty(),
        (Some(_), true) => MapFlags::FIXED,
        (Some(_), false) => MapFlags::FIXED_NOREPLACE,
    };
    let wanted = ptr::with_exposed_provenance_mut(mapping.address().unwrap_or(0));
    let bytes = usize::try_from(mapping.size_bytes()).map_err(|_| Errno::NOMEM)?;
    // SAFETY: a mapping in use is replaced only where the caller has asked for that.
    let mapped =
        unsafe { mmap(wanted, bytes, access, MapFlags::SHARED | place, mapping.as_fd(), 0) };
    let mapped = mapped.map_err(|errno| match errno {
        // Something is mapped there.
        Errno::EXIST => Errno::INVAL,
        Errno::PERM if mapping.is_executable() => Errno::ACCESS,
        errno => errno,
    })?;
    if mapping.address().is_some() && mapped != wanted {
        // A kernel before 4.17 takes the address for a hint.
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
        type Function = unsafe extern "C" fn(*const c_void) -> c_int;
        let Some(next) = SHMDT.found() else { return -1 };
        // SAFETY: what the C library defines under this name has this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
        // SAFETY: the caller's promise.
        return unsafe { next(address) };
    }
    let detach = |task| {
        let _call = Call::enter();
        let _lock = AttachLock::take();
        // SAFETY: the caller's promise.
        unsafe { detach(task, address.expose_provenance()) }
    };
    errno::number(process::task().and_then(detach).map(|()| 0))
}

/// Detaches a segment; the lock is held.
///
/// # Safety
///
/// That of [`shmdt`].
unsafe fn detach(task: &Task, address: usize) -> Result<(), Errno> {
    let unmapping = task.unmapping(address)?;
    let bytes = unmapping.size_bytes().next_multiple_of(page_size() as u64);
    let mapped = ptr::with_exposed_provenance_mut(address);
    // Unmap first, then decrement nattch: if nattch is 0, no mapping is left.
    // SAFETY: the segment is mapped there, and no thread uses it.
    let unmapped = unsafe { munmap(mapped, usize::try_from(bytes).unwrap_or(0)) };
    let detached = unmapping.detach();
    if task.attached() == 0 {
        hold::give_up();
        unmark();
    }
    unmapped.and(detached)
}

/// shmctl(2).
///
/// # Safety
///
/// The program has given what is at `buf` for what `cmd` writes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmctl(shmid: c_int, cmd: c_int, buf: *mut c_void) -> c_int {
    if !is_on() {
        type Function = unsafe extern "C" fn(c_int, c_int, *mut c_void) -> c_int;
        let Some(next) = SHMCTL.found() else { return -1 };
        // SAFETY: what the C library defines under this name has this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
        // SAFETY: the caller's promise.
        return unsafe { next(shmid, cmd, buf) };
    }
    let control = |task| {
        let _call = Call::enter();
        // SAFETY: the caller's promise.
        unsafe { control(task, shmid, cmd, buf.expose_provenance()) }
    };
    errno::number(process::task().and_then(control))
}

/// # Safety
///
/// That of [`shmctl`].
unsafe fn control(task: &Task, shmid: c_int, cmd: c_int, buf: usize) -> Result<i32, Errno> {
    match cmd {
        IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            let mut stat = ShmStat::default();
            let done = raw::shmctl(task, shmid, cmd, ShmArg::Buf(&mut stat))?;
            // SAFETY: the command writes one of these there.
            unsafe { user::write(buf, shmid_ds(&stat)) }?;
            Ok(done)
        }
        IPC_SET => {
            // SAFETY: it is a structure of numbers.
            let ds = unsafe { user::read::<libc::shmid_ds>(buf) }?;
            let mut stat = ShmStat::default();
            stat.perm.uid = ds.shm_perm.uid;
            stat.perm.gid = ds.shm_perm.gid;
            stat.perm.mode = ds.shm_perm.mode as _;
            raw::shmctl(task, shmid, cmd, ShmArg::Buf(&mut stat))
        }
        IPC_INFO => {
            let mut shminfo = Shminfo::default();
            let done = raw::shmctl(task, shmid, cmd, ShmArg::Shminfo(&mut shminfo))?;
            // SAFETY: the command writes one of these there.
            unsafe { user::write(buf, shminfo) }?;
            Ok(done)
        }
        SHM_INFO => {
            let mut usage = ShmUsage::default();
            let done = raw::shmctl(task, shmid, cmd, ShmArg::ShmUsage(&mut usage))?;
            // SAFETY: the command writes one of these there.
            unsafe { user::write(buf, usage) }?;
            Ok(done)
        }
        _ => raw::shmctl(task, shmid, cmd, ShmArg::None),
    }
}

/// Returns what `IPC_STAT` tells as C has it.
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
