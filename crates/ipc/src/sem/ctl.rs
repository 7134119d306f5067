//! semget(2) and semctl(2), one method per command.
//!
//! A query of one value or pid reads the semaphore's word. A command takes the set's lock only if
//! it needs the queues of waiting calls, or the values of several semaphores at one instant.
//!
//! Source: semget(2), semctl(2); Linux `ipc/sem.c` (`newary`, `freeary`, `semctl_main`,
//! `semctl_setval`, `semctl_stat`, `semctl_down`).

use corewalk_base::futex::Scope;
use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::queue::{self, Changed};
use super::reap::Concern;
use super::recover::free_lost;
use super::set::{
    ALTER_LIST, COMMIT, COMPLEX_COUNT, CONST_LIST, LIVE, LOG, OTIME, Place, REDO, Set, TICKET,
    UNDO_LIST, WORD,
};
use super::txn::Txn;
use super::undo;
use super::word::{TAG_MASK, Word};

use crate::ctl::{By, IPC_RMID, IPC_SET, IPC_STAT, Totals, ipcget};
use crate::field::{get, put, refuse_if};
use crate::flags::GetFlags;
use crate::handle::SemId;
use crate::ids::{Object, touch_ctime};
use crate::limits::SEMVMX;
use crate::lock::Wait;
use crate::perm::{Perm, READ, WRITE};
use crate::shared::now_s;
use crate::task::Task;

/// Reads the pid of the last operation.
pub const GETPID: i32 = 11;
/// Reads the value.
pub const GETVAL: i32 = 12;
/// Reads all values.
pub const GETALL: i32 = 13;
/// Reads the number of calls that wait for an increase.
pub const GETNCNT: i32 = 14;
/// Reads the number of calls that wait for zero.
pub const GETZCNT: i32 = 15;
/// Sets the value.
pub const SETVAL: i32 = 16;
/// Sets all values.
pub const SETALL: i32 = 17;
/// As `IPC_STAT`, by index.
pub const SEM_STAT: i32 = 18;
/// Reads the totals of all sets.
pub const SEM_INFO: i32 = 19;
/// As `SEM_STAT`, without a permission check.
pub const SEM_STAT_ANY: i32 = 20;

/// The description of a set that `IPC_STAT` returns.
#[doc(alias = "semid_ds")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SemStat {
    /// The set's id.
    pub id: SemId,
    /// The set's permissions.
    pub perm: Perm,
    /// The time of the last operation in seconds since 1970, or 0.
    pub otime_s: u64,
    /// The time of the last change in seconds since 1970.
    pub ctime_s: u64,
    /// The number of semaphores.
    pub nsems: u32,
}

/// The totals that `SEM_INFO` returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SemTotals {
    /// The number of sets.
    pub sets: u32,
    /// The number of semaphores in all sets.
    pub sems: u64,
    /// The highest index in use, or 0 if there is no set.
    pub index_max: u32,
}

