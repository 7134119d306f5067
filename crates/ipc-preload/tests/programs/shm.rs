//! Roles (functions that tests run in processes of their own) with shared memory. They must pass on
//! the host kernel as well.
//!
//! Processes wait for each other at pipes and not at semaphores. So a child makes no IPC call
//! except those that the test checks.

use corewalk_base::primitives::thread;
use corewalk_testkit::require::{Need, has_root, skip};
use std::io::Error;
use std::ptr;

use crate::roles::{child, exited, until, wait};
#[cfg(target_arch = "x86_64")]
use crate::signals;

const PAGE: usize = 4096;

/// Attaches; returns the address, or the errno.
fn attach(id: i32, address: usize, flags: i32) -> Result<usize, i32> {
    // SAFETY: with `SHM_REMAP`, the call replaces only a segment of the test.
    let at = unsafe { libc::shmat(id, ptr::with_exposed_provenance(address), flags) };
    let at = at.expose_provenance();
    if at == usize::MAX { Err(errno()) } else { Ok(at) }
}

fn detach(address: usize) -> Result<i32, i32> {
    // SAFETY: the test does not use the segment any more.
    number(unsafe { libc::shmdt(ptr::with_exposed_provenance(address)) })
}

fn control(id: i32, cmd: i32, buf: *mut libc::shmid_ds) -> Result<i32, i32> {
    // SAFETY: `buf` points to a structure if the command needs one.
    number(unsafe { libc::shmctl(id, cmd, buf) })
}

fn get(key: i32, size: usize, flags: i32) -> Result<i32, i32> {
    // SAFETY: the call takes numbers.
    number(unsafe { libc::shmget(key, size, flags) })
}

fn stat(id: i32) -> Result<libc::shmid_ds, i32> {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { std::mem::zeroed() };
    control(id, libc::IPC_STAT, &raw mut ds).map(|_| ds)
}

fn nattch(id: i32) -> u64 {
    stat(id).expect("a segment").shm_nattch
}

fn remove(id: i32) {
    control(id, libc::IPC_RMID, ptr::null_mut()).expect("it is ours");
}

fn segment(size: usize) -> i32 {
    get(libc::IPC_PRIVATE, size, 0o600).expect("a segment")
}

fn number(result: i32) -> Result<i32, i32> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().expect("an errno")
}

fn byte(address: usize) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address)
}

fn write(address: usize, value: u8) {
    // SAFETY: the address is in a segment that is attached.
    unsafe { byte(address).write_volatile(value) }
}

fn read(address: usize) -> u8 {
    // SAFETY: as above.
    unsafe { byte(address).read_volatile() }
}

/// A pipe at which a process waits. The gate is open when all other processes have closed their
/// ends of the pipe.
struct Gate([i32; 2]);

impl Gate {
    fn new() -> Self {
        let mut ends = [0; 2];
        // SAFETY: there is room for both.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        Self(ends)
    }

    fn pass(&self) {
        self.close(1);
        let mut byte = 0u8;
        // SAFETY: there is room for a byte.
        unsafe { libc::read(self.0[0], (&raw mut byte).cast(), 1) };
    }

    fn open(self) {
        self.shut();
    }

    fn shut(&self) {
        self.close(0);
        self.close(1);
    }

    fn close(&self, end: usize) {
        // SAFETY: the descriptor is ours.
        unsafe { libc::close(self.0[end]) };
    }
}

