//! What went wrong, as a user sees it: one line and an exit status.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// The exit status of a command line that cannot be meant.
pub(crate) const USAGE: u8 = 2;

/// Why a command did not do what it was asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line cannot be meant; exit status 2.
    Usage(String),
    /// It was tried and failed; exit status 1.
    Failed(String),
    /// As the others, for a command that has exit statuses of its own.
    Command(u8, String),
    /// Another process has said what went wrong; exit status as it had.
    Said(u8),
}

impl Failure {
    /// Returns a failure of what was tried on `subject`.
    pub(crate) fn of(subject: impl Display, reason: impl Display) -> Failure {
        Failure::Failed(format!("{subject}: {reason}"))
    }

    /// Prints the line and returns the exit status.
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
            Failure::Said(status) => ExitCode::from(status),
        }
    }
}

/// Runs a step that catches panics of what it calls, and says by its result what that means: nothing is
/// printed of them. A panic that it does not catch is a failure, which says where.
///
/// No other thread may have something to say meanwhile.
pub(crate) fn in_silence<R>(step: impl FnOnce() -> R) -> Result<R, Failure> {
    let last = Arc::new(Mutex::new(String::new()));
    let hook = take_hook();
    let said = last.clone();
    set_hook(Box::new(move |info| {
        if let Ok(mut said) = said.lock() {
            *said = info.to_string();
        }
    }));
    let done = catch_unwind(AssertUnwindSafe(step));
    set_hook(hook);
    done.map_err(|_| Failure::of("a bug", last.lock().map_or(String::new(), |said| said.clone())))
}

/// Returns the text without line breaks, which a path may hold.
fn one_line(text: &str) -> String {
    text.trim_end().replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_breaks_are_shown_as_such() {
        assert_eq!(one_line("a\nb\n"), "a\\nb");
    }

    #[test]
    fn panic_in_silence_is_a_failure_that_says_where() {
        assert_eq!(in_silence(|| 3), Ok(3));
        let caught = in_silence(|| catch_unwind(|| panic!("expected")).is_err());
        assert_eq!(caught, Ok(true));
        match in_silence(|| panic!("not {}", "expected")) {
            Err(Failure::Failed(line)) => {
                assert!(line.contains("failure.rs") && line.contains("not expected"), "{line}");
            }
            other => panic!("{other:?}"),
        }
    }
}
