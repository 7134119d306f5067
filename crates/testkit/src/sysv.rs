//! The System V IPC of the host kernel, the oracle of tests and the baseline of measurements.
//!
//! Most functions wrap one system call. The arguments are plain numbers and arrays, and an error is
//! the errno. The calls act on the IPC namespace of the calling thread. [`unshare_ipc`] moves the
//! thread to a new namespace. This file has the calls for semaphores, `msg` has those for message
//! queues, and `shm` those for shared memory.
//!
//! Source: semget(2), semop(2), semctl(2), unshare(2).
#![expect(unsafe_code, reason = "libc declares system calls as unsafe")]

pub mod msg;
pub mod shm;

use std::io;

/// One operation: `sem_num`, `sem_op`, `sem_flg`.
pub type Sop = (u16, i16, i16);

/// The attributes that `IPC_STAT` returns, without the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Key, uid, gid, cuid, cgid.
    pub ids: [i64; 5],
    /// The mode.
    pub mode: u32,
    /// The number of semaphores.
    pub nsems: u64,
    /// True if the time of the last operation is set.
    pub has_otime: bool,
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn check(result: libc::c_int) -> Result<i32, i32> {
    if result == -1 { Err(errno()) } else { Ok(result) }
}

/// Moves the calling thread into a new IPC namespace.
///
/// # Errors
///
/// The error of unshare(2), which is `EPERM` without the privilege.
pub fn unshare_ipc() -> Result<i32, i32> {
    // SAFETY: the call takes a number and no pointer.
    check(unsafe { libc::unshare(libc::CLONE_NEWIPC) })
}

/// Calls semget(2). Returns the ID of the semaphore set.
///
/// # Errors
///
/// The errno of the system call.
pub fn semget(key: i32, nsems: i32, flags: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::semget(key, nsems, flags) })
}

/// Calls semtimedop(2). The timeout is in seconds and nanoseconds. None means no limit.
///
/// # Errors
///
/// The errno of the system call.
pub fn semtimedop(id: i32, sops: &[Sop], timeout: Option<(i64, i64)>) -> Result<i32, i32> {
    let mut sops: Vec<libc::sembuf> = sops
        .iter()
        .map(|&(sem_num, sem_op, sem_flg)| libc::sembuf { sem_num, sem_op, sem_flg })
        .collect();
    let timeout = timeout.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec });
    let pointer = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the operations and the timeout live during the call, and the count is right.
    check(
        unsafe { libc::syscall(libc::SYS_semtimedop, id, sops.as_mut_ptr(), sops.len(), pointer) }
            as i32,
    )
}

/// Calls semop(2) with an array of `N` operations, without a copy or an allocation.
///
/// # Errors
///
/// The errno of the system call.
#[inline]
pub fn semop_raw<const N: usize>(id: i32, sops: &mut [libc::sembuf; N]) -> Result<i32, i32> {
    // SAFETY: `sops` is a valid array of `N` operations during the call.
    check(unsafe { libc::semop(id, sops.as_mut_ptr(), N) })
}

/// Returns operations for [`semop_raw`].
pub fn sembufs<const N: usize>(sops: [Sop; N]) -> [libc::sembuf; N] {
    sops.map(|(sem_num, sem_op, sem_flg)| libc::sembuf { sem_num, sem_op, sem_flg })
}

/// Calls semctl(2) with a number as its argument.
///
/// # Errors
///
/// The errno of the system call.
pub fn semctl(id: i32, num: i32, cmd: i32, value: i32) -> Result<i32, i32> {
    // SAFETY: these commands take a number or no argument, so the kernel follows no pointer.
    check(unsafe { libc::semctl(id, num, cmd, libc::c_long::from(value)) })
}

/// Calls semctl(2) with `GETALL`. Returns the values of a set of `nsems` semaphores.
///
/// # Errors
///
/// The errno of the system call.
pub fn getall(id: i32, nsems: usize) -> Result<Vec<u16>, i32> {
    let mut values = vec![0u16; nsems.max(1 << 15)];
    // SAFETY: the buffer is large enough for the largest set.
    check(unsafe { libc::semctl(id, 0, libc::GETALL, values.as_mut_ptr()) })?;
    values.truncate(nsems);
    Ok(values)
}

