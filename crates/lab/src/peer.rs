//! Mounts of the file systems that a table compares. A run leaves no mount and no server behind.
//!
//! A mount is a server process, or a device of the host (`ext4`), and a mount point in a folder for
//! temporary files. It is ready when the mount point has another device number than its parent.
//! When a mount is dropped, however the run ends, the mount point is unmounted lazily, even if a
//! process uses it. Then the run waits for the server, kills it if it does not end, and removes the
//! folders. SIGINT and SIGTERM set a flag that the run checks between two steps. Servers have
//! process groups of their own, so the SIGINT of a terminal does not reach them.
//!
//! # What it refuses
//! A peer that is not installed is skipped. The run prints its name, and measures no other program
//! in its place.
//!
//! Source: mount.fuse(8), umount2(2), signal(7).

mod programs;

pub(crate) use programs::{Program, Threads, bindfs, ours, ours_passthrough, ours_store};

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use corewalk_base::primitives::Arc;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// The place of the host's tmpfs.
pub(crate) const TMPFS: &str = "/dev/shm";
/// How long a server may take to mount, and to leave.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks of a condition that has no event to wait for.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A folder for all files of one run. Dropping the value removes the folder.
pub(crate) struct Scratch {
    path: PathBuf,
}

/// A directory to measure. It is a mount, with its server if it has one, or a plain directory.
pub(crate) struct Mounted {
    variant: &'static str,
    directory: PathBuf,
    server: Option<Child>,
    /// False for a plain directory.
    is_mount: bool,
}

/// Properties of a mount that could make a comparison unfair.
pub(crate) struct Terms {
    /// The options that the kernel knows, as in proc_pid_mounts(5).
    pub(crate) options: String,
    /// All threads of the server, those that serve and the others.
    pub(crate) threads: usize,
}

/// Notices SIGINT and SIGTERM for as long as it lives.
pub(crate) struct Interrupt {
    is_set: Arc<AtomicBool>,
    handlers: Vec<signal_hook::SigId>,
}

impl Scratch {
    /// Makes a folder on the host's tmpfs. If the host has no tmpfs, makes it in the folder for
    /// temporary files.
    ///
    /// # Errors
    /// An error if the folder cannot be made.
    pub(crate) fn in_memory(label: &str) -> anyhow::Result<Scratch> {
        let (tmpfs, temporary) = (Path::new(TMPFS), std::env::temp_dir());
        Scratch::new(if tmpfs.is_dir() { tmpfs } else { &temporary }, label)
    }

