//! Deterministic tests of races of semaphore sets and queues. After a call has looked up its
//! object, and before its next step, another task acts on the object.
//!
//! A call looks up its object, asks the security hook, and then takes the object's lock or reads
//! the semaphore's word. These tests supply the hook, so another task can act between the lookup
//! and the next step.
//!
//! Source: semctl(2), msgctl(2), semop(2), msgop(2), `EIDRM`; Linux 6.0.12, "ipc/sem: Fix dangling
//! `sem_array` access in semtimedop race".

use corewalk_base::primitives::thread;
use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, Perm,
    SecurityHook, SemBuf, SemFlags, SemId, Task,
};
use corewalk_testkit::race::Watchdog;
use rustix::io::Errno;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

/// The bits of an id that hold the slot.
const SLOT: i32 = 0x7fff;

#[derive(Clone, Default)]
struct Window(Arc<Mutex<Option<Act>>>);

type Act = Box<dyn FnOnce() + Send>;

impl Window {
    fn set(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.lock().unwrap() = Some(Box::new(act));
    }

    fn pass(&self) -> Result<(), Errno> {
        let act = self.0.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
        Ok(())
    }

    fn was_passed(&self) -> bool {
        self.0.lock().unwrap().is_none()
    }
}

impl SecurityHook for Window {
    fn sem_semop(&self, _: &Cred, _: &Perm, _: bool) -> Result<(), Errno> {
        self.pass()
    }

    fn sem_semctl(&self, _: &Cred, _: Option<&Perm>, _: i32) -> Result<(), Errno> {
        self.pass()
    }

    fn msg_msgsnd(&self, _: &Cred, _: &Perm, _: MsgFlags) -> Result<(), Errno> {
        self.pass()
    }

    fn msg_msgrcv(&self, _: &Cred, _: &Perm, _: i64) -> Result<(), Errno> {
        self.pass()
    }

    fn msg_msgctl(&self, _: &Cred, _: Option<&Perm>, _: i32) -> Result<(), Errno> {
        self.pass()
    }
}

