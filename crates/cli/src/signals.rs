//! Dispositions of signals that the whole program needs.
//!
//! A write over the limit of `ulimit -f` sends SIGXFSZ, which ends a process by default. A server must
//! outlive it: the write fails with `EFBIG`, and the client gets that errno. So the program has a handler
//! that does nothing.
//!
//! Rejected: to ignore SIGXFSZ. An ignored signal stays ignored across execve(2), so a command of
//! `corewalk ipc exec` would not have the default disposition. execve(2) resets a handler.
//!
//! Source: setrlimit(2) (`RLIMIT_FSIZE`), signal(7).

use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

/// Has a write over `ulimit -f` fail with `EFBIG` and not end the process. A SIGXFSZ that is ignored stays
/// ignored, also for commands that this process starts.
pub(crate) fn outlive_file_limit() {
    if !is_ignored(SIGXFSZ)
        && let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default())
    {
        log::warn!("a write over ulimit -f will end this process: {error}");
    }
}

/// Returns true if this process ignores `signal`, as nohup(1) has it ignore SIGHUP.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}
