//! Writes a report as text for people, with result rows grouped by their parameters.

use std::fmt::Write as _;

use itertools::Itertools as _;

use crate::Report;
use crate::samples::{Params, Row};

/// Returns the report as lines of text.
pub(crate) fn render(report: &Report) -> String {
    let mut out = format!("{}: {}\n{}\n", report.table, report.source, report.machine);
    for (params, metric) in params_of(report) {
        let _ = writeln!(out, "\n{} [{metric}]", with_names(params));
        for line in rows_of(report, params, metric) {
            let _ = writeln!(out, "  {line}");
        }
    }
    let figures = report.table().words().figures();
    if !figures.is_empty() {
        let _ = writeln!(out, "\n{figures}");
    }
    for (at, claim) in report.table().claims(&report.rows).iter().enumerate() {
        let _ = writeln!(out, "{}{claim}", if at == 0 { "\n" } else { "" });
    }
    out
}

/// Returns the groups of result rows in the text of the report: rows with the same parameters and
/// metric.
pub(crate) fn params_of(report: &Report) -> Vec<(&Params, &str)> {
    report.rows.iter().map(|row| (&row.params, row.metric)).unique().collect()
}

/// Returns a line for each row with these parameters.
pub(crate) fn rows_of(
    report: &Report,
    params: &Params,
    metric: &str,
) -> impl Iterator<Item = String> {
    report.rows.iter().filter(move |row| row.params == *params && row.metric == metric).map(line)
}

fn line(row: &Row) -> String {
    let ratio = row.ratio.map_or_else(|| String::from("-"), |ratio| format!("{ratio:.3}"));
    format!(
        "{:<22} {:>12} {:>12} .. {:>12}  x{ratio} of {}",
        row.variant,
        number(row.median),
        number(row.min),
        number(row.max),
        row.baseline
    )
}

/// Returns a number as text, rounded to its significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.3} M", value / 1e6),
        size if size >= 1e4 => format!("{:.2} k", value / 1e3),
        _ => format!("{value:.2}"),
    }
}

/// Returns parameters with their names, without quotation marks.
pub(crate) fn with_names(params: &Params) -> String {
    let each = params.iter().map(|(key, value)| match value.as_str() {
        Some(text) => format!("{key}={text}"),
        None => format!("{key}={value}"),
    });
    each.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(1.5), "1.50");
        assert_eq!(number(123_456.0), "123.46 k");
        assert_eq!(number(9_876_543.0), "9.877 M");
    }
}
