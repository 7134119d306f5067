//! Tests of resource limits of the server process (setrlimit(2)). A client must get an errno, and
//! the server must continue.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use corewalk_testkit::require::has_program;
use rustix::process::Signal;

use crate::fixtures::{Folder, PROGRAM, Server, can_mount, corewalk, run};

/// The shell command that limits the size of files to 20 MiB. The unit of `ulimit -f` is 512 bytes.
const FILE_LIMIT: &str = "ulimit -f 40960";
const FILE_BYTES: u64 = 40_960 * 512;

fn limited<S: AsRef<OsStr>>(limit: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\""), PROGRAM]).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// A write over the file size limit of the server must fail with `EFBIG`, and the server must
/// continue. Trap X10 in `traps.md`.
#[test]
fn write_over_the_file_limit_of_the_server_is_efbig() {
    if !can_mount() {
        return;
    }
    for kind in ["store", "host"] {
        let folder = Folder::new();
        let (path, dir) = (folder.path("m"), folder.path("dir"));
        fs::create_dir(&dir).expect("the directory is created");
        let source = match kind {
            "store" => format!("store:{}", dir.display()),
            _ => dir.display().to_string(),
        };
        // With passthrough, the kernel would write the file for the client, and the server's limit
        // would not apply.
        let options = ["-o".as_ref(), "no_passthrough".as_ref()];
        let arguments = ["mount".as_ref(), source.as_ref(), path.as_os_str()];
        let mut server = Server::run(limited(FILE_LIMIT, arguments.into_iter().chain(options)));
        assert!(server.line.starts_with("mounted "), "{kind}: {:?}", server.line);
        fs::write(path.join("small"), b"long").expect("the file is created");
        let written = fs::write(path.join("large"), vec![7; FILE_BYTES as usize + (4 << 20)]);
        let errno = written.expect_err("the file is over the limit").raw_os_error();
        assert_eq!(errno, Some(rustix::io::Errno::FBIG.raw_os_error()), "{kind}");
        // A write below the limit must still succeed.
        fs::remove_file(path.join("large")).expect("the file was created");
        let small = fs::File::options().write(true).open(path.join("small"));
        small
            .expect("the file was created")
            .write_all(b"kept")
            .expect("its block lies below the limit");
        assert_eq!(fs::read(path.join("small")).expect("the file was written"), b"kept");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0), "{kind}");
        if kind == "store" {
            let checked = run(corewalk(&["fsck", &source]));
            let printed = String::from_utf8_lossy(&checked.stdout);
            assert!(printed.starts_with("0 errors, 2 inodes, 0 orphans, 1 blocks"), "{printed}");
        }
    }
}

/// `ipc exec` and `ipc serve` must report that a new namespace exceeds the file size limit. SIGXFSZ
/// must not kill them. Trap X10 in `traps.md`.
#[test]
fn namespace_over_the_file_limit_is_reported() {
    let folder = Folder::new();
    let named = folder.path("namespace").display().to_string();
    let calls: [&[&str]; 2] =
        [&["ipc", "exec", "--", "true"], &["ipc", "serve", "--namespace", &named]];
    for call in calls {
        folder.assert_refused(limited(FILE_LIMIT, call), 1, "File too large");
    }
}

/// A call must fail if its new segment exceeds the file size limit. SIGXFSZ must not kill the
/// program. Trap X10 in `traps.md`.
#[test]
fn segment_over_the_file_limit_is_an_error() {
    if !has_program("ipcmk") {
        return;
    }
    let script = "ulimit -f 2048; ipcmk -M 16777216 || echo \"status $?\"; ipcmk -M 65536";
    let mut command = corewalk(&["ipc", "exec", "--shm", "--", "sh", "-c", script]);
    command.env("LC_ALL", "C");
    let output = run(command);
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.starts_with("status 1\nShared memory id: "), "{printed}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("Cannot allocate memory"), "{errors}");
}

#[test]
fn command_of_exec_inherits_the_disposition_of_sigxfsz() {
    let over = "ulimit -f 1; exec head -c 4096 /dev/zero > \"$0\"";
    let folder = Folder::new();
    let file = folder.path("file").display().to_string();
    let exec = ["ipc", "exec", "--", "sh", "-c", over, &file];
    let status = run(corewalk(&exec)).status;
    assert_eq!(status.signal(), Some(Signal::XFSZ.as_raw()), "{status}");
    let status = run(limited("trap '' XFSZ", exec)).status;
    assert_eq!((status.signal(), status.code()), (None, Some(1)), "{status}");
}

/// The program must work with a stack limit of 64 KiB. Trap X10 in `traps.md`.
#[test]
fn small_stack_is_enough() {
    const STACK_LIMIT: &str = "ulimit -s 64";
    for call in [&["--version"][..], &["mount", "--help"], &["ipc", "exec", "--", "true"]] {
        let output = run(limited(STACK_LIMIT, call));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{call:?}: {printed}");
    }
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    for source in ["tmpfs".to_owned(), format!("store:{}", folder.path("store").display())] {
        let arguments = ["mount".as_ref(), source.as_ref(), path.as_os_str()];
        let mut server = Server::run(limited(STACK_LIMIT, arguments));
        assert!(server.line.starts_with("mounted "), "{:?}", server.line);
        fs::write(path.join("file"), b"kept").expect("the mount serves");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0), "{source}");
    }
}
