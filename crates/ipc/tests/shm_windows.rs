//! Deterministic tests of races of shared memory: another task acts on a segment between two steps
//! of a call.
//!
//! shmat(2) looks up the segment, asks the security hook, takes the lock of all segments, counts
//! the attach, and opens the segment's memory. The tests supply the hook and the source of the
//! memory, so another task can act at exactly these steps.
//!
//! Source: CVE-2013-7026; Linux 6.12.94, "ipc/shm: serialize orphan cleanup with `shm_nattch`
//! updates".

use corewalk_ipc::{
    Access, Backing, Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, MsgId, Namespace,
    NamespaceOptions, Perm, SHM_LOCKED, SecurityHook, SegmentName, ShmFlags, ShmId, Task,
};
use rustix::io::Errno;
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Window(Arc<Mutex<Option<Act>>>);

type Act = Box<dyn FnOnce() + Send>;

impl Window {
    fn set(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(act));
    }

    fn pass(&self) {
        let act = self.0.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
    }

    fn was_passed(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }
}

impl SecurityHook for Window {
    fn shm_shmat(&self, _: &Cred, _: &Perm, _: ShmFlags) -> Result<(), Errno> {
        self.pass();
        Ok(())
    }

    fn shm_shmctl(&self, _: &Cred, _: Option<&Perm>, _: i32) -> Result<(), Errno> {
        self.pass();
        Ok(())
    }
}

/// A test can set a function that runs inside `open`, between two steps of shmat(2).
#[derive(Clone, Default)]
struct Memory {
    there: Arc<Mutex<HashSet<SegmentName>>>,
    opened: Window,
    /// If true, every open fails.
    is_closed: Arc<Mutex<bool>>,
}

impl Memory {
    fn count(&self) -> usize {
        self.there.lock().unwrap().len()
    }
}

impl Backing for Memory {
    fn create(&self, name: SegmentName, _size_bytes: u64) -> Result<(), Errno> {
        assert!(self.there.lock().unwrap().insert(name), "{name:?} exists already");
        Ok(())
    }

    fn open(&self, name: SegmentName, _: Access) -> Result<Arc<OwnedFd>, Errno> {
        assert!(self.there.lock().unwrap().contains(&name), "{name:?} was removed");
        self.opened.pass();
        let is_closed = *self.is_closed.lock().unwrap();
        let file = File::open("/dev/null").expect("/dev/null");
        if is_closed { Err(Errno::MFILE) } else { Ok(Arc::new(file.into())) }
    }

    fn remove(&self, name: SegmentName) -> bool {
        assert!(self.there.lock().unwrap().remove(&name), "{name:?} does not exist");
        true
    }
}

struct Scene {
    namespace: Namespace,
    looked_up: Window,
    memory: Memory,
}

impl Scene {
    /// A namespace with room for one segment, so that each new segment gets the same slot.
    fn new(is_shm_rmid_forced: bool) -> Self {
        let (looked_up, memory) = (Window::default(), Memory::default());
        let options = NamespaceOptions {
            capacity: Capacity { segments: 1, attaches: 8, tasks: 8, ..Capacity::LEAST },
            limits: Limits { is_shm_rmid_forced, ..Limits::default() },
            hook: Some(Box::new(looked_up.clone())),
            backing: Some(Box::new(memory.clone())),
            ..NamespaceOptions::default()
        };
        Self { namespace: Namespace::new(options).unwrap(), looked_up, memory }
    }

    fn task(&self, pid: u32) -> Task {
        self.namespace.register(Cred::root(), pid).unwrap()
    }
}

type Call = fn(&Task, ShmId) -> Result<(), Errno>;

