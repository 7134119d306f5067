//! The plot of one metric of a table, as SVG.
//!
//! Rows with the same parameters stand together in a group, one bar each, from zero, with a scale of
//! the group's own: groups differ by orders of magnitude, and what is to be seen is who is ahead in
//! each. A line across the end of a bar goes from the lowest to the highest round. The numbers stand
//! beside the bars, so that nobody has to measure.
//!
//! # How it works
//! There are three columns: names, bars, numbers. Text is in a monospaced font and is told how wide
//! it is to be (`textLength`), so that columns stay apart whatever font there is; what is too long for
//! its column is cut and ends with an ellipsis.
//!
//! # Invariants
//! - What is drawn is well-formed XML, whatever the names are.
//! - No text reaches into another column or line.
//!
//! Source: SVG 2 (W3C), "Text".

use std::fmt::Write as _;

use super::page::escape;
use super::standing::{self, Standing};
use crate::samples::{Params, Row};
use crate::text::{number, with_names};

/// The width of the whole picture.
const WIDTH: f64 = 1000.0;
/// Where bars begin, and how long the longest is.
const BARS: (f64, f64) = (190.0, 410.0);
/// Where numbers begin.
const NUMBERS: f64 = 612.0;
/// The height of a line.
const LINE: f64 = 18.0;
/// The height of a bar.
const BAR: f64 = 12.0;
/// The space above a group.
const GAP: f64 = 10.0;
/// The size of text, and how wide a letter is.
const TEXT: (f64, f64) = (11.0, 6.6);

/// Where the next thing is drawn.
struct Pen {
    svg: String,
    y: f64,
}

/// Returns the metrics in `rows`, in the order in which they come.
pub(super) fn metrics(rows: &[Row]) -> Vec<&'static str> {
    let mut metrics = vec![];
    for row in rows {
        if !metrics.contains(&row.metric) {
            metrics.push(row.metric);
        }
    }
    metrics
}

/// Returns the parameters that rows of `metric` have, in the order in which they come.
pub(super) fn groups<'a>(rows: &'a [Row], metric: &str) -> Vec<&'a Params> {
    let mut groups = vec![];
    for row in rows.iter().filter(|row| row.metric == metric) {
        if !groups.contains(&&row.params) {
            groups.push(&row.params);
        }
    }
    groups
}

/// Returns the picture of `metric` in `rows`; `title` is what those hear who do not see it.
pub(super) fn draw(title: &str, rows: &[Row], metric: &str) -> String {
    let mut pen = Pen { svg: String::new(), y: 0.0 };
    for params in groups(rows, metric) {
        let group: Vec<&Row> =
            rows.iter().filter(|row| row.metric == metric && row.params == *params).collect();
        pen.group(params, &group);
    }
    let height = pen.y + GAP;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         class=\"plot\" font-family=\"monospace\" font-size=\"{}\">\n<title>{}</title>\n{}</svg>\n",
        TEXT.0,
        escape(&format!("{title}: {metric}")),
        pen.svg
    )
}

impl Pen {
    fn group(&mut self, params: &Params, rows: &[&Row]) {
        self.y += GAP;
        let unit = rows.first().map_or("", |row| row.unit);
        let better = rows.first().map_or("", |row| row.better);
        let name = format!("{} [{unit}, {better} is better]", with_names(params));
        self.text((0.0, WIDTH), "group", &name);
        self.y += LINE;
        let most = rows.iter().map(|row| row.max).fold(0.0, f64::max);
        for row in rows {
            self.row(row, if most > 0.0 { BARS.1 / most } else { 0.0 });
            self.y += LINE;
        }
    }

    fn row(&mut self, row: &Row, scale: f64) {
        let who = if standing::is_ours(row) { "ours" } else { "other" };
        self.text((0.0, BARS.0 - 8.0), who, &row.variant);
        let (start, top, middle) = (BARS.0, self.y + (LINE - BAR) / 2.0, self.y + LINE / 2.0);
        let x = |value: f64| start + value * scale;
        let _ = writeln!(
            self.svg,
            "<rect class=\"{who}\" x=\"{start}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"{BAR}\"/>",
            row.median * scale
        );
        let (low, high) = (x(row.min), x(row.max));
        let (above, below) = (middle - 3.0, middle + 3.0);
        let _ = writeln!(
            self.svg,
            "<path class=\"spread\" d=\"M{low:.2} {middle:.1}H{high:.2}M{low:.2} \
             {above:.1}V{below:.1}M{high:.2} {above:.1}V{below:.1}\"/>"
        );
        let (class, text) = numbers(row);
        self.text((NUMBERS, WIDTH - NUMBERS), class, &text);
    }

    /// Writes `text` on this line, from `start` and no wider than `width`.
    fn text(&mut self, (start, width): (f64, f64), class: &str, text: &str) {
        let room = (width / TEXT.1) as usize;
        let count = text.chars().count();
        let cut: String = if count > room {
            text.chars().take(room.saturating_sub(3)).chain("...".chars()).collect()
        } else {
            text.to_owned()
        };
        let length = cut.chars().count() as f64 * TEXT.1;
        let _ = writeln!(
            self.svg,
            "<text class=\"{class}\" x=\"{start}\" y=\"{:.1}\" textLength=\"{length:.1}\" \
             lengthAdjust=\"spacingAndGlyphs\">{}</text>",
            self.y + LINE / 2.0 + 4.0,
            escape(&cut)
        );
    }
}

