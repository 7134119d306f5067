//! Writes the report of results: one page, which needs no further files.
//!
//! `corewalk-lab report --out DIR` writes `DIR/index.html`. The page starts with one line per
//! benchmark table. The line has the claim in a sentence, the ratio of one result of corewalk to
//! its baseline, and whether the claims hold.
//!
//! Below these lines, each table has one plot of the rows of its claim, with the curve of its
//! source, if there is one. All other rows are below the plot, folded.
//!
//! The page is XHTML with inline SVG, without scripts, and loads nothing. A claim that does not
//! hold is shown like one that holds.
//!
//! # How it works
//! [`read`] reads the files of `run --json` and `record`. `page` makes the page, and `plot` the
//! plots.
//!
//! Source: the contract of the program in DESIGN.md, section 5.

mod page;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use crate::{Report, table};

/// The name of the page in its folder.
const PAGE: &str = "index.html";

/// Writes the page into `folder`, and returns its path. An older page is replaced only after the
/// new one is complete.
///
/// # Errors
/// `folder` is a file or cannot be made, or the page cannot be written.
pub(crate) fn write(folder: &Path, reports: &[Report]) -> anyhow::Result<PathBuf> {
    ensure!(folder.is_dir() || !folder.exists(), "{} is not a folder", folder.display());
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (page, draft) = (folder.join(PAGE), folder.join(format!(".{PAGE}.{}", std::process::id())));
    fs::write(&draft, page::render(reports))
        .and_then(|()| fs::rename(&draft, &page))
        .with_context(|| format!("cannot write {}", page.display()))?;
    Ok(page)
}

/// Returns the tables in `files`, in the order of the files.
///
/// The result rows borrow their names from the JSON, so the JSON is leaked. That does no harm,
/// since the program ends soon.
///
/// # Errors
/// A file cannot be read, or is not JSON of a run of the lab.
pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Report>> {
    let read = |file: &PathBuf| {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        parse(text.leak()).with_context(|| format!("{name} is not the output of a run"))
    };
    files.iter().map(read).collect()
}

fn parse(text: &'static str) -> anyhow::Result<Report> {
    let report: Report = serde_json::from_str(text)?;
    ensure!(table::find(report.table).is_some(), "there is no table {}", report.table);
    ensure!(!report.rows.is_empty(), "the table {} has no rows", report.table);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::samples::{Metric, Params, Samples};
    use serde_json::Value;

    fn report() -> Report {
        let mut samples = Samples::default();
        for (round, value) in [1.0, 2.0, 4.0].into_iter().enumerate() {
            let params = Params::from([("threads", 2.into()), ("op", "walk".into())]);
            samples.add(round, "corewalk", &params, (Metric::OPS_PER_SECOND, value), "linux");
        }
        let machine = Machine::here();
        Report { table: "lookup", source: "somewhere", machine, rows: samples.rows() }
    }

    #[test]
    fn output_of_a_run_is_read_back_the_same() {
        let json = crate::to_json(&report()).unwrap();
        let read = parse(json.clone().leak()).unwrap();
        assert_eq!(crate::to_json(&read).unwrap(), json);
    }

    #[test]
    fn anything_else_is_refused_in_one_line() {
        let good: Value = serde_json::from_str(&crate::to_json(&report()).unwrap()).unwrap();
        let changed = |pointer: &str, value: Value| {
            let mut json = good.clone();
            *json.pointer_mut(pointer).expect("the field is there") = value;
            json.to_string()
        };
        for (text, expected) in [
            (String::from("nonsense"), "expected"),
            (String::from("[]"), "invalid"),
            (String::from("{}"), "missing field"),
            (changed("/rows", Value::Array(vec![])), "has no rows"),
            (changed("/table", "unknown".into()), "there is no table unknown"),
            (changed("/machine/cores", "two".into()), "invalid type"),
        ] {
            let error = format!("{:#}", parse(text.leak()).expect_err("it is wrong"));
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn folder_that_is_a_file_is_refused() {
        let path = std::env::temp_dir().join(format!("corewalk-lab-{}-file", std::process::id()));
        fs::write(&path, b"kept").unwrap();
        let error = write(&path, &[]).expect_err("it is a file").to_string();
        assert!(error.contains("is not a folder"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        fs::remove_file(&path).unwrap();
    }
}