/// The calls under test. Each looks up a segment before it takes the lock of all segments.
const CALLS: [(&str, Call); 6] = [
    ("shmat", |task, id| {
        task.shmat(id, 0, ShmFlags::empty()).map(|mapping| mapping.attached_at(0x10000))
    }),
    ("IPC_STAT", |task, id| task.shm_stat(id).map(|_| ())),
    ("SHM_STAT", |task, id| task.shm_stat_index(id.raw() & 0x7fff).map(|_| ())),
    ("SHM_STAT_ANY", |task, id| task.shm_stat_any(id.raw() & 0x7fff).map(|_| ())),
    ("SHM_LOCK", |task, id| task.shm_lock(id)),
    ("SHM_UNLOCK", |task, id| task.shm_unlock(id)),
];

/// A call has looked up a segment, and another task then removes the segment. The call must fail
/// with `EIDRM`. It must change nothing of a new segment in the same slot. Trap I2 in `traps.md`.
#[test]
fn removal_after_the_lookup_is_seen_by_every_call() {
    for (name, call) in CALLS {
        let scene = Scene::new(false);
        let (one, other) = (scene.task(1), scene.task(2));
        let id = one.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
        scene.looked_up.set(move || {
            other.shm_rmid(id).unwrap();
            let next = other.shmget(IPC_PRIVATE, 3 * 4096, GetFlags::empty(), 0o640).unwrap();
            assert_eq!(next.raw() & 0x7fff, id.raw() & 0x7fff, "the same slot");
            other.shm_lock(next).unwrap();
        });
        assert_eq!(call(&one, id), Err(Errno::IDRM), "{name}");
        assert!(scene.looked_up.was_passed(), "{name}");
        let next = one.shm_stat_any(id.raw() & 0x7fff).unwrap();
        assert_ne!(next.id, id);
        assert_eq!((next.size_bytes, next.nattch, next.lpid), (3 * 4096, 0, 0), "{name}");
        assert_eq!((next.perm.mode, next.perm.uid), (0o640 | SHM_LOCKED, 0), "{name}");
        assert_eq!(scene.memory.count(), 1, "{name}");
    }
}

/// After the lookup of a call, the segment is removed, and a new one in the same slot gets the same
/// id. The call must fail, and must not change the new segment. Traps I2 and I10 in `traps.md`.
#[test]
fn id_that_is_reused_after_the_lookup_is_another_segment() {
    for (name, call) in CALLS {
        let scene = Scene::new(false);
        let (one, other) = (scene.task(1), scene.task(2));
        let id = one.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
        scene.looked_up.set(move || {
            let mut last = id;
            for round in 0..=u32::from(u16::MAX) {
                other.shm_rmid(last).unwrap();
                last = other.shmget(IPC_PRIVATE, 3 * 4096, GetFlags::empty(), 0o640).unwrap();
                if last == id {
                    assert!(round > 60_000, "the id is reused too soon: {round}");
                    return;
                }
            }
            panic!("the id is never reused");
        });
        assert_eq!(call(&one, id), Err(Errno::IDRM), "{name}");
        let next = one.shm_stat_any(id.raw() & 0x7fff).unwrap();
        assert_eq!((next.id, next.nattch, next.perm.mode), (id, 0, 0o640), "{name}");
    }
}

/// If `shm_nattch` already counts an attach, the removal must only mark the segment. The memory of
/// the segment must stay until the detach. Trap I2 in `traps.md`.
#[test]
fn removal_after_the_count_leaves_the_attach_whole() {
    let scene = Scene::new(false);
    let (one, other) = (scene.task(1), scene.task(2));
    let id = one.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
    scene.memory.opened.set(move || other.shm_rmid(id).unwrap());
    one.shmat(id, 0, ShmFlags::empty()).unwrap().attached_at(0x10000);
    assert!(scene.memory.opened.was_passed());
    assert_eq!((one.shm_stat(id).unwrap().nattch, scene.memory.count()), (1, 1));
    assert_eq!(one.shmdt(0x10000), Ok(4096));
    assert_eq!((one.shm_stat(id), scene.memory.count()), (Err(Errno::INVAL), 0));
    // If the segment is removed and then its memory cannot be opened, shmat(2) must fail, and the
    // segment must be gone.
    let other = scene.task(3);
    let id = one.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
    *scene.memory.is_closed.lock().unwrap() = true;
    scene.memory.opened.set(move || other.shm_rmid(id).unwrap());
    assert_eq!(one.shmat(id, 0, ShmFlags::empty()).unwrap_err(), Errno::MFILE);
    assert_eq!((one.shm_stat(id), scene.memory.count()), (Err(Errno::INVAL), 0));
}

