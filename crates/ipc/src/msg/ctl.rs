//! msgget(2) and msgctl(2), one method per command.
//!
//! Source: msgget(2), msgctl(2); Linux `ipc/msg.c` (`newque`, `freeque`, `msgctl_down`,
//! `msgctl_stat`, `msgctl_info`).

use rustix::io::Errno;

use super::node::{self, Role};
use super::queue::{MsgStat, Queue};

use crate::ctl::{By, IPC_RMID, IPC_SET, IPC_STAT, Totals, ipcget};
use crate::field::refuse_if;
use crate::flags::GetFlags;
use crate::handle::MsgId;
use crate::lock::Wait;
use crate::perm::{CAP_SYS_RESOURCE, Perm, READ};
use crate::shared::now_s;
use crate::task::Task;

/// As `IPC_STAT`, by index.
pub const MSG_STAT: i32 = 11;
/// Return the totals of all queues.
pub const MSG_INFO: i32 = 12;
/// As `MSG_STAT`, without a permission check.
pub const MSG_STAT_ANY: i32 = 13;

/// The totals of all queues that `MSG_INFO` returns. `MSG_INFO` also returns limits, which are not
/// here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsgTotals {
    /// The number of queues.
    pub queues: u32,
    /// The number of messages in all queues.
    pub messages: u64,
    /// The bytes of these messages.
    pub bytes: u64,
    /// The highest index in use, or 0 if there is no queue.
    pub index_max: u32,
}

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
        let make = |perm: Perm| {
            self.ask(|hook, cred| hook.alloc(cred, &perm))?;
            ids.add(perm, limits.msgmni, |index| {
                let slot = Queue::of_slot(&self.shared, index);
                let _held = slot.hold(self.owner, Wait::Long)?;
                Ok(slot.init(limits.msgmnb.into()).name.payload())
            })
        };
        let id = ipcget(self, &ids, key, flags, mode, |_| Ok(()), make)?;
        Ok(MsgId::from_raw(id))
    }

    /// Removes a queue with its messages: `IPC_RMID`. Calls that wait at the queue end with
    /// `EIDRM`.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no such queue. Returns `EPERM` if the caller is neither owner
    /// nor creator of the queue, and lacks `CAP_SYS_ADMIN`.
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
            // The lock fails with `EIDRM` only if a hostile process has overwritten the queue.
            // Destroy the queue, as recovery does after an interrupted removal.
            let _ended = queue.recover(self.owner);
            return Ok(());
        };
        let wakes = guard.end();
        drop(guard);
        drop(ids);
        node::wake(&self.shared, &wakes);
        Ok(())
    }

    /// Returns the state of a queue: `IPC_STAT`.
    ///
    /// # Errors
    ///
    /// Returns `EACCES` if the caller has no read permission. Returns `EIDRM` if the queue was
    /// removed during the call, and `EINVAL` if there is no such queue.
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
    /// task.msgsnd(id, 1, b"text", MsgFlags::empty())?;
    /// let stat = task.msg_stat(id)?;
    /// assert_eq!((stat.qnum, stat.cbytes, stat.lspid), (1, 4, 1));
    /// task.msg_rmid(id)?;
    /// assert_eq!(task.msg_stat(id), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "msgctl_stat")]
    pub fn msg_stat(&self, msqid: MsgId) -> Result<MsgStat, Errno> {
        self.msg_stat_by(By::Id, msqid.raw(), IPC_STAT)
    }

    /// Like [`Task::msg_stat`], for the queue at an index of the id table: `MSG_STAT`. The result
    /// contains the id of the queue.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::msg_stat`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgId, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// // As ipcs(1) lists all queues.
    /// let indices = 0..=task.msg_totals()?.index_max.cast_signed();
    /// let found: Vec<MsgId> =
    ///     indices.filter_map(|index| Some(task.msg_stat_index(index).ok()?.id)).collect();
    /// assert_eq!(found, [id]);
    /// assert_eq!(task.msg_stat_index(99), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn msg_stat_index(&self, index: i32) -> Result<MsgStat, Errno> {
        self.msg_stat_by(By::Index, index, MSG_STAT)
    }

    /// Like [`Task::msg_stat_index`], but without a permission check: `MSG_STAT_ANY`.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no queue at this index of the id table. Returns `EIDRM` if the
    /// queue was removed during the call.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let owner = namespace.register(Cred::user(1000, 1000), 1)?;
    /// let other = namespace.register(Cred::user(1001, 1001), 2)?;
    /// let id = owner.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// // The first object has the index 0.
    /// assert_eq!(other.msg_stat_index(0), Err(Errno::ACCESS));
    /// assert_eq!(other.msg_stat_any(0)?.id, id);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn msg_stat_any(&self, index: i32) -> Result<MsgStat, Errno> {
        self.msg_stat_by(By::AnyIndex, index, MSG_STAT_ANY)
    }

    /// Changes a queue's owner, its group, its nine permission bits and its limit `msg_qbytes`:
    /// `IPC_SET`.
    ///
    /// Once the new values are stored, waiting receivers check their permission again. So do those
    /// waiting senders whose messages now fit into the queue.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no such queue, or if an id is `-1`. Returns `EPERM` if the
    /// caller is neither owner nor creator of the queue, and lacks `CAP_SYS_ADMIN`. Also returns
    /// `EPERM` if `qbytes` is above `MSGMNB`, and the caller lacks `CAP_SYS_RESOURCE`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let owner = namespace.register(Cred::user(1000, 1000), 1)?;
    /// let id = owner.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// owner.msg_set(id, 1000, 1000, 0o600, 4)?;
    /// owner.msgsnd(id, 1, b"full", MsgFlags::empty())?;
    /// assert_eq!(owner.msgsnd(id, 1, b"more", MsgFlags::NOWAIT), Err(Errno::AGAIN));
    /// // More than `MSGMNB` needs a capability.
    /// assert_eq!(owner.msg_set(id, 1000, 1000, 0o600, 1 << 20), Err(Errno::PERM));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "msgctl_down")]
    pub fn msg_set(
        &self,
        msqid: MsgId,
        uid: u32,
        gid: u32,
        mode: u16,
        qbytes: u64,
    ) -> Result<(), Errno> {
        let ids = self.msg_ids().lock()?;
        let object = self.obtain_own(&ids, msqid.raw(), IPC_SET)?;
        let may_raise = self.cred.is_capable(CAP_SYS_RESOURCE);
        refuse_if(qbytes > u64::from(self.shared.limits.msgmnb) && !may_raise, Errno::PERM)?;
        refuse_if([uid, gid].contains(&u32::MAX), Errno::INVAL)?;
        let guard = Queue::new(&self.shared, &object).lock(self.owner)?;
        guard.begin_set(qbytes);
        ids.update_perm(&object, uid, gid, mode, now_s());
        guard.set_qbytes(qbytes);
        let mut wakes = guard.call(Role::Receiver);
        wakes.extend(guard.call(Role::Sender));
        guard.end_set();
        drop(guard);
        drop(ids);
        node::wake(&self.shared, &wakes);
        Ok(())
    }

    /// Returns the numbers of queues, messages and bytes in the namespace, and the highest index of
    /// the id table in use. Corresponds to the commands `MSG_INFO` and `IPC_INFO`.
    ///
    /// The queues are read one after the other, so the totals may not be those of a single moment.
    ///
    /// # Errors
    ///
    /// The error of the security hook.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// task.msgsnd(id, 1, b"text", MsgFlags::empty())?;
    /// let totals = task.msg_totals()?;
    /// assert_eq!((totals.queues, totals.messages, totals.bytes), (1, 1, 4));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[doc(alias = "msgctl_info")]
    pub fn msg_totals(&self) -> Result<MsgTotals, Errno> {
        let Totals { objects, index_max, .. } = self.totals(self.msg_ids(), MSG_INFO)?;
        let mut totals = MsgTotals { queues: objects, index_max, ..<_>::default() };
        for index in 0..=index_max {
            if let Ok(object) = self.msg_ids().obtain_object(index) {
                let (qnum, cbytes) = Queue::new(&self.shared, &object).glimpse();
                totals.messages = totals.messages.saturating_add(qnum);
                totals.bytes = totals.bytes.saturating_add(cbytes);
            }
        }
        Ok(totals)
    }

    fn msg_stat_by(&self, by: By, id: i32, cmd: i32) -> Result<MsgStat, Errno> {
        let object = self.obtain(self.msg_ids(), by, id, READ, cmd)?;
        let numbers = Queue::new(&self.shared, &object).lock(self.owner)?.numbers();
        let (id, perm) = (MsgId::from_raw(object.id()), object.perm());
        Ok(MsgStat { id, perm, ctime_s: object.ctime, ..numbers })
    }
}
