//! Serving in the background.
//!
//! The command starts itself once more as a process of its own session, whose standard output is a
//! pipe. The one line that says that the mount works comes through it; then the first process ends.
//! If the pipe closes without it the second has failed and has said why on the standard error, which
//! both share until then. It keeps no other descriptor of whoever started it: a lock of flock(1) would
//! be held for as long as the mount lives, and the reader of a pipe would wait for as long.
//!
//! A fork without exec would be shorter, but must not happen in a program with threads.
//!
//! Source: daemon(7), which has the first step close all descriptors but the standard ones.

use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, File};
use std::io::{BufRead as _, BufReader};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::failure::Failure;

/// Starts the process that serves, and returns the line that it has said when the mount works.
pub(super) fn start(source: &OsStr, path: &Path, options: &[OsString]) -> Result<Vec<u8>, Failure> {
    let failed = |error| Failure::of("starting in the background", error);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    // The name that this process was called by may be another one.
    command.arg0("corewalk").args(["mount", "--background"]);
    for option in options {
        command.arg("-o").arg(option);
    }
    command.arg("--").arg(source).arg(path);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let output = child.stdout.take().expect("it is piped");
    let mut line = Vec::new();
    BufReader::new(output).read_until(b'\n', &mut line).map_err(failed)?;
    if line.ends_with(b"\n") {
        return Ok(line);
    }
    let status = child.wait().map_err(failed)?;
    match status.code() {
        Some(code @ 1..=255) => Err(Failure::Said(code as u8)),
        _ => Err(Failure::of("the process in the background", status)),
    }
}

/// Leaves the session of the terminal.
pub(super) fn leave_terminal() {
    if let Err(error) = rustix::process::setsid() {
        // Already a session of its own.
        log::debug!("setsid: {error}");
    }
}

/// Closes what this process was started with, but the standard streams. For the very start, when no
/// descriptor is its own yet.
pub(super) fn close_inherited() {
    // Without /proc nothing is served either.
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let number = |entry: std::io::Result<DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    let open: Vec<RawFd> = open.filter_map(number).collect();
    for fd in open.into_iter().filter(|fd| *fd > 2) {
        // The one that they were listed by is closed already.
        let _ = nix::unistd::close(fd);
    }
}

/// Lets go of what the process that started this one has: its folder and its output.
pub(super) fn let_go() {
    // Each can only fail where there is nothing to let go of.
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
