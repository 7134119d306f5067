//! A call must return `EFAULT` for an address that the program may not read or write, as in the
//! kernel.
//!
//! A role is a function that a test runs in a process of its own. The roles of this file make each
//! call with every kind of bad address for every pointer argument. They make the call by the C
//! library's function, and by syscall(2). The roles must pass on the host kernel as well.

use corewalk_testkit::sysv;
use libc::{c_int, c_long};
use std::ptr;

use crate::roles::{remove, set, value};

const PAGE: usize = 4096;

/// The errno of a call, or 0 if it has succeeded.
type Answer = i32;

fn answer(result: c_long) -> Answer {
    match result {
        -1 => std::io::Error::last_os_error().raw_os_error().expect("an errno"),
        _ => 0,
    }
}

/// syscall(2) with six arguments.
fn call(number: c_long, arguments: &[usize]) -> Answer {
    let at = |index: usize| arguments.get(index).copied().unwrap_or(0);
    // SAFETY: the library and the kernel refuse bad addresses. Good addresses are in memory that
    // this test function has mapped.
    answer(unsafe { libc::syscall(number, at(0), at(1), at(2), at(3), at(4), at(5)) })
}

/// Three pages: the first is writable, the second is read-only, and the third has no access.
struct Pages(usize);

impl Pages {
    fn new() -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the call names no address, so it replaces no mapping in use.
        let made = unsafe { libc::mmap(ptr::null_mut(), 4 * PAGE, protection, flags, -1, 0) };
        assert_ne!(made, libc::MAP_FAILED);
        let pages = made.expose_provenance();
        // Fill the first two pages with ones. A message type that begins at any of their addresses
        // is then positive, and so valid.
        // SAFETY: this function has mapped the pages writable.
        unsafe { made.write_bytes(1, 2 * PAGE) };
        for (at, protection) in [(1, libc::PROT_READ), (2, libc::PROT_NONE)] {
            let page = ptr::with_exposed_provenance_mut(pages + at * PAGE);
            // SAFETY: the page is in the mapping that the call above has made.
            assert_eq!(unsafe { libc::mprotect(page, PAGE, protection) }, 0);
        }
        let last = ptr::with_exposed_provenance_mut(pages + 3 * PAGE);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(last, PAGE) }, 0);
        Self(pages)
    }

    fn unreadable(&self, bytes: usize) -> Vec<usize> {
        let crossing = self.0 + 2 * PAGE - bytes + 1;
        vec![
            0,
            8,
            self.0 + 2 * PAGE,
            self.0 + 3 * PAGE,
            crossing,
            self.0 + 2 * PAGE - 1,
            usize::MAX - 7,
            usize::MAX - PAGE + 1,
            1 << 47,
            0xdead << 48,
        ]
    }

    fn unwritable(&self, bytes: usize) -> Vec<usize> {
        let crossing = self.0 + PAGE - bytes + 1;
        let read_only = [self.0 + PAGE, self.0 + PAGE + 64, crossing, self.0 + PAGE - 1];
        self.unreadable(bytes).into_iter().chain(read_only).collect()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the pages are ours.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.0), 3 * PAGE) };
    }
}

fn check(what: &str, addresses: Vec<usize>, expected: Answer, of: impl Fn(usize) -> Answer) {
    for address in addresses {
        assert_eq!(of(address), expected, "{what}: {address:x}");
    }
}

fn good<T: Copy>(pages: &Pages, value: T) -> usize {
    let address = pages.0 + PAGE - size_of::<T>();
    // SAFETY: the first page is writable, and has space for a `T` at its end.
    unsafe { ptr::with_exposed_provenance_mut::<T>(address).write_unaligned(value) };
    address
}

