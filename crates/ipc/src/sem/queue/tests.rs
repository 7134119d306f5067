//! Tests that walks over queues of waiting calls end, even if a hostile process has linked the wait
//! nodes of a queue into a ring.

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::field::{high, low, pair};
use crate::handle::SemId;
use crate::sem::dead::wait_without_sleep;
use crate::sem::node::SHAPE;
use crate::{Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemFlags, Task};

/// The number of wait nodes. The region has many more lines.
const WAITS: u32 = 16;

const ZERO_OP: SemBuf = SemBuf::new(0, 0, SemFlags::empty());
const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());

/// Links the last wait node of each queue to itself.
fn rings(sops: &[SemBuf]) -> (Task, SemId) {
    let capacity = Capacity { sets: 4096, sems: 8, waits: WAITS, tasks: 4, ..Capacity::LEAST };
    let file = memfd_create("rings", MemfdFlags::CLOEXEC).unwrap();
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let task = Namespace::open_fd(&file, options).unwrap().register(Cred::root(), 1).unwrap();
    let id = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    if sops[0].sem_op == 0 {
        task.sem_setval(id, 0, 1).unwrap();
    }
    for line in [(); 2].map(|()| wait_without_sleep(&task, id, sops)) {
        close_ring(&task, line);
    }
    (task, id)
}

fn close_ring(task: &Task, line: u32) {
    let first = task.shared.region.line(line);
    for links in [SET_LINKS, SEM_LINKS].map(|at| &first[at]) {
        let (before, after) = (low(get(links)), high(get(links)));
        put(links, pair(before, if after == 0 { line } else { after }));
    }
}

fn set<'t>(task: &'t Task, id: SemId) -> Set<'t> {
    Set::new(&task.shared, &task.sem_ids().obtain_object_check(id.raw()).unwrap())
}

/// Sets the first semaphore to `value`. Returns the number of waiting calls that this change
/// completes.
fn completed(task: &Task, id: SemId, value: i32) -> usize {
    let guard = set(task, id).lock(task.owner).unwrap();
    let mut txn = Txn::new(&guard);
    txn.set_value(0, value, 1).unwrap();
    update(&mut txn, Changed::Nums(&[0])).unwrap();
    let count = txn.completed.len();
    txn.commit();
    count
}

#[test]
fn ring_of_waits_for_zero_ends_when_a_call_comes_again() {
    let both = [ZERO_OP, SemBuf::new(1, 0, SemFlags::empty())];
    for sops in [&[ZERO_OP][..], &both] {
        let (task, id) = rings(sops);
        assert_eq!(completed(&task, id, 0), 3, "two calls, and one of them twice");
    }
}

#[test]
fn ring_of_calls_that_fail_ends_when_one_comes_again() {
    // Each of the two waiting calls can decrement the first semaphore. But then it would raise the
    // second semaphore above the maximum value, so the call fails.
    let sops = [
        DOWN,
        SemBuf::new(1, 20_000, SemFlags::empty()),
        SemBuf::new(1, 20_000, SemFlags::empty()),
    ];
    let (task, id) = rings(&sops);
    assert_eq!(completed(&task, id, 2), 3);
}

#[test]
fn removal_of_a_set_with_rings_tells_no_more_than_there_can_be() {
    for sops in [&[DOWN][..], &[ZERO_OP], &[DOWN, DOWN], &[ZERO_OP, ZERO_OP]] {
        let (task, id) = rings(sops);
        // Adds a ring in another queue.
        task.sem_setval(id, 1, 1).unwrap();
        close_ring(&task, wait_without_sleep(&task, id, &[SemBuf::new(1, 0, SemFlags::empty())]));
        let guard = set(&task, id).lock(task.owner).unwrap();
        assert_eq!(end_all(&guard).len(), WAITS as usize, "{sops:?}");
    }
}

#[test]
fn count_of_a_ring_is_no_more_than_there_can_be() {
    let (task, id) = rings(&[DOWN]);
    assert_eq!(task.sem_getncnt(id, 0), Ok(WAITS as i32));
}

/// A change that completes one waiting call must not try the calls behind it in the queue. Each try
/// records the operation that blocks the call, so the test can see which calls were tried. Trap X7
/// in `traps.md`.
#[test]
fn wake_up_of_one_waiter_does_not_look_at_the_others() {
    const UNTOUCHED: usize = 7;
    let capacity = Capacity { sets: 1, sems: 8, waits: 256, tasks: 2, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let task = Namespace::new(options).unwrap().register(Cred::root(), 1).unwrap();
    let id = task.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    let lines = [(); 100].map(|()| wait_without_sleep(&task, id, &[DOWN]));
    let nodes = lines.map(|line| Node { shared: &task.shared, line });
    nodes.iter().for_each(|node| node.set_blocking(UNTOUCHED));
    assert_eq!(completed(&task, id, 1), 1);
    let is_looked_at =
        |node: &&Node<'_>| get(&node.first()[SHAPE]) >> 16 & 0xffff != UNTOUCHED as u64;
    assert_eq!(nodes[1..].iter().filter(is_looked_at).count(), 0);
    // The first waiting call needs 5 units, and the semaphore has 1. So the walk must go on to the
    // second call, which needs 1 unit.
    let wide = wait_without_sleep(&task, id, &[SemBuf::new(1, -5, SemFlags::empty())]);
    let narrow = wait_without_sleep(&task, id, &[SemBuf::new(1, -1, SemFlags::empty())]);
    task.semop(id, &[SemBuf::new(1, 1, SemFlags::empty())]).unwrap();
    let outcomes = [wide, narrow].map(|line| Node { shared: &task.shared, line }.outcome());
    assert_eq!(outcomes, [None, Some(Ok(()))]);
}
