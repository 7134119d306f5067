//! Tells whether another thread waits in chown(2).
//!
//! The kernel sends a SETATTR request that changes no attribute in two cases: a thread calls
//! chown(2) without owner and group, or a write begins. Only the system call in which that thread
//! waits tells the two cases apart.
//!
//! Source: proc_pid_syscall(5).

use rustix::thread::{Timespec, nanosleep};

/// The numbers of the system calls that change the owner of a file.
#[cfg(target_arch = "x86_64")]
const CHOWN: &[i64] = &[libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];
/// The numbers of the system calls that change the owner of a file.
#[cfg(not(target_arch = "x86_64"))]
const CHOWN: &[i64] = &[libc::SYS_fchown, libc::SYS_fchownat];

/// The numbers of the calls of 32-bit programs that change the owner of a file. With each is the
/// index (from 0) of the argument that is the user ID. A 64-bit program can make these calls, too.
const CHOWN_32: [(i64, usize); 7] =
    [(207, 1), (212, 1), (198, 1), (182, 1), (95, 1), (16, 1), (FCHOWNAT_32, 2)];
#[cfg(target_arch = "x86_64")]
const FCHOWNAT_32: i64 = 298;
#[cfg(not(target_arch = "x86_64"))]
const FCHOWNAT_32: i64 = 325;
/// This bit of a system call number on x86-64 selects the x32 ABI, whose pointers have 32 bits.
const X32: i64 = 0x4000_0000;
/// No program has an address below this one (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: u64 = 0x1_0000;

const TRIES: u32 = 1000;
/// How long to pause before `/proc` is read again, if the thread was running.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// Returns true if the thread with the ID `thread` waits inside chown(2), lchown(2), fchown(2) or
/// fchownat(2). Waits a while if the thread does not sleep yet. Returns `None` if its system call
/// is unknown, for example because this process may not trace the thread.
///
/// A number of a 32-bit call can also be the number of an unrelated 64-bit call. For example, 198
/// is lchown32 or lremovexattr(2), whose second argument is an address. The function counts such a
/// call as a chown only if the user ID is -1 or below 65536.
pub fn waits_in_chown(thread: u32) -> Option<bool> {
    let path = format!("/proc/{thread}/syscall");
    for _ in 0..TRIES {
        let text = std::fs::read_to_string(&path).ok()?;
        if text.trim_end() != "running" {
            return is_chown(&text);
        }
        drop(nanosleep(&PAUSE));
    }
    None
}

fn is_chown(text: &str) -> Option<bool> {
    let mut words = text.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    if CHOWN.contains(&(number & !X32)) {
        return Some(true);
    }
    let Some((_, at)) = CHOWN_32.iter().find(|(chown, _)| *chown == number) else {
        return Some(false);
    };
    let user = u64::from_str_radix(words.nth(*at)?.strip_prefix("0x")?, 16).ok()?;
    Some(user < LOWEST_ADDRESS || user == u64::from(u32::MAX))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn thread_that_waits_elsewhere_is_not_in_chown() {
        // The first thread of the test process waits for the threads that run the tests. It must
        // not seem to wait in chown(2).
        assert_eq!(waits_in_chown(std::process::id()), Some(false));
        // Use a thread ID that no thread has: all IDs are below 2^22.
        assert_eq!(waits_in_chown(u32::MAX), None);
    }

    #[test]
    fn calls_of_32_bit_programs_are_recognised() {
        let rest = "0x0 0x0 0x0 0x7ffd 0x7f12";
        let text = |number: i64, user: &str| format!("{number} 0x3 {user} 0xffffffff {rest}");
        let native = libc::SYS_fchown;
        assert_eq!(is_chown(&text(native, "0xffffffff")), Some(true));
        assert_eq!(is_chown(&text(native | X32, "0x7")), Some(true));
        for (number, at) in CHOWN_32 {
            let path = if at == 2 { "0x5000000 " } else { "" };
            assert_eq!(is_chown(&text(number, &format!("{path}0xffffffff"))), Some(true));
            assert_eq!(is_chown(&text(number, &format!("{path}0x7"))), Some(true));
            assert_eq!(is_chown(&text(number, &format!("{path}0x55d0c0de"))), Some(false));
        }
        assert_eq!(is_chown(&text(libc::SYS_pwrite64, "0x7")), Some(false));
        assert_eq!(is_chown("-1 0x7ffd 0x7f12"), Some(false));
        assert_eq!(is_chown(""), None);
    }
}
