//! `corewalk fsck`: checks an unmounted store or a cluster file system.
//!
//! The exit statuses are those of fsck(8), even for an invalid command line. The other subcommands
//! fail with 1 or 2, which in fsck(8) mean "errors corrected" and "the system should be rebooted".
//!
//! If a process has the store open, the check waits up to 5 seconds, as a mount does. A server
//! whose mount was just unmounted soon closes the store. A cluster file system may be mounted
//! during the check, which reads one snapshot of the database.

use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write as _;

use corewalk_store::Report;

use crate::failure::Failure;
use crate::source::{Source, object_settings, open_when_free, parse_url};

/// Exit status if the check has found errors. `corewalk fsck` corrects no error.
const ERRORS_LEFT: u8 = 4;
/// Exit status if the check itself failed, or if its result could not be printed.
const OPERATIONAL: u8 = 8;
/// Exit status for an invalid command line.
pub(crate) const USAGE: u8 = 16;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The check changes nothing and needs no permission to write. A store must not be mounted: the check
waits up to 5 seconds for another process to close it. A cluster file system may be mounted.

It prints one line for each error, and then the totals. A stray is an object that no mount removes,
since it was written after its mount had given it up. It is no error, but takes space. Never remove
strays of a copy of a database: what the original has written later looks like a stray there.

Exit status, as in fsck(8):
     0  no errors
     4  there are errors, which were not corrected
     8  the check failed, or its result could not be printed
    16  the command line is invalid")]
pub(crate) struct Arguments {
    /// The store to check, store:DIR, where DIR is its directory; or the cluster file system,
    /// pg://USER@HOST:PORT/DATABASE.
    source: OsString,
    /// Print one JSON object: the list of errors and the totals.
    #[arg(long)]
    json: bool,
    /// Remove the strays of a cluster file system: objects that no file uses and that the database
    /// does not know. A running mount, or else the next mount, removes them after a minute or two.
    #[arg(long)]
    remove_strays: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (text, is_clean) = match Source::parse(&arguments.source) {
        Ok(Source::Store(_)) if arguments.remove_strays => {
            let line = "--remove-strays is for a cluster file system".to_owned();
            return Err(Failure::Command(USAGE, line));
        }
        Ok(Source::Store(path)) => {
            let report =
                open_when_free(path, || corewalk_store::fsck(path)).map_err(operational)?;
            let text = if arguments.json { json(&report) } else { lines(&report) };
            (text, report.findings.is_empty())
        }
        Ok(Source::Cluster(url)) => {
            let failed = |error| operational(Failure::of(url, error));
            let parsed = parse_url(url)?;
            let report = corewalk_cluster::fsck(&parsed, &object_settings()).map_err(failed)?;
            if arguments.remove_strays {
                corewalk_cluster::record_strays(&parsed, &report).map_err(failed)?;
            }
            let text = if arguments.json { cluster_json(&report) } else { cluster_lines(&report) };
            (text, report.findings.is_empty())
        }
        Err(Failure::Usage(line)) if line.starts_with(corewalk_cluster::SCHEME) => {
            return Err(Failure::Command(USAGE, line));
        }
        _ => {
            let source = arguments.source.display();
            let line = format!("'{source}' is not a store; name a store as store:DIR");
            return Err(Failure::Command(USAGE, line));
        }
    };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| operational(Failure::of("standard output", error)))?;
    if is_clean { Ok(()) } else { Err(Failure::Reported(ERRORS_LEFT)) }
}

fn operational(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(line) => Failure::Command(OPERATIONAL, line),
        other => other,
    }
}

fn listed(findings: &[impl Display]) -> String {
    findings.iter().map(|finding| format!("{finding}\n")).collect()
}

fn cluster_lines(report: &corewalk_cluster::Report) -> String {
    format!(
        "{}{} errors, {} inodes, {} orphans, {} bytes, {} objects, {} unused objects, {} strays\n",
        listed(&report.findings),
        report.findings.len(),
        report.inodes,
        report.orphans,
        report.bytes,
        report.objects,
        report.unused_objects,
        report.strays.len()
    )
}

fn cluster_json(report: &corewalk_cluster::Report) -> String {
    let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
    let object = serde_json::json!({
        "errors": findings,
        "inodes": report.inodes,
        "orphans": report.orphans,
        "bytes": report.bytes,
        "objects": report.objects,
        "unused_objects": report.unused_objects,
        "strays": report.strays,
    });
    format!("{object}\n")
}

fn lines(report: &Report) -> String {
    let found = listed(&report.findings);
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
