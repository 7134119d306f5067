//! The host kernel's shared memory.
//!
//! Addresses are numbers: nothing of what is attached is ever read or written through them here.
//!
//! Source: shmget(2), shmop(2), shmctl(2).
#![expect(unsafe_code, reason = "libc declares system calls as unsafe")]

use super::{check, errno};

/// What `IPC_STAT` tells, times aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Key, uid, gid, cuid, cgid.
    pub ids: [i64; 5],
    /// The mode.
    pub mode: u32,
    /// Size and attaches.
    pub numbers: [u64; 2],
    /// Who made it, and who attached or detached last.
    pub pids: [i32; 2],
    /// Whether there is a time of the last shmat(2) and shmdt(2).
    pub has_times: [bool; 2],
}

/// shmget(2).
///
/// # Errors
///
/// Its errno.
pub fn shmget(key: i32, size: u64, flags: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::shmget(key, size as usize, flags) })
}

/// shmat(2); returns the address.
///
/// `address` is 0, or one at which `SHM_REMAP` is not asked for: nothing in use is replaced.
///
/// # Errors
///
/// Its errno.
///
/// # Panics
///
/// Panics if anything in use could be replaced.
pub fn shmat(id: i32, address: usize, flags: i32) -> Result<usize, i32> {
    assert!(flags & libc::SHM_REMAP == 0 || address == 0, "replaces nothing");
    // SAFETY: without `SHM_REMAP` the kernel maps only where nothing is.
    let mapped = unsafe { libc::shmat(id, std::ptr::without_provenance(address), flags) };
    if mapped.addr() == usize::MAX { Err(errno()) } else { Ok(mapped.addr()) }
}

/// shmdt(2).
///
/// # Errors
///
/// Its errno.
pub fn shmdt(address: usize) -> Result<i32, i32> {
    // SAFETY: only what `shmat` has mapped is unmapped, and nobody has a reference to that.
    check(unsafe { libc::shmdt(std::ptr::without_provenance(address)) })
}

/// shmctl(2) with a command that takes nothing.
///
/// # Errors
///
/// Its errno.
pub fn shmctl(id: i32, cmd: i32) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is more than the command needs.
    check(unsafe { libc::shmctl(id, cmd, &mut ds) })
}

/// `IPC_STAT`, `SHM_STAT` or `SHM_STAT_ANY`: what the call returned, and what it told.
///
/// # Errors
///
/// Its errno.
pub fn stat(id: i32, cmd: i32) -> Result<(i32, Stat), i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is what these commands write.
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

/// `IPC_SET`.
///
/// # Errors
///
/// Its errno.
pub fn set(id: i32, uid: u32, gid: u32, mode: u32) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    (ds.shm_perm.uid, ds.shm_perm.gid) = (uid, gid);
    ds.shm_perm.mode = mode as _;
    // SAFETY: the structure is what the command reads.
    check(unsafe { libc::shmctl(id, libc::IPC_SET, &mut ds) })
}

/// `IPC_INFO` or `SHM_INFO`: what the call returned, and its numbers: the most, the least, segments,
/// segments of a process, and pages; or segments and pages.
///
/// # Errors
///
/// Its errno.
pub fn totals(cmd: i32) -> Result<(i32, [u64; 5]), i32> {
    let mut numbers = [0u64; 14];
    let buffer: *mut [u64; 14] = &mut numbers;
    // SAFETY: `struct shminfo` is nine words and `struct shm_info` six, which these commands write.
    let result = check(unsafe { libc::shmctl(0, cmd, buffer.cast()) })?;
    if cmd == libc::IPC_INFO {
        return Ok((result, [numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]]));
    }
    Ok((result, [numbers[0] & 0xffff_ffff, numbers[1], 0, 0, 0]))
}
