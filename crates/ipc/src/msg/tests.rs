//! Tests of message queues that use internals of the crate. They test the cleanup after dead tasks,
//! and the rebuild of a queue from its messages and wait nodes.

use corewalk_base::primitives::{Arc, thread};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::filter::Filter;
use super::message::{Message, Truth};
use super::node::{Node, Role, Status};
use super::queue::Queue;
use super::rebuild::{self, rebuild};
use crate::field::{get, put};
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, Task,
};

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

fn namespace() -> Namespace {
    let capacity = Capacity { queues: 4, msgs: 4096, waits: 64, tasks: 8, ..Capacity::LEAST };
    Namespace::new(NamespaceOptions { capacity, ..NamespaceOptions::default() }).unwrap()
}

fn task(namespace: &Namespace, pid: u32) -> Arc<Task> {
    Arc::new(namespace.register(Cred::root(), pid).unwrap())
}

fn queue(task: &Task, id: MsgId) -> Queue<'_> {
    Queue::new(&task.shared, &task.msg_ids().obtain_object_check(id.raw()).unwrap())
}

/// A sender that checks its queue again does not count as waiting until it finds that its message
/// still does not fit.
#[test]
fn called_sender_does_not_count_as_waiting() {
    let namespace = namespace();
    let task = task(&namespace, 1);
    let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let guard = queue(&task, id).lock(task.owner).unwrap();
    let node = Node::alloc(&guard, Role::Sender, 1, 1, Filter::ANY).unwrap();
    drop(guard);
    let outer = task.begin_wait(node.line);
    assert_eq!(task.waiting(), 1);
    assert!(node.call());
    assert_eq!(task.waiting(), 0);
    node.answer_call();
    assert_eq!(task.waiting(), 1);
    assert!(task.end_wait(node.line, outer));
    node.forget();
    node.free(task.owner);
}

fn waiting<T: Send + 'static>(
    task: &Arc<Task>,
    call: impl FnOnce(&Task) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let before = task.waiting();
    let handle = thread::spawn({
        let task = Arc::clone(task);
        move || call(&task)
    });
    while task.waiting() == before {
        thread::yield_now();
    }
    handle
}

fn picture(task: &Task, id: MsgId) -> (Vec<u32>, Vec<u32>, Vec<u32>, u64, u64) {
    let guard = queue(task, id).lock(task.owner).unwrap();
    let numbers = guard.numbers();
    let lists = [guard.messages(), guard.waiting(Role::Receiver), guard.waiting(Role::Sender)];
    let [messages, receivers, senders] = lists.map(|list| list.iter().collect::<Vec<_>>());
    (messages, receivers, senders, numbers.cbytes, numbers.qnum)
}

/// Overwrites the lists and counts of a queue with random values.
fn scramble(task: &Task, id: MsgId, seed: u64) {
    let guard = queue(task, id).lock(task.owner).unwrap();
    let lists = [guard.messages(), guard.waiting(Role::Receiver), guard.waiting(Role::Sender)];
    for (at, list) in lists.into_iter().enumerate() {
        let members: Vec<u32> = list.iter().collect();
        for line in members {
            put(&list.region.line(line)[list.links], seed.wrapping_mul(77 + at as u64));
        }
        put(list.ends, seed.rotate_left(at as u32 * 9));
    }
    guard.set_counts(|cbytes, qnum| (cbytes ^ seed, qnum.wrapping_add(seed)));
    guard.set_last_ticket(seed % 3);
}

