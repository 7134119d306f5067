//! Tests of segments that use internals of the crate: cleanup after dead tasks, and the rebuild of
//! a segment from its attach records.

use corewalk_base::primitives::Arc;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc as FileArc;

use super::segment;
use crate::backing::{Access, Backing, Memfds, SegmentName};
use crate::field::put;
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, Namespace, NamespaceOptions, ShmFlags, ShmId,
    Task,
};

/// A backing whose segments a test can count.
#[derive(Clone, Default)]
struct Counted(Arc<Memfds>);

impl Backing for Counted {
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno> {
        self.0.create(name, size_bytes)
    }

    fn open(&self, name: SegmentName, access: Access) -> Result<FileArc<OwnedFd>, Errno> {
        self.0.open(name, access)
    }

    fn remove(&self, name: SegmentName) -> bool {
        self.0.remove(name)
    }
}

fn namespace(is_shm_rmid_forced: bool) -> (Namespace, Counted) {
    let capacity = Capacity { segments: 4, attaches: 16, tasks: 8, ..Capacity::LEAST };
    let limits = Limits { is_shm_rmid_forced, ..Limits::default() };
    let memory = Counted::default();
    let backing: Option<Box<dyn Backing>> = Some(Box::new(memory.clone()));
    let options = NamespaceOptions { capacity, limits, backing, ..<_>::default() };
    (Namespace::new(options).unwrap(), memory)
}

fn task(namespace: &Namespace, pid: u32) -> Task {
    namespace.register(Cred::root(), pid).unwrap()
}

fn segment(task: &Task) -> ShmId {
    task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap()
}

fn attach(task: &Task, id: ShmId, address: usize) {
    task.shmat(id, address, ShmFlags::empty()).unwrap().attached_at(address);
}

fn nattch(task: &Task, id: ShmId) -> u64 {
    task.shm_stat(id).unwrap().nattch
}

#[test]
fn mapping_that_is_dropped_leaves_no_trace() {
    let (namespace, memory) = namespace(false);
    let one = task(&namespace, 1);
    let id = segment(&one);
    let mapping = one.shmat(id, 0, ShmFlags::empty()).unwrap();
    assert_eq!(nattch(&one, id), 1, "it is counted while it is being mapped");
    one.shm_rmid(id).unwrap();
    drop(mapping);
    assert_eq!(one.shm_stat(id), Err(Errno::INVAL));
    assert_eq!(memory.0.count(), 0);
    let id = segment(&one);
    drop(one.shmat(id, 0, ShmFlags::empty()).unwrap());
    let stat = one.shm_stat(id).unwrap();
    assert_eq!((stat.nattch, stat.atime_s, stat.dtime_s, stat.lpid), (0, 0, 0, 0));
}

#[test]
fn memory_of_a_segment_is_shared_by_its_tasks() {
    let (namespace, _memory) = namespace(false);
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.shmget(IPC_PRIVATE, 5000, GetFlags::empty(), 0o600).unwrap();
    let write = one.shmat(id, 0, ShmFlags::empty()).unwrap();
    rustix::io::pwrite(write.as_fd(), b"seen", 4096).unwrap();
    let read = other.shmat(id, 0, crate::ShmFlags::RDONLY).unwrap();
    let mut text = [0; 4];
    rustix::io::pread(read.as_fd(), &mut text, 4096).unwrap();
    assert_eq!((&text, read.size_bytes()), (b"seen", 5000));
    assert_eq!((write.flags(), read.flags()), (ShmFlags::empty(), crate::ShmFlags::RDONLY));
}

#[test]
fn remap_detaches_the_replaced_segment() {
    let (namespace, _memory) = namespace(false);
    let one = task(&namespace, 1);
    let (first, second) = (segment(&one), segment(&one));
    attach(&one, first, 0x10000);
    let mapping = one.shmat(second, 0x10000, crate::ShmFlags::REMAP).unwrap();
    assert_eq!((mapping.flags(), mapping.address()), (crate::ShmFlags::REMAP, Some(0x10000)));
    mapping.attached_at(0x10000);
    assert_eq!((nattch(&one, first), nattch(&one, second)), (0, 1));
    assert_eq!(one.shmdt(0x10000), Ok(4096));
    assert_eq!(one.shmdt(0x10000), Err(Errno::INVAL));
}

