//! The process of a task, and whether that process has ended.
//!
//! A pid is reused, so a process is identified by its pid and its start time, in one word. The
//! start time is field 22 of `/proc/PID/stat`, in clock ticks since boot. Both numbers depend on
//! the reader's pid namespace. So only processes of one pid namespace can share an IPC namespace
//! (`file`).
//!
//! | bits | field |
//! |---|---|
//! | 0-21 | pid, below 2^22 as in Linux |
//! | 22-61 | start time, or 0 if unknown |
//! | 62 | reserved, 0 |
//! | 63 | 1 |
//!
//! A zombie process has no memory any more, so it counts as ended. A process whose first thread has
//! ended counts as alive while it has other threads.
//!
//! # Programs
//!
//! execve(2) keeps the pid and the start time, but ends all threads of the old program. The *image*
//! tells one program of a process from the next. It is the address at which the program's stack
//! begins (field 28). The kernel chooses this address at random. The image has two limits:
//! - Without randomization, two programs with equal arguments and environments have the same image.
//! - The kernel shows an image of 0 if the reader lacks permission. Then the program is unknown.
//!
//! If `/proc` does not show a process, because it is mounted with `hidepid`, pidfd_open(2) tells
//! whether the process has ended.
//!
//! Source: proc(5) `/proc/pid/stat`; kill(2); pidfd_open(2); Linux `fs/proc/array.c`
//! (`do_task_stat`).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

const SMALL_BYTES: usize = 4096;

const PID_BITS: u32 = 22;
const START_MASK: u64 = (1 << 40) - 1;
const IS_SET: u64 = 1 << 63;

/// A process: one use of a pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(pub(crate) u64);

/// How thoroughly to check whether a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Check only by pidfd_open(2). This check does not detect a reused pid.
    Quick,
    /// Also compare the start time of the process with `/proc`, to detect a reused pid.
    Close,
}

impl Identity {
    /// The identity that all tasks of a private namespace have.
    pub(crate) const PRIVATE: Self = Self(IS_SET);

    /// Returns the identity of a process. `start` is its start time, in clock ticks after boot.
    pub(crate) fn new(pid: u32, start: u64) -> Self {
        let pid = u64::from(pid) & ((1 << PID_BITS) - 1);
        Self(IS_SET | (start & START_MASK) << PID_BITS | pid)
    }

    fn pid(self) -> u32 {
        (self.0 & ((1 << PID_BITS) - 1)) as u32
    }

    fn start(self) -> u64 {
        self.0 >> PID_BITS & START_MASK
    }

    /// Returns true if the process has ended, or if the word was damaged and is no identity.
    pub(crate) fn is_gone(self, look: Look) -> bool {
        if self == Self::PRIVATE {
            return false;
        }
        if self.0 & IS_SET == 0 {
            return true;
        }
        let is_close = look == Look::Close && self.start() != 0;
        match is_close.then(|| stat(self.pid())).flatten() {
            Some(stat) => stat.is_dead || stat.start & START_MASK != self.start(),
            None => has_ended(self.pid()),
        }
    }
}

/// The identity of the calling process and of its program. Other processes use it to check whether
/// the program still runs.
///
/// The identity is read from `/proc`. A process that drops privileges, changes its root directory,
/// or closes its descriptors before it registers may be unable to read `/proc` then. Such a process
/// should read its identity earlier, and pass it to [`crate::Namespace::adopt_as`].
#[derive(Clone, Copy, Debug)]
pub struct Program {
    pub(crate) identity: Identity,
    /// The address at which the program's stack began, or 0 if unknown.
    pub(crate) image: u64,
    /// The inode number of the pid namespace, or 0 if unknown.
    pub(crate) pid_namespace: u64,
}

impl Program {
    /// The identity of the one program to which all tasks of a private namespace belong.
    pub(crate) const PRIVATE: Self =
        Self { identity: Identity::PRIVATE, image: 0, pid_namespace: 0 };

    /// Returns the identity of the calling program, as far as `/proc` shows it.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        let (start, image) = stat(pid).map_or((0, 0), |stat| (stat.start, stat.image));
        Self { identity: Identity::new(pid, start), image, pid_namespace: pid_namespace() }
    }
}

/// Returns the inode number of the pid namespace of this process, or 0 if `/proc` does not show it.
pub(crate) fn pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |stat| stat.st_ino)
}