#[test]
fn overwritten_queue_is_rebuilt_from_its_messages_and_nodes() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let ids = [(); 2].map(|()| one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap());
    for id in ids {
        for (mtype, size) in [(1, 10), (2, 300), (1, 0), (3, 16_000 - 310)] {
            one.msgsnd(id, mtype, &vec![7; size.min(8192)], MsgFlags::empty()).unwrap();
        }
        one.msgrcv(id, &mut [0; 8192], 2, MsgFlags::empty()).unwrap();
        one.msgsnd(id, 4, &vec![7; 7000], MsgFlags::empty()).unwrap();
    }
    let [id, untouched] = ids;
    let receivers = [7, 8].map(|mtype| {
        waiting(&other, move |task| {
            task.msgrcv(id, &mut [0; 100], mtype, MsgFlags::empty()).map(|r| r.mtype)
        })
    });
    let senders = [5000, 6000].map(|size| {
        waiting(&other, move |task| task.msgsnd(id, 9, &vec![1; size], MsgFlags::empty()))
    });
    let before = [picture(&one, id), picture(&one, untouched)];
    assert_eq!((before[0].0.len(), before[0].1.len(), before[0].2.len()), (4, 2, 2));
    for seed in [1, u64::MAX, 0x1234_5678_9abc_def0] {
        scramble(&one, id, seed);
        let wakes = rebuild(&queue(&one, id).lock(one.owner).unwrap());
        assert!(wakes.is_empty(), "no waiting message fits");
        assert_eq!([picture(&one, id), picture(&one, untouched)], before);
    }
    // The order must be as before, and all calls must work.
    let sizes = [10, 0, 8192, 7000];
    for size in sizes {
        assert_eq!(one.msgrcv(id, &mut [0; 8192], 0, MsgFlags::empty()).unwrap().size_bytes, size);
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap().unwrap());
    for (mtype, receiver) in [7, 8].into_iter().zip(receivers) {
        one.msgsnd(id, mtype, b"", MsgFlags::empty()).unwrap();
        assert_eq!(receiver.join().unwrap(), Ok(mtype));
    }
}

#[test]
fn control_scrambled_queue_without_a_rebuild_is_wrong() {
    let namespace = namespace();
    let one = task(&namespace, 1);
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    one.msgsnd(id, 1, b"text", MsgFlags::empty()).unwrap();
    let before = picture(&one, id);
    scramble(&one, id, 0x1234_5678_9abc_def0);
    assert_ne!(picture(&one, id), before);
}

/// A sender dies after it has stored the state `Delivered`, and before it wakes the receiver. The
/// rebuild must tell the receiver.
#[test]
fn receiver_of_a_delivered_message_is_told_by_the_rebuild() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let receiver = waiting(&other, move |task| {
        let mut text = [0; 8];
        task.msgrcv(id, &mut text, 0, MsgFlags::empty())
            .map(|received| text[..received.size_bytes].to_vec())
    });
    {
        let guard = queue(&one, id).lock(one.owner).unwrap();
        let message = Message::alloc(&one, 3, b"handed").unwrap();
        let node = guard.waiting(Role::Receiver).iter().next().unwrap();
        message.set_truth(Truth::Delivered(guard.queue.name, node));
        let wakes = rebuild(&guard);
        assert_eq!(&wakes[..], [node]);
        assert!(guard.waiting(Role::Receiver).is_empty());
        drop(guard);
        super::node::wake(&one.shared, &wakes);
    }
    assert_eq!(receiver.join().unwrap().unwrap(), b"handed");
}

/// A receiver takes its message, and dies before it tells the waiting senders. The rebuild must
/// tell them.
#[test]
fn senders_that_have_room_are_called_by_the_rebuild() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    one.msgsnd(id, 1, &[0; 8192], MsgFlags::empty()).unwrap();
    one.msgsnd(id, 1, &[0; 8192], MsgFlags::empty()).unwrap();
    let sender = waiting(&other, move |task| task.msgsnd(id, 2, b"late", MsgFlags::empty()));
    {
        let guard = queue(&one, id).lock(one.owner).unwrap();
        let first = guard.message(guard.messages().iter().next().unwrap());
        first.make_private(one.owner.index);
        let wakes = rebuild(&guard);
        assert_eq!((guard.numbers().qnum, wakes.len()), (1, 1));
        drop(guard);
        super::node::wake(&one.shared, &wakes);
        first.free(one.owner);
    }
    sender.join().unwrap().unwrap();
    assert_eq!(one.msg_stat(id).unwrap().qnum, 2);
}

