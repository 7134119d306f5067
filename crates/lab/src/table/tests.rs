//! Helpers for quick runs of a benchmark table, and tests of the list of all tables.

use super::*;

#[test]
fn tables_have_different_names_and_are_found_by_them() {
    for table in all() {
        let found = find(table.name).map(|table| table.words().source);
        assert_eq!(found, Some(table.words().source));
    }
    assert!(find("no-such-table").is_none());
}

/// The settings of a run without options, on two cores.
fn default_settings() -> Settings {
    crate::settings(&crate::Pace { quick: false, threads: vec![], seconds: None })
        .expect("they make sense")
}

#[test]
fn whole_set_fits_in_a_third_of_an_hour() {
    let settings = default_settings();
    assert!(settings.rounds >= 5);
    let mut sum = Duration::ZERO;
    for table in all() {
        let slices: Duration =
            (table.sweeps)(&settings).iter().map(|sweep| sweep.time(&settings)).sum();
        eprintln!("{:<17} {:>4.0} s", table.name, slices.as_secs_f64());
        assert!(slices > Duration::ZERO, "{} measures nothing", table.name);
        sum += slices;
    }
    eprintln!("all of them take {:.1} minutes", sum.as_secs_f64() / 60.0);
    assert!(sum < Duration::from_secs(20 * 60), "{sum:?}");
}

#[test]
fn time_follows_what_is_asked_for() {
    let once = default_settings();
    let twice = Settings { time_per_row: 2 * once.time_per_row, ..once.clone() };
    for table in all() {
        let time = |settings: &Settings| {
            let sweeps = (table.sweeps)(settings);
            sweeps.iter().map(|sweep| sweep.time(settings)).sum::<Duration>()
        };
        let factor = time(&twice).as_secs_f64() / time(&once).as_secs_f64();
        assert!((1.9..=2.1).contains(&factor), "{}: x{factor}", table.name);
    }
}

/// Helpers for the quick runs by which tests check each table.
pub(crate) mod quick {
    use std::time::Duration;

    use serde_json::Value;

    use crate::samples::Row;
    use crate::table::{Settings, Size, Table, engine};

    /// Returns settings of a run of about a second.
    pub(crate) fn settings() -> Settings {
        Settings {
            size: Size::Quick,
            threads: vec![1, 2],
            time_per_row: Duration::from_millis(25),
            rounds: 5,
            program: None,
        }
    }

    /// Returns the first row of `variant` with these parameters, among others.
    pub(crate) fn row<'a>(
        rows: &'a [Row],
        variant: &str,
        metric: &str,
        params: &[(&str, Value)],
    ) -> Option<&'a Row> {
        rows.iter().find(|row| {
            row.variant == variant
                && row.metric == metric
                && params.iter().all(|(key, value)| row.params.get(key) == Some(value))
        })
    }

    /// Returns the parameters of cells.
    pub(in crate::table) fn params(cells: &[engine::Cell]) -> Vec<Vec<(&'static str, Value)>> {
        cells.iter().map(|cell| cell.0.clone().into_iter().collect()).collect()
    }

    /// Returns the claims of a table as text.
    pub(in crate::table) fn claims(table: &Table, rows: &[Row]) -> Vec<String> {
        table.claims(rows).iter().map(ToString::to_string).collect()
    }

    /// Runs a benchmark table. Each of `variants` must have a row with a ratio in each of `cells`
    /// (sets of parameters), for throughput and for time per operation.
    pub(crate) fn check(
        table: &Table,
        variants: &[&str],
        cells: &[Vec<(&'static str, Value)>],
    ) -> Vec<Row> {
        let samples = table.measure(&settings()).expect("all answers are right");
        let rows = samples.rows();
        for (variant, params) in variants.iter().flat_map(|v| cells.iter().map(move |c| (v, c))) {
            for metric in ["ops_per_s", "ns_per_op"] {
                let row = row(&rows, variant, metric, params);
                let row = row.unwrap_or_else(|| panic!("no {metric} of {variant} at {params:?}"));
                assert!(row.median > 0.0 && row.min <= row.median && row.median <= row.max);
                // A row has at most 5 measured rounds. A slice in which no worker gets a processor
                // does not count.
                assert!(
                    (1..=5).contains(&row.rounds) && row.ratio.is_some_and(|ratio| ratio > 0.0),
                    "{row:?}"
                );
            }
        }
        assert!(!(table.sweeps)(&settings()).is_empty());
        rows
    }
}