impl Task {
    /// Returns the id of the set with this key, or creates a set and returns its id.
    ///
    /// All semaphores of a new set are 0. `IPC_PRIVATE` always creates a new set. The nine bits of
    /// `mode` are the mode of a new set. For an existing set they are the permissions that the call
    /// requests.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the set exists, and its mode does not grant the permissions in `mode`.
    /// - `EEXIST`: the set exists, and both `CREATE` and `EXCLUSIVE` are given.
    /// - `EINVAL`: `nsems` is negative, more than `SEMMSL`, more than the existing set has, or 0
    ///   for a new set.
    /// - `ENOENT`: no set has this key, and `CREATE` is not given.
    /// - `ENOMEM`: there is no memory for the semaphores.
    /// - `ENOSPC`: with the new set there would be more than `SEMMNI` sets or `SEMMNS` semaphores.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// assert_eq!(task.semget(5, 1, GetFlags::empty(), 0o600), Err(Errno::NOENT));
    /// let id = task.semget(5, 1, GetFlags::CREATE, 0o600)?;
    /// let exclusive = GetFlags::CREATE | GetFlags::EXCLUSIVE;
    /// assert_eq!(task.semget(5, 1, exclusive, 0o600), Err(Errno::EXIST));
    /// assert_eq!(task.semget(5, 0, GetFlags::empty(), 0), Ok(id));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "ipcget")]
    #[doc(alias = "newary")]
    pub fn semget(&self, key: i32, nsems: i32, flags: GetFlags, mode: u16) -> Result<SemId, Errno> {
        let limits = &self.shared.limits;
        let nsems = u32::try_from(nsems).ok().filter(|nsems| *nsems <= limits.semmsl);
        let nsems = nsems.ok_or(Errno::INVAL)?;
        let ids = self.sem_ids().lock()?;
        let check = |object: &Object| {
            let has = Set::new(&self.shared, object).place.nsems;
            if nsems > has { Err(Errno::INVAL) } else { Ok(()) }
        };
        let id = ipcget(self, &ids, key, flags, mode, check, |perm| {
            refuse_if(nsems == 0, Errno::INVAL)?;
            let used = ids.used().saturating_add(u64::from(nsems));
            refuse_if(used > u64::from(limits.semmns), Errno::NOSPC)?;
            self.ask(|hook, cred| hook.alloc(cred, &perm))?;
            let id = ids.add(perm, limits.semmni, |index| self.make_set(index, nsems))?;
            ids.set_used(used);
            Ok(id)
        })?;
        Ok(SemId::from_raw(id))
    }

    fn make_set(&self, index: u32, nsems: u32) -> Result<u64, Errno> {
        let shared = &*self.shared;
        let base = shared.layout.sems.alloc(shared, nsems, self.owner, index)?;
        let mut set = Set { shared, index, place: Place { base, nsems, tag: 0 } };
        let tags = (0..nsems as u16).map(|num| Word(get(&set.sem(num)[WORD])).tag());
        set.place.tag = next_tag(tags);
        let guard = set.lock_new(self.owner, Wait::Long)?;
        for num in 0..nsems as u16 {
            let line = set.sem(num);
            [OTIME, ALTER_LIST, CONST_LIST, LOG, REDO]
                .into_iter()
                .for_each(|word| put(&line[word], 0));
            // ORDERING(ipc-word): Release. Other threads load the word with Acquire. Without this
            // order, a thread could see the new tag but old words of the semaphore.
            line[WORD].store(Word::new(set.place.tag).0, Ordering::Release);
        }
        [ALTER_LIST, CONST_LIST, COMPLEX_COUNT, UNDO_LIST, COMMIT, TICKET]
            .into_iter()
            .for_each(|word| put(guard.field(word), 0));
        put(guard.field(LIVE), set.place.payload());
        Ok(set.place.payload())
    }

