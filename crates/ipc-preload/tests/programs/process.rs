//! Starts a role in a process, with the library or without.

use std::env;
use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};

use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::sysv;

use crate::roles::ROLES;

const ROLE: &str = "COREWALK_PRELOAD_ROLE";

/// The environment variable that names an inherited descriptor of the namespace's file.
pub(crate) const FD_ENV: &str = "COREWALK_IPC_FD";

/// The file of a namespace. The drop removes it.
pub(crate) struct Namespace {
    path: Option<PathBuf>,
    handed: Option<OwnedFd>,
    /// The path of the folder for the memory of segments.
    shm: Option<PathBuf>,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        let namespace = Self::missing();
        File::create(namespace.path.as_ref().expect("it has a path")).expect("a file");
        namespace
    }

    /// Like [`Namespace::new`], with a folder for the memory of segments.
    pub(crate) fn with_shm() -> Self {
        let mut namespace = Self::new();
        let folder = namespace.path.as_ref().expect("it has a path").with_extension("shm");
        fs::create_dir(&folder).expect("a folder");
        namespace.shm = Some(folder);
        namespace
    }

    /// Returns the number of segment files in the folder.
    pub(crate) fn segments(&self) -> usize {
        let folder = self.shm.as_ref().expect("it has a folder");
        let names = fs::read_dir(folder).expect("a folder").flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // The other files are marks of processes with segments attached.
        names.filter(|name| !name.starts_with("exec-")).count()
    }

    pub(crate) fn missing() -> Self {
        let name = format!("corewalk-preload-{}-{}", std::process::id(), sysv::thread_id());
        Self { path: Some(env::temp_dir().join(name)), handed: None, shm: None }
    }

    /// Returns a namespace that processes do not get by its path. They inherit a descriptor of its
    /// file instead.
    pub(crate) fn handed() -> Self {
        let mut namespace = Self::new();
        let path = namespace.path.as_ref().expect("it has a path");
        let file = File::options().read(true).write(true).open(path).expect("a file");
        // SAFETY: the call takes numbers.
        let number = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, 900) };
        assert!(number >= 900);
        // SAFETY: the descriptor is new, and no other value owns it.
        let handed = unsafe { OwnedFd::from_raw_fd(number) };
        namespace.handed = Some(handed);
        namespace
    }

    /// Returns the number of the descriptor that processes inherit.
    pub(crate) fn number(&self) -> i32 {
        self.handed.as_ref().expect("it is handed on").as_raw_fd()
    }

    pub(crate) fn damaged() -> Self {
        let namespace = Self::missing();
        fs::write(namespace.path.as_ref().expect("it has a path"), [7; 8192]).expect("a file");
        namespace
    }

    pub(crate) fn unnamed() -> Self {
        Self { path: None, handed: None, shm: None }
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // There may be none.
            let _removed = fs::remove_file(path);
        }
        if let Some(folder) = &self.shm {
            let _removed = fs::remove_dir_all(folder);
        }
    }
}

fn library() -> PathBuf {
    let test = env::current_exe().expect("this program");
    let library = test.with_file_name("libcorewalk_ipc_preload.so");
    assert!(library.exists(), "{}: cargo builds it with this test", library.display());
    library
}

pub(crate) fn command(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.args(["role", "--exact", "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

/// Plays a role with the library.
pub(crate) fn start(role: &str, namespace: &Namespace) -> Output {
    started(command(role), namespace)
}

/// Runs a command with the library.
fn started(mut command: Command, namespace: &Namespace) -> Output {
    command.env_remove(FD_ENV);
    if let Some(handed) = &namespace.handed {
        let path = format!("/proc/self/fd/{}", handed.as_raw_fd());
        let status = fs::metadata(path).expect("it is open");
        let word = format!("{}:{}:{}", handed.as_raw_fd(), status.dev(), status.ino());
        command.env(FD_ENV, word);
    }
    output_of(command, namespace)
}

pub(crate) fn output_of(mut command: Command, namespace: &Namespace) -> Output {
    command.env("LD_PRELOAD", library()).env_remove("COREWALK_IPC_NAMESPACE");
    if let Some(path) = namespace.path.as_ref().filter(|_| namespace.handed.is_none()) {
        command.env("COREWALK_IPC_NAMESPACE", path);
    }
    command.env_remove("COREWALK_IPC_SHM");
    if let Some(folder) = &namespace.shm {
        command.env("COREWALK_IPC_SHM", folder);
    }
    command.output().expect("the role starts")
}

pub(crate) fn said_by_both(script: &str, namespace: &Namespace) -> Option<[String; 2]> {
    let shell = || {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("LC_ALL", "C");
        command
    };
    let ours = started(shell(), namespace);
    let linux = has_own_linux().then(|| shell().output().expect("a shell"))?;
    let said = |output: Output| {
        let said = [output.stdout, output.stderr].concat();
        String::from_utf8(said).expect("the scripts say text")
    };
    Some([ours, linux].map(said))
}

pub(crate) fn run(role: &str, namespace: &Namespace) {
    judge(role, &start(role, namespace));
}

/// Plays a role in an IPC namespace of the host kernel.
pub(crate) fn run_on_linux(role: &str) {
    if has_own_linux() {
        judge(role, &command(role).output().expect("the role starts"));
    }
}

/// Plays a role with the library, in an IPC namespace of the host kernel. The library passes some
/// calls of this role on to the kernel.
pub(crate) fn run_beside_linux(role: &str, namespace: &Namespace) {
    if has_own_linux() {
        run(role, namespace);
    }
}

fn has_own_linux() -> bool {
    let unshared = sysv::unshare_ipc();
    if let Err(errno) = unshared {
        skip(Need::Kernel, format_args!("unshare of an IPC namespace: errno {errno}"));
    }
    unshared.is_ok()
}

fn judge(role: &str, output: &Output) {
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "{role}: {:?}\n{said}", output.status);
    assert!(said.contains("played"), "{role} was not played:\n{said}");
}

pub(crate) fn play() {
    let Ok(name) = env::var(ROLE) else { return };
    let roles = ROLES.iter().chain(&[("without", crate::handed::without as fn())]);
    let (_, role) =
        roles.into_iter().find(|(known, _)| *known == name).expect("a role of that name");
    role();
    println!("played {name}");
}
