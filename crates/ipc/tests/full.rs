//! Calls in a namespace whose file system is full must return errors. No process may get a signal.
//!
//! Each test runs this program again in a new mount namespace, which has a small tmpfs.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use corewalk_ipc::{
    Cred, Errno, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, OpenError,
    SemBuf, SemFlags, SemId, Task,
};
use corewalk_testkit::require::{Need, skip};

/// The environment variable with the folder of the small file system. It is set only in the new
/// process in which the test runs.
const FOLDER: &str = "COREWALK_TEST_FULL";

const SCRIPT: &str = r#"
mount -t tmpfs -o "size=$1" none "$2"
export COREWALK_TEST_FULL="$2"
shift 2
exec "$@"
"#;

/// Returns the folder of the small file system. If there is none, runs the test in a new process
/// that has one, and returns none.
fn small(test: &str, size: &str) -> Option<PathBuf> {
    if let Some(folder) = env::var_os(FOLDER) {
        return Some(folder.into());
    }
    let folder = env::temp_dir().join(format!("corewalk-full-{test}-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "--", "sh", "-euc", SCRIPT, "sh", size]).arg(&folder);
    command.arg(env::current_exe().unwrap()).args([test, "--exact", "--nocapture"]);
    let output = command.output().unwrap();
    fs::remove_dir(&folder).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if ["unshare: unshare failed", "mount: "].iter().any(|why| said.starts_with(why)) {
        skip(Need::Kernel, said);
        return None;
    }
    assert!(output.status.success(), "{:?}\n{said}", output.status);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("1 passed"), "{said}");
    None
}

fn open(folder: &Path) -> Result<Namespace, OpenError> {
    Namespace::open(folder.join("namespace"), NamespaceOptions::default())
}

/// Fills the file system with a file.
fn fill(folder: &Path) {
    let mut file = fs::File::create(folder.join("rest")).unwrap();
    for size in [1 << 16, 1 << 12] {
        while file.write_all(&vec![1; size]).is_ok() {}
    }
}

fn fail_each(task: &Task) -> Vec<Errno> {
    let mut errnos = Vec::new();
    let mut until_it_fails = |call: &mut dyn FnMut() -> Result<(), Errno>| {
        let mut calls = (0..40_000).map(|_| call());
        errnos.push(calls.find_map(Result::err).expect("a call that fails"));
    };
    until_it_fails(&mut || {
        let id = task.semget(IPC_PRIVATE, 32_000, GetFlags::empty(), 0o600)?;
        task.semop(id, &[SemBuf::new(31_999, 1, SemFlags::UNDO)])
    });
    let mut queue = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
    until_it_fails(&mut || match task.msgsnd(queue, 1, &[7; 8192], MsgFlags::NOWAIT) {
        Err(Errno::AGAIN) => {
            task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).map(|next| queue = next)
        }
        done => done,
    });
    until_it_fails(&mut || task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).map(drop));
    errnos
}

/// On a full file system each call must return an error. No access to the mapped namespace may end
/// the process. Trap X5 in `traps.md`.
#[test]
fn calls_on_a_full_file_system_fail() {
    let Some(folder) = small("calls_on_a_full_file_system_fail", "24m") else { return };
    let namespace = open(&folder).unwrap();
    let task = namespace.register(Cred::root(), 1).unwrap();
    let (set, queue) = (
        task.semget(1, 3, GetFlags::CREATE, 0o600).unwrap(),
        task.msgget(1, GetFlags::CREATE, 0o600).unwrap(),
    );
    task.msgsnd(queue, 1, b"kept", MsgFlags::empty()).unwrap();
    let is_full = |errno: &Errno| [Errno::NOMEM, Errno::NOSPC].contains(errno);
    let errnos = fail_each(&task);
    assert!(errnos.iter().all(is_full), "{errnos:?}");
    fill(&folder);
    let errno =
        (0..40_000).find_map(|_| task.semget(IPC_PRIVATE, 3_000, GetFlags::empty(), 0o600).err());
    assert!(errno.as_ref().is_some_and(is_full), "{errno:?}");
    // Existing objects stay usable, also in a namespace that is opened while the file system is
    // full.
    let other = open(&folder).unwrap();
    let late = other.register(Cred::root(), 2).unwrap();
    late.semop(set, &[SemBuf::new(2, 1, SemFlags::empty())]).unwrap();
    assert_eq!(task.sem_getall(set).unwrap(), [0, 0, 1]);
    let mut text = [0; 4];
    late.msgrcv(queue, &mut text, 0, MsgFlags::empty()).unwrap();
    assert_eq!(&text, b"kept");
    for index in 0..32_768 {
        let _absent = late.sem_rmid(SemId::from_raw(index));
        let _absent = late.msg_rmid(MsgId::from_raw(index));
    }
    // The objects that used up the file system are removed now. A new object must be able to use
    // the blocks of the file system that they occupied.
    assert!(late.semget(IPC_PRIVATE, 32_000, GetFlags::empty(), 0o600).is_ok());
}

#[test]
fn namespace_that_does_not_fit_the_file_system_is_refused() {
    let test = "namespace_that_does_not_fit_the_file_system_is_refused";
    let Some(folder) = small(test, "4m") else { return };
    assert_eq!(open(&folder).err(), Some(OpenError::Os(Errno::NOSPC)));
    assert_eq!(fs::metadata(folder.join("namespace")).unwrap().len(), 0);
}