/// Returns true if the process has called execve(2) since it ran the program that `image`
/// identifies.
pub(crate) fn has_other_image(identity: Identity, image: u64) -> bool {
    if image == 0 || identity == Identity::PRIVATE || identity.0 & IS_SET == 0 {
        return false;
    }
    let is_other = |stat: Stat| {
        let is_same_process = stat.start & START_MASK == identity.start();
        is_same_process && stat.image != 0 && stat.image != image
    };
    stat(identity.pid()).is_some_and(is_other)
}

/// Returns true if the process with this pid has ended. A zombie counts as ended. If pidfd_open(2)
/// fails, kill(2) tells whether the process exists, and a zombie then counts as alive.
fn has_ended(pid: u32) -> bool {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return true };
    // The descriptor becomes readable when the last thread has ended.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return test_kill_process(pid) == Err(Errno::SRCH);
    };
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

/// The state of a process, read from its `/proc/PID/stat`.
pub(crate) struct Stat {
    pub(crate) start: u64,
    /// The address at which the program's stack began, or 0 if it is unknown.
    pub(crate) image: u64,
    is_dead: bool,
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    parse(&read_small(&format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a small file. This function makes its system calls directly: the functions of a preloaded
/// library, such as that of fakeroot(1), might call the namespace again.
pub(crate) fn read_small(path: &str) -> Result<String, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0; SMALL_BYTES];
    let mut filled = 0;
    loop {
        match retry_on_intr(|| read(&file, &mut bytes[filled..]))? {
            0 => return Ok(String::from_utf8_lossy(&bytes[..filled]).into_owned()),
            more => filled += more,
        }
    }
}

/// Reads the fields of `/proc/PID/stat`. The program's name may contain any character, so fields
/// are counted from the last closing parenthesis.
fn parse(line: &str) -> Option<Stat> {
    let (_, fields) = line.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let state = fields.first()?;
    let threads: u64 = fields.get(17)?.parse().ok()?;
    let start = fields.get(19)?.parse().ok()?;
    let image = fields.get(25).and_then(|field| field.parse().ok()).unwrap_or(0);
    Some(Stat { start, image, is_dead: matches!(*state, "Z" | "X" | "x") && threads <= 1 })
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn own_process_is_alive() {
        let own = Program::own().identity;
        assert_ne!(own.start(), 0);
        assert!(!own.is_gone(Look::Quick) && !own.is_gone(Look::Close));
    }

    #[test]
    fn process_whose_pid_was_reused_is_gone() {
        let own = Program::own().identity;
        let earlier = Identity::new(own.pid(), own.start() - 1);
        assert!(earlier.is_gone(Look::Close));
        // Control: without a start time, the earlier process seems alive.
        assert!(!Identity::new(own.pid(), 0).is_gone(Look::Close));
    }

    #[test]
    fn process_that_ended_is_gone_as_a_zombie_and_after_it() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = stat(child.id()).unwrap().start;
        let identity = Identity::new(child.id(), start);
        assert!(!identity.is_gone(Look::Close) && !identity.is_gone(Look::Quick));
        child.kill().unwrap();
        while stat(child.id()).is_some_and(|stat| !stat.is_dead) {
            corewalk_base::primitives::thread::yield_now();
        }
        assert!(identity.is_gone(Look::Close) && identity.is_gone(Look::Quick));
        child.wait().unwrap();
        assert!(identity.is_gone(Look::Quick));
    }

    #[test]
    fn word_that_is_no_identity_counts_as_ended() {
        assert!(Identity(0).is_gone(Look::Quick) && Identity(7).is_gone(Look::Quick));
        assert!(!Identity::PRIVATE.is_gone(Look::Close));
    }

    #[test]
    fn name_with_spaces_and_parentheses_is_skipped() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 0 4242 5";
        let stat = parse(&format!("7 (a) b ) Z) {tail}")).unwrap();
        assert_eq!((stat.start, stat.is_dead), (4242, false));
        assert!(parse("7 (a").is_none() && parse("7 (a) Z").is_none());
        let leader = tail.replacen('S', "Z", 1).replacen(" 1 0 4242", " 3 0 4242", 1);
        assert!(
            !parse(&format!("7 (a) {leader}")).unwrap().is_dead,
            "the process has other threads"
        );
    }
}
