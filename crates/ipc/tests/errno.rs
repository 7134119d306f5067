//! Tests that each errno of the man pages of semaphores occurs as documented. A limit must refuse
//! calls only while it is reached. Each call must ask the security hook.

use corewalk_base::primitives::thread;
use corewalk_ipc::{
    CAP_IPC_OWNER, CAP_SYS_ADMIN, Capacity, Cred, GetFlags, IPC_PRIVATE, IPC_RMID, Limits,
    MsgFlags, Namespace, NamespaceOptions, Perm, SecurityHook, SemBuf, SemFlags, SemId, SemStat,
    ShmFlags, Task,
};
use corewalk_testkit::sysv;
use rustix::io::Errno;
use std::time::Duration;

const UP: SemBuf = SemBuf::new(0, 1, SemFlags::empty());
const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());

fn with(limits: Limits, capacity: Capacity) -> (Namespace, Task) {
    let options = NamespaceOptions { limits, capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    (namespace, task)
}

fn plain() -> (Namespace, Task) {
    with(Limits::default(), Capacity::default())
}

fn set(task: &Task, nsems: i32) -> SemId {
    task.semget(IPC_PRIVATE, nsems, GetFlags::empty(), 0o600).unwrap()
}

#[test]
fn semget_fails_as_its_man_page_says() {
    let (namespace, root) = plain();
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = root.semget(1, 2, GetFlags::CREATE, 0o600).unwrap();
    assert_eq!(user.semget(1, 2, GetFlags::empty(), 0o600), Err(Errno::ACCESS));
    assert_eq!(user.semget(1, 2, GetFlags::empty(), 0), Ok(id), "no permission is asked for");
    assert_eq!(root.semget(1, 2, GetFlags::CREATE | GetFlags::EXCLUSIVE, 0), Err(Errno::EXIST));
    assert_eq!(
        root.semget(1, 3, GetFlags::CREATE | GetFlags::EXCLUSIVE, 0),
        Err(Errno::EXIST),
        "checked before EINVAL"
    );
    for nsems in [3, -1, 32_001] {
        assert_eq!(
            user.semget(1, nsems, GetFlags::empty(), 0o600),
            Err(Errno::INVAL),
            "checked before EACCES"
        );
    }
    assert_eq!(root.semget(IPC_PRIVATE, 0, GetFlags::empty(), 0o600), Err(Errno::INVAL));
    assert_eq!(root.semget(2, 1, GetFlags::EXCLUSIVE, 0o600), Err(Errno::NOENT));
}

/// Linux ignores flag bits without a name.
#[test]
fn flags_without_a_name_change_nothing() {
    const UNNAMED: i32 = i32::MIN | 1 << 20;
    let (_namespace, root) = plain();
    let unnamed = GetFlags::from_bits_retain(UNNAMED);
    let create = unnamed | GetFlags::CREATE;
    let set = root.semget(1, 1, create, 0o604).unwrap();
    assert_eq!(root.sem_stat(set).unwrap().perm.mode, 0o604);
    assert_eq!(root.semget(1, 1, unnamed, 0), Ok(set));
    assert_eq!(root.semget(1, 1, create | GetFlags::EXCLUSIVE, 0), Err(Errno::EXIST));
    let flags = SemFlags::from_bits_retain(0x4000) | SemFlags::NOWAIT;
    assert_eq!(root.semop(set, &[SemBuf::new(0, -1, flags)]), Err(Errno::AGAIN));
    let queue = root.msgget(1, create, 0o604).unwrap();
    let unnamed = MsgFlags::from_bits_retain(UNNAMED);
    assert_eq!(root.msgsnd(queue, 1, b"text", unnamed), Ok(()));
    let received = root.msgrcv(queue, &mut [0; 2], 0, unnamed | MsgFlags::NOERROR);
    assert_eq!(received.map(|received| received.size_bytes), Ok(2));
    let segment = root.shmget(1, 1, create, 0o604).unwrap();
    let flags = ShmFlags::from_bits_retain(UNNAMED) | ShmFlags::RDONLY;
    let mapping = root.shmat(segment, 0, flags).unwrap();
    let named = ShmFlags::RDONLY | ShmFlags::EXEC | ShmFlags::REMAP;
    assert_eq!(mapping.flags() & named, ShmFlags::RDONLY);
    assert_eq!(root.shmget(2, 1, create | GetFlags::HUGETLB, 0o604), Err(Errno::INVAL));
}

#[test]
fn semop_fails_as_its_man_page_says() {
    let (namespace, root) = plain();
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = set(&root, 2);
    assert_eq!(root.semop(id, &[UP; 501]), Err(Errno::TOOBIG));
    assert_eq!(root.semop(id, &[]), Err(Errno::INVAL));
    for bad in [-1, id.raw() + 1, id.raw() + 32_768, i32::MAX, i32::MIN].map(SemId::from_raw) {
        assert_eq!(root.semop(bad, &[UP]), Err(Errno::INVAL), "{bad}");
    }
    assert_eq!(user.semop(id, &[UP]), Err(Errno::ACCESS));
    assert_eq!(
        user.semop(id, &[SemBuf { sem_num: 2, ..UP }]),
        Err(Errno::FBIG),
        "checked before EACCES"
    );
    assert_eq!(root.semop(id, &[SemBuf::new(0, -1, SemFlags::NOWAIT)]), Err(Errno::AGAIN));
    let now = Some(Duration::ZERO);
    assert_eq!(root.semtimedop(id, &[DOWN], now), Err(Errno::AGAIN));
    root.sem_setval(id, 0, 32_767).unwrap();
    for ops in [&[UP][..], &[SemBuf { sem_num: 1, ..UP }, UP][..]] {
        assert_eq!(root.semop(id, ops), Err(Errno::RANGE));
    }
    assert_eq!(root.sem_getall(id).unwrap(), [32_767, 0]);
}

#[test]
fn adjustment_out_of_range_is_erange() {
    let (_namespace, task) = plain();
    let id = set(&task, 1);
    let far = SemBuf::new(0, 32_767, SemFlags::UNDO);
    for _round in 0..2 {
        task.semop(id, &[far]).unwrap();
        task.semop(id, &[SemBuf::new(0, -32_767, SemFlags::empty())]).unwrap();
        // An undo adjustment is at least -32,768.
        assert_eq!(task.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]), Ok(()));
        assert_eq!(task.semop(id, &[SemBuf::new(0, 2, SemFlags::UNDO)]), Err(Errno::RANGE));
        task.sem_setval(id, 0, 0).unwrap();
    }
    assert_eq!(task.sem_getval(id, 0), Ok(0));
}

