//! Roles (functions that tests run in processes of their own) with signal handlers. They must pass
//! on the host kernel as well.

use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_base::primitives::{hint, thread};
#[cfg(target_arch = "x86_64")]
use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::sysv;
use std::ffi::c_void;
use std::ptr;

use crate::roles::{child, exited, semop, set, until, wait};

extern "C" fn nothing(_signal: libc::c_int) {}

extern "C" fn other(_signal: libc::c_int) {}

extern "C" fn with_siginfo(
    signal: libc::c_int,
    siginfo: *mut libc::siginfo_t,
    machine: *mut c_void,
) {
    let local = 0u8;
    let mut stack = empty_stack();
    // SAFETY: the call changes nothing, and writes to `stack`.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut stack) };
    let (start, at) = (stack.ss_sp.addr(), ptr::from_ref(&local).addr());
    let is_on_it = (start..start + stack.ss_size).contains(&at);
    // SAFETY: the kernel has filled it.
    let siginfo = unsafe { &*siginfo };
    // SAFETY: the signal comes from kill(2).
    let sender = unsafe { siginfo.si_pid() };
    // SAFETY: the call takes nothing.
    let is_from_us = sender == unsafe { libc::getpid() };
    let is_well = signal == libc::SIGUSR2 && is_on_it && is_from_us && !machine.is_null();
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(if is_well { 3 } else { 4 }) };
}

fn empty_stack() -> libc::stack_t {
    libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: 0, ss_size: 0 }
}

pub(crate) fn action(handler: usize, flags: i32) -> libc::sigaction {
    // SAFETY: zeroes are a valid structure: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    (action.sa_sigaction, action.sa_flags) = (handler, flags);
    action
}

pub(crate) fn install(signal: i32, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut before = action(0, 0);
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the handlers of this file call only async-signal-safe functions.
    assert_eq!(unsafe { libc::sigaction(signal, new, &raw mut before) }, 0);
    before
}