pub(crate) fn semaphores() {
    let pages = Pages::new();
    let id = set(3);
    let raw = id as usize;
    let sops = |count: usize| {
        check("semop", pages.unreadable(6 * count), libc::EFAULT, |address| {
            // SAFETY: a bad address is refused.
            answer(
                unsafe { libc::semop(id, ptr::with_exposed_provenance_mut(address), count) }.into(),
            )
        });
        check("semop by number", pages.unreadable(6 * count), libc::EFAULT, |address| {
            call(libc::SYS_semop, &[raw, address, count])
        });
        check("semtimedop by number", pages.unreadable(6 * count), libc::EFAULT, |address| {
            call(libc::SYS_semtimedop, &[raw, address, count, 0])
        });
        // semop(2) copies the operations before it looks up the id. So with a bad address and a bad
        // id it fails with `EFAULT`.
        check("semop of no set", pages.unreadable(6 * count), libc::EFAULT, |address| {
            call(libc::SYS_semop, &[usize::MAX, address, count])
        });
    };
    [1, 2, 9].into_iter().for_each(sops);
    check("semop of none", pages.unreadable(6), libc::EINVAL, |address| {
        call(libc::SYS_semop, &[raw, address, 0])
    });
    check("semop of many", pages.unreadable(6), libc::E2BIG, |address| {
        call(libc::SYS_semop, &[raw, address, 501])
    });
    let add = good(&pages, sysv::sembufs([(0, 1, 0), (1, 1, 0)]));
    let timeouts = pages.unreadable(16).split_off(1);
    check("semtimedop", timeouts, libc::EFAULT, |address| {
        call(libc::SYS_semtimedop, &[raw, add, 1, address])
    });
    assert_eq!((value(id, 0), value(id, 1)), (0, 0));
    assert_eq!(call(libc::SYS_semop, &[raw, add, 2]), 0);
    assert_eq!((value(id, 0), value(id, 1)), (1, 1));
    semaphore_commands(&pages, id);
    remove(id);
}

fn semaphore_commands(pages: &Pages, id: c_int) {
    let raw = id as usize;
    let index = raw & 0x7fff;
    let of = |id: usize, cmd: c_int| {
        move |address: usize| {
            let by_number = call(libc::SYS_semctl, &[id, 0, cmd as usize, address]);
            let buf = ptr::with_exposed_provenance_mut::<libc::semid_ds>(address);
            // SAFETY: a bad address is refused.
            let done = unsafe { libc::semctl(id as c_int, 0, cmd, buf) };
            assert_eq!(answer(done.into()), by_number);
            by_number
        }
    };
    let bytes = size_of::<libc::semid_ds>();
    check("IPC_STAT", pages.unwritable(bytes), libc::EFAULT, of(raw, libc::IPC_STAT));
    check("SEM_STAT", pages.unwritable(bytes), libc::EFAULT, of(index, libc::SEM_STAT));
    check("SEM_STAT_ANY", pages.unwritable(bytes), libc::EFAULT, of(index, 20));
    check("IPC_SET", pages.unreadable(bytes), libc::EFAULT, of(raw, libc::IPC_SET));
    check("IPC_INFO", pages.unwritable(40), libc::EFAULT, of(raw, libc::IPC_INFO));
    check("SEM_INFO", pages.unwritable(40), libc::EFAULT, of(raw, libc::SEM_INFO));
    check("GETALL", pages.unwritable(6), libc::EFAULT, of(raw, libc::GETALL));
    check("SETALL", pages.unreadable(6), libc::EFAULT, of(raw, libc::SETALL));
    let other = raw + 0x8000;
    check("no set", pages.unwritable(6), libc::EINVAL, of(other, libc::GETALL));
    check("no set", pages.unreadable(6), libc::EINVAL, of(other, libc::SETALL));
    check("no set", pages.unwritable(bytes), libc::EINVAL, of(other, libc::IPC_STAT));
    check("no set", pages.unreadable(bytes), libc::EFAULT, of(other, libc::IPC_SET));
    assert_eq!(of(raw, libc::IPC_STAT)(good(pages, [0_u8; 104])), 0);
    assert_eq!(of(raw, libc::SETALL)(good(pages, [5_u16, 6, 7])), 0);
    assert_eq!(of(raw, libc::GETALL)(good(pages, [0_u16; 3])), 0);
    assert_eq!(sysv::getall(id, 3), Ok(vec![5, 6, 7]));
}

