//! Which process a task belongs to, and whether that process is gone.
//!
//! A pid is used again, so a process is known by its pid and its start time (field 22 of
//! `/proc/PID/stat`, in clock ticks since boot), in one word. Both are of the pid namespace of the
//! reader, so a namespace is shared within one pid namespace only (`file`).
//!
//! | bits | field |
//! |---|---|
//! | 0-21 | pid, below 2^22 as with Linux |
//! | 22-61 | start time, 0 if it is not known |
//! | 62 | reserved, 0 |
//! | 63 | 1 |
//!
//! A process that has died and is not yet waited for has no memory any more: it counts as gone. One
//! whose first thread has ended while others run is not: it has other threads.
//!
//! # Programs
//!
//! execve(2) keeps pid and start time, and ends what the program was in the middle of. Where its stack began (field 28)
//! tells one program of a process from the next: the kernel chooses it anew each time, and above it lie
//! arguments and environment. Without randomization a program that is replaced by one with the same of both is
//! taken for it. The random bytes that each program is given (getauxval(3) `AT_RANDOM`) would tell those too, but
//! no other process may read them. 0 is what is shown of a process that may not be looked at: then nothing is said.
//!
//! Where `/proc` shows nothing of a process that kill(2) says is there, it counts as there: that is what
//! `hidepid` does.
//!
//! Source: proc(5) `/proc/pid/stat`; kill(2); pidfd_open(2); Linux `fs/proc/array.c` (`do_task_stat`).

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::process::{Pid, PidfdFlags, pidfd_open, test_kill_process};

/// Bytes of a small file that are read.
const SMALL_BYTES: usize = 4096;

const PID_BITS: u32 = 22;
const START_MASK: u64 = (1 << 40) - 1;
const IS_SET: u64 = 1 << 63;

/// A process, or rather one life of a pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(pub(crate) u64);

/// How closely to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// A few system calls; a pid that is used again looks alive.
    Quick,
    /// What `/proc` says as well.
    Close,
}

impl Identity {
    /// The identity of tasks of a namespace that one process has: nobody asks whether they are gone.
    pub(crate) const PRIVATE: Self = Self(IS_SET);

    /// Returns that of the calling process.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }

    /// Returns that of the process that has `pid` now.
    pub(crate) fn of(pid: u32) -> Self {
        Self::new(pid, stat(pid).map_or(0, |stat| stat.start))
    }

    /// Returns that of process `pid`, which was started at `start` ticks.
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

    /// Returns true if the process has ended. What is no identity is of nobody, and so gone.
    pub(crate) fn is_gone(self, look: Look) -> bool {
        if self == Self::PRIVATE {
            return false;
        }
        if self.0 & IS_SET == 0 || !is_there(self.pid()) {
            return true;
        }
        if look == Look::Quick || self.start() == 0 {
            return has_ended(self.pid());
        }
        match stat(self.pid()) {
            Some(stat) => stat.is_dead || stat.start & START_MASK != self.start(),
            None => !is_there(self.pid()),
        }
    }
}

/// Returns what tells the program of a process from those that it was and will be, or 0 if that is not known.
pub(crate) fn image_of(pid: u32) -> u64 {
    stat(pid).map_or(0, |stat| stat.image)
}

/// Returns true if the process has another program now than when `image` was what told it.
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

fn is_there(pid: u32) -> bool {
    let pid = Pid::from_raw(pid.cast_signed());
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns true if a process has ended, and perhaps nobody has waited for it. Where that cannot be told so, because
/// there is no descriptor to be had, it counts as there.
fn has_ended(pid: u32) -> bool {
    let Some(pid) = Pid::from_raw(pid.cast_signed()) else { return true };
    // The descriptor can be read from once the last thread has ended.
    let process = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(errno) => return errno == Errno::SRCH,
    };
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(1)
}

struct Stat {
    start: u64,
    /// Where the stack of the program began, or 0.
    image: u64,
    is_dead: bool,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&read_small(&format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the text of a small file of `/proc`.
///
/// By system calls of our own: the C library's functions may be those of a program that stands in front of
/// them, fakeroot(1) for one, and that itself makes calls of the namespace.
///
/// # Errors
///
/// Those of open(2) and read(2).
pub(crate) fn read_small(path: &str) -> Result<String, Errno> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0; SMALL_BYTES];
    let mut filled = 0;
    loop {
        match read(&file, &mut bytes[filled..]) {
            Ok(0) => return Ok(String::from_utf8_lossy(&bytes[..filled]).into_owned()),
            Ok(more) => filled += more,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Reads a line of `/proc/PID/stat`. The name in it may hold any character, so fields are counted from
/// its end.
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
    fn own_process_is_there() {
        let own = Identity::own();
        assert_ne!(own.start(), 0);
        assert!(!own.is_gone(Look::Quick) && !own.is_gone(Look::Close));
    }

    #[test]
    fn pid_that_was_used_again_is_gone() {
        let own = Identity::own();
        let earlier = Identity::new(own.pid(), own.start() - 1);
        assert!(earlier.is_gone(Look::Close));
        // Why the start time is there: without it the life before looks alive.
        assert!(!Identity::new(own.pid(), 0).is_gone(Look::Close));
    }

    #[test]
    fn process_that_ended_is_gone_before_and_after_it_is_waited_for() {
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
    fn nobody_is_gone() {
        assert!(Identity(0).is_gone(Look::Quick) && Identity(7).is_gone(Look::Quick));
        assert!(!Identity::PRIVATE.is_gone(Look::Close));
    }

    #[test]
    fn name_with_spaces_and_parentheses_is_passed_over() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 1 0 4242 5";
        let stat = parse(&format!("7 (a) b ) Z) {tail}")).unwrap();
        assert_eq!((stat.start, stat.is_dead), (4242, false));
        assert!(parse("7 (a").is_none() && parse("7 (a) Z").is_none());
        let leader = tail.replacen('S', "Z", 1).replacen(" 1 0 4242", " 3 0 4242", 1);
        assert!(!parse(&format!("7 (a) {leader}")).unwrap().is_dead, "it has other threads");
    }
}
