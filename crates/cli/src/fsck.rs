//! `corewalk fsck`: checks a store that is not mounted.
//!
//! Exit status as in fsck(8): 0 if nothing is wrong, 4 if something is; 8 if the check could not be made,
//! 16 for a command line that cannot be meant.

use std::io::Write as _;

use corewalk_store::Report;

use crate::failure::{Failure, in_silence};
use crate::source::Source;

/// Something is wrong and was left so.
const ERRORS_LEFT: u8 = 4;
/// The check could not be made.
const OPERATIONAL: u8 = 8;
/// A mistake on the command line.
const USAGE: u8 = 16;

/// The command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The store: store:DIR.
    source: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks, and prints what was found.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = match Source::parse(&arguments.source) {
        Ok(Source::Store(path)) => path,
        _ => {
            let _ = Failure::Usage(format!("not a store: '{}'", arguments.source)).report();
            return Err(Failure::Said(USAGE));
        }
    };
    let report = in_silence(|| corewalk_store::fsck(path))?.map_err(|error| {
        let _ = Failure::of(path.display(), error).report();
        Failure::Said(OPERATIONAL)
    })?;
    let text = if arguments.json { json(&report) } else { lines(&report) };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::of("standard output", error))?;
    if report.findings.is_empty() { Ok(()) } else { Err(Failure::Said(ERRORS_LEFT)) }
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