#[test]
fn interrupted_removal_is_completed_by_recovery() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    for is_begun in [false, true] {
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        one.msgsnd(id, 1, b"text", MsgFlags::empty()).unwrap();
        let receiver = waiting(&other, move |task| {
            task.msgrcv(id, &mut [0; 8], 7, MsgFlags::empty()).map(|r| r.mtype)
        });
        let queue = queue(&one, id);
        {
            let ids = one.msg_ids().lock().unwrap();
            ids.unpublish(&ids.obtain_object_check(id.raw()).unwrap());
        }
        if is_begun {
            let line = one.shared.layout.queues + crate::layout::QUEUE_LINES * queue.name.index;
            put(&one.shared.region.line(line)[super::queue::LIVE], 0);
        }
        rebuild::recover(queue, one.owner);
        assert_eq!(receiver.join().unwrap(), Err(Errno::IDRM));
        assert_eq!(queue.lock(one.owner).err(), Some(Errno::IDRM));
        assert_eq!(used(&one), [0, 0]);
    }
}

fn used(task: &Task) -> [usize; 2] {
    super::exit_msg(task);
    super::exit_msg(task);
    let layout = &task.shared.layout;
    [&layout.msgs, &layout.msg_waits].map(|pool| pool.used(&task.shared.region).count())
}

#[test]
fn messages_and_nodes_of_a_dead_task_are_reaped() {
    let namespace = namespace();
    let (one, dead) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    // A queued message belongs to the queue, not to its sender.
    dead.msgsnd(id, 5, b"sent", MsgFlags::empty()).unwrap();
    let shared = &*dead.shared;
    // The dead task owns two messages that are in no queue. It was about to send one. It had
    // received the other one, and had not yet freed it.
    Message::alloc(&dead, 1, b"written").unwrap();
    one.msgsnd(id, 6, b"read", MsgFlags::empty()).unwrap();
    std::mem::forget(dead.msgrcv_owned(id, 8, 6, MsgFlags::empty()).unwrap());
    let guard = queue(&dead, id).lock(dead.owner).unwrap();
    // The dead task has two wait nodes. One is waiting. A message was passed to the other one, but
    // the task died before it noticed.
    let nodes = [9, 10].map(|mtype| {
        let filter = Filter::new(mtype, MsgFlags::empty()).unwrap();
        let node = Node::alloc(&guard, Role::Receiver, 2, 8, filter).unwrap();
        guard.waiting(Role::Receiver).push(node.line);
        node
    });
    drop(guard);
    one.msgsnd(id, 10, b"handed", MsgFlags::empty()).unwrap();
    assert!(matches!(nodes[1].status(), Status::Done(Ok(_))));
    assert_eq!(used(&one), [4, 2]);
    let absent = rebuild::reap(shared, one.owner, dead.owner.index).unwrap();
    assert!(absent.is_empty());
    assert_eq!(used(&one), [2, 0]);
    let guard = queue(&one, id).lock(one.owner).unwrap();
    assert!(guard.waiting(Role::Receiver).is_empty());
    drop(guard);
    let received =
        [(); 2].map(|()| one.msgrcv(id, &mut [0; 8], 0, MsgFlags::empty()).unwrap().mtype);
    assert_eq!(received, [5, 10]);
}

#[test]
fn message_taken_while_its_sender_is_reaped_stays_with_its_receiver() {
    let namespace = namespace();
    let (one, dead) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    dead.msgsnd(id, 5, b"sent", MsgFlags::empty()).unwrap();
    let shared = &*dead.shared;
    // The dead task was writing this message to send it, so the cleanup must free it.
    Message::alloc(&dead, 1, b"written").unwrap();
    let (joins, seen) = shared.layout.msgs.collect_used(&shared.region, |line, whose| {
        assert_eq!(whose, dead.owner.index);
        Some(line)
    });
    assert_eq!(seen.len(), 2);
    let arrived = one.msgrcv_owned(id, 8, 5, MsgFlags::empty()).unwrap();
    rebuild::free_private(shared, one.owner, dead.owner.index, joins, seen);
    assert_eq!(used(&one), [1, 0]);
    // The next message needs other lines.
    one.msgsnd(id, 6, b"next", MsgFlags::empty()).unwrap();
    let mut text = [0; 8];
    assert_eq!((arrived.read(&mut text), &text[..4]), (4, &b"sent"[..]));
    drop(arrived);
    assert_eq!(used(&one), [1, 0]);
}

