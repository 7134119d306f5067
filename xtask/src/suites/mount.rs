//! A server and its mount, and how to end both in any state.
//!
//! A [`Site`] is the directory of a suite, with a mount point, files and logs. A [`Mount`] is a
//! running server. This process must never access the mount, because a hung server would block it
//! for ever. Commands that access the mount are child processes with a time limit.
//!
//! # The end of a hung server
//!
//! To end a server that hangs, [`Mount`] takes three steps:
//! 1. Write `1` to the `abort` file of the server's FUSE connection. Each waiting request gets an
//!    error.
//! 2. Kill the server by its pid.
//! 3. Detach the mount point.
//!
//! The number of a FUSE connection is the minor device number of its mount, which
//! `/proc/self/mountinfo` shows without a call into the mount.
//!
//! Source: the kernel's `Documentation/filesystems/fuse.rst`; `proc_pid_mountinfo(5)`.

use super::cluster;
use crate::{
    Outcome, checks,
    process::{self, Ended},
};
use std::{
    fs::{self, File},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Mount options: all users may use the mount, and device nodes and set-user-ID programs work in
/// it.
pub(super) const OPTIONS: &str = "allow_other,dev,suid";

/// Like [`OPTIONS`], but requests arrive over `/dev/fuse`.
pub(super) const DEVICE: &str = "allow_other,dev,suid,transport=dev";

/// Mount options: the server checks permissions instead of the kernel, and four threads read
/// requests from `/dev/fuse`.
pub(super) const SERVER_PERMISSIONS: &str =
    "allow_other,dev,suid,no_default_permissions,threads=4,transport=dev";

/// Mount options: the kernel collects written data and times, and sends them to the server later.
pub(super) const WRITEBACK: &str = "allow_other,dev,suid,writeback_cache,transport=dev";

pub(super) const TRANSPORT: &str = "COREWALK_TRANSPORT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Tmpfs,
    Host,
    /// A store. At the end, `corewalk fsck` checks it.
    Store,
    /// A cluster file system, with its metadata in a PostgreSQL server of the suite. At the end,
    /// `corewalk fsck` checks it.
    Cluster,
    Mirror,
    AsyncMemory,
}

impl Source {
    fn example(self) -> Option<&'static str> {
        match self {
            Source::Mirror => Some("mirror"),
            Source::AsyncMemory => Some("async_memory"),
            Source::Tmpfs | Source::Host | Source::Store | Source::Cluster => None,
        }
    }
}

/// The names of the two mount points. They have the same length, so that paths below both have the
/// same length, too.
const FIRST: &str = "mnt";
const SECOND: &str = "two";
const READY_LIMIT: Duration = Duration::from_secs(20);
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
const FSCK_LIMIT: Duration = Duration::from_secs(60);
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

#[derive(Debug)]
pub(super) struct Site {
    pub(super) root: PathBuf,
    pub(super) program: PathBuf,
    pub(super) tools: PathBuf,
    /// The folder of the suite, on the machine's own file system. All users may enter it.
    pub(super) folder: PathBuf,
}

