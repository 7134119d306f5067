//! Roles (functions that tests run in processes of their own) with a handler that jumps out of the
//! call that it has interrupted. They must pass on the host kernel as well.
//!
//! The roles do not use sigsetjmp(3): it returns twice, which no Rust function may do. Instead,
//! `protect` calls a function and returns once. `leave` jumps out of this function.

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn jump() {}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn nested() {}

#[cfg(target_arch = "x86_64")]
pub(crate) use here::{jump, nested};

#[cfg(target_arch = "x86_64")]
mod here {
    use corewalk_base::primitives::unmodelled::{AtomicUsize, Ordering};
    use corewalk_testkit::sysv;
    use std::ptr;

    use crate::forks::is_asleep;
    use crate::roles::{child, exited, remove, semop, set, until, value, wait};
    use crate::signals::{action, install};

    /// The registers that `leave` restores: rbx, rbp, r12 to r15, rsp.
    #[repr(transparent)]
    struct Place([AtomicUsize; 7]);

    static PLACE: Place = Place([const { AtomicUsize::new(0) }; 7]);

    #[unsafe(naked)]
    extern "C" fn protect(place: &'static Place, call: extern "C" fn()) -> i32 {
        std::arch::naked_asm!(
            "mov [rdi], rbx",
            "mov [rdi + 8], rbp",
            "mov [rdi + 16], r12",
            "mov [rdi + 24], r13",
            "mov [rdi + 32], r14",
            "mov [rdi + 40], r15",
            "mov [rdi + 48], rsp",
            "sub rsp, 8",
            "call rsi",
            "add rsp, 8",
            "xor eax, eax",
            "ret",
        )
    }

    /// Makes the call of [`protect`] that is under way return 1.
    #[unsafe(naked)]
    unsafe extern "C" fn leave(place: &'static Place) -> ! {
        std::arch::naked_asm!(
            "mov rbx, [rdi]",
            "mov rbp, [rdi + 8]",
            "mov r12, [rdi + 16]",
            "mov r13, [rdi + 24]",
            "mov r14, [rdi + 32]",
            "mov r15, [rdi + 40]",
            "mov rsp, [rdi + 48]",
            "mov eax, 1",
            "ret",
        )
    }

    extern "C" fn handler(_signal: libc::c_int) {
        // SAFETY: one call of `protect` is under way. `leave` jumps back into that call, as
        // longjmp(3) does. No function that the jump leaves has a value to drop.
        unsafe { leave(&PLACE) }
    }

    /// The ids of the objects for which the protected calls wait.
    static IDS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

    fn id(at: usize) -> i32 {
        // ORDERING: Relaxed. Only one thread uses `IDS`, and its children have copies.
        IDS[at].load(Ordering::Relaxed) as i32
    }

    /// Blocks or unblocks `SIGUSR1`. It is unblocked only during the calls that `protect` makes.
    fn let_in(how: libc::c_int) {
        // SAFETY: zeroes are a valid set of signals.
        let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is ours.
        unsafe { libc::sigaddset(&raw mut signals, libc::SIGUSR1) };
        // SAFETY: the set lives during the call.
        unsafe { libc::pthread_sigmask(how, &raw const signals, ptr::null_mut()) };
    }

    extern "C" fn take() {
        let_in(libc::SIG_UNBLOCK);
        let _never = semop(id(0), (0, -1, 0));
    }

    extern "C" fn receive() {
        let_in(libc::SIG_UNBLOCK);
        receive_one();
    }

    fn receive_one() -> bool {
        let mut message = [0u64; 2];
        // SAFETY: `message` has space for a type and 8 bytes of text.
        unsafe { libc::msgrcv(id(1), message.as_mut_ptr().cast(), 8, 0, 0) == 8 }
    }

