//! Roles (functions that tests run in processes of their own). Some lose the right to open the
//! namespace's file, others close all descriptors that they did not open. Calls must still work.

use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::sysv;
use std::os::unix::process::CommandExt as _;

use crate::process::command;
use crate::roles::{child, exited, remove, semop, set, wait};

unsafe extern "C" {
    /// closefrom(3).
    fn closefrom(first: libc::c_int);
}

/// Numbers of the descriptors that a role closes one by one.
const NUMBERS: std::ops::Range<i32> = 3..2048;

type Way = (&'static str, fn());

const WAYS: [Way; 8] = [
    ("close", || {
        for fd in NUMBERS {
            // SAFETY: this process uses none of these descriptors any more.
            unsafe { libc::close(fd) };
        }
    }),
    ("close_range", || {
        // SAFETY: as above.
        unsafe { libc::close_range(3, u32::MAX, 0) };
    }),
    ("CLOSE_RANGE_CLOEXEC", || {
        // SAFETY: as above.
        unsafe { libc::close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC as i32) };
    }),
    // SAFETY: as above.
    ("closefrom", || unsafe { closefrom(3) }),
    ("F_SETFD", || {
        for fd in NUMBERS {
            // SAFETY: the call takes numbers.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }),
    ("FIOCLEX", || {
        for fd in NUMBERS {
            // SAFETY: the call takes numbers.
            unsafe { libc::ioctl(fd, libc::FIOCLEX) };
        }
    }),
    ("SYS_close", || {
        for fd in NUMBERS {
            // SAFETY: as for close(2).
            unsafe { libc::syscall(libc::SYS_close, fd) };
        }
    }),
    ("SYS_close_range", || {
        // SAFETY: as for close(2).
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    }),
];

/// A program must reach the namespace even if the previous program of its process closed all
/// descriptors before execve(2).
pub(crate) fn closed() {
    for (name, close) in WAYS {
        let pid = child(|| {
            close();
            println!("{}", command("by_number").exec());
            1
        });
        assert_eq!(exited(wait(pid)), 0, "{name}");
    }
}

/// The first IPC call must succeed even if the process can open no descriptor.
pub(crate) fn none_left() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limits are ours.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) }, 0);
    calls();
}

/// The first IPC call must open no file: the role's seccomp filter kills a process that opens one.
pub(crate) fn filtered() {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let ret = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, k| libc::sock_filter { code, jt, jf: 0, k };
    let calls_that_open = [libc::SYS_openat, libc::SYS_openat2, libc::SYS_open_by_handle_at];
    #[cfg(target_arch = "x86_64")]
    let calls_that_open = [&calls_that_open[..], &[libc::SYS_open, libc::SYS_creat]].concat();
    let mut steps = vec![step(load, 0, 0)];
    let count = calls_that_open.len();
    for (at, number) in calls_that_open.iter().enumerate() {
        steps.push(step(jump, (count - at) as u8, *number as u32));
    }
    steps.push(step(ret, 0, libc::SECCOMP_RET_ALLOW));
    steps.push(step(ret, 0, libc::SECCOMP_RET_KILL_PROCESS));
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the call takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let (mode, filter) = (libc::SECCOMP_MODE_FILTER, &raw const filter);
    // SAFETY: the filter lives during the call.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, filter) }, 0);
    calls();
}

/// A user that may not open the namespace's file must reach it by the inherited descriptor.
pub(crate) fn other_user() {
    // SAFETY: the list of groups has no element, so the call does not read the null pointer.
    let mut changed = unsafe { libc::setgroups(0, std::ptr::null()) } == 0;
    // SAFETY: the call takes numbers.
    changed = changed && unsafe { libc::setresgid(65534, 65534, 65534) } == 0;
    // SAFETY: as above.
    changed = changed && unsafe { libc::setresuid(65534, 65534, 65534) } == 0;
    if !changed {
        skip(Need::Root, "not root");
    }
    calls();
}

/// Each IPC call of a process without a namespace of the library must return `ENOSYS`.
pub(crate) fn without() {
    for _ in 0..2 {
        let made = sysv::semget(libc::IPC_PRIVATE, 1, 0o600);
        assert_eq!(made, Err(libc::ENOSYS));
        assert_eq!(semop(0, (0, 1, 0)), Err(libc::ENOSYS));
    }
}

fn calls() {
    let id = set(1);
    assert_eq!(semop(id, (0, 1, 0)), Ok(0));
    remove(id);
}
