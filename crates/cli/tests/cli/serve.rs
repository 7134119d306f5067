//! Tests of `corewalk ipc serve`. It must clean up after killed processes, and exit when its
//! namespace is removed.
//!
//! The tests make no IPC call on an object that a dead process has left, because such a call would
//! clean up, too. They only read which processes are registered.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions, SemBuf, SemFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixtures::{Folder, corewalk, run, wait};

const NAMESPACE: &str = "COREWALK_TEST_NAMESPACE";

const KEY: i32 = 7;

/// How long a test waits for a cleanup. `serve` promises a tenth of a second, but may take longer
/// on a machine under load.
const SOON: Duration = Duration::from_secs(120);

struct Running {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Running {
    fn start(mut command: Command, words: &str) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program starts");
        let mut output = BufReader::new(child.stdout.take().expect("the stream is piped"));
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let bytes = output.read_line(&mut line).expect("a line is read");
            assert_ne!(bytes, 0, "the process ended without printing {words}");
        }
        Self { child, output }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }

    fn end(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let mut printed = String::new();
        self.output.read_to_string(&mut printed).expect("the output ends with the process");
        (status, printed)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(path: &Path) -> Running {
    let mut command = corewalk(&["ipc", "serve", "--namespace"]);
    command.arg(path);
    Running::start(command, "serving ")
}

fn start_holder(path: &Path) -> Running {
    let mut command =
        Command::new(std::env::current_exe().expect("the path of this program is known"));
    command.args(["serve::holder", "--exact", "--nocapture"]).env(NAMESPACE, path);
    Running::start(command, "taken")
}

/// Not a test of its own: a test runs this function in a process that it kills. Without the
/// variable [`NAMESPACE`] it does nothing.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(NAMESPACE) else { return };
    let namespace = open(Path::new(&path));
    let task = namespace.register(Cred::root(), std::process::id()).expect("a task");
    let id = task.semget(KEY, 1, GetFlags::CREATE, 0o600).expect("a set");
    task.semop(id, &[SemBuf::new(0, 5, SemFlags::UNDO)]).expect("it is possible");
    println!("taken");
    let _bytes = std::io::stdin().read(&mut [0]);
}

fn open(path: &Path) -> Namespace {
    Namespace::open(path, NamespaceOptions::default()).expect("the namespace can be opened")
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < SOON, "timeout: {what}");
        thread::yield_now();
    }
}

fn scene() -> (Folder, PathBuf, Namespace) {
    let folder = Folder::new();
    let path = folder.path("namespace");
    let namespace = open(&path);
    (folder, path, namespace)
}

fn value(namespace: &Namespace) -> i32 {
    let task = namespace.register(Cred::root(), std::process::id()).expect("a task");
    let id = task.semget(KEY, 1, GetFlags::empty(), 0).expect("the set");
    task.sem_getval(id, 0).expect("a value")
}

#[test]
fn serve_cleans_up_after_a_killed_process_without_other_calls() {
    let (_folder, path, namespace) = scene();
    let server = serve(&path);
    let holder = start_holder(&path);
    let pid = holder.pid();
    assert!(namespace.pids().contains(&pid));
    assert_eq!(value(&namespace), 5);
    holder.kill();
    until("serve cleans up", || !namespace.pids().contains(&pid));
    assert_eq!(value(&namespace), 0);
    let number = Pid::from_raw(server.pid().cast_signed()).expect("a pid is positive");
    kill_process(number, Signal::TERM).expect("the process runs");
    let (status, printed) = server.end();
    assert_eq!((status.code(), printed.as_str()), (Some(0), ""));
}

#[test]
fn control_killed_process_stays_registered_without_serve_and_calls() {
    let (_folder, path, namespace) = scene();
    let holder = start_holder(&path);
    let pid = holder.pid();
    holder.kill();
    for _ in 0..1000 {
        assert!(namespace.pids().contains(&pid));
    }
    assert_eq!(value(&namespace), 0, "a call on the set cleans up");
    assert!(!namespace.pids().contains(&pid));
}

#[test]
fn serve_prints_a_line_and_ends_after_its_namespace_is_removed() {
    let (_folder, path, namespace) = scene();
    let server = serve(&path);
    let holder = start_holder(&path);
    let pid = holder.pid();
    let mut purge = corewalk(&["ipc", "rm", "--purge", "--namespace"]);
    purge.arg(&path);
    assert!(run(purge).status.success());
    // A namespace whose file was removed exists until its last process ends. Until then, `serve`
    // must clean up in it.
    holder.kill();
    until("serve cleans up", || !namespace.pids().contains(&pid));
    let (status, printed) = server.end();
    assert_eq!((status.code(), printed), (Some(0), format!("{} was removed\n", path.display())));
}