fn linked(task: &Task, id: MsgId, role: Role) -> Node<'_> {
    let guard = queue(task, id).lock(task.owner).unwrap();
    let node = Node::alloc(&guard, role, task.pid, 8, Filter::ANY).unwrap();
    guard.waiting(role).push(node.line);
    node
}

fn left(task: &Task, id: MsgId, role: Role) -> Node<'_> {
    let node = linked(task, id, role);
    assert_eq!(
        node.leave(Err(Errno::IO)),
        (Err(Errno::IO), false),
        "the node is still in its list"
    );
    task.waiting.enter(node.line);
    node
}

/// A call has failed without the queue's lock, so its wait node is still in the queue's list. No
/// message may be passed to that node. The end of the task must free it.
#[test]
fn abandoned_node_gets_no_message_and_is_freed_with_its_task() {
    let namespace = namespace();
    for is_removed in [false, true] {
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        left(&other, id, Role::Receiver);
        left(&other, id, Role::Sender);
        let receiver = waiting(&other, move |task| {
            task.msgrcv(id, &mut [0; 8], 0, MsgFlags::empty()).map(|r| r.mtype)
        });
        one.msgsnd(id, 3, b"text", NOWAIT).unwrap();
        assert_eq!(receiver.join().unwrap(), Ok(3));
        one.msgsnd(id, 4, b"text", NOWAIT).unwrap();
        assert_eq!(one.msg_stat(id).unwrap().qnum, 1);
        one.msg_set(id, 0, 0, 0o600, 10).unwrap();
        one.msgrcv(id, &mut [0; 8], 4, NOWAIT).unwrap();
        if is_removed {
            one.msg_rmid(id).unwrap();
        }
        super::exit_msg(&other);
        assert_eq!(used(&one), [0, 2]);
        drop(other);
        assert_eq!(used(&one), [0, 0]);
        if !is_removed {
            let guard = queue(&one, id).lock(one.owner).unwrap();
            assert!(
                guard.waiting(Role::Receiver).is_empty() && guard.waiting(Role::Sender).is_empty()
            );
        }
    }
}

/// A signal interrupts a waiting receiver, which does not run again before a message is sent. The
/// message must stay in the queue.
#[test]
fn interrupted_receiver_is_given_no_message() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let node = linked(&one, id, Role::Receiver);
    let outer = one.begin_wait(node.line);
    one.interrupt_own();
    other.msgsnd(id, 3, b"text", NOWAIT).unwrap();
    assert_eq!((other.msg_stat(id).unwrap().qnum, node.status()), (1, Status::Interrupted));
    queue(&one, id).lock(one.owner).unwrap().waiting(Role::Receiver).unlink(node.line);
    assert!(one.end_wait(node.line, outer));
    node.free(one.owner);
}

#[test]
fn node_gets_an_outcome_or_is_abandoned_and_never_both() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let node = linked(&other, id, Role::Receiver);
    one.msgsnd(id, 3, b"text", NOWAIT).unwrap();
    let (told, is_out) = node.leave(Err(Errno::IO));
    assert!(told.is_ok() && is_out, "it has a message");
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let node = left(&other, id, Role::Receiver);
    // Simulate a sender that dies while it passes a message to a receiver that has given up. The
    // sender has stored `Delivered` in the message, but no outcome in the receiver's wait node.
    let guard = queue(&one, id).lock(one.owner).unwrap();
    let message = Message::alloc(&one, 3, b"text").unwrap();
    message.set_truth(Truth::Delivered(guard.queue.name, node.line));
    assert!(rebuild(&guard).is_empty());
    assert_eq!(message.truth(), Truth::Private);
}

