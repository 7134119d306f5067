//! Mounts the file systems that a benchmark compares. After a run, no mount and no server process
//! is left.
//!
//! A mount is a server process and a mount point in a temporary folder. It is ready when
//! `/proc/self/mounts` has it.
//!
//! However a run ends, each mount is dropped. The drop unmounts lazily, even if a process uses the
//! mount. It then waits for the server, kills it if it does not end in time, and removes the
//! folders.
//!
//! SIGINT and SIGTERM only set a flag that the run checks between two steps. Each server is in a
//! process group of its own, so a SIGINT from the terminal does not reach it.
//!
//! # Missing programs
//! If a server is not installed, the benchmark prints its name and skips it.
//!
//! Source: mount.fuse(8), umount2(2), signal(7).

mod programs;
pub(crate) mod trivial;

pub(crate) use programs::{corewalk, ours, rclone, s3fs, server, trivial};

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use corewalk_base::primitives::Arc;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use rustix::fs::statfs;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

/// The directory where the host has mounted its tmpfs.
pub(crate) const TMPFS: &str = "/dev/shm";
/// The type of an ext4 in statfs(2).
const EXT4_MAGIC: u64 = 0xef53;
/// Time limit for a server to mount, and to end after it was unmounted.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks of a condition for which no call can wait.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// A folder for all files of one run, removed on drop.
pub(crate) struct Scratch(PathBuf);

/// A directory on which a benchmark runs: a mount with its server, or a plain directory of the
/// host.
pub(crate) struct Mounted {
    /// The name in the rows.
    pub(crate) variant: &'static str,
    pub(crate) directory: PathBuf,
    /// None for a plain directory.
    pub(crate) server: Option<Child>,
}

impl Scratch {
    /// Makes a folder on the host's tmpfs, or else in the directory for temporary files.
    ///
    /// # Errors
    /// An error if the folder cannot be made.
    pub(crate) fn in_memory(label: &str) -> anyhow::Result<Scratch> {
        let (tmpfs, temporary) = (Path::new(TMPFS), std::env::temp_dir());
        Scratch::new(if tmpfs.is_dir() { tmpfs } else { &temporary }, label)
    }