pub(crate) fn calls() {
    let id = get(77, 5000, libc::IPC_CREAT | libc::IPC_EXCL | 0o640).expect("a segment");
    assert_eq!(get(77, 0, 0), Ok(id));
    assert_eq!(get(77, 5001, 0), Err(libc::EINVAL));
    assert_eq!(get(77, 1, libc::IPC_CREAT | libc::IPC_EXCL), Err(libc::EEXIST));
    assert_eq!(get(78, 1, 0), Err(libc::ENOENT));
    assert_eq!(get(78, 0, libc::IPC_CREAT), Err(libc::EINVAL));
    let ds = stat(id).expect("a segment");
    assert_eq!((ds.shm_segsz, ds.shm_nattch, ds.shm_perm.mode, ds.shm_lpid), (5000, 0, 0o640, 0));
    assert_eq!(ds.shm_cpid, std::process::id().cast_signed());

    let first = attach(id, 0, 0).expect("an address");
    write(first + 4999, 7);
    // The segment is 5000 bytes long and ends inside of its last page. But the program can write
    // that whole page.
    write(first + 2 * PAGE - 1, 8);
    let second = attach(id, 0, libc::SHM_RDONLY).expect("an address");
    assert_eq!((read(second + 4999), nattch(id)), (7, 2));
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the segment is attached at this address; only the permission to write changes.
    let made = unsafe { libc::mprotect(ptr::with_exposed_provenance_mut(second), PAGE, access) };
    assert_eq!(number(made), Err(libc::EACCES), "attached for reading only");
    let free = second;
    assert_eq!(detach(second), Ok(0));
    assert_eq!(detach(second), Err(libc::EINVAL));
    assert_eq!(detach(first + PAGE), Err(libc::EINVAL));

    assert_eq!(attach(id, free, 0), Ok(free));
    assert_eq!(attach(id, free, 0), Err(libc::EINVAL));
    assert_eq!(attach(id, free + 1, 0), Err(libc::EINVAL));
    assert_eq!(detach(free), Ok(0));
    assert_eq!(attach(id, free + 1, libc::SHM_RND), Ok(free));
    let other = segment(2 * PAGE);
    assert_eq!(attach(other, 0, libc::SHM_REMAP), Err(libc::EINVAL));
    assert_eq!(attach(other, free, libc::SHM_REMAP), Ok(free));
    assert_eq!((nattch(id), nattch(other), read(free)), (1, 1, 0));
    assert_eq!(detach(free), Ok(0));
    remove(other);
    assert_eq!(attach(other, 0, 0), Err(libc::EINVAL));

    // A removed segment lives until the last detach.
    remove(id);
    let ds = stat(id).expect("it is attached");
    assert_eq!((ds.shm_perm.mode, ds.shm_perm.__key, ds.shm_nattch), (0o1640, 0, 1));
    assert_eq!(get(77, 0, 0), Err(libc::ENOENT));
    let again = attach(id, 0, 0).expect("it is there");
    assert_eq!((read(again + 4999), detach(again), detach(first)), (7, Ok(0), Ok(0)));
    assert_eq!(stat(id).err(), Some(libc::EINVAL));
    null_is_refused();
}

fn null_is_refused() {
    let id = segment(1);
    for cmd in [libc::IPC_STAT, libc::IPC_SET] {
        assert_eq!(control(id, cmd, ptr::null_mut()), Err(libc::EFAULT), "{cmd}");
    }
    assert_eq!(control(id, 99, ptr::null_mut()), Err(libc::EINVAL));
    assert_eq!(control(-1, libc::IPC_RMID, ptr::null_mut()), Err(libc::EINVAL));
    assert_eq!(control(id, libc::SHM_LOCK, ptr::null_mut()), Ok(0));
    assert_eq!(stat(id).map(|ds| ds.shm_perm.mode), Ok(0o2600));
    assert_eq!(control(id, libc::SHM_UNLOCK, ptr::null_mut()), Ok(0));
    let mut ds = stat(id).expect("a segment");
    ds.shm_perm.mode = 0o604;
    assert_eq!(control(id, libc::IPC_SET, &raw mut ds), Ok(0));
    assert_eq!(stat(id).map(|ds| ds.shm_perm.mode), Ok(0o604));
    remove(id);
}

pub(crate) fn by_number() {
    let call = |number: libc::c_long, arguments: [usize; 3]| {
        let [a, b, c] = arguments;
        // SAFETY: the addresses are of values that live during the call.
        unsafe { libc::syscall(number, a, b, c) }
    };
    let id = call(libc::SYS_shmget, [libc::IPC_PRIVATE as usize, PAGE, 0o600]);
    let at = call(libc::SYS_shmat, [id as usize, 0, 0]);
    assert!(at > 0);
    write(at as usize, 9);
    assert_eq!(nattch(id as i32), 1, "the same objects");
    let also = attach(id as i32, 0, 0).expect("an address");
    assert_eq!(read(also), 9);
    assert_eq!(call(libc::SYS_shmdt, [at as usize, 0, 0]), 0);
    assert_eq!(call(libc::SYS_shmctl, [id as usize, libc::IPC_RMID as usize, 0]), 0);
    assert_eq!(detach(also), Ok(0));
    assert_eq!(call(libc::SYS_shmat, [id as usize, 0, 0]), -1);
    assert_eq!(errno(), libc::EINVAL);
}

