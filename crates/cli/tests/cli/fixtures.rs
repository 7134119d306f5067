//! Starts the program as a user would do it, and cleans up after each test.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use corewalk_base::primitives::{
    thread,
    unmodelled::{AtomicU64, Ordering},
};
use corewalk_testkit::require::{has_fuse, has_root};

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_corewalk");

/// How long a test waits for the program before it fails.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Dropping the directory unmounts all mounts below it and removes it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. The numbers only have to differ, which the atomic addition ensures.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("corewalk-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the directory of the test is created");
        Folder(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn mounts(&self) -> Vec<PathBuf> {
        let table = mount_table();
        let paths = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        paths.filter(|path| path.starts_with(&self.0)).collect()
    }

    pub(crate) fn assert_refused(&self, command: Command, status: i32, words: &str) {
        let before = self.mounts();
        let shown = format!("{command:?}");
        let output = run(command);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{shown} printed: {printed}");
        assert!(printed.contains(words), "{shown} printed: {printed}");
        assert_eq!(printed.lines().count(), 1, "{shown} printed: {printed}");
        assert!(printed.starts_with("corewalk: "), "{shown} printed: {printed}");
        assert!(output.stdout.is_empty(), "{shown} wrote to standard output");
        assert_eq!(self.mounts(), before, "{shown} left a mount");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for path in self.mounts() {
            let _ = Command::new("umount").arg("-l").arg(path).status();
        }
        if self.mounts().is_empty() {
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

pub(crate) struct Server {
    child: Child,
    /// The line that the server has printed when the mount was ready. It is empty if the server has
    /// failed.
    pub(crate) line: String,
}

impl Server {
    pub(crate) fn start(arguments: &[&str], path: &Path) -> Server {
        Server::of("tmpfs", arguments, path)
    }

    pub(crate) fn of(source: &str, arguments: &[&str], path: &Path) -> Server {
        let mut command = corewalk(&["mount", source]);
        command.arg(path).args(arguments);
        Server::run(command)
    }

    /// Starts a server, and waits until it prints that the mount is ready, or fails.
    pub(crate) fn run(mut command: Command) -> Server {
        command.stderr(Stdio::null());
        Server::spawn(command)
    }

    /// Starts a server that writes its warnings to `stderr`.
    pub(crate) fn with_stderr(stderr: File, source: &str, path: &Path) -> Server {
        let mut command = corewalk(&["mount", source]);
        command.arg(path).stderr(stderr);
        Server::spawn(command)
    }

    fn spawn(mut command: Command) -> Server {
        command.stdout(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("the stream is piped");
        BufReader::new(output).read_line(&mut line).expect("a line is read");
        Server { child, line }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn resident_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    /// Returns the largest resident size of the process so far.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    fn status_kib(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("the status is read");
        let size = status.lines().find_map(|line| line.strip_prefix(key));
        let size = size.and_then(|words| words.trim().split(' ').next()?.parse().ok());
        size.expect("a number of KiB")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the process runs");
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn corewalk(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns a command whose standard output is full: each write to `/dev/full` fails with `ENOSPC`.
pub(crate) fn with_full_stdout(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" > /dev/full", "sh", PROGRAM]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Waits at most [`LIMIT`].
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return status;
        }
        assert!(start.elapsed() < LIMIT, "the process does not end");
        thread::yield_now();
    }
}

pub(crate) fn run(mut command: Command) -> Output {
    let (done, ended) = channel();
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    thread::spawn(move || {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let _ = out.as_mut().map(|out| out.read_to_end(&mut stdout));
        let _ = err.as_mut().map(|err| err.read_to_end(&mut stderr));
        let _ = done.send((stdout, stderr));
    });
    let status = wait(&mut child);
    let (stdout, stderr) = ended.recv_timeout(LIMIT).expect("the output ends with the process");
    Output { status, stdout, stderr }
}

pub(crate) fn counter(path: &Path, name: &str) -> u64 {
    let mut text = [0; 4096];
    let attribute = corewalk_fuse::XATTR_STAT;
    let len = rustix::fs::getxattr(path, attribute, &mut text[..]).expect("the counters are read");
    let counters: serde_json::Value = serde_json::from_slice(&text[..len]).expect("valid JSON");
    counters[name].as_u64().expect("a counter")
}

pub(crate) fn mount_table() -> String {
    // Paths in the mount table need not be UTF-8.
    let table = fs::read("/proc/self/mountinfo").expect("the mount table can be read");
    String::from_utf8_lossy(&table).into_owned()
}

pub(crate) fn is_mounted(path: &Path) -> bool {
    let path = path.to_str().expect("the path is UTF-8");
    mount_table().lines().any(|line| line.split(' ').nth(4) == Some(path))
}

pub(crate) fn can_mount() -> bool {
    has_fuse() && has_root()
}
