//! Logs, on the standard error: warnings and worse, one line each, of the crates of this workspace.
//!
//! fuser logs an error whenever the kernel has no use for an answer any more. That happens in good
//! order when a caller is interrupted, often, and everything else that it logs it also returns.

use std::io::Write as _;

use log::{LevelFilter, Log, Metadata, Record};

struct Stderr;

static STDERR: Stderr = Stderr;

/// Sends logs to the standard error from now on.
pub(crate) fn start() {
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(LevelFilter::Warn);
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn && metadata.target().starts_with("corewalk")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // A closed standard error must not end the server.
            let _ = writeln!(std::io::stderr(), "corewalk: {}", record.args());
        }
    }

    fn flush(&self) {}
}
