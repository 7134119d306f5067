//! The corewalk program.
//!
//! `corewalk mount SOURCE MOUNTPOINT` serves a file system through FUSE, `corewalk stat MOUNTPOINT`
//! shows the counters of one, `corewalk lab` measures. Each subcommand is a module; this file parses the command line, and
//! turns what went wrong into one line on the standard error and an exit status: 1 for a failure, 2
//! for a command line that cannot be meant.

#![forbid(unsafe_code)]

mod failure;
mod logging;
mod mount;
mod source;
mod stat;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Shows the counters of a mount.
    Stat(stat::Arguments),
    /// Measures corewalk beside the host kernel and the usual designs.
    Lab(corewalk_lab::LabArgs),
}

fn main() -> ExitCode {
    logging::start();
    let done = match Arguments::parse().command {
        Command::Mount(arguments) => mount::run(&arguments),
        Command::Stat(arguments) => stat::run(&arguments),
        Command::Lab(arguments) => {
            let done = corewalk_lab::run(arguments, &["lab"]);
            done.map_err(|error| failure::Failure::of("lab", format!("{error:#}")))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
