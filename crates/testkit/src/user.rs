//! Calls as another user.
//!
//! Linux keeps credentials for each thread. So root can make some calls as another user, on a
//! thread of their own.
//!
//! Source: credentials(7), setresuid(2), user_namespaces(7).

use crate::real::thread;
use crate::require::{Need, skip};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Number of checks whether a process has entered its new namespace, before the wait fails.
const TRIES: u32 = 5000;
const PAUSE: Duration = Duration::from_millis(1);

/// A user namespace. It lives until this value is dropped and no process is in it.
#[derive(Debug)]
pub struct UserNamespace(File);

impl UserNamespace {
    /// Makes a user namespace with `count` user IDs and group IDs, from `first` on. These IDs stand
    /// for `count` IDs of the current namespace, from `outer` on. If this machine forbids user
    /// namespaces, prints a message and returns `None`.
    ///
    /// # Panics
    ///
    /// Panics if the program unshare(1) is missing, or if this process is not root.
    pub fn new(first: u32, outer: u32, count: u32) -> Option<UserNamespace> {
        let mut child = Command::new("unshare")
            .args(["--user", "sleep", "60"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("unshare(1) can be started");
        let namespace = UserNamespace::of(&mut child);
        if namespace.is_some() {
            let map = format!("{first} {outer} {count}");
            for file in ["uid_map", "gid_map"] {
                fs::write(format!("/proc/{}/{file}", child.id()), &map).expect("root may");
            }
        }
        child.kill().expect("a child that was not waited for can be killed");
        child.wait().expect("a child can be waited for");
        namespace
    }

    /// Waits until `child` has entered its namespace.
    fn of(child: &mut Child) -> Option<UserNamespace> {
        let path = format!("/proc/{}/ns/user", child.id());
        let ours = fs::read_link("/proc/self/ns/user").expect("read our namespace");
        for _ in 0..TRIES {
            if fs::read_link(&path).is_ok_and(|theirs| theirs != ours) {
                return File::open(&path).ok().map(UserNamespace);
            }
            if child.try_wait().expect("a child can be waited for").is_some() {
                break;
            }
            thread::sleep(PAUSE);
        }
        skip(Need::Kernel, "unshare(1) makes no user namespace");
        None
    }

    /// Returns a command that runs `program` in this user namespace, as user `id` and group `id`.
    /// The program has the capabilities that this user has in the user namespace.
    pub fn command(&self, id: u32, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new("nsenter");
        let file = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        command.arg(format!("--user={file}")).arg(format!("--setuid={id}"));
        command.arg(format!("--setgid={id}")).arg(program.as_ref());
        command
    }
}

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
