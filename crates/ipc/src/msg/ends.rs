//! Tests of the end of calls that wait at a queue. The calls must end even if they cannot acquire
//! the queue's lock, or if a hostile process has overwritten the queue.

use corewalk_base::primitives::{Arc, thread};
use corewalk_testkit::race::Watchdog;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::time::Duration;

use super::node::{self, Node, Role};
use super::queue::{LIVE, Queue, QueueGuard};
use crate::field::put;
use crate::layout::QUEUE_LINES;
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, Task,
};

/// A full queue at which a msgsnd and a msgrcv wait.
struct Waiting {
    one: Task,
    other: Arc<Task>,
    id: MsgId,
}

type Calls = [thread::JoinHandle<Result<(), Errno>>; 2];

impl Waiting {
    fn new() -> (Self, Calls) {
        let capacity = Capacity { queues: 2, msgs: 64, waits: 8, tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("ends", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let one = namespace.register(Cred::root(), 1).unwrap();
        let other = Arc::new(namespace.register(Cred::root(), 2).unwrap());
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        one.msg_set(id, 0, 0, 0o600, 4).unwrap();
        one.msgsnd(id, 1, b"full", MsgFlags::empty()).unwrap();
        let start = |call: fn(&Task, MsgId) -> Result<(), Errno>| {
            let task = Arc::clone(&other);
            thread::spawn(move || call(&task, id))
        };
        let calls = [
            start(|task, id| task.msgsnd(id, 1, b"more", MsgFlags::empty())),
            start(|task, id| task.msgrcv(id, &mut [0; 4], 2, MsgFlags::empty()).map(drop)),
        ];
        while other.waiting() != 2 {
            thread::yield_now();
        }
        (Self { one, other, id }, calls)
    }

    fn queue(&self) -> Queue<'_> {
        Queue::new(
            &self.one.shared,
            &self.one.msg_ids().obtain_object_check(self.id.raw()).unwrap(),
        )
    }

    fn call_both(&self, locked: &QueueGuard<'_>) {
        let lists = [locked.waiting(Role::Receiver), locked.waiting(Role::Sender)];
        let lines = lists.iter().flat_map(|list| list.iter().collect::<Vec<_>>());
        let called: Vec<u32> =
            lines.filter(|line| Node { shared: &self.one.shared, line: *line }.call()).collect();
        assert_eq!(called.len(), 2);
        node::wake(&self.one.shared, &called);
    }
}

/// A hostile process has overwritten the word `LIVE`, which identifies a queue. Calls that are told
/// to check the queue again must end with `EIDRM`.
#[test]
fn call_at_a_queue_that_was_overwritten_ends() {
    let _watchdog = Watchdog::start("calls at an overwritten queue", Duration::from_secs(300));
    let (waiting, calls) = Waiting::new();
    let guard = waiting.queue().lock(waiting.one.owner).unwrap();
    waiting.overwrite();
    waiting.call_both(&guard);
    drop(guard);
    for call in calls {
        assert_eq!(call.join().unwrap(), Err(Errno::IDRM));
    }
}

impl Waiting {
    /// Overwrites the word `LIVE` with 0.
    fn overwrite(&self) {
        let line = self.one.shared.layout.queues + QUEUE_LINES * self.queue().name.index;
        put(&self.one.shared.region.line(line)[LIVE], 0);
    }

    fn remove(self) {
        drop(self.other);
        assert_eq!(self.one.msg_rmid(self.id), Ok(()));
        assert_eq!(self.one.msg_rmid(self.id), Err(Errno::INVAL));
        let (layout, region) = (&self.one.shared.layout, &self.one.shared.region);
        assert_eq!(
            (layout.msg_waits.used(region).count(), layout.msgs.used(region).count()),
            (0, 0)
        );
    }
}

/// A hostile process has overwritten the word `LIVE`, which identifies a queue. Calls that wait at
/// the queue must notice the change by themselves, and end with `EIDRM`.
#[test]
fn wait_at_a_queue_that_was_overwritten_ends() {
    let _watchdog = Watchdog::start("waits at an overwritten queue", Duration::from_secs(300));
    let (waiting, calls) = Waiting::new();
    waiting.overwrite();
    for call in calls {
        assert_eq!(call.join().unwrap(), Err(Errno::IDRM));
    }
    waiting.remove();
}

#[test]
fn overwritten_queue_is_removed_and_ends_its_waits() {
    let _watchdog = Watchdog::start("removal of an overwritten queue", Duration::from_secs(300));
    let (waiting, calls) = Waiting::new();
    waiting.overwrite();
    assert_eq!(waiting.one.msg_rmid(waiting.id), Ok(()));
    for call in calls {
        assert_eq!(call.join().unwrap(), Err(Errno::IDRM));
    }
    let Waiting { one, id, .. } = waiting;
    assert_eq!(one.msg_rmid(id), Err(Errno::INVAL));
}

/// If a living task keeps the queue's lock, each waiting call must end with `EIO`. The end of its
/// task must free its wait node.
#[test]
fn call_at_a_held_queue_ends_with_eio_and_its_node_is_freed_later() {
    let _watchdog = Watchdog::start("calls at a queue that is held", Duration::from_secs(300));
    let (waiting, calls) = Waiting::new();
    let guard = waiting.queue().lock(waiting.one.owner).unwrap();
    waiting.call_both(&guard);
    for call in calls {
        assert_eq!(call.join().unwrap(), Err(Errno::IO));
    }
    assert_eq!(waiting.other.waiting(), 0);
    drop(guard);
    let Waiting { one, other, id } = waiting;
    // The failed calls still have wait nodes in the queue. No message may be passed to these nodes.
    one.msgrcv(id, &mut [0; 4], 1, MsgFlags::empty()).unwrap();
    one.msgsnd(id, 2, b"text", MsgFlags::empty()).unwrap();
    assert_eq!(one.msgrcv(id, &mut [0; 4], 2, MsgFlags::NOWAIT).unwrap().mtype, 2);
    drop(other);
    let pool = one.shared.layout.msg_waits;
    assert_eq!(pool.used(&one.shared.region).count(), 0);
}