/// Returns what stands beside a bar, and how it is shown.
fn numbers(row: &Row) -> (&'static str, String) {
    let median = number(row.median);
    if standing::is_baseline(row) {
        return ("number", format!("{median} baseline"));
    }
    let Some(ratio) = row.ratio else { return ("number", format!("{median} not compared")) };
    let standing = standing::against_baseline(row).map_or(Standing::Level, Standing::of);
    // The word stands with everybody, the colour is for corewalk's own losses.
    let is_loss = standing == Standing::Loses && standing::is_ours(row);
    let class = if is_loss { "loses" } else { "number" };
    (class, format!("{median} {} x{ratio:.3} of {}", standing.word(), row.baseline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{Metric, Samples};

    /// Returns rows of two groups with names that would break out of anything.
    fn rows() -> Vec<Row> {
        let mut samples = Samples::default();
        let long = "a-variant-with-a-name-that-nobody-gave-a-column-wide-enough-for";
        for (threads, scale) in [(1, 1.0), (2, 1e6)] {
            let variants = [("corewalk", 5.0), ("linux", 10.0), ("<&\"'>", 2.5), (long, 1.0)];
            for (variant, value) in variants {
                for (round, drift) in [0.5, 1.0, 1.5].into_iter().enumerate() {
                    let params = Params::from([("op", "a&b".into()), ("threads", threads.into())]);
                    let value = (Metric::OpsPerSecond, value * scale * drift);
                    samples.add(round, variant, &params, value, "linux");
                }
            }
        }
        samples.rows()
    }

    fn float(node: roxmltree::Node<'_, '_>, name: &str) -> f64 {
        node.attribute(name).and_then(|text| text.parse().ok()).expect("a number is there")
    }

    #[test]
    fn plot_has_a_bar_per_row_whose_length_is_its_median() {
        let (rows, svg) = (rows(), draw("t", &rows(), "ops_per_s"));
        let xml = roxmltree::Document::parse(&svg).expect("it is well-formed");
        let bars: Vec<_> = xml.descendants().filter(|node| node.has_tag_name("rect")).collect();
        assert_eq!(bars.len(), rows.len());
        for (bar, row) in bars.iter().zip(&rows) {
            let most = 15.0 * if row.params["threads"] == 1 { 1.0 } else { 1e6 };
            let expected = BARS.1 * row.median / most;
            assert!((float(*bar, "width") - expected).abs() < 0.01, "{row:?}");
            assert!((float(*bar, "x") - BARS.0).abs() < 1e-9, "bars begin at zero");
            let is_ours = bar.attribute("class") == Some("ours");
            assert_eq!(is_ours, row.variant == "corewalk");
        }
    }

    #[test]
    fn plot_has_a_line_from_the_lowest_to_the_highest_round() {
        let svg = draw("t", &rows(), "ops_per_s");
        let xml = roxmltree::Document::parse(&svg).unwrap();
        let spread = xml.descendants().find(|node| node.has_tag_name("path")).unwrap();
        let path = spread.attribute("d").unwrap();
        // corewalk with one thread: 2.5 to 7.5 of at most 15.
        let (low, high) = (BARS.0 + BARS.1 / 6.0, BARS.0 + BARS.1 / 2.0);
        assert!(path.starts_with(&format!("M{low:.2} ")), "{path}");
        assert!(path.contains(&format!("H{high:.2}M")), "{path}");
    }

    #[test]
    fn texts_of_a_plot_do_not_overlap_and_stay_inside() {
        let svg = draw("t", &rows(), "ops_per_s");
        let xml = roxmltree::Document::parse(&svg).unwrap();
        let view = xml.root_element().attribute("viewBox").unwrap();
        let height: f64 = view.rsplit(' ').next().unwrap().parse().unwrap();
        let boxes: Vec<(f64, f64, f64)> = xml
            .descendants()
            .filter(|node| node.has_tag_name("text"))
            .map(|text| (float(text, "x"), float(text, "y"), float(text, "textLength")))
            .collect();
        assert_eq!(boxes.len(), 2 + 2 * rows().len());
        for (at, (x, y, length)) in boxes.iter().enumerate() {
            assert!(x + length <= WIDTH && *y <= height && *x >= 0.0);
            let is_in_bars = x + length > BARS.0 && *x < BARS.0 + BARS.1;
            assert!(!is_in_bars || boxes[at].0 == 0.0, "a text lies on the bars");
            for (other_x, other_y, other_length) in &boxes[at + 1..] {
                let is_beside = x + length <= *other_x || other_x + other_length <= *x;
                assert!(is_beside || (y - other_y).abs() >= TEXT.0, "two texts overlap");
            }
        }
    }

    #[test]
    fn row_that_is_behind_is_marked_with_a_word() {
        let rows = rows();
        let marked = |variant: &str| {
            let row = rows.iter().find(|row| row.variant == variant).unwrap();
            numbers(row)
        };
        assert_eq!(marked("corewalk"), ("loses", "5.00 loses x0.500 of linux".into()));
        assert_eq!(marked("<&\"'>"), ("number", "2.50 loses x0.250 of linux".into()));
        assert_eq!(marked("linux"), ("number", "10.00 baseline".into()));
    }
}
