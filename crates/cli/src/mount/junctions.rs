//! The junctions of a mounted cluster file system. A child process mounts each of them.
//!
//! Once a second, a thread checks whether junctions have changed, which costs no SQL statement. For
//! each new junction it starts a child process, `corewalk mount`. If such a child ends, for example
//! because its database cannot be reached, the thread starts it again after a pause.
//!
//! # The directory to mount on
//! Users may move the directories above a junction, and put symbolic links in their place. So the
//! thread opens the junction without leaving the mount and without following symbolic links. It
//! then compares device and inode number, and passes the open directory to the child as standard
//! input. The child mounts on `/proc/self/fd/0`, which leads to that directory whatever its path
//! is. Then the child closes its standard input. Otherwise the open directory would keep the mount
//! that contains it in use, and `umount -R` would fail.
//!
//! # The end
//! If this process is killed, the kernel sends SIGTERM to its children. Otherwise a child would go
//! on serving a file system that no path leads to.
//!
//! # Circles
//! A junction may lead back to a file system above it, which would make an endless path. So a child
//! gets the identities of the file systems above it (`--above`), and refuses to mount one of them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread::{self, JoinHandle};
use corewalk_cluster::{ClusterFs, Junction};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::failure::Failure;

const PLACE: &str = "/proc/self/fd/0";
const LOOK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_secs(10);
const START_LIMIT: Duration = Duration::from_secs(15);
/// How long the children may run after SIGTERM. A child that still runs then is killed.
const END_LIMIT: Duration = Duration::from_secs(30);

pub(super) struct Inherited {
    pub(super) options: Vec<OsString>,
    pub(super) above: Vec<String>,
}

/// The mounted junctions of one mount. The drop unmounts them.
pub(super) struct Junctions {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Mounted {
    junction: Junction,
    child: Option<Child>,
    /// The time at which a new child is started, if `child` is None.
    again: Instant,
}

impl Junctions {
    pub(super) fn start(
        fs: Arc<ClusterFs>,
        root: &Path,
        mut inherited: Inherited,
    ) -> Result<Junctions, Failure> {
        inherited.above.push(fs.id().to_owned());
        let device =
            std::fs::metadata(root).map_err(|error| Failure::of(root.display(), error))?.dev();
        let (stop, stopped) = channel();
        let mut crossing =
            Crossing { fs, root: root.to_owned(), device, inherited, mounted: HashMap::new() };
        // Mount the existing junctions before the command prints that the mount is ready.
        let seen = crossing.look(None);
        let thread = thread::spawn(move || crossing.run(seen, &stopped));
        Ok(Junctions { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Junctions {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread of the junctions has panicked");
        }
    }
}

/// Returns an error if the mount to be made, `id`, is one of the file systems above it. Otherwise
/// the junction would make an endless path.
pub(super) fn check_circle(id: &str, above: &[String], path: &Path) -> Result<(), Failure> {
    let why = "the file system is mounted above already; the junction makes a circle";
    let is_circle = above.iter().any(|it| it == id);
    if is_circle { Err(Failure::of(path.display(), why)) } else { Ok(()) }
}

/// Makes the kernel send SIGTERM to this child when its parent ends. Otherwise the child would go
/// on serving a file system that no path leads to.
pub(super) fn end_with_parent() -> Result<(), Failure> {
    let set = set_parent_process_death_signal(Some(Signal::TERM));
    set.map_err(|error| Failure::of("a signal at the end of the parent", error))
}

/// Closes the directory of the junction, which this child has inherited as standard input. As long
/// as the directory is open, `umount -R` of the mount that contains it fails.
pub(super) fn leave_place() -> Result<(), Failure> {
    let null = File::open("/dev/null").map_err(|error| Failure::of("/dev/null", error))?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| Failure::of("standard input", error))
}

struct Crossing {
    fs: Arc<ClusterFs>,
    root: PathBuf,
    /// The device number of the mount. It shows whether the mount is still at the path `root`,
    /// since a user may put another directory there.
    device: u64,
    inherited: Inherited,
    mounted: HashMap<u64, Mounted>,
}

impl Crossing {
    fn run(mut self, mut seen: Option<i64>, stopped: &Receiver<()>) {
        while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
            seen = self.look(seen);
            self.start_again();
        }
        end(self.mounted.drain().map(|(_, mounted)| mounted));
    }