/// The namespace has room for one object of each kind, so that each new object gets the same slot.
fn scene() -> (Window, Task, Task) {
    let window = Window::default();
    let capacity = Capacity {
        sets: 1,
        sems: 8,
        queues: 1,
        msgs: 64,
        waits: 8,
        undos: 64,
        tasks: 8,
        ..Capacity::LEAST
    };
    let hook: Option<Box<dyn SecurityHook>> = Some(Box::new(window.clone()));
    let options = NamespaceOptions { capacity, hook, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = |pid| namespace.register(Cred::root(), pid).unwrap();
    (window, task(1), task(2))
}

type Call<I> = fn(&Task, I) -> Result<(), Errno>;

/// The calls under test. Each looks up a semaphore set before it reads or changes the set.
const SEM_CALLS: [(&str, Call<SemId>); 11] = [
    ("semop", |task, id| task.semop(id, &[SemBuf::new(0, -1, SemFlags::NOWAIT)])),
    ("semop with undo", |task, id| {
        task.semop(id, &[SemBuf::new(0, -1, corewalk_ipc::SemFlags::UNDO)])
    }),
    ("semop of two", |task, id| {
        task.semop(
            id,
            &[SemBuf::new(0, -1, SemFlags::NOWAIT), SemBuf::new(1, 1, SemFlags::empty())],
        )
    }),
    ("semop that waits", |task, id| task.semop(id, &[SemBuf::new(0, -9, SemFlags::empty())])),
    ("GETVAL", |task, id| task.sem_getval(id, 0).map(drop)),
    ("GETPID", |task, id| task.sem_getpid(id, 0).map(drop)),
    ("GETNCNT", |task, id| task.sem_getncnt(id, 0).map(drop)),
    ("GETZCNT", |task, id| task.sem_getzcnt(id, 0).map(drop)),
    ("GETALL", |task, id| task.sem_getall(id).map(drop)),
    ("SETVAL", |task, id| task.sem_setval(id, 0, 7)),
    ("SETALL", |task, id| task.sem_setall(id, &[7, 7])),
];

/// The calls under test. Each looks up a queue before it takes the lock of the queue.
const MSG_CALLS: [(&str, Call<MsgId>); 5] = [
    ("msgsnd", |task, id| task.msgsnd(id, 1, b"lost", NOWAIT)),
    ("msgrcv", |task, id| task.msgrcv(id, &mut [0; 8], 0, NOWAIT).map(drop)),
    ("IPC_STAT", |task, id| task.msg_stat(id).map(drop)),
    ("MSG_STAT", |task, id| task.msg_stat_index(id.raw() & SLOT).map(drop)),
    ("MSG_STAT_ANY", |task, id| task.msg_stat_any(id.raw() & SLOT).map(drop)),
];

/// A set is removed after the lookup of a call. The call must fail with `EIDRM`, and must change
/// nothing of the next set, which has the same slot and the same semaphores.
#[test]
fn removal_of_a_set_after_the_lookup_is_seen_by_every_call() {
    for (name, call) in SEM_CALLS {
        let (window, one, other) = scene();
        let other = Arc::new(other);
        let id = one.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        let act = {
            let other = Arc::clone(&other);
            move || {
                other.sem_rmid(id).unwrap();
                let next = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
                assert_eq!(next.raw() & SLOT, id.raw() & SLOT, "the same slot");
                other.sem_setall(next, &[3, 4]).unwrap();
            }
        };
        window.set(act);
        assert_eq!(call(&one, id), Err(Errno::IDRM), "{name}");
        assert!(window.was_passed(), "{name}");
        let next = other.sem_stat_any(id.raw() & SLOT).unwrap();
        assert_ne!(next.id, id, "{name}");
        assert_eq!(other.sem_getall(next.id), Ok(vec![3, 4]), "{name}");
        assert_eq!(call(&one, id), Err(Errno::INVAL), "{name}: the lookup fails now");
    }
}

/// A queue is removed after the lookup of a call. The call must fail with `EIDRM`, and must change
/// nothing of the next queue, which has the same slot.
#[test]
fn removal_of_a_queue_after_the_lookup_is_seen_by_every_call() {
    for (name, call) in MSG_CALLS {
        let (window, one, other) = scene();
        let other = Arc::new(other);
        let id = one.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        let act = {
            let other = Arc::clone(&other);
            move || {
                other.msg_rmid(id).unwrap();
                let next = other.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
                assert_eq!(next.raw() & SLOT, id.raw() & SLOT, "the same slot");
                other.msgsnd(next, 5, b"kept", NOWAIT).unwrap();
            }
        };
        window.set(act);
        assert_eq!(call(&one, id), Err(Errno::IDRM), "{name}");
        assert!(window.was_passed(), "{name}");
        let next = other.msg_stat_any(id.raw() & SLOT).unwrap();
        assert_ne!(next.id, id, "{name}");
        assert_eq!((next.qnum, next.cbytes, next.lrpid), (1, 4, 0), "{name}");
    }
}

/// A call waits at a set that is removed. When it wakes up, a new set has the same slot and the
/// same semaphore words. The call must take no unit of the new set. Trap I16 in `traps.md`.
#[test]
fn call_that_wakes_up_after_the_next_set_took_its_slot_takes_nothing_of_it() {
    const ROUNDS: usize = 300;
    let _watchdog = Watchdog::start("waiters of removed sets", Duration::from_secs(600));
    let (_window, waiter, other) = scene();
    let mut late = 0;
    for round in 0..ROUNDS {
        let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        let sops = [SemBuf::new(0, -1, SemFlags::empty()), SemBuf::new(1, 1, SemFlags::empty())];
        let sops = &sops[..1 + round % 2];
        let timeout = (round % 3 == 0).then(|| Duration::from_secs(10_000));
        thread::scope(|scope| {
            let waits = scope.spawn(|| waiter.semtimedop(id, sops, timeout));
            while other.sem_getncnt(id, 0) != Ok(1) {
                thread::yield_now();
            }
            other.sem_rmid(id).unwrap();
            let next = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
            other.sem_setall(next, &[1, 0]).unwrap();
            late += usize::from(!waits.is_finished());
            assert_eq!(next.raw() & SLOT, id.raw() & SLOT, "the same slot");
            assert_eq!(waits.join().unwrap(), Err(Errno::IDRM));
            assert_eq!(other.sem_getall(next), Ok(vec![1, 0]));
            assert_eq!(other.sem_getncnt(next, 0), Ok(0));
            other.sem_rmid(next).unwrap();
        });
    }
    println!("{late} of {ROUNDS} calls had not returned when the next set was made");
    assert_ne!(late, 0, "no call was still waking up when the next set was made");
}