/// nattch must count a child that makes no IPC call, from the child's first instruction to its
/// last.
pub(crate) fn fork() {
    let id = segment(PAGE);
    let at = attach(id, 0, 0).expect("an address");
    for _ in 0..20 {
        let gate = Gate::new();
        let pid = child(|| {
            gate.pass();
            0
        });
        assert_eq!(nattch(id), 2, "as soon as fork has returned");
        gate.open();
        assert_eq!(exited(wait(pid)), 0);
        assert_eq!(nattch(id), 1, "as soon as its end is seen");
    }
    let pid = child(|| {
        let inner = child(|| i32::from(nattch(id) != 3 || detach(at) != Ok(0) || nattch(id) != 2));
        i32::from(exited(wait(inner)) != 0 || nattch(id) != 2)
    });
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!((nattch(id), detach(at)), (1, Ok(0)));
    // A child must not have a segment that its parent has detached before the fork.
    let pid = child(|| i32::from(nattch(id) != 0 || detach(at) != Err(libc::EINVAL)));
    assert_eq!(exited(wait(pid)), 0);
    remove(id);
}

/// A child that was made by clone(2) without the C library must know which segments it has
/// attached.
pub(crate) fn raw_fork() {
    let id = segment(PAGE);
    let at = attach(id, 0, 0).expect("an address");
    // SAFETY: the child has one thread, and exits without returning into the test.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
    if pid == 0 {
        let is_well = nattch(id) == 2 && detach(at) == Ok(0) && nattch(id) == 1;
        // SAFETY: the call takes a number.
        unsafe { libc::_exit(i32::from(!is_well)) };
    }
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(nattch(id), 1);
    remove(id);
}

/// A parent is killed while its child has segments attached. nattch counts the child only from its
/// first IPC call. Until then, nattch must still count the attaches of the killed parent.
pub(crate) fn orphan() {
    // SAFETY: the arguments are integers. This process becomes a subreaper: the parent of
    // descendants whose own parent has died.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    for calls in [0, 1] {
        let (id, marked) = (segment(PAGE), segment(PAGE));
        // A gate is a pipe at which a process waits. The grandchild opens gate 0 when it runs, and
        // gate 2 after its IPC call. The test opens gates 1 and 3, at which the grandchild waits.
        let gates = [Gate::new(), Gate::new(), Gate::new(), Gate::new()];
        let pid = child(|| {
            let attached = [attach(id, 0, 0), attach(marked, 0, 0)];
            // SAFETY: the child has one thread, and exits without returning into the test.
            let inner = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
            if inner == 0 {
                gates[0].shut();
                gates[1].pass();
                let is_well = calls == 0 || nattch(id) == 1;
                gates[2].shut();
                gates[3].pass();
                // SAFETY: the call takes a number.
                unsafe { libc::_exit(i32::from(!is_well)) };
            }
            gates[0].shut();
            gates[2].shut();
            // SAFETY: the call takes no address.
            unsafe { libc::pause() };
            i32::from(attached.iter().any(Result::is_err))
        });
        let [there, first, called, second] = gates;
        there.pass();
        remove(marked);
        // SAFETY: the call takes numbers. The child was not waited for, so its pid is not reused.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        assert!(libc::WIFSIGNALED(wait(pid)));
        for _ in 0..3 {
            assert_eq!((nattch(id), nattch(marked)), (1, 1), "somebody has them");
        }
        first.open();
        called.pass();
        assert_eq!((nattch(id), nattch(marked)), (1, 1), "once it is counted");
        let again = attach(marked, 0, 0).expect("it goes with its last attach");
        assert_eq!((nattch(marked), detach(again)), (2, Ok(0)));
        second.open();
        assert_eq!(exited(wait(-1)), 0);
        assert_eq!((nattch(id), stat(marked).err()), (0, Some(libc::EINVAL)));
        remove(id);
    }
}

