//! Code that the `*get` and `*ctl` calls of all kinds share.
//!
//! Source: Linux `ipc/util.c` (`ipcget_public`, `ipcctl_obtain_check`); svipc(7).

use rustix::io::Errno;

use crate::field::refuse_if;
use crate::flags::{GetFlags, MODE_MASK};
use crate::ids::{IPC_PRIVATE, Ids, IdsGuard, Object, SLOTS_MAX};
use crate::perm::{CAP_SYS_ADMIN, Cred, Perm, SecurityHook};
use crate::task::Task;

/// Removes the object.
pub const IPC_RMID: i32 = 0;
/// Changes owner and mode.
pub const IPC_SET: i32 = 1;
/// Reads the description of the object.
pub const IPC_STAT: i32 = 2;
/// Reads the limits.
pub const IPC_INFO: i32 = 3;

/// How a command names its object: by id, or by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The id.
    Id,
    /// The index.
    Index,
    /// The index, without a check of the permission bits, as for `SEM_STAT_ANY`.
    AnyIndex,
}

/// The totals of a kind.
pub(crate) struct Totals {
    /// The number of objects.
    pub(crate) objects: u32,
    /// The number of semaphores in all sets, or of pages in all segments. Unused for queues.
    pub(crate) used: u64,
    /// The highest index in use, or 0 if there is no object.
    pub(crate) index_max: u32,
}

/// Finds the object with the key `key`, or makes one, for semget, msgget and shmget. Returns its
/// id.
///
/// If the object exists, `check` runs before the permissions are checked. Otherwise `make` creates
/// an object with the given owner and mode.
pub(crate) fn ipcget(
    task: &Task,
    ids: &IdsGuard<'_>,
    key: i32,
    flags: GetFlags,
    mode: u16,
    check: impl FnOnce(&Object) -> Result<(), Errno>,
    make: impl FnOnce(Perm) -> Result<i32, Errno>,
) -> Result<i32, Errno> {
    let found = if key == IPC_PRIVATE { None } else { ids.find_key(key) };
    let Some(object) = found else {
        refuse_if(key != IPC_PRIVATE && !flags.contains(GetFlags::CREATE), Errno::NOENT)?;
        let (uid, gid) = task.cred.ids();
        let mode = mode & MODE_MASK;
        return make(Perm { key, uid, gid, cuid: uid, cgid: gid, mode, seq: 0 });
    };
    refuse_if(flags.contains(GetFlags::CREATE | GetFlags::EXCLUSIVE), Errno::EXIST)?;
    check(&object)?;
    task.permission(&object, mode.into())?;
    task.ask(|hook, cred| hook.associate(cred, &object.perm(), flags, mode))?;
    Ok(object.id())
}

impl Task {
    /// Calls `ask` with the security hook and the caller's credentials. If the hook refuses the
    /// call, returns the hook's error. Without a hook, all calls are allowed.
    #[inline]
    pub(crate) fn ask(
        &self,
        ask: impl FnOnce(&dyn SecurityHook, &Cred) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        match &self.shared.hook {
            None => Ok(()),
            Some(hook) => ask(&**hook, &self.cred.whole()),
        }
    }

    /// Finds the object that a `*ctl` command names. Checks the permissions in `flag`, except for
    /// [`By::AnyIndex`], and asks the security hook. Analogous to Linux's
    /// `ipc_obtain_object_check`.
    pub(crate) fn obtain(
        &self,
        ids: Ids<'_>,
        by: By,
        id: i32,
        flag: u32,
        cmd: i32,
    ) -> Result<Object, Errno> {
        let object = match by {
            By::Id => ids.obtain_object_check(id)?,
            By::Index | By::AnyIndex => {
                let index = u32::try_from(id).map_err(|_| Errno::INVAL)?;
                ids.obtain_object(index & (SLOTS_MAX - 1))?
            }
        };
        if by != By::AnyIndex {
            self.permission(&object, flag)?;
        }
        self.ask(|hook, cred| (ids.kind.may_ctl)(hook, cred, Some(&object.perm()), cmd))?;
        Ok(object)
    }

    /// Finds the object of `IPC_SET` or `IPC_RMID`. Checks that the caller may change or remove the
    /// object, and asks the security hook.
    ///
    /// The caller holds the lock of the object kind (as Linux's `ipc_ids.rwsem`). So the object
    /// cannot be removed, and its own lock is not needed. Analogous to Linux's
    /// `ipcctl_pre_down_nolock` and `ipcctl_obtain_check`.
    pub(crate) fn obtain_own(
        &self,
        ids: &IdsGuard<'_>,
        id: i32,
        cmd: i32,
    ) -> Result<Object, Errno> {
        let object = ids.obtain_object_check(id)?;
        refuse_if(!self.cred.may_control(&object.perm(), CAP_SYS_ADMIN), Errno::PERM)?;
        self.ask(|hook, cred| (ids.ids.kind.may_ctl)(hook, cred, Some(&object.perm()), cmd))?;
        Ok(object)
    }

    pub(crate) fn totals(&self, ids: Ids<'_>, cmd: i32) -> Result<Totals, Errno> {
        self.ask(|hook, cred| (ids.kind.may_ctl)(hook, cred, None, cmd))?;
        let ids = ids.lock()?;
        let index_max = ids.index_max().unwrap_or(0);
        Ok(Totals { objects: ids.in_use(), used: ids.used(), index_max })
    }
}
