//! The `corewalk` program.
//!
//! | command | does |
//! |---|---|
//! | `corewalk mount SOURCE MOUNTPOINT` | mounts a file system and serves it through FUSE |
//! | `corewalk mkfs pg://...` | makes a cluster file system in a database |
//! | `corewalk fsck SOURCE` | checks a store or a cluster file system |
//! | `corewalk cluster` | sets limits of a cluster file system, or spreads it over databases |
//! | `corewalk stat MOUNTPOINT` | prints the counters of a mount |
//! | `corewalk ipc` | runs programs on System V IPC in user space |
//! | `mount.corewalk` (a link to the program) | is called by mount(8) |
//!
//! Each subcommand is a module. This file parses the command line and reports a failure: one line
//! on standard error, and exit status 1 (failed) or 2 (invalid command line). `fsck` and
//! `mount.corewalk` have the statuses of fsck(8) and mount(8).

#![forbid(unsafe_code)]

mod cluster;
mod failure;
mod fsck;
mod fstab;
mod ipc;
mod logging;
mod mkfs;
mod mount;
mod signals;
mod source;
mod stat;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use corewalk_base::primitives::thread;

use failure::Failure;

/// The stack size of the thread that runs the command, in bytes. The stack of the first thread has
/// the size of `ulimit -s`, which may be too small.
const STACK_BYTES: usize = 8 << 20;

/// The text at the end of `corewalk --help`.
const EXAMPLES: &str = "\
Examples:
  corewalk mount tmpfs /tmp/m               a file system in memory, until Ctrl-C or umount /tmp/m
  corewalk mount /srv/files /mnt --daemon   a directory of this machine, in the background
  corewalk mount store:/srv/store /mnt      files that are kept in the directory /srv/store
  corewalk stat /mnt                        its counters
  corewalk ipc exec -- COMMAND              a program with semaphores and queues of its own

umount(8) ends a mount. `corewalk mount --help` lists the options.";

/// Mounts file systems through FUSE, and runs programs on System V IPC in user space.
#[derive(Parser, Debug)]
#[command(name = "corewalk", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Mounts a file system and serves it.
    Mount(mount::Arguments),
    /// Makes a cluster file system in a PostgreSQL database.
    Mkfs(mkfs::Arguments),
    /// Checks a store or a cluster file system.
    Fsck(fsck::Arguments),
    /// Prints the counters of a mount.
    Stat(stat::Arguments),
    /// Sets limits of a cluster file system, or spreads it over several databases.
    Cluster(cluster::Arguments),
    /// Runs programs on System V IPC in user space, and manages its namespaces.
    Ipc(ipc::Arguments),
}

fn main() -> ExitCode {
    match thread::Builder::new().stack_size(STACK_BYTES).spawn(run) {
        // The thread has panicked, and the message is in the log. 101 is the exit status of Rust
        // programs after a panic.
        Ok(command) => command.join().unwrap_or(ExitCode::from(101)),
        Err(error) => Failure::of("cannot start a thread", error).report(),
    }
}

fn run() -> ExitCode {
    logging::start();
    signals::survive_file_size_limit();
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
        Command::Mkfs(arguments) => mkfs::run(&arguments),
        Command::Fsck(arguments) => fsck::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Cluster(arguments) => cluster::run(&arguments),
        Command::Ipc(arguments) => ipc::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Reports why clap did not accept the command line.
///
/// If the user asks for help or the version, clap prints it. Every other case is a mistake: this
/// function prints one line about it, and returns the exit status `status`.
fn refuse(error: &clap::Error, status: u8) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // Ignore an error: the help may go to a pipe whose reader has ended.
            let _ = error.print();
            ExitCode::from(error.exit_code() as u8)
        }
        _ => {
            let line = format!("{}; see --help", first_paragraph(&error.to_string()));
            Failure::Command(status, line).report()
        }
    }
}

/// Returns the first paragraph of a message of clap as one line. This paragraph names the mistake;
/// the others are hints and the usage.
fn first_paragraph(message: &str) -> String {
    let paragraph = message.split("\n\n").next().unwrap_or_default();
    let words = paragraph.strip_prefix("error: ").unwrap_or(paragraph);
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_paragraph_of_a_message_is_one_line() {
        let message = "error: the following was not provided:\n  <A>\n  <B>\n\nUsage: x\n";
        assert_eq!(first_paragraph(message), "the following was not provided: <A> <B>");
        assert_eq!(first_paragraph(""), "");
    }
}
