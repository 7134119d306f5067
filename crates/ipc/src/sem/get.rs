//! semget(2), and the removal of a set.
//!
//! Source: semget(2); Linux `ipc/sem.c` (`newary`, `freeary`), `ipc/util.c` (`ipcget`).

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::queue::{self, Completed, Wakes};
use super::set::{
    ALTER_LIST, COMMIT, COMPLEX_COUNT, CONST_LIST, LIVE, LOG, OTIME, Place, REDO, SEM_ALTER_LIST,
    SEM_CONST_LIST, Set, SetGuard, TICKET, UNDO_LIST, WORD,
};
use super::undo;
use super::word::{TAG_MASK, Word};
use crate::field::{get, put};
use crate::flags::{GetFlags, MODE_MASK};
use crate::handle::SemId;
use crate::ids::{IPC_PRIVATE, IdsGuard, Object};
use crate::lock::{Owner, Wait};
use crate::namespace::now_s;
use crate::perm::Perm;
use crate::task::Task;

impl Task {
    /// Returns the id of the set with this key, or of a new one.
    ///
    /// All semaphores of a new set are 0. `IPC_PRIVATE` always makes a new set. The nine bits of
    /// `mode` are the mode of a new set, and otherwise the permissions that the call asks for.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the set exists, and its mode does not allow what `mode` asks for.
    /// - `EEXIST`: the set exists, and `CREATE` and `EXCLUSIVE` are given.
    /// - `EINVAL`: `nsems` is negative, more than `SEMMSL`, more than the set has, or 0 for a new
    ///   set.
    /// - `ENOENT`: there is no set with this key, and `CREATE` is not given.
    /// - `ENOMEM`: no room for the semaphores.
    /// - `ENOSPC`: `SEMMNI` sets or `SEMMNS` semaphores would be exceeded.
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
        let found = if key == IPC_PRIVATE { None } else { ids.find_key(key) };
        let Some(object) = found else {
            if key != IPC_PRIVATE && !flags.contains(GetFlags::CREATE) {
                return Err(Errno::NOENT);
            }
            return self.new_set(&ids, key, nsems, mode);
        };
        if flags.contains(GetFlags::CREATE | GetFlags::EXCLUSIVE) {
            return Err(Errno::EXIST);
        }
        if nsems > Set::new(&self.shared, &object).place.nsems {
            return Err(Errno::INVAL);
        }
        self.permission(&object, mode.into())?;
        if let Some(hook) = &self.shared.hook {
            hook.associate(&self.cred.whole(), &object.perm(), flags, mode)?;
        }
        Ok(SemId::from_raw(object.id()))
    }

    #[doc(alias = "newary")]
    fn new_set(&self, ids: &IdsGuard<'_>, key: i32, nsems: u32, mode: u16) -> Result<SemId, Errno> {
        if nsems == 0 {
            return Err(Errno::INVAL);
        }
        let used = ids.used().saturating_add(u64::from(nsems));
        if used > u64::from(self.shared.limits.semmns) {
            return Err(Errno::NOSPC);
        }
        let (uid, gid) = self.cred.ids();
        let mode = mode & MODE_MASK;
        let perm = Perm { key, uid, gid, cuid: uid, cgid: gid, mode, seq: 0 };
        if let Some(hook) = &self.shared.hook {
            hook.alloc(&self.cred.whole(), &perm)?;
        }
        let make = |index| self.make_set(index, nsems);
        let publish = || ids.publish(perm, now_s(), self.shared.limits.semmni, make);
        let id = match publish() {
            // The remains of removed sets take room.
            Err(Errno::NOSPC | Errno::NOMEM) if ids.end_left() => publish()?,
            id => id?,
        };
        ids.set_used(used);
        Ok(SemId::from_raw(id))
    }

    /// Makes the semaphores of a new set. No lookup can find them yet.
    fn make_set(&self, index: u32, nsems: u32) -> Result<u64, Errno> {
        let shared = &*self.shared;
        let base = shared.layout.sems.alloc(shared, nsems, self.owner, index)?;
        let set = Set { shared, index, place: Place { base, nsems, tag: 0 } };
        let tags = (0..nsems as u16).map(|num| Word(get(&set.sem(num)[WORD])).tag());
        let place = Place { tag: next_tag(tags), ..set.place };
        let set = Set { place, ..set };
        let guard = set.lock_new(self.owner, Wait::Long)?;
        for num in 0..nsems as u16 {
            let line = set.sem(num);
            [OTIME, SEM_ALTER_LIST, SEM_CONST_LIST, LOG, REDO]
                .into_iter()
                .for_each(|word| put(&line[word], 0));
            // ORDERING(ipc-word): Release. A thread with this line's number from another set sees
            // another tag, or none of these stores.
            line[WORD].store(Word::new(place.tag).0, Ordering::Release);
        }
        [ALTER_LIST, CONST_LIST, COMPLEX_COUNT, UNDO_LIST, COMMIT, TICKET]
            .into_iter()
            .for_each(|word| put(guard.field(word), 0));
        put(guard.field(LIVE), place.payload());
        Ok(place.payload())
    }

    /// Removes a set: `IPC_RMID`. Waiting calls fail with `EIDRM`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such set; `EPERM`: the caller is neither its owner nor its creator,
    /// and has no `CAP_SYS_ADMIN`.
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
    #[doc(alias = "ipcctl_pre_down_nolock")]
    #[doc(alias = "ipcctl_obtain_check")]
    #[doc(alias = "freeary")]
    pub fn sem_rmid(&self, semid: SemId) -> Result<(), Errno> {
        let ids = self.sem_ids().lock()?;
        let object = self.pre_down(&ids, semid, super::ctl::IPC_RMID)?;
        let set = Set::new(&self.shared, &object);
        let guard = match set.lock(self.owner) {
            Err(Errno::IDRM) => None,
            guard => Some(guard?),
        };
        ids.unpublish(&object);
        ids.set_used(ids.used().saturating_sub(u64::from(set.place.nsems)));
        let Some(guard) = guard else {
            // A hostile process has overwritten the set: free its semaphores.
            put(&set.line()[LIVE], 0);
            super::recover_sems(self.sem_ids());
            return Ok(());
        };
        let (wakes, remains) = guard.remove();
        if remains == Remains::Some {
            ids.keep_slot(object.index);
        }
        drop(ids);
        self.wake(wakes);
        Ok(())
    }

    /// Returns the object of a command that only its owner may give. The caller holds the lock of
    /// the kind, so the object stays. It needs no lock of the object.
    #[doc(alias = "ipcctl_pre_down_nolock")]
    #[doc(alias = "ipcctl_obtain_check")]
    pub(super) fn pre_down(
        &self,
        ids: &IdsGuard<'_>,
        semid: SemId,
        cmd: i32,
    ) -> Result<Object, Errno> {
        let object = ids.obtain_object_check(semid.raw())?;
        if !self.cred.may_control(&object.perm()) {
            return Err(Errno::PERM);
        }
        self.may_semctl(Some(&object.perm()), cmd)?;
        Ok(object)
    }
}

