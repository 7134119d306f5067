//! The corewalk program.
//!
//! `corewalk mount SOURCE MOUNTPOINT` serves a file system through FUSE, `corewalk fsck store:DIR`
//! checks a store, `corewalk stat MOUNTPOINT` shows the counters of a mount, `corewalk ipc` gives
//! programs System V IPC in user space; a link `mount.corewalk` to the program is a helper of
//! mount(8). Each subcommand is a module; this file parses the command line,
//! and turns what went wrong into one line on the standard error and an exit status: 1 for a
//! failure, 2 for a command line that cannot be meant (`fsck` has those of fsck(8)).

#![forbid(unsafe_code)]

mod failure;
mod fsck;
mod fstab;
mod ipc;
mod logging;
mod mount;
mod signals;
mod source;
mod stat;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use corewalk_base::primitives::thread;

use failure::Failure;

/// Bytes of stack for a command. A small `ulimit -s` binds the first thread of a process only.
const STACK_BYTES: usize = 8 << 20;

/// File systems on scalable metadata caches, in user space.
#[derive(Parser, Debug)]
#[command(name = "corewalk", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Mounts a file system.
    Mount(mount::Arguments),
    /// Checks a store.
    Fsck(fsck::Arguments),
    /// Shows the counters of a mount.
    Stat(stat::Arguments),
    /// Gives programs System V IPC in user space.
    Ipc(ipc::Arguments),
}

fn main() -> ExitCode {
    match thread::Builder::new().stack_size(STACK_BYTES).spawn(run) {
        // The command has panicked, and has said so. Rust's exit status for that is 101.
        Ok(command) => command.join().unwrap_or(ExitCode::from(101)),
        Err(error) => Failure::of("starting a thread", error).report(),
    }
}

/// Carries out the command line, and reports what failed.
fn run() -> ExitCode {
    logging::start();
    signals::outlive_file_limit();
    if fstab::is_called() {
        return fstab::run();
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let is_fsck = std::env::args_os().nth(1).is_some_and(|word| word == "fsck");
            return refuse(&error, if is_fsck { fsck::USAGE } else { failure::USAGE });
        }
    };
    let done = match arguments.command {
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Fsck(arguments) => fsck::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Ipc(arguments) => ipc::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Prints help where that is what was asked for or is missing, else what is wrong in one line; that has `status`.
fn refuse(error: &clap::Error, status: u8) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Nobody reads it if it cannot be written.
            let _ = error.print();
            ExitCode::from(error.exit_code() as u8)
        }
        _ => {
            let line = format!("{}; see --help", complaint(&error.to_string()));
            Failure::Command(status, line).report()
        }
    }
}

/// Returns the first paragraph of a message of clap, which says what is wrong, as one line.
fn complaint(message: &str) -> String {
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    let words = paragraph.strip_prefix("error: ").unwrap_or(paragraph);
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaint_is_the_first_paragraph() {
        let message = "error: the following was not provided:\n  <A>\n  <B>\n\nUsage: x\n";
        assert_eq!(complaint(message), "the following was not provided: <A> <B>");
        assert_eq!(complaint(""), "");
    }
}
