//! Runs benchmark tables, and writes their results to files for comparisons with later runs.
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
//! No files are written if files of the source tree were changed since the commit, because the
//! numbers could not be reproduced. A quick run is allowed, because its numbers mean nothing.
//!
//! Source: `docs/results/README.md`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_base::primitives::thread;

use crate::machine::{Machine, watch_others};
use crate::table::{Settings, Size, Table};
use crate::{Report, say, text, to_json};

/// How long the load by other processes is measured before a run.
const WATCH: Duration = Duration::from_secs(1);

/// Runs `tables` and prints their results. Also writes them to the folder `out`, if there is one.
///
/// # Errors
/// A source tree with changed files, a benchmark that fails, or a file that cannot be written.
pub(crate) fn run(
    tables: &[&Table],
    settings: &Settings,
    out: Option<&Path>,
) -> anyhow::Result<()> {
    let is_full = settings.size == Size::Full;
    if let Some(folder) = out {
        let commit = Machine::here().commit;
        let is_clean = !is_full || !commit.ends_with("-dirty");
        ensure!(is_clean, "files were changed since commit {commit}: commit them first");
        // Make the folder before the tables run. They take minutes, so an error must show up early.
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut done = vec![];
    for table in tables {
        let others = watch_others();
        thread::sleep(if is_full { WATCH } else { Duration::ZERO });
        let busy = 100.0 * others();
        let samples = table.measure(settings).with_context(|| format!("table {}", table.name))?;
        let (source, machine) = (table.words().source, Machine::here());
        let report = Report { table: table.name, source, machine, rows: samples.rows() };
        let mut text = text::render(&report);
        say(&text)?;
        let words = command(std::env::args());
        text += &format!("\n{words}\nbefore it other processes used {busy:.0} % of the machine\n");
        done.push((report.table, to_json(&report)?, text));
    }
    let Some(folder) = out else { return Ok(()) };
    for (table, json, text) in done {
        for (ending, content) in [("json", json), ("txt", text)] {
            let file = folder.join(format!("{table}.{ending}"));
            fs::write(&file, content)
                .with_context(|| format!("cannot write {}", file.display()))?;
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
        let words = ["/somewhere/target/release/corewalk-lab", "run"].map(String::from);
        assert_eq!(command(words.into_iter()), "corewalk-lab run");
    }
}
