//! `corewalk fsck`: checks a store that is not mounted.
//!
//! Exit status as in fsck(8), also of a command line that is refused before this module sees it: the usual 1 would say
//! that errors were corrected, and 2 that the machine is to be started again.
//!
//! A store that is in use is waited for, as a mount waits: its server may be about to end.

use std::ffi::OsString;
use std::io::Write as _;

use corewalk_store::Report;

use crate::failure::Failure;
use crate::source::{Source, when_free};

/// Something is wrong and was left so.
const ERRORS_LEFT: u8 = 4;
/// The check could not be made, or nobody told of it.
const OPERATIONAL: u8 = 8;
/// A mistake on the command line.
pub(crate) const USAGE: u8 = 16;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Exit status, after fsck(8): 0 nothing is wrong; 4 something is, and was left so; \
8 the check could not be made, or its result not be written; 16 a mistake on the command line."
)]
pub(crate) struct Arguments {
    /// The store: store:DIR.
    source: OsString,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks, and prints what was found.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = match Source::parse(&arguments.source) {
        Ok(Source::Store(path)) => path,
        _ => {
            let source = arguments.source.display();
            let line = format!("not a store: '{source}'; a store is named as store:DIR");
            return Err(Failure::Command(USAGE, line));
        }
    };
    let report = when_free(path, || corewalk_store::fsck(path)).map_err(operational)?;
    let text = if arguments.json { json(&report) } else { lines(&report) };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| operational(Failure::of("standard output", error)))?;
    if report.findings.is_empty() { Ok(()) } else { Err(Failure::Said(ERRORS_LEFT)) }
}

/// Returns a failure with the exit status that fsck(8) has for it.
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