/// Calls semctl(2) with `SETALL`. `values` has at least as many values as the set has semaphores.
///
/// # Errors
///
/// The errno of the system call.
pub fn setall(id: i32, values: &[u16]) -> Result<i32, i32> {
    let mut values = values.to_vec();
    values.resize(values.len().max(1 << 15), 0);
    // SAFETY: the buffer is as long as the largest set.
    check(unsafe { libc::semctl(id, 0, libc::SETALL, values.as_mut_ptr()) })
}

/// Calls semctl(2) with `IPC_STAT`, `SEM_STAT` or `SEM_STAT_ANY`. Returns the result of the call
/// and the attributes.
///
/// # Errors
///
/// The errno of the system call.
pub fn stat(id: i32, cmd: i32) -> Result<(i32, Stat), i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: these commands write a `semid_ds`.
    let result = check(unsafe { libc::semctl(id, 0, cmd, std::ptr::from_mut(&mut ds)) })?;
    let perm = ds.sem_perm;
    let ids = [
        i64::from(perm.__key),
        i64::from(perm.uid),
        i64::from(perm.gid),
        i64::from(perm.cuid),
        i64::from(perm.cgid),
    ];
    let has_otime = ds.sem_otime != 0;
    Ok((result, Stat { ids, mode: u32::from(perm.mode), nsems: ds.sem_nsems, has_otime }))
}

/// Calls semctl(2) with `IPC_SET`, which sets the owner and the mode of a semaphore set.
///
/// # Errors
///
/// The errno of the system call.
pub fn set(id: i32, uid: u32, gid: u32, mode: u32) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::semid_ds = unsafe { std::mem::zeroed() };
    (ds.sem_perm.uid, ds.sem_perm.gid) = (uid, gid);
    ds.sem_perm.mode = mode as _;
    // SAFETY: the command reads a `semid_ds`.
    check(unsafe { libc::semctl(id, 0, libc::IPC_SET, std::ptr::from_mut(&mut ds)) })
}

/// Calls semctl(2) with `IPC_INFO` or `SEM_INFO`. Returns the result of the call and the fields of
/// `struct seminfo`.
///
/// # Errors
///
/// The errno of the system call.
pub fn totals(cmd: i32) -> Result<(i32, [i32; 10]), i32> {
    let mut numbers = [0; 10];
    // SAFETY: these commands write a `struct seminfo`, which is ten integers.
    let result = check(unsafe { libc::semctl(0, 0, cmd, numbers.as_mut_ptr()) })?;
    Ok((result, numbers))
}

/// Sets the effective user and group of the calling process, and drops the supplementary groups.
///
/// # Errors
///
/// The errno of the call that failed.
pub fn act_as(uid: u32, gid: u32) -> Result<i32, i32> {
    // SAFETY: these calls take numbers.
    check(unsafe { libc::seteuid(0) })?;
    // SAFETY: setgroups(2) reads no pointer for a length of zero.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: the call takes a number and no pointer.
    check(unsafe { libc::setegid(gid) })?;
    // SAFETY: the call takes a number and no pointer.
    check(unsafe { libc::seteuid(uid) })
}

/// Installs a handler of `SIGUSR1` that does nothing. It has the flag `SA_RESTART`.
///
/// # Errors
///
/// The errno of the system call.
pub fn catch_usr1() -> Result<i32, i32> {
    extern "C" fn nothing(_signal: libc::c_int) {}
    // SAFETY: zeroes are a valid structure: it has no flags and an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as *const () as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does nothing.
    check(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) })
}

/// Returns the tid of the calling thread.
pub fn thread_id() -> i32 {
    // SAFETY: the call has no arguments.
    unsafe { libc::gettid() }
}

/// Sends `SIGUSR1` to a thread of a process.
///
/// # Errors
///
/// The errno of the system call.
pub fn send_usr1(pid: u32, thread: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGUSR1) } as i32)
}

/// Forks a child that waits until it is killed or its parent ends. Returns the pid of the child.
///
/// # Errors
///
/// The errno of fork(2).
pub fn fork_idle() -> Result<i32, i32> {
    // SAFETY: the child only makes system calls, which POSIX allows even after a fork of a process
    // with several threads.
    let child = check(unsafe { libc::fork() })?;
    if child != 0 {
        return Ok(child);
    }
    // SAFETY: the call takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    loop {
        // SAFETY: the call has no arguments.
        unsafe { libc::pause() };
    }
}

/// Kills a child and waits for it.
///
/// # Errors
///
/// The errno of the call that failed.
pub fn end_child(child: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::kill(child, libc::SIGKILL) })?;
    // SAFETY: the pointer for the status may be null.
    check(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) })
}