    /// Returns a new folder in `parent`. Its name contains the pid of this process and `label`.
    ///
    /// # Errors
    /// An error if the folder cannot be made.
    pub(crate) fn new(parent: &Path, label: &str) -> anyhow::Result<Scratch> {
        let path = parent.join(format!("corewalk-lab-{}-{label}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch { path })
    }

    /// Returns where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a new folder `name` inside this folder.
    ///
    /// # Errors
    /// An error if the folder cannot be made.
    pub(crate) fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Mounted {
    /// Returns a directory without a server.
    pub(crate) fn plain(variant: &'static str, directory: PathBuf) -> Mounted {
        Mounted { variant, directory, server: None, is_mount: false }
    }

    /// Starts the server `program`, and waits until it has mounted at `directory`.
    ///
    /// # Errors
    /// An error if the server does not start, ends, or mounts nothing within ten seconds.
    pub(crate) fn start(
        variant: &'static str,
        program: Program,
        directory: PathBuf,
    ) -> anyhow::Result<Mounted> {
        let mut command: Command = program.into_command();
        command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let server = command.spawn().with_context(|| format!("{variant} does not start"))?;
        // From here on it is taken down whatever happens.
        let mut mounted = Mounted { variant, directory, server: Some(server), is_mount: true };
        let start = Instant::now();
        while !mounted.is_mounted() {
            let server = mounted.server.as_mut().expect("it was just started");
            if let Some(status) = server.try_wait()? {
                bail!("{variant} ended before it had mounted: {status}");
            }
            ensure!(start.elapsed() < PATIENCE, "{variant} mounted nothing in {PATIENCE:?}");
            thread::sleep(LOOK_EVERY);
        }
        Ok(mounted)
    }

    /// Returns the name in the rows.
    pub(crate) fn variant(&self) -> &'static str {
        self.variant
    }

    /// Returns false for a plain directory.
    pub(crate) fn is_mount(&self) -> bool {
        self.is_mount
    }

    /// Returns the directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps the server on the processors in `cpus`.
    pub(crate) fn pin(&self, cpus: &CpuSet) {
        for thread in self.threads() {
            // A thread that ended meanwhile needs no processor.
            let _ = sched_setaffinity(Some(thread), cpus);
        }
    }

    /// Returns the processor time that the server's threads have used, in nanoseconds. Returns 0 if
    /// there is no server, or if the kernel does not tell.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let of = |thread: Pid| {
            let text = fs::read_to_string(format!("/proc/{}/schedstat", thread.as_raw_pid()));
            text.ok()?.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.threads().into_iter().filter_map(of).sum()
    }

    /// Returns the options of the mount in the kernel, and the number of threads of the server.
    ///
    /// # Errors
    /// An error if the directory is not mounted.
    pub(crate) fn terms(&self) -> anyhow::Result<Terms> {
        let mounts = fs::read_to_string("/proc/self/mounts").context("/proc/self/mounts")?;
        let options = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let is_here = fields.next().map(Path::new) == Some(&self.directory);
            fields.nth(1).filter(|_| is_here)
        });
        let options = options.context("there is no such mount")?.to_owned();
        Ok(Terms { options, threads: self.threads().len() })
    }

    fn threads(&self) -> Vec<Pid> {
        let Some(server) = &self.server else { return vec![] };
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", server.id())) else { return vec![] };
        let number = |task: fs::DirEntry| task.file_name().to_str()?.parse::<i32>().ok();
        tasks.flatten().filter_map(number).filter_map(Pid::from_raw).collect()
    }

    fn is_mounted(&self) -> bool {
        let device = |path: &Path| fs::symlink_metadata(path).map(|path| path.dev()).ok();
        let parent = self.directory.parent().and_then(device);
        let here = device(&self.directory);
        here.is_some() && here != parent
    }

    /// Unmounts the directory: by umount2(2) if that is permitted, otherwise by fusermount3(1).
    fn unmount(&self) {
        if unmount(&self.directory, UnmountFlags::DETACH).is_err() && self.is_mounted() {
            let _ = Command::new("fusermount3")
                .args(["-u", "-z"])
                .arg(&self.directory)
                .stderr(Stdio::null())
                .status();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.is_mount {
            return;
        }
        self.unmount();
        let Some(server) = &mut self.server else { return };
        let start = Instant::now();
        while matches!(server.try_wait(), Ok(None)) {
            if start.elapsed() > PATIENCE {
                let _ = server.kill();
                let _ = server.wait();
                return;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Interrupt {
    /// Starts noticing.
    ///
    /// # Errors
    /// If the handlers cannot be set.
    pub(crate) fn watch() -> anyhow::Result<Interrupt> {
        let is_set = Arc::new(AtomicBool::new(false));
        let mut handlers = vec![];
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            handlers.push(signal_hook::flag::register(signal, Arc::clone(&is_set))?);
        }
        Ok(Interrupt { is_set, handlers })
    }

    /// Checks that no signal has come.
    ///
    /// # Errors
    /// An error once SIGINT or SIGTERM has come.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        // ORDERING: Relaxed. A flag that a signal handler sets.
        ensure!(!self.is_set.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for &handler in &self.handlers {
            signal_hook::low_level::unregister(handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_gone_after_it_was_dropped() {
        let scratch = Scratch::new(&std::env::temp_dir(), "gone").unwrap();
        let folder = scratch.folder("a").unwrap();
        assert!(folder.is_dir());
        drop(scratch);
        assert!(!folder.exists());
    }

    #[test]
    fn server_that_mounts_nothing_is_an_error_and_is_taken_down() {
        let scratch = Scratch::new(&std::env::temp_dir(), "nothing").unwrap();
        let folder = scratch.folder("mnt").unwrap();
        let program = Program::new("false");
        let error = Mounted::start("nobody", program, folder).err().expect("nothing was mounted");
        assert!(error.to_string().contains("ended before"), "{error:#}");
    }
}
