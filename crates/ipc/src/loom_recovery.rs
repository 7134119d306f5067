//! Models: two tasks clean up after the same dead one at once.
//!
//! The dead one has an adjustment, and was killed in the middle of another operation with undo. Locks whose
//! holder has died are not here: a model has no time that passes (see `crash_models` and the torture).

use corewalk_base::Region;
use corewalk_base::futex::Scope;
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};
use rustix::io::Errno;

use crate::contention::Counts;
use crate::layout::Layout;
use crate::lock::Owner;
use crate::namespace::Shared;
use crate::recover;
use crate::sem::models::stop_in_undo;
use crate::shm::Memfds;
use crate::task::{forget_process, identity, task_line};
use crate::{Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, SemBuf, SemFlags, Task};

/// A namespace as processes share it.
fn shared() -> Arc<Shared> {
    let capacity = Capacity { sems: 1, undos: 2, tasks: 3, ..Capacity::LEAST };
    let layout = Layout::new(&capacity).unwrap();
    let region = Region::private(layout.lines).unwrap();
    let (limits, backing) = (Limits::default(), Box::new(Memfds::default()));
    let (hook, scope, spin_ns) = (None, Scope::Shared, 0);
    let contention = Counts::default();
    Arc::new(Shared { region, layout, limits, hook, backing, scope, spin_ns, contention })
}

fn task(shared: &Arc<Shared>, pid: u32) -> Task {
    Task::register(Arc::clone(shared), Cred::root(), pid).unwrap()
}

/// Both reap; returns how often the (spawned, first) one was the one that did.
fn two_reap(reap: fn(&Shared, Owner, u32) -> Result<bool, Errno>) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = shared();
        let (one, other, dead) = (task(&shared, 1), task(&shared, 2), task(&shared, 3));
        let id = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        one.sem_setval(id, 0, 4).unwrap();
        dead.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
        stop_in_undo(&dead, id);
        let index = dead.owner.index;
        forget_process(&shared, index);
        let second = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let is_reaped = reap(&shared, other.owner, index).unwrap();
                (is_reaped, other)
            }
        });
        let first = reap(&shared, one.owner, index).unwrap();
        let (second, _other) = second.join().unwrap();
        assert!(first != second, "it was reaped by {first}, {second}");
        assert_eq!(one.sem_getall(id), Ok(vec![4]), "its adjustment was not applied once");
        let records = shared.layout.undos;
        assert_eq!(records.used(&shared.region).count(), 0, "a record is left over");
        assert_eq!(identity(task_line(&shared, index)).0, 0, "its line is left over");
        // The lines of the record serve others again, once.
        let again = [(); 2].map(|()| records.alloc(&shared, 2, one.owner, 0).is_ok());
        assert_eq!(again, [true, false], "lines are free twice, or never");
        // The handle of a process that is gone has nothing left to end.
        drop(dead);
        tally.hit(usize::from(first));
    })
}

#[test]
fn loom_two_who_clean_up_after_one_do_it_once() {
    let outcomes = two_reap(recover::reap);
    println!("by the second, by the first: {outcomes:?}");
    assert_all_reached(&outcomes);
}

/// Nothing keeps them apart.
#[test]
#[should_panic(expected = "it was reaped by true, true")]
fn loom_control_two_who_clean_up_without_its_lock_are_caught() {
    two_reap(recover::reap_unlocked);
}
