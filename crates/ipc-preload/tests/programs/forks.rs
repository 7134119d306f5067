//! Roles (functions that tests run in processes of their own) that fork in a signal handler or by
//! vfork(2). They must pass on the host kernel as well.

use corewalk_base::primitives::unmodelled::{AtomicI64, Ordering};
use corewalk_testkit::sysv;
use corewalk_testkit::sysv::msg::{self, Buffer};
use std::ffi::c_void;
use std::ptr;

use crate::roles::{child, exited, hear, pipe, remove, semop, set, tell, until, value, wait};
use crate::signals::{action, install};

// ORDERING: Relaxed. Only one thread, its signal handler and its children use the statics of this
// file.
const RELAXED: Ordering = Ordering::Relaxed;

const UNDO: i16 = libc::SEM_UNDO as i16;

const ALARM_S: u32 = 60;

/// The call that a process waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Semop,
    Receive,
    Send,
}

/// A semaphore set and a queue, at which processes wait by `call`. Semaphore 1 counts the processes
/// that were started.
#[derive(Clone, Copy)]
struct Place {
    call: Call,
    sems: i32,
    queue: i32,
}

impl Place {
    fn new(call: Call) -> Self {
        let queue = msg::msgget(libc::IPC_PRIVATE, 0o600).expect("a queue");
        let place = Self { call, sems: set(2), queue };
        if call == Call::Send {
            // SAFETY: the call takes nothing.
            let uid = unsafe { libc::geteuid() };
            // SAFETY: as above.
            let gid = unsafe { libc::getegid() };
            assert_eq!(msg::set(queue, uid, gid, 0o600, 4), Ok(0));
            assert_eq!(place.send(), Ok(0));
        }
        place
    }

    fn send(self) -> Result<i32, i32> {
        msg::msgsnd(self.queue, &Buffer { mtype: 1, text: *b"text" }, 4, 0)
    }

    fn receive(self) -> Result<i32, i32> {
        let mut buffer = Buffer { mtype: 0, text: [0; 4] };
        msg::msgrcv(self.queue, &mut buffer, 4, 0, 0).map(|_| 0)
    }

    /// Makes the call, which waits.
    fn wait(self) -> Result<i32, i32> {
        // SAFETY: the call takes a number.
        unsafe { libc::alarm(ALARM_S) };
        match self.call {
            Call::Semop => semop(self.sems, (0, -1, 0)),
            Call::Receive => self.receive(),
            Call::Send => self.send(),
        }
    }

    /// Lets one call go on.
    fn grant(self) -> Result<i32, i32> {
        match self.call {
            Call::Semop => semop(self.sems, (0, 1, 0)),
            Call::Receive => self.send(),
            Call::Send => self.receive(),
        }
    }

    fn waiter(self, then: impl FnOnce(Result<i32, i32>) -> i32) -> i32 {
        let there = value(self.sems, 1) + 1;
        let pid = child(|| {
            let is_there = semop(self.sems, (1, 1, 0));
            let waited = self.wait();
            if is_there == Ok(0) { then(waited) } else { 99 }
        });
        until("it waits", || value(self.sems, 1) == there && is_asleep(pid));
        pid
    }

    fn remove(self) {
        remove(self.sems);
        assert_eq!(msg::msgctl(self.queue, libc::IPC_RMID), Ok(0));
    }
}

pub(crate) fn is_asleep(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with('S'))
}

static BY_NUMBER: AtomicI64 = AtomicI64::new(0);
static PIPES: [AtomicI64; 2] = [const { AtomicI64::new(0) }; 2];

extern "C" fn forks(_signal: libc::c_int) {
    let pid = if BY_NUMBER.load(RELAXED) == 0 {
        // SAFETY: the child returns from the signal handler and then ends.
        unsafe { libc::fork() }
    } else {
        // SAFETY: clone(2) with these flags is a fork. The child has a copy of the parent's memory,
        // and ends after its return from the signal handler.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 }
    };
    if pid > 0 {
        let status = wait(pid);
        let is_well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == libc::EINTR;
        let [told, go_on] = [0, 1].map(|at| PIPES[at].load(RELAXED) as i32);
        tell([-1, told], u8::from(is_well));
        hear([go_on, -1]);
    }
}

/// After a fork in a signal handler, the interrupted call must end with `EINTR` in parent and
/// child. It must take no later unit or message.
pub(crate) fn return_in_both() {
    for call in [Call::Semop, Call::Receive, Call::Send] {
        for by_number in [0, 1] {
            BY_NUMBER.store(by_number, RELAXED);
            for is_granted_before in [false, true] {
                fork_in(call, is_granted_before);
            }
        }
    }
}

