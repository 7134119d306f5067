//! Signal dispositions of the whole program.
//!
//! A write beyond the file size limit (`ulimit -f`) raises SIGXFSZ, which ends a process by
//! default. If the process handles the signal, the write fails with `EFBIG`, which a server can
//! return to its client. So the program installs a handler that does nothing.
//!
//! Rejected: to ignore SIGXFSZ. An ignored signal stays ignored after execve(2), so the command of
//! `corewalk ipc exec` would ignore it too. But execve(2) replaces a handler by the default.
//!
//! Source: setrlimit(2) (`RLIMIT_FSIZE`), signal(7).

use std::sync::Arc;

use corewalk_base::signal_is_ignored;
use signal_hook::consts::SIGXFSZ;

/// Handles SIGXFSZ, so that a write beyond the file size limit does not end the process. If SIGXFSZ
/// was ignored at the start, it stays ignored, also in commands that the process runs.
pub(crate) fn survive_file_size_limit() {
    if !signal_is_ignored(SIGXFSZ)
        && let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::default())
    {
        log::warn!(
            "cannot handle SIGXFSZ; a write beyond ulimit -f will end this process: {error}"
        );
    }
}
