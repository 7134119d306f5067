//! Writing down what came out, so that it can be held against later runs.
//!
//! A folder gets two files per table: `TABLE.json`, which other programs read and which follows
//! `schema.json`, and `TABLE.txt`, the same as people read it, with the command and how busy the
//! machine was. All tables run before the first file is written. So a table that fails leaves the
//! folder as it was, and the files of one table do not make the commit of the next look changed.
//!
//! # What it refuses
//! Records from a tree with changed files: no reader could reproduce their numbers. A quick run may
//! record, since its numbers mean nothing.
//!
//! Source: `docs/results/README.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_base::primitives::thread;

use crate::machine::{Disturbance, Machine};
use crate::table::{Settings, Size, Table};
use crate::{Report, run_table, text, to_json};

/// Where results go unless told otherwise.
pub(crate) const FOLDER: &str = "docs/results";
/// For how long the machine is watched before a table, to see who else works.
const WATCH: Duration = Duration::from_secs(1);

/// Runs `tables` and writes what came out to `folder`.
///
/// # Errors
/// A tree with changed files, a table that fails, a file that cannot be written.
pub(crate) fn record(
    tables: &[&'static Table],
    settings: &Settings,
    folder: &Path,
) -> anyhow::Result<()> {
    let commit = Machine::here().commit;
    let is_clean = settings.size == Size::Quick || !commit.ends_with("-dirty");
    ensure!(is_clean, "files were changed since commit {commit}: commit them first");
    // Before the tables, which take minutes.
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut done = vec![];
    for table in tables {
        let disturbance = Disturbance::start();
        thread::sleep(WATCH);
        let busy = disturbance.share();
        eprintln!("{}: other processes use {:.0} % of the machine", table.name, 100.0 * busy);
        let report = run_table(table, settings)?;
        let text = with_origin(&report, &command(std::env::args()), busy);
        done.push((report.table, to_json(&[report])?, text));
    }
    for (table, json, text) in done {
        for (ending, content) in [("json", json), ("txt", text)] {
            let file = folder.join(format!("{table}.{ending}"));
            fs::write(&file, content)
                .with_context(|| format!("cannot write {}", file.display()))?;
            crate::say(&format!("{}\n", file.display()))?;
        }
    }
    Ok(())
}

/// Returns the report as text, with where it comes from behind it.
fn with_origin(report: &Report, command: &str, busy: f64) -> String {
    let mut out = text::render(report);
    let _ = writeln!(out, "\n{command}");
    let _ = writeln!(out, "before it other processes used {:.0} % of the machine", 100.0 * busy);
    out
}

/// Returns a command line with the program's name in place of its path.
fn command(mut words: impl Iterator<Item = String>) -> String {
    let program = words.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
    words.fold(name, |line, word| line + " " + &word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_has_the_name_of_the_program_and_its_arguments() {
        let words = ["/somewhere/target/release/corewalk-lab", "record"].map(String::from);
        assert_eq!(command(words.into_iter()), "corewalk-lab record");
    }
}
