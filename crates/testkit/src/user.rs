//! Calls as another user.
//!
//! Linux keeps credentials for each thread. So root can make some calls as another user, on a
//! thread of their own.
//!
//! Source: credentials(7), setresuid(2).

use crate::real::thread;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};

/// Runs `work` as the user `uid` with the group `gid` and the supplementary groups `groups`, on a
/// new thread.
///
/// # Panics
///
/// Panics if this process is not root, or if `work` panics.
pub fn run_as<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let done = scope.spawn(|| {
            let groups: Vec<Gid> = groups.iter().map(|&gid| Gid::from_raw(gid)).collect();
            set_thread_groups(&groups).expect("root is permitted to");
            set_thread_gid(Gid::from_raw(gid)).expect("root is permitted to");
            set_thread_uid(Uid::from_raw(uid)).expect("root is permitted to");
            work()
        });
        done.join().expect("the work does not panic")
    })
}