#[test]
fn forced_removal_removes_unattached_segments_and_orphans() {
    let (namespace, memory) = namespace(true);
    let (maker, other) = (task(&namespace, 1), task(&namespace, 2));
    let detached = segment(&maker);
    attach(&other, detached, 0x10000);
    other.shmdt(0x10000).unwrap();
    assert_eq!(other.shm_stat(detached), Err(Errno::INVAL), "removed by the last detach");
    let (unused, used) = (segment(&maker), segment(&maker));
    attach(&other, used, 0x10000);
    maker.exit();
    assert_eq!(other.shm_stat(unused), Err(Errno::INVAL), "removed with its creator");
    assert_eq!((nattch(&other, used), memory.0.count()), (1, 1));
    drop(other);
    assert_eq!(memory.0.count(), 0);
}

/// A process may have segments in two namespaces. Its end must remove them in each namespace whose
/// limits demand it. Trap I14 in `traps.md`.
#[test]
fn creator_in_two_namespaces_orphans_its_segments_in_each() {
    let (forced, forced_memory) = namespace(true);
    let (plain, plain_memory) = namespace(false);
    let (in_forced, in_plain) = (task(&forced, 1), task(&plain, 1));
    let (gone, stays) = (segment(&in_forced), segment(&in_plain));
    // The first task has the same number in both namespaces.
    let other = task(&forced, 2);
    let theirs = segment(&other);
    drop(in_plain);
    assert_eq!((forced_memory.0.count(), plain_memory.0.count()), (2, 1));
    drop(in_forced);
    assert_eq!(other.shm_stat(gone), Err(Errno::INVAL));
    assert_eq!(other.shm_stat(theirs).map(|stat| stat.id), Ok(theirs));
    assert_eq!((forced_memory.0.count(), plain_memory.0.count()), (1, 1));
    assert_eq!(task(&plain, 3).shm_stat(stays).map(|stat| stat.id), Ok(stays));
}

/// The slot of a segment was reused for a segment of another task. The end of the old creator must
/// not remove the new segment.
#[test]
fn creator_of_an_old_segment_does_not_orphan_the_next_in_its_slot() {
    let (namespace, memory) = namespace(true);
    let maker = task(&namespace, 1);
    let first = segment(&maker);
    maker.shm_rmid(first).unwrap();
    let other = task(&namespace, 2);
    let mut ids: Vec<ShmId> = (0..4).map(|_| segment(&other)).collect();
    maker.exit();
    assert_eq!(memory.0.count(), 4);
    ids.retain(|id| other.shm_stat(*id).is_ok());
    assert_eq!(ids.len(), 4);
}

/// An attach during a removal must get the requested segment, or fail. Traps I2 and I10 in
/// `traps.md`.
#[test]
fn attach_during_removal_gets_the_requested_memory_or_none() {
    const ROUNDS: u64 = 400;
    let (namespace, memory) = namespace(false);
    let (maker, other) = (task(&namespace, 1), task(&namespace, 2));
    let current = AtomicU64::new(0);
    let outcomes = thread::scope(|scope| {
        let attacher = scope.spawn(|| {
            let mut outcomes = [0u64; 3];
            let (mut last, mut times) = (0, 0);
            loop {
                // ORDERING: Acquire. The maker stores the id with Release after it has made the
                // segment. Without this order, this thread could look up a segment that is not
                // complete.
                let seen = current.load(Ordering::Acquire);
                if seen == u64::MAX {
                    return outcomes;
                }
                times = if seen == last { times + 1 } else { 0 };
                last = seen;
                if times > 20 {
                    // Let the other thread take the lock.
                    thread::yield_now();
                    continue;
                }
                let (id, pages) = (ShmId::from_raw((seen & 0xffff_ffff) as i32), seen >> 32);
                match other.shmat(id, 0, ShmFlags::empty()) {
                    Ok(mapping) => {
                        // Each segment has another size than the previous ones, so its size shows
                        // which segment it is.
                        let size = rustix::fs::fstat(mapping.as_fd()).unwrap().st_size;
                        let sizes = (mapping.size_bytes(), size as u64);
                        assert_eq!(sizes, (pages * 4096, pages * 4096), "I2: another segment");
                        mapping.attached_at(0x10000);
                        other.shmdt(0x10000).unwrap();
                        outcomes[0] += 1;
                    }
                    Err(Errno::INVAL) => outcomes[1] += 1,
                    Err(Errno::IDRM) => outcomes[2] += 1,
                    Err(errno) => panic!("{errno}"),
                }
            }
        });
        for round in 0..ROUNDS {
            let pages = 1 + round % 251;
            let id = maker.shmget(IPC_PRIVATE, pages * 4096, GetFlags::empty(), 0o600).unwrap();
            // ORDERING: Release. Pairs with the load above.
            current.store(id.raw() as u64 | pages << 32, Ordering::Release);
            for _ in 0..round % 4 {
                thread::yield_now();
            }
            maker.shm_rmid(id).unwrap();
        }
        // ORDERING: Release. Pairs with the load above.
        current.store(u64::MAX, Ordering::Release);
        attacher.join().unwrap()
    });
    // Each shmat(2) above succeeds, or fails with `EINVAL` or `EIDRM`. `tests/shm_windows` makes
    // each of these outcomes occur.
    println!("attached, EINVAL, EIDRM: {outcomes:?}");
    assert_eq!((memory.0.count(), maker.shm_totals().unwrap().pages), (0, 0));
}

