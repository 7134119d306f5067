//! Writes the HTML page of a report: a line per benchmark table, then each table with its plot and
//! its result rows.
//!
//! Source: HTML Living Standard, as XML.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use itertools::Itertools as _;

use super::plot::{Line, draw};
use crate::Report;
use crate::samples::Row;
use crate::table::{Claim, Published, Table};
use crate::text::{params_of, rows_of, with_names};

/// The style sheet of the page. A claim that does not hold is as large and as bold as one that
/// holds. Its state is shown by a word, not by a colour alone.
const STYLE: &str = include_str!("style.css");
/// Matches any value of a parameter of a plot.
const ANY: &str = "*";
/// The most lines of a plot.
const LINES_MAX: usize = 8;

/// Returns the page.
pub(super) fn render(reports: &[Report]) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>corewalk-lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>corewalk-lab</h1>\n\
         <p>Each line is a table: its claim, the ratio of one row to its baseline, and whether all claims \
         hold on this machine. A ratio is taken within each round; its median is shown.</p>\n"
    );
    let machines: BTreeSet<String> =
        reports.iter().map(|report| report.machine.to_string()).collect();
    for machine in machines {
        let _ = writeln!(out, "<p class=\"machine\">{}</p>", escape(&machine));
    }
    out.push_str("<ol class=\"front\">\n");
    for (at, report) in reports.iter().enumerate() {
        front(&mut out, at, report);
    }
    out.push_str("</ol>\n");
    for (at, report) in reports.iter().enumerate() {
        section(&mut out, at, report);
    }
    out + "</body>\n</html>\n"
}

/// Returns `text` with all characters escaped that would be markup.
pub(super) fn escape(text: &str) -> String {
    // XML allows only these two control characters.
    let is_bad = |c: char| c.is_control() && c != '\n' && c != '\t';
    quick_xml::escape::escape(text).replace(is_bad, "\u{fffd}")
}

/// Writes the line of a table on the front page.
fn front(out: &mut String, at: usize, report: &Report) {
    let table = report.table();
    let (word, verdict) = verdict(&table.claims(&report.rows));
    let ratio = headline(table, &report.rows).unwrap_or_else(|| String::from("no ratio"));
    let claim = table.words().claim;
    let (name, claim, ratio) = (escape(report.table), escape(claim), escape(&ratio));
    let _ = writeln!(
        out,
        "<li><a href=\"#t{at}\">{name}</a> <span class=\"verdict {word}\">{verdict}</span>\
         <br/>{claim} <span class=\"ratio\">{ratio}</span></li>"
    );
}

/// Returns the verdict over all claims of a table: its CSS class, and its text.
fn verdict(claims: &[Claim]) -> (&'static str, String) {
    let count = |word: &str| claims.iter().filter(|claim| claim.word() == word).count();
    let (all, held, lost) = (claims.len(), count("held"), count("not-held"));
    match lost {
        0 if held == all => ("held", String::from("held")),
        0 => ("not-measured", format!("held: {held} of {all}, the others not measured")),
        _ => ("not-held", format!("not held: {lost} of {all}")),
    }
}

/// Returns the ratio of a table for the list at the top of the page. The ratio is a result of
/// corewalk over its baseline, at the x value `headline` of the plot.
fn headline(table: &Table, rows: &[Row]) -> Option<String> {
    let plot = &table.words().plot;
    let wanted = |row: &&&Row| row.params.get(plot.x).is_some_and(|x| value(x) == plot.headline);
    let plotted = plotted(table, rows);
    let row = plotted.iter().filter(|row| row.variant == "corewalk").find(wanted)?;
    let params = with_names(&row.params);
    row.ratio.map(|ratio| format!("x{ratio:.2} of {} ({}, {params})", row.baseline, row.metric))
}

