//! Starting a role, with the library or without.

use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output};

use corewalk_testkit::sysv;

use crate::roles::ROLES;

/// Names the role that a process is to play.
const ROLE: &str = "COREWALK_PRELOAD_ROLE";

/// A file for a namespace, which goes with the test.
pub(crate) struct Namespace {
    path: Option<PathBuf>,
}

impl Namespace {
    /// An empty file: the first process makes the namespace in it.
    pub(crate) fn new() -> Self {
        let namespace = Self::missing();
        File::create(namespace.path.as_ref().expect("it has a path")).expect("a file");
        namespace
    }

    pub(crate) fn missing() -> Self {
        let name = format!("corewalk-preload-{}-{}", std::process::id(), sysv::thread_id());
        Self { path: Some(env::temp_dir().join(name)) }
    }

    pub(crate) fn damaged() -> Self {
        let namespace = Self::missing();
        fs::write(namespace.path.as_ref().expect("it has a path"), [7; 8192]).expect("a file");
        namespace
    }

    pub(crate) fn unnamed() -> Self {
        Self { path: None }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // There may be none.
            let _removed = fs::remove_file(path);
        }
    }
}

/// The library that was built with this test: cargo puts both into one folder.
fn library() -> PathBuf {
    let test = env::current_exe().expect("this program");
    let library = test.with_file_name("libcorewalk_ipc_preload.so");
    assert!(library.exists(), "{}: cargo builds it with this test", library.display());
    library
}

/// Returns a command that plays a role, with what is in the environment.
pub(crate) fn command(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["role", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Plays a role with the library.
pub(crate) fn start(role: &str, namespace: &Namespace) -> Output {
    let mut command = command(role);
    command.env("LD_PRELOAD", library()).env_remove("COREWALK_IPC_NAMESPACE");
    if let Some(path) = &namespace.path {
        command.env("COREWALK_IPC_NAMESPACE", path);
    }
    command.output().expect("the role starts")
}

/// Plays a role with the library; it has to end well.
pub(crate) fn run(role: &str, namespace: &Namespace) {
    judge(role, &start(role, namespace));
}

/// Plays a role in an IPC namespace of the host kernel.
pub(crate) fn run_on_linux(role: &str) {
    if let Err(errno) = sysv::unshare_ipc() {
        println!("skipped: no IPC namespace of our own here (errno {errno})");
        return;
    }
    judge(role, &command(role).output().expect("the role starts"));
}

fn judge(role: &str, output: &Output) {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{role}: {:?}\n{said}", output.status);
    assert!(said.contains("played"), "{role} was not played:\n{said}");
}

/// Plays the role that the environment names; does nothing without one.
pub(crate) fn play() {
    let Ok(name) = env::var(ROLE) else { return };
    let (_, role) = ROLES.iter().find(|(known, _)| *known == name).expect("a role of that name");
    role();
    println!("played {name}");
}
