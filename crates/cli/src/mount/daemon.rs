//! The server in the background (`--daemon`).
//!
//! The first process runs this program again as the server. The server has its own session, and its
//! standard output is a pipe.
//!
//! When the mount is ready, the server writes one line into the pipe, and the first process ends.
//! If the pipe closes without a line, the server has failed, and has printed the reason on standard
//! error.
//!
//! The server closes all other inherited descriptors. Otherwise an inherited flock(2) lock would be
//! held, and a reader of an inherited pipe would wait, until the mount ends.
//!
//! Rejected: a fork of the first process without exec. It would need less code, but it is not safe
//! in a process with threads.
//!
//! Source: daemon(7), "SysV Daemons", step 1.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;

pub(super) fn start(source: &OsStr, path: &Path, options: &[OsString]) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::of("cannot start the background process", error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // If the server were started under the name `mount.corewalk`, it would expect the arguments of
    // a mount(8) helper.
    command.arg0("corewalk").args(["mount", "--background"]);
    for option in options {
        command.arg("-o").arg(option);
    }
    command.arg("--").arg(source).arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().expect("the stream is piped");
    let mut line = Vec::new();
    BufReader::new(output).read_until(b'\n', &mut line).map_err(failed)?;
    if line.ends_with(b"\n") {
        return Ok(line);
    }
    let status = child.wait().map_err(failed)?;
    match status.code() {
        Some(code @ 1..=255) => Err(Failure::Reported(code as u8)),
        _ => Err(Failure::of("the background process ended before the mount was ready", status)),
    }
}

/// Starts a session of its own for the server, so that signals of the terminal do not reach it.
pub(super) fn leave_terminal() {
    if let Err(error) = rustix::process::setsid() {
        // setsid(2) fails only if the process already leads a process group, as a job of a shell
        // does.
        log::debug!("setsid: {error}");
    }
}

/// Closes all inherited descriptors except the standard streams. Call this function before the
/// process opens a descriptor itself.
pub(super) fn close_inherited() {
    // Ignore an error: without `/proc`, the mount fails later, with a message.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: std::io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let open: Vec<RawFd> = open.filter_map(number).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // `open` also contains the descriptor of `/proc/self/fd`. It was closed after the list was
        // read, so ignore an error.
        let _ = nix::unistd::close(fd);
    }
}

/// Frees what the server has of its starter: the working directory, whose file system could not be
/// unmounted, standard output and standard error.
pub(super) fn detach() {
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
