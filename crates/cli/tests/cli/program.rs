//! Tests of programs that `corewalk ipc exec` must refuse: static programs and programs that gain
//! privileges.
//!
//! Static and privileged programs cannot load the preload library, and would silently use the
//! kernel's objects. Each test also runs an accepted program that differs from the refused one only
//! in the tested property.

use corewalk_testkit::require::{Need, has_root, skip};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixtures::{Folder, PROGRAM, corewalk, run};

const NOBODY: u32 = 65534;

const GAINS: &str = "a program that gains privileges loads no library of ours";

fn exec(program: &Path) -> Command {
    let mut command = corewalk(&["ipc", "exec", "--"]);
    command.arg(program);
    command
}

fn copy_of_true(folder: &Folder) -> std::path::PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let original = std::env::split_paths(&folders).map(|folder| folder.join("true"));
    let original = original.into_iter().find(|path| path.is_file()).expect("PATH has true");
    let copy = folder.path("true");
    fs::copy(original, &copy).expect("the file is copied");
    copy
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the test owns the file");
}

#[test]
fn program_with_set_user_or_group_id_of_another_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let program = copy_of_true(&folder);
    std::os::unix::fs::chown(&program, Some(NOBODY), Some(NOBODY)).expect("root is permitted to");
    for (mode, is_refused) in
        [(0o755, false), (0o4755, true), (0o2755, true), (0o6755, true), (0o2745, false)]
    {
        set_mode(&program, mode);
        if is_refused {
            folder.assert_refused(exec(&program), 126, GAINS);
        } else {
            // Without execution by the group, the set-group-ID bit gives no privilege.
            assert_eq!(run(exec(&program)).status.code(), Some(0), "{mode:o}");
        }
    }
    // A set-user-ID program of the user who runs it gains no privilege, so it must be accepted.
    std::os::unix::fs::chown(&program, Some(0), Some(0)).expect("root is permitted to");
    set_mode(&program, 0o6755);
    assert_eq!(run(exec(&program)).status.code(), Some(0));
}

/// execve(2) ignores the set-user-ID bit of a script, but obeys that of its interpreter.
#[test]
fn script_whose_interpreter_gains_privileges_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let interpreter = copy_of_true(&folder);
    let script = folder.path("script");
    fs::write(&script, format!("#!{}\n", interpreter.display()))
        .expect("the test's directory is writable");
    set_mode(&script, 0o755);
    assert_eq!(run(exec(&script)).status.code(), Some(0));
    std::os::unix::fs::chown(&interpreter, Some(NOBODY), Some(NOBODY))
        .expect("root is permitted to");
    set_mode(&interpreter, 0o4755);
    folder.assert_refused(exec(&script), 126, GAINS);
}

/// Root gains nothing by file capabilities, so the test runs as the user `nobody`.
#[test]
fn program_with_file_capabilities_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let program = copy_of_true(&folder);
    let ours = folder.path("corewalk");
    fs::copy(PROGRAM, &ours).expect("the file is copied");
    let library = Path::new(PROGRAM).with_file_name("libcorewalk_ipc_preload.so");
    let library = [library, Path::new(PROGRAM).with_file_name("deps/libcorewalk_ipc_preload.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo has built the library");
    fs::copy(library, folder.path("libcorewalk_ipc_preload.so")).expect("the file is copied");
    for path in [&program, &ours] {
        set_mode(path, 0o755);
    }
    let exec_as_nobody = || {
        let mut command = Command::new(&ours);
        command.args(["ipc", "exec", "--"]).arg(&program).stdin(Stdio::null());
        command.uid(NOBODY).gid(NOBODY);
        command
    };
    assert_eq!(run(exec_as_nobody()).status.code(), Some(0));
    // The value is a `struct vfs_cap_data` of version 2, with the flag "effective" and the
    // capability `CAP_IPC_OWNER` (bit 15).
    let words: [u32; 5] = [0x0200_0001, 1 << 15, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(errno) = rustix::fs::setxattr(&program, "security.capability", &value, flags) {
        skip(Need::Root, format_args!("a file cannot be given capabilities: {errno}"));
        return;
    }
    folder.assert_refused(exec_as_nobody(), 126, GAINS);
    assert_eq!(run(exec(&program)).status.code(), Some(0), "root gains nothing");
}

#[test]
fn static_program_is_refused() {
    const SOURCE: &str = "int main(void) { return 0; }\n";
    const BARE: &str = "void _start(void) { for (;;) ; }\n";
    let folder = Folder::new();
    let build = |name: &str, source: &str, words: &[&str]| {
        let text = folder.path("source.c");
        fs::write(&text, source).expect("the test's directory is writable");
        let program = folder.path(name);
        let mut command = Command::new("cc");
        let output = command.args(words).arg("-o").arg(&program).arg(&text).output();
        let output = output.expect("cc runs");
        (program, output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (shared, is_built, printed) = build("shared", SOURCE, &[]);
    assert!(is_built, "{printed}");
    assert_eq!(run(exec(&shared)).status.code(), Some(0));
    const LINE: &str = "a static program loads no library of ours";
    // These two programs do not use the C library, because a static C library may be missing on
    // this machine.
    for words in [&["-static", "-nostdlib"][..], &["-static-pie", "-nostdlib", "-fPIE"]] {
        let (program, is_built, printed) = build("bare", BARE, words);
        assert!(is_built, "{printed}");
        folder.assert_refused(exec(&program), 126, LINE);
    }
    match build("static", SOURCE, &["-static"]) {
        (program, true, _) => {
            assert_eq!(run(Command::new(&program)).status.code(), Some(0), "the program works");
            folder.assert_refused(exec(&program), 126, LINE);
        }
        (_, false, printed) => {
            skip(Need::Package, format_args!("no static library of C: {printed}"))
        }
    }
}
