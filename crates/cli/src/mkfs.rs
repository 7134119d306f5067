//! `corewalk mkfs`: makes a cluster file system in a PostgreSQL database.
//!
//! A store needs no such command: the first mount makes it.

use std::ffi::OsString;
use std::io::Write as _;

use corewalk_cluster::{MakeError, SCHEME, mkfs};

use crate::cluster::Limits;
use crate::failure::Failure;
use crate::source::parse_url;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
The database must exist already. Its user must be allowed to make schemas in it. The file system is
in the schema `corewalk`, so the database may have other schemas. The root directory belongs to the
user who runs the command. A password is taken from the variable PGPASSWORD.

Example:
    corewalk mkfs 'pg://me@db.example.org/files?data=s3://bucket/prefix'

Exit status: 0 if the file system was made, 1 if not, 2 if the command line is invalid.")]
pub(crate) struct Arguments {
    /// The new file system: pg://USER@HOST:PORT/DATABASE?data=WHERE. WHERE says where to store the
    /// contents of files over 16 KiB: file:DIR or s3://BUCKET/PREFIX.
    url: OsString,
    /// Replace an existing file system in the database. Its files are lost, but its objects are not
    /// removed.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    limits: Limits,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Some(text) = arguments.url.to_str().filter(|text| text.starts_with(SCHEME)) else {
        let url = arguments.url.display();
        return Err(Failure::Usage(format!("'{url}' is no URL that begins with {SCHEME}")));
    };
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let url = parse_url(text)?;
    match mkfs(&url, owner, arguments.force) {
        Ok(()) => {}
        Err(error @ MakeError::Exists) => {
            return Err(Failure::of(text, format!("{error}; --force replaces it")));
        }
        Err(error @ MakeError::NoData) => return Err(Failure::Usage(format!("{text}: {error}"))),
        Err(error) => return Err(Failure::of(text, error)),
    }
    arguments.limits.apply(&url).map_err(|error| {
        Failure::of(text, format!("the file system is made, but without its limits: {error}"))
    })?;
    let written = writeln!(std::io::stdout().lock(), "made a file system in {text}");
    written.map_err(|error| Failure::of("standard output", error))
}