/// Returns a tag that comes after the tags of all lines of a new set. The lines were in other sets
/// before.
///
/// Tags of a line increase, and wrap around. A difference of more than half of all tags means that
/// the larger number is the older one.
fn next_tag(mut tags: impl Iterator<Item = u64>) -> u64 {
    let first = tags.next().unwrap_or(0);
    let is_later = |tag: u64, other: u64| tag.wrapping_sub(other) & TAG_MASK <= TAG_MASK / 2;
    let last = tags.fold(first, |last, tag| if is_later(tag, last) { tag } else { last });
    (last + 1) & TAG_MASK
}

/// The remains of a removed object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remains {
    None,
    /// Parts of the object are left. No other object gets the slot until they are ended.
    Some,
}

impl Set<'_> {
    /// Ends a set that no lookup finds any more: its semaphores, waits and undo records. The caller
    /// holds the lock of the kind. If it dies here, the next holder of that lock ends the rest.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the set has ended already. `EIO` if a live task does not let go of its lock.
    pub(super) fn remove(self, owner: Owner) -> Result<(Wakes, Remains), Errno> {
        Ok(self.lock_remains(owner, Wait::Short)?.remove())
    }
}

impl SetGuard<'_> {
    /// As [`Set::remove`], with the set's lock.
    ///
    /// A stopped process may have frozen a semaphore. Once it goes on, it stores into that word,
    /// and perhaps into its undo record. So these lines are kept, and only the waits are ended.
    pub(super) fn remove(self) -> (Wakes, Remains) {
        let (set, owner) = (self.set, self.owner);
        let is_whole = self.kill_all();
        let completed: Completed = queue::end_all(&self);
        if is_whole {
            undo::free_all(&self);
        }
        let wakes = completed.tell(set.shared);
        if !is_whole {
            return (wakes, Remains::Some);
        }
        // This store comes last: until then a recovery must end the set.
        put(self.field(LIVE), 0);
        drop(self);
        set.shared.layout.sems.free(set.shared, set.place.base, owner);
        (wakes, Remains::None)
    }
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
