//! The roles: functions that the tests run.
//!
//! A role is a function that a test runs in a process of its own. It makes plain calls of the C
//! library, and forks the other processes that it needs. It must pass on the host kernel as well.

use corewalk_base::primitives::thread;
use corewalk_testkit::require::{Need, has_root, skip};
use corewalk_testkit::sysv::{self, Sop};
use std::ptr;

use crate::{faults, forks, handed, jump, lookup, memory, proc, shm, signals};

pub(crate) const ROLES: [(&str, fn()); 49] = [
    ("exec", exec),
    ("after_exec", after_exec),
    ("killed", killed),
    ("pid_namespace", pid_namespace),
    ("undo_at_the_end", undo_at_the_end),
    ("vfork", vfork),
    ("fork", fork),
    ("waits", waits),
    ("errors", errors),
    ("by_number", by_number),
    ("credentials", credentials),
    ("thread_credentials", thread_credentials),
    ("threads", threads),
    ("signals_soon", signals::soon),
    ("signals_before_sleep", signals::before_sleep),
    ("signals_kept", signals::kept),
    ("signals_flags", signals::flags),
    ("shm_calls", shm::calls),
    ("shm_by_number", shm::by_number),
    ("shm_fork", shm::fork),
    ("shm_raw_fork", shm::raw_fork),
    ("shm_orphan", shm::orphan),
    ("shm_first_attach", shm::first_attach),
    ("shm_failing_fork", shm::failing_fork),
    ("shm_detach", shm::detach_order),
    ("shm_killed", shm::killed),
    ("shm_exec", shm::exec),
    ("shm_exec_elsewhere", shm::exec_elsewhere),
    ("shm_threads", shm::threads),
    ("signals_vfork", signals::vfork),
    ("signals_jump", jump::jump),
    ("signals_jump_nested", jump::nested),
    ("signals_fork", forks::return_in_both),
    ("vfork_first", forks::vfork_first),
    ("shm_permissions", shm::permissions),
    ("faults_semaphores", faults::semaphores),
    ("faults_queues", faults::queues),
    ("faults_segments", faults::segments),
    ("faults_actions", faults::actions),
    ("faults_gone", faults::gone),
    ("proc_objects", proc::objects),
    ("proc_limits", proc::limits),
    ("proc_ways", proc::ways),
    ("lookup_by_handle", lookup::by_handle),
    ("memory_locked", memory::locked),
    ("handed_closed", handed::closed),
    ("handed_none_left", handed::none_left),
    ("handed_filtered", handed::filtered),
    ("handed_other_user", handed::other_user),
];

const UNDO: i16 = libc::SEM_UNDO as i16;
const NOWAIT: i16 = libc::IPC_NOWAIT as i16;

const LOOKS_MAX: u32 = 1_000_000;

pub(crate) fn set(nsems: i32) -> i32 {
    sysv::semget(libc::IPC_PRIVATE, nsems, 0o600).expect("a set")
}

pub(crate) fn semop(id: i32, sop: Sop) -> Result<i32, i32> {
    let mut sops = sysv::sembufs([sop]);
    sysv::semop_raw(id, &mut sops)
}

pub(crate) fn value(id: i32, num: i32) -> i32 {
    sysv::semctl(id, num, libc::GETVAL, 0).expect("a value")
}

pub(crate) fn remove(id: i32) {
    sysv::semctl(id, 0, libc::IPC_RMID, 0).expect("it is ours");
}

pub(crate) fn child(work: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child has one thread, and exits without returning into the test.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child");
    if pid == 0 {
        let status = work();
        // SAFETY: the call takes a number.
        unsafe { libc::_exit(status) };
    }
    pid
}

pub(crate) fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: the status is ours.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert!(waited == pid || pid == -1, "{waited}");
    status
}

pub(crate) fn exited(status: i32) -> i32 {
    assert!(libc::WIFEXITED(status), "status {status:x}");
    libc::WEXITSTATUS(status)
}

pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..LOOKS_MAX {
        if is() {
            return;
        }
        thread::sleep(std::time::Duration::from_micros(100));
    }
    panic!("never: {what}");
}

