//! `corewalk fsck`: checks a store that is not mounted.
//!
//! The exit statuses are those of fsck(8), even for an invalid command line. In fsck(8), the
//! statuses 1 and 2 of the other subcommands mean "errors corrected" and "the system should be
//! rebooted".
//!
//! If a process has the store open, the check waits up to 5 seconds, as a mount does: a server
//! whose mount was just unmounted ends soon.

use std::ffi::OsString;
use std::io::Write as _;

use corewalk_store::Report;

use crate::failure::Failure;
use crate::source::{Source, open_when_free};

/// Exit status if the store has errors. They were not corrected.
const ERRORS_LEFT: u8 = 4;
/// Exit status if the check itself failed, or if its result could not be printed.
const OPERATIONAL: u8 = 8;
/// Exit status for an invalid command line.
pub(crate) const USAGE: u8 = 16;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The check changes nothing and needs no permission to write. The store must not be mounted: the
check waits up to 5 seconds for another process to close it.

It prints one line for each error, and then the totals.

Exit status, as in fsck(8):
     0  no errors
     4  the store has errors, which were not corrected
     8  the check failed, or its result could not be printed
    16  the command line is invalid")]
pub(crate) struct Arguments {
    /// The store to check: store:DIR, where DIR is the directory of the store.
    source: OsString,
    /// Print one JSON object: the list of errors and the totals.
    #[arg(long)]
    json: bool,
}

/// Checks the store and prints the errors and the totals.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = match Source::parse(&arguments.source) {
        Ok(Source::Store(path)) => path,
        _ => {
            let source = arguments.source.display();
            let line = format!("'{source}' is not a store; name a store as store:DIR");
            return Err(Failure::Command(USAGE, line));
        }
    };
    let report = open_when_free(path, || corewalk_store::fsck(path)).map_err(operational)?;
    let text = if arguments.json { json(&report) } else { lines(&report) };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| operational(Failure::of("standard output", error)))?;
    if report.findings.is_empty() { Ok(()) } else { Err(Failure::Reported(ERRORS_LEFT)) }
}

fn operational(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(line) => Failure::Command(OPERATIONAL, line),
        other => other,
    }
}

fn lines(report: &Report) -> String {
    let found: String = report.findings.iter().map(|finding| format!("{finding}\n")).collect();
    let Report { inodes, orphans, blocks, xattr_blocks, xattr_users, .. } = report;
    let count = report.findings.len();
    format!(
        "{found}{count} errors, {inodes} inodes, {orphans} orphans, {blocks} blocks, \
         {xattr_blocks} attribute blocks with {xattr_users} users\n"
    )
}

fn json(report: &Report) -> String {
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let object = serde_json::json!({
        "errors": findings,
        "inodes": report.inodes,
        "orphans": report.orphans,
        "blocks": report.blocks,
        "xattr_blocks": report.xattr_blocks,
        "xattr_users": report.xattr_users,
    });
    format!("{object}\n")
}