    /// Returns a new folder in `parent`. Its name contains the pid and `label`.
    ///
    /// # Errors
    /// An error if the folder cannot be made.
    pub(crate) fn new(parent: &Path, label: &str) -> anyhow::Result<Scratch> {
        let path = parent.join(format!("corewalk-lab-{}-{label}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Scratch(path))
    }

    /// Returns where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a new folder `name` inside this folder.
    ///
    /// # Errors
    /// An error if the folder cannot be made.
    pub(crate) fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Mounted {
    /// Starts the server `program`, and waits until it has mounted at `directory`.
    ///
    /// # Errors
    /// The server does not start, ends, or mounts nothing within ten seconds, or the kernel does
    /// not check permissions in its mount.
    pub(crate) fn start(
        variant: &'static str,
        mut program: Command,
        directory: PathBuf,
    ) -> anyhow::Result<Mounted> {
        program.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        let server = program.spawn().with_context(|| format!("{variant} does not start"))?;
        // From here on, the drop of `mounted` unmounts and ends the server in any case.
        let mut mounted = Mounted { variant, directory, server: Some(server) };
        let start = Instant::now();
        let options = loop {
            if let Some(options) = mounted.options()? {
                break options;
            }
            let server = mounted.server.as_mut().expect("it was just started");
            if let Some(status) = server.try_wait()? {
                bail!("{variant} ended before it had mounted: {status}");
            }
            ensure!(start.elapsed() < PATIENCE, "{variant} mounted nothing in {PATIENCE:?}");
            thread::sleep(LOOK_EVERY);
        };
        // A mount without permission checks would have less work than all others.
        let is_checked = options.split(',').any(|option| option == "default_permissions");
        ensure!(is_checked, "the kernel does not check permissions there: {options}");
        Ok(mounted)
    }

    /// As [`Mounted::start`]. If that is not possible, prints the reason and returns None.
    ///
    /// # Errors
    /// An error if `corewalk` itself cannot be mounted on its default transport.
    pub(crate) fn start_or_skip(
        table: &str,
        variant: &'static str,
        program: anyhow::Result<Command>,
        directory: PathBuf,
    ) -> anyhow::Result<Option<Mounted>> {
        match program.and_then(|program| Mounted::start(variant, program, directory)) {
            Ok(mounted) => Ok(Some(mounted)),
            Err(error) => {
                ensure!(variant != "corewalk", "corewalk's own mount does not work: {error:#}");
                eprintln!("{table}: skipped {variant}: {error:#}");
                Ok(None)
            }
        }
    }

    /// Returns the directories without a server: `linux` in `memory`, and `linux-ext4` in `disk` if
    /// that is on an ext4.
    ///
    /// # Errors
    /// An error if a directory cannot be made.
    pub(crate) fn without_server(
        table: &str,
        memory: &Scratch,
        disk: &Scratch,
    ) -> anyhow::Result<Vec<Mounted>> {
        let plain = |variant, parent: &Scratch| -> anyhow::Result<_> {
            Ok(Mounted { variant, directory: parent.folder(variant)?, server: None })
        };
        let mut all = vec![plain("linux", memory)?];
        if statfs(disk.path()).context("statfs")?.f_type as u64 == EXT4_MAGIC {
            all.push(plain("linux-ext4", disk)?);
        } else {
            eprintln!("{table}: skipped linux-ext4: {} is on none", disk.path().display());
        }
        Ok(all)
    }

    /// Keeps the server on the processors in `cpus`.
    pub(crate) fn pin(&self, cpus: &CpuSet) {
        for thread in self.threads() {
            // A thread that ended meanwhile needs no processor.
            let _ = sched_setaffinity(Some(thread), cpus);
        }
    }

    /// Returns the nanoseconds of processor time of the server's threads, or 0 if there is no
    /// server or no such figure.
    pub(crate) fn cpu_ns(&self) -> u64 {
        let of = |thread: Pid| {
            let text = fs::read_to_string(format!("/proc/{}/schedstat", thread.as_raw_pid()));
            text.ok()?.split_whitespace().next()?.parse::<u64>().ok()
        };
        self.threads().into_iter().filter_map(of).sum()
    }

    /// Returns the options of the mount as the kernel reports them (proc_pid_mounts(5)), or None if
    /// the directory is not mounted.
    fn options(&self) -> io::Result<Option<String>> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let options = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let is_here = fields.next().map(Path::new) == Some(&self.directory);
            fields.nth(1).filter(|_| is_here)
        });
        Ok(options.map(str::to_owned))
    }

    fn threads(&self) -> Vec<Pid> {
        let Some(server) = &self.server else { return vec![] };
        let Ok(tasks) = fs::read_dir(format!("/proc/{}/task", server.id())) else { return vec![] };
        let number = |task: fs::DirEntry| task.file_name().to_str()?.parse::<i32>().ok();
        tasks.flatten().filter_map(number).filter_map(Pid::from_raw).collect()
    }

    /// Unmounts by umount2(2) if that is permitted, otherwise by fusermount3(1).
    fn unmount(&self) {
        if unmount(&self.directory, UnmountFlags::DETACH).is_err()
            && matches!(self.options(), Ok(Some(_)))
        {
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
        let Some(mut server) = self.server.take() else { return };
        self.unmount();
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

/// Returns an error if SIGINT or SIGTERM has come. From the first call on, these signals do not end
/// the process.
///
/// # Errors
/// An error once one of the signals has come.
pub(crate) fn check_interrupt() -> anyhow::Result<()> {
    static IS_SET: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| {
        let is_set = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            let flag = signal_hook::flag::register(signal, Arc::clone(&is_set));
            flag.expect("a program may handle these signals");
        }
        is_set
    });
    // ORDERING: Relaxed. A flag that a signal handler sets.
    ensure!(!IS_SET.load(Ordering::Relaxed), "interrupted");
    Ok(())
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
        let program = Command::new("false");
        let error = Mounted::start("nobody", program, folder).err().expect("nothing was mounted");
        assert!(error.to_string().contains("ended before"), "{error:#}");
    }
}
