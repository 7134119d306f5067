//! Claims about rows: how threads scale, how far a variant is ahead, and whether a claim holds.
//!
//! A claim compares rows, as two threads with one thread, or corewalk with a baseline. Its text is
//! one line that other programs can find: `claim: WORDS: held (FIGURE)`, `claim: WORDS: not held
//! (FIGURE)` or `claim: WORDS: not measured`. If a run lacks the rows of a claim, the claim is not
//! measured, which does not count as held.
//!
//! The figure is the `ratio` of a row where possible, since a ratio is computed in each round. A
//! factor of two medians is less stable.
//!
//! Source: `samples`.

use std::fmt::{self, Display};

use serde_json::Value;

use crate::samples::{OVER_THREADS, Params, Row};
use crate::text::with_names;

/// Losses that are named in a line; the others are counted.
const NAMED: usize = 6;

/// A claim about corewalk, and whether the rows show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    words: String,
    /// None if a row of the claim was not measured.
    is_held: Option<bool>,
    figure: String,
}

/// The bound of a factor.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bound {
    Least(f64),
    Most(f64),
}

impl Claim {
    /// Returns the claim that `factor` is at least `least`.
    pub(crate) fn at_least(words: &str, factor: Option<f64>, least: f64) -> Claim {
        let is_held = factor.map(|factor| factor >= least);
        Claim::of(format!("{words}, at least x{least}"), is_held, times(factor))
    }

    /// Returns the claim that `factor` is at most `most`.
    pub(super) fn at_most(words: &str, factor: Option<f64>, most: f64) -> Claim {
        let is_held = factor.map(|factor| factor <= most);
        Claim::of(format!("{words}, at most x{most}"), is_held, times(factor))
    }

    /// Returns the claim that none of `rows` is behind its baseline by more than the spread of the
    /// row.
    pub(super) fn no_loss<'a>(words: &str, rows: impl IntoIterator<Item = &'a Row>) -> Claim {
        let rows: Vec<&Row> = rows.into_iter().filter(|row| row.ratio.is_some()).collect();
        let losses: Vec<String> =
            rows.iter().filter(|row| is_loss(row)).map(|row| place(row)).collect();
        let mut figure = format!("{} of {} rows behind", losses.len(), rows.len());
        for (at, loss) in losses.iter().take(NAMED).enumerate() {
            figure.push_str(if at == 0 { ": " } else { "; " });
            figure.push_str(loss);
        }
        if losses.len() > NAMED {
            figure.push_str("; and more");
        }
        let is_held = (!rows.is_empty()).then_some(losses.is_empty());
        Claim::of(format!("{words} by more than the rows vary"), is_held, figure)
    }

    /// Returns the claim that each of `factors` is within `bound`. The figure is the worst factor.
    pub(super) fn in_every_cell(words: &str, factors: &[(f64, &Row)], bound: Bound) -> Claim {
        let (sense, words) = match bound {
            Bound::Least(least) => (1.0, format!("{words}, at least x{least} in every cell")),
            Bound::Most(most) => (-1.0, format!("{words}, at most x{most} in every cell")),
        };
        let is_right = |factor: f64| match bound {
            Bound::Least(least) => factor >= least,
            Bound::Most(most) => factor <= most,
        };
        let worst = factors.iter().min_by(|a, b| (sense * a.0).total_cmp(&(sense * b.0)));
        let Some((factor, row)) = worst else { return Claim::of(words, None, String::new()) };
        let right = factors.iter().filter(|(factor, _)| is_right(*factor)).count();
        let (of, place) = (factors.len(), with_names(&row.params));
        let figure = format!("x{factor:.2} at {place}; {right} of {of} cells");
        Claim::of(words, Some(right == of), figure)
    }

    /// Returns a claim with its figure. `is_held` is None if a row of the claim was not measured.
    pub(super) fn of(words: String, is_held: Option<bool>, figure: String) -> Claim {
        Claim { words, is_held, figure }
    }

    /// Returns a word for the verdict, without spaces.
    pub(crate) fn word(&self) -> &'static str {
        self.is_held.map_or("not-measured", |is_held| if is_held { "held" } else { "not-held" })
    }
}

impl Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, verdict) = (&self.words, self.word().replace('-', " "));
        let figure = self.is_held.map(|_| format!(" ({})", self.figure)).unwrap_or_default();
        write!(f, "claim: {words}: {verdict}{figure}")
    }
}

/// Returns the ratios of corewalk's throughput to `baseline`, in the rows that `is_meant` selects.
pub(super) fn rates<'a>(
    rows: &'a [Row],
    baseline: &str,
    is_meant: impl Fn(&Params) -> bool,
) -> Vec<(f64, &'a Row)> {
    let ours = ours(rows).filter(|row| row.metric == "ops_per_s" && row.baseline == baseline);
    let meant = ours.filter(|row| is_meant(&row.params));
    meant.filter_map(|row| Some((row.ratio?, row))).collect()
}

