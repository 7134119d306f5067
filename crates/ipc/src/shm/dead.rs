//! Attaches of tasks that were killed.
//!
//! A kernel detaches what a process has attached when that process ends, so `shm_nattch` counts the living:
//! PostgreSQL takes it as the proof that nobody is left of a server that was killed. Here the records
//! of the dead stay until somebody looks, so whoever is about to use the number looks first.
//!
//! Source: shmctl(2) `shm_nattch`; PostgreSQL `src/backend/port/sysv_shmem.c` (`PGSharedMemoryAttach`).

use super::segment::Segment;
use crate::ids::SLOTS_MAX;
use crate::recover;
use crate::task::Task;

impl Task {
    /// Reaps the tasks that have died with the segment in the slot of `shmid` attached. No lock is held.
    ///
    /// What cannot be done now leaves a count that is too high: that is the safe side for who asks
    /// whether anybody is left.
    pub(super) fn reap_attachers(&self, shmid: i32) {
        let Ok(id) = u32::try_from(shmid) else { return };
        let shared = &*self.shared;
        let attachers = {
            let Ok(ids) = self.shm_ids().lock() else { return };
            let Some(segment) = Segment::at(shared, &ids, id & (SLOTS_MAX - 1)) else { return };
            segment.attachers()
        };
        for task in attachers {
            if task != self.owner.index && shared.is_dead(task, None) {
                let _reaped = recover::reap(shared, self.owner, task);
            }
        }
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};
    use rustix::io::Errno;

    use crate::task::forget_process;
    use crate::{Capacity, Cred, IPC_PRIVATE, Namespace, NamespaceOptions, SHM_DEST, Task};

    fn namespace() -> Namespace {
        let capacity = Capacity { segments: 4, attaches: 16, tasks: 8, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("corewalk-test", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, options).unwrap()
    }

    /// Returns two tasks, and two segments that the second one has attached; the first is marked.
    fn attached(namespace: &Namespace) -> (Task, Task, [i32; 2]) {
        let pid = std::process::id();
        let [one, other] = [(); 2].map(|()| namespace.register(Cred::root(), pid).unwrap());
        let ids = [(); 2].map(|()| one.shmget(IPC_PRIVATE, 4096, 0o600).unwrap());
        for (id, address) in ids.into_iter().zip([0x10000, 0x20000]) {
            other.shmat(id, address, 0).unwrap().attached_at(address);
        }
        one.shm_rmid(ids[0]).unwrap();
        (one, other, ids)
    }

    #[test]
    fn attaches_of_the_living_count() {
        let namespace = namespace();
        let (one, _other, ids) = attached(&namespace);
        assert_eq!(ids.map(|id| one.shm_stat(id).unwrap().nattch), [1, 1]);
        assert_eq!(one.shm_stat(ids[0]).unwrap().perm.mode & SHM_DEST, SHM_DEST);
    }

    #[test]
    fn attaches_of_the_dead_do_not_count() {
        let namespace = namespace();
        let (one, other, ids) = attached(&namespace);
        forget_process(&one.shared, other.owner.index);
        assert_eq!(one.shm_stat(ids[1]).map(|stat| stat.nattch), Ok(0));
        assert_eq!(one.shm_stat_any(ids[0]).err(), Some(Errno::INVAL), "it was to go");
        std::mem::forget(other);
    }

    #[test]
    fn marked_segment_of_the_dead_is_not_attached_again() {
        let namespace = namespace();
        let (one, other, ids) = attached(&namespace);
        forget_process(&one.shared, other.owner.index);
        assert_eq!(one.shmat(ids[0], 0, 0).err(), Some(Errno::INVAL));
        one.shm_rmid(ids[1]).unwrap();
        assert_eq!(one.shm_totals().unwrap().segments, 0, "nobody is left to detach it");
        std::mem::forget(other);
    }
}
