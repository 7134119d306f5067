//! The page: an overview, then each table.
//!
//! It is HTML that is well-formed XML too, so that any parser can check it, with its style inside and
//! nothing outside. Names and texts are escaped wherever they come from.
//!
//! # How it works
//! The overview counts where corewalk is ahead and behind, and names the furthest of both side by
//! side. A table's main metric is drawn first, the others are folded up; so are its rows, behind the
//! plots.
//!
//! Source: HTML Living Standard (WHATWG).

use std::fmt::Write as _;

use super::standing::{self, Score, Standing};
use super::{Failed, plot};
use crate::Report;
use crate::machine::Machine;
use crate::samples::Row;
use crate::table;
use crate::text::{number, with_names};

/// The style. Losses have the size and the weight of wins; a word says what a colour says.
const STYLE: &str = "
body { font: 15px/1.5 sans-serif; max-width: 1040px; margin: 2em auto; padding: 0 1em;
  color: #1b1b1b; background: #fff; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5em; }
.failed { color: #b00020; } .claim { font-size: 1.15em; } .machine, .source { color: #555; }
table { border-collapse: collapse; width: 100%; margin: 1em 0; }
th, td { text-align: left; padding: 0.2em 0.6em; border-bottom: 1px solid #ddd; }
td.n { text-align: right; font-family: monospace; white-space: nowrap; }
td.wins, td.loses, td.level { font-weight: bold; }
td.wins { color: #05603a; } td.loses { color: #b00020; } td.level { color: #444; }
.tested { font-weight: bold; margin: 0.3em 0; } .held { color: #05603a; }
.not-held { color: #b00020; } .not-measured { color: #444; }
pre { background: #f4f4f4; padding: 0.8em; white-space: pre-wrap; }
.plot { width: 100%; height: auto; }
.plot rect.ours { fill: #1f5fbf; } .plot rect.other { fill: #b8bdc6; }
.plot .spread { stroke: #1b1b1b; fill: none; }
.plot text { fill: #1b1b1b; } .plot text.group, .plot text.ours { font-weight: bold; }
.plot text.loses { fill: #b00020; font-weight: bold; }
";

/// Returns the page.
pub(super) fn render(reports: &[Report], failed: &[Failed]) -> String {
    let mut out = String::from(
        "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n\
         <meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>corewalk-lab</title>\n",
    );
    let _ = writeln!(out, "<style>{STYLE}</style>\n</head>\n<body>\n<h1>corewalk-lab</h1>");
    for machine in machines(reports) {
        let _ = writeln!(out, "<p class=\"machine\">{}</p>", escape(&machine));
    }
    out.push_str(
        "<p>Each number is the median over rounds, with the lowest and the highest round; a ratio is \
         taken within each round against the named baseline. Whoever is behind by more than 2 % \
         <strong>loses</strong>, whoever is ahead by more <strong>wins</strong>. Bars begin at zero, \
         with a scale for each group.</p>\n",
    );
    for Failed { table, why } in failed {
        let _ = writeln!(
            out,
            "<p class=\"failed\"><strong>{} did not run:</strong> {}</p>",
            escape(table),
            escape(why)
        );
    }
    overview(&mut out, reports);
    for (at, report) in reports.iter().enumerate() {
        section(&mut out, at, report);
    }
    out.push_str("</body>\n</html>\n");
    out
}

/// Returns text in which nothing is markup.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Of control characters XML knows only these two.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Returns the machines and commits, each once.
fn machines(reports: &[Report]) -> Vec<String> {
    let mut machines = vec![];
    for report in reports {
        let machine = machine_text(&report.machine);
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    machines
}

fn machine_text(machine: &Machine) -> String {
    let Machine { cpu, cores, kernel, commit } = machine;
    format!("{cpu}, {cores} cores, Linux {kernel}, commit {commit}")
}

/// Writes how often corewalk is ahead and behind in each table.
fn overview(out: &mut String, reports: &[Report]) {
    out.push_str(
        "<h2 id=\"overview\">Where corewalk wins and where it loses</h2>\n<table>\n<tr><th>table</th>\
         <th>against</th><th>wins</th><th>level</th><th>loses</th><th>furthest ahead</th>\
         <th>furthest behind</th></tr>\n",
    );
    for (at, report) in reports.iter().enumerate() {
        let mut scores = [("its baseline", Score::default()), ("the best other", Score::default())];
        for row in report.rows.iter().filter(|row| standing::is_ours(row)) {
            let place = || format!("{} [{}]", with_names(&row.params), row.metric);
            if let Some(factor) = standing::against_baseline(row) {
                scores[0].1.count(factor, || format!("{}: {}", row.baseline, place()));
            }
            if let Some((factor, other)) = standing::against_best(row, &report.rows) {
                scores[1].1.count(factor, || format!("{other}: {}", place()));
            }
        }
        for (whom, score) in &scores {
            let _ = write!(
                out,
                "<tr><td><a href=\"#t{at}\">{}</a></td><td>{whom}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>",
                escape(report.table),
                score.wins,
                score.level,
                score.loses
            );
            for (furthest, standing) in
                [(&score.best, Standing::Wins), (&score.worst, Standing::Loses)]
            {
                let word = standing.word();
                let _ = match furthest {
                    Some((factor, what)) => {
                        write!(out, "<td class=\"{word}\">x{factor:.2} {}</td>", escape(what))
                    }
                    None => write!(out, "<td>-</td>"),
                };
            }
            out.push_str("</tr>\n");
        }
    }
    out.push_str("</table>\n");
}

/// Writes one table.
fn section(out: &mut String, at: usize, report: &Report) {
    let table = table::find(report.table);
    let _ = writeln!(out, "<h2 id=\"t{at}\">{}</h2>", escape(report.table));
    if let Some(table) = table {
        let _ = writeln!(out, "<p class=\"claim\">{}</p>", escape(table.claim()));
    }
    let _ = writeln!(out, "<p class=\"source\">{}</p>", escape(report.source));
    let _ = writeln!(out, "<p class=\"machine\">{}</p>", escape(&machine_text(&report.machine)));
    let footer = table.map(|table| table.footer(&report.rows)).unwrap_or_default();
    if !footer.is_empty() {
        let _ = writeln!(out, "<pre>{}</pre>", escape(footer.trim_end()));
    }
    for claim in table.map(|table| table.claims(&report.rows)).unwrap_or_default() {
        let (word, text) = (claim.word(), escape(&claim.to_string()));
        let _ = writeln!(out, "<p class=\"tested {word}\">{text}</p>");
    }
    let is_drawn = |row: &&Row| table.is_none_or(|table| !table.is_in_footer(row));
    let drawn: Vec<Row> = report.rows.iter().filter(is_drawn).cloned().collect();
    for (nth, metric) in plot::metrics(&drawn).into_iter().enumerate() {
        let picture = plot::draw(report.table, &drawn, metric);
        let metric = escape(metric);
        let _ = if nth == 0 {
            writeln!(out, "<h3>{metric}</h3>\n{picture}")
        } else {
            writeln!(out, "<details><summary>{metric}</summary>\n{picture}</details>")
        };
    }
    out.push_str(
        "<details><summary>all rows</summary>\n<table>\n<tr><th>parameters</th><th>metric</th>\
         <th>variant</th><th>median</th><th>lowest</th><th>highest</th><th>unit</th><th>rounds</th>\
         <th>ratio</th><th>baseline</th><th>standing</th><th>against the best other</th></tr>\n",
    );
    for row in &report.rows {
        line(out, row, &report.rows);
    }
    out.push_str("</table>\n</details>\n");
}

/// Writes one row.
fn line(out: &mut String, row: &Row, rows: &[Row]) {
    let params = escape(&with_names(&row.params));
    let (metric, variant) = (escape(row.metric), escape(&row.variant));
    let _ = write!(out, "<tr><td>{params}</td><td>{metric}</td><td>{variant}</td>");
    for value in [row.median, row.min, row.max] {
        let _ = write!(out, "<td class=\"n\">{}</td>", number(value));
    }
    let ratio = row.ratio.map_or_else(|| String::from("-"), |ratio| format!("{ratio:.3}"));
    let _ = write!(
        out,
        "<td>{}</td><td class=\"n\">{}</td><td class=\"n\">{ratio}</td><td>{}</td>",
        escape(row.unit),
        row.rounds,
        escape(&row.baseline)
    );
    let _ = match standing::against_baseline(row).map(Standing::of).map(Standing::word) {
        Some(word) => write!(out, "<td class=\"{word}\">{word}</td>"),
        None if standing::is_baseline(row) => write!(out, "<td>baseline</td>"),
        None => write!(out, "<td>-</td>"),
    };
    let _ = match standing::against_best(row, rows) {
        Some((factor, other)) => {
            let word = Standing::of(factor).word();
            let other = escape(other);
            writeln!(out, "<td class=\"{word}\">{word} x{factor:.2} of {other}</td></tr>")
        }
        None => writeln!(out, "<td>-</td></tr>"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::standing::tests::rows;
    use crate::samples::Metric;

    fn page() -> String {
        let mut all = rows(Metric::OpsPerSecond, true);
        all.extend(rows(Metric::NsPerOp, false));
        let report = |table| Report {
            table,
            source: "a source with <markup> & more",
            machine: Machine {
                cpu: "a <cpu>".into(),
                cores: 2,
                kernel: "6.1".into(),
                commit: "abc".into(),
            },
            rows: all.clone(),
        };
        let failed = [Failed { table: "names", why: "no <names>".into() }];
        render(&[report("rename"), report("a-table-from-elsewhere")], &failed)
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
    fn page_has_the_machine_the_claim_a_plot_per_metric_and_all_rows() {
        let page = page();
        let xml = parse(&page);
        let svg = |node: &roxmltree::Node<'_, '_>| node.tag_name().name() == "svg";
        assert_eq!(xml.descendants().filter(svg).count(), 4);
        let texts: Vec<&str> = xml.descendants().filter_map(|node| node.text()).collect();
        let has = |part: &str| texts.iter().any(|text| text.contains(part));
        assert!(has("a <cpu>, 2 cores, Linux 6.1, commit abc"));
        let claim = table::find("rename").unwrap().claim();
        assert!(has("names did not run:") && has("no <names>"));
        assert!(has(claim) && has("a source with <markup> & more"));
        // The overview has two rows per table, each list of rows one per row, each table a head.
        let lines = xml.descendants().filter(|node| node.tag_name().name() == "tr").count();
        assert_eq!(lines, 1 + 2 * 2 + 2 * (1 + 6));
    }

    #[test]
    fn losses_stand_beside_wins_and_are_marked_in_the_rows() {
        let page = page();
        let xml = parse(&page);
        let cells: Vec<(&str, String)> = xml
            .descendants()
            .filter(|node| node.tag_name().name() == "td")
            .filter_map(|cell| Some((cell.attribute("class")?, cell.text()?.to_owned())))
            .collect();
        let has = |class: &str, part: &str| {
            cells.iter().any(|(is, text)| *is == class && text.starts_with(part))
        };
        assert!(has("wins", "x2.00 linux: threads=1"));
        assert!(has("loses", "x0.10 rwlock-ahash: threads=1"));
        assert!(has("loses", "loses x0.10 of rwlock-ahash"));
        assert!(has("wins", "wins"));
    }

    #[test]
    fn control_characters_do_not_break_the_page() {
        assert_eq!(escape("a\u{0}b\u{1b}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(escape("<a href='x'>"), "&lt;a href=&#39;x&#39;&gt;");
    }
}
