//! Permissions as C has them.

use corewalk_ipc::Perm;

/// Returns the structure of `<sys/ipc.h>`.
pub(crate) fn ipc_perm(perm: &Perm) -> libc::ipc_perm {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut raw: libc::ipc_perm = unsafe { std::mem::zeroed() };
    raw.__key = perm.key;
    (raw.uid, raw.gid, raw.cuid, raw.cgid) = (perm.uid, perm.gid, perm.cuid, perm.cgid);
    raw.mode = perm.mode as _;
    raw.__seq = perm.seq as _;
    raw
}