/// A fork that fails must not make its parent wait for a child.
pub(crate) fn failing_fork() {
    let id = segment(PAGE);
    attach(id, 0, 0).expect("an address");
    let pid = child(|| {
        // Change to another user, because `RLIMIT_NPROC` does not limit root.
        // SAFETY: the arguments are integers.
        let is_nobody = unsafe { libc::setresgid(65534, 65534, 65534) } == 0
            // SAFETY: as above.
            && unsafe { libc::setresuid(65534, 65534, 65534) } == 0;
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is ours.
        let is_limited = unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const none) } == 0;
        if !is_nobody || !is_limited {
            return 77;
        }
        let start = std::time::Instant::now();
        // SAFETY: the fork should fail. If it succeeds, the child exits immediately.
        let inner = unsafe { libc::fork() };
        if inner == 0 {
            // SAFETY: the call takes a number.
            unsafe { libc::_exit(0) };
        }
        // A parent waits up to 30 seconds for a stopped child. A fork that has failed must return
        // sooner.
        i32::from(inner != -1 || errno() != libc::EAGAIN || start.elapsed().as_secs() >= 30)
    });
    match exited(wait(pid)) {
        77 => skip(Need::Root, "not root"),
        status => assert_eq!(status, 0),
    }
    remove(id);
}

/// A killed process has nothing attached.
pub(crate) fn killed() {
    let (id, marked) = (segment(PAGE), segment(PAGE));
    let gates = [Gate::new(), Gate::new()];
    let pid = child(|| {
        let attached = [attach(id, 0, 0), attach(id, 0, 0), attach(marked, 0, 0)];
        gates[0].close(0);
        gates[0].close(1);
        gates[1].pass();
        i32::from(attached.iter().any(Result::is_err))
    });
    gates[0].pass();
    remove(marked);
    assert_eq!((nattch(id), nattch(marked)), (2, 1));
    // SAFETY: the call takes numbers. The child was not waited for, so its pid is not reused.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    wait(pid);
    assert_eq!(nattch(id), 0);
    assert_eq!(attach(marked, 0, 0), Err(libc::EINVAL), "it went with its last attach");
    remove(id);
}

/// After execve(2) into a program that makes no call, the segments of the previous program must be
/// detached.
pub(crate) fn exec() {
    let id = segment(PAGE);
    attach(id, 0, 0).expect("an address");
    let gate = Gate::new();
    let pid = child(|| {
        gate.close(1);
        // SAFETY: both descriptors are ours.
        unsafe { libc::dup2(gate.0[0], 0) };
        let words = [c"cat".as_ptr(), ptr::null()];
        // SAFETY: the words end with a null.
        unsafe { libc::execvp(words[0], words.as_ptr()) };
        1
    });
    // The library detaches the segments of a process when its next program after execve(2) is
    // loaded. The parent cannot see that moment, so it polls nattch.
    until("the program is there", || nattch(id) == 1);
    gate.open();
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(nattch(id), 1);
    remove(id);
}

/// A program that cannot join the namespace, and makes no IPC call, must run all the same.
pub(crate) fn exec_elsewhere() {
    let id = segment(PAGE);
    let pid = child(|| {
        let is_attached = attach(id, 0, 0).is_ok();
        // SAFETY: there is one thread.
        unsafe { libc::setenv(c"COREWALK_IPC_NAMESPACE".as_ptr(), c"/nowhere".as_ptr(), 1) };
        let words = [c"true".as_ptr(), ptr::null()];
        if is_attached {
            // SAFETY: the words end with a null.
            unsafe { libc::execvp(words[0], words.as_ptr()) };
        }
        1
    });
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(nattch(id), 0);
    remove(id);
}

