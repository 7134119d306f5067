//! The failure of a command. The user sees it as one line on standard error and an exit status.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

pub(crate) const USAGE: u8 = 2;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line is invalid. Exit status 2.
    Usage(String),
    /// The command line is valid, but the command failed. Exit status 1.
    Failed(String),
    /// The command failed with this exit status. For example, `fsck` has the statuses of fsck(8).
    Command(u8, String),
    /// The command failed with this exit status. The reason was already printed by this process or
    /// its child.
    Reported(u8),
}

impl Failure {
    pub(crate) fn of(subject: impl Display, reason: impl Display) -> Failure {
        Failure::Failed(format!("{subject}: {reason}"))
    }

    pub(crate) fn report(self) -> ExitCode {
        match self {
            Failure::Usage(line) => {
                eprintln!("corewalk: {}", one_line(&line));
                ExitCode::from(USAGE)
            }
            Failure::Failed(line) => {
                eprintln!("corewalk: {}", one_line(&line));
                ExitCode::FAILURE
            }
            Failure::Command(status, line) => {
                eprintln!("corewalk: {}", one_line(&line));
                ExitCode::from(status)
            }
            Failure::Reported(status) => ExitCode::from(status),
        }
    }
}

/// Runs `step`. If `step` panics, returns the panic's message as a failure instead of printing it.
///
/// A panic hook belongs to the whole process. So while `step` runs, the panics of other threads
/// print no message either.
pub(crate) fn without_panic_messages<R>(step: impl FnOnce() -> R) -> Result<R, Failure> {
    let last = Arc::new(Mutex::new(String::new()));
    let hook = take_hook();
    let message = last.clone();
    set_hook(Box::new(move |info| {
        if let Ok(mut message) = message.lock() {
            *message = info.to_string();
        }
    }));
    let done = catch_unwind(AssertUnwindSafe(step));
    set_hook(hook);
    done.map_err(|_| {
        let message = last.lock().map_or(String::new(), |message| message.clone());
        Failure::of("a bug in corewalk; please report it", message)
    })
}

fn one_line(text: &str) -> String {
    text.trim_end().replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_are_escaped() {
        assert_eq!(one_line("a\nb\n"), "a\\nb");
    }

    #[test]
    fn panic_without_message_is_a_failure_with_its_place() {
        assert_eq!(without_panic_messages(|| 3), Ok(3));
        let caught = without_panic_messages(|| catch_unwind(|| panic!("expected")).is_err());
        assert_eq!(caught, Ok(true));
        match without_panic_messages(|| panic!("not {}", "expected")) {
            Err(Failure::Failed(line)) => {
                assert!(line.contains("failure.rs") && line.contains("not expected"), "{line}");
            }
            other => panic!("{other:?}"),
        }
    }
}