fn value(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the rows of the plot.
fn plotted<'a>(table: &Table, rows: &'a [Row]) -> Vec<&'a Row> {
    let plot = &table.words().plot;
    let is_plotted = |row: &&Row| {
        row.metric == plot.metric
            && row.params.len() == plot.at.len() + 1
            && row.params.contains_key(plot.x)
            && plot.at.iter().all(|(key, at)| {
                row.params.get(key).is_some_and(|found| *at == ANY || value(found) == *at)
            })
    };
    rows.iter().filter(is_plotted).collect()
}

/// Writes one table.
fn section(out: &mut String, at: usize, report: &Report) {
    let table = report.table();
    let (name, source) = (escape(table.name), escape(report.source));
    let _ = writeln!(out, "<h2 id=\"t{at}\">{name}</h2>");
    let _ = writeln!(out, "<p class=\"claim\">{}</p>", escape(table.words().claim));
    let commit = escape(&report.machine.commit);
    let _ = writeln!(out, "<p class=\"machine\">{source}; commit {commit}</p>");
    for claim in table.claims(&report.rows) {
        let (word, text) = (claim.word(), escape(&claim.to_string()));
        let _ = writeln!(out, "<p class=\"tested {word}\">{text}</p>");
    }
    out.push_str("<div class=\"plots\">\n");
    measured_plot(out, table, &plotted(table, &report.rows));
    if let Some(published) = &table.words().published {
        published_plot(out, table, published);
    }
    out.push_str("</div>\n");
    let published = escape(&table.words().figures());
    if !published.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>published figures</summary><pre>{published}</pre></details>"
        );
    }
    let rows = report.rows.len();
    let _ = write!(out, "<details><summary>all {rows} rows</summary><pre>");
    for (params, metric) in params_of(report) {
        let _ = writeln!(out, "<b>{} [{metric}]</b>", escape(&with_names(params)));
        for line in rows_of(report, params, metric) {
            let _ = writeln!(out, "{}", escape(&line));
        }
    }
    out.push_str("</pre></details>\n");
}

/// Writes the plot of measured rows.
fn measured_plot(out: &mut String, table: &Table, rows: &[&Row]) {
    let (Some(first), plot) = (rows.first(), &table.words().plot) else { return };
    let values = rows.iter().map(|row| value(&row.params[plot.x])).unique().collect::<Vec<_>>();
    let mut names = rows.iter().map(|row| &row.variant[..]).unique().collect::<Vec<_>>();
    // corewalk and its baseline are always drawn.
    names.sort_by_key(|name| (*name != "corewalk", *name != first.baseline));
    names.truncate(LINES_MAX);
    let point = |name: &str, at: &String| {
        let is_it = |row: &&&Row| row.variant == name && value(&row.params[plot.x]) == *at;
        rows.iter().find(is_it).map(|row| [row.median, row.min, row.max])
    };
    let line = |name: &&str| Line {
        name: (*name).to_owned(),
        points: values.iter().map(|at| point(name, at)).collect(),
    };
    let lines: Vec<Line> = names.iter().map(line).collect();
    let fixed: Vec<String> = plot.at.iter().map(|(key, at)| format!("{key}={at}")).collect();
    let unit = format!("{}, {} is better", plot.metric, first.better);
    let title = format!("{} over {} {}", table.name, plot.x, fixed.join(" "));
    let x = format!("{} ({})", plot.x, fixed.join(" "));
    out.push_str(&draw(&title, &unit, x.trim_end_matches(" ()"), &values, &lines));
}