/// An attach during which the creator ends must count, or the whole segment must be gone. Trap I18
/// in `traps.md`.
#[test]
fn orphan_during_an_attach_stays_or_is_gone_as_a_whole() {
    let (namespace, memory) = namespace(true);
    let other = task(&namespace, 2);
    let mut attached = 0;
    for round in 0..300 {
        let maker = task(&namespace, 1);
        let id = segment(&maker);
        let got = thread::scope(|scope| {
            let ends = scope.spawn(move || {
                for _ in 0..round % 3 {
                    thread::yield_now();
                }
                drop(maker);
            });
            for _ in 0..round / 3 % 4 {
                thread::yield_now();
            }
            let got =
                other.shmat(id, 0, ShmFlags::empty()).map(|mapping| mapping.attached_at(0x10000));
            ends.join().unwrap();
            got
        });
        match got {
            Ok(()) => {
                attached += 1;
                assert_eq!((nattch(&other, id), memory.0.count()), (1, 1));
                other.shmdt(0x10000).unwrap();
            }
            Err(Errno::INVAL | Errno::IDRM) => {}
            Err(errno) => panic!("{errno}"),
        }
        assert_eq!((other.shm_stat(id), memory.0.count()), (Err(Errno::INVAL), 0));
    }
    println!("{attached} of 300 were attached");
}

#[test]
fn capacity_for_attaches_that_is_used_up_is_enomem_and_recovers() {
    let capacity = Capacity { segments: 4, attaches: 2, tasks: 4, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let ids = [segment(&one), segment(&one), segment(&one)];
    attach(&one, ids[0], 0x10000);
    attach(&one, ids[1], 0x20000);
    // Another attach of the same segment by the same task must use the same record.
    attach(&one, ids[0], 0x30000);
    assert_eq!(one.shmat(ids[2], 0, ShmFlags::empty()).unwrap_err(), Errno::NOMEM);
    assert_eq!(one.fork(3).unwrap_err(), Errno::NOMEM);
    assert_eq!((nattch(&other, ids[0]), nattch(&other, ids[1])), (2, 1), "no attach was copied");
    one.shmdt(0x20000).unwrap();
    attach(&one, ids[2], 0x20000);
    drop(one);
    ids.iter().for_each(|id| assert_eq!(nattch(&other, *id), 0));
}

#[test]
fn attaches_of_a_dead_task_are_reaped_and_lists_rebuilt() {
    let (namespace, memory) = namespace(false);
    let (one, dead) = (task(&namespace, 1), task(&namespace, 2));
    let key = one.shmget(7, 4096, GetFlags::CREATE, 0o600).unwrap();
    let (shared, marked) = (segment(&one), segment(&dead));
    for (task, id, address) in [
        (&one, shared, 0x10000),
        (&dead, shared, 0x10000),
        (&dead, shared, 0x20000),
        (&dead, marked, 0x30000),
        (&one, key, 0x30000),
    ] {
        attach(task, id, address);
    }
    one.shm_rmid(marked).unwrap();
    // Clear the lists, and rebuild them from the records.
    for index in 0..one.shared.layout.shm_ids.slots {
        put(&one.shared.region.line(one.shared.layout.segments + index)[1], 0);
    }
    {
        let ids = one.shm_ids().lock().unwrap();
        let segments = (0..4).filter_map(|index| ids.ids.live(index));
        let pages = segments.map(|object| segment::recover_slot(one.shm_ids(), &object));
        assert_eq!(pages.sum::<u64>(), ids.used());
    }
    assert_eq!((nattch(&one, shared), nattch(&one, marked), nattch(&one, key)), (3, 1, 1));
    segment::reap(one.shm_ids(), dead.owner.index).unwrap();
    assert_eq!((nattch(&one, shared), nattch(&one, key)), (1, 1));
    assert_eq!(one.shm_stat(shared).unwrap().lpid, 2);
    assert_eq!((one.shm_stat(marked), memory.0.count()), (Err(Errno::INVAL), 2));
    // `dead` has no attaches any more, so its drop must change no number of attaches.
    drop(dead);
    assert_eq!((nattch(&one, shared), nattch(&one, key)), (1, 1));
}
