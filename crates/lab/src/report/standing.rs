//! Who is ahead and who is behind.
//!
//! A factor is how many times as good something is as something else, whichever direction is better:
//! 2 is twice as good, 0.5 half as good. Within two hundredths of 1 nobody is ahead.
//!
//! Ratios of rows are taken against the baseline that the table names, round by round. A baseline can
//! be a weak one, so corewalk's rows are held against the best of the others too, by their medians.
//!
//! Source: `samples`.

use crate::samples::{OVER_THREADS, Row};

/// The distance from 1 up to which a factor means nothing.
const LEVEL: f64 = 0.02;

/// What a factor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Wins,
    Level,
    Loses,
}

/// Counts of standings, with the furthest of both.
#[derive(Clone, Debug, Default)]
pub(super) struct Score {
    pub(super) wins: usize,
    pub(super) level: usize,
    pub(super) loses: usize,
    /// The factor that is furthest ahead, and of what.
    pub(super) best: Option<(f64, String)>,
    /// The factor that is furthest behind, and of what.
    pub(super) worst: Option<(f64, String)>,
}

impl Standing {
    /// Returns what a factor says.
    pub(super) fn of(factor: f64) -> Standing {
        match factor {
            factor if factor > 1.0 + LEVEL => Standing::Wins,
            factor if factor < 1.0 - LEVEL => Standing::Loses,
            _ => Standing::Level,
        }
    }

    /// Returns the word on the page.
    pub(super) fn word(self) -> &'static str {
        match self {
            Standing::Wins => "wins",
            Standing::Level => "level",
            Standing::Loses => "loses",
        }
    }
}

impl Score {
    /// Counts a factor that `what` reached.
    pub(super) fn count(&mut self, factor: f64, what: impl FnOnce() -> String) {
        match Standing::of(factor) {
            Standing::Wins => self.wins += 1,
            Standing::Level => self.level += 1,
            Standing::Loses => self.loses += 1,
        }
        let is_best = self.best.as_ref().is_none_or(|(best, _)| factor > *best);
        let is_worst = self.worst.as_ref().is_none_or(|(worst, _)| factor < *worst);
        if is_best || is_worst {
            let what = what();
            if is_best && Standing::of(factor) == Standing::Wins {
                self.best = Some((factor, what.clone()));
            }
            if is_worst && Standing::of(factor) == Standing::Loses {
                self.worst = Some((factor, what));
            }
        }
    }
}

/// Returns true for corewalk, mounted or not.
pub(super) fn is_ours(row: &Row) -> bool {
    row.variant == "corewalk" || row.variant.starts_with("corewalk-")
}

/// Returns true if a row is what the others are compared with, and so has nothing to say.
pub(super) fn is_baseline(row: &Row) -> bool {
    row.variant == row.baseline && row.ratio.is_some_and(|ratio| (ratio - 1.0).abs() < 1e-12)
}

/// Returns true if a row says how threads scale, which is neither ahead of anybody nor behind.
fn is_scaling(row: &Row) -> bool {
    row.params.contains_key(OVER_THREADS)
}

/// Returns how a row stands against its baseline; None if that was not measured, or is the row, or the
/// row is about how threads scale.
pub(super) fn against_baseline(row: &Row) -> Option<f64> {
    let ratio = row.ratio.filter(|ratio| *ratio > 0.0 && !is_baseline(row) && !is_scaling(row))?;
    Some(if row.better == "higher" { ratio } else { 1.0 / ratio })
}

/// Returns how one of corewalk's rows stands against the best row of anybody else with the same
/// parameters, and who that is.
pub(super) fn against_best<'a>(row: &Row, rows: &'a [Row]) -> Option<(f64, &'a str)> {
    if !is_ours(row) || is_scaling(row) || row.median <= 0.0 {
        return None;
    }
    let factor = |other: &Row| match row.better {
        "higher" => row.median / other.median,
        _ => other.median / row.median,
    };
    rows.iter()
        .filter(|other| {
            !is_ours(other)
                && other.metric == row.metric
                && other.params == row.params
                && other.median > 0.0
        })
        .map(|other| (factor(other), &other.variant[..]))
        .min_by(|(one, _), (other, _)| one.total_cmp(other))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::samples::{Metric, Params, Samples};

    /// Returns rows of three variants: corewalk twice as good as the baseline, and a tenth of the
    /// best.
    pub(in crate::report) fn rows(metric: Metric, is_higher_better: bool) -> Vec<Row> {
        let mut samples = Samples::default();
        let values = [("corewalk", 2.0), ("linux", 1.0), ("rwlock-ahash", 20.0)];
        for (variant, value) in values {
            for (round, drift) in [0.9, 1.0, 1.2].into_iter().enumerate() {
                let value = if is_higher_better { value } else { 1.0 / value };
                let params = Params::from([("threads", 1.into())]);
                samples.add(round, variant, &params, (metric, value * drift), "linux");
            }
        }
        samples.rows()
    }

    #[test]
    fn factor_is_above_one_for_the_better_in_either_direction() {
        for (metric, is_higher) in [(Metric::OpsPerSecond, true), (Metric::NsPerOp, false)] {
            let rows = rows(metric, is_higher);
            let factor = against_baseline(&rows[0]).unwrap();
            assert!((factor - 2.0).abs() < 1e-9, "{factor}");
            assert_eq!(against_baseline(&rows[1]), None, "the baseline itself");
            let (factor, who) = against_best(&rows[0], &rows).unwrap();
            assert!((factor - 0.1).abs() < 1e-9 && who == "rwlock-ahash", "{factor} of {who}");
            assert_eq!(against_best(&rows[1], &rows), None);
        }
    }

    #[test]
    fn row_of_scaling_is_neither_ahead_nor_behind() {
        let mut samples = Samples::default();
        for (variant, threads, rate) in
            [("corewalk", 1, 1.0), ("corewalk", 2, 2.0), ("linux", 2, 1.0)]
        {
            let params = Params::from([("threads", threads.into())]);
            samples.add(0, variant, &params, (Metric::OpsPerSecond, rate), "linux");
        }
        samples.add_scaling(|_, _| true);
        let rows = samples.rows();
        let scaling = rows.iter().find(|row| is_scaling(row)).unwrap();
        assert_eq!(scaling.ratio, Some(2.0));
        assert_eq!((against_baseline(scaling), against_best(scaling, &rows)), (None, None));
    }

    #[test]
    fn score_counts_and_keeps_the_furthest_of_both() {
        let mut score = Score::default();
        for factor in [0.5, 0.99, 1.5, 3.0, 0.25] {
            score.count(factor, || format!("{factor}"));
        }
        assert_eq!((score.wins, score.level, score.loses), (2, 1, 2));
        assert_eq!(score.best, Some((3.0, "3".into())));
        assert_eq!(score.worst, Some((0.25, "0.25".into())));
        let mut even = Score::default();
        even.count(1.0, String::new);
        assert!(even.best.is_none() && even.worst.is_none() && even.level == 1);
    }
}