/// Returns the rows of corewalk.
pub(super) fn ours(rows: &[Row]) -> impl Iterator<Item = &Row> {
    rows.iter().filter(|row| row.variant == "corewalk")
}

/// Returns the median of the row of `variant` with exactly the parameters `params`.
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

/// Returns the baseline's `ns_per_op` over that of the row: more than 1 if the row is faster.
pub(super) fn ahead(rows: &[Row], variant: &str, params: &[(&str, Value)]) -> Option<f64> {
    ratio(rows, variant, "ns_per_op", params).map(|ratio| 1.0 / ratio)
}

/// Returns the rate of two threads over that of one, as the median over the rounds. `params` are
/// the other parameters.
pub(super) fn scaling(rows: &[Row], variant: &str, params: &[(&str, Value)]) -> Option<f64> {
    let params = [params, &[("threads", 2.into()), (OVER_THREADS, 1.into())]].concat();
    ratio(rows, variant, "ops_per_s", &params)
}

/// Returns a factor as text, or `unknown` if a row is missing.
pub(super) fn times(factor: Option<f64>) -> String {
    factor.map_or_else(|| String::from("unknown"), |factor| format!("x{factor:.2}"))
}

/// Returns true if the row is behind its baseline by more than its own spread.
pub(super) fn is_loss(row: &Row) -> bool {
    let margin = 1.0 + spread_pct(row) / 100.0;
    row.ratio.is_some_and(|ratio| match row.better {
        "higher" => ratio * margin < 1.0,
        _ => ratio > margin,
    })
}

/// Returns the distance from the lowest to the highest round, in percent of the median.
pub(super) fn spread_pct(row: &Row) -> f64 {
    if row.median > 0.0 { 100.0 * (row.max - row.min) / row.median } else { 0.0 }
}

/// Returns the parameters of a row, and its ratio to its baseline, as text.
fn place(row: &Row) -> String {
    let (params, ratio) = (with_names(&row.params), row.ratio.unwrap_or(0.0));
    format!("{params} [{}] x{ratio:.2} of {}", row.metric, row.baseline)
}

pub(super) fn find<'a>(
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
        samples.add_scaling(|_, _| true);
        let rows = samples.rows();
        assert_eq!(scaling(&rows, "corewalk", &[("op", "a".into())]), Some(1.8));
        assert_eq!(scaling(&rows, "corewalk", &[("op", "b".into())]), None);
        assert_eq!(scaling(&rows, "corewalk", &[]), None);
        assert_eq!(times(Some(1.8)), "x1.80");
        assert_eq!(times(None), "unknown");
    }

    #[test]
    fn claim_is_one_line_that_says_whether_it_holds() {
        let line = |figure| Claim::at_least("two threads over one", figure, 1.8).to_string();
        assert_eq!(line(Some(1.85)), "claim: two threads over one, at least x1.8: held (x1.85)");
        assert_eq!(
            line(Some(1.79)),
            "claim: two threads over one, at least x1.8: not held (x1.79)"
        );
        assert_eq!(line(None), "claim: two threads over one, at least x1.8: not measured");
        assert_eq!(Claim::at_most("its time", Some(1.31), 1.3).word(), "not-held");
        assert_eq!(Claim::at_most("its time", Some(1.3), 1.3).word(), "held");
    }

    /// Returns a row with `users` users and a spread of a tenth.
    fn row(users: u64, ratio: Option<f64>) -> Row {
        Row {
            variant: String::from("corewalk"),
            params: Params::from([("users", users.into())]),
            metric: "ops_per_s",
            unit: "1/s",
            better: "higher",
            median: 100.0,
            min: 97.0,
            max: 107.0,
            rounds: 5,
            baseline: String::from("the-lock"),
            ratio,
        }
    }

    #[test]
    fn loss_of_more_than_the_spread_is_said_and_a_smaller_one_is_not() {
        let claim = |rows: &[Row]| Claim::no_loss("no loss", rows).to_string();
        let held = "claim: no loss by more than the rows vary: held (0 of 1 rows behind)";
        assert_eq!(claim(&[row(1, Some(0.95))]), held);
        let lost = claim(&[row(1, Some(0.8)), row(2, Some(1.2)), row(3, None)]);
        assert!(
            lost.contains("not held (1 of 2 rows behind: users=1 [ops_per_s] x0.80 of the-lock)"),
            "{lost}"
        );
        assert!(claim(&[]).ends_with("not measured"));
        let many: Vec<Row> = (0..9).map(|users| row(users, Some(0.5))).collect();
        assert!(claim(&many).ends_with("; and more)"), "{}", claim(&many));
    }
}
