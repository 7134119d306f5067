//! Computes the result rows of a benchmark table from its measurements: median, spread, and ratio
//! to the baseline.
//!
//! On a shared machine, absolute times vary: the same run takes 0.9 or 2.4 s. But the ratio of two
//! variants is stable if one is measured right after the other. So the lab computes a ratio for
//! each round, and the row has the median of these ratios.
//!
//! # Invariants
//! - The `ratio` of a result row compares a variant with its baseline, only from rounds in which
//!   both were measured. The baseline has the same parameters as the row, unless the benchmark
//!   chooses others ([`Samples::add_against`]).
//!
//! Source: `schema.json` beside this crate.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use itertools::Itertools as _;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::text::with_names;

/// The parameters of a row: `threads`, `op` and others.
pub(crate) type Params = BTreeMap<&'static str, Value>;

/// The parameter of a row that compares a variant with itself at fewer threads. Its value is the
/// number of threads of the baseline ([`Samples::add_scaling`]).
pub(crate) const OVER_THREADS: &str = "over_threads";

/// A measured quantity: its name, its unit, and whether higher or lower values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric(&'static str, &'static str, &'static str);

impl Metric {
    /// Operations per second of wall time, all threads together.
    pub(crate) const OPS_PER_SECOND: Metric = Metric("ops_per_s", "1/s", "higher");
    /// Nanoseconds of one thread's processor time per operation.
    pub(crate) const NS_PER_OP: Metric = Metric("ns_per_op", "ns", "lower");
    /// Bytes of memory per entry.
    pub(crate) const BYTES_PER_ENTRY: Metric = Metric("bytes_per_entry", "B", "lower");
    /// Seconds.
    pub(crate) const SECONDS: Metric = Metric("seconds", "s", "lower");
    /// Requests to a server of a mount, per file.
    pub(crate) const REQUESTS_PER_FILE: Metric = Metric("requests_per_file", "1", "lower");
    /// Statements that a mount sends to its database, per operation.
    pub(crate) const STATEMENTS_PER_OP: Metric = Metric("statements_per_op", "1", "lower");
    /// Bytes to and from a database, per operation.
    pub(crate) const DATABASE_BYTES_PER_OP: Metric = Metric("database_bytes_per_op", "B", "lower");
    /// Requests to an S3 server, per operation.
    pub(crate) const S3_REQUESTS_PER_OP: Metric = Metric("s3_requests_per_op", "1", "lower");
    /// Attempts of walks or path translations that started again, per million operations.
    pub(crate) const RETRIES_PER_MILLION: Metric = Metric("retries_per_million", "1", "lower");
}

/// One set of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell(pub(crate) Params);

impl Cell {
    /// Returns this set of parameters with one more parameter.
    pub(crate) fn with(&self, key: &'static str, value: impl Into<Value>) -> Cell {
        let mut cell = self.clone();
        cell.0.insert(key, value.into());
        cell
    }

    /// Returns the value of a parameter that is a number, or 0 if it is missing.
    pub(crate) fn number(&self, key: &str) -> usize {
        self.0.get(key).and_then(Value::as_u64).unwrap_or(0) as usize
    }

    /// Returns the value of the parameter `key` if it is a text, otherwise an empty text.
    pub(crate) fn word(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_names(&self.0))
    }
}

/// One row of a table.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    /// The variant.
    pub variant: String,
    /// With what parameters.
    #[serde(borrow)]
    pub params: BTreeMap<&'static str, Value>,
    /// The name of the measured quantity.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which direction is better: `higher` or `lower`.
    pub better: &'static str,
    /// The median over the rounds.
    pub median: f64,
    /// The lowest round.
    pub min: f64,
    /// The highest round.
    pub max: f64,
    /// How many rounds counted.
    pub rounds: usize,
    /// The variant that `ratio` compares with.
    pub baseline: String,
    /// The ratio of this result row to its baseline: the median over the rounds that have both.
    pub ratio: Option<f64>,
}

/// The samples of one benchmark table, with rows in the order in which they were added.
#[derive(Default)]
pub(crate) struct Samples {
    rows: Vec<(Key, Vec<(usize, f64)>)>,
}

/// The identity of a row.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    variant: String,
    params: Params,
    metric: Metric,
    baseline: String,
    base_params: Params,
}

impl Samples {
    /// Adds a measured value of `variant` in `round`. It is compared with the value of the variant
    /// `baseline` with the same parameters.
    pub(crate) fn add(
        &mut self,
        round: usize,
        variant: &str,
        params: &Params,
        measured: (Metric, f64),
        baseline: &str,
    ) {
        self.add_against(round, variant, params, measured, baseline, params);
    }

