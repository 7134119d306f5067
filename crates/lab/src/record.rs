//! Writes the results of benchmark tables to files, for comparisons with later runs.
//!
//! Each benchmark table gives two files in a folder. `TABLE.json` is for programs, and follows
//! `schema.json`. `TABLE.txt` is for readers, and also has the command line and the load of the
//! machine.
//!
//! All tables run before the first file is written. So if a table fails, the folder stays as it
//! was. Each result contains the id of the current commit, which ends with `-dirty` if files have
//! changed since. The files of one table do not make the next one `-dirty`.
//!
//! # What it refuses
//! A run is refused if files of the source tree were changed since the commit, because its numbers
//! could not be reproduced. A quick run is allowed, because its numbers mean nothing.
//!
//! Source: `docs/results/README.md`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_base::primitives::thread;

use crate::machine::{Machine, watch_others};
use crate::table::{Settings, Size, Table};
use crate::{run_table, text, to_json};

/// Where results go unless told otherwise.
pub(crate) const FOLDER: &str = "docs/results";
/// How long the load by other processes is measured before a run.
const WATCH: Duration = Duration::from_secs(1);

/// Runs `tables` and writes their results to `folder`.
///
/// # Errors
/// A source tree with changed files, a benchmark that fails, or a file that cannot be written.
pub(crate) fn record(tables: &[&Table], settings: &Settings, folder: &Path) -> anyhow::Result<()> {
    let commit = Machine::here().commit;
    let is_clean = settings.size == Size::Quick || !commit.ends_with("-dirty");
    ensure!(is_clean, "files were changed since commit {commit}: commit them first");
    // Before the tables, which take minutes.
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut done = vec![];
    for table in tables {
        let others = watch_others();
        thread::sleep(WATCH);
        let busy = others();
        eprintln!("{}: other processes use {:.0} % of the machine", table.name, 100.0 * busy);
        let report = run_table(table, settings)?;
        let text = format!(
            "{}\n{}\nbefore it other processes used {:.0} % of the machine\n",
            text::render(&report),
            command(std::env::args()),
            100.0 * busy
        );
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

/// Returns a command line with the name of the program instead of its path.
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