#[test]
fn wait_ends_with_eidrm_eintr_eagain() {
    let (namespace, task) = plain();
    let other = namespace.register(Cred::root(), 2).unwrap();
    let id = set(&task, 2);
    let wait_then = |sops: &'static [SemBuf], timeout, act: &dyn Fn()| {
        thread::scope(|scope| {
            let waits = scope.spawn(|| other.semtimedop(id, sops, timeout));
            while other.waiting() == 0 && !waits.is_finished() {
                thread::yield_now();
            }
            act();
            waits.join().unwrap()
        })
    };
    let long = Some(Duration::from_secs(3600));
    let short = Some(Duration::from_millis(1));
    const BOTH: &[SemBuf] = &[DOWN, SemBuf::new(1, -1, SemFlags::empty())];
    for sops in [&[DOWN][..], BOTH] {
        let interrupted = wait_then(sops, long, &|| assert_eq!(other.interrupt(), 1));
        assert_eq!(interrupted, Err(Errno::INTR));
        assert_eq!(wait_then(sops, short, &|| ()), Err(Errno::AGAIN));
        assert_eq!(task.sem_getncnt(id, 0), Ok(0), "an ended call is still counted");
        // No call waits any more, so these changes must complete none.
        task.semop(id, &[UP]).unwrap();
        task.semop(id, &[DOWN]).unwrap();
    }
    assert_eq!(other.interrupt(), 0);
    let removed = wait_then(&[DOWN], None, &|| task.sem_rmid(id).unwrap());
    assert_eq!(removed, Err(Errno::IDRM));
}

/// A signal must end semop(2) with `EINTR`, although `SA_RESTART` restarts other system calls.
#[test]
fn signal_ends_a_wait_with_eintr() {
    sysv::catch_usr1().unwrap();
    let (_namespace, task) = plain();
    let id = set(&task, 1);
    let ended = thread::scope(|scope| {
        let (send, number) = std::sync::mpsc::channel();
        let task = &task;
        let waits = scope.spawn(move || {
            send.send(sysv::thread_id()).unwrap();
            task.semop(id, &[DOWN])
        });
        let number = number.recv().unwrap();
        // A signal that arrives before the wait does not end the wait, so send signals until the
        // call ends.
        while !waits.is_finished() {
            if task.waiting() != 0 {
                // The thread may have ended already, by an earlier signal. Then it does not exist
                // any more.
                let sent = sysv::send_usr1(std::process::id(), number);
                let is_over = sent == Err(Errno::SRCH.raw_os_error());
                assert!(sent.is_ok() || is_over, "{sent:?}");
            }
            thread::yield_now();
        }
        waits.join().unwrap()
    });
    assert_eq!(ended, Err(Errno::INTR));
}