    /// A signal handler leaves a waiting call by a jump. That call must not take a semaphore unit
    /// or a message that a later call should get.
    pub(crate) fn jump() {
        let sems = set(3);
        // SAFETY: the call takes numbers.
        let queue = unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) };
        for (at, id) in [sems, queue].into_iter().enumerate() {
            // ORDERING: Relaxed. See `id`.
            IDS[at].store(id as usize, Ordering::Relaxed);
        }
        let pid = child(|| {
            // If the child waits for ever, the alarm ends it.
            // SAFETY: the call takes a number.
            unsafe { libc::alarm(300) };
            install(libc::SIGUSR1, Some(&action(handler as *const () as usize, libc::SA_NODEFER)));
            let_in(libc::SIG_BLOCK);
            let is_left = protect(&PLACE, take) == 1;
            let_in(libc::SIG_BLOCK);
            let is_well = semop(sems, (1, 1, 0)) == Ok(0) && semop(sems, (0, -1, 0)) == Ok(0);
            let is_well = is_well && semop(sems, (2, 1, 0)) == Ok(0);
            let is_left_again = protect(&PLACE, receive) == 1;
            let is_well = is_well && semop(sems, (1, 1, 0)) == Ok(0) && receive_one();
            i32::from(!is_left || !is_left_again || !is_well)
        });
        let waits = || sysv::semctl(sems, 0, libc::GETNCNT, 0) == Ok(1);
        let is_left = |times| sysv::semctl(sems, 1, libc::GETVAL, 0) == Ok(times);
        until("it waits", waits);
        sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is not waited for");
        until("it has left", || is_left(1));
        assert_eq!(semop(sems, (0, 1, 0)), Ok(0));
        until("it has what it waits for", || {
            sysv::semctl(sems, 2, libc::GETVAL, 0) == Ok(1) && is_asleep(pid)
        });
        sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is not waited for");
        until("it has left", || is_left(2));
        let message = [1u64, 7];
        // SAFETY: `message` contains a type and 8 bytes of text.
        assert_eq!(unsafe { libc::msgsnd(queue, message.as_ptr().cast(), 8, 0) }, 0);
        assert_eq!(exited(wait(pid)), 0);
        sysv::semctl(sems, 0, libc::IPC_RMID, 0).expect("it is ours");
        // SAFETY: the command takes nothing.
        assert_eq!(unsafe { libc::msgctl(queue, libc::IPC_RMID, ptr::null_mut()) }, 0);
    }

    /// A signal handler that makes a waiting call, and then jumps out of the interrupted call. A
    /// second signal may jump out of both calls.
    extern "C" fn waiting(_signal: libc::c_int) {
        take_inside();
        // SAFETY: as in `handler`.
        unsafe { leave(&PLACE) }
    }

    extern "C" fn take_inside() {
        let _granted = semop(id(0), (1, -1, 0));
    }

    static INSIDE: Place = Place([const { AtomicUsize::new(0) }; 7]);

    /// A signal handler that makes a waiting call. A second signal jumps out of this call, but not
    /// out of the interrupted one.
    extern "C" fn waiting_and_left(_signal: libc::c_int) {
        protect(&INSIDE, take_inside);
    }

    extern "C" fn handler_inside(_signal: libc::c_int) {
        // SAFETY: as in `handler`, for the call of `protect` in `waiting_and_left`.
        unsafe { leave(&INSIDE) }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Left {
        Both,
        Inner,
        Outer,
    }

    /// As in [`jump`], but the handler makes a waiting call too, which a second signal interrupts.
    /// The calls that were left by a jump must take no unit afterwards.
    pub(crate) fn nested() {
        [Left::Both, Left::Inner, Left::Outer].into_iter().for_each(leave_nested);
    }

    fn leave_nested(left: Left) {
        // The interrupted call waits at semaphore 0, and the call of its signal handler at
        // semaphore 1. After the jumps, the child adds 1 to semaphore 2, and waits until the parent
        // adds 1 to semaphore 3.
        let sems = set(4);
        // ORDERING: Relaxed. See `id`.
        IDS[0].store(sems as usize, Ordering::Relaxed);
        let pid = child(|| {
            // SAFETY: the call takes a number.
            unsafe { libc::alarm(60) };
            let (first, second) = match left {
                Left::Inner => (waiting_and_left as *const (), handler_inside as *const ()),
                _ => (waiting as *const (), handler as *const ()),
            };
            for (signal, handler) in [(libc::SIGUSR1, first), (libc::SIGUSR2, second)] {
                install(signal, Some(&action(handler as usize, libc::SA_NODEFER)));
            }
            let_in(libc::SIG_BLOCK);
            let is_left = protect(&PLACE, take) == i32::from(left != Left::Inner);
            let_in(libc::SIG_BLOCK);
            let mut is_well = is_left && semop(sems, (2, 1, 0)) == Ok(0);
            // This semop waits until the parent has added the unit.
            is_well &= semop(sems, (3, -1, 0)) == Ok(0);
            for num in 0..2 {
                is_well &= semop(sems, (num, -1, 0)) == Ok(0);
            }
            i32::from(!is_well)
        });
        let waits = |num| sysv::semctl(sems, num, libc::GETNCNT, 0) == Ok(1);
        until("it waits", || waits(0));
        sysv::send_usr1(pid.cast_unsigned(), pid).expect("it is not waited for");
        until("its handler waits", || waits(1));
        if left == Left::Outer {
            assert_eq!(semop(sems, (1, 1, 0)), Ok(0));
        } else {
            // SAFETY: the call takes numbers.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGUSR2) }, 0);
        }
        until("it has left", || value(sems, 2) == 1);
        for num in [0, 1, 3] {
            assert_eq!(semop(sems, (num, 1, 0)), Ok(0));
        }
        assert_eq!(exited(wait(pid)), 0, "{left:?}");
        assert_eq!(sysv::getall(sems, 4), Ok(vec![0, 0, 1, 0]));
        remove(sems);
    }
}
