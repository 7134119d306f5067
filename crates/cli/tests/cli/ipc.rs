//! Tests of the subcommands of `corewalk ipc`, run as a user would run them.

use corewalk_testkit::require::{has_program, has_root};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::fixtures::{Folder, PROGRAM, corewalk, run};

#[test]
fn exec_ends_as_its_command_does() {
    for (script, status) in [("exit 0", 0), ("exit 3", 3)] {
        let output = run(corewalk(&["ipc", "exec", "--", "sh", "-c", script]));
        assert_eq!(output.status.code(), Some(status), "{script}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    use std::os::unix::process::ExitStatusExt as _;
    let killed = run(corewalk(&["ipc", "exec", "--", "sh", "-c", "kill -9 $$"]));
    assert_eq!(killed.status.signal(), Some(9));
}

#[test]
fn exec_refuses_what_would_not_load_the_library() {
    let folder = Folder::new();
    let exec = |command: &str| corewalk(&["ipc", "exec", "--", command]);
    folder.assert_refused(exec("no-such-command"), 127, "No such file");
    folder.assert_refused(exec("/etc/passwd"), 126, "Permission denied");
    folder.assert_refused(corewalk(&["ipc", "exec"]), 2, "not provided: <COMMAND>");
    let missing = corewalk(&["ipc", "exec", "--preload", "/nowhere.so", "--", "true"]);
    folder.assert_refused(missing, 1, "/nowhere.so: there is no such file");
}

#[test]
fn folder_is_no_name_of_a_namespace() {
    let folder = Folder::new();
    for word in [".", ".."] {
        let exec = corewalk(&["ipc", "exec", "--namespace", word, "--", "true"]);
        folder.assert_refused(exec, 2, &format!("'{word}' is a folder, not a name"));
    }
}

/// If the file is not the preload library, the loader only prints a warning, and the command uses
/// the kernel's objects. So `exec` must refuse it.
#[test]
fn exec_refuses_what_is_not_the_library() {
    let folder = Folder::new();
    let path = folder.path("f2");
    let path = path.to_str().expect("a path of ours");
    let exec = || corewalk(&["ipc", "exec", "--preload", path, "--", "true"]);
    fs::write(path, "text\n").expect("a file");
    folder.assert_refused(exec(), 1, "f2: not a shared object for this machine");
    fs::write(path, b"\x7fELF\x02\x01").expect("a file");
    folder.assert_refused(exec(), 1, "f2: not a shared object for this machine");
    fs::copy(PROGRAM, path).expect("a copy");
    folder.assert_refused(exec(), 1, "f2: not a shared object for this machine");
    let (library, no_library) = libraries();
    fs::copy(no_library, path).expect("a copy");
    folder.assert_refused(exec(), 1, "f2: not the preload library of corewalk");
    fs::copy(&library, path).expect("a copy");
    assert!(run(exec()).status.success(), "the control");
    // The changed byte is the machine number in the ELF header.
    let mut bytes = fs::read(library).expect("it is there");
    bytes[18] ^= 1;
    fs::write(path, bytes).expect("a file");
    folder.assert_refused(exec(), 1, "f2: not a shared object for this machine");
}

fn libraries() -> (PathBuf, PathBuf) {
    let folder = Path::new(PROGRAM).parent().expect("it is in a folder");
    let name = "libcorewalk_ipc_preload.so";
    let places = [folder.join("deps").join(name), folder.join(name)];
    let library = places.into_iter().find(|path| path.is_file()).expect("it is built");
    let maps = fs::read_to_string("/proc/self/maps").expect("it is there");
    // The test needs a library that cannot also be run as a program. The C library can be run.
    let words = maps.split_whitespace().find(|word| word.contains("/libgcc_s"));
    (library, words.expect("this program has it").into())
}

/// Files in `/dev/shm` with names of namespaces. The drop removes them.
struct Planted(Vec<PathBuf>);

impl Planted {
    fn path(&mut self, name: &str) -> PathBuf {
        let user = rustix::process::geteuid().as_raw();
        let path = PathBuf::from(format!("/dev/shm/corewalk-ipc-{user}-{name}"));
        self.0.push(path.clone());
        path
    }
}

impl Drop for Planted {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// The owner of a namespace's file could read all messages in it, even those of root. So every
/// command must refuse another user's file.
#[test]
fn name_that_another_user_has_taken_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let mut planted = Planted(Vec::new());
    let name = format!("planted-{}", std::process::id());
    let path = planted.path(&name);
    fs::write(&path, "").expect("a file");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("it is ours");
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("root");
    let words = "the file of the IPC namespace belongs to another user";
    let of = |command: &str, name: &str| corewalk(&["ipc", command, "--namespace", name]);
    for command in ["ls", "stat", "serve"] {
        folder.assert_refused(of(command, &name), 1, words);
    }
    let mut exec = of("exec", &name);
    folder.assert_refused(
        {
            exec.args(["--", "true"]);
            exec
        },
        1,
        words,
    );
    let mut purge = of("rm", &name);
    folder.assert_refused(
        {
            purge.arg("--purge");
            purge
        },
        1,
        words,
    );
    let shown = run(corewalk(&["ipc", "ls"]));
    assert!(!String::from_utf8_lossy(&shown.stdout).contains(&name), "it is none of the user's");
    assert_eq!(fs::metadata(&path).expect("it is there").len(), 0);
    // Root may use the file of another user by its path.
    let mut exec = of("exec", path.to_str().expect("a plain path"));
    assert!(
        run({
            exec.args(["--", "true"]);
            exec
        })
        .status
        .success()
    );
    // A symbolic link in the place of a namespace's file could lead to any file of the user, so it
    // must be refused.
    let link = format!("link-{}", std::process::id());
    fs::write(folder.path("file"), "").expect("a file");
    std::os::unix::fs::symlink(folder.path("file"), planted.path(&link)).expect("a link");
    folder.assert_refused(of("ls", &link), 1, "Too many levels of symbolic links");
    assert_eq!(fs::metadata(folder.path("file")).expect("it is there").len(), 0);
}

#[test]
fn name_with_control_characters_is_shown_in_one_row() {
    let mut planted = Planted(Vec::new());
    let pid = std::process::id();
    let path = planted.path(&format!("{pid}-a\x1b[31m\nb\\\u{9b}"));
    fs::write(&path, "").expect("a file");
    let shown = run(corewalk(&["ipc", "ls"]));
    let shown = String::from_utf8_lossy(&shown.stdout);
    let name = format!("{pid}-a\\033[31m\\nb\\\\\\302\\233");
    assert!(shown.lines().any(|line| line.starts_with(&name) && line.ends_with(&name)), "{shown}");
    assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
}

#[test]
fn namespace_with_a_path_is_shown_and_removed() {
    let folder = Folder::new();
    let path = folder.path("namespace");
    let path = path.to_str().expect("a path of ours");
    let made = run(corewalk(&["ipc", "exec", "--namespace", path, "--", "true"]));
    assert!(made.status.success() && fs::exists(path).expect("a folder of ours"));
    let shown = run(corewalk(&["ipc", "ls", "--namespace", path]));
    assert!(String::from_utf8_lossy(&shown.stdout).contains("key        semid      owner"));
    let stat = run(corewalk(&["ipc", "stat", "--namespace", path, "--json"]));
    assert!(String::from_utf8_lossy(&stat.stdout).starts_with("{\"semmsl\":32000"));
    folder.assert_refused(
        corewalk(&["ipc", "rm", "--namespace", path, "-s", "99"]),
        1,
        "invalid id (99)",
    );
    assert!(run(corewalk(&["ipc", "rm", "--namespace", path, "--purge"])).status.success());
    assert!(!fs::exists(path).expect("a folder of ours"));
    for command in [&["ls"][..], &["stat"], &["rm", "-a"], &["rm", "--purge"]] {
        let words = [&["ipc"], command, &["--namespace", path]].concat();
        folder.assert_refused(corewalk(&words), 1, "there is no such namespace");
    }
}

/// Objects that ipcmk(1) has created must be listed and removed.
#[test]
fn objects_of_a_program_are_shown_and_removed() {
    if !has_program("ipcmk") {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("namespace");
    let path = path.to_str().expect("a path of ours");
    let inside = |words: &[&str]| {
        let exec = ["ipc", "exec", "--namespace", path, "--shm", "--"];
        let output = run(corewalk(&[&exec[..], words].concat()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let ls = |words: &[&str]| {
        let shown = run(corewalk(&[&["ipc", "ls", "--namespace", path][..], words].concat()));
        String::from_utf8_lossy(&shown.stdout).into_owned()
    };
    let rm = |words: &[&str]| corewalk(&[&["ipc", "rm", "--namespace", path][..], words].concat());
    inside(&["ipcmk", "-Q", "-M", "5000", "-S", "3"]);
    let shown = ls(&[]);
    for part in [
        "key        msqid      owner      perms      used-bytes messages",
        "key        shmid      owner      perms      bytes      nattch     status",
        "644        5000       0",
        "644        3\n",
    ] {
        assert!(shown.contains(part), "{part} in\n{shown}");
    }
    let segments =
        || fs::read_dir(format!("{path}.shm/segments")).expect("a folder of ours").count();
    assert_eq!(segments(), 1);
    assert!(ls(&["-m"]).contains("shmid") && !ls(&["-m"]).contains("semid"));
    assert!(ls(&["-m", "--json"]).contains("\"bytes\":5000,\"nattch\":0"));

    folder.assert_refused(rm(&["-m", "99"]), 1, "invalid id (99)");
    folder.assert_refused(rm(&["-Q", "0x7"]), 1, "invalid key (0x7)");
    folder.assert_refused(rm(&["-M", "0"]), 1, "illegal key (0x0)");
    folder.assert_refused(rm(&["--all=x"]), 2, "invalid value 'x'");
    assert!(run(rm(&["--all=shm"])).status.success());
    assert_eq!(segments(), 0);
    assert_eq!(ls(&["-m", "--json"]), "{\"shm\":[]}\n");
    assert!(!ls(&["-q", "-s", "--json"]).contains("[]"), "the others are there");
    assert!(run(rm(&["-a"])).status.success());
    assert_eq!(ls(&["--json"]), "{\"msg\":[],\"shm\":[],\"sem\":[]}\n");
    inside(&["ipcmk", "-M", "1"]);
    assert!(run(rm(&["--purge"])).status.success());
    assert!(
        !fs::exists(path).expect("a folder of ours")
            && !fs::exists(format!("{path}.shm")).expect("a folder of ours")
    );
}

#[test]
fn shared_memory_is_refused_where_its_folder_cannot_be() {
    let folder = Folder::new();
    let path = folder.path("namespace");
    let path = path.to_str().expect("a path of ours");
    fs::write(format!("{path}.shm"), "no folder").expect("a folder of ours");
    let exec = corewalk(&["ipc", "exec", "--namespace", path, "--shm", "--", "true"]);
    folder.assert_refused(exec, 1, "needs a folder of this name");
    fs::remove_file(format!("{path}.shm")).expect("a folder of ours");
    // `exec` must refuse a folder for segments that all users may enter, because they could read
    // all segments.
    fs::create_dir(format!("{path}.shm")).expect("a folder of ours");
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(format!("{path}.shm"), open).expect("a folder of ours");
    let exec = corewalk(&["ipc", "exec", "--namespace", path, "--shm", "--", "true"]);
    folder.assert_refused(exec, 1, "is open to users who may not read the namespace");
}

/// Columns and messages must be those of ipcs(1) and ipcrm(1).
#[test]
fn objects_are_shown_and_removed_in_the_forms_of_ipcs() {
    use corewalk_ipc::{Cred, GetFlags, MsgFlags, Namespace, NamespaceOptions, SemBuf, SemFlags};
    let folder = Folder::new();
    let path = folder.path("namespace");
    let namespace = Namespace::open(&path, NamespaceOptions::default()).expect("a namespace");
    let pid = std::process::id();
    let task = namespace.register(Cred::root(), pid).expect("a task");
    let set = task.semget(0x51, 2, GetFlags::CREATE, 0o640).expect("a set");
    task.semop(set, &[SemBuf::new(1, 7, SemFlags::empty())]).expect("it is possible");
    let queue = task.msgget(0x52, GetFlags::CREATE, 0o604).expect("a queue");
    task.msgsnd(queue, 1, b"hello", MsgFlags::empty()).expect("room");
    let path = path.to_str().expect("a path of ours");
    let ls = |words: &[&str]| {
        let output = run(corewalk(&[&["ipc", "ls", "--namespace", path][..], words].concat()));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shows = |words: &[&str], parts: &[&str]| {
        let shown = ls(words);
        parts.iter().for_each(|part| assert!(shown.contains(part), "{part} in\n{shown}"));
    };
    shows(&["-q", "-t"], &["Send/Recv/Change Times", "msqid      owner      send", "Not set", "Z"]);
    shows(&["-s", "-t"], &["semid      owner      last-op              last-changed\n"]);
    shows(&["-q", "-p"], &["msqid      owner      lspid      lrpid\n", &format!("{pid}"), " 0\n"]);
    shows(&["-m", "-p"], &["shmid      owner      cpid       lpid\n"]);
    shows(&["-q", "-c"], &["msqid      perms      cuid       cgid       uid        gid\n", "604"]);
    shows(&["-l"], &["max ops per semop call = 500", "default max size of queue (bytes) = 16384"]);
    shows(
        &["-u"],
        &["allocated semaphores = 2\n", "used space = 5 bytes\n", "pages allocated 0\n"],
    );
    let id = set.to_string();
    let semaphore = format!("1          7          0          0          {pid}\n");
    let title = format!("Semaphore Array semid={set}\n");
    shows(&["-s", "-i", &id], &[&title, "mode=0640, access_perms=0640", &semaphore]);
    shows(&["-q", "-i", &queue.to_string()], &["qbytes=16384\tqnum=1", "rcv_time=Not set"]);
    shows(&["-s", "-i", &id, "--json"], &["{\"id\":", "\"nsems\":2"]);
    let refused = |words: &[&str], status, said: &str| {
        let command = corewalk(&[&["ipc", "ls", "--namespace", path][..], words].concat());
        folder.assert_refused(command, status, said);
    };
    refused(&["-i", &id], 2, "-i takes one of -q, -m, -s");
    refused(&["-s", "-i", "99"], 1, "id 99 not found");
    refused(&["-t", "-p"], 2, "cannot be used with");
    folder.assert_refused(corewalk(&["ipc", "ls", "-t"]), 2, "which namespace?");
    let rm = ["ipc", "rm", "--namespace", path, "-v", "-S", "0x51", "--all=msg"];
    let removed = run(corewalk(&rm));
    let wanted = format!("removing semaphore id '{set}'\nremoving message queue id '{queue}'\n");
    assert_eq!(String::from_utf8_lossy(&removed.stdout), wanted);
    assert!(removed.status.success() && task.sem_getall(set).is_err());
}

/// `ls` and `rm` must remove the files that a killed `exec --shm` has left, as the next `exec`
/// does.
#[test]
fn files_that_killed_processes_leave_go_with_ls_and_rm() {
    let user = rustix::process::geteuid().as_raw();
    let name = format!("left-{}", std::process::id());
    let left = PathBuf::from(format!("/dev/shm/corewalk-shm-{user}-{name}"));
    let of = |arguments: &[&str]| {
        let output = run(corewalk(&[&["ipc"], arguments].concat()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    of(&["exec", "--shm", "--namespace", &name, "--", "true"]);
    let marks = PathBuf::from(format!("/dev/shm/corewalk-ipc-{user}-{name}.shm/segments"));
    // The pid is too high for any process.
    let mark = marks.join(format!("exec-{}", i32::MAX));
    let commands: [&[&str]; 3] =
        [&["ls"], &["ls", "--namespace", &name], &["rm", "-a", "--namespace", &name]];
    for command in commands {
        fs::create_dir_all(left.join("segments")).expect("a folder");
        fs::write(left.join("segments/3-14"), "a segment").expect("a file");
        fs::write(&mark, "").expect("a file");
        of(command);
        assert!(!left.exists(), "{command:?}");
        assert_eq!(mark.exists(), command.len() == 1, "{command:?}");
    }
    of(&["rm", "--namespace", &name, "--purge"]);
}