/// Forks a process while its other threads attach and detach a segment. The child may inherit one
/// more mapping or none. nattch must count exactly the mappings that the child has inherited.
pub(crate) fn threads() {
    let id = segment(PAGE);
    let keep = attach(id, 0, 0).expect("an address");
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let at = attach(id, 0, 0).expect("an address");
                    write(at, 1);
                    assert_eq!(detach(at), Ok(0));
                }
            });
        }
        for _ in 0..20 {
            // The child has `keep` attached, and can detach it.
            let pid =
                child(|| i32::from(nattch(id) < 2 || read(keep) > 1 || detach(keep) != Ok(0)));
            assert_eq!(exited(wait(pid)), 0);
        }
    });
    assert_eq!((nattch(id), detach(keep)), (1, Ok(0)));
    remove(id);
}

/// While one thread is about to fork, another thread must not attach the first segment of the
/// process. Otherwise the child would not know whether it has inherited the segment.
///
/// The test stops the forking thread by ptrace(2) at the entry of clone(2). At that moment the
/// library has prepared the fork. On the host kernel the test does nothing.
#[cfg(target_arch = "x86_64")]
pub(crate) fn first_attach() {
    const LOOKS: u32 = 100;
    if std::env::var_os("LD_PRELOAD").is_none() {
        return;
    }
    let id = segment(PAGE);
    let gate = Gate::new();
    let pid = child(|| {
        thread::scope(|scope| {
            let attached = scope.spawn(|| {
                gate.pass();
                attach(id, 0, 0).is_ok()
            });
            if nattch(id) != 0 || !signals::is_traced() {
                // SAFETY: the argument is an integer. Exit here to skip the test: the end of the
                // scope would wait for ever for the thread that waits at `gate`.
                unsafe { libc::_exit(77) };
            }
            let inner = child(|| i32::from(nattch(id) > 1));
            let is_well = exited(wait(inner)) == 0;
            i32::from(!is_well || !attached.join().expect("it ends"))
        })
    });
    if signals::exited_early(pid) {
        skip(Need::Kernel, "a child may not be traced");
        return;
    }
    signals::next_call(pid, &[libc::SYS_clone, libc::SYS_clone3]);
    gate.open();
    for _ in 0..LOOKS {
        assert_eq!(nattch(id), 0, "attached beside a fork");
        thread::sleep(std::time::Duration::from_millis(1));
    }
    signals::trace(libc::PTRACE_DETACH, pid, 0);
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!(nattch(id), 0);
    remove(id);
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn first_attach() {}

/// shmdt must unmap a segment before it lowers nattch, so that no mapping is left once nattch is 0.
///
/// The test stops the child by ptrace(2) at the entry of munmap(2). On the host kernel, whose
/// shmdt(2) does not call munmap(2), it does nothing.
#[cfg(target_arch = "x86_64")]
pub(crate) fn detach_order() {
    if std::env::var_os("LD_PRELOAD").is_none() {
        return;
    }
    let id = segment(PAGE);
    let at = attach(id, 0, 0).expect("an address");
    let pid = child(|| {
        if nattch(id) != 2 || !signals::is_traced() {
            return 77;
        }
        i32::from(detach(at) != Ok(0))
    });
    if signals::exited_early(pid) {
        skip(Need::Kernel, "a child may not be traced");
        return;
    }
    signals::next_call_of(pid, libc::SYS_munmap, at);
    assert_eq!(nattch(id), 2, "it is mapped");
    signals::trace(libc::PTRACE_DETACH, pid, 0);
    assert_eq!(exited(wait(pid)), 0);
    assert_eq!((nattch(id), detach(at)), (1, Ok(0)));
    remove(id);
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn detach_order() {}

pub(crate) fn permissions() {
    if !has_root() {
        return;
    }
    let id = segment(PAGE);
    let pid = child(|| {
        // SAFETY: the call takes numbers.
        let changed = unsafe { libc::setresuid(1000, 1000, 1000) };
        let is_refused =
            attach(id, 0, 0) == Err(libc::EACCES) && stat(id).err() == Some(libc::EACCES);
        let is_kept = control(id, libc::IPC_RMID, ptr::null_mut()) == Err(libc::EPERM);
        i32::from(changed != 0 || !is_refused || !is_kept)
    });
    assert_eq!(exited(wait(pid)), 0);
    remove(id);
}