#[test]
fn semctl_fails_as_its_man_page_says() {
    let (namespace, root) = plain();
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = set(&root, 2);
    assert_eq!(user.sem_getval(id, 0), Err(Errno::ACCESS));
    assert_eq!(user.sem_stat(id), Err(Errno::ACCESS));
    assert_eq!(user.sem_stat_any(id.raw()).map(|stat| stat.nsems), Ok(2));
    assert_eq!(user.sem_rmid(id), Err(Errno::PERM));
    assert_eq!(user.sem_set(id, 1000, 1000, 0o600), Err(Errno::PERM));
    assert_eq!(root.sem_getval(id, 2), Err(Errno::INVAL));
    assert_eq!(root.sem_setval(id, 9, 40_000), Err(Errno::RANGE), "checked before EINVAL");
    assert_eq!(root.sem_setall(id, &[0, 40_000]), Err(Errno::RANGE));
    assert_eq!(root.sem_set(id, u32::MAX, 0, 0o600), Err(Errno::INVAL));
    root.sem_set(id, 1000, 1000, 0o7640).unwrap();
    let stat: SemStat = user.sem_stat(id).unwrap();
    assert_eq!((stat.perm.uid, stat.perm.cuid, stat.perm.mode), (1000, 0, 0o640));
    user.sem_rmid(id).unwrap();
    assert_eq!(root.sem_rmid(id), Err(Errno::INVAL));
}

#[test]
fn capabilities_override_mode_and_owner() {
    let (namespace, root) = plain();
    let id = root.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0).unwrap();
    let task = namespace.register(Cred::user(1, 1), 2).unwrap();
    assert_eq!(task.semop(id, &[UP]), Err(Errno::ACCESS));
    task.set_cred(Cred { caps: CAP_IPC_OWNER, ..Cred::user(1, 1) });
    assert_eq!(task.semop(id, &[UP]), Ok(()));
    assert_eq!(task.sem_rmid(id), Err(Errno::PERM));
    task.set_cred(Cred { caps: CAP_SYS_ADMIN, ..Cred::user(1, 1) });
    assert_eq!(task.semop(id, &[UP]), Err(Errno::ACCESS));
    assert_eq!(task.sem_rmid(id), Ok(()));
}

#[test]
fn limits_that_are_reached_are_enospc_and_recover() {
    let limits = Limits { semmni: 3, semmns: 10, semmsl: 8, semopm: 2, ..Limits::default() };
    let (_namespace, task) = with(limits, Capacity::default());
    let big = set(&task, 8);
    assert_eq!(task.semget(IPC_PRIVATE, 9, GetFlags::empty(), 0o600), Err(Errno::INVAL));
    assert_eq!(task.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600), Err(Errno::NOSPC));
    let _small = [set(&task, 1), set(&task, 1)];
    assert_eq!(task.semop(big, &[UP; 3]), Err(Errno::TOOBIG));
    task.sem_rmid(big).unwrap();
    let ids: Vec<SemId> = vec![set(&task, 1)];
    assert_eq!(task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600), Err(Errno::NOSPC));
    task.sem_rmid(ids[0]).unwrap();
    set(&task, 8);
}

#[test]
fn capacity_that_is_used_up_is_enomem_and_recovers() {
    let capacity = Capacity { sets: 8, sems: 4, undos: 4, waits: 4, tasks: 2, ..Capacity::LEAST };
    let (namespace, task) = with(Limits::default(), capacity);
    let id = set(&task, 2);
    assert_eq!(task.semget(IPC_PRIVATE, 4, GetFlags::empty(), 0o600), Err(Errno::NOMEM));
    // The pool of undo records has four lines. An undo record for a set of two semaphores takes all
    // of them: three lines, rounded up to a power of two.
    task.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
    let other = namespace.register(Cred::root(), 2).unwrap();
    assert_eq!(other.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]), Err(Errno::NOMEM));
    assert_eq!(other.semop(id, &[SemBuf::new(1, -1, SemFlags::empty()); 40]), Err(Errno::NOMEM));
    assert_eq!(namespace.register(Cred::root(), 3).unwrap_err(), Errno::NOMEM);
    task.exit();
    let task = namespace.register(Cred::root(), 3).unwrap();
    assert_eq!(other.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]), Ok(()));
    task.sem_rmid(id).unwrap();
    assert_eq!(other.sem_getall(set(&task, 2)), Ok(vec![0; 2]));
}

