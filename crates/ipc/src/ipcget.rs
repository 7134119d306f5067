//! Shared code of the `*get` calls, and of the commands that only an owner may give.
//!
//! Source: Linux `ipc/util.c` (`ipcget_public`, `ipcctl_obtain_check`); svipc(7).

use rustix::io::Errno;

use crate::flags::{GetFlags, MODE_MASK};
use crate::ids::{IPC_PRIVATE, IdsGuard, Object};
use crate::perm::Perm;
use crate::task::Task;

/// Returns the id of the object with `key`, or of a new one.
///
/// `check` checks an existing object before its permissions are checked. `make` makes a new object
/// with the given owner and mode.
///
/// # Errors
///
/// `ENOENT` without `CREATE`, `EEXIST` with `EXCLUSIVE`, `EACCES`, and those of `check`, `make` and
/// the hook.
pub(crate) fn ipcget(
    task: &Task,
    ids: &IdsGuard<'_>,
    (key, flags, mode): (i32, GetFlags, u16),
    check: impl FnOnce(&Object) -> Result<(), Errno>,
    make: impl FnOnce(&IdsGuard<'_>, Perm) -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    let found = if key == IPC_PRIVATE { None } else { ids.find_key(key) };
    let hook = &task.shared.hook;
    let Some(object) = found else {
        if key != IPC_PRIVATE && !flags.contains(GetFlags::CREATE) {
            return Err(Errno::NOENT);
        }
        let (uid, gid) = task.cred.ids();
        let mode = mode & MODE_MASK;
        return make(ids, Perm { key, uid, gid, cuid: uid, cgid: gid, mode, seq: 0 });
    };
    if flags.contains(GetFlags::CREATE | GetFlags::EXCLUSIVE) {
        return Err(Errno::EXIST);
    }
    check(&object)?;
    task.permission(&object, mode.into())?;
    if let Some(hook) = hook {
        hook.associate(&task.cred.whole(), &object.perm(), flags, mode)?;
    }
    Ok(object.id())
}

/// Asks the hook whether an object may be made.
pub(crate) fn may_alloc(task: &Task, perm: &Perm) -> Result<(), Errno> {
    match &task.shared.hook {
        None => Ok(()),
        Some(hook) => hook.alloc(&task.cred.whole(), perm),
    }
}

/// Returns the object of a command that only its owner may give.
///
/// # Errors
///
/// `EINVAL` if there is none, `EPERM` for others.
#[doc(alias = "ipcctl_obtain_check")]
pub(crate) fn obtain_own(task: &Task, ids: &IdsGuard<'_>, id: i32) -> Result<Object, Errno> {
    let object = ids.obtain_object_check(id)?;
    if task.cred.may_control(&object.perm()) { Ok(object) } else { Err(Errno::PERM) }
}
