//! `corewalk ipc`: System V IPC namespaces in user space, for unmodified programs.
//!
//! `exec` runs a command in a namespace. The other subcommands manage the namespaces that have a
//! name.

mod exec;
mod forms;
mod ls;
mod objects;
mod place;
mod preload;
mod program;
mod rm;
mod serve;
mod stat;
mod watch;

use clap::Subcommand;

use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Runs a command in a namespace. The command then uses the semaphores, message queues and,
    /// with --shm, the shared memory of the namespace instead of the kernel's.
    Exec(exec::Arguments),
    /// Lists the objects of a namespace, as ipcs(1) does, or the user's namespaces.
    Ls(ls::Arguments),
    /// Removes objects of a namespace, as ipcrm(1) does, or a whole namespace.
    Rm(rm::Arguments),
    /// Prints the limits and the use of a namespace, and its number of tasks, in one table.
    Stat(stat::Arguments),
    /// Watches a namespace, and cleans up immediately when one of its processes was killed.
    Serve(serve::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Exec(arguments) => exec::run(arguments),
        Command::Ls(arguments) => ls::run(arguments),
        Command::Rm(arguments) => rm::run(arguments),
        Command::Stat(arguments) => stat::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
    }
}