#[test]
fn task_or_namespace_out_of_range_is_einval() {
    let (namespace, _task) = plain();
    assert_eq!(namespace.register(Cred::root(), 1 << 22).unwrap_err(), Errno::INVAL);
    let limits = Limits { semmsl: 40_000, ..Limits::default() };
    let options = NamespaceOptions { limits, ..NamespaceOptions::default() };
    assert_eq!(Namespace::new(options).unwrap_err(), Errno::INVAL);
}

struct Refuse(fn(&Perm) -> bool);

impl SecurityHook for Refuse {
    fn permission(&self, _cred: &Cred, perm: &Perm, _flag: u32) -> Result<(), Errno> {
        if (self.0)(perm) { Err(Errno::CONNREFUSED) } else { Ok(()) }
    }

    fn sem_semctl(&self, _cred: &Cred, perm: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        if perm.is_some() && cmd == IPC_RMID { Err(Errno::CONNREFUSED) } else { Ok(()) }
    }
}

/// The security hook must get a consistent copy of an object's permissions. The copy must stay
/// valid after the object is removed. Trap I1 in `traps.md`.
#[test]
fn hook_is_asked_after_the_mode_and_may_refuse() {
    let hook = Box::new(Refuse(|perm| perm.key == 6));
    let options = NamespaceOptions { hook: Some(hook), ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let good = task.semget(5, 1, GetFlags::CREATE, 0o600).unwrap();
    let bad = task.semget(6, 1, GetFlags::CREATE, 0o600).unwrap();
    assert_eq!(task.semop(good, &[UP]), Ok(()));
    assert_eq!(task.semop(bad, &[UP]), Err(Errno::CONNREFUSED));
    assert_eq!(task.sem_getval(bad, 0), Err(Errno::CONNREFUSED));
    assert_eq!(task.sem_setval(bad, 0, 1), Err(Errno::CONNREFUSED));
    assert_eq!(task.sem_rmid(good), Err(Errno::CONNREFUSED));
    task.set_cred(Cred::user(1, 1));
    assert_eq!(task.semop(bad, &[UP]), Err(Errno::ACCESS), "the mode is checked first");
}

/// Trap I6 (`docs/developing/traps.md`): every kind of operation must set `sem_otime`.
#[test]
fn otime_is_set_by_all_operations() {
    let (_namespace, task) = plain();
    let ways: [&[SemBuf]; 4] = [
        &[UP],
        &[SemBuf::new(0, 0, SemFlags::empty())],
        &[SemBuf::new(0, 1, SemFlags::UNDO)],
        &[UP, SemBuf::new(1, 1, SemFlags::empty())],
    ];
    for sops in ways {
        let id = set(&task, 2);
        assert_eq!(task.sem_stat(id).unwrap().otime_s, 0);
        task.semop(id, sops).unwrap();
        let stat = task.sem_stat(id).unwrap();
        assert!(stat.otime_s >= stat.ctime_s && stat.ctime_s > 0, "{stat:?}");
        task.sem_rmid(id).unwrap();
    }
}

/// `SEM_STAT` with each index from 0 to the maximum must find each set once, and no removed set.
/// Traps I12 and I17 in `traps.md`.
#[test]
fn walk_by_index_finds_every_set_once() {
    let (_namespace, task) = plain();
    let mut ids: Vec<SemId> = (0..100).map(|_| set(&task, 1)).collect();
    let gone: Vec<SemId> = ids.iter().copied().filter(|id| id.raw() % 3 == 0).collect();
    gone.iter().for_each(|id| task.sem_rmid(*id).unwrap());
    ids.retain(|id| !gone.contains(id));
    let totals = task.sem_totals().unwrap();
    assert_eq!((totals.sets, totals.sems), (ids.len() as u32, ids.len() as u64));
    let walk = (0..=totals.index_max).filter_map(|at| task.sem_stat_index(at as i32).ok());
    assert_eq!(walk.map(|stat| stat.id).collect::<Vec<_>>(), ids);
}

/// Every id must be below 2^31, also after the generations of a slot wrap around. Trap I18 in
/// `traps.md`.
#[test]
fn ids_stay_in_their_range() {
    let capacity = Capacity { sets: 1, sems: 1, ..Capacity::default() };
    let (_namespace, task) = with(Limits::default(), capacity);
    let mut seen_again = 0;
    let first = set(&task, 1);
    task.sem_rmid(first).unwrap();
    for _ in 0..70_000 {
        let id = set(&task, 1);
        assert!(id.raw() >= 0);
        assert_eq!(task.sem_stat(id).unwrap().id, id);
        seen_again += u32::from(id == first);
        task.sem_rmid(id).unwrap();
    }
    assert_eq!(seen_again, 1, "65,535 generations");
}
