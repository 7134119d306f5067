//! The report: one HTML page with a plot per table, for people who look at pictures before rows.
//!
//! `corewalk-lab report --out DIR` writes `DIR/index.html`: for each table the claim in one sentence,
//! where it comes from, the machine and the commit, the plot with the lowest and the highest round,
//! what the source published, and all rows. The page needs nothing but itself: no script, no style
//! sheet, no font, no picture is fetched, so that it can be kept and mailed.
//!
//! # Losses
//! Whoever is measured and is behind is marked with a word, not only with a colour. The page begins
//! with how often corewalk is ahead and behind, against the baseline and against the best of the
//! others, with the furthest of both in letters of the same size (`standing`).
//!
//! # How it works
//! `read` takes what `corewalk-lab run --json` and `record` wrote; without files all tables are run first.
//! `plot` draws, `page` puts the parts together. Everything is built before anything is written, and
//! the page gets its name only when it is whole.
//!
//! The plots are bars, lines and text in SVG, so they are written out here. Crates that plot were
//! looked at and left: they draw axes with numbers, which bars with a scale of their own per group do
//! not have, and cannot tell how wide a text is without its font either.
//!
//! # Tables that do not run
//! One that fails, for want of `/dev/fuse` or because an answer was wrong, does not take the others with
//! it: it is named on the page, first of all, with what it said, and the program ends with a failure.
//!
//! # What it refuses
//! A file that is missing or is not what a run writes, and a folder that cannot be written to: both
//! before anything is run, in one line, with nothing left behind.
//!
//! Source: `schema.json` beside this crate.

mod page;
mod plot;
mod read;
mod standing;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::Report;

/// The name of the page in its folder.
const PAGE: &str = "index.html";

/// A table that did not run, and why.
pub(crate) struct Failed {
    pub(crate) table: &'static str,
    pub(crate) why: String,
}

/// A folder that a page can be written to.
pub(crate) struct Folder {
    path: PathBuf,
    /// What was made for it, innermost first.
    made: Vec<PathBuf>,
}

impl Folder {
    /// Returns the folder at `path`, made if it was not there, after trying that it can be written
    /// to. Dropped without a page it leaves nothing.
    ///
    /// # Errors
    /// If it is something else than a folder, or cannot be made or written to.
    pub(crate) fn new(path: &Path) -> anyhow::Result<Folder> {
        ensure!(path.is_dir() || !path.exists(), "{} is not a folder", path.display());
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let made = path.ancestors().take_while(is_missing).map(Path::to_owned).collect();
        let folder = Folder { path: path.to_owned(), made };
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        let draft = folder.draft();
        fs::write(&draft, b"")
            .and_then(|()| fs::remove_file(&draft))
            .with_context(|| format!("cannot write to {}", path.display()))?;
        Ok(folder)
    }

    /// Writes the page of `reports`, and of the tables that did not run, and returns where it is.
    ///
    /// # Errors
    /// If it cannot be written; a page that was there before stays.
    pub(crate) fn write(
        mut self,
        reports: &[Report],
        failed: &[Failed],
    ) -> anyhow::Result<PathBuf> {
        let page = self.path.join(PAGE);
        let draft = self.draft();
        let write = || -> io::Result<()> {
            fs::write(&draft, page::render(reports, failed))?;
            fs::rename(&draft, &page)
        };
        if let Err(error) = write() {
            let _ = fs::remove_file(&draft);
            return Err(error).with_context(|| format!("cannot write {}", page.display()));
        }
        self.made.clear();
        Ok(page)
    }

    fn draft(&self) -> PathBuf {
        self.path.join(format!(".{PAGE}.{}", std::process::id()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for made in &self.made {
            // One that somebody has put something into stays.
            let _ = fs::remove_dir(made);
        }
    }
}

/// Returns what `files` hold, in their order.
///
/// # Errors
/// If one is missing or is not what a run writes.
pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Report>> {
    let mut reports = vec![];
    for file in files {
        reports.extend(read::reports(file)?);
    }
    Ok(reports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_without_a_page_leaves_nothing() {
        let path = std::env::temp_dir().join(format!("corewalk-lab-{}-folder", std::process::id()));
        drop(Folder::new(&path.join("a/b")).unwrap());
        assert!(!path.exists());
        fs::create_dir(&path).unwrap();
        fs::write(path.join("mine"), b"kept").unwrap();
        drop(Folder::new(&path).unwrap());
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
        fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn folder_that_is_a_file_is_refused() {
        let path = std::env::temp_dir().join(format!("corewalk-lab-{}-file", std::process::id()));
        fs::write(&path, b"kept").unwrap();
        let error = Folder::new(&path).err().expect("it is a file").to_string();
        assert!(error.contains("is not a folder"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        fs::remove_file(&path).unwrap();
    }
}
