//! Tests that each errno of the man pages of shared memory occurs as documented. While a limit is
//! reached, a call beyond it must fail; afterwards it must succeed. Each call must ask the security
//! hook.

use corewalk_ipc::{
    Access, Backing, CAP_IPC_LOCK, CAP_IPC_OWNER, Capacity, Cred, GetFlags, IPC_PRIVATE, IPC_RMID,
    Limits, Namespace, NamespaceOptions, Perm, SHM_DEST, SHM_LOCKED, SecurityHook, SegmentName,
    ShmFlags, ShmId, Task,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;

fn with(limits: Limits) -> (Namespace, Task) {
    let namespace = Namespace::new(NamespaceOptions { limits, ..<_>::default() }).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    (namespace, task)
}

fn segment(task: &Task, size: u64) -> ShmId {
    task.shmget(IPC_PRIVATE, size, GetFlags::empty(), 0o600).unwrap()
}

fn at(task: &Task, id: ShmId, address: usize, flags: ShmFlags) -> Result<Option<usize>, Errno> {
    task.shmat(id, address, flags).map(|mapping| mapping.address())
}

#[test]
fn shmget_fails_as_its_man_page_says() {
    let limits = Limits { shmmni: 3, shmall: 10, shmmax: 1 << 20, ..Limits::default() };
    let (namespace, root) = with(limits);
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = root.shmget(1, 100, GetFlags::CREATE, 0o600).unwrap();
    assert_eq!(user.shmget(1, 100, GetFlags::empty(), 0o600), Err(Errno::ACCESS));
    assert_eq!(user.shmget(1, 0, GetFlags::empty(), 0), Ok(id), "no permission is asked for");
    assert_eq!(
        user.shmget(1, 101, GetFlags::empty(), 0o600),
        Err(Errno::INVAL),
        "checked before EACCES"
    );
    assert_eq!(
        user.shmget(1, 101, GetFlags::CREATE | GetFlags::EXCLUSIVE, 0),
        Err(Errno::EXIST),
        "checked before EINVAL"
    );
    assert_eq!(root.shmget(2, 100, GetFlags::EXCLUSIVE, 0o600), Err(Errno::NOENT));
    for size in [0, (1 << 20) + 1, u64::MAX] {
        assert_eq!(
            root.shmget(IPC_PRIVATE, size, GetFlags::empty(), 0o600),
            Err(Errno::INVAL),
            "{size}"
        );
    }
    assert_eq!(root.shmget(IPC_PRIVATE, 1, GetFlags::HUGETLB, 0o600), Err(Errno::INVAL));
    assert_eq!(
        root.shmget(IPC_PRIVATE, 10 * 4096, GetFlags::empty(), 0o600),
        Err(Errno::NOSPC),
        "SHMALL"
    );
    let all = segment(&root, 9 * 4096);
    assert_eq!(root.shmget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600), Err(Errno::NOSPC));
    root.shm_rmid(all).unwrap();
    let few = [segment(&root, 1), segment(&root, 1)];
    assert_eq!(root.shmget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600), Err(Errno::NOSPC), "SHMMNI");
    root.shm_rmid(few[0]).unwrap();
    segment(&root, 1);
}

#[test]
fn memory_that_cannot_be_allocated_is_enomem() {
    let (_namespace, root) = with(Limits::default());
    assert_eq!(root.shmget(IPC_PRIVATE, 1 << 60, GetFlags::empty(), 0o600), Err(Errno::NOMEM));
    assert_eq!(root.shm_totals().unwrap().pages, 0);
}