/// One signal must end the wait of a call, even if the signal comes right after the call was
/// queued.
pub(crate) fn soon() {
    const ROUNDS: u32 = 500;
    let id = set(2);
    sysv::catch_usr1().expect("a handler");
    let pid = child(|| {
        for round in 0..ROUNDS {
            // Semaphore 1 tells the parent the number of the round.
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
        // The parent polls without a pause, so that the signal comes while the call goes to sleep.
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

/// When a program installs a signal handler, the kernel must get the handler, the flags and the
/// mask. sigaction(2) must return them.
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

/// `MIXED` counts how often a handler ran with the signal mask of the other handler.
static RUNS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static MIXED: AtomicU64 = AtomicU64::new(0);

/// Handler 0 is installed with `SIGUSR1` in its mask, handler 1 without.
fn ran(which: usize) {
    let mut mask = std::mem::MaybeUninit::uninit();
    // SAFETY: the call changes nothing, and writes to `mask`.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: the call has filled it.
    let is_blocked = unsafe { libc::sigismember(mask.as_ptr(), libc::SIGUSR1) } == 1;
    // ORDERING: Relaxed. Statistic; nothing is published through it.
    MIXED.fetch_add(u64::from(is_blocked != (which == 0)), Ordering::Relaxed);
    // ORDERING: Relaxed. As above.
    RUNS[which].fetch_add(1, Ordering::Relaxed);
}

extern "C" fn with_a_mask(_signal: libc::c_int) {
    ran(0);
}

extern "C" fn without_a_mask(_signal: libc::c_int) {
    ran(1);
}

/// Returns the actions that install `with_a_mask` and `without_a_mask`.
fn both() -> [libc::sigaction; 2] {
    let [mut first, second] =
        [with_a_mask as *const () as usize, without_a_mask as *const () as usize]
            .map(|handler| action(handler, 0));
    first.sa_flags = libc::SA_RESTART;
    // SAFETY: the mask is ours.
    unsafe { libc::sigaddset(&raw mut first.sa_mask, libc::SIGUSR1) };
    [first, second]
}

/// A handler must run with the mask with which it was installed, even while another one is being
/// installed. The same must hold if two threads install handlers at the same time.
pub(crate) fn flags() {
    assert_eq!(exited(wait(child(|| i32::from(!changes_beside_signals())))), 0);
    assert_eq!(exited(wait(child(|| i32::from(!changes_beside_changes())))), 0);
}

fn changes_beside_signals() -> bool {
    const CHANGES: usize = 2000;
    let actions = both();
    install(libc::SIGUSR2, Some(&actions[0]));
    let is_over = AtomicU64::new(0);
    // ORDERING: Relaxed. See `ran`.
    let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
    thread::scope(|scope| {
        scope.spawn(|| {
            while load(&is_over) == 0 {
                // SAFETY: the call takes numbers.
                unsafe { libc::raise(libc::SIGUSR2) };
            }
        });
        for change in 1..CHANGES {
            install(libc::SIGUSR2, Some(&actions[change % 2]));
            // Wait for the second run of the new handler: the first may be for a signal from before
            // it was installed.
            let before = load(&RUNS[change % 2]);
            until("both handlers run", || load(&RUNS[change % 2]) > before + 1);
        }
        // ORDERING: Relaxed. See `ran`.
        is_over.store(1, Ordering::Relaxed);
    });
    load(&MIXED) == 0
}

fn changes_beside_changes() -> bool {
    const ROUNDS: u64 = 3000;
    let actions = both();
    let [begun, done] = [(); 2].map(|()| AtomicU64::new(0));
    let wait_for = |cell: &AtomicU64, round| {
        let mut looks = 0u32;
        // ORDERING: Acquire. The other thread stores the round with Release after it has installed
        // its handlers. Without this order, this thread could see the round before the handlers.
        while cell.load(Ordering::Acquire) < round {
            looks += 1;
            // Spin, so that both threads install their handlers at the same moment.
            if looks.is_multiple_of(1 << 12) { thread::yield_now() } else { hint::spin_loop() }
        }
    };
    let mut mixed = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                wait_for(&begun, round);
                install(libc::SIGUSR2, Some(&actions[1]));
                // ORDERING: Release. See `wait_for`.
                done.store(round, Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            // ORDERING: Release. See `wait_for`.
            begun.store(round, Ordering::Release);
            // The spawned thread may see `begun` late. The delay differs from round to round. So in
            // some rounds, both threads install their handlers at the same moment.
            (0..round % 100).for_each(|_| hint::spin_loop());
            install(libc::SIGUSR2, Some(&actions[0]));
            wait_for(&done, round);
            let told = install(libc::SIGUSR2, None);
            // SAFETY: the call takes numbers.
            unsafe { libc::raise(libc::SIGUSR2) };
            let is_first = told.sa_sigaction == actions[0].sa_sigaction;
            mixed += u32::from(is_first != (told.sa_flags & libc::SA_RESTART != 0));
        }
    });
    // ORDERING: Relaxed. See `ran`.
    mixed == 0 && MIXED.load(Ordering::Relaxed) == 0
}

extern "C" fn ends(_signal: libc::c_int) {
    // SAFETY: the call takes a number.
    unsafe { libc::_exit(9) };
}

/// A child of vfork(2) shares its parent's memory, but must have signal handlers of its own.
pub(crate) fn vfork() {
    extern "C" fn work(_: *mut c_void) -> libc::c_int {
        // Three changes: one more than the library has tables of handlers.
        for _ in 0..3 {
            install(libc::SIGUSR2, Some(&action(ends as *const () as usize, 0)));
        }
        // SAFETY: the call takes numbers.
        unsafe { libc::raise(libc::SIGUSR2) };
        8
    }
    let nothing = nothing as *const () as usize;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let pid = child(|| {
        install(libc::SIGUSR2, Some(&action(nothing, 0)));
        let mut stack = vec![0u128; 1 << 14];
        let top = stack.as_mut_ptr_range().end.cast();
        // SAFETY: the child uses its own stack, and has ended when the call returns.
        let inner = unsafe { libc::clone(work, top, flags, ptr::null_mut()) };
        let is_its_own = exited(wait(inner)) == 9;
        let is_kept = install(libc::SIGUSR2, None).sa_sigaction == nothing;
        // SAFETY: the call takes numbers.
        unsafe { libc::raise(libc::SIGUSR2) };
        // The library must still know which handler the parent has installed.
        let again = install(libc::SIGUSR2, Some(&action(ends as *const () as usize, 0)));
        i32::from(!is_its_own || !is_kept || again.sa_sigaction != nothing)
    });
    assert_eq!(exited(wait(pid)), 0);
}

/// rt_sigaction(2), called by its number, must return the program's own handler. A handler with
/// `SA_RESETHAND` must run once.
fn one_shot() -> i32 {
    let other = other as *const () as usize;
    let flags = libc::SA_RESETHAND;
    install(libc::SIGUSR2, Some(&action(other, flags)));
    let mut words = [0usize; 4];
    // SAFETY: rt_sigaction(2) writes one action to `words`.
    let asked = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, 0usize, words.as_mut_ptr(), 8usize)
    };
    // SAFETY: the call takes numbers.
    unsafe { libc::raise(libc::SIGUSR2) };
    let after = install(libc::SIGUSR2, None).sa_sigaction;
    // Install the action that rt_sigaction(2) has returned above. It contains the C library's
    // restorer (the code to which a handler returns), as the kernel requires.
    // SAFETY: `words` is an action that the kernel returned.
    let set = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, words.as_ptr(), 0usize, 8usize)
    };
    let again = install(libc::SIGUSR2, None).sa_sigaction;
    let mut changed = words;
    changed[0] = nothing as *const () as usize;
    // rt_sigaction(2) must fail, because the size of the signal set is wrong.
    // SAFETY: `changed` is an action of the kernel with another handler.
    let refused = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, libc::SIGUSR2, changed.as_ptr(), 0usize, 4usize)
    };
    let is_kept = refused == -1 && install(libc::SIGUSR2, None).sa_sigaction == other;
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGUSR2) };
    let is_well = asked == 0 && words[0] == other && after == libc::SIG_DFL;
    i32::from(!is_well || set != 0 || again != other || !is_kept)
}

