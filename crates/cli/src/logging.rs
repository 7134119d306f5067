//! Logs, on the standard error: warnings and worse of the crates of this workspace, and panics.
//!
//! A server is not held up by its log. Each record is one line of at most `LINE_BYTES_MAX` bytes, without a backtrace,
//! and a line that the standard error cannot take at once is dropped: a pipe that is never read would otherwise stop a
//! mount.
//!
//! fuser logs an error whenever the kernel has no use for an answer any more. That happens in good
//! order when a caller is interrupted, often, and everything else that it logs it also returns.

use std::any::Any;
use std::os::fd::AsFd;
use std::panic::{Location, set_hook};
use std::sync::Mutex;

use log::{LevelFilter, Log, Metadata, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most bytes of a line, less than a pipe with any room takes at once (PIPE_BUF, pipe(7)).
const LINE_BYTES_MAX: usize = 512;

struct Stderr;

static STDERR: Stderr = Stderr;

/// Sends logs to the standard error from now on, and panics to the log.
pub(crate) fn start() {
    if log::set_logger(&STDERR).is_ok() {
        log::set_max_level(LevelFilter::Warn);
        set_hook(Box::new(|info| {
            log::error!("{}", panic_text(info.location(), info.payload()));
        }));
    }
}

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn && metadata.target().starts_with("corewalk")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            write_line(&std::io::stderr(), &format!("corewalk: {}", record.args()));
        }
    }

    fn flush(&self) {}
}

/// Writes a line, or drops it if `out` has no room for it now. A closed standard error does not end the server.
fn write_line(out: &impl AsFd, text: &str) {
    // One thread at a time, so that the room that it finds is still there when it writes.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    let mut line = text.replace('\n', "\\n");
    let end = (0..LINE_BYTES_MAX.min(line.len() + 1)).rfind(|&end| line.is_char_boundary(end));
    line.truncate(end.unwrap_or(0));
    line.push('\n');
    let mut ready = [PollFd::new(out, PollFlags::OUT)];
    let has_room = poll(&mut ready, Some(&Timespec::default())) == Ok(1)
        && ready[0].revents().contains(PollFlags::OUT);
    if has_room {
        let _ = rustix::io::write(out, line.as_bytes());
    }
}

/// Returns what a panic says, and where.
fn panic_text(location: Option<&Location<'_>>, payload: &(dyn Any + Send)) -> String {
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let at = location.map_or(String::new(), |location| format!(" at {location}"));
    format!("a panic{at}: {}", said.unwrap_or("no text"))
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    /// Returns all that is in the pipe.
    fn drain(end: &impl AsFd) -> Vec<u8> {
        let (mut all, mut part) = (Vec::new(), [0; 8192]);
        while let Ok(len @ 1..) = rustix::io::read(end, &mut part) {
            all.extend_from_slice(&part[..len]);
        }
        all
    }

    /// The write end blocks, as a standard error does. A write into the full pipe would never return.
    ///
    /// Trap X3.
    #[test]
    fn log_that_nobody_reads_stops_nothing() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
        let text = "x".repeat(300);
        (0..1_000).for_each(|_| write_line(&write, &text));
        let got = drain(&read);
        assert!(got.len() >= 301 && got.len() < 300_000, "{} bytes", got.len());
        assert!(got.chunks(301).all(|line| line == format!("{text}\n").as_bytes()));
        write_line(&write, "read again");
        assert_eq!(drain(&read), b"read again\n");
        drop(read);
        write_line(&write, "closed");
    }

    #[test]
    fn panic_is_one_line_of_bounded_length() {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        rustix::fs::fcntl_setfl(&read, rustix::fs::OFlags::NONBLOCK).unwrap();
        let here = Location::caller();
        write_line(&write, &panic_text(Some(here), &"two\nlines"));
        let expected = format!("a panic at {here}: two\\nlines\n");
        assert_eq!(String::from_utf8(drain(&read)).unwrap(), expected);
        write_line(&write, &panic_text(Some(here), &"\u{e9}".repeat(10_000)));
        let line = drain(&read);
        assert!(line.len() <= LINE_BYTES_MAX && line.ends_with(b"\xa9\n"), "{}", line.len());
        assert_eq!(panic_text(None, &7_u8), "a panic: no text");
    }
}
