//! Claims about result rows, such as how threads scale and how far a variant is ahead, and the code
//! that tests them.
//!
//! A claim compares result rows, for example two threads with one, or corewalk with a baseline. Its
//! text is one line in a fixed form, for other programs:
//! - `claim: WORDS: held (FIGURE)`;
//! - `claim: WORDS: not held (FIGURE)`;
//! - `claim: WORDS: not measured`, if the run lacks the rows of the claim.
//!
//! A claim that is not measured does not count as held.
//!
//! A claim reports one number, its figure. Where possible, that is the `ratio` of a result row: the
//! median over the rounds of the result divided by that of the baseline. The quotient of two
//! medians is less stable.
//!
//! Source: `samples`.

use std::fmt::{self, Display};

use serde::Deserialize;
use serde_json::Value;

use crate::samples::{OVER_THREADS, Row};
use crate::text::with_names;

/// Maximum number of losses (rows behind their baseline) that the text of a claim lists.
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
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Bound {
    Least(f64),
    Most(f64),
}

/// Parameters of a result row with their values. In [`Cited`], the value `*` matches any value.
type At = Vec<(&'static str, Value)>;
/// Names one result row by its variant, metric and parameters.
type Cited = (&'static str, &'static str, At);

/// A claim as `words.json` states it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stated {
    /// The text of the claim without its bound. `{KEY}` stands for the value of the row's parameter
    /// KEY.
    words: &'static str,
    of: Of,
    /// The bound of the figure. A claim that counts losses has none.
    bound: Option<Bound>,
}

/// The figure of a claim.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Of {
    /// The largest median of the rows.
    Median(Cited),
    /// The ratio of a row to its baseline.
    Ratio(Cited),
    /// The ratio of the baseline to the row.
    Inverse(Cited),
    /// The median of the first result row divided by the median of the second row.
    Medians(Cited, Cited),
    /// A published figure over the median of a row.
    Figure(f64, Cited),
    /// The throughput of corewalk over that of its baseline, in each result row with one of these
    /// sets of parameters.
    Cells(Vec<At>),
    /// The throughput of the first variant over that of the second, in each result row with one of
    /// these sets of parameters. Both are compared by their ratios to a common baseline, if there
    /// is one.
    Over(&'static str, &'static str, Vec<At>),
    /// The number of result rows with one of these sets of parameters in which a variant is worse
    /// than its baseline.
    Losses(&'static str, Vec<At>),
}

impl Stated {
    /// Returns the claim, with whether the rows show it.
    pub(super) fn test(&self, rows: &[Row]) -> Claim {
        let cited = |of: &Cited| rows.iter().find(|row| is_cited(row, of));
        let ratio = |of| cited(of)?.ratio.filter(|ratio| *ratio > 0.0);
        let (mut words, bound) = (self.words.to_owned(), self.bound.unwrap_or(Bound::Least(0.0)));
        let factor = match &self.of {
            Of::Ratio(of) => {
                for (key, value) in cited(of).iter().flat_map(|row| &row.params) {
                    words = words.replace(&format!("{{{key}}}"), &value.to_string());
                }
                ratio(of)
            }
            Of::Median(of) => {
                let medians = rows.iter().filter(|row| is_cited(row, of)).map(|row| row.median);
                medians.reduce(f64::max)
            }
            Of::Inverse(of) => ratio(of).map(|ratio| 1.0 / ratio),
            Of::Medians(of, over) => {
                cited(of).zip(cited(over)).map(|(of, over)| of.median / over.median)
            }
            Of::Figure(figure, over) => cited(over).map(|over| figure / over.median),
            Of::Cells(sets) => {
                let is_meant = |row: &&Row| is_rate(row, "corewalk", sets);
                let rates = rows.iter().filter(is_meant).filter_map(|row| Some((row.ratio?, row)));
                return Claim::in_every_cell(&words, &rates.collect::<Vec<_>>(), bound);
            }
            Of::Over(variant, other, sets) => {
                let is_meant = |row: &&Row| is_rate(row, variant, sets);
                let factors = rows.iter().filter(is_meant).filter_map(|row| {
                    let other = of_variant(rows, row, other)?;
                    let ratios = row.ratio.zip(other.ratio).map(|(ratio, other)| ratio / other);
                    Some((ratios.unwrap_or(row.median / other.median), row))
                });
                return Claim::in_every_cell(&words, &factors.collect::<Vec<_>>(), bound);
            }
            Of::Losses(variant, sets) => {
                let is_meant = |row: &&Row| is_any(row, variant, sets);
                return Claim::no_loss(&words, rows.iter().filter(is_meant));
            }
        };
        Claim::within(&words, factor, bound)
    }
}

