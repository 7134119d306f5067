//! The command line, and every mistake that can be made on it.
//!
//! Each test starts the program as a user does. Tests that mount print that they are skipped where
//! that is not possible.

#![forbid(unsafe_code)]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use corewalk_sync::primitives::{
    thread,
    unmodelled::{AtomicU64, Ordering},
};

/// How long anything may take before it is given up.
const LIMIT: Duration = Duration::from_secs(30);

/// A folder that goes away with its test, whatever is mounted in it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. Only the numbers must differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("corewalk-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the mount points in the folder.
    fn mounts(&self) -> Vec<PathBuf> {
        let table = mount_table();
        let paths = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
        paths.filter(|path| path.starts_with(&self.0)).collect()
    }

    /// Asserts that the command fails with `status` and one line that holds `words`, and that it
    /// mounts nothing here.
    fn assert_refused(&self, command: Command, status: i32, words: &str) {
        let before = self.mounts();
        let shown = format!("{command:?}");
        let output = run(command);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{shown} said: {said}");
        assert!(said.contains(words), "{shown} said: {said}");
        assert_eq!(said.lines().count(), 1, "{shown} said: {said}");
        assert!(said.starts_with("corewalk: "), "{shown} said: {said}");
        assert!(output.stdout.is_empty(), "{shown} has an output");
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

/// A server in the foreground, killed if the test ends before it.
struct Server {
    child: Child,
    /// The line that it said.
    line: String,
}

impl Server {
    fn start(arguments: &[&str], path: &Path) -> Server {
        let mut command = corewalk(&["mount", "tmpfs"]);
        command.arg(path).args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program");
        let mut line = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut line).expect("a line");
        Server { child, line }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }

    fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn corewalk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_corewalk"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Returns how a child ends, which must be soon.
fn wait(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(begin.elapsed() < LIMIT, "it does not end");
        thread::yield_now();
    }
}

/// Runs to the end and returns what was said.
fn run(mut command: Command) -> Output {
    let (done, ended) = channel();
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program");
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    thread::spawn(move || {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let _ = out.as_mut().map(|out| out.read_to_end(&mut stdout));
        let _ = err.as_mut().map(|err| err.read_to_end(&mut stderr));
        let _ = done.send((stdout, stderr));
    });
    let status = wait(&mut child);
    let (stdout, stderr) = ended.recv_timeout(LIMIT).expect("its output ends with it");
    Output { status, stdout, stderr }
}

fn mount_table() -> String {
    fs::read_to_string("/proc/self/mountinfo").expect("the mount table")
}

fn is_mounted(path: &Path) -> bool {
    let path = path.to_str().expect("a plain path");
    mount_table().lines().any(|line| line.split(' ').nth(4) == Some(path))
}

fn can_mount() -> bool {
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse");
        return false;
    }
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: not root");
    }
    is_root
}

#[test]
fn help_is_there_on_every_level() {
    for arguments in
        [&["--help"][..], &["mount", "--help"], &["stat", "--help"], &["help", "mount"]]
    {
        let output = run(corewalk(arguments));
        assert!(output.status.success(), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: corewalk"));
        assert!(output.stderr.is_empty());
    }
    assert!(run(corewalk(&["--version"])).status.success());
}

#[test]
fn incomplete_command_line_is_a_usage_error() {
    for arguments in [
        &[][..],
        &["mount"],
        &["mount", "tmpfs"],
        &["stat"],
        &["frobnicate"],
        &["mount", "tmpfs", "/nowhere", "more"],
        &["mount", "--frobnicate", "tmpfs", "/nowhere"],
    ] {
        let output = run(corewalk(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn bad_words_are_usage_errors() {
    let folder = Folder::new();
    let mount = |source: &str, options: &str| {
        let mut command = corewalk(&["mount", source]);
        command.arg(folder.path("m")).args(["-o", options]);
        command
    };
    folder.assert_refused(mount("nfs", "ro"), 2, "unknown source 'nfs'");
    folder.assert_refused(mount("tmpfs", "frobnicate"), 2, "unknown option 'frobnicate'");
    folder.assert_refused(mount("tmpfs", "ro,size=much"), 2, "bad value in option 'size=much'");
    folder.assert_refused(
        mount("tmpfs", "no_default_permissions,attr_timeout=1"),
        2,
        "timeouts must be 0",
    );
    assert!(!folder.path("m").exists());
}

#[test]
fn mountpoint_that_cannot_be_is_refused() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("file"), "").expect("a file");
    fs::create_dir(folder.path("dir")).expect("a folder");
    let mount = |path: PathBuf| {
        let mut command = corewalk(&["mount", "tmpfs"]);
        command.arg(path);
        command
    };
    folder.assert_refused(mount(folder.path("file")), 1, "not a directory");
    folder.assert_refused(mount(folder.path("file/below")), 1, "Not a directory");
    folder.assert_refused(mount(folder.path("not/there")), 1, "No such file or directory");
    folder.assert_refused(mount(folder.path("line\nbreak/x")), 1, "line\\nbreak/x");
    let _first = Server::start(&[], &folder.path("dir"));
    folder.assert_refused(mount(folder.path("dir")), 1, "something is mounted there already");
    let mut daemon = mount(folder.path("dir"));
    daemon.arg("--daemon");
    folder.assert_refused(daemon, 1, "something is mounted there already");
}

#[test]
fn stat_of_what_is_no_mount_fails() {
    let folder = Folder::new();
    let stat = |path: PathBuf| {
        let mut command = corewalk(&["stat"]);
        command.arg(path);
        command
    };
    folder.assert_refused(stat(folder.path("missing")), 1, "No such file or directory");
    folder.assert_refused(stat(folder.0.clone()), 1, "not the root of a mount of corewalk");
}

#[test]
fn mount_says_one_line_and_leaves_on_a_signal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("made");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut server = Server::start(&["-o", "size=1m"], &path);
        assert_eq!(server.line, format!("mounted tmpfs on {}\n", path.display()));
        fs::write(path.join("file"), "x").expect("a file");
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        assert!(!is_mounted(&path) && !path.exists(), "it leaves nothing");
    }
}

#[test]
fn outside_umount_ends_the_program() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("a folder");
    let mut server = Server::start(&[], &path);
    let umount = Command::new("umount").arg(&path).status().expect("umount");
    assert!(umount.success());
    assert_eq!(server.wait().code(), Some(0));
    assert!(path.exists(), "it was there before");
}

