//! `corewalk ipc`: System V IPC namespaces in user space, for programs that know nothing of them.
//!
//! `exec` runs a command in a namespace; `ls`, `rm` and `stat` are for the namespaces that have a name.

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
    /// Runs a command whose semaphores, message queues and perhaps shared memory are those of a namespace in user space.
    Exec(exec::Arguments),
    /// Shows the objects of a namespace after ipcs(1), or which namespaces there are.
    Ls(ls::Arguments),
    /// Removes objects of a namespace after ipcrm(1), or the namespace.
    Rm(rm::Arguments),
    /// Shows all limits of a namespace, what is used and by how many tasks, in one table; `ls -l` and `ls -u` show the first
    /// two as ipcs(1) does.
    Stat(stat::Arguments),
    /// Looks after a namespace: what killed processes have left is put in order at once.
    Serve(serve::Arguments),
}

/// Carries out the subcommand.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Exec(arguments) => exec::run(arguments),
        Command::Ls(arguments) => ls::run(arguments),
        Command::Rm(arguments) => rm::run(arguments),
        Command::Stat(arguments) => stat::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
    }
}