/// A task dies during `IPC_SET`. If it had already changed the slot, the whole `IPC_SET` must take
/// effect, and otherwise none of it.
#[test]
fn interrupted_change_of_a_queue_is_whole_or_nothing() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    for is_changed in [false, true] {
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let node = linked(&other, id, Role::Receiver);
        let before = one.msg_stat(id).unwrap().qbytes;
        let queue = queue(&one, id);
        {
            let ids = one.msg_ids().lock().unwrap();
            let guard = queue.lock(one.owner).unwrap();
            guard.begin_set(77);
            if is_changed {
                ids.update_perm(&ids.obtain_object_check(id.raw()).unwrap(), 0, 0, 0o640, 0);
            }
        }
        for _ in 0..2 {
            rebuild::recover(queue, one.owner);
            let qbytes = one.msg_stat(id).unwrap().qbytes;
            assert_eq!(qbytes, if is_changed { 77 } else { before });
            assert_eq!(node.status(), if is_changed { Status::Called } else { Status::Waits });
        }
        one.msg_set(id, 0, 0, 0o600, 99).unwrap();
        rebuild::recover(queue, one.owner);
        assert_eq!(one.msg_stat(id).unwrap().qbytes, 99, "recovery does not repeat the change");
    }
}

#[test]
fn region_after_queues_come_and_go_has_nothing_in_use() {
    let namespace = namespace();
    let (one, other) = (task(&namespace, 1), task(&namespace, 2));
    for _ in 0..50 {
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        one.msgsnd(id, 1, &[0; 5000], MsgFlags::empty()).unwrap();
        one.msgsnd(id, 2, &[0; 8192], MsgFlags::empty()).unwrap();
        assert_eq!(one.msgsnd(id, 2, &[0; 8192], NOWAIT), Err(Errno::AGAIN));
        assert_eq!(one.msgrcv(id, &mut [0; 10], 0, NOWAIT), Err(Errno::TOOBIG));
        assert_eq!(one.msgrcv(id, &mut [0; 10], 3, NOWAIT), Err(Errno::NOMSG));
        let sender = waiting(&other, move |task| task.msgsnd(id, 1, &[0; 8192], MsgFlags::empty()));
        let receiver =
            waiting(&one, move |task| task.msgrcv(id, &mut [0; 8], 7, MsgFlags::empty()).map(drop));
        one.msgrcv(id, &mut [0; 10], 0, NOWAIT | MsgFlags::NOERROR).unwrap();
        assert_eq!(sender.join().unwrap(), Ok(()));
        one.msg_rmid(id).unwrap();
        assert_eq!(receiver.join().unwrap(), Err(Errno::IDRM));
    }
    assert_eq!(used(&one), [0, 0]);
    let totals = one.msg_totals().unwrap();
    assert_eq!((totals.queues, totals.messages, totals.bytes), (0, 0, 0));
}

/// Returns the number of used ranges in the pool of messages. This includes the range that a task
/// keeps for its next message.
fn ranges(task: &Task) -> usize {
    task.shared.layout.msgs.used(&task.shared.region).count()
}

#[test]
fn task_keeps_the_lines_of_one_message_until_it_ends_or_dies() {
    for is_killed in [false, true] {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let shared = Arc::clone(&one.shared);
        for _ in 0..3 {
            for mtype in [7, 8] {
                one.msgsnd(id, mtype, b"text", MsgFlags::empty()).unwrap();
            }
            for mtype in [7, 8] {
                other.msgrcv(id, &mut [0; 8], mtype, MsgFlags::empty()).unwrap();
            }
            assert_eq!(ranges(&one), 1, "the receiver keeps the lines of one message of two");
        }
        // The next message does not fit into the memory that the task has kept, so the task frees
        // that memory.
        other.msgsnd(id, 9, &[0; 500], MsgFlags::empty()).unwrap();
        assert_eq!(ranges(&one), 1);
        one.msgrcv(id, &mut [0; 500], 9, MsgFlags::empty()).unwrap();
        if is_killed {
            let index = one.owner.index;
            std::mem::forget(one);
            rebuild::reap(&shared, other.owner, index).unwrap();
        } else {
            drop(one);
        }
        assert_eq!(ranges(&other), 0);
    }
}

