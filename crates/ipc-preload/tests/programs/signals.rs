//! Roles with signal handlers; they hold on the host kernel as well.

use corewalk_testkit::sysv;
use std::ffi::c_void;
use std::ptr;

use crate::roles::{child, exited, semop, set, until, wait};

/// A handler that tells by a status, so that nothing has to be shared with it.
extern "C" fn nothing(_signal: libc::c_int) {}

extern "C" fn other(_signal: libc::c_int) {}

/// The payload of a signal, and that there is a context, seen by a handler on a stack of its own.
extern "C" fn with_siginfo(
    signal: libc::c_int,
    siginfo: *mut libc::siginfo_t,
    machine: *mut c_void,
) {
    let local = 0u8;
    let mut stack = empty_stack();
    // SAFETY: there is room for the answer.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    let (start, at) = (stack.ss_sp.addr(), ptr::from_ref(&local).addr());
    let is_on_it = (start..start + stack.ss_size).contains(&at);
    // SAFETY: the kernel has filled it.
    let sender = unsafe { (*siginfo).si_pid() };
    // SAFETY: the call takes nothing.
    let is_from_us = sender == unsafe { libc::getpid() };
    let is_well = signal == libc::SIGUSR2 && is_on_it && is_from_us && !machine.is_null();
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(if is_well { 3 } else { 4 }) };
}

fn empty_stack() -> libc::stack_t {
    libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 }
}

fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: zeroes are a valid structure: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    action
}

fn install(signal: i32, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut before = action(0, 0);
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: handlers of this file do nothing that is not safe in one.
    assert_eq!(unsafe { libc::sigaction(signal, new, &raw mut before) }, 0);
    before
}

/// One signal ends a wait, however soon it comes after the call was queued.
pub(crate) fn soon() {
    const ROUNDS: u32 = 2000;
    let id = set(2);
    sysv::catch_usr1().expect("a handler");
    let pid = child(|| {
        for round in 0..ROUNDS {
            // The other semaphore says which round it is.
            let ended = semop(id, (0, -1, 0));
            if ended != Err(libc::EINTR) || semop(id, (1, 1, 0)) != Ok(0) {
                return 1 + round as i32 % 100;
            }
        }
        0
    });
    for round in 0..ROUNDS {
        let is_in_round = || sysv::semctl(id, 1, libc::GETVAL, 0) == Ok(round as i32);
        let mut looks = 0u64;
        // Without a pause: the signal has to come while the call goes to sleep.
        while !(is_in_round() && sysv::semctl(id, 0, libc::GETNCNT, 0) == Ok(1)) {
            looks += 1;
            assert!(looks < 1 << 32, "it never waits");
        }
        sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is not waited for");
        until("the signal ends the wait", || !is_in_round());
    }
    assert_eq!(exited(wait(pid)), 0);
    sysv::semctl(id, 0, libc::IPC_RMID, 0).expect("it is ours");
}

/// What a program asks for is what it gets, and what it is told.
pub(crate) fn kept() {
    let nothing = nothing as *const () as usize;
    let other = other as *const () as usize;
    assert_eq!(install(libc::SIGUSR2, Some(&action(nothing, libc::SA_RESTART))).sa_sigaction, 0);
    let told = install(libc::SIGUSR2, None);
    assert_eq!((told.sa_sigaction, told.sa_flags & libc::SA_RESTART), (nothing, libc::SA_RESTART));
    // SAFETY: the handler does nothing.
    assert_eq!(unsafe { libc::signal(libc::SIGUSR2, other) }, nothing);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) }, other);
    assert_eq!(install(libc::SIGUSR2, Some(&action(libc::SIG_DFL, 0))).sa_sigaction, libc::SIG_IGN);
    assert_eq!(install(libc::SIGUSR2, None).sa_sigaction, libc::SIG_DFL);
    // SAFETY: the handler does nothing.
    assert_eq!(unsafe { libc::signal(libc::SIGKILL, other) }, libc::SIG_ERR);
    assert_eq!(exited(wait(child(one_shot))), 0);
    assert_eq!(exited(wait(child(on_a_stack))), 3);
}

/// By number, and with a handler that is there once.
fn one_shot() -> i32 {
    let other = other as *const () as usize;
    let flags = libc::SA_RESETHAND;
    install(libc::SIGUSR2, Some(&action(other, flags)));
    let mut words = [0usize; 4];
    // SAFETY: there is room for what rt_sigaction(2) tells.
    let asked = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, 0usize, words.as_mut_ptr(), 8usize)
    };
    // SAFETY: the call takes numbers.
    unsafe { libc::raise(libc::SIGUSR2) };
    let after = install(libc::SIGUSR2, None).sa_sigaction;
    // And back by number, with the restorer that the C library has given.
    // SAFETY: the action is one that the kernel has told.
    let set = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, words.as_ptr(), 0usize, 8usize)
    };
    let again = install(libc::SIGUSR2, None).sa_sigaction;
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGUSR2) };
    let is_well = asked == 0 && words[0] == other && after == libc::SIG_DFL;
    i32::from(!is_well || set != 0 || again != other)
}

fn on_a_stack() -> i32 {
    let mut memory = vec![0u8; 1 << 16];
    let stack =
        libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    // SAFETY: the memory lives as long as the process.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
    let handler = with_siginfo as *const () as usize;
    install(libc::SIGUSR2, Some(&action(handler, libc::SA_SIGINFO | libc::SA_ONSTACK)));
    // SAFETY: the call takes numbers.
    unsafe { libc::kill(libc::getpid(), libc::SIGUSR2) };
    drop(memory);
    5
}
