//! The system call in which another thread waits.
//!
//! A FUSE request for no change comes from chown(2) without an owner, and also from the first step
//! of a write. Only the system call of the waiting thread tells them apart.
//!
//! Source: proc_pid_syscall(5).

use rustix::thread::{Timespec, nanosleep};

/// The numbers of chown(2) and its relatives.
#[cfg(target_arch = "x86_64")]
const CHOWN: &[i64] = &[libc::SYS_chown, libc::SYS_lchown, libc::SYS_fchown, libc::SYS_fchownat];
/// The numbers of chown(2) and its relatives.
#[cfg(not(target_arch = "x86_64"))]
const CHOWN: &[i64] = &[libc::SYS_fchown, libc::SYS_fchownat];

/// How often the file of a thread is read while the thread does not sleep yet.
const TRIES: u32 = 1000;
/// The pause before the next try.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000 };

/// Returns true if the thread with the ID `thread` waits inside chown(2), lchown(2), fchown(2) or
/// fchownat(2). Waits a while if the thread does not sleep yet. Returns `None` if its system call
/// is unknown, for example because this process may not trace the thread.
pub fn waits_in_chown(thread: u32) -> Option<bool> {
    let path = format!("/proc/{thread}/syscall");
    for _ in 0..TRIES {
        let text = std::fs::read_to_string(&path).ok()?;
        match text.split_ascii_whitespace().next()? {
            "running" => drop(nanosleep(&PAUSE)),
            number => return number.parse().ok().map(|number| CHOWN.contains(&number)),
        }
    }
    None
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn thread_that_waits_elsewhere_is_not_in_chown() {
        // The first thread of a test process waits for the threads of the tests.
        assert_eq!(waits_in_chown(std::process::id()), Some(false));
        // Use an ID that no thread has: all IDs are below 2^22.
        assert_eq!(waits_in_chown(u32::MAX), None);
    }
}