pub(crate) fn queues() {
    let pages = Pages::new();
    let id = sysv::msg::msgget(libc::IPC_PRIVATE, 0o600).expect("a queue");
    let raw = id as usize;
    let send = |size: usize| {
        move |address: usize| {
            let message = ptr::with_exposed_provenance(address);
            // SAFETY: a bad address is refused.
            let done = answer(unsafe { libc::msgsnd(id, message, size, 0) }.into());
            assert_eq!(call(libc::SYS_msgsnd, &[raw, address, size, 0]), done);
            done
        }
    };
    check("msgsnd", pages.unreadable(8), libc::EFAULT, send(0));
    check("msgsnd", pages.unreadable(13), libc::EFAULT, send(5));
    check("msgsnd", pages.unreadable(8), libc::EFAULT, send(9000));
    check("msgsnd to none", pages.unreadable(8), libc::EFAULT, |address| {
        call(libc::SYS_msgsnd, &[raw + 0x8000, address, 0, 0])
    });
    // At `text_gone`, the message's type is readable, but its text is not. msgsnd(2) checks the
    // length, then reads the text, then looks up the queue. So the first error in this order must
    // be returned.
    let text_gone = pages.0 + 2 * PAGE - size_of::<c_long>();
    let send_by_number = |size, id| call(libc::SYS_msgsnd, &[id, text_gone, size, 0]);
    assert_eq!(send_by_number(9000, raw), libc::EINVAL);
    assert_eq!(send_by_number(5, raw + 0x8000), libc::EFAULT);
    receive(&pages, id);
    queue_commands(&pages, raw);
    assert_eq!(call(libc::SYS_msgctl, &[raw, libc::IPC_RMID as usize, 0]), 0);
}

fn receive(pages: &Pages, id: c_int) {
    let receive = |flags: c_int| {
        move |address: usize| {
            let buffer = ptr::with_exposed_provenance_mut(address);
            // SAFETY: a bad address is refused.
            answer(unsafe { libc::msgrcv(id, buffer, 5, 0, flags) } as c_long)
        }
    };
    check("no message", pages.unwritable(13), libc::ENOMSG, receive(libc::IPC_NOWAIT));
    let hello = sysv::msg::Buffer { mtype: 1, text: *b"hello" };
    for address in pages.unwritable(13) {
        assert_eq!(sysv::msg::msgsnd(id, &hello, 5, 0), Ok(0));
        assert_eq!(receive(0)(address), libc::EFAULT, "{address:x}");
        // The failed msgrcv(2) has removed the message from the queue.
        let good = good(pages, [0_u8; 13]);
        assert_eq!(receive(libc::IPC_NOWAIT)(good), libc::ENOMSG, "{address:x}");
    }
    assert_eq!(sysv::msg::msgsnd(id, &hello, 5, 0), Ok(0));
    let good = good(pages, [0_u8; 13]);
    assert_eq!(call(libc::SYS_msgrcv, &[id as usize, good, 5, 0, 0]), 0);
    // SAFETY: there are 13 bytes.
    let bytes = unsafe { ptr::with_exposed_provenance::<[u8; 13]>(good).read_unaligned() };
    assert_eq!(&bytes, b"\x01\0\0\0\0\0\0\0hello");
}

fn queue_commands(pages: &Pages, raw: usize) {
    let of = |id: usize, cmd: c_int| {
        move |address: usize| {
            let by_number = call(libc::SYS_msgctl, &[id, cmd as usize, address]);
            let buf = ptr::with_exposed_provenance_mut(address);
            // SAFETY: a bad address is refused.
            let done = unsafe { libc::msgctl(id as c_int, cmd, buf) };
            assert_eq!(answer(done.into()), by_number);
            by_number
        }
    };
    let (bytes, index) = (size_of::<libc::msqid_ds>(), raw & 0x7fff);
    check("IPC_STAT", pages.unwritable(bytes), libc::EFAULT, of(raw, libc::IPC_STAT));
    check("MSG_STAT", pages.unwritable(bytes), libc::EFAULT, of(index, libc::MSG_STAT));
    check("MSG_STAT_ANY", pages.unwritable(bytes), libc::EFAULT, of(index, 13));
    check("IPC_SET", pages.unreadable(bytes), libc::EFAULT, of(raw, libc::IPC_SET));
    check("IPC_INFO", pages.unwritable(32), libc::EFAULT, of(raw, libc::IPC_INFO));
    check("MSG_INFO", pages.unwritable(32), libc::EFAULT, of(raw, libc::MSG_INFO));
    check("no queue", pages.unwritable(bytes), libc::EINVAL, of(raw + 0x8000, libc::IPC_STAT));
    check("no queue", pages.unreadable(bytes), libc::EFAULT, of(raw + 0x8000, libc::IPC_SET));
}