fn on_a_stack() -> i32 {
    let mut memory = vec![0u8; 1 << 16];
    let stack =
        libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
    // SAFETY: the memory lives as long as the process.
    assert_eq!(unsafe { libc::sigaltstack(&raw const stack, ptr::null_mut()) }, 0);
    let handler = with_siginfo as *const () as usize;
    install(libc::SIGUSR2, Some(&action(handler, libc::SA_SIGINFO | libc::SA_ONSTACK)));
    // SAFETY: the call takes nothing.
    let pid = unsafe { libc::getpid() };
    // SAFETY: the call takes numbers.
    unsafe { libc::kill(pid, libc::SIGUSR2) };
    drop(memory);
    5
}

/// A signal must end the wait of a call, even if it comes when the call is queued and just about to
/// sleep in futex(2).
///
/// The parent traces the child by ptrace(2). When the child enters futex(2), the parent makes the
/// child skip this system call. It then delivers the signal, and makes the child repeat the call.
/// Without the library the test does nothing.
#[cfg(target_arch = "x86_64")]
pub(crate) fn before_sleep() {
    if std::env::var_os("LD_PRELOAD").is_none() {
        return;
    }
    let id = set(1);
    sysv::catch_usr1().expect("a handler");
    let pid = child(|| {
        if !is_traced() {
            return 77;
        }
        semop(id, (0, -1, 0)).err().unwrap_or(0)
    });
    if exited_early(pid) {
        skip(Need::Kernel, "a child may not be traced");
        return;
    }
    let mut registers = next_futex(pid, id);
    registers.orig_rax = u64::MAX;
    registers.rax = libc::SYS_futex.cast_unsigned();
    registers.rip -= 2;
    trace(libc::PTRACE_SETREGS, pid, (&raw mut registers).expose_provenance());
    trace(libc::PTRACE_SYSCALL, pid, 0);
    assert_eq!(stopped_by(pid), libc::SIGTRAP, "at the exit of what was skipped");
    sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is stopped");
    trace(libc::PTRACE_CONT, pid, 0);
    assert_eq!(stopped_by(pid), libc::SIGUSR1, "about to be delivered");
    trace(libc::PTRACE_DETACH, pid, libc::SIGUSR1 as usize);
    until("the signal ends the wait", || sysv::semctl(id, 0, libc::GETNCNT, 0) == Ok(0));
    assert_eq!(exited(wait(pid)), libc::EINTR);
    sysv::semctl(id, 0, libc::IPC_RMID, 0).expect("it is ours");
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn before_sleep() {}

#[cfg(target_arch = "x86_64")]
pub(crate) fn is_traced() -> bool {
    // SAFETY: the call takes numbers.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    // SAFETY: `PTRACE_TRACEME` uses no other argument.
    let is_traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME) } == 0;
    if is_traced {
        // SAFETY: the call takes a number.
        unsafe { libc::raise(libc::SIGSTOP) };
    }
    is_traced
}

