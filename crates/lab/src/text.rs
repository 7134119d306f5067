//! A report as text for people: rows with the same parameters stand together.

use std::fmt::Write as _;

use crate::Report;
use crate::samples::{Params, Row};

/// Returns the report as lines of text.
pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    let _ = writeln!(out, "{}: {}", report.table, report.source);
    let _ = writeln!(
        out,
        "{}, {} cores, Linux {}, commit {}",
        machine.cpu, machine.cores, machine.kernel, machine.commit
    );
    let mut groups: Vec<(&Params, &str)> = vec![];
    for row in &report.rows {
        if !groups.contains(&(&row.params, row.metric)) {
            groups.push((&row.params, row.metric));
        }
    }
    for (params, metric) in groups {
        let params_text: Vec<String> =
            params.iter().map(|(key, value)| format!("{key}={}", plain(value))).collect();
        let _ = writeln!(out, "\n{} [{metric}]", params_text.join(" "));
        for row in report.rows.iter().filter(|r| r.params == *params && r.metric == metric) {
            let _ = writeln!(out, "  {}", line(row));
        }
    }
    let footer = crate::table::find(report.table).map(|table| table.footer(&report.rows));
    if let Some(footer) = footer.filter(|footer| !footer.is_empty()) {
        let _ = writeln!(out, "\n{}", footer.trim_end());
    }
    out
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

/// Returns a number with as many digits as mean something.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.3} M", value / 1e6),
        size if size >= 1e4 => format!("{:.2} k", value / 1e3),
        _ => format!("{value:.2}"),
    }
}

/// Returns a parameter's value without quotation marks.
pub(crate) fn plain(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
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