    /// Removes a set: `IPC_RMID`. Waiting calls fail with `EIDRM`.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no such set. Returns `EPERM` if the caller is neither owner nor
    /// creator of the set, and lacks `CAP_SYS_ADMIN`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// std::thread::scope(|scope| {
    ///     let waits = scope.spawn(|| task.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]));
    ///     while task.waiting() == 0 {
    ///         std::thread::yield_now();
    ///     }
    ///     task.sem_rmid(id)?;
    ///     assert_eq!(waits.join().expect("no panic"), Err(Errno::IDRM));
    ///     Ok::<(), Errno>(())
    /// })?;
    /// assert_eq!(task.sem_rmid(id), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn sem_rmid(&self, semid: SemId) -> Result<(), Errno> {
        let ids = self.sem_ids().lock()?;
        let object = self.obtain_own(&ids, semid.raw(), IPC_RMID)?;
        let set = Set::new(&self.shared, &object);
        let guard = set.lock_remains(self.owner, Wait::Long)?;
        ids.unpublish(&object);
        ids.set_used(ids.used().saturating_sub(u64::from(set.place.nsems)));
        let Some(guard) = guard else {
            // A hostile process has overwritten the word `LIVE`, which identifies the set in its
            // slot. Free the set's semaphores.
            put(&set.line()[LIVE], 0);
            free_lost(self.sem_ids());
            return Ok(());
        };
        let (wakes, is_whole) = guard.remove();
        if !is_whole {
            ids.keep_slot(object.index);
        }
        drop(ids);
        self.wake(wakes);
        Ok(())
    }

    /// Returns the value of a semaphore: `GETVAL`.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the caller has no read permission.
    /// - `EIDRM`: the set was removed during the call.
    /// - `EINVAL`: there is no such set or semaphore.
    /// - `EIO`: a live process did not release a lock of the set for 10 s.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600)?;
    /// task.semop(id, &[SemBuf::new(1, 3, SemFlags::empty())])?;
    /// assert_eq!((task.sem_getval(id, 0), task.sem_getval(id, 1)), (Ok(0), Ok(3)));
    /// assert_eq!(task.sem_getval(id, 2), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "semctl_main")]
    pub fn sem_getval(&self, semid: SemId, semnum: i32) -> Result<i32, Errno> {
        Ok(self.sem_word(semid, semnum, GETVAL)?.value())
    }

    /// Returns the pid of the task that last operated on a semaphore: `GETPID`.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::sem_getval`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let maker = namespace.register(Cred::root(), 100)?;
    /// let other = namespace.register(Cred::root(), 101)?;
    /// let id = maker.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// assert_eq!(maker.sem_getpid(id, 0), Ok(0));
    /// other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())])?;
    /// assert_eq!(maker.sem_getpid(id, 0), Ok(101));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn sem_getpid(&self, semid: SemId, semnum: i32) -> Result<u32, Errno> {
        Ok(self.sem_word(semid, semnum, GETPID)?.pid())
    }

    /// Returns the number of calls that wait until a semaphore is increased: `GETNCNT`.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::sem_getval`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// std::thread::scope(|scope| {
    ///     let waits = scope.spawn(|| task.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]));
    ///     while task.sem_getncnt(id, 0)? == 0 {
    ///         std::thread::yield_now();
    ///     }
    ///     task.sem_setval(id, 0, 1)?;
    ///     waits.join().expect("no panic")
    /// })?;
    /// assert_eq!(task.sem_getncnt(id, 0), Ok(0));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[doc(alias = "count_semcnt")]
    pub fn sem_getncnt(&self, semid: SemId, semnum: i32) -> Result<i32, Errno> {
        self.sem_count(semid, semnum, GETNCNT, ALTER_LIST)
    }

    /// Returns the number of calls that wait until a semaphore is zero: `GETZCNT`.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::sem_getval`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags,
    /// };
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// task.sem_setval(id, 0, 1)?;
    /// std::thread::scope(|scope| {
    ///     let waits = scope.spawn(|| task.semop(id, &[SemBuf::new(0, 0, SemFlags::empty())]));
    ///     while task.sem_getzcnt(id, 0)? == 0 {
    ///         std::thread::yield_now();
    ///     }
    ///     task.sem_setval(id, 0, 0)?;
    ///     waits.join().expect("no panic")
    /// })?;
    /// assert_eq!(task.sem_getzcnt(id, 0), Ok(0));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn sem_getzcnt(&self, semid: SemId, semnum: i32) -> Result<i32, Errno> {
        self.sem_count(semid, semnum, GETZCNT, CONST_LIST)
    }

    /// Returns all values at one instant: `GETALL`.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::sem_getval`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600)?;
    /// task.sem_setval(id, 1, 7)?;
    /// assert_eq!(task.sem_getall(id)?, [0, 7]);
    /// task.sem_rmid(id)?;
    /// assert_eq!(task.sem_getall(id), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn sem_getall(&self, semid: SemId) -> Result<Vec<u16>, Errno> {
        let set = self.sem_obtain(semid, READ, GETALL)?;
        let guard = set.lock(self.owner)?;
        let mut txn = Txn::new(&guard);
        (0..set.place.nsems as u16).map(|num| Ok(txn.frozen(num)?.value as u16)).collect()
    }

    /// Sets the value of a semaphore, and clears all its undo adjustments: `SETVAL`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Task::sem_getval`], but `EACCES` if the caller has no write
    /// permission. Returns `ERANGE` if the value is negative or more than `SEMVMX`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SEMVMX};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// task.sem_setval(id, 0, SEMVMX)?;
    /// assert_eq!(task.sem_setval(id, 0, SEMVMX + 1), Err(Errno::RANGE));
    /// assert_eq!(task.sem_getval(id, 0), Ok(SEMVMX));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "semctl_setval")]
    pub fn sem_setval(&self, semid: SemId, semnum: i32, value: i32) -> Result<(), Errno> {
        refuse_if(!(0..=SEMVMX).contains(&value), Errno::RANGE)?;
        let object = self.sem_ids().obtain_object_check(semid.raw())?;
        let set = Set::new(&self.shared, &object);
        let num = in_range(set, semnum)?;
        self.permission(&object, WRITE)?;
        // `SETVAL` returns `EACCES` if the security module refuses it, whatever error the module
        // returned. So does Linux.
        let asked = self.ask(|hook, cred| hook.sem_semctl(cred, Some(&object.perm()), SETVAL));
        asked.map_err(|_| Errno::ACCESS)?;
        self.set_values(set, &[num], |_| value)
    }

    /// Sets the values of all semaphores, and clears all undo adjustments of the set: `SETALL`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Task::sem_setval`], and `EINVAL` if the number of values differs
    /// from the number of semaphores.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600)?;
    /// task.sem_setall(id, &[1, 2])?;
    /// assert_eq!(task.sem_getall(id)?, [1, 2]);
    /// assert_eq!(task.sem_setall(id, &[1]), Err(Errno::INVAL));
    /// assert_eq!(task.sem_setall(id, &[1, 40_000]), Err(Errno::RANGE));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn sem_setall(&self, semid: SemId, values: &[u16]) -> Result<(), Errno> {
        let set = self.sem_obtain(semid, WRITE, SETALL)?;
        refuse_if(values.len() != set.place.nsems as usize, Errno::INVAL)?;
        refuse_if(values.iter().any(|value| i32::from(*value) > SEMVMX), Errno::RANGE)?;
        let nums: Vec<u16> = (0..set.place.nsems as u16).collect();
        self.set_values(set, &nums, |num| i32::from(values[usize::from(num)]))
    }

    /// Returns the description of a set: `IPC_STAT`.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the caller has no read permission.
    /// - `EINVAL`: there is no such set.
    /// - `EIO`: a live process did not release the lock of all semaphore sets for 10 s.
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
    /// let id = owner.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600)?;
    /// let stat = owner.sem_stat(id)?;
    /// assert_eq!((stat.nsems, stat.perm.uid, stat.otime_s), (3, 1000, 0));
    /// assert_eq!(other.sem_stat(id), Err(Errno::ACCESS));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "semctl_stat")]
    pub fn sem_stat(&self, semid: SemId) -> Result<SemStat, Errno> {
        self.sem_stat_by(By::Id, semid.raw(), IPC_STAT)
    }

    /// Like [`Task::sem_stat`], for the set at an index of the id table: `SEM_STAT`. The result
    /// contains the id of the set.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::sem_stat`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemId};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// // ipcs(1) finds all sets in this way.
    /// let indices = 0..=task.sem_totals()?.index_max.cast_signed();
    /// let found: Vec<SemId> =
    ///     indices.filter_map(|index| Some(task.sem_stat_index(index).ok()?.id)).collect();
    /// assert_eq!(found, [id]);
    /// assert_eq!(task.sem_stat_index(99), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "sem_obtain_object")]
    pub fn sem_stat_index(&self, index: i32) -> Result<SemStat, Errno> {
        self.sem_stat_by(By::Index, index, SEM_STAT)
    }

    /// Like [`Task::sem_stat_index`], but without a permission check: `SEM_STAT_ANY`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no set at this index.
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
    /// let id = owner.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// // The first object has the index 0.
    /// assert_eq!(other.sem_stat_index(0), Err(Errno::ACCESS));
    /// assert_eq!(other.sem_stat_any(0)?.id, id);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn sem_stat_any(&self, index: i32) -> Result<SemStat, Errno> {
        self.sem_stat_by(By::AnyIndex, index, SEM_STAT_ANY)
    }

    /// Changes the owner, the group and the nine permission bits: `IPC_SET`.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: there is no such set, or an id is `-1`.
    /// - `EPERM`: the caller is neither owner nor creator of the set, and lacks `CAP_SYS_ADMIN`.
    /// - `EIO`: a live process did not release the lock of the set, or of all semaphore sets, for
    ///   10 s.
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
    /// let id = owner.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// assert_eq!(other.sem_set(id, 1001, 1001, 0o600), Err(Errno::PERM));
    /// owner.sem_set(id, 1001, 1001, 0o640)?;
    /// assert_eq!(other.sem_stat(id)?.perm.mode & 0o777, 0o640);
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "semctl_down")]
    pub fn sem_set(&self, semid: SemId, uid: u32, gid: u32, mode: u16) -> Result<(), Errno> {
        let ids = self.sem_ids().lock()?;
        let object = self.obtain_own(&ids, semid.raw(), IPC_SET)?;
        refuse_if([uid, gid].contains(&u32::MAX), Errno::INVAL)?;
        let _guard = Set::new(&self.shared, &object).lock(self.owner)?;
        ids.update_perm(&object, uid, gid, mode, now_s());
        Ok(())
    }

    /// Returns the numbers of semaphore sets and semaphores in the namespace, and the highest index
    /// of the id table in use. Corresponds to the commands `SEM_INFO` and `IPC_INFO`.
    ///
    /// # Errors
    ///
    /// Returns the errors of the security hook, and `EIO` if a live process did not release the
    /// lock of all semaphore sets for 10 s.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// task.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600)?;
    /// task.semget(IPC_PRIVATE, 4, GetFlags::empty(), 0o600)?;
    /// let totals = task.sem_totals()?;
    /// assert_eq!((totals.sets, totals.sems), (2, 7));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[doc(alias = "semctl_info")]
    pub fn sem_totals(&self) -> Result<SemTotals, Errno> {
        let Totals { objects, used, index_max } = self.totals(self.sem_ids(), SEM_INFO)?;
        Ok(SemTotals { sets: objects, sems: used, index_max })
    }

    /// Returns the number of semaphores of a set. This needs no permission.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such set.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600)?;
    /// assert_eq!(task.sem_nsems(id), Ok(3));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn sem_nsems(&self, semid: SemId) -> Result<usize, Errno> {
        let object = self.sem_ids().obtain_object_check(semid.raw())?;
        Ok(Set::new(&self.shared, &object).place.nsems as usize)
    }

    /// Finds the set of a semctl(2) command, and checks the permissions in `flag`. Analogous to
    /// Linux's `sem_obtain_object_check`.
    fn sem_obtain(&self, semid: SemId, flag: u32, cmd: i32) -> Result<Set<'_>, Errno> {
        let object = self.obtain(self.sem_ids(), By::Id, semid.raw(), flag, cmd)?;
        let set = Set::new(&self.shared, &object);
        if set.may_be_owed() {
            // First clean up after dead tasks, whose undo adjustments and granted units change the
            // values.
            self.look_after(set, Concern::Values);
        }
        Ok(set)
    }

    /// Returns the word of a semaphore. If another task has frozen (locked) the word to change it,
    /// first waits until the change is complete.
    fn sem_word(&self, semid: SemId, semnum: i32, cmd: i32) -> Result<Word, Errno> {
        let set = self.sem_obtain(semid, READ, cmd)?;
        let num = in_range(set, semnum)?;
        let word = set.word(num)?;
        if !word.is_frozen() {
            return Ok(word);
        }
        // The task that froze (locked) this word may be changing several semaphores in one call.
        // Another call may have seen one of the new values. So wait until all are stored.
        let guard = set.lock(self.owner)?;
        let word = guard.freeze(num)?;
        set.thaw(num, word);
        Ok(word)
    }

    /// Returns the number of calls that wait at a semaphore: for an increase if `list` is
    /// [`ALTER_LIST`], for zero if it is [`CONST_LIST`]. Calls with several operations count, too.
    fn sem_count(&self, semid: SemId, semnum: i32, cmd: i32, list: usize) -> Result<i32, Errno> {
        let set = self.sem_obtain(semid, READ, cmd)?;
        let num = in_range(set, semnum)?;
        let has_waiters = set.word(num).is_ok_and(|word| word.waiters() != 0);
        if has_waiters && self.shared.scope == Scope::Shared {
            // Dead tasks must not be counted.
            self.look_after(set, Concern::Waits);
        }
        let guard = set.lock(self.owner)?;
        Ok(queue::count(&guard, num, list))
    }

    fn sem_stat_by(&self, by: By, id: i32, cmd: i32) -> Result<SemStat, Errno> {
        let object = self.obtain(self.sem_ids(), by, id, READ, cmd)?;
        let set = Set::new(&self.shared, &object);
        let (perm, ctime_s) = (object.perm(), object.ctime);
        let (otime_s, nsems) = (set.otime(), set.place.nsems);
        Ok(SemStat { id: SemId::from_raw(object.id()), perm, otime_s, ctime_s, nsems })
    }

    /// Sets values, and completes the waiting calls that have become possible.
    fn set_values(
        &self,
        set: Set<'_>,
        nums: &[u16],
        value: impl Fn(u16) -> i32,
    ) -> Result<(), Errno> {
        let guard = set.lock(self.owner)?;
        let mut txn = Txn::new(&guard);
        txn.is_setting = true;
        for num in nums {
            txn.set_value(*num, value(*num), self.pid)?;
            for record in undo::list(&guard).iter() {
                txn.cell(record, *num)?.adj = 0;
            }
        }
        queue::update(&mut txn, Changed::Nums(nums))?;
        let is_any = txn.has_granted();
        let wakes = txn.commit();
        let now_s = now_s();
        touch_ctime(self.sem_ids(), set.index, now_s);
        if is_any {
            set.touch_otime(0, now_s);
        }
        drop(guard);
        self.wake(wakes);
        Ok(())
    }
}