unsafe extern "C" {
    /// `quick_exit`(3).
    fn quick_exit(status: libc::c_int) -> !;
}

fn undo_at_the_end() {
    let id = set(1);
    let ends: [(&str, fn()); 4] = [
        // SAFETY: the call takes a number.
        ("exit", || unsafe { libc::exit(0) }),
        // SAFETY: as above.
        ("_exit", || unsafe { libc::_exit(0) }),
        // SAFETY: as above.
        ("quick_exit", || unsafe { quick_exit(0) }),
        ("exit_group", || {
            // SAFETY: as above.
            unsafe { libc::syscall(libc::SYS_exit_group, 0) };
        }),
    ];
    for (name, end) in ends {
        let pid = child(|| {
            let taken = semop(id, (0, 5, UNDO)) == Ok(0) && value(id, 0) == 5;
            if taken {
                end();
            }
            1
        });
        assert_eq!(exited(wait(pid)), 0, "{name}");
        assert_eq!(value(id, 0), 0, "{name}");
        assert_eq!(sysv::semctl(id, 0, libc::GETPID, 0), Ok(pid), "{name}");
    }
    remove(id);
}

fn vfork() {
    let id = set(1);
    let pid = child(|| {
        let is_taken = semop(id, (0, 5, UNDO)) == Ok(0);
        #[expect(deprecated, reason = "programs use it, and posix_spawn(3) does the same")]
        // SAFETY: the child ends at once.
        let inner = unsafe { libc::vfork() };
        if inner == 0 {
            // SAFETY: the call takes a number.
            unsafe { libc::_exit(3) };
        }
        let is_well = is_taken && exited(wait(inner)) == 3 && value(id, 0) == 5;
        i32::from(!is_well)
    });
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(value(id, 0), 0);
    remove(id);
}

fn fork() {
    let id = set(2);
    assert_eq!(semop(id, (0, 5, UNDO)), Ok(0));
    let pid = child(|| i32::from(semop(id, (1, 2, UNDO)) != Ok(0)));
    assert_eq!(exited(wait(pid)), 0);
    // The end of the child must apply the child's undo, but not yet its parent's.
    assert_eq!((value(id, 0), value(id, 1)), (5, 0));
    assert_eq!(sysv::semctl(id, 1, libc::GETPID, 0), Ok(pid));
    // SAFETY: the call takes nothing.
    assert_eq!(sysv::semctl(id, 0, libc::GETPID, 0), Ok(unsafe { libc::getpid() }));
    remove(id);
}

fn waits() {
    let id = set(1);
    let waiter = || {
        let pid = child(|| semop(id, (0, -1, 0)).err().unwrap_or(0));
        until("it waits", || sysv::semctl(id, 0, libc::GETNCNT, 0) == Ok(1));
        pid
    };
    let pid = waiter();
    assert_eq!(semop(id, (0, 1, 0)), Ok(0));
    assert_eq!(exited(wait(pid)), 0, "woken");

    sysv::catch_usr1().expect("a handler");
    let pid = waiter();
    sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is not waited for");
    assert_eq!(exited(wait(pid)), libc::EINTR, "despite SA_RESTART");
    assert_eq!(sysv::semctl(id, 0, libc::GETNCNT, 0), Ok(0));

    let pid = waiter();
    remove(id);
    assert_eq!(exited(wait(pid)), libc::EIDRM, "removed");
}

