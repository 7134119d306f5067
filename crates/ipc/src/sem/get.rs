//! semget(2), and the removal of a set.
//!
//! Source: semget(2); Linux `ipc/sem.c` (`newary`, `freeary`).

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::recover::free_lost;
use super::set::{
    ALTER_LIST, COMMIT, COMPLEX_COUNT, CONST_LIST, LIVE, LOG, OTIME, Place, REDO, SEM_ALTER_LIST,
    SEM_CONST_LIST, Set, TICKET, UNDO_LIST, WORD,
};
use super::word::{TAG_MASK, Word};
use crate::ctl::{IPC_RMID, ipcget};
use crate::field::{get, put};
use crate::flags::GetFlags;
use crate::handle::SemId;
use crate::ids::{Object, Remains};
use crate::lock::Wait;
use crate::task::Task;

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
    /// - `EEXIST`: the set exists, and `CREATE` and `EXCLUSIVE` are given.
    /// - `EINVAL`: `nsems` is negative, more than `SEMMSL`, more than the set has, or 0 for a new
    ///   set.
    /// - `ENOENT`: no set has this key, and `CREATE` is not given.
    /// - `ENOMEM`: there is no room for the semaphores.
    /// - `ENOSPC`: the new set would exceed `SEMMNI` sets or `SEMMNS` semaphores.
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
        let id = ipcget(self, &ids, (key, flags, mode), check, |perm| {
            if nsems == 0 {
                return Err(Errno::INVAL);
            }
            let used = ids.used().saturating_add(u64::from(nsems));
            if used > u64::from(limits.semmns) {
                return Err(Errno::NOSPC);
            }
            self.may_alloc(&perm)?;
            let id = ids.add(perm, limits.semmni, |index| self.make_set(index, nsems))?;
            ids.set_used(used);
            Ok(id)
        })?;
        Ok(SemId::from_raw(id))
    }

    /// Makes the semaphores of a new set, before any lookup can find the set.
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
            // ORDERING(ipc-word): Release. A thread that has this line's number from an earlier set
            // sees the new tag, or none of these stores.
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
    /// and lacks `CAP_SYS_ADMIN`.
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
        let object = self.obtain_own(&ids, semid.raw(), IPC_RMID)?;
        let set = Set::new(&self.shared, &object);
        let guard = match set.lock(self.owner) {
            Err(Errno::IDRM) => None,
            guard => Some(guard?),
        };
        ids.unpublish(&object);
        ids.set_used(ids.used().saturating_sub(u64::from(set.place.nsems)));
        let Some(guard) = guard else {
            // The set is already ended, so a hostile process has overwritten its words. Free its
            // semaphores.
            put(&set.line()[LIVE], 0);
            free_lost(self.sem_ids());
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
}

/// Returns a tag for a new set that is newer than the tags of all its lines. The lines were in
/// other sets before.
///
/// Tags of a line increase, and wrap around. If two tags differ by more than half of all tags, the
/// larger number is the older tag.
fn next_tag(mut tags: impl Iterator<Item = u64>) -> u64 {
    let first = tags.next().unwrap_or(0);
    let is_later = |tag: u64, other: u64| tag.wrapping_sub(other) & TAG_MASK <= TAG_MASK / 2;
    let last = tags.fold(first, |last, tag| if is_later(tag, last) { tag } else { last });
    (last + 1) & TAG_MASK
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