fn in_range(set: Set<'_>, semnum: i32) -> Result<u16, Errno> {
    let num = u16::try_from(semnum).ok().filter(|num| u32::from(*num) < set.place.nsems);
    num.ok_or(Errno::INVAL)
}

/// Returns the tag (version number) of a new set. It must be newer than those of earlier sets in
/// the same cache lines.
///
/// Tags (version numbers of sets) increase and wrap around: if two tags are more than half of the
/// range apart, the larger number is older.
fn next_tag(tags: impl Iterator<Item = u64>) -> u64 {
    let is_later = |tag: u64, other: u64| tag.wrapping_sub(other) & TAG_MASK <= TAG_MASK / 2;
    let last = tags.reduce(|last, tag| if is_later(tag, last) { tag } else { last });
    (last.unwrap_or(0) + 1) & TAG_MASK
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn tag_comes_after_those_of_all_lines() {
        let next = |tags: &[u64]| next_tag(tags.iter().copied());
        assert_eq!(next(&[0]), 1);
        assert_eq!(next(&[3, 9, 4]), 10);
        assert_eq!(next(&[TAG_MASK, TAG_MASK - 5]), 0);
        // The tags of the second line have wrapped around.
        assert_eq!(next(&[TAG_MASK, 2, TAG_MASK - 1]), 3);
        assert_eq!(next(&[2, TAG_MASK]), 3);
    }
}
