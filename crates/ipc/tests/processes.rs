//! Tests of several processes that share a namespace, and of the errors for files that are no
//! namespaces.
//!
//! A test that needs more processes runs this test program again. In the new processes, the
//! environment variable [`CHILD`] contains the path of the namespace.

use corewalk_ipc::{
    Capacity, Cred, GetFlags, Namespace, NamespaceOptions, OpenError, SemBuf, SemFlags, Task,
};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const CHILD: &str = "COREWALK_IPC_CHILD";
const KEY: i32 = 0x5eed;

/// The path of a file. The drop removes the file.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("corewalk-ipc-test-{name}-{}", std::process::id());
        Self(Path::new("/dev/shm").join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A test that failed early has not created the file.
        let _gone = fs::remove_file(&self.0);
    }
}

fn options() -> NamespaceOptions {
    let capacity =
        Capacity { sets: 64, sems: 256, undos: 1024, waits: 256, tasks: 64, ..Capacity::LEAST };
    NamespaceOptions { capacity, ..NamespaceOptions::default() }
}

fn task(path: &Path) -> Task {
    let namespace = Namespace::open(path, options()).unwrap();
    namespace.register(Cred::root(), std::process::id()).unwrap()
}

fn child(test: &str, path: &Path) -> Child {
    let exe = std::env::current_exe().unwrap();
    let mut command = Command::new(exe);
    command.args([test, "--exact"]).env(CHILD, path).stdout(Stdio::null());
    command.spawn().unwrap()
}

fn role() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// Several processes must see the same ids of sets and values of semaphores, and must wake each
/// other.
#[test]
fn processes_share_ids_values_and_waits() {
    const ROUNDS: i32 = 2000;
    if let Some(path) = role() {
        let task = task(&path);
        let id = task.semget(KEY, 3, GetFlags::empty(), 0).unwrap();
        for _ in 0..ROUNDS {
            task.semop(id, &[SemBuf::new(0, -1, SemFlags::UNDO)]).unwrap();
            // The increment takes two calls. Only semaphore 0, which is used as a lock, keeps other
            // processes from changing the value in between.
            let seen = task.sem_getval(id, 1).unwrap();
            task.sem_setval(id, 1, seen + 1).unwrap();
            task.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
        }
        task.semop(id, &[SemBuf::new(2, 1, SemFlags::empty())]).unwrap();
        return;
    }
    let file = Scratch::new("counts");
    let task = task(&file.0);
    let id = task.semget(KEY, 3, GetFlags::CREATE, 0o600).unwrap();
    task.sem_setval(id, 0, 1).unwrap();
    let children = [(); 3].map(|()| child("processes_share_ids_values_and_waits", &file.0));
    let pids = children.each_ref().map(Child::id);
    task.semop(id, &[SemBuf::new(2, -3, SemFlags::empty())]).unwrap();
    assert_eq!(task.sem_getall(id).unwrap(), [1, 3 * ROUNDS as u16, 0]);
    assert!(pids.contains(&task.sem_getpid(id, 1).unwrap()));
    children.into_iter().for_each(|mut child| assert!(child.wait().unwrap().success()));
}

#[test]
fn namespace_outlives_its_processes_and_keeps_its_limits() {
    let file = Scratch::new("outlives");
    let limits = corewalk_ipc::Limits { semmni: 5, ..corewalk_ipc::Limits::default() };
    let first = Namespace::open(&file.0, NamespaceOptions { limits, ..options() }).unwrap();
    let id = first.register(Cred::root(), 1).unwrap().semget(KEY, 2, GetFlags::CREATE, 0).unwrap();
    drop(first);
    let again = Namespace::open(&file.0, NamespaceOptions::default()).unwrap();
    assert_eq!(again.limits(), limits);
    let task = again.register(Cred::root(), 2).unwrap();
    assert_eq!(task.semget(KEY, 2, GetFlags::empty(), 0), Ok(id));
    let down = SemBuf::new(1, -1, SemFlags::NOWAIT);
    assert_eq!(task.semop(id, &[down]), Err(Errno::AGAIN));
}

