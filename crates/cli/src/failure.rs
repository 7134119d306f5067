//! What went wrong, as a user sees it: one line and an exit status.

use std::fmt::Display;
use std::process::ExitCode;

/// Why a command did not do what it was asked.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line cannot be meant; exit status 2.
    Usage(String),
    /// It was tried and failed; exit status 1.
    Failed(String),
    /// A command that was to be run cannot be; exit status as given.
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
                ExitCode::from(2)
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
}