/// Waits until the child stops or ends. Returns true if it exited with 77, because it may not be
/// traced.
#[cfg(target_arch = "x86_64")]
pub(crate) fn exited_early(pid: i32) -> bool {
    let mut status = 0;
    // SAFETY: the status is ours.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 77
}

#[cfg(target_arch = "x86_64")]
fn stopped_by(pid: i32) -> i32 {
    let status = wait(pid);
    assert!(libc::WIFSTOPPED(status), "status {status:x}");
    libc::WSTOPSIG(status)
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn trace(request: libc::c_uint, pid: i32, argument: usize) {
    // SAFETY: the argument is a number, or the address of a value that lives during the call.
    let done = unsafe { libc::ptrace(request, pid, 0usize, argument) };
    assert_eq!(done, 0, "request {request}");
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn next_call(pid: i32, numbers: &[libc::c_long]) {
    for _ in 0..10_000 {
        let registers = next_stop(pid);
        let is_entry = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
        if is_entry && numbers.contains(&registers.orig_rax.cast_signed()) {
            return;
        }
    }
    panic!("it never makes the call");
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn next_call_of(pid: i32, number: libc::c_long, first: usize) {
    for _ in 0..10_000 {
        let registers = next_stop(pid);
        let is_entry = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
        let is_call = registers.orig_rax == number.cast_unsigned();
        if is_entry && is_call && registers.rdi == first as u64 {
            return;
        }
    }
    panic!("it never makes the call");
}

#[cfg(target_arch = "x86_64")]
fn next_stop(pid: i32) -> libc::user_regs_struct {
    trace(libc::PTRACE_SYSCALL, pid, 0);
    assert_eq!(stopped_by(pid), libc::SIGTRAP);
    // SAFETY: zeroes are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    trace(libc::PTRACE_GETREGS, pid, (&raw mut registers).expose_provenance());
    registers
}

#[cfg(target_arch = "x86_64")]
fn next_futex(pid: i32, id: i32) -> libc::user_regs_struct {
    const FUTEX_WAIT_BITSET: u64 = 9;
    for _ in 0..10_000 {
        let registers = next_stop(pid);
        let is_entry = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
        let is_sleep = registers.orig_rax == libc::SYS_futex.cast_unsigned()
            && registers.rsi & 0x7f == FUTEX_WAIT_BITSET;
        if is_entry && is_sleep && sysv::semctl(id, 0, libc::GETNCNT, 0) == Ok(1) {
            return registers;
        }
    }
    panic!("it never sleeps");
}
