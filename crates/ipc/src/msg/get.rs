//! msgget(2), and the removal of a queue.
//!
//! Source: msgget(2); Linux `ipc/msg.c` (`newque`, `freeque`).

use rustix::io::Errno;

use super::node;
use super::queue::Queue;
use crate::ctl::{IPC_RMID, ipcget};
use crate::flags::GetFlags;
use crate::handle::MsgId;
use crate::task::Task;

impl Task {
    /// Returns the id of the queue with this key, or creates a queue and returns its id.
    ///
    /// `IPC_PRIVATE` always creates a new queue. The byte limit of a new queue is `MSGMNB`.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the queue exists, and its mode does not grant the permissions in `mode`.
    /// - `EEXIST`: the queue exists, and both `CREATE` and `EXCLUSIVE` are given.
    /// - `ENOENT`: no queue has this key, and `CREATE` is not given.
    /// - `ENOSPC`: more than `MSGMNI` queues would exist.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// assert_eq!(task.msgget(5, GetFlags::empty(), 0o600), Err(Errno::NOENT));
    /// let id = task.msgget(5, GetFlags::CREATE, 0o600)?;
    /// let exclusive = GetFlags::CREATE | GetFlags::EXCLUSIVE;
    /// assert_eq!(task.msgget(5, exclusive, 0o600), Err(Errno::EXIST));
    /// assert_eq!(task.msgget(5, GetFlags::empty(), 0), Ok(id));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn msgget(&self, key: i32, flags: GetFlags, mode: u16) -> Result<MsgId, Errno> {
        let limits = &self.shared.limits;
        let ids = self.msg_ids().lock()?;
        let id = ipcget(
            self,
            &ids,
            (key, flags, mode),
            |_| Ok(()),
            |perm| {
                self.may_alloc(&perm)?;
                let qbytes = limits.msgmnb.into();
                ids.add(perm, limits.msgmni, |index| {
                    Ok(Queue::make(&self.shared, index, qbytes, self.owner)?.name.payload())
                })
            },
        )?;
        Ok(MsgId::from_raw(id))
    }

    /// Removes a queue with its messages: `IPC_RMID`. Waiting calls end with `EIDRM`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such queue; `EPERM`: the caller is neither owner nor creator of the
    /// queue, and lacks `CAP_SYS_ADMIN`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// std::thread::scope(|scope| {
    ///     let waits = scope.spawn(|| task.msgrcv(id, &mut [0; 8], 0, MsgFlags::empty()));
    ///     while task.waiting() == 0 {
    ///         std::thread::yield_now();
    ///     }
    ///     task.msg_rmid(id)?;
    ///     assert_eq!(waits.join().expect("no panic"), Err(Errno::IDRM));
    ///     Ok::<(), Errno>(())
    /// })?;
    /// assert_eq!(task.msg_rmid(id), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "ipcctl_pre_down_nolock")]
    #[doc(alias = "freeque")]
    pub fn msg_rmid(&self, msqid: MsgId) -> Result<(), Errno> {
        let ids = self.msg_ids().lock()?;
        let object = self.obtain_own(&ids, msqid.raw(), IPC_RMID)?;
        let queue = Queue::new(&self.shared, &object);
        let guard = match queue.lock(self.owner) {
            Err(Errno::IDRM) => None,
            guard => Some(guard?),
        };
        ids.unpublish(&object);
        let Some(guard) = guard else {
            // A hostile process has overwritten the queue. Recovery ends it, as after an
            // interrupted removal.
            let _ended = queue.recover(self.owner);
            return Ok(());
        };
        let wakes = guard.end();
        drop(guard);
        drop(ids);
        node::wake(&self.shared, &wakes);
        Ok(())
    }
}