    /// Adds a value of `variant` in `round`. It is compared with the value of the variant
    /// `baseline` with the parameters `base_params`.
    pub(crate) fn add_against(
        &mut self,
        round: usize,
        variant: &str,
        params: &Params,
        measured: (Metric, f64),
        baseline: &str,
        base_params: &Params,
    ) {
        let key = Key {
            variant: variant.to_owned(),
            params: params.clone(),
            metric: measured.0,
            baseline: baseline.to_owned(),
            base_params: base_params.clone(),
        };
        self.push(key, round, measured.1);
    }

    fn push(&mut self, key: Key, round: usize, value: f64) {
        match self.rows.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push((round, value)),
            None => self.rows.push((key, vec![(round, value)])),
        }
    }

    /// Adds result rows that compare several threads of a variant with one thread of it, for each
    /// throughput that `is_wanted` selects. These rows have the parameter [`OVER_THREADS`].
    pub(crate) fn add_scaling(&mut self, is_wanted: impl Fn(&str, &Params) -> bool) {
        let mut more = Samples::default();
        for (key, values) in &self.rows {
            let is_several = key.params.get("threads").is_some_and(|threads| *threads != 1);
            let is_rate = key.metric == Metric::OPS_PER_SECOND;
            if !(is_several && is_rate && is_wanted(&key.variant, &key.params)) {
                continue;
            }
            let (mut params, mut one) = (key.params.clone(), key.params.clone());
            params.insert(OVER_THREADS, 1.into());
            one.insert("threads", 1.into());
            let baseline = key.variant.clone();
            let key = Key { params, baseline, base_params: one, ..key.clone() };
            more.rows.push((key, values.clone()));
        }
        self.rows.append(&mut more.rows);
    }

    /// Adds a result row for `name`, whose value in each round is the best value of the variants
    /// `of`. These variants must have `name` as their baseline.
    pub(crate) fn add_best(&mut self, name: &str, of: &[&str]) {
        let mut best = Samples::default();
        for (key, values) in &self.rows {
            if key.baseline == name && of.contains(&&key.variant[..]) {
                let key = Key { variant: name.to_owned(), ..key.clone() };
                values.iter().for_each(|&(round, value)| best.push(key.clone(), round, value));
            }
        }
        for (key, values) in &mut best.rows {
            let sense = if key.metric.2 == "higher" { -1.0 } else { 1.0 };
            values.sort_by(|a, b| (a.0.cmp(&b.0)).then((sense * a.1).total_cmp(&(sense * b.1))));
            values.dedup_by_key(|(round, _)| *round);
        }
        self.rows.append(&mut best.rows);
    }

    /// Returns the rows.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.rows.iter().map(|(key, values)| self.row(key, values)).collect()
    }

    fn row(&self, key: &Key, values: &[(usize, f64)]) -> Row {
        let only: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
        let base = self.rows.iter().find(|(other, _)| {
            other.variant == key.baseline
                && other.params == key.base_params
                && other.metric == key.metric
        });
        let ratios: Vec<f64> = values
            .iter()
            .filter_map(|(round, value)| {
                let (_, base) = base?;
                let (_, base) = base.iter().find(|(other, _)| other == round)?;
                (*base > 0.0).then_some(value / base)
            })
            .collect();
        let Metric(metric, unit, better) = key.metric;
        Row {
            variant: key.variant.clone(),
            params: key.params.clone(),
            metric,
            unit,
            better,
            median: short(median(&only).unwrap_or(0.0)),
            min: short(only.iter().copied().fold(f64::INFINITY, f64::min)),
            max: short(only.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            rounds: only.len(),
            baseline: key.baseline.clone(),
            ratio: median(&ratios).map(short),
        }
    }
}

