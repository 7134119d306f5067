//! Attaches of killed tasks.
//!
//! When a process ends, the kernel detaches its segments. PostgreSQL relies on that: if
//! `shm_nattch` is 0, no process of a killed server is left. In this library, the attach records of
//! a dead task stay until another task cleans up. So each call that uses `shm_nattch` first cleans
//! up after dead tasks.
//!
//! Source: shmctl(2) `shm_nattch`; PostgreSQL `src/backend/port/sysv_shmem.c`
//! (`PGSharedMemoryAttach`).

use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::task_line::forget_process;
use crate::{
    Access, Backing, Capacity, Cred, GetFlags, IPC_PRIVATE, Memfds, Namespace, NamespaceOptions,
    SHM_DEST, SegmentName, SemBuf, SemFlags, ShmFlags, ShmId, Task,
};

/// A source of segment memory with two switches for the tests. One makes the hold files of dead
/// tasks seem locked. The other makes the removal of memory fail.
#[derive(Clone, Default)]
struct Scene(Arc<(Memfds, AtomicBool, AtomicBool)>);

impl Scene {
    fn is_held(&self, is: bool) {
        // ORDERING: Relaxed. The test has one thread.
        self.0.1.store(is, Ordering::Relaxed);
    }

    fn is_out_of_reach(&self, is: bool) {
        // ORDERING: Relaxed. As above.
        self.0.2.store(is, Ordering::Relaxed);
    }
}

impl Backing for Scene {
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno> {
        // Simulate a file system with space for the memory of two segments.
        if self.0.0.count() == 2 { Err(Errno::NOSPC) } else { self.0.0.create(name, size_bytes) }
    }

    fn open(&self, name: SegmentName, access: Access) -> Result<Arc<OwnedFd>, Errno> {
        self.0.0.open(name, access)
    }

    fn remove(&self, name: SegmentName) -> bool {
        // ORDERING: Relaxed. As above.
        !self.0.2.load(Ordering::Relaxed) && self.0.0.remove(name)
    }

    fn is_held(&self, _: u32) -> bool {
        // ORDERING: Relaxed. As above.
        self.0.1.load(Ordering::Relaxed)
    }
}

fn namespace() -> Namespace {
    over(None)
}

fn over(scene: Option<&Scene>) -> Namespace {
    let capacity = Capacity {
        segments: 4,
        attaches: 16,
        tasks: 8,
        sets: 1,
        sems: 4,
        undos: 4,
        ..Capacity::LEAST
    };
    let backing = scene.map(|scene| Box::new(scene.clone()) as Box<dyn Backing>);
    let options = NamespaceOptions { capacity, backing, ..NamespaceOptions::default() };
    let file = memfd_create("corewalk-test", MemfdFlags::CLOEXEC).unwrap();
    Namespace::open_fd(&file, options).unwrap()
}

fn attached(namespace: &Namespace) -> (Task, Task, [ShmId; 2]) {
    let pid = std::process::id();
    let [one, other] = [(); 2].map(|()| namespace.register(Cred::root(), pid).unwrap());
    let ids = [(); 2].map(|()| one.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap());
    for (id, address) in ids.into_iter().zip([0x10000, 0x20000]) {
        other.shmat(id, address, ShmFlags::empty()).unwrap().attached_at(address);
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
    assert_eq!(one.shm_stat_any(ids[0].raw()).err(), Some(Errno::INVAL), "it was to go");
    std::mem::forget(other);
}

#[test]
fn marked_segment_of_the_dead_is_not_attached_again() {
    let namespace = namespace();
    let (one, other, ids) = attached(&namespace);
    forget_process(&one.shared, other.owner.index);
    assert_eq!(one.shmat(ids[0], 0, ShmFlags::empty()).err(), Some(Errno::INVAL));
    one.shm_rmid(ids[1]).unwrap();
    assert_eq!(one.shm_totals().unwrap().segments, 0, "no living task has attached them");
    std::mem::forget(other);
}

#[test]
fn attaches_of_the_dead_stay_while_a_child_has_them_and_undo_does_not() {
    let scene = Scene::default();
    let namespace = over(Some(&scene));
    let (one, other, ids) = attached(&namespace);
    let set = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    other.semop(set, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
    scene.is_held(true);
    forget_process(&one.shared, other.owner.index);
    for _ in 0..2 {
        assert_eq!(ids.map(|id| one.shm_stat(id).unwrap().nattch), [1, 1]);
        assert_eq!(one.sem_getval(set, 0), Ok(0));
        assert_eq!(namespace.recover(), Ok(0), "the dead task keeps its line");
    }
    // Register the forked child: it gets attach records of its own. Then unmap the hold of the dead
    // task, the locked file that the child has inherited.
    let child = other.fork(std::process::id()).unwrap();
    scene.is_held(false);
    // Let the existing task `one` clean up. If a new task were registered, the registration could
    // clean up, too.
    assert_eq!(crate::recover::reap_all(&one.shared, one.owner), Ok(1));
    assert_eq!(ids.map(|id| one.shm_stat(id).unwrap().nattch), [1, 1]);
    drop(child);
    assert_eq!(one.shm_stat(ids[0]).err(), Some(Errno::INVAL));
    std::mem::forget(other);
}

#[test]
fn task_whose_child_is_not_yet_counted_ends_without_its_attaches() {
    let scene = Scene::default();
    let namespace = over(Some(&scene));
    let (one, other, ids) = attached(&namespace);
    scene.is_held(true);
    let index = other.owner.index;
    drop(other);
    assert_eq!(ids.map(|id| one.shm_stat(id).unwrap().nattch), [1, 1]);
    forget_process(&one.shared, index);
    scene.is_held(false);
    assert_eq!(one.shm_stat(ids[1]).map(|stat| stat.nattch), Ok(0));
}

#[test]
fn child_whose_segment_is_gone_is_refused() {
    let namespace = namespace();
    let (one, other, ids) = attached(&namespace);
    forget_process(&one.shared, other.owner.index);
    assert_eq!(one.shm_stat(ids[1]).map(|stat| stat.nattch), Ok(0));
    assert_eq!(other.fork(std::process::id()).err(), Some(Errno::IDRM));
    assert_eq!(one.shm_stat(ids[1]).map(|stat| stat.nattch), Ok(0), "no attach was copied");
    std::mem::forget(other);
}

#[test]
fn memory_that_one_task_cannot_remove_is_removed_by_another() {
    let scene = Scene::default();
    let namespace = over(Some(&scene));
    let task = namespace.register(Cred::root(), std::process::id()).unwrap();
    let segment = || task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600);
    for comes_by in [true, false] {
        let ids = [segment().unwrap(), segment().unwrap()];
        assert_eq!(segment(), Err(Errno::NOSPC));
        scene.is_out_of_reach(true);
        ids.iter().for_each(|id| task.shm_rmid(*id).unwrap());
        assert_eq!(scene.0.0.count(), 2);
        scene.is_out_of_reach(false);
        if comes_by {
            assert_eq!(namespace.recover(), Ok(0));
            assert_eq!(scene.0.0.count(), 0);
        }
        // A task that finds no memory must first remove the memory of removed segments.
        task.shm_rmid(segment().unwrap()).unwrap();
        assert_eq!(scene.0.0.count(), 0);
    }
}