    fn look(&mut self, seen: Option<i64>) -> Option<i64> {
        let version = self.fs.junctions_version();
        if seen == Some(version) {
            return seen;
        }
        let junctions = match self.fs.junctions() {
            Ok(junctions) => junctions,
            Err(error) => {
                log::warn!("the junctions cannot be read: {error}");
                return seen;
            }
        };
        let now: HashMap<u64, Junction> =
            junctions.into_iter().map(|junction| (junction.ino, junction)).collect();
        let is_same =
            |it: &Mounted| now.get(&it.junction.ino).is_some_and(|new| new.url == it.junction.url);
        let gone = self.mounted.extract_if(|_, mounted| !is_same(mounted));
        end(gone.map(|(_, mounted)| mounted));
        for (ino, junction) in now {
            match self.mounted.get_mut(&ino) {
                Some(mounted) => mounted.junction = junction,
                None => {
                    let child = self.start(&junction);
                    let again = Instant::now() + PAUSE;
                    self.mounted.insert(ino, Mounted { junction, child, again });
                }
            }
        }
        Some(version)
    }

    fn start_again(&mut self) {
        let mut due = Vec::new();
        for mounted in self.mounted.values_mut() {
            if let Some(child) = &mut mounted.child
                && let Ok(Some(status)) = child.try_wait()
            {
                log::warn!("the junction {} has ended: {status}", mounted.junction.path.display());
                (mounted.child, mounted.again) = (None, Instant::now() + PAUSE);
            }
            if mounted.child.is_none() && mounted.again <= Instant::now() {
                due.push(mounted.junction.ino);
            }
        }
        // Read the paths again, because directories above a junction may have been renamed.
        let paths =
            if due.is_empty() { Vec::new() } else { self.fs.junctions().unwrap_or_default() };
        for junction in paths.into_iter().filter(|junction| due.contains(&junction.ino)) {
            let child = self.start(&junction);
            let again = Instant::now() + PAUSE;
            self.mounted.insert(junction.ino, Mounted { junction, child, again });
        }
    }

    fn start(&self, junction: &Junction) -> Option<Child> {
        let started = self.open(junction).and_then(|place| self.spawn(junction, place));
        started
            .inspect_err(|error| {
                log::warn!("the junction {} is not mounted: {error}", junction.path.display());
            })
            .ok()
    }

    fn open(&self, junction: &Junction) -> std::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let place = openat2(root, &junction.path, flags, Mode::empty(), resolve)?;
        let place = File::from(place);
        let found = place.metadata()?;
        match (found.dev(), found.ino()) == (self.device, junction.ino) {
            true => Ok(place.into()),
            false => Err(std::io::Error::other("another directory has its path")),
        }
    }

    fn spawn(&self, junction: &Junction, place: OwnedFd) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("corewalk").arg("mount");
        for option in &self.inherited.options {
            command.arg("-o").arg(option);
        }
        for id in &self.inherited.above {
            command.args(["--above", id]);
        }
        command.args(["--", &junction.url, PLACE]).stdin(place).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(output) = &mut child.stdout {
            if !is_readable(output)? {
                // The child still waits, for example for its database. Keep the child and the pipe:
                // the child may write its line to the pipe later.
                return Ok(child);
            }
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.ends_with('\n') {
            return Ok(child);
        }
        Err(std::io::Error::other(format!("the mount has failed: {}", child.wait()?)))
    }
}

fn is_readable(output: &ChildStdout) -> std::io::Result<bool> {
    let mut polled = [PollFd::new(output, PollFlags::IN)];
    let limit = Timespec { tv_sec: START_LIMIT.as_secs() as i64, tv_nsec: 0 };
    Ok(retry_on_intr(|| poll(&mut polled, Some(&limit)))? > 0)
}

fn end(all: impl Iterator<Item = Mounted>) {
    let mut children: Vec<Child> = all.filter_map(|mounted| mounted.child).collect();
    for child in &children {
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    let begin = Instant::now();
    for child in &mut children {
        while matches!(child.try_wait(), Ok(None)) && begin.elapsed() < END_LIMIT {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
