//! A cluster file system for a suite: a PostgreSQL server, a database, and a file system in it.
//!
//! The server runs as `nobody`, since PostgreSQL refuses to run as root. It ends with the process
//! namespace of the suite.

use super::{
    mount::Site,
    work::{postgres_folder, quoted},
};
use crate::Outcome;
use std::process::Command;

/// Starts the server, makes the file system, and returns its URL. An error is the outcome of the
/// suite: skipped if there is no PostgreSQL, or failed.
pub(super) fn make(site: &Site) -> Result<String, Outcome> {
    const SCRIPT: &str = r#"
umask 022
mkdir "$SITE/pg"
chown nobody "$SITE/pg"
user() { setpriv --reuid=nobody --regid=nogroup --clear-groups -- env HOME="$SITE/pg" "$@"; }
cd "$SITE/pg"
user "$BIN/initdb" -D data -U corewalk -A trust --no-sync --no-locale -E UTF8
user "$BIN/pg_ctl" -D data -l log -w -o "-h '' -k $SITE/pg -c fsync=off" start
user "$BIN/createdb" -h "$SITE/pg" -U corewalk files
"$PROGRAM" mkfs "$URL?data=file:$SITE/objects"
"#;
    let Some(folder) = postgres_folder() else {
        return Err(Outcome::Skipped("no complete postgres is installed".to_owned()));
    };
    let host = site.folder.display().to_string().replace('/', "%2F");
    let url = format!("pg://corewalk@{host}%2Fpg/files");
    let mut command = Command::new("sh");
    command.args(["-euc", &format!("BIN={}\n{SCRIPT}", quoted(&folder))]);
    command.env("SITE", &site.folder).env("PROGRAM", &site.program).env("URL", &url);
    site.run("database", &mut command)?;
    Ok(url)
}