fn errors() {
    let id = set(2);
    assert_eq!(semop(id, (0, -1, NOWAIT)), Err(libc::EAGAIN));
    assert_eq!(semop(id, (2, 1, 0)), Err(libc::EFBIG));
    assert_eq!(semop(id + 32768, (0, 1, 0)), Err(libc::EINVAL));
    assert_eq!(sysv::semtimedop(id, &[(0, 1, 0); 501], None), Err(libc::E2BIG));
    assert_eq!(sysv::semtimedop(id, &[], None), Err(libc::EINVAL));
    assert_eq!(sysv::semtimedop(id, &[(0, -1, 0)], Some((0, 1_000_000))), Err(libc::EAGAIN));
    for timeout in [(-1, 0), (0, -1), (0, 1_000_000_000)] {
        assert_eq!(sysv::semtimedop(id, &[(0, 1, 0)], Some(timeout)), Err(libc::EINVAL));
    }
    for (id, cmd) in [(id, 99), (id, -1), (-1, libc::IPC_RMID), (-1, libc::IPC_INFO)] {
        assert_eq!(sysv::semctl(id, 0, cmd, 0), Err(libc::EINVAL), "{cmd}");
        assert_eq!(sysv::msg::msgctl(id, cmd), Err(libc::EINVAL), "{cmd}");
    }
    assert_eq!(sysv::semget(9, 1, 0), Err(libc::ENOENT));
    let errno = |result: i32| {
        assert_eq!(result, -1);
        std::io::Error::last_os_error().raw_os_error()
    };
    // SAFETY: null is an address that these calls refuse.
    assert_eq!(errno(unsafe { libc::semop(id, ptr::null_mut(), 1) }), Some(libc::EFAULT));
    for cmd in [libc::GETALL, libc::SETALL, libc::IPC_STAT, libc::IPC_SET, libc::IPC_INFO] {
        let null = ptr::null_mut::<libc::c_void>();
        // SAFETY: as above.
        assert_eq!(errno(unsafe { libc::semctl(id, 0, cmd, null) }), Some(libc::EFAULT), "{cmd}");
    }
    assert_eq!(sysv::setall(id, &[3, 4]), Ok(0));
    assert_eq!(sysv::getall(id, 2), Ok(vec![3, 4]));
    let (_, stat) = sysv::stat(id, libc::IPC_STAT).expect("a set");
    assert_eq!((stat.nsems, stat.mode), (2, 0o600));
    remove(id);
    errors_of_queues(errno);
}

fn errors_of_queues(errno: impl Fn(i32) -> Option<i32>) {
    let null = ptr::null_mut::<libc::c_void>();
    let id = sysv::msg::msgget(libc::IPC_PRIVATE, 0o600).expect("a queue");
    let hello = sysv::msg::Buffer { mtype: 1, text: *b"hello" };
    assert_eq!(sysv::msg::msgsnd(id, &hello, 5, 0), Ok(0));
    // SAFETY: null is an address that these calls refuse.
    assert_eq!(errno(unsafe { libc::msgsnd(id, null, 5, 0) }), Some(libc::EFAULT));
    // SAFETY: as above.
    let received = unsafe { libc::msgrcv(id, null, 5, 0, 0) };
    assert_eq!(errno(received as i32), Some(libc::EFAULT));
    for cmd in [libc::IPC_STAT, libc::IPC_SET, libc::IPC_INFO] {
        // SAFETY: as above.
        let done = unsafe { libc::msgctl(id, cmd, null.cast()) };
        assert_eq!(errno(done), Some(libc::EFAULT), "{cmd}");
    }
    // SAFETY: the command takes no address.
    assert_eq!(unsafe { libc::msgctl(id, libc::IPC_RMID, null.cast()) }, 0);
    // SAFETY: as above.
    assert_eq!(errno(unsafe { libc::msgctl(id, libc::IPC_RMID, null.cast()) }), Some(libc::EINVAL));
}

/// syscall(2) with six arguments.
fn call(number: libc::c_long, arguments: &[usize]) -> libc::c_long {
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    // SAFETY: callers pass the arguments that the system call expects. Each address among them
    // points to a value that lives during the call.
    unsafe { libc::syscall(number, at(0), at(1), at(2), at(3), at(4), at(5)) }
}

