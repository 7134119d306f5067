//! `corewalk ipc`: what a user sees of it.

use std::fs;

use crate::fixtures::{Folder, corewalk, run};

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
    folder.assert_refused(corewalk(&["ipc", "ls", "--namespace", path]), 1, "No such file");
}