#[test]
fn two_files_are_two_namespaces() {
    let files = [Scratch::new("one"), Scratch::new("two")];
    task(&files[0].0).semget(KEY, 1, GetFlags::CREATE, 0).unwrap();
    assert_eq!(task(&files[1].0).semget(KEY, 1, GetFlags::empty(), 0), Err(Errno::NOENT));
}

fn open_error(path: &Path) -> OpenError {
    Namespace::open(path, options()).unwrap_err()
}

fn with_word(name: &str, at: u64, value: u64) -> Scratch {
    let file = Scratch::new(name);
    drop(Namespace::open(&file.0, options()).unwrap());
    let raw = OpenOptions::new().write(true).open(&file.0).unwrap();
    raw.write_all_at(&value.to_ne_bytes(), 64 + 8 * at).unwrap();
    file
}

#[test]
fn file_that_is_no_namespace_is_refused_with_a_reason() {
    let other = Scratch::new("text");
    fs::write(&other.0, "no namespace").unwrap();
    assert_eq!(open_error(&other.0), OpenError::NotANamespace);
    fs::write(&other.0, vec![b'x'; 100_000]).unwrap();
    assert_eq!(open_error(&other.0), OpenError::NotANamespace);
    fs::write(&other.0, vec![0; 100_000]).unwrap();
    assert_eq!(open_error(&other.0), OpenError::NotANamespace);
    assert_eq!(open_error(Path::new("/dev/shm")), OpenError::Os(Errno::ISDIR));
    assert_eq!(open_error(Path::new("/dev/null")), OpenError::NotANamespace);
    let link = Scratch::new("link");
    std::os::unix::fs::symlink(&other.0, &link.0).unwrap();
    assert_eq!(open_error(&link.0), OpenError::Os(Errno::LOOP));
}

#[test]
fn header_that_is_wrong_is_refused_with_a_reason() {
    let cases = [
        (0, 1, OpenError::NotANamespace),
        (1, 99, OpenError::OtherVersion),
        (2, 7, OpenError::Damaged),
        (3, 7, OpenError::OtherPidNamespace),
        (4, 7, OpenError::OtherBoot),
        (8, 3, OpenError::Damaged),
        (8, 1 << 40, OpenError::Damaged),
        (9, 1 << 26, OpenError::Damaged),
        (12, 0, OpenError::Damaged),
        (20, 40_000, OpenError::Damaged),
    ];
    for (at, value, error) in cases {
        let file = with_word(&format!("word-{at}-{value}"), at, value);
        assert_eq!(open_error(&file.0), error, "word {at} = {value}");
    }
}

#[test]
fn file_that_was_truncated_is_refused() {
    let file = Scratch::new("short");
    drop(Namespace::open(&file.0, options()).unwrap());
    let raw = OpenOptions::new().write(true).open(&file.0).unwrap();
    let whole = raw.metadata().unwrap().len();
    for len in [whole - 1, 4096, 640] {
        raw.set_len(len).unwrap();
        assert_eq!(open_error(&file.0), OpenError::Damaged);
    }
    raw.set_len(100).unwrap();
    assert_eq!(open_error(&file.0), OpenError::NotANamespace);
}

/// If the process that creates a namespace file dies before it writes the magic number, the next
/// process must create the namespace again.
#[test]
fn file_whose_making_process_died_is_made_again() {
    let file = with_word("unfinished", 0, 0);
    let task = task(&file.0);
    assert!(task.semget(KEY, 1, GetFlags::CREATE, 0).is_ok());
}

#[test]
fn memfd_can_be_shared_and_cannot_be_truncated() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("namespace", flags).unwrap());
    let one = Namespace::open_fd(&file, options()).unwrap();
    let other = Namespace::open_fd(&file, options()).unwrap();
    let id = one.register(Cred::root(), 1).unwrap().semget(KEY, 1, GetFlags::CREATE, 0).unwrap();
    assert_eq!(
        other.register(Cred::root(), 2).unwrap().semget(KEY, 1, GetFlags::empty(), 0),
        Ok(id)
    );
    assert_eq!(ftruncate(&file, 64), Err(Errno::PERM));
}