/// With `shm_rmid_forced`, a segment is removed when its maker ends, unless it has attaches.
/// Another task may be in shmat(2), and `shm_nattch` does not count its attach yet. Then this
/// shmat(2) must fail with `EIDRM`. Trap I18 in `traps.md`.
#[test]
fn orphan_before_the_count_of_an_attach_is_gone() {
    let scene = Scene::new(true);
    let (maker, other) = (scene.task(1), scene.task(2));
    let id = maker.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
    scene.looked_up.set(move || drop(maker));
    assert_eq!(other.shmat(id, 0, ShmFlags::empty()).unwrap_err(), Errno::IDRM);
    assert!(scene.looked_up.was_passed());
    assert_eq!((other.shm_stat(id), scene.memory.count()), (Err(Errno::INVAL), 0));
    assert_eq!(other.shm_totals().unwrap().pages, 0);
}

/// With `shm_rmid_forced`, a segment is removed when its maker ends, unless it has attaches.
/// Another task may be in shmat(2), and `shm_nattch` already counts its attach. Then the segment
/// must stay until shmdt(2). If this shmat(2) fails, the segment must be removed. Trap I18 in
/// `traps.md`.
#[test]
fn orphan_after_the_count_of_an_attach_stays_until_the_detach() {
    for is_closed in [false, true] {
        let scene = Scene::new(true);
        let (maker, other) = (scene.task(1), scene.task(2));
        let id = maker.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
        *scene.memory.is_closed.lock().unwrap() = is_closed;
        scene.memory.opened.set(move || drop(maker));
        match other.shmat(id, 0, ShmFlags::empty()) {
            Ok(mapping) => {
                assert_eq!((other.shm_stat(id).unwrap().nattch, scene.memory.count()), (1, 1));
                mapping.attached_at(0x10000);
                assert_eq!(other.shm_stat(id).unwrap().nattch, 1);
                assert_eq!(other.shmdt(0x10000), Ok(4096));
            }
            Err(errno) => assert_eq!((errno, is_closed), (Errno::MFILE, true)),
        }
        assert!(scene.memory.opened.was_passed());
        assert_eq!((other.shm_stat(id), scene.memory.count()), (Err(Errno::INVAL), 0));
        assert_eq!(other.shm_totals().unwrap().pages, 0);
    }
}

/// Ids of queues and segments must be below 2^31, also after the generations of a slot wrap around.
/// Trap I18 in `traps.md`.
#[test]
fn ids_of_queues_and_segments_stay_in_their_range() {
    let capacity = Capacity { segments: 1, queues: 1, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let queue = |_| {
        let id = task.msgget(1, GetFlags::CREATE, 0o600).unwrap();
        assert_eq!(task.msgget(1, GetFlags::empty(), 0), Ok(id));
        task.msg_rmid(id).unwrap();
        id
    };
    let segment = |_| {
        let id = task.shmget(1, 1, GetFlags::CREATE, 0o600).unwrap();
        assert_eq!(task.shmget(1, 1, GetFlags::empty(), 0), Ok(id));
        task.shm_rmid(id).unwrap();
        id
    };
    let queues: Vec<i32> = (0..70_000).map(queue).map(MsgId::raw).collect();
    let segments: Vec<i32> = (0..70_000).map(segment).map(ShmId::raw).collect();
    for ids in [queues, segments] {
        assert!(ids.iter().all(|id| *id >= 0 && id & 0x7fff == 0));
        assert_eq!(ids.iter().filter(|id| **id == ids[0]).count(), 2, "65,535 generations");
    }
}
