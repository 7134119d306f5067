//! The lab as a program of its own, for running tables without the rest of corewalk.
//!
//! `corewalk lab` is the same; this one is what the tests start. Exit status 0 is success, 1 a
//! failure, 2 a mistake on the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use corewalk_lab::LabArgs;

/// Re-runs published tables on this machine.
#[derive(Parser)]
#[command(name = "corewalk-lab", version)]
struct Program {
    #[command(flatten)]
    lab: LabArgs,
}

fn main() -> ExitCode {
    match corewalk_lab::run(Program::parse().lab, &[]) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corewalk-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