fn by_number() {
    let last_errno = || std::io::Error::last_os_error().raw_os_error();
    let id = call(libc::SYS_semget, &[libc::IPC_PRIVATE as usize, 1, 0o600]) as usize;
    let mut sop = sysv::sembufs([(0, 3, 0)]);
    let sops = sop.as_mut_ptr().expose_provenance();
    assert_eq!(call(libc::SYS_semop, &[id, sops, 1]), 0);
    assert_eq!(call(libc::SYS_semtimedop, &[id, sops, 1, 0]), 0);
    assert_eq!(call(libc::SYS_semctl, &[id, 0, libc::GETVAL as usize]), 6);
    assert_eq!(value(id as i32, 0), 6, "the same objects");
    assert_eq!(call(libc::SYS_semctl, &[id, 0, libc::IPC_RMID as usize]), 0);
    assert_eq!(call(libc::SYS_semctl, &[id, 0, libc::GETVAL as usize]), -1);
    assert_eq!(last_errno(), Some(libc::EINVAL));
    // System calls that the library does not handle must reach the C library with all of their
    // arguments.
    assert_eq!(call(libc::SYS_getpid, &[]), i64::from(std::process::id()));
    assert_eq!(call(libc::SYS_close, &[usize::MAX]), -1);
    assert_eq!(last_errno(), Some(libc::EBADF));
    assert_eq!(call(libc::c_long::MAX, &[]), -1);
    assert_eq!(last_errno(), Some(libc::ENOSYS));
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    let access = libc::PROT_READ as usize;
    // mmap(2) has six arguments. The last one is an offset, which has to be a multiple of the page
    // size.
    let mapped = |offset| call(libc::SYS_mmap, &[0, 4096, access, flags, usize::MAX, offset]);
    assert_eq!((mapped(1), last_errno()), (-1, Some(libc::EINVAL)));
    assert!(mapped(0) > 0);
}

fn credentials() {
    if !has_root() {
        return;
    }
    let id = set(1);
    assert_eq!(semop(id, (0, 1, 0)), Ok(0));
    let pid = child(|| {
        let before = semop(id, (0, 1, 0));
        let changed = sysv::act_as(1000, 1000);
        let refused = semop(id, (0, 1, 0));
        // Become root again by syscall(2).
        // SAFETY: the call takes numbers.
        let back = unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) };
        let again = semop(id, (0, 1, 0));
        let is_well = before == Ok(0) && changed == Ok(0) && refused == Err(libc::EACCES);
        i32::from(!is_well || back != 0 || again != Ok(0))
    });
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(value(id, 0), 3);
    remove(id);
}

/// A change of credentials by syscall(2) must change only the calling thread, and the threads that
/// it creates later.
fn thread_credentials() {
    if !has_root() {
        return;
    }
    let id = set(1);
    let up = move || semop(id, (0, 1, 0));
    let (told, go_on) = (pipe(), pipe());
    assert_eq!(up(), Ok(0));
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let before = up();
            // SAFETY: the call takes numbers.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, 1000, -1) };
            let own = up();
            let child = thread::spawn(up).join();
            tell(told, 0);
            hear(go_on);
            let child = child.map_err(drop);
            ((before, changed), (own, child), up())
        });
        hear(told);
        let main = up();
        let made = thread::spawn(up).join().map_err(drop);
        // seteuid(2) of the C library changes all threads.
        // SAFETY: the call takes a number.
        let back = unsafe { libc::seteuid(0) };
        tell(go_on, 0);
        let refused = Err(libc::EACCES);
        let ended = other.join().expect("no panic");
        assert_eq!(ended, ((Ok(0), 0), (refused, Ok(refused)), Ok(0)));
        assert_eq!((main, made, back), (Ok(0), Ok(Ok(0)), 0), "others are what they were");
    });
    assert_eq!(value(id, 0), 5);
    remove(id);
}

fn threads() {
    let id = set(4);
    thread::scope(|scope| {
        for num in 0..4 {
            scope.spawn(move || {
                for _ in 0..1000 {
                    assert_eq!(semop(id, (num, 1, UNDO)), Ok(0));
                    assert_eq!(semop(id, (num, -1, UNDO)), Ok(0));
                }
                assert_eq!(semop(id, (num, 1, UNDO)), Ok(0));
            });
        }
    });
    // The end of a thread must apply no undo.
    assert_eq!(sysv::getall(id, 4), Ok(vec![1; 4]));
    remove(id);
}

const SET_ENV: &str = "COREWALK_PRELOAD_SET";

