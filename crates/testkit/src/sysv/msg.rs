//! The message queues of the host kernel.
//!
//! Source: msgget(2), msgop(2), msgctl(2).
#![expect(unsafe_code, reason = "libc declares system calls as unsafe")]

use super::check;

/// A message in the layout of the system calls: its type, and a buffer for its text.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct Buffer<const N: usize> {
    /// The type.
    pub mtype: i64,
    /// The text.
    pub text: [u8; N],
}

/// The attributes that `IPC_STAT` returns, without the times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Key, uid, gid, cuid, cgid.
    pub ids: [i64; 5],
    /// The mode.
    pub mode: u32,
    /// `msg_cbytes`, `msg_qnum` and `msg_qbytes`.
    pub numbers: [u64; 3],
    /// The pids of the last msgsnd(2) and the last msgrcv(2).
    pub pids: [i32; 2],
    /// Whether the times of the last msgsnd(2) and of the last msgrcv(2) are set, in this order.
    pub has_times: [bool; 2],
}

/// Calls msgget(2). Returns the ID of the message queue.
///
/// # Errors
///
/// The errno of the system call.
pub fn msgget(key: i32, flags: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    check(unsafe { libc::msgget(key, flags) })
}

/// Calls msgsnd(2) with the first `size` bytes of a buffer.
///
/// # Errors
///
/// The errno of the system call.
///
/// # Panics
///
/// Panics if the buffer has fewer than `size` bytes for a text.
#[inline]
pub fn msgsnd<const N: usize>(
    id: i32,
    buffer: &Buffer<N>,
    size: usize,
    flags: i32,
) -> Result<i32, i32> {
    assert!(size <= N, "the text is longer than the buffer");
    // SAFETY: the type and `size` bytes of text are readable.
    check(unsafe { libc::msgsnd(id, std::ptr::from_ref(buffer).cast(), size, flags) })
}

/// Calls msgrcv(2) to receive at most `size` bytes into a buffer. Returns the length of the text.
///
/// # Errors
///
/// The errno of the system call.
///
/// # Panics
///
/// Panics if the buffer has fewer than `size` bytes for a text.
#[inline]
pub fn msgrcv<const N: usize>(
    id: i32,
    buffer: &mut Buffer<N>,
    size: usize,
    msgtyp: i64,
    flags: i32,
) -> Result<usize, i32> {
    assert!(size <= N, "the size is larger than the buffer");
    let buffer = std::ptr::from_mut(buffer).cast();
    // SAFETY: the type and `size` bytes of text are writable.
    let received = unsafe { libc::msgrcv(id, buffer, size, msgtyp, flags) };
    usize::try_from(received).map_err(|_| super::errno())
}

/// Calls msgctl(2) with a command that takes no argument.
///
/// # Errors
///
/// The errno of the system call.
pub fn msgctl(id: i32, cmd: i32) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: the command ignores the structure.
    check(unsafe { libc::msgctl(id, cmd, &mut ds) })
}

/// Calls msgctl(2) with `IPC_STAT`, `MSG_STAT` or `MSG_STAT_ANY`. Returns the result of the call
/// and the attributes of the message queue.
///
/// # Errors
///
/// The errno of the system call.
pub fn stat(id: i32, cmd: i32) -> Result<(i32, Stat), i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
    // SAFETY: these commands write a `msqid_ds`.
    let result = check(unsafe { libc::msgctl(id, cmd, &mut ds) })?;
    let perm = ds.msg_perm;
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
        numbers: [ds.__msg_cbytes, ds.msg_qnum, ds.msg_qbytes],
        pids: [ds.msg_lspid, ds.msg_lrpid],
        has_times: [ds.msg_stime != 0, ds.msg_rtime != 0],
    };
    Ok((result, stat))
}

/// Calls msgctl(2) with `IPC_SET`, which sets the owner, the mode and the size limit of a queue.
///
/// # Errors
///
/// The errno of the system call.
pub fn set(id: i32, uid: u32, gid: u32, mode: u32, qbytes: u64) -> Result<i32, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::msqid_ds = unsafe { std::mem::zeroed() };
    (ds.msg_perm.uid, ds.msg_perm.gid) = (uid, gid);
    ds.msg_perm.mode = mode as _;
    ds.msg_qbytes = qbytes;
    // SAFETY: the command reads a `msqid_ds`.
    check(unsafe { libc::msgctl(id, libc::IPC_SET, &mut ds) })
}

/// Calls msgctl(2) with `IPC_INFO` or `MSG_INFO`. Returns the result of the call and the fields of
/// `struct msginfo`.
///
/// # Errors
///
/// The errno of the system call.
pub fn totals(cmd: i32) -> Result<(i32, [i32; 8]), i32> {
    let mut numbers = [0i32; 8];
    let buffer: *mut [i32; 8] = &mut numbers;
    // SAFETY: these commands write a `struct msginfo`, seven integers of 32 bits and one of 16
    // bits.
    let result = check(unsafe { libc::msgctl(0, cmd, buffer.cast()) })?;
    numbers[7] &= 0xffff;
    Ok((result, numbers))
}
