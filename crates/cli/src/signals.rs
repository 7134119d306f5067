//! Signal dispositions of the whole program.
//!
//! A write beyond the file size limit (`ulimit -f`) raises SIGXFSZ, which ends a process by
//! default. A server must survive it: then the write fails with `EFBIG`, and the client gets that
//! errno. So the program installs a handler that does nothing.
//!
//! Rejected: to ignore SIGXFSZ. An ignored signal stays ignored after execve(2), so a command of
//! `corewalk ipc exec` would not have the default disposition. A handler is reset by execve(2).
//!
//! Source: setrlimit(2) (`RLIMIT_FSIZE`), signal(7).

use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

/// Makes a write beyond `ulimit -f` fail with `EFBIG`. Otherwise it would end the process.
///
/// If SIGXFSZ was ignored when this process started, it stays ignored, and so it is in commands
/// that this process runs.
pub(crate) fn survive_file_size_limit() {
    if !is_ignored(SIGXFSZ)
        && let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default())
    {
        log::warn!(
            "cannot handle SIGXFSZ; a write beyond ulimit -f will end this process: {error}"
        );
    }
}

/// Returns true if this process ignores `signal`. For example, nohup(1) starts a program with
/// SIGHUP ignored.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}