impl Bound {
    /// Returns 1 or -1 (whether larger or smaller factors are better), the number, and the word
    /// "least" or "most" for the text of a claim.
    fn parts(self) -> (f64, f64, &'static str) {
        match self {
            Bound::Least(least) => (1.0, least, "least"),
            Bound::Most(most) => (-1.0, most, "most"),
        }
    }
}

impl Claim {
    /// Returns the claim that `factor` is within `bound`.
    pub(crate) fn within(words: &str, factor: Option<f64>, bound: Bound) -> Claim {
        let figure = factor.map(|factor| format!("x{factor:.2}")).unwrap_or_default();
        let (sign, bound, word) = bound.parts();
        let is_held = factor.map(|factor| sign * factor >= sign * bound);
        Claim::of(format!("{words}, at {word} x{bound}"), is_held, figure)
    }

    /// Returns the claim that a variant is in no result row worse than its baseline by more than
    /// the spread of the row.
    fn no_loss<'a>(words: &str, rows: impl IntoIterator<Item = &'a Row>) -> Claim {
        let rows: Vec<&Row> = rows.into_iter().filter(|row| row.ratio.is_some()).collect();
        let place = |row: &&Row| {
            let (params, ratio) = (with_names(&row.params), row.ratio.unwrap_or(0.0));
            format!("{params} [{}] x{ratio:.2} of {}", row.metric, row.baseline)
        };
        let losses: Vec<String> = rows.iter().filter(|row| is_loss(row)).map(place).collect();
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

    /// Returns the claim that all `factors` are within `bound`. A factor is the throughput (or the
    /// time) of one variant over that of another, in one result row. The claim reports the worst
    /// one.
    fn in_every_cell(words: &str, factors: &[(f64, &Row)], bound: Bound) -> Claim {
        let (sign, bound, word) = bound.parts();
        let words = format!("{words}, at {word} x{bound} in every cell");
        let worst = factors.iter().min_by(|a, b| (sign * a.0).total_cmp(&(sign * b.0)));
        let Some((factor, row)) = worst else { return Claim::of(words, None, String::new()) };
        let right = factors.iter().filter(|(factor, _)| sign * factor >= sign * bound).count();
        let (of, place) = (factors.len(), with_names(&row.params));
        let figure = format!("x{factor:.2} at {place}; {right} of {of} cells");
        Claim::of(words, Some(right == of), figure)
    }

    /// Returns a claim with the text `words` and the numbers in `figure`. `is_held` is None if a
    /// result row was not measured.
    fn of(words: String, is_held: Option<bool>, figure: String) -> Claim {
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

/// Returns true for a throughput of `variant` with all parameters of one of `sets`.
fn is_rate(row: &Row, variant: &str, sets: &[At]) -> bool {
    row.metric == "ops_per_s" && is_any(row, variant, sets)
}

/// Returns true if the row of `variant` has all parameters of one of `sets`. Leaves out rows that
/// compare several threads with one.
fn is_any(row: &Row, variant: &str, sets: &[At]) -> bool {
    row.variant == variant
        && !row.params.contains_key(OVER_THREADS)
        && sets.iter().any(|set| set.iter().all(|(key, value)| row.params.get(key) == Some(value)))
}

/// Returns true if the variant is worse than its baseline by more than the spread of its rounds.
fn is_loss(row: &Row) -> bool {
    let spread = if row.median > 0.0 { (row.max - row.min) / row.median } else { 0.0 };
    row.ratio.is_some_and(|ratio| match row.better {
        "higher" => ratio * (1.0 + spread) < 1.0,
        _ => ratio > 1.0 + spread,
    })
}

/// Returns the result row of `variant` with the metric and the parameters of `row`.
fn of_variant<'a>(rows: &'a [Row], row: &Row, variant: &str) -> Option<&'a Row> {
    rows.iter().find(|other| {
        other.variant == variant && other.metric == row.metric && other.params == row.params
    })
}

