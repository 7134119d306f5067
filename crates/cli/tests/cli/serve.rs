//! `corewalk ipc serve`: what it does that nobody else would, and how it ends.
//!
//! Whoever asks for what a dead process has left puts it in order. So a test must not ask: it looks who is
//! registered, which changes nothing.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions, SemBuf, SemFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixtures::{Folder, corewalk, run, wait};

/// Tells `holder` which namespace to use.
const NAMESPACE: &str = "COREWALK_TEST_NAMESPACE";

const KEY: i32 = 7;

/// A promise is a tenth of a second; a machine that is busy with other things takes longer.
const SOON: Duration = Duration::from_secs(120);

/// A child with a line that it said, killed if the test ends before it.
struct Said {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Said {
    /// Starts a command, and returns once it has said a line with `words` in it.
    fn start(mut command: Command, words: &str) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the program");
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let bytes = output.read_line(&mut line).expect("a line");
            assert_ne!(bytes, 0, "it ends without saying {words}");
        }
        Self { child, output }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn kill(mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    /// Returns how it ends, and what else it has said.
    fn end(mut self) -> (ExitStatus, String) {
        let status = wait(&mut self.child);
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("its output ends with it");
        (status, said)
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(path: &Path) -> Said {
    let mut command = corewalk(&["ipc", "serve", "--namespace"]);
    command.arg(path);
    Said::start(command, "serving ")
}

/// Starts a process that takes a semaphore with `SEM_UNDO` and stays.
fn start_holder(path: &Path) -> Said {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["serve::holder", "--exact", "--nocapture"]).env(NAMESPACE, path);
    Said::start(command, "taken")
}

/// Not a test of its own: the process that is killed.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(NAMESPACE) else { return };
    let namespace = open(Path::new(&path));
    let task = namespace.register(Cred::root(), std::process::id()).expect("a task");
    let id = task.semget(KEY, 1, GetFlags::CREATE, 0o600).expect("a set");
    task.semop(id, &[SemBuf::new(0, 5, SemFlags::UNDO)]).expect("it is possible");
    println!("taken");
    // Until it is killed, or the test is gone.
    let _bytes = std::io::stdin().read(&mut [0]);
}

fn open(path: &Path) -> Namespace {
    Namespace::open(path, NamespaceOptions::default()).expect("a namespace")
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < SOON, "never: {what}");
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
fn serve_cleans_up_after_a_killed_process_though_nobody_asks() {
    let (_folder, path, namespace) = scene();
    let server = serve(&path);
    let holder = start_holder(&path);
    let pid = holder.pid();
    assert!(namespace.pids().contains(&pid));
    assert_eq!(value(&namespace), 5);
    holder.kill();
    until("it is cleaned up after", || !namespace.pids().contains(&pid));
    assert_eq!(value(&namespace), 0);
    let number = Pid::from_raw(server.pid().cast_signed()).expect("a number");
    kill_process(number, Signal::TERM).expect("it runs");
    let (status, said) = server.end();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn control_killed_process_stays_registered_while_nobody_asks_or_serves() {
    let (_folder, path, namespace) = scene();
    let holder = start_holder(&path);
    let pid = holder.pid();
    holder.kill();
    for _ in 0..1000 {
        assert!(namespace.pids().contains(&pid));
    }
    assert_eq!(value(&namespace), 0, "who asks puts it in order");
    assert!(!namespace.pids().contains(&pid));
}

#[test]
fn serve_ends_with_a_line_once_its_namespace_is_gone() {
    let (_folder, path, namespace) = scene();
    let server = serve(&path);
    let holder = start_holder(&path);
    let pid = holder.pid();
    let mut purge = corewalk(&["ipc", "rm", "--purge", "--namespace"]);
    purge.arg(&path);
    assert!(run(purge).status.success());
    // Who is in it keeps it, and is looked after.
    holder.kill();
    until("it is cleaned up after", || !namespace.pids().contains(&pid));
    let (status, said) = server.end();
    assert_eq!((status.code(), said), (Some(0), format!("{} was removed\n", path.display())));
}