#[test]
fn busy_mount_is_detached_on_a_signal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut server = Server::start(&[], &path);
    let file = fs::File::create(path.join("file")).expect("a file");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!is_mounted(&path) && !path.exists());
    assert!(file.sync_all().is_err(), "nobody serves it any more");
}

#[test]
fn killed_server_leaves_room_for_the_next() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("a folder");
    let mut server = Server::start(&[], &path);
    let _file = fs::File::create(path.join("file")).expect("a file");
    server.signal(rustix::process::Signal::KILL);
    server.wait();
    assert!(fs::metadata(path.join("file")).is_err());
    let mut again = corewalk(&["mount", "tmpfs"]);
    again.arg(&path);
    folder.assert_refused(again, 1, "umount -l");
    let mut stat = corewalk(&["stat"]);
    stat.arg(&path);
    folder.assert_refused(stat, 1, "lost its server");
    assert!(Command::new("umount").arg("-l").arg(&path).status().expect("umount").success());
    let mut server = Server::start(&[], &path);
    fs::write(path.join("file"), "x").expect("the next mount works");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn daemon_returns_when_the_mount_works() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut command = corewalk(&["mount", "tmpfs", "--daemon", "-o", "ro,fsname=mine"]);
    // A relative path, which the process in the background has to know too.
    command.arg("m").current_dir(&folder.0);
    let output = run(command);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "mounted tmpfs on m\n");
    assert!(is_mounted(&path));
    assert!(mount_table().lines().any(|line| line.ends_with("default_permissions,allow_other")
        && line.contains("fuse.corewalk mine ro")));
    assert!(fs::write(path.join("file"), "x").is_err(), "it is read-only");
    assert!(Command::new("umount").arg(&path).status().expect("umount").success());
    let begin = Instant::now();
    while path.exists() {
        assert!(begin.elapsed() < LIMIT, "the daemon does not remove what it made");
        thread::yield_now();
    }
}

#[test]
fn stat_shows_the_counters() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let _server = Server::start(&["-o", "cache=64m"], &path);
    fs::write(path.join("file"), "x").expect("a file");
    let stat = |arguments: &[&str]| {
        let mut command = corewalk(&["stat"]);
        command.arg(&path).args(arguments);
        let output = run(command);
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("text")
    };
    let json: serde_json::Value = serde_json::from_str(&stat(&["--json"])).expect("JSON");
    for name in ["entries", "negatives", "bytes", "hits", "misses", "reclaimed"] {
        assert!(json[name].is_u64(), "{name} in {json}");
    }
    assert_eq!((&json["entries"], &json["budget_bytes"]), (&2.into(), &(64_u64 << 20).into()));
    let table = stat(&[]);
    assert!(table.lines().any(|line| line.starts_with("entries ") && line.ends_with(" 2")));
    fs::create_dir(path.join("dir")).expect("a folder");
    let mut below = corewalk(&["stat"]);
    below.arg(path.join("dir"));
    folder.assert_refused(below, 1, "not the root of a mount of corewalk");
}

#[test]
fn user_without_the_means_is_told_which() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("a folder");
    let mut command = corewalk(&["mount", "tmpfs"]);
    // As nobody, whose folder it is not.
    command.arg(&path).uid(65534).gid(65534).env("PATH", &folder.0);
    let program = Path::new(env!("CARGO_BIN_EXE_corewalk"));
    let runs = Command::new(program).arg("--version").uid(65534).gid(65534).output();
    if !runs.is_ok_and(|output| output.status.success()) {
        println!("skipped: nobody cannot run the program");
        return;
    }
    folder.assert_refused(command, 1, "no fusermount3");
}