/// Rounds a number to six digits. No measurement is more exact.
fn short(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// Returns the median of the values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let sorted = values.iter().copied().sorted_by(f64::total_cmp).collect_vec();
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
        _ => Some(sorted[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(threads: u64) -> Params {
        Params::from([("threads", threads.into())])
    }

    #[test]
    fn best_variant_is_the_better_one_of_each_round() {
        let (mut samples, params) = (Samples::default(), Params::default());
        let all = [("ours", [30.0, 30.0]), ("a", [10.0, 60.0]), ("b", [40.0, 15.0])];
        for (variant, costs) in all {
            for (round, ns) in costs.into_iter().enumerate() {
                samples.add(round, variant, &params, (Metric::OPS_PER_SECOND, 1e9 / ns), "best");
                samples.add(round, variant, &params, (Metric::NS_PER_OP, ns), "best");
            }
        }
        samples.add_best("best", &["a", "b"]);
        let rows = samples.rows();
        let row = |variant: &str, metric: &str| {
            rows.iter().find(|row| row.variant == variant && row.metric == metric).unwrap()
        };
        let best = row("best", "ns_per_op");
        assert_eq!((best.min, best.max, best.rounds, best.ratio), (10.0, 15.0, 2, Some(1.0)));
        assert_eq!(row("ours", "ns_per_op").ratio, Some(2.5));
        let rate = row("ours", "ops_per_s").ratio.unwrap();
        assert!((rate - 0.4166).abs() < 1e-3, "{rate}");
    }

    #[test]
    fn ratio_is_the_median_of_the_ratios_round_by_round() {
        let mut samples = Samples::default();
        for (round, (ours, theirs)) in [(2.0, 1.0), (30.0, 10.0), (4.0, 4.0)].iter().enumerate() {
            let ops = |value: f64| (Metric::OPS_PER_SECOND, value);
            samples.add(round, "corewalk", &params(1), ops(*ours), "base");
            samples.add(round, "base", &params(1), ops(*theirs), "base");
        }
        let rows = samples.rows();
        assert_eq!((rows[0].ratio, rows[0].median), (Some(2.0), 4.0));
        assert_eq!((rows[0].min, rows[0].max, rows[0].rounds), (2.0, 30.0, 3));
        assert_eq!(rows[1].ratio, Some(1.0));
    }

    #[test]
    fn ratio_against_other_params_is_that_of_the_same_round() {
        let mut samples = Samples::default();
        for (round, (calm, storm)) in [(4.0, 1.0), (8.0, 4.0), (10.0, 9.0)].iter().enumerate() {
            let ops = |value: f64| (Metric::OPS_PER_SECOND, value);
            samples.add(round, "corewalk", &params(0), ops(*calm), "corewalk");
            samples.add_against(round, "corewalk", &params(1), ops(*storm), "corewalk", &params(0));
        }
        let ratios: Vec<_> = samples.rows().iter().map(|row| row.ratio).collect();
        assert_eq!(ratios, [Some(1.0), Some(0.5)]);
    }

    #[test]
    fn scaling_is_that_of_the_same_round_and_only_of_what_is_wanted() {
        let mut samples = Samples::default();
        let add = |samples: &mut Samples, round, threads, value| {
            let rate = (Metric::OPS_PER_SECOND, value);
            samples.add(round, "corewalk", &params(threads), rate, "base");
        };
        for (round, (one, two)) in [(1.0, 2.0), (10.0, 15.0), (4.0, 4.0)].into_iter().enumerate() {
            add(&mut samples, round, 1, one);
            add(&mut samples, round, 2, two);
        }
        samples.add_scaling(|_, _| false);
        assert_eq!(samples.rows().len(), 2);
        samples.add_scaling(|_, _| true);
        let rows = samples.rows();
        assert_eq!((rows.len(), rows[2].ratio, rows[2].rounds), (3, Some(1.5), 3));
        assert_eq!(rows[2].params[OVER_THREADS], 1);
    }

    #[test]
    fn ratio_ignores_other_params_and_rounds_without_the_baseline() {
        let mut samples = Samples::default();
        let ns = |value: f64| (Metric::NS_PER_OP, value);
        samples.add(0, "corewalk", &params(1), ns(5.0), "base");
        samples.add(0, "base", &params(2), ns(1.0), "base");
        samples.add(1, "base", &params(1), ns(1.0), "base");
        assert_eq!(samples.rows()[0].ratio, None);
        samples.add(1, "corewalk", &params(1), ns(7.0), "base");
        assert_eq!(samples.rows()[0].ratio, Some(7.0));
    }

    #[test]
    fn schema_has_every_metric() {
        let schema: Value = serde_json::from_str(include_str!("../schema.json")).unwrap();
        let known = schema.pointer("/$defs/row/properties/metric/enum").unwrap();
        let all = [
            Metric::OPS_PER_SECOND,
            Metric::NS_PER_OP,
            Metric::BYTES_PER_ENTRY,
            Metric::SECONDS,
            Metric::REQUESTS_PER_FILE,
            Metric::STATEMENTS_PER_OP,
            Metric::DATABASE_BYTES_PER_OP,
            Metric::S3_REQUESTS_PER_OP,
            Metric::RETRIES_PER_MILLION,
        ];
        for metric in all {
            assert!(known.as_array().unwrap().contains(&metric.0.into()), "{metric:?}");
        }
    }

    #[test]
    fn median_of_an_even_number_is_the_mean_of_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
    }

    #[test]
    fn cell_that_is_displayed_has_its_parameters_in_order() {
        let cell = Cell::default().with("pattern", "own").with("sems", 128);
        let line = cell.with("workers", "processes").to_string();
        assert_eq!(line, "pattern=own sems=128 workers=processes");
    }
}
