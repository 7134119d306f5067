//! Tests that each errno of the man pages of message queues occurs as documented. A limit must
//! refuse calls only while it is reached. Each call must ask the security hook.

use corewalk_base::primitives::thread;
use corewalk_ipc::{
    CAP_IPC_OWNER, CAP_SYS_ADMIN, CAP_SYS_RESOURCE, Capacity, Cred, GetFlags, IPC_PRIVATE,
    IPC_RMID, Limits, MsgFlags, MsgId, MsgStat, Namespace, NamespaceOptions, Perm, SecurityHook,
    Task,
};
use corewalk_testkit::sysv;
use rustix::io::Errno;

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

fn with(limits: Limits, capacity: Capacity) -> (Namespace, Task) {
    let options = NamespaceOptions { limits, capacity, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    (namespace, task)
}

fn plain() -> (Namespace, Task) {
    with(Limits::default(), Capacity::default())
}

fn queue(task: &Task) -> MsgId {
    task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap()
}

fn receive(
    task: &Task,
    id: MsgId,
    size: usize,
    msgtyp: i64,
    flags: MsgFlags,
) -> Result<i64, Errno> {
    task.msgrcv(id, &mut vec![0; size], msgtyp, flags).map(|received| received.mtype)
}

#[test]
fn msgget_fails_as_its_man_page_says() {
    let limits = Limits { msgmni: 2, ..Limits::default() };
    let (namespace, root) = with(limits, Capacity::default());
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = root.msgget(1, GetFlags::CREATE, 0o600).unwrap();
    assert_eq!(user.msgget(1, GetFlags::empty(), 0o600), Err(Errno::ACCESS));
    assert_eq!(user.msgget(1, GetFlags::empty(), 0), Ok(id), "no permission is asked for");
    assert_eq!(
        user.msgget(1, GetFlags::CREATE | GetFlags::EXCLUSIVE, 0o600),
        Err(Errno::EXIST),
        "checked before EACCES"
    );
    assert_eq!(root.msgget(2, GetFlags::EXCLUSIVE, 0o600), Err(Errno::NOENT));
    let other = queue(&root);
    assert_eq!(root.msgget(2, GetFlags::CREATE, 0o600), Err(Errno::NOSPC));
    root.msg_rmid(other).unwrap();
    assert!(root.msgget(2, GetFlags::CREATE, 0o600).is_ok());
}

#[test]
fn msgsnd_and_msgrcv_fail_as_their_man_page_says() {
    let (namespace, root) = plain();
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = queue(&root);
    for bad in [-1, id.raw() + 1, id.raw() + 32_768, i32::MAX, i32::MIN].map(MsgId::from_raw) {
        assert_eq!(root.msgsnd(bad, 1, b"", MsgFlags::empty()), Err(Errno::INVAL), "{bad}");
        assert_eq!(receive(&root, bad, 0, 0, NOWAIT), Err(Errno::INVAL), "{bad}");
    }
    for mtype in [0, -1, i64::MIN] {
        assert_eq!(
            user.msgsnd(id, mtype, b"", MsgFlags::empty()),
            Err(Errno::INVAL),
            "checked before EACCES"
        );
    }
    assert_eq!(
        user.msgsnd(id, 1, &[0; 8193], MsgFlags::empty()),
        Err(Errno::INVAL),
        "checked before EACCES"
    );
    assert_eq!(user.msgsnd(id, 1, b"", MsgFlags::empty()), Err(Errno::ACCESS));
    assert_eq!(receive(&user, id, 0, 0, NOWAIT), Err(Errno::ACCESS), "checked before ENOMSG");
    assert_eq!(receive(&root, id, 0, 0, NOWAIT), Err(Errno::NOMSG));
    root.msgsnd(id, 3, &[0; 8192], MsgFlags::empty()).unwrap();
    assert_eq!(receive(&root, id, 8191, 0, NOWAIT), Err(Errno::TOOBIG));
    root.msgsnd(id, 3, &[0; 8192], MsgFlags::empty()).unwrap();
    assert_eq!(root.msgsnd(id, 3, b"", NOWAIT), Ok(()));
    assert_eq!(root.msgsnd(id, 3, b"x", NOWAIT), Err(Errno::AGAIN));
    for flags in [MsgFlags::COPY, MsgFlags::COPY | NOWAIT | MsgFlags::EXCEPT] {
        assert_eq!(receive(&user, id, 0, 0, flags), Err(Errno::INVAL), "checked before EACCES");
    }
    let copy = MsgFlags::COPY | NOWAIT;
    assert_eq!(receive(&root, id, 10, 0, copy), Err(Errno::TOOBIG));
    assert_eq!(receive(&root, id, 10, 0, copy | MsgFlags::NOERROR), Err(Errno::INVAL));
    assert_eq!(receive(&root, id, 10, 3, copy), Err(Errno::NOMSG));
    assert_eq!(receive(&root, id, 0, 2, copy), Ok(3));
    assert_eq!(root.msg_stat(id).unwrap().qnum, 3, "a copy takes nothing");
}

#[test]
fn msgctl_fails_as_its_man_page_says() {
    let (namespace, root) = plain();
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = queue(&root);
    assert_eq!(user.msg_stat(id), Err(Errno::ACCESS));
    assert_eq!(user.msg_stat_index(id.raw()), Err(Errno::ACCESS));
    assert_eq!(user.msg_stat_any(id.raw()).map(|stat| stat.qbytes), Ok(16_384));
    assert_eq!(user.msg_rmid(id), Err(Errno::PERM));
    assert_eq!(user.msg_set(id, 1000, 1000, 0o600, 1), Err(Errno::PERM));
    assert_eq!(root.msg_set(id, u32::MAX, 0, 0o600, 1), Err(Errno::INVAL));
    assert_eq!(root.msg_stat_any(-1), Err(Errno::INVAL));
    assert_eq!(root.msg_stat_any(id.raw() + 1), Err(Errno::INVAL));
    root.msg_set(id, 1000, 1000, 0o7640, 100).unwrap();
    let stat: MsgStat = user.msg_stat(id).unwrap();
    assert_eq!((stat.perm.uid, stat.perm.cuid, stat.perm.mode), (1000, 0, 0o640));
    assert_eq!((stat.qbytes, stat.lspid, stat.stime_s), (100, 0, 0));
    user.msg_rmid(id).unwrap();
    assert_eq!(root.msg_rmid(id), Err(Errno::INVAL));
}

#[test]
fn capabilities_override_mode_owner_and_limit() {
    let (namespace, root) = plain();
    let id = root.msgget(IPC_PRIVATE, GetFlags::empty(), 0).unwrap();
    let task = namespace.register(Cred::user(1, 1), 2).unwrap();
    let act_with = |caps| task.set_cred(Cred { caps, ..Cred::user(1, 1) });
    act_with(CAP_IPC_OWNER);
    assert_eq!(task.msgsnd(id, 1, b"", MsgFlags::empty()), Ok(()));
    assert_eq!(task.msg_rmid(id), Err(Errno::PERM));
    act_with(CAP_SYS_ADMIN);
    assert_eq!(receive(&task, id, 0, 0, MsgFlags::empty()), Err(Errno::ACCESS));
    assert_eq!(task.msg_set(id, 1, 1, 0o600, 16_384), Ok(()));
    assert_eq!(task.msg_set(id, 1, 1, 0o600, 16_385), Err(Errno::PERM));
    act_with(CAP_SYS_RESOURCE);
    assert_eq!(task.msg_set(id, 1, 1, 0o600, 16_385), Ok(()));
    assert_eq!(task.msg_stat(id).unwrap().qbytes, 16_385);
}

fn wait_then<T: Send>(other: &Task, call: impl FnOnce(&Task) -> T + Send, act: impl FnOnce()) -> T {
    thread::scope(|scope| {
        let waits = scope.spawn(|| call(other));
        while other.waiting() == 0 && !waits.is_finished() {
            thread::yield_now();
        }
        act();
        waits.join().unwrap()
    })
}

#[test]
fn wait_ends_with_eidrm_eintr_eacces_e2big() {
    let (namespace, root) = plain();
    let user = namespace.register(Cred::user(1000, 1000), 2).unwrap();
    let id = root.msgget(IPC_PRIVATE, GetFlags::empty(), 0o666).unwrap();
    root.msg_set(id, 0, 0, 0o666, 10).unwrap();
    let waits = |task: &Task| receive(task, id, 2, 7, MsgFlags::empty());
    let sends = |task: &Task| task.msgsnd(id, 1, &[0; 10], MsgFlags::empty());
    let interrupt = || assert_eq!(user.interrupt(), 1);
    assert_eq!(wait_then(&user, waits, interrupt), Err(Errno::INTR));
    let long = || root.msgsnd(id, 7, b"long", MsgFlags::empty()).unwrap();
    assert_eq!(wait_then(&user, waits, long), Err(Errno::TOOBIG));
    assert_eq!(wait_then(&user, sends, interrupt), Err(Errno::INTR));
    let refuse = |qbytes| move |root: &Task| root.msg_set(id, 0, 0, 0o600, qbytes).unwrap();
    let allow = || root.msg_set(id, 0, 0, 0o666, 10).unwrap();
    let others = |task: &Task| receive(task, id, 2, 8, MsgFlags::empty());
    assert_eq!(wait_then(&user, others, || refuse(10)(&root)), Err(Errno::ACCESS));
    allow();
    assert_eq!(wait_then(&user, sends, || refuse(14)(&root)), Err(Errno::ACCESS));
    allow();
    let goes_on = || root.msg_set(id, 0, 0, 0o666, 14).unwrap();
    assert_eq!(wait_then(&user, sends, goes_on), Ok(()));
    assert_eq!(root.msg_stat(id).unwrap().qnum, 2);
    let removed = queue(&root);
    root.msg_set(removed, 1000, 0, 0o600, 0).unwrap();
    let waits = |task: &Task| receive(task, removed, 2, 7, MsgFlags::empty());
    assert_eq!(wait_then(&user, waits, || root.msg_rmid(removed).unwrap()), Err(Errno::IDRM));
    let sends = |task: &Task| task.msgsnd(id, 1, &[0; 10], MsgFlags::empty());
    assert_eq!(wait_then(&user, sends, || root.msg_rmid(id).unwrap()), Err(Errno::IDRM));
    assert_eq!(user.interrupt(), 0);
}

/// A signal must end msgsnd(2) and msgrcv(2) with `EINTR`, although `SA_RESTART` restarts other
/// system calls.
#[test]
fn signal_ends_a_wait_with_eintr() {
    sysv::catch_usr1().unwrap();
    let (_namespace, task) = plain();
    let id = queue(&task);
    let ended = thread::scope(|scope| {
        let (send, number) = std::sync::mpsc::channel();
        let task = &task;
        let waits = scope.spawn(move || {
            send.send(sysv::thread_id()).unwrap();
            receive(task, id, 0, 0, MsgFlags::empty())
        });
        let number = number.recv().unwrap();
        // A signal that arrives before the wait does not end the wait, so send signals until the
        // call ends.
        while !waits.is_finished() {
            if task.waiting() != 0 {
                sysv::send_usr1(std::process::id(), number).unwrap();
            }
            thread::yield_now();
        }
        waits.join().unwrap()
    });
    assert_eq!(ended, Err(Errno::INTR));
}

#[test]
fn capacity_that_is_used_up_is_enomem_and_recovers() {
    let capacity = Capacity { queues: 2, msgs: 8, waits: 1, tasks: 2, ..Capacity::LEAST };
    let (_namespace, task) = with(Limits::default(), capacity);
    let id = queue(&task);
    assert_eq!(task.msgsnd(id, 1, &[0; 8192], MsgFlags::empty()), Err(Errno::NOMEM));
    // A waiting call takes two lines (of 64 bytes) of the pool of wait nodes, and only one line of
    // that pool is free.
    assert_eq!(receive(&task, id, 0, 0, MsgFlags::empty()), Err(Errno::NOMEM));
    task.msgsnd(id, 1, &[1; 400], MsgFlags::empty()).unwrap();
    assert_eq!(task.msgsnd(id, 1, b"", MsgFlags::empty()), Err(Errno::NOMEM));
    assert_eq!(receive(&task, id, 400, 0, MsgFlags::empty()), Ok(1));
    task.msgsnd(id, 1, &[1; 400], MsgFlags::empty()).unwrap();
    task.msg_rmid(id).unwrap();
    task.msgsnd(queue(&task), 1, &[1; 400], MsgFlags::empty()).unwrap();
}

#[test]
fn limit_of_a_message_is_that_of_the_namespace() {
    let limits = Limits { msgmax: 4, msgmnb: 5, ..Limits::default() };
    let (_namespace, task) = with(limits, Capacity::default());
    let id = queue(&task);
    assert_eq!(task.msgsnd(id, 1, b"12345", MsgFlags::empty()), Err(Errno::INVAL));
    task.msgsnd(id, 1, b"1234", MsgFlags::empty()).unwrap();
    assert_eq!(task.msgsnd(id, 1, b"12", NOWAIT), Err(Errno::AGAIN));
    let options = NamespaceOptions {
        limits: Limits { msgmax: 1 << 21, ..Limits::default() },
        ..NamespaceOptions::default()
    };
    assert_eq!(Namespace::new(options).unwrap_err(), Errno::INVAL);
}

/// A security hook that refuses some objects, message types and commands.
struct Refuse;

impl SecurityHook for Refuse {
    fn msg_msgsnd(&self, _: &Cred, perm: &Perm, _: MsgFlags) -> Result<(), Errno> {
        if perm.key == 6 { Err(Errno::CONNREFUSED) } else { Ok(()) }
    }

    fn msg_msgrcv(&self, _: &Cred, _: &Perm, msgtyp: i64) -> Result<(), Errno> {
        if msgtyp == 9 { Err(Errno::CONNREFUSED) } else { Ok(()) }
    }

    fn msg_msgctl(&self, _: &Cred, _: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        if cmd == IPC_RMID { Err(Errno::CONNREFUSED) } else { Ok(()) }
    }
}

/// The security hook must get a consistent copy of an object's permissions. The copy must stay
/// valid after the object is removed. Trap I1 in `traps.md`.
#[test]
fn hook_is_asked_after_the_mode_and_may_refuse() {
    let options = NamespaceOptions { hook: Some(Box::new(Refuse)), ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let bad = task.msgget(6, GetFlags::CREATE, 0o600).unwrap();
    let good = queue(&task);
    assert_eq!(task.msgsnd(bad, 1, b"", MsgFlags::empty()), Err(Errno::CONNREFUSED));
    assert_eq!(task.msgsnd(good, 1, b"", MsgFlags::empty()), Ok(()));
    assert_eq!(receive(&task, good, 0, 9, MsgFlags::empty()), Err(Errno::CONNREFUSED));
    assert_eq!(task.msg_rmid(good), Err(Errno::CONNREFUSED));
    task.set_cred(Cred::user(1, 1));
    assert_eq!(
        task.msgsnd(bad, 1, b"", MsgFlags::empty()),
        Err(Errno::ACCESS),
        "the mode is checked first"
    );
}

/// A message must update the times and pids of its queue, whether it goes straight to a waiting
/// receiver or through the queue. Trap I6 in `traps.md`.
#[test]
fn times_and_pids_are_set_with_and_without_a_waiting_receiver() {
    let (namespace, one) = plain();
    let other = namespace.register(Cred::root(), 2).unwrap();
    let id = queue(&one);
    let received = wait_then(
        &other,
        |other| receive(other, id, 8, 0, MsgFlags::empty()),
        || one.msgsnd(id, 1, b"", MsgFlags::empty()).unwrap(),
    );
    assert_eq!(received, Ok(1));
    let stat = one.msg_stat(id).unwrap();
    assert_eq!((stat.lspid, stat.lrpid), (1, 2));
    assert!(stat.stime_s >= stat.ctime_s && stat.rtime_s >= stat.ctime_s && stat.ctime_s > 0);
    other.msgsnd(id, 1, b"", MsgFlags::empty()).unwrap();
    receive(&one, id, 0, 0, MsgFlags::empty()).unwrap();
    let stat = one.msg_stat(id).unwrap();
    assert_eq!((stat.lspid, stat.lrpid), (2, 1));
}

/// A walk by index must find each queue once, and no removed queue. Traps I12 and I17 in
/// `traps.md`.
#[test]
fn walk_by_index_finds_every_queue_once() {
    let (_namespace, task) = plain();
    let mut ids: Vec<MsgId> = (0..100).map(|_| queue(&task)).collect();
    let gone: Vec<MsgId> = ids.iter().copied().filter(|id| id.raw() % 3 == 0).collect();
    gone.iter().for_each(|id| task.msg_rmid(*id).unwrap());
    ids.retain(|id| !gone.contains(id));
    let totals = task.msg_totals().unwrap();
    assert_eq!(totals.queues, ids.len() as u32);
    let walk = (0..=totals.index_max).filter_map(|at| task.msg_stat_index(at as i32).ok());
    assert_eq!(walk.map(|stat| stat.id).collect::<Vec<_>>(), ids);
}