fn fork_in(call: Call, is_granted_before: bool) {
    let is_ours = std::env::var_os("LD_PRELOAD").is_some();
    let place = Place::new(call);
    let (told, go_on) = (pipe(), pipe());
    PIPES[0].store(told[1].into(), RELAXED);
    PIPES[1].store(go_on[0].into(), RELAXED);
    install(libc::SIGUSR1, Some(&action(forks as *const () as usize, 0)));
    let pid = place.waiter(|waited| waited.err().unwrap_or(0));
    sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is not waited for");
    let what = format!("{call:?}, by number: {}", BY_NUMBER.load(RELAXED));
    assert_eq!(hear(told), 1, "the child: {what}");
    if is_ours && call == Call::Semop {
        // Until the parent's signal handler returns, the library counts the interrupted semop(2) as
        // waiting. The host kernel does not.
        assert_eq!(sysv::semctl(place.sems, 0, libc::GETNCNT, 0), Ok(1), "it waits on: {what}");
    }
    if is_granted_before {
        assert_eq!(place.grant(), Ok(0));
        tell(go_on, 0);
        assert_eq!(exited(wait(pid)), libc::EINTR, "the parent: {what}");
        assert_eq!(place.wait(), Ok(0), "it is for the next: {what}");
    } else {
        let other = place.waiter(|waited| waited.err().unwrap_or(0));
        tell(go_on, 0);
        assert_eq!(exited(wait(pid)), libc::EINTR, "the parent: {what}");
        assert_eq!(place.grant(), Ok(0));
        assert_eq!(exited(wait(other)), 0, "another: {what}");
    }
    let ends = [told, go_on].concat();
    // SAFETY: the pipes are ours.
    ends.into_iter().for_each(|fd| assert_eq!(unsafe { libc::close(fd) }, 0));
    place.remove();
}

static SET: AtomicI64 = AtomicI64::new(0);
static ERRNO: AtomicI64 = AtomicI64::new(0);

extern "C" fn first_call(_: *mut c_void) -> libc::c_int {
    let called = semop(SET.load(RELAXED) as i32, (0, 1, UNDO));
    ERRNO.store(called.err().unwrap_or(0).into(), RELAXED);
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(5) }
}

extern "C" fn other_user(_: *mut c_void) -> libc::c_int {
    // SAFETY: the call takes a number.
    let changed = unsafe { libc::setuid(1000) };
    // Ignore the result. It depends on the credentials that count for this child
    // (docs/using/ipc.md). The test checks only later calls of the parent.
    let _value = sysv::semctl(SET.load(RELAXED) as i32, 1, libc::GETVAL, 0);
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(changed) }
}

fn vforked(work: extern "C" fn(*mut c_void) -> libc::c_int) -> i32 {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut stack = vec![0u128; 1 << 14];
    let top = stack.as_mut_ptr_range().end.cast();
    // SAFETY: the child uses its own stack, and has ended or execed when the call returns.
    unsafe { libc::clone(work, top, flags, ptr::null_mut()) }
}

/// A child of vfork(2) makes a call before its parent has made one, and must get `ENOSYS`. The
/// parent's first call must then register the parent.
pub(crate) fn vfork_first() {
    let is_ours = std::env::var_os("LD_PRELOAD").is_some();
    let id = set(2);
    SET.store(id.into(), RELAXED);
    let pid = child(|| {
        let inner = vforked(first_call);
        let mut is_well = exited(wait(inner)) == 5;
        is_well &= ERRNO.load(RELAXED) == if is_ours { libc::ENOSYS.into() } else { 0 };
        is_well &= semop(id, (1, 2, UNDO)) == Ok(0);
        // SAFETY: the call takes nothing.
        is_well &= sysv::semctl(id, 1, libc::GETPID, 0) == Ok(unsafe { libc::getpid() });
        is_well &= value(id, 0) == 0 && value(id, 1) == 2;
        // SAFETY: the call takes nothing.
        if unsafe { libc::geteuid() } == 0 {
            is_well &= exited(wait(vforked(other_user))) == 0;
            is_well &= semop(id, (1, 1, UNDO)) == Ok(0);
        }
        i32::from(!is_well)
    });
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(sysv::getall(id, 2), Ok(vec![0, 0]));
    assert_eq!(sysv::semctl(id, 1, libc::GETPID, 0), Ok(pid));
    remove(id);
}
