//! The program `corewalk-conformance`: tests a mounted file system.

#![forbid(unsafe_code)]

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use corewalk_conformance::{Mounted, Outcome, Report};

/// The exit status if no check failed, but a check could not run. In automake it means that a test
/// was skipped.
const SKIPPED_STATUS: u8 = 77;

const AFTER_HELP: &str = "\
Checks, and their parts for --only and --except:
  pjdfstest        the test suite for POSIX file systems
  pjdfstest:WORD   its tests whose names contain WORD, such as pjdfstest:rename::
  fsx              random operations on one file, compared with a copy of its content
  fsx:mapped       with memory mappings
  fsx:unmapped     without them
  storm            many threads that publish, remove and read files beside moves of directories

pjdfstest needs root: without it, a third of its tests are skipped. It makes calls as several users,
so mount with allow_other, and also with dev and suid. DIR may have 44 bytes, since pjdfstest binds
sockets below it. The other checks run as any user.

Each check works in a new directory in DIR, and removes it if the check passes. pjdfstest and fsx
are installed with `cargo install` when they are first needed, into the folder of --programs.

Exit status: 0 all checks passed, 1 a check failed, 2 invalid command line,
77 no check failed, but one could not run.";

/// Tests the file system that is mounted on DIR with pjdfstest, fsx and a storm of system calls.
///
/// The file system may be any one: a back end of corewalk, another FUSE server, or one of the
/// kernel.
#[derive(Debug, Parser)]
#[command(version, after_help = AFTER_HELP)]
struct Args {
    /// A directory of the file system. All users must have access to its whole path.
    #[arg(required_unless_present = "list")]
    dir: Option<PathBuf>,

    /// Run only this check. May be given several times.
    #[arg(long, value_name = "CHECK[:PART]", value_parser = known)]
    only: Vec<String>,

    /// Leave this check out, or accept failures of this part of a check. May be given several
    /// times.
    #[arg(long, value_name = "CHECK[:PART]", value_parser = known)]
    except: Vec<String>,

    /// The approximate number of calls of the storm, and the number of operations of each run of
    /// fsx.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,

    /// The number of threads of the storm, at least 5.
    #[arg(long, default_value_t = 6)]
    threads: usize,

    /// The seed of all random choices, by default made from the time. The report shows the seed.
    #[arg(long, value_parser = number)]
    seed: Option<u64>,

    /// How long each check may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    time_limit: u64,

    /// The folder for pjdfstest, fsx and logs; by default corewalk-conformance in the user's cache.
    #[arg(long, value_name = "FOLDER")]
    programs: Option<PathBuf>,

    /// Print the checks, and run none.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Some(dir) = args.dir.as_ref().filter(|_| !args.list) else {
        Mounted::checks().for_each(|(name, about)| println!("{name:<10} {about}"));
        return ExitCode::SUCCESS;
    };
    let Some(programs) = args.programs.clone().or_else(cache_folder) else {
        eprintln!("error: neither XDG_CACHE_HOME nor HOME is set; give --programs");
        return ExitCode::from(2);
    };
    let mut suite = Mounted::new(dir, programs)
        .with_operations(args.operations)
        .with_threads(args.threads)
        .with_time_limit(Duration::from_secs(args.time_limit));
    if let Some(seed) = args.seed {
        suite = suite.with_seed(seed);
    }
    suite = args.only.iter().fold(suite, |suite, check| suite.only(check));
    suite = args.except.iter().fold(suite, |suite, check| suite.except(check, "by --except"));
    let report = suite.run();
    println!("{report}");
    status(&report, &args.except)
}

fn status(report: &Report, except: &[String]) -> ExitCode {
    let is_skipped = |(name, outcome): (&str, &Outcome)| {
        matches!(outcome, Outcome::Skipped(_)) && !except.iter().any(|left_out| left_out == name)
    };
    if report.failed().next().is_some() {
        ExitCode::FAILURE
    } else if report.outcomes().any(is_skipped) {
        ExitCode::from(SKIPPED_STATUS)
    } else {
        ExitCode::SUCCESS
    }
}

fn known(name: &str) -> Result<String, String> {
    let (check, part) = name.split_once(':').unwrap_or((name, "all"));
    match (check, part) {
        ("fsx", "all" | "mapped" | "unmapped") | ("storm", "all") => Ok(name.to_owned()),
        ("pjdfstest", part) if !part.is_empty() => Ok(name.to_owned()),
        _ => Err("no such check; --list prints the checks, and --help their parts".to_owned()),
    }
}

fn number(text: &str) -> Result<u64, std::num::ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

fn cache_folder() -> Option<PathBuf> {
    let folder = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(cache.join("corewalk-conformance"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_accepted_where_a_check_has_them() {
        for name in ["storm", "fsx", "fsx:mapped", "pjdfstest", "pjdfstest:rename::"] {
            assert_eq!(known(name).as_deref(), Ok(name));
        }
        for name in ["strom", "fsx:maped", "storm:reader", "pjdfstest:"] {
            assert!(known(name).is_err(), "{name}");
        }
    }

    #[test]
    fn seed_of_a_report_is_accepted() {
        assert_eq!(number("0x1f"), Ok(31));
        assert_eq!(number("31"), Ok(31));
        assert!(number("0xz").is_err());
    }
}
