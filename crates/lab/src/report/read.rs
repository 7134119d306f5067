//! Reading what a run wrote.
//!
//! A file holds one table or a list of several, after `schema.json`. Rows in the program have names
//! that live as long as it does, so each different name that is read is kept for good: there are a few
//! dozen, and the program ends with the page.
//!
//! # What it refuses
//! Fields that the schema does not have, tables without rows, numbers that are not in the order
//! lowest, median, highest.
//!
//! Source: `schema.json` beside this crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::Report;
use crate::machine::Machine;
use crate::samples::Row;

/// Returns the tables in `file`.
///
/// # Errors
/// If it cannot be read, is not JSON, or is not what a run writes.
pub(super) fn reports(file: &Path) -> anyhow::Result<Vec<Report>> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let json: Value = serde_json::from_str(&text).with_context(|| format!("{name} is not JSON"))?;
    let tables = if let Value::Array(tables) = json { tables } else { vec![json] };
    ensure!(!tables.is_empty(), "{name} holds no table");
    let mut names = Names::default();
    let mut read = |table: Value| -> anyhow::Result<Report> {
        let stored: Stored = serde_json::from_value(table)?;
        stored.into_report(&mut names)
    };
    let reports: anyhow::Result<Vec<Report>> = tables.into_iter().map(&mut read).collect();
    reports.with_context(|| format!("{name} is not what a run of tables writes"))
}

/// Names that are kept for good.
#[derive(Default)]
struct Names(BTreeSet<&'static str>);

/// A table as it is stored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    table: String,
    source: String,
    machine: StoredMachine,
    rows: Vec<StoredRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMachine {
    cpu: String,
    cores: usize,
    kernel: String,
    commit: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredRow {
    variant: String,
    params: BTreeMap<String, Value>,
    metric: String,
    unit: String,
    better: Better,
    median: f64,
    min: f64,
    max: f64,
    rounds: usize,
    baseline: String,
    ratio: Option<f64>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Better {
    Higher,
    Lower,
}

impl Names {
    fn keep(&mut self, name: String) -> &'static str {
        if let Some(kept) = self.0.get(&name[..]) {
            return kept;
        }
        let kept: &'static str = name.leak();
        self.0.insert(kept);
        kept
    }
}

impl Stored {
    fn into_report(self, names: &mut Names) -> anyhow::Result<Report> {
        ensure!(!self.rows.is_empty(), "the table {} has no rows", self.table);
        let rows = self.rows.into_iter().enumerate();
        let rows = rows.map(|(at, row)| row.into_row(names).with_context(|| format!("row {at}")));
        let StoredMachine { cpu, cores, kernel, commit } = self.machine;
        Ok(Report {
            rows: rows.collect::<anyhow::Result<_>>()?,
            table: names.keep(self.table),
            source: names.keep(self.source),
            machine: Machine { cpu, cores, kernel, commit },
        })
    }
}

impl StoredRow {
    fn into_row(self, names: &mut Names) -> anyhow::Result<Row> {
        let is_ordered = self.min <= self.median && self.median <= self.max;
        ensure!(is_ordered && self.min >= 0.0, "min, median and max are not in order");
        Ok(Row {
            variant: self.variant,
            params: self.params.into_iter().map(|(key, value)| (names.keep(key), value)).collect(),
            metric: names.keep(self.metric),
            unit: names.keep(self.unit),
            better: match self.better {
                Better::Higher => "higher",
                Better::Lower => "lower",
            },
            median: self.median,
            min: self.min,
            max: self.max,
            rounds: self.rounds,
            baseline: self.baseline,
            ratio: self.ratio,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Metric, Params, Samples};

    fn written(name: &str, text: &str) -> std::path::PathBuf {
        let file =
            std::env::temp_dir().join(format!("corewalk-lab-{}-{name}.json", std::process::id()));
        fs::write(&file, text).unwrap();
        file
    }

    fn report() -> Report {
        let mut samples = Samples::default();
        for (round, value) in [1.0, 2.0, 4.0].into_iter().enumerate() {
            let params = Params::from([("threads", 2.into()), ("op", "walk".into())]);
            samples.add(round, "corewalk", &params, (Metric::OpsPerSecond, value), "linux");
        }
        let machine = Machine::here();
        Report { table: "lookup", source: "somewhere", machine, rows: samples.rows() }
    }

    #[test]
    fn what_a_run_writes_is_read_back_the_same() {
        for reports in [vec![report()], vec![report(), report()]] {
            let file = written("same", &crate::to_json(&reports).unwrap());
            let read = super::reports(&file).unwrap();
            assert_eq!(crate::to_json(&read).unwrap(), crate::to_json(&reports).unwrap());
            fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn what_no_run_writes_is_refused_in_one_line() {
        let good: Value = serde_json::from_str(&crate::to_json(&[report()]).unwrap()).unwrap();
        let changed = |pointer: &str, value: Value| {
            let mut json = good.clone();
            *json.pointer_mut(pointer).expect("the field is there") = value;
            json.to_string()
        };
        for (text, expected) in [
            (String::from("nonsense"), "is not JSON"),
            (String::from("[]"), "holds no table"),
            (String::from("{}"), "missing field"),
            (changed("/rows", Value::Array(vec![])), "has no rows"),
            (changed("/rows/0/median", 9.0.into()), "not in order"),
            (changed("/rows/0/better", "bigger".into()), "unknown variant"),
            (changed("/machine/cores", "two".into()), "invalid type"),
        ] {
            let file = written("wrong", &text);
            let error = format!("{:#}", super::reports(&file).expect_err("it is wrong"));
            assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
            fs::remove_file(file).unwrap();
        }
    }
}