/// Writes the plot of published curves.
fn published_plot(out: &mut String, table: &Table, published: &Published) {
    let places = published.curves.iter().flat_map(|(_, points)| points).map(|(x, _)| *x);
    let values = places.sorted_by(f64::total_cmp).dedup().collect::<Vec<f64>>();
    let point = |points: &[(f64, f64)], at: f64| {
        points.iter().find(|(x, _)| *x == at).map(|(_, y)| [*y; 3])
    };
    let lines: Vec<Line> = published
        .curves
        .iter()
        .map(|(name, points)| Line {
            name: format!("published: {name}"),
            points: values.iter().map(|at| point(points, *at)).collect(),
        })
        .collect();
    let values: Vec<String> = values.iter().map(f64::to_string).collect();
    let (title, unit) = (format!("{}, as published", table.name), published.unit);
    out.push_str(&draw(&title, unit, published.x, &values, &lines));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::samples::{Metric, Params, Samples};
    use crate::table::shape::Bound;

    /// Returns made-up result rows of the table `rename`: corewalk is twice as fast as `linux`.
    fn rows() -> Vec<Row> {
        let mut samples = Samples::default();
        for (variant, value) in [("corewalk", 2.0), ("linux", 1.0)] {
            for (round, drift) in [0.9, 1.0, 1.2].into_iter().enumerate() {
                for threads in [1, 2] {
                    let params =
                        Params::from([("threads", threads.into()), ("directories", "own".into())]);
                    let rate = (Metric::OPS_PER_SECOND, value * drift);
                    samples.add(round, variant, &params, rate, "linux");
                }
            }
        }
        samples.rows()
    }

    fn page() -> String {
        let report = |table| Report {
            table,
            source: "a source with <markup> & more",
            machine: Machine {
                cpu: "a <cpu>".into(),
                cores: 2,
                kernel: "6.1".into(),
                commit: "abc".into(),
            },
            rows: rows(),
        };
        render(&[report("rename"), report("create-one-dir")])
    }

    fn parse(page: &str) -> roxmltree::Document<'_> {
        let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
        roxmltree::Document::parse_with_options(page, options).expect("it is well-formed")
    }

    #[test]
    fn page_is_well_formed_and_fetches_nothing() {
        let page = page();
        for node in parse(&page).descendants() {
            for attribute in node.attributes() {
                let is_link = ["src", "href", "srcset", "data"].contains(&attribute.name());
                assert!(!is_link || attribute.value().starts_with('#'), "{attribute:?}");
            }
            let name = node.tag_name().name();
            assert!(!["script", "link", "iframe", "img", "object"].contains(&name), "{name}");
        }
        assert!(!STYLE.contains("url(") && !STYLE.contains("@import"));
    }

    #[test]
    fn front_page_has_a_sentence_a_ratio_and_a_verdict_per_table() {
        let page = page();
        let front = page.split("<ol").nth(1).unwrap().split("</ol>").next().unwrap();
        let lines: Vec<&str> = front.split("<li>").skip(1).collect();
        assert_eq!(lines.len(), 2);
        let claim = escape(crate::table::find("rename").unwrap().words().claim);
        for part in [&claim, "x2.00 of linux", "class=\"verdict not-measured\""] {
            assert!(lines[0].contains(part), "{part} is missing in {}", lines[0]);
        }
        assert!(lines[1].contains("no ratio"), "{}", lines[1]);
    }

    #[test]
    fn page_has_the_machine_one_plot_and_all_rows() {
        let page = page();
        let xml = parse(&page);
        let count = |name: &str| xml.descendants().filter(|n| n.tag_name().name() == name).count();
        // The second table has no rows for its plot, so the page has one plot.
        assert_eq!((count("svg"), count("h2")), (1, 2));
        assert!(page.contains("a &lt;cpu&gt;, 2 cores, Linux 6.1, commit abc"));
        assert_eq!(page.matches("all 4 rows").count(), 2);
        assert_eq!(page.matches("x2.000 of linux").count(), 4);
    }

    #[test]
    fn verdict_says_how_many_claims_do_not_hold() {
        let claim = |held| Claim::within("it", held, Bound::Least(2.0));
        assert_eq!(verdict(&[claim(Some(2.0)), claim(Some(3.0))]).0, "held");
        let lost = verdict(&[claim(Some(1.0)), claim(Some(3.0)), claim(None)]);
        assert_eq!(lost, ("not-held", String::from("not held: 1 of 3")));
        assert_eq!(verdict(&[claim(Some(3.0)), claim(None)]).0, "not-measured");
    }

    #[test]
    fn control_characters_do_not_break_the_page() {
        assert_eq!(escape("a\u{0}b\u{1b}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(escape("<a href='x'>"), "&lt;a href=&apos;x&apos;&gt;");
    }
}