fn exec() {
    use std::os::unix::process::CommandExt as _;
    let id = set(1);
    let pid = child(|| {
        if semop(id, (0, 5, UNDO)) != Ok(0) {
            return 1;
        }
        let mut program = crate::process::command("after_exec");
        let error = program.env(SET_ENV, id.to_string()).exec();
        println!("{error}");
        2
    });
    assert_eq!(exited(wait(pid)), 0);
    // The undo of both programs must have been applied.
    assert_eq!(value(id, 0), 0);
    remove(id);
}

/// The program that the role `exec` starts by execve(2). It must still have the undo of the
/// previous program. Without `SET_ENV` it does nothing.
fn after_exec() {
    let Ok(id) = std::env::var(SET_ENV) else { return };
    let id = id.parse().expect("a number");
    assert_eq!(value(id, 0), 5, "undo survives exec");
    assert_eq!(semop(id, (0, 2, UNDO)), Ok(0));
    let pid = child(|| i32::from(value(id, 0) != 7));
    assert_eq!(exited(wait(pid)), 0);
}

fn killed() {
    let id = set(2);
    let pid = child(|| {
        let taken = [semop(id, (0, 5, UNDO)), semop(id, (1, 1, UNDO))];
        // SAFETY: the call takes numbers.
        unsafe { libc::raise(libc::SIGKILL) };
        i32::from(taken != [Ok(0); 2])
    });
    let status = wait(pid);
    assert!(libc::WIFSIGNALED(status), "status {status:x}");
    assert_eq!(value(id, 0), 0, "seen by who asks");

    // The killed process had also raised semaphore 1. Its undo must be applied there, too, so that
    // a wait for zero returns.
    let waiter = child(|| semop(id, (1, 0, 0)).err().unwrap_or(0));
    assert_eq!(exited(wait(waiter)), 0);
    remove(id);
}

/// Returns a pipe: the read end, then the write end.
pub(crate) fn pipe() -> [i32; 2] {
    let mut ends = [0; 2];
    // SAFETY: there is room for both.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    ends
}

pub(crate) fn tell(pipe: [i32; 2], byte: u8) {
    // SAFETY: the byte lives during the call.
    assert_eq!(unsafe { libc::write(pipe[1], ptr::from_ref(&byte).cast(), 1) }, 1);
}

pub(crate) fn hear(pipe: [i32; 2]) -> u8 {
    let mut byte = 0;
    // SAFETY: the byte is ours.
    assert_eq!(unsafe { libc::read(pipe[0], ptr::from_mut(&mut byte).cast(), 1) }, 1);
    byte
}

/// A process in another pid namespace makes a semop(2) with `SEM_UNDO`. On the host kernel the call
/// succeeds. With the library it fails with `ENOSYS`, and changes nothing.
fn pid_namespace() {
    let id = set(1);
    assert_eq!(semop(id, (0, 1, 0)), Ok(0));
    let (told, go_on) = (pipe(), pipe());
    let pid = child(|| {
        // SAFETY: the call takes a number.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            tell(told, b's');
            return 0;
        }
        // The first child is init(8) of the new pid namespace. Further processes can be created
        // there only while it lives.
        let init = child(|| {
            hear(go_on);
            0
        });
        let holder = child(|| {
            let taken = semop(id, (0, -1, UNDO));
            tell(told, if taken == Err(libc::ENOSYS) { b'r' } else { b't' });
            hear(go_on);
            i32::from(![Ok(0), Err(libc::ENOSYS)].contains(&taken))
        });
        let status = exited(wait(holder));
        wait(init);
        status
    });
    let what = hear(told);
    let seen = value(id, 0);
    tell(go_on, 0);
    tell(go_on, 0);
    assert_eq!(exited(wait(pid)), 0);
    match what {
        b's' => skip(Need::Kernel, "no PID namespace can be made"),
        b't' => assert_eq!(seen, 0, "it has been taken"),
        _ => assert_eq!(seen, 1, "it was refused"),
    }
    assert_eq!(value(id, 0), 1);
    remove(id);
}