pub(crate) fn segments() {
    let pages = Pages::new();
    // SAFETY: the call takes numbers.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, PAGE, 0o600) };
    assert!(id >= 0);
    let raw = id as usize;
    let of = |id: usize, cmd: c_int| {
        move |address: usize| {
            let by_number = call(libc::SYS_shmctl, &[id, cmd as usize, address]);
            let buf = ptr::with_exposed_provenance_mut(address);
            // SAFETY: a bad address is refused.
            let done = unsafe { libc::shmctl(id as c_int, cmd, buf) };
            assert_eq!(answer(done.into()), by_number);
            by_number
        }
    };
    let (bytes, index) = (size_of::<libc::shmid_ds>(), raw & 0x7fff);
    check("IPC_STAT", pages.unwritable(bytes), libc::EFAULT, of(raw, libc::IPC_STAT));
    check("SHM_STAT", pages.unwritable(bytes), libc::EFAULT, of(index, 13));
    check("SHM_STAT_ANY", pages.unwritable(bytes), libc::EFAULT, of(index, 15));
    check("IPC_SET", pages.unreadable(bytes), libc::EFAULT, of(raw, libc::IPC_SET));
    check("IPC_INFO", pages.unwritable(72), libc::EFAULT, of(raw, libc::IPC_INFO));
    check("SHM_INFO", pages.unwritable(48), libc::EFAULT, of(raw, 14));
    check("no segment", pages.unwritable(bytes), libc::EINVAL, of(raw + 0x8000, libc::IPC_STAT));
    assert_eq!(call(libc::SYS_shmctl, &[raw, libc::IPC_RMID as usize, 0]), 0);
}

/// rt_sigaction(2) by syscall(2) must refuse bad addresses, which the library itself reads and
/// writes.
pub(crate) fn actions() {
    let pages = Pages::new();
    let action = |new: usize, old: usize| {
        call(libc::SYS_rt_sigaction, &[libc::SIGUSR2 as usize, new, old, 8])
    };
    check("action", pages.unreadable(32).split_off(1), libc::EFAULT, |new| action(new, 0));
    check("action before", pages.unwritable(32).split_off(1), libc::EFAULT, |old| action(0, old));
    assert_eq!(action(0, good(&pages, [0_u8; 32])), 0);
}

/// Calls must refuse an address whose memory was unmapped, although earlier calls have accepted it.
pub(crate) fn gone() {
    let id = set(1);
    for _ in 0..3 {
        let pages = Pages::new();
        let sop = sysv::sembufs([(0, 1, 0)]);
        let address = good(&pages, sop);
        for _ in 0..3 {
            assert_eq!(call(libc::SYS_semop, &[id as usize, address, 1]), 0);
        }
        drop(pages);
        assert_eq!(call(libc::SYS_semop, &[id as usize, address, 1]), libc::EFAULT);
    }
    // semop(2) must accept an array of operations on the stack, on the heap and in the program's
    // image. It must accept the same array again in later calls.
    static SOPS: [[i16; 3]; 1] = [[0, 1, 0]];
    let (stack, heap) = ([[0_i16, 1, 0]], Box::new([[0_i16, 1, 0]]));
    for sops in [&stack, &*heap, &SOPS] {
        for _ in 0..3 {
            let address = ptr::from_ref(sops).expose_provenance();
            assert_eq!(call(libc::SYS_semop, &[id as usize, address, 1]), 0);
        }
    }
    assert_eq!(value(id, 0), 18);
    // A constant of the program cannot be written to.
    let address = ptr::from_ref(&SOPS).expose_provenance();
    let refused = call(libc::SYS_semctl, &[id as usize, 0, libc::GETALL as usize, address]);
    assert_eq!(refused, libc::EFAULT);
    remove(id);
}
