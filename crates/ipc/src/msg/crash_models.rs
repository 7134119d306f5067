//! Crash models of message queues: a task is killed before each store of a call, and other tasks
//! continue.
//!
//! After each kill, another task recovers the namespace. Then each message must be in its queue or
//! gone, and only waiting calls may have wait nodes.
//!
//! `RUSTFLAGS="--cfg corewalk_crash" cargo test --release -p corewalk-ipc --lib crash_`

use corewalk_base::futex;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::crash::{self, Ended};
use corewalk_base::primitives::{Arc, thread};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::node::Role;
use super::queue::{LOCK, Queue, QueueName};
use super::rebuild;
use crate::field::get;
use crate::status::{INTERRUPTED, STATUS};
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, Task,
};

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

/// The maximum number of stores of one call. A test fails if its call makes more stores.
const STORES_MAX: u64 = 1000;

struct World {
    namespace: Namespace,
    survivor: Task,
    victim: Arc<Task>,
    id: MsgId,
}

impl World {
    fn new() -> Self {
        let capacity = Capacity { queues: 2, msgs: 64, waits: 16, tasks: 8, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("crash", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let survivor = namespace.register(Cred::root(), 1).unwrap();
        let victim = Arc::new(namespace.register(Cred::root(), 2).unwrap());
        let id = survivor.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        Self { namespace, survivor, victim, id }
    }

    fn queue(&self) -> Queue<'_> {
        let object = self.survivor.msg_ids().obtain_object_check(self.id.raw()).unwrap();
        Queue::new(&self.survivor.shared, &object)
    }

    /// Runs `others` as soon as the victim waits or is dead. Returns true if the victim was killed
    /// before `act` ended.
    fn stop(&self, stores: u64, act: fn(&Task, MsgId), others: fn(&Self)) -> bool {
        let thread = thread::spawn({
            let (victim, id) = (Arc::clone(&self.victim), self.id);
            move || {
                let is_stopped = matches!(crash::run(stores, || act(&victim, id)), Ended::Stopped);
                if is_stopped {
                    crate::task_line::forget_process(&victim.shared, victim.owner.index);
                }
                is_stopped
            }
        });
        let is_waiting = || self.used()[1] != 0 && get(&self.queue().line()[LOCK]) == 0;
        while !thread.is_finished() && !is_waiting() {
            thread::yield_now();
        }
        others(self);
        while !thread.is_finished() {
            self.wake(0);
            thread::yield_now();
        }
        thread.join().unwrap()
    }

    fn wake(&self, bits: u64) {
        let shared = &self.survivor.shared;
        for (line, _) in shared.layout.msg_waits.used(&shared.region) {
            let status = &shared.region.line(line)[STATUS];
            // ORDERING: Relaxed. See `Task::interrupt`.
            status.fetch_or(bits, Ordering::Relaxed);
            futex::wake(status, 1, shared.scope);
        }
    }

    fn used(&self) -> [usize; 2] {
        let layout = &self.survivor.shared.layout;
        let region = &self.survivor.shared.region;
        [&layout.msgs, &layout.msg_waits].map(|pool| pool.used(region).count())
    }

    fn qnum(&self) -> u64 {
        self.survivor.msg_stat(self.id).unwrap().qnum
    }

    fn end(self, at: &str) {
        crate::task_line::forget_process(&self.victim.shared, self.victim.owner.index);
        self.namespace.recover().unwrap();
        assert_eq!(self.used(), [self.qnum() as usize, 0], "{at}: a message or node is left over");
        // Recovery has freed the record of the killed task. So drop the `Task` object without any
        // store to shared memory.
        crash::run(0, || drop(self.victim));
    }
}

/// A message that was passed to a killed receiver must be received or back in the queue. It must
/// not stay in the state `Delivered`.
#[test]
fn crash_of_a_receiver_that_is_handed_a_message_leaves_none_delivered() {
    let mut sent = [0; 2];
    for stores in 0..STORES_MAX {
        let world = World::new();
        let is_stopped = world.stop(stores, receive, |world| {
            world.survivor.msgsnd(world.id, 1, b"text", NOWAIT).unwrap()
        });
        world.namespace.recover().unwrap();
        sent[world.qnum() as usize] += 1;
        // A second recovery must not deliver the message again.
        rebuild::recover(world.queue(), world.survivor.owner);
        world.end(&format!("stopped after {stores} stores"));
        if !is_stopped {
            println!("{stores} stores; received or gone, still there: {sent:?}");
            assert!(sent.iter().all(|count| *count > 0), "an outcome was not reached: {sent:?}");
            return;
        }
    }
    panic!("the call needs more than {STORES_MAX} stores");
}

/// A waiting call has removed its wait node from a list and released the queue's lock, but has not
/// freed the node yet. A rebuild by another task must not put the node back into the list.
fn leaves_before_a_rebuild(act: fn(&Task, MsgId), prepare: fn(&World), others: fn(&World)) {
    for stores in 0..STORES_MAX {
        let world = World::new();
        prepare(&world);
        let is_stopped = world.stop(stores, act, others);
        {
            // Taking the lock repairs the queue.
            let guard = world.queue().lock(world.survivor.owner).unwrap();
            let linked = || {
                [guard.waiting(Role::Receiver), guard.waiting(Role::Sender)]
                    .map(|list| list.iter().collect())
            };
            let before: [Vec<u32>; 2] = linked();
            rebuild::rebuild(&guard);
            assert_eq!(linked(), before, "{stores}: a node that left its list is linked again");
        }
        world.end(&format!("stopped after {stores} stores"));
        if !is_stopped {
            println!("{stores} stores");
            return;
        }
    }
    panic!("the call needs more than {STORES_MAX} stores");
}

fn interrupt(world: &World) {
    world.wake(INTERRUPTED);
}

fn receive(task: &Task, id: MsgId) {
    task.msgrcv(id, &mut [0; 8], 0, MsgFlags::empty()).ok();
}

fn send(task: &Task, id: MsgId) {
    task.msgsnd(id, 1, b"text", MsgFlags::empty()).ok();
}

fn set_qbytes(world: &World, qbytes: u64) {
    world.survivor.msg_set(world.id, 0, 0, 0o600, qbytes).unwrap();
}

#[test]
fn crash_of_a_receiver_that_gives_up_leaves_no_node() {
    leaves_before_a_rebuild(receive, |_| {}, interrupt);
}

#[test]
fn crash_of_a_sender_that_gives_up_leaves_no_node() {
    leaves_before_a_rebuild(send, |world| set_qbytes(world, 0), interrupt);
}

#[test]
fn crash_of_a_sender_that_gets_room_leaves_no_node() {
    leaves_before_a_rebuild(send, |world| set_qbytes(world, 0), |world| set_qbytes(world, 100));
}

const KEY: i32 = 9;

/// Checks the ids. Each slot without a queue must be empty.
fn audit(world: &World, at: &str) {
    let ids = world.survivor.msg_ids();
    let (objects, _) = ids.audit().unwrap_or_else(|what| panic!("{at}: {what}"));
    for index in 0..ids.slots() {
        let slot = Queue { shared: &world.survivor.shared, name: QueueName { index, tag: 0 } };
        let payload = objects.iter().find(|object| object.index == index).map(|it| it.payload);
        assert_eq!(slot.live(), payload.unwrap_or(0), "{at}: slot {index}");
    }
}

/// A task is killed while it creates a queue in the slot of a removed queue. The new queue must
/// exist as a whole, or not at all. The id of the removed queue must stay invalid.
#[test]
fn crash_of_a_new_queue_leaves_all_of_it_or_nothing() {
    let mut seen = [0; 2];
    for stores in 0..STORES_MAX {
        let world = World::new();
        let stale = world.survivor.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let found = world.survivor.msg_ids().obtain_object_check(stale.raw()).unwrap();
        let found = Queue::new(&world.survivor.shared, &found);
        world.survivor.msg_rmid(stale).unwrap();
        let make = |task: &Task, _| {
            task.msgget(KEY, GetFlags::CREATE, 0o600).ok();
        };
        let is_stopped = world.stop(stores, make, |_| {});
        let at = format!("stopped after {stores} stores");
        let enter = || found.lock(world.survivor.owner).err();
        assert_eq!(enter(), Some(Errno::IDRM), "{at}: the old queue is gone");
        assert_eq!(world.survivor.msgsnd(stale, 1, b"text", NOWAIT), Err(Errno::INVAL), "{at}");
        seen[usize::from(world.survivor.msgget(KEY, GetFlags::empty(), 0).is_ok())] += 1;
        audit(&world, &at);
        // The number of queues that can be created must not change.
        let again = world.survivor.msgget(KEY, GetFlags::CREATE, 0o600).unwrap();
        assert_eq!(world.survivor.msg_stat(again).unwrap().qnum, 0, "{at}");
        assert_eq!(enter(), Some(Errno::IDRM), "{at}: the old queue is gone");
        world.end(&at);
        if !is_stopped {
            println!("{stores} stores; not there, there: {seen:?}");
            assert!(seen.iter().all(|count| *count > 0));
            return;
        }
    }
    panic!("the call needs more than {STORES_MAX} stores");
}

#[test]
fn crash_of_a_removal_of_a_queue_leaves_all_of_it_or_nothing() {
    let mut seen = [0; 2];
    for stores in 0..STORES_MAX {
        let world = World::new();
        let second = world.survivor.msgget(KEY, GetFlags::CREATE, 0o600).unwrap();
        for text in [&b"one"[..], &[2; 200]] {
            world.survivor.msgsnd(second, 1, text, NOWAIT).unwrap();
        }
        let remove = |task: &Task, _| {
            let second = task.msgget(KEY, GetFlags::empty(), 0).unwrap();
            task.msg_rmid(second).ok();
        };
        let is_stopped = world.stop(stores, remove, |_| {});
        let at = format!("stopped after {stores} stores");
        world.namespace.recover().unwrap();
        let stat = world.survivor.msg_stat(second);
        assert!(matches!(stat, Err(Errno::INVAL)) || stat.unwrap().qnum == 2, "{at}: {stat:?}");
        seen[usize::from(stat.is_ok())] += 1;
        audit(&world, &at);
        if stat.is_ok() {
            world.survivor.msg_rmid(second).unwrap();
        }
        world.end(&at);
        if !is_stopped {
            println!("{stores} stores; removed, still there: {seen:?}");
            assert!(seen.iter().all(|count| *count > 0));
            return;
        }
    }
    panic!("the call needs more than {STORES_MAX} stores");
}

#[test]
fn crash_of_a_change_of_a_queue_does_all_of_it_or_nothing() {
    let mut seen = [0; 2];
    for stores in 0..STORES_MAX {
        let world = World::new();
        let before = world.survivor.msg_stat(world.id).unwrap().qbytes;
        let set = |task: &Task, id| {
            task.msg_set(id, 0, 0, 0o640, 77).ok();
        };
        let is_stopped = world.stop(stores, set, |_| {});
        world.namespace.recover().unwrap();
        // The next call on the queue completes the change.
        let stat = world.survivor.msg_stat(world.id).unwrap();
        let is_set = (stat.perm.mode, stat.qbytes) == (0o640, 77);
        assert!(is_set || (stat.perm.mode, stat.qbytes) == (0o600, before), "{stores}: {stat:?}");
        seen[usize::from(is_set)] += 1;
        world.end(&format!("stopped after {stores} stores"));
        if !is_stopped {
            println!("{stores} stores; before, after: {seen:?}");
            assert!(seen.iter().all(|count| *count > 0));
            return;
        }
    }
    panic!("the call needs more than {STORES_MAX} stores");
}