#[test]
fn shmat_and_shmdt_fail_as_their_man_page_says() {
    let (namespace, root) = with(Limits::default());
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = root.shmget(IPC_PRIVATE, 100, GetFlags::empty(), 0o604).unwrap();
    for bad in [-1, id.raw() + 1, id.raw() + 32_768, i32::MAX, i32::MIN].map(ShmId::from_raw) {
        assert_eq!(at(&root, bad, 0, ShmFlags::empty()), Err(Errno::INVAL), "{bad}");
    }
    assert_eq!(at(&user, id, 0, ShmFlags::empty()), Err(Errno::ACCESS));
    assert_eq!(at(&user, id, 0, ShmFlags::RDONLY), Ok(None));
    assert_eq!(at(&user, id, 0, ShmFlags::RDONLY | ShmFlags::EXEC), Err(Errno::ACCESS));
    user.set_cred(Cred { caps: CAP_IPC_OWNER, ..Cred::user(1000, 1000) });
    assert_eq!(at(&user, id, 0, ShmFlags::EXEC), Ok(None));
    assert_eq!(at(&root, id, 0x1001, ShmFlags::empty()), Err(Errno::INVAL));
    assert_eq!(at(&root, id, 0x1fff, ShmFlags::ROUND), Ok(Some(0x1000)));
    assert_eq!(at(&root, id, 0, ShmFlags::REMAP), Err(Errno::INVAL));
    assert_eq!(at(&root, id, 5, ShmFlags::REMAP | ShmFlags::ROUND), Err(Errno::INVAL));
    for address in [0, 1, 0x1000, usize::MAX] {
        assert_eq!(root.shmdt(address), Err(Errno::INVAL), "{address}");
    }
    root.shmat(id, 0x1000, ShmFlags::empty()).unwrap().attached_at(0x1000);
    assert_eq!(root.shmdt(0x1001), Err(Errno::INVAL));
    assert_eq!(root.shmdt(0x1000), Ok(100));
}

#[test]
fn shmctl_fails_as_its_man_page_says() {
    let (namespace, root) = with(Limits::default());
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = segment(&root, 100);
    assert_eq!(user.shm_stat(id), Err(Errno::ACCESS));
    assert_eq!(user.shm_stat_index(id.raw()), Err(Errno::ACCESS));
    assert_eq!(user.shm_stat_any(id.raw()).map(|stat| stat.size_bytes), Ok(100));
    assert_eq!(root.shm_stat_any(-1), Err(Errno::INVAL));
    assert_eq!(user.shm_rmid(id), Err(Errno::PERM));
    assert_eq!(user.shm_set(id, 1000, 1000, 0o600), Err(Errno::PERM));
    assert_eq!(root.shm_set(id, 0, u32::MAX, 0o600), Err(Errno::INVAL));
    assert_eq!(user.shm_lock(id), Err(Errno::PERM));
    assert_eq!(user.shm_unlock(id), Err(Errno::PERM));
    user.set_cred(Cred { caps: CAP_IPC_LOCK, ..Cred::user(1000, 1000) });
    assert_eq!(user.shm_lock(id), Ok(()));
    assert_eq!(root.shm_stat(id).unwrap().perm.mode, 0o600 | SHM_LOCKED);
    root.shm_set(id, 1000, 1000, 0o7640).unwrap();
    assert_eq!(user.shm_stat(id).unwrap().perm.mode, 0o640 | SHM_LOCKED, "flags stay");
    assert_eq!(user.shm_unlock(id), Ok(()));
    user.shm_rmid(id).unwrap();
    for gone in [root.shm_rmid(id), root.shm_lock(id), root.shm_set(id, 0, 0, 0)] {
        assert_eq!(gone, Err(Errno::INVAL));
    }
}

