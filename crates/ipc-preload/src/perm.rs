//! Flags and permissions in the form of the C library.

use corewalk_ipc::{GetFlags, Perm};
use libc::c_int;

/// The permission bits in the flags of a `*get` call.
const MODE_MASK: c_int = 0o777;

pub(crate) fn get_flags(word: c_int) -> (GetFlags, u16) {
    (GetFlags::from_bits_retain(word & !MODE_MASK), (word & MODE_MASK) as u16)
}

/// Converts permissions to a `struct ipc_perm` of `<sys/ipc.h>`.
pub(crate) fn ipc_perm(perm: &Perm) -> libc::ipc_perm {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut raw: libc::ipc_perm = unsafe { std::mem::zeroed() };
    raw.__key = perm.key;
    (raw.uid, raw.gid, raw.cuid, raw.cgid) = (perm.uid, perm.gid, perm.cuid, perm.cgid);
    raw.mode = perm.mode as _;
    raw.__seq = perm.seq as _;
    raw
}
