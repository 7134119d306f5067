//! The shared memory of the host kernel.
//!
//! Addresses are plain numbers. This module never reads or writes attached memory.
//!
//! Source: shmget(2), shmop(2), shmctl(2).
#![expect(unsafe_code, reason = "libc declares system calls as unsafe")]

use super::{check, errno};

/// The attributes that `IPC_STAT` returns, without the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Key, uid, gid, cuid, cgid.
    pub ids: [i64; 5],
    /// The mode.
    pub mode: u32,
    /// `shm_segsz` and `shm_nattch`.
    pub numbers: [u64; 2],
    /// The pids of the creator and of the last shmat(2) or shmdt(2), in this order.
    pub pids: [i32; 2],
    /// Whether the times of the last shmat(2) and of the last shmdt(2) are set, in this order.
    pub has_times: [bool; 2],
}

/// Calls shmget(2). Returns the ID of the segment.
///
/// # Errors
///
/// The errno of the system call.
pub fn shmget(key: i32, size: u64, flags: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::shmget(key, size as usize, flags) })
}

/// Calls shmat(2). Returns the address of the attached segment.
///
/// # Errors
///
/// The errno of the system call.
///
/// # Panics
///
/// Panics for `SHM_REMAP` with an `address` other than 0, which could replace a mapping that is in
/// use.
pub fn shmat(id: i32, address: usize, flags: i32) -> Result<usize, i32> {
    let may_replace = flags & libc::SHM_REMAP != 0 && address != 0;
    assert!(!may_replace, "SHM_REMAP at an address could replace a mapping in use");
    // SAFETY: without `SHM_REMAP` the kernel maps the segment only to unused addresses.
    let mapped = unsafe { libc::shmat(id, std::ptr::without_provenance(address), flags) };
    if mapped.addr() == usize::MAX { Err(errno()) } else { Ok(mapped.addr()) }
}

/// Calls shmdt(2), which detaches the segment at `address`.
///
/// # Errors
///
/// The errno of the system call.
pub fn shmdt(address: usize) -> Result<i32, i32> {
    // SAFETY: shmdt(2) unmaps only a segment that `shmat` has attached. This module makes no
    // reference into it.
    check(unsafe { libc::shmdt(std::ptr::without_provenance(address)) })
}

/// Calls shmctl(2) with a command that takes no argument.
///
/// # Errors
///
/// The errno of the system call.
pub fn shmctl(id: i32, cmd: i32) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the command ignores the structure.
    check(unsafe { libc::shmctl(id, cmd, &mut ds) })
}

/// Calls shmctl(2) with `IPC_STAT`, `SHM_STAT` or `SHM_STAT_ANY`. Returns the result of the call
/// and the attributes.
///
/// # Errors
///
/// The errno of the system call.
pub fn stat(id: i32, cmd: i32) -> Result<(i32, Stat), i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: these commands write a `shmid_ds`.
    let result = check(unsafe { libc::shmctl(id, cmd, &mut ds) })?;
    let perm = ds.shm_perm;
    let ids = [
        i64::from(perm.__key),
        i64::from(perm.uid),
        i64::from(perm.gid),
        i64::from(perm.cuid),
        i64::from(perm.cgid),
    ];
    let stat = Stat {
        ids,
        mode: u32::from(perm.mode),
        numbers: [ds.shm_segsz as u64, ds.shm_nattch],
        pids: [ds.shm_cpid, ds.shm_lpid],
        has_times: [ds.shm_atime != 0, ds.shm_dtime != 0],
    };
    Ok((result, stat))
}

/// Calls shmctl(2) with `IPC_SET`, which sets the owner and the mode of a segment.
///
/// # Errors
///
/// The errno of the system call.
pub fn set(id: i32, uid: u32, gid: u32, mode: u32) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    (ds.shm_perm.uid, ds.shm_perm.gid) = (uid, gid);
    ds.shm_perm.mode = mode as _;
    // SAFETY: the command reads a `shmid_ds`.
    check(unsafe { libc::shmctl(id, libc::IPC_SET, &mut ds) })
}

/// Calls shmctl(2) with `IPC_INFO` or `SHM_INFO`. Returns the result of the call, and numbers from
/// the structure that the call has filled.
///
/// For `IPC_INFO` the numbers are `shmmax`, `shmmin`, `shmmni`, `shmseg` and `shmall`. For
/// `SHM_INFO` they are `used_ids` and `shm_tot`.
///
/// # Errors
///
/// The errno of the system call.
pub fn totals(cmd: i32) -> Result<(i32, [u64; 5]), i32> {
    let mut numbers = [0u64; 14];
    let buffer: *mut [u64; 14] = &mut numbers;
    // SAFETY: `IPC_INFO` writes a `struct shminfo` of nine words, and `SHM_INFO` a `struct
    // shm_info` of six words. The buffer has 14 words.
    let result = check(unsafe { libc::shmctl(0, cmd, buffer.cast()) })?;
    if cmd == libc::IPC_INFO {
        return Ok((result, [numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]]));
    }
    Ok((result, [numbers[0] & 0xffff_ffff, numbers[1], 0, 0, 0]))
}
