//! What rows say together: how threads scale, and who is how far ahead.
//!
//! A claim is tested as a shape: two threads over one, ours over theirs. Rows are medians over
//! rounds, so a shape made of two of them is for people to read beside the spread, and a `ratio`,
//! which is taken round by round, is the better one where there is one.
//!
//! Source: `samples`.

use serde_json::Value;

use crate::samples::Row;

/// Returns the median of a row of `variant` that has exactly the parameters `params`.
pub(super) fn median(
    rows: &[Row],
    variant: &str,
    metric: &str,
    params: &[(&str, Value)],
) -> Option<f64> {
    find(rows, variant, metric, params).map(|row| row.median)
}

/// Returns the ratio of such a row to its baseline.
pub(super) fn ratio(
    rows: &[Row],
    variant: &str,
    metric: &str,
    params: &[(&str, Value)],
) -> Option<f64> {
    find(rows, variant, metric, params)?.ratio.filter(|ratio| *ratio > 0.0)
}

/// Returns the rate of two threads over that of one; `params` are the other parameters.
pub(super) fn scaling(rows: &[Row], variant: &str, params: &[(&str, Value)]) -> Option<f64> {
    let with = |threads: u64| {
        let params = [params, &[("threads", threads.into())]].concat();
        median(rows, variant, "ops_per_s", &params).filter(|rate| *rate > 0.0)
    };
    Some(with(2)? / with(1)?)
}

/// Returns a factor as text; it is not known if a row is missing.
pub(super) fn times(factor: Option<f64>) -> String {
    factor.map_or_else(|| String::from("unknown"), |factor| format!("x{factor:.2}"))
}

fn find<'a>(
    rows: &'a [Row],
    variant: &str,
    metric: &str,
    params: &[(&str, Value)],
) -> Option<&'a Row> {
    rows.iter().find(|row| {
        row.variant == variant
            && row.metric == metric
            && row.params.len() == params.len()
            && params.iter().all(|(key, value)| row.params.get(key) == Some(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Metric, Params, Samples};

    #[test]
    fn scaling_is_two_threads_over_one_with_the_same_other_params() {
        let mut samples = Samples::default();
        for (threads, op, value) in [(1, "a", 10.0), (2, "a", 18.0), (1, "b", 1.0)] {
            let params = Params::from([("op", op.into()), ("threads", threads.into())]);
            samples.add(0, "corewalk", &params, (Metric::OpsPerSecond, value), "corewalk");
        }
        let rows = samples.rows();
        assert_eq!(scaling(&rows, "corewalk", &[("op", "a".into())]), Some(1.8));
        assert_eq!(scaling(&rows, "corewalk", &[("op", "b".into())]), None);
        assert_eq!(scaling(&rows, "corewalk", &[]), None);
        assert_eq!(times(Some(1.8)), "x1.80");
        assert_eq!(times(None), "unknown");
    }
}