impl Site {
    pub(super) fn new(root: &Path, program: &Path, name: &str) -> io::Result<Self> {
        let folder = std::env::temp_dir().join(format!("corewalk-suite-{name}"));
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join("work"))?;
        Ok(Self {
            root: root.to_owned(),
            program: fs::canonicalize(program)?,
            tools: checks::target_folder(root).join("tools"),
            folder,
        })
    }

    pub(super) fn work(&self) -> PathBuf {
        self.folder.join("work")
    }

    fn host(&self) -> PathBuf {
        self.folder.join("host")
    }

    pub(super) fn run(&self, what: &str, command: &mut Command) -> Result<String, Outcome> {
        let log = self.folder.join(format!("{what}.log"));
        let (ended, output) = process::run_logged(command, &log, Duration::from_secs(15 * 60));
        settle(what, ended, output)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // The mount points are removed first. If a file system is still mounted on one, the removal
        // fails, and the directory stays. So no file of that file system is removed.
        let points = [FIRST, SECOND].map(|name| self.folder.join(name));
        points.iter().for_each(|point| drop(fs::remove_dir(point)));
        if !points.iter().any(|point| point.exists()) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

#[derive(Debug)]
pub(super) struct Mount {
    pub(super) path: PathBuf,
    folder: PathBuf,
    program: PathBuf,
    server: Child,
    /// The output of the server.
    log: PathBuf,
    connection: Option<String>,
    has_hung: bool,
    /// True if the server is corewalk, which prints counters.
    has_counters: bool,
    store: Option<PathBuf>,
}

impl Mount {
    pub(super) fn start(site: &Site, options: &str) -> Result<Self, Outcome> {
        Self::start_with(site, Source::Tmpfs, options)
    }

    pub(super) fn start_with(site: &Site, from: Source, options: &str) -> Result<Self, Outcome> {
        let source = match from {
            Source::Tmpfs | Source::AsyncMemory => PathBuf::from("tmpfs"),
            Source::Host | Source::Mirror => site.host(),
            Source::Store => format!("store:{}", site.host().display()).into(),
            Source::Cluster => cluster::make(site)?.into(),
        };
        let mut mount = Self::serve(site, from, &source, FIRST, options)?;
        mount.store = matches!(from, Source::Store | Source::Cluster).then_some(source);
        Ok(mount)
    }

    pub(super) fn second(&self, site: &Site, options: &str) -> Result<Self, Outcome> {
        let source = self.store.as_ref().expect("the mount is one of a cluster file system");
        Self::serve(site, Source::Cluster, source, SECOND, options)
    }

    fn serve(
        site: &Site,
        from: Source,
        source: &Path,
        name: &str,
        options: &str,
    ) -> Result<Self, Outcome> {
        let path = site.folder.join(name);
        let log = site.folder.join(format!("{name}.log"));
        let host = site.host();
        let made = fs::create_dir_all(&path).and_then(|()| fs::create_dir_all(&host));
        let spawned = made.and_then(|()| File::create(&log)).and_then(|out| {
            let mut command = match from.example() {
                Some(example) => {
                    let examples = checks::target_folder(&site.root).join("debug/examples");
                    let mut command = Command::new(examples.join(example));
                    command.arg("--allow-other");
                    command.args((from == Source::Mirror).then_some(&host)).arg(&path);
                    command
                }
                None => {
                    let mut command = Command::new(&site.program);
                    command.arg("mount").arg(source).arg(&path).args(["-o", options]);
                    if let Ok(transport) = std::env::var(TRANSPORT) {
                        // If an option is given twice, the later one holds.
                        command.args(["-o", &format!("transport={transport}")]);
                        if from == Source::Cluster && transport != "dev" {
                            // Only over `/dev/fuse` can a back end have its own file locks. Here
                            // the kernel must keep them.
                            command.args(["-o", "local_lock=all"]);
                        }
                    }
                    command
                }
            };
            command.process_group(0).stdin(Stdio::null());
            command.stderr(out.try_clone()?).stdout(out).spawn()
        });
        let server = spawned
            .map_err(|error| Outcome::Failed(format!("the server cannot be started: {error}")))?;
        let mut mount = Self {
            folder: site.folder.clone(),
            program: site.program.clone(),
            server,
            log: log.clone(),
            connection: None,
            has_hung: false,
            has_counters: from.example().is_none(),
            store: None,
            path,
        };
        let line = format!("mounted {} on {}", source.display(), mount.path.display());
        let mut is_dead = false;
        let is_ready = process::wait_until(READY_LIMIT, || {
            is_dead = mount.has_died();
            let printed = fs::read_to_string(&log).unwrap_or_default();
            let is_mounted = match from.example() {
                // The examples print no line when the mount is ready.
                Some(_) => mount.is_mounted(),
                None => printed.lines().any(|printed| printed == line),
            };
            is_dead || is_mounted
        });
        if is_dead || !is_ready {
            let printed = fs::read_to_string(&log).unwrap_or_default();
            return Err(Outcome::Failed(format!("the mount did not get ready: {printed}")));
        }
        mount.connection = connection_of(&mount.path);
        Ok(mount)
    }

    pub(super) fn run(
        &mut self,
        what: &str,
        command: &mut Command,
        limit: Duration,
    ) -> Result<String, Outcome> {
        let (ended, output) = self.run_to_end(what, command, limit);
        settle(what, ended, output)
    }

    pub(super) fn shell(&mut self, what: &str, script: &str) -> Result<String, Outcome> {
        let mut command = Command::new("sh");
        // This process must not access the mount, because a hung server would block it. So the
        // shell changes to the mount's root.
        command.args(["-euc", &format!("cd \"$MNT\"\n{script}")]).env("MNT", &self.path);
        command.env("WORK", self.folder.join("work"));
        self.run(what, &mut command, Duration::from_secs(10 * 60))
    }

    pub(super) fn run_to_end(
        &mut self,
        what: &str,
        command: &mut Command,
        limit: Duration,
    ) -> (Ended, String) {
        let log = self.folder.join(format!("{what}.log"));
        let spawned = File::create(&log).and_then(|out| {
            command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
            command.process_group(0).spawn()
        });
        let Ok(mut child) = spawned else { return (Ended::NotStarted, String::new()) };
        let ended = process::poll(&mut child, limit).unwrap_or_else(|| {
            self.has_hung = true;
            self.abort();
            match process::kill(&mut child) {
                Ended::Stuck => Ended::Stuck,
                _ => Ended::TimedOut,
            }
        });
        let output = fs::read(&log).unwrap_or_default();
        (ended, String::from_utf8_lossy(&output).into_owned())
    }

    pub(super) fn has_died(&mut self) -> bool {
        !matches!(self.server.try_wait(), Ok(None))
    }

    pub(super) fn signal_server(&self, name: &str) {
        process::signal(&self.server.id().to_string(), name);
    }

    pub(super) fn kill_server(&mut self) -> Ended {
        process::kill(&mut self.server)
    }

    /// Aborts the FUSE connection, so that each waiting request gets an error.
    pub(super) fn abort(&self) {
        let Some(connection) = &self.connection else { return };
        let folder = Path::new(CONNECTIONS);
        if !folder.join(connection).exists() {
            // Only fusectl shows the directory of the FUSE connection.
            let _ = Command::new("mount").args(["-t", "fusectl", "fusectl", CONNECTIONS]).status();
        }
        if let Err(error) = fs::write(folder.join(connection).join("abort"), "1") {
            eprintln!("cannot abort connection {connection}: {error}");
        }
    }

    pub(super) fn detach(&self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).stderr(Stdio::null()).status();
    }

    pub(super) fn is_mounted(&self) -> bool {
        mount_line(&self.path).is_some()
    }

    /// Ends the server by SIGTERM. The server must exit with status 0 and leave no mount, and a
    /// store must have no errors.
    pub(super) fn finish(mut self) -> Outcome {
        if self.has_hung {
            return Outcome::Failed("the server hung".to_owned());
        }
        if self.has_died() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            return Outcome::Failed(format!("the server died: {}", checks::tail(&log, 20)));
        }
        if self.has_counters {
            let mut stat = Command::new(&self.program);
            stat.arg("stat").arg(&self.path).arg("--json");
            let (ended, counters) = self.run_to_end("stat", &mut stat, Duration::from_secs(10));
            match ended {
                Ended::Well => println!("counters: {}", counters.trim()),
                _ => return ended.outcome("corewalk stat --json"),
            }
        }
        self.signal_server("TERM");
        match process::poll(&mut self.server, LEAVE_LIMIT) {
            Some(Ended::Well) if !self.is_mounted() => self.check_store(),
            Some(Ended::Well) => Outcome::Failed("the server left its mount behind".to_owned()),
            Some(ended) => ended.outcome("the server on SIGTERM"),
            None => Outcome::Failed("the server does not end on SIGTERM".to_owned()),
        }
    }

    fn check_store(&self) -> Outcome {
        let Some(store) = &self.store else { return Outcome::Passed };
        let mut fsck = Command::new(&self.program);
        process::run(fsck.arg("fsck").arg(store), FSCK_LIMIT).outcome("corewalk fsck")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.has_died() {
            self.abort();
            self.kill_server();
        }
        if self.is_mounted() {
            self.detach();
        }
    }
}

/// Returns the output of a command. If the command has failed, prints the end of the output.
fn settle(what: &str, ended: Ended, output: String) -> Result<String, Outcome> {
    if ended == Ended::Well {
        return Ok(output);
    }
    println!("{}", checks::tail(&output, 60));
    Err(ended.outcome(what))
}

/// Returns the number of the mount's FUSE connection: the minor device number of the mount.
fn connection_of(path: &Path) -> Option<String> {
    let line = mount_line(path)?;
    let is_fuse = line.split(" - ").nth(1).is_some_and(|rest| rest.starts_with("fuse"));
    let device = line.split(' ').nth(2).filter(|_| is_fuse)?;
    Some(device.split_once(':')?.1.to_owned())
}

fn mount_line(path: &Path) -> Option<String> {
    let path = path.to_str()?;
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut lines = table.lines().rev();
    lines.find(|line| line.split(' ').nth(4) == Some(path)).map(str::to_owned)
}
