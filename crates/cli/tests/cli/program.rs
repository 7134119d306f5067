//! Programs that `corewalk ipc exec` refuses, since they would run with the kernel's objects and nobody would know:
//! real ones, each beside one that differs in nothing else and runs.

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

/// Copies `true` to a folder.
fn copy_of_true(folder: &Folder) -> std::path::PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let original = std::env::split_paths(&folders).map(|folder| folder.join("true"));
    let original = original.into_iter().find(|path| path.is_file()).expect("true is everywhere");
    let copy = folder.path("true");
    fs::copy(original, &copy).expect("a copy");
    copy
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn program_with_set_user_or_group_id_of_another_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let program = copy_of_true(&folder);
    std::os::unix::fs::chown(&program, Some(NOBODY), Some(NOBODY)).expect("root");
    for (mode, is_refused) in
        [(0o755, false), (0o4755, true), (0o2755, true), (0o6755, true), (0o2745, false)]
    {
        set_mode(&program, mode);
        if is_refused {
            folder.assert_refused(exec(&program), 126, GAINS);
        } else {
            // Set-group-ID without the group's right to execute is another thing.
            assert_eq!(run(exec(&program)).status.code(), Some(0), "{mode:o}");
        }
    }
    // Of the user's own: nothing is gained.
    std::os::unix::fs::chown(&program, Some(0), Some(0)).expect("root");
    set_mode(&program, 0o6755);
    assert_eq!(run(exec(&program)).status.code(), Some(0));
}

/// For a script it is the interpreter that counts.
#[test]
fn script_whose_interpreter_gains_privileges_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let interpreter = copy_of_true(&folder);
    let script = folder.path("script");
    fs::write(&script, format!("#!{}\n", interpreter.display())).expect("a folder of ours");
    set_mode(&script, 0o755);
    assert_eq!(run(exec(&script)).status.code(), Some(0));
    std::os::unix::fs::chown(&interpreter, Some(NOBODY), Some(NOBODY)).expect("root");
    set_mode(&interpreter, 0o4755);
    folder.assert_refused(exec(&script), 126, GAINS);
}

/// As nobody: for root they are no gain.
#[test]
fn program_with_capabilities_of_its_file_is_refused() {
    if !has_root() {
        return;
    }
    let folder = Folder::new();
    let program = copy_of_true(&folder);
    // The program itself may be where nobody is let in.
    let ours = folder.path("corewalk");
    fs::copy(PROGRAM, &ours).expect("a copy");
    let library = Path::new(PROGRAM).with_file_name("libcorewalk_ipc_preload.so");
    let library = [library, Path::new(PROGRAM).with_file_name("deps/libcorewalk_ipc_preload.so")]
        .into_iter()
        .find(|path| path.is_file())
        .expect("cargo has built it");
    fs::copy(library, folder.path("libcorewalk_ipc_preload.so")).expect("a copy");
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
    // Version 2, effective: CAP_IPC_OWNER is bit 15.
    let words: [u32; 5] = [0x0200_0001, 1 << 15, 0, 0, 0];
    let value: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(errno) = rustix::fs::setxattr(&program, "security.capability", &value, flags) {
        skip(Need::Root, format_args!("a file cannot be given capabilities: {errno}"));
        return;
    }
    folder.assert_refused(exec_as_nobody(), 126, GAINS);
    assert_eq!(run(exec(&program)).status.code(), Some(0), "for root it is no gain");
}

/// Made by the compiler that has linked this test: a program that does nothing, static and not.
#[test]
fn static_program_is_refused() {
    const SOURCE: &str = "int main(void) { return 0; }\n";
    const BARE: &str = "void _start(void) { for (;;) ; }\n";
    let folder = Folder::new();
    let build = |name: &str, source: &str, words: &[&str]| {
        let text = folder.path("source.c");
        fs::write(&text, source).expect("a folder of ours");
        let program = folder.path(name);
        let mut command = Command::new("cc");
        let output = command.args(words).arg("-o").arg(&program).arg(&text).output();
        let output = output.expect("a compiler");
        (program, output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (shared, is_built, said) = build("shared", SOURCE, &[]);
    assert!(is_built, "{said}");
    assert_eq!(run(exec(&shared)).status.code(), Some(0));
    const LINE: &str = "a static program loads no library of ours";
    // Without a library, which may not be there in its static form.
    for words in [&["-static", "-nostdlib"][..], &["-static-pie", "-nostdlib", "-fPIE"]] {
        let (program, is_built, said) = build("bare", BARE, words);
        assert!(is_built, "{said}");
        folder.assert_refused(exec(&program), 126, LINE);
    }
    match build("static", SOURCE, &["-static"]) {
        (program, true, _) => {
            assert_eq!(run(Command::new(&program)).status.code(), Some(0), "on its own it runs");
            folder.assert_refused(exec(&program), 126, LINE);
        }
        (_, false, said) => skip(Need::Package, format_args!("no static library of C: {said}")),
    }
}