#[test]
fn sender_without_free_lines_gets_those_of_dead_tasks() {
    let capacity = Capacity { queues: 1, msgs: 16, waits: 4, tasks: 4, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let file = memfd_create("lines", MemfdFlags::CLOEXEC).unwrap();
    let namespace = Namespace::open_fd(&file, options).unwrap();
    let [one, other] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    while Message::alloc(&other, 1, b"written").is_ok() {}
    assert_eq!(
        one.msgsnd(id, 1, b"text", MsgFlags::empty()),
        Err(Errno::NOMEM),
        "they are those of the living"
    );
    crate::sem::dead::kill(other);
    assert_eq!(one.msgsnd(id, 1, b"text", MsgFlags::empty()), Ok(()));
}

#[test]
fn lines_that_all_tasks_keep_are_at_most_a_quarter() {
    const LINES: u32 = 1024;
    let capacity = Capacity { queues: 1, msgs: LINES, waits: 4, tasks: 8, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let tasks: Vec<_> = (1..=8).map(|pid| task(&namespace, pid)).collect();
    let id = tasks[0].msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let (pool, region) = (&tasks[0].shared.layout.msgs, &tasks[0].shared.region);
    let mut kept_most = 0;
    for lines in [1, 2, 4, 8, 16, 32, 64] {
        let mut text = vec![7; 64 * (lines - 1)];
        for task in &tasks {
            task.msgsnd(id, 1, &text, NOWAIT).unwrap();
            task.msgrcv(id, &mut text, 0, NOWAIT).unwrap();
        }
        // The queue is empty, so all lines in use belong to ranges that tasks keep for their next
        // message.
        let kept: u32 = pool.used(region).map(|(line, _)| pool.len(region, line)).sum();
        assert!(kept <= LINES / 4, "{kept} lines are kept after messages of {lines} lines");
        kept_most = kept.max(kept_most);
    }
    assert!(kept_most >= 8, "no lines are kept");
}

#[test]
fn text_of_any_length_arrives_as_it_was_sent() {
    let namespace = namespace();
    let one = task(&namespace, 1);
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let sent: Vec<u8> = (0..8192u32).map(|at| (at * 31 + at / 256) as u8).collect();
    for size in (0..200).chain([1000, 4095, 4096, 4097, 8185, 8192]) {
        one.msgsnd(id, 1, &sent[..size], MsgFlags::empty()).unwrap();
        let mut text = vec![0xee; size + 3];
        assert_eq!(one.msgrcv(id, &mut text, 0, MsgFlags::empty()).unwrap().size_bytes, size);
        assert_eq!((&text[..size], &text[size..]), (&sent[..size], &[0xee; 3][..]), "{size}");
        one.msgsnd(id, 1, &sent[..size], MsgFlags::empty()).unwrap();
        let mut text = vec![0; size / 2];
        let received = one.msgrcv(id, &mut text, 0, MsgFlags::NOERROR).unwrap();
        assert_eq!((received.size_bytes, &text[..]), (size / 2, &sent[..size / 2]), "{size}");
    }
}

/// Checks that damage in shared memory leads to wrong messages, but not to a crash.
#[test]
fn message_with_an_impossible_size_is_cut() {
    let namespace = namespace();
    let one = task(&namespace, 1);
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    one.msgsnd(id, 1, b"text", MsgFlags::empty()).unwrap();
    let line = picture(&one, id).0[0];
    let size = &one.shared.region.line(line)[4];
    assert_eq!(get(size), 4);
    put(size, u64::MAX);
    assert_eq!(one.msgrcv(id, &mut [0; 8], 0, MsgFlags::empty()), Err(Errno::TOOBIG));
    let received = one.msgrcv(id, &mut [0; 8192], 0, MsgFlags::NOERROR).unwrap();
    assert_eq!(received.size_bytes, 8192);
}

/// Queues a receiver as msgrcv(2) does, and returns its wait node. No thread sleeps on the node, so
/// the test can continue.
fn receive_without_sleep(task: &Task, id: MsgId, filter: Filter) -> u32 {
    let queue = queue(task, id);
    let guard = queue.lock(task.owner).unwrap();
    let node = Node::alloc(&guard, Role::Receiver, task.pid, 64, filter).unwrap();
    guard.waiting(Role::Receiver).push(node.line);
    node.line
}

fn shared_namespace() -> Namespace {
    let capacity = Capacity { queues: 2, msgs: 256, waits: 16, tasks: 8, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let file = memfd_create("handover", MemfdFlags::CLOEXEC).unwrap();
    Namespace::open_fd(&file, options).unwrap()
}

#[test]
fn message_handed_to_dead_receivers_is_left_to_the_next_call() {
    let namespace = shared_namespace();
    let [first, second, other] =
        [1, 2, 3].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let id = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    receive_without_sleep(&first, id, Filter::ANY);
    receive_without_sleep(&second, id, Filter::ANY);
    crate::sem::dead::kill(first);
    crate::sem::dead::kill(second);
    other.msgsnd(id, 7, b"one", MsgFlags::empty()).unwrap();
    let mut text = [0; 8];
    let received = other.msgrcv(id, &mut text, 0, NOWAIT).unwrap();
    assert_eq!((received.mtype, &text[..received.size_bytes]), (7, &b"one"[..]));
    assert_eq!(other.msgrcv(id, &mut text, 0, NOWAIT), Err(Errno::NOMSG));
    let layout = &other.shared.layout;
    assert_eq!(layout.msg_waits.used(&other.shared.region).count(), 0);
}

#[test]
fn message_handed_to_a_dead_receiver_goes_to_the_one_that_waits_next() {
    let namespace = shared_namespace();
    let [dead, one] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let other = Arc::new(namespace.register(Cred::root(), 3).unwrap());
    let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    receive_without_sleep(&dead, id, Filter::ANY);
    let waits = waiting(&other, move |task| {
        let mut text = [0; 8];
        task.msgrcv(id, &mut text, 0, MsgFlags::empty())
            .map(|received| text[..received.size_bytes].to_vec())
    });
    crate::sem::dead::kill(dead);
    one.msgsnd(id, 1, b"text", MsgFlags::empty()).unwrap();
    assert_eq!(waits.join().unwrap(), Ok(b"text".to_vec()));
}

#[test]
fn message_of_a_receiver_that_died_later_returns_to_its_position() {
    let namespace = shared_namespace();
    let [victim, other] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let id = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    receive_without_sleep(&victim, id, Filter::ANY);
    for text in [b"1", b"2", b"3"] {
        other.msgsnd(id, 1, text, MsgFlags::empty()).unwrap();
    }
    assert_eq!(other.msg_stat(id).unwrap().qnum, 2, "the victim has the first message");
    crate::sem::dead::kill(victim);
    namespace.recover().unwrap();
    let mut text = [0; 1];
    let mut next = || other.msgrcv(id, &mut text, 0, NOWAIT).map(|_| text[0]);
    assert_eq!([next(), next(), next()], [Ok(b'1'), Ok(b'2'), Ok(b'3')]);
    assert_eq!((next(), other.msg_stat(id).unwrap().cbytes), (Err(Errno::NOMSG), 0));
}

#[test]
fn message_of_two_dead_receivers_returns_to_its_position() {
    let namespace = shared_namespace();
    let [first, second, other] =
        [1, 2, 3].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let id = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    let filter = Filter::new(1, MsgFlags::empty()).unwrap();
    receive_without_sleep(&first, id, filter);
    receive_without_sleep(&second, id, filter);
    for mtype in [1, 2, 2] {
        other.msgsnd(id, mtype, b"text", MsgFlags::empty()).unwrap();
    }
    for receiver in [first, second] {
        assert_eq!(other.msg_stat(id).unwrap().qnum, 2, "no receiver has the first message");
        crate::sem::dead::kill(receiver);
        namespace.recover().unwrap();
    }
    let next = || other.msgrcv(id, &mut [0; 4], 0, NOWAIT).map(|received| received.mtype);
    assert_eq!([next(), next(), next()], [Ok(1), Ok(2), Ok(2)]);
    assert_eq!((next(), other.msg_stat(id).unwrap().cbytes), (Err(Errno::NOMSG), 0));
}

#[test]
fn control_message_handed_to_a_living_receiver_stays_its_own() {
    let namespace = shared_namespace();
    let [lives, other] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let id = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    receive_without_sleep(&lives, id, Filter::ANY);
    other.msgsnd(id, 1, b"text", MsgFlags::empty()).unwrap();
    namespace.recover().unwrap();
    assert_eq!(other.msgrcv(id, &mut [0; 8], 0, NOWAIT), Err(Errno::NOMSG));
}
