//! The lab: re-runs published tables on the user's own machine.
//!
//! Each benchmark produces one table, and is called a table too. It compares corewalk with usual
//! designs in user space, with the host kernel, and with installed programs. All variants of a
//! table are measured interleaved in one process.
//!
//! The figures are mainly ratios. Each table names the machine and shows the spread. Every run
//! checks its answers. Rows in which corewalk is slower are shown, too.
//!
//! # How it works
//! `table` lists the tables, one file each in `table/`. `table::engine` measures them, and
//! `samples` turns the measurements into rows. `crew` runs the threads of one measurement; `worker`
//! and `client` are processes of a measurement.
//!
//! The variants are in `files`, `ours`, `baseline`, `before` and `peer`. Those of the tables of IPC
//! and of extended attributes are in `sems`, `queues`, `blocks` and `pairs`. The workloads are in
//! `corpus`, `questions`, `race` and `job`.
//!
//! # Output
//! The lab writes a text table to stdout, and everything else to stderr. `run --out` also writes
//! the text and the JSON of each table into a folder. The JSON has the schema `schema.json` beside
//! this crate. `report` makes a page with plots of it.
//!
//! # Limits
//! The lab gives no figures from fewer than five rounds, and compares none with those of other
//! machines.
//!
//! Source: each table names its own.

#![forbid(unsafe_code)]

mod baseline;
mod before;
mod blocks;
mod client;
mod corpus;
mod cpus;
mod crew;
mod files;
mod job;
mod machine;
mod ours;
mod pairs;
mod peer;
mod pingpong;
mod questions;
mod queues;
mod race;
mod ramfs;
mod record;
mod report;
mod samples;
mod sems;
mod table;
mod text;
mod worker;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};

use machine::Machine;
use samples::Row;
use table::{Settings, Size, Table};

/// Rounds of a run.
const ROUNDS: usize = 7;
/// Rounds of a quick run. Fewer rounds are not allowed.
const ROUNDS_QUICK: usize = 5;
/// For how many seconds each variant is measured per row, over all rounds.
const SECONDS: f64 = 1.0;
/// The same in a quick run.
const SECONDS_QUICK: f64 = 0.05;
/// Maximum number of threads that a user can request.
const THREADS_MAX: u64 = 1024;

/// Re-runs published tables on this machine.
#[derive(Parser)]
#[command(name = "corewalk-lab", version, arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Subcommand)]
enum Command {
    /// Lists the tables.
    List,
    /// Runs tables and prints their rows.
    Run {
        /// The tables to run, as `list` names them; all tables if none is named.
        #[arg(value_name = "TABLE", value_parser = table_of)]
        tables: Vec<&'static Table>,
        /// Also writes TABLE.json and TABLE.txt of each table into this folder.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        pace: Pace,
    },
    /// Writes a page with a plot per table, from the JSON of runs.
    Report {
        /// The folder that the page index.html is written to.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Results that `run --out` wrote.
        #[arg(long, value_name = "FILE", num_args = 1.., required = true)]
        json: Vec<PathBuf>,
    },
    /// Works as a client of the table `fuse-metadata`.
    #[command(hide = true)]
    Client {
        /// The directory that the client makes and works in.
        directory: PathBuf,
        /// Files it makes.
        files: usize,
        /// The processor it stays on.
        cpu: Option<usize>,
    },
    /// Mounts and serves a minimal file system.
    #[command(hide = true)]
    Trivial {
        /// Threads that serve requests.
        threads: usize,
        /// The mount point.
        point: PathBuf,
    },
    /// Works as one process of a benchmark of IPC. The lab starts it.
    #[command(hide = true)]
    IpcWorker {
        /// The worker's objects, as JSON.
        job: String,
    },
}

/// How thoroughly is measured.
#[derive(Args, Clone, Debug)]
struct Pace {
    /// Uses small sizes and short slices: shows that a table works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Thread counts (process counts in tables of mounts), such as 1,2,4.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..=THREADS_MAX))]
    threads: Vec<usize>,
    /// For how many seconds each variant is measured per row, over all rounds.
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
}

/// Returns the benchmark table with this name. If there is none, clap reports the name and exits
/// with status 2.
fn table_of(word: &str) -> Result<&'static Table, String> {
    table::find(word).ok_or_else(|| format!("there is no table `{word}`; `list` names them"))
}

fn seconds(word: &str) -> Result<f64, String> {
    let seconds = word.parse().ok().filter(|seconds| *seconds > 0.0 && *seconds <= 3600.0);
    seconds.ok_or_else(|| "it is more than 0 and at most 3600".to_owned())
}

/// The result of one table, in the form of the JSON.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// The name of the table.
    pub(crate) table: &'static str,
    /// The document that the table comes from.
    pub(crate) source: &'static str,
    /// The machine that ran the table.
    pub(crate) machine: Machine,
    /// One row per variant, parameters and metric.
    pub(crate) rows: Vec<Row>,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corewalk-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A variant gives a wrong answer, or a file cannot be written.
fn run(args: Arguments) -> anyhow::Result<()> {
    match args.command {
        Command::List => {
            let line = |table: &&Table| format!("{:<17} {}\n", table.name, table.words().about);
            say(&table::all().iter().map(line).collect::<String>())
        }
        Command::Run { tables, out, pace } => {
            let tables = if tables.is_empty() { table::all() } else { &tables };
            record::run(tables, &settings(&pace)?, out.as_deref())
        }
        Command::Report { out, json } => {
            let reports = report::read(&json)?;
            say(&format!("{}\n", report::write(&out, &reports)?.display()))
        }
        Command::Client { directory, files, cpu } => client::work(&directory, files, cpu),
        Command::Trivial { threads, point } => peer::trivial::serve(threads, &point),
        Command::IpcWorker { job } => worker::work(&job),
    }
}

impl Report {
    /// Returns the table.
    pub(crate) fn table(&self) -> &'static Table {
        table::find(self.table).expect("a report is of a table that is known")
    }
}

/// Returns the JSON of a report. Each result row is on its own line.
///
/// # Errors
/// An error of serde_json, which no report causes.
pub(crate) fn to_json(report: &Report) -> serde_json::Result<String> {
    let Report { table, source, machine, rows } = report;
    let rows = rows.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?.join(",\n");
    let [table, source] = [table, source].map(|text| serde_json::Value::from(*text));
    let machine = serde_json::to_string(machine)?;
    Ok(format!(
        "{{\"table\":{table},\"source\":{source},\n\"machine\":{machine},\n\"rows\":[\n{rows}\n]}}\n"
    ))
}

/// Writes to the standard output, which may be full or closed.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.context("standard output")
}

fn settings(args: &Pace) -> anyhow::Result<Settings> {
    let (size, rounds, seconds, threads) = if args.quick {
        (Size::Quick, ROUNDS_QUICK, SECONDS_QUICK, &[1, 2][..])
    } else {
        (Size::Full, ROUNDS, SECONDS, &[1, 2, 4][..])
    };
    let threads = if args.threads.is_empty() { threads } else { &args.threads };
    Ok(Settings {
        size,
        threads: threads.to_vec(),
        time_per_row: Duration::from_secs_f64(args.seconds.unwrap_or(seconds)),
        rounds,
        program: Some(std::env::current_exe().context("the lab does not know its own file")?),
    })
}