#[test]
fn segment_that_is_removed_lives_until_its_last_detach() {
    let (namespace, root) = with(Limits::default());
    let other = namespace.register(Cred::root(), 2).unwrap();
    let id = root.shmget(5, 100, GetFlags::CREATE, 0o600).unwrap();
    root.shmat(id, 0x1000, ShmFlags::empty()).unwrap().attached_at(0x1000);
    root.shm_rmid(id).unwrap();
    let stat = other.shm_stat(id).unwrap();
    assert_eq!((stat.perm.mode, stat.perm.key), (0o600 | SHM_DEST, IPC_PRIVATE));
    let next = other.shmget(5, 50, GetFlags::CREATE, 0o600).unwrap();
    assert_ne!(next, id, "the key is free at once");
    other.shmat(id, 0, ShmFlags::empty()).unwrap().attached_at(0x9000);
    let child = other.fork(3).unwrap();
    assert_eq!(root.shm_stat(id).unwrap().nattch, 3);
    drop(other);
    root.exit();
    assert_eq!(child.shm_stat(id).unwrap().nattch, 1);
    assert_eq!(child.shmdt(0x9000), Ok(100));
    assert_eq!(child.shm_stat(id), Err(Errno::INVAL));
    assert_eq!(child.shm_totals().unwrap().segments, 1);
}

struct Closed;

impl Backing for Closed {
    fn create(&self, _: SegmentName, size_bytes: u64) -> Result<(), Errno> {
        if size_bytes == 1 { Err(Errno::NOMEM) } else { Ok(()) }
    }

    fn open(&self, _: SegmentName, _: Access) -> Result<Arc<OwnedFd>, Errno> {
        Err(Errno::MFILE)
    }

    fn remove(&self, _: SegmentName) -> bool {
        true
    }
}

#[test]
fn memory_that_cannot_be_opened_leaves_no_segment_and_no_attach() {
    let backing: Option<Box<dyn Backing>> = Some(Box::new(Closed));
    let namespace = Namespace::new(NamespaceOptions { backing, ..<_>::default() }).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    assert_eq!(task.shmget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600), Err(Errno::NOMEM));
    assert_eq!(task.shm_totals().unwrap().segments, 0);
    let id = segment(&task, 2);
    assert_eq!(at(&task, id, 0, ShmFlags::empty()), Err(Errno::MFILE));
    assert_eq!(task.shm_stat(id).unwrap().nattch, 0);
}

/// A security hook that refuses.
struct Refuse;

impl SecurityHook for Refuse {
    fn shm_shmat(&self, _: &Cred, _: &Perm, _: ShmFlags) -> Result<(), Errno> {
        Err(Errno::CONNREFUSED)
    }

    fn shm_shmctl(&self, _: &Cred, _: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        if cmd == IPC_RMID { Err(Errno::CONNREFUSED) } else { Ok(()) }
    }
}

#[test]
fn hook_is_asked_after_the_mode_and_may_refuse() {
    let options = NamespaceOptions { hook: Some(Box::new(Refuse)), ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let id = segment(&task, 1);
    assert_eq!(at(&task, id, 0, ShmFlags::empty()), Err(Errno::CONNREFUSED));
    assert_eq!(task.shm_rmid(id), Err(Errno::CONNREFUSED));
    task.set_cred(Cred::user(1, 1));
    assert_eq!(
        at(&task, id, 0, ShmFlags::empty()),
        Err(Errno::ACCESS),
        "the mode is checked first"
    );
}

/// A walk by index must find each segment once, and no removed segment. Traps I12 and I17 in
/// `traps.md`.
#[test]
fn walk_by_index_finds_every_segment_once() {
    let capacity = Capacity { segments: 128, ..Capacity::default() };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let mut ids: Vec<ShmId> = (0..100).map(|_| segment(&task, 1)).collect();
    let gone: Vec<ShmId> = ids.iter().copied().filter(|id| id.raw() % 3 == 0).collect();
    gone.iter().for_each(|id| task.shm_rmid(*id).unwrap());
    ids.retain(|id| !gone.contains(id));
    let totals = task.shm_totals().unwrap();
    assert_eq!((totals.segments, totals.pages), (ids.len() as u32, ids.len() as u64));
    let walk = (0..=totals.index_max).filter_map(|at| task.shm_stat_index(at as i32).ok());
    assert_eq!(walk.map(|stat| stat.id).collect::<Vec<_>>(), ids);
}
