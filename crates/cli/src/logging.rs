//! The log on standard error. It contains the warnings and errors of this workspace's crates, and
//! the messages of panics.
//!
//! Logging never blocks the server. Each record is one line of at most `LINE_BYTES_MAX` bytes,
//! without a backtrace. If a write of the line would block, the line is dropped, because a full
//! pipe that no process reads would stop a mount.
//!
//! Records of the crate `fuser` are dropped. It logs an error each time the kernel rejects a reply,
//! which is normal after an interrupted call. All other errors also come back to the server as
//! results.

use std::any::Any;
use std::os::fd::AsFd;
use std::panic::{Location, set_hook};
use std::sync::Mutex;

use log::{LevelFilter, Log, Metadata, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The longest line of the log, in bytes. It is shorter than `PIPE_BUF`. So if poll(2) reports a
/// pipe as writable, the pipe takes a whole line without blocking.
const LINE_BYTES_MAX: usize = 512;

struct Stderr;

static STDERR: Stderr = Stderr;

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

/// Writes a line to `out`. If `out` is closed or would block, drops the line.
fn write_line(out: &impl AsFd, text: &str) {
    // Without the lock, another thread could fill the pipe between poll(2) and write(2), and
    // write(2) would block.
    static WRITE: Mutex<()> = Mutex::new(());
    let _guard = WRITE.lock();
    let mut line = text.replace('\n', "\\n");
    let end = (0..LINE_BYTES_MAX.min(line.len() + 1)).rfind(|&end| line.is_char_boundary(end));
    line.truncate(end.unwrap_or(0));
    line.push('\n');
    let mut ready = [PollFd::new(out, PollFlags::OUT)];
    let is_writable = poll(&mut ready, Some(&Timespec::default())) == Ok(1)
        && ready[0].revents().contains(PollFlags::OUT);
    if is_writable {
        let _ = rustix::io::write(out, line.as_bytes());
    }
}

fn panic_text(location: Option<&Location<'_>>, payload: &(dyn Any + Send)) -> String {
    let message = payload.downcast_ref::<&str>().copied();
    let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let at = location.map_or(String::new(), |location| format!(" at {location}"));
    format!("panic{at}: {}", message.unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    fn drain(end: &impl AsFd) -> Vec<u8> {
        let (mut all, mut part) = (Vec::new(), [0; 8192]);
        while let Ok(len @ 1..) = rustix::io::read(end, &mut part) {
            all.extend_from_slice(&part[..len]);
        }
        all
    }

    /// The log must never block: a thread that panics writes to it, and the log may be a full pipe
    /// in blocking mode. Trap X3 in `traps.md`.
    #[test]
    fn log_into_a_full_pipe_does_not_block() {
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
        let expected = format!("panic at {here}: two\\nlines\n");
        assert_eq!(String::from_utf8(drain(&read)).unwrap(), expected);
        write_line(&write, &panic_text(Some(here), &"\u{e9}".repeat(10_000)));
        let line = drain(&read);
        assert!(line.len() <= LINE_BYTES_MAX && line.ends_with(b"\xa9\n"), "{}", line.len());
        assert_eq!(panic_text(None, &7_u8), "panic: no message");
    }
}