/// Returns true if the row has this variant and metric, and exactly these parameters.
fn is_cited(row: &Row, (variant, metric, params): &Cited) -> bool {
    row.variant == *variant
        && row.metric == *metric
        && row.params.len() == params.len()
        && params.iter().all(|(key, value)| {
            row.params.get(key).is_some_and(|found| value == "*" || found == value)
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
            samples.add(0, "corewalk", &params, (Metric::OPS_PER_SECOND, value), "corewalk");
        }
        samples.add_scaling(|_, _| true);
        let rows = samples.rows();
        let claim = |params: &str| {
            let stated = format!(
                r#"{{"words": "{{op}}", "bound": {{"least": 1.8}}, "of": {{"ratio":
                ["corewalk", "ops_per_s", [{params}["threads", 2], ["over_threads", 1]]]}}}}"#
            );
            let stated: Stated = serde_json::from_str(stated.leak()).unwrap();
            stated.test(&rows).to_string()
        };
        assert_eq!(claim(r#"["op", "*"], "#), "claim: \"a\", at least x1.8: held (x1.80)");
        assert_eq!(claim(r#"["op", "b"], "#), "claim: {op}, at least x1.8: not measured");
        assert_eq!(claim(""), "claim: {op}, at least x1.8: not measured");
    }

    #[test]
    fn claim_is_one_line_that_says_whether_it_holds() {
        let line =
            |figure| Claim::within("two threads over one", figure, Bound::Least(1.8)).to_string();
        assert_eq!(line(Some(1.85)), "claim: two threads over one, at least x1.8: held (x1.85)");
        assert_eq!(
            line(Some(1.79)),
            "claim: two threads over one, at least x1.8: not held (x1.79)"
        );
        assert_eq!(line(None), "claim: two threads over one, at least x1.8: not measured");
        let word = |factor| Claim::within("its time", Some(factor), Bound::Most(1.3)).word();
        assert_eq!((word(1.31), word(1.3)), ("not-held", "held"));
    }

    #[test]
    fn one_variant_over_another_is_the_worst_factor_of_the_cells_with_both() {
        let mut samples = Samples::default();
        for (variant, op, value) in [
            ("corewalk", "stat", 30.0),
            ("corewalk", "create", 50.0),
            ("corewalk", "unlink", 1.0),
            ("dev", "stat", 10.0),
            ("dev", "create", 20.0),
        ] {
            let params = Params::from([("op", op.into())]);
            samples.add(0, variant, &params, (Metric::OPS_PER_SECOND, value), "linux");
        }
        let rows = samples.rows();
        let claim = |sets: &str, least: f64| {
            let stated = format!(
                r#"{{"words": "w", "bound": {{"least": {least}}},
                "of": {{"over": ["corewalk", "dev", {sets}]}}}}"#
            );
            serde_json::from_str::<Stated>(stated.leak()).unwrap().test(&rows).to_string()
        };
        let held = "claim: w, at least x2.5 in every cell: held (x2.50 at op=create; 2 of 2 cells)";
        assert_eq!(claim("[[]]", 2.5), held);
        assert!(claim("[[]]", 2.6).ends_with("not held (x2.50 at op=create; 1 of 2 cells)"));
        assert!(
            claim(r#"[[["op", "stat"]]]"#, 2.6).ends_with("held (x3.00 at op=stat; 1 of 1 cells)")
        );
        assert!(claim(r#"[[["op", "unlink"]]]"#, 1.0).ends_with("not measured"));
    }

    /// Returns a result row with `users` users and a spread of a tenth of its median.
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
