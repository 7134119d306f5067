//! Draws a plot with a line per variant, and the spread of the rounds. The x axis is the number of
//! threads or users, or a size.
//!
//! The x axis has the values of the parameter in their order, at equal distances. The y axis begins
//! at zero. If the largest value is far above the smallest, it is logarithmic, and its label says
//! so.
//!
//! The plot is as wide as the screen of a phone. A larger screen shows it larger.
//!
//! Source: SVG 1.1.

use std::fmt::Write as _;

use super::page::escape;
use crate::text::number;

/// The bounds of the area of the lines. The whole plot is 380 by 230 units.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 366.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 188.0;
/// The y axis is logarithmic if the largest value exceeds the smallest by this factor.
const FAR: f64 = 30.0;
/// Steps of a linear scale.
const STEPS: u32 = 4;

/// A line of a plot.
pub(super) struct Line {
    pub(super) name: String,
    /// For each value on the x axis: median, lowest and highest result of the rounds.
    pub(super) points: Vec<Option<[f64; 3]>>,
}

/// Returns a plot of `lines` with a legend, and `unit` at the y axis. `title` describes it.
pub(super) fn draw(title: &str, unit: &str, x: &str, values: &[String], lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|line| line.points.iter().flatten()).flatten().copied();
    let most = all().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let least = all().filter(|value| *value > 0.0).fold(most, f64::min);
    let is_log = most / least > FAR;
    let (low, high) =
        if is_log { (least.log10().floor(), most.log10().ceil()) } else { (0.0, most * 1.05) };
    let y = |value: f64| {
        let at = if is_log { value.max(least).log10() } else { value };
        BOTTOM - (at - low) / (high - low).max(1e-300) * (BOTTOM - TOP)
    };
    let step = (RIGHT - LEFT) / values.len().max(1) as f64;
    let at = |n: usize| LEFT + step * (n as f64 + 0.5);
    let mut svg = String::new();
    let scale = if is_log { ", logarithmic" } else { "" };
    text(&mut svg, 0.0, 12.0, "start", &format!("{unit}{scale}"));
    for tick in 0..=STEPS {
        let part = f64::from(tick) / f64::from(STEPS);
        let value = low + (high - low) * part;
        let value = if is_log { 10_f64.powf(value) } else { value };
        let (line, middle) = (y(value), y(value) + 4.0);
        let _ = write!(svg, "<path class=\"grid\" d=\"M{LEFT} {line:.1}H{RIGHT}\"/>");
        text(&mut svg, LEFT - 4.0, middle, "end", &number(value));
    }
    for (n, value) in values.iter().enumerate() {
        text(&mut svg, at(n), BOTTOM + 16.0, "middle", value);
    }
    text(&mut svg, f64::midpoint(LEFT, RIGHT), BOTTOM + 34.0, "middle", x);
    for (n, line) in lines.iter().enumerate() {
        let points =
            || line.points.iter().enumerate().filter_map(|(n, point)| Some((n, (*point)?)));
        let path: Vec<String> =
            points().map(|(n, [median, ..])| format!("{:.1} {:.1}", at(n), y(median))).collect();
        let _ = write!(svg, "<path class=\"line s{n}\" d=\"M{}\"/>", path.join("L"));
        for (place, [median, min, max]) in points() {
            // Draw the spreads of several variants side by side, so that they do not cover each
            // other.
            let x = at(place) + (n as f64 - lines.len() as f64 / 2.0) * 2.0;
            let _ = write!(
                svg,
                "<path class=\"spread s{n}\" d=\"M{x:.1} {:.1}V{:.1}\"/>\
                 <circle class=\"s{n}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"/>",
                y(min),
                y(max),
                at(place),
                y(median)
            );
        }
    }
    let mut out = format!(
        "<figure><svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 380 230\" role=\"img\">\
         <title>{}</title>{svg}</svg>\n<figcaption>",
        escape(title)
    );
    for (n, line) in lines.iter().enumerate() {
        let _ = write!(out, "<span class=\"s{n}\">{}</span> ", escape(&line.name));
    }
    out + "</figcaption></figure>\n"
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escape(text);
    let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(points: &[&[Option<[f64; 3]>]]) -> String {
        let line = |(n, points): (usize, &&[_])| Line {
            name: format!("line <{n}>"),
            points: points.to_vec(),
        };
        let lines: Vec<Line> = points.iter().enumerate().map(line).collect();
        let values = ["1".to_owned(), "2".to_owned()];
        let xml = draw("a <title>", "1/s", "threads", &values, &lines);
        roxmltree::Document::parse(&xml).expect("it is well-formed");
        xml
    }

    /// Returns the y of every point of the n-th line.
    fn heights(picture: &str, n: usize) -> Vec<f64> {
        let xml = roxmltree::Document::parse(picture).unwrap();
        let class = format!("s{n}");
        let is_point = |node: &roxmltree::Node<'_, '_>| {
            node.has_tag_name("circle") && node.attribute("class") == Some(&class)
        };
        let y = |node: roxmltree::Node<'_, '_>| node.attribute("cy").unwrap().parse().unwrap();
        xml.descendants().filter(is_point).map(y).collect()
    }

    #[test]
    fn points_are_as_high_as_their_medians_from_zero() {
        let all = [Some([10.0, 8.0, 12.0]), Some([20.0, 19.0, 20.0])];
        let heights = heights(&picture(&[&all]), 0);
        let high = |y: f64| BOTTOM - y;
        assert!((high(heights[1]) / high(heights[0]) - 2.0).abs() < 0.01, "{heights:?}");
        assert!(heights[1] > TOP);
    }

    #[test]
    fn values_far_from_each_other_are_on_a_logarithmic_scale_that_says_so() {
        let picture = picture(&[&[Some([1.0; 3]), Some([10.0; 3])], &[Some([1e4; 3]), None]]);
        assert!(picture.contains("1/s, logarithmic"));
        let (low, high) = (heights(&picture, 0), heights(&picture, 1));
        assert_eq!(high.len(), 1);
        let decade = low[0] - low[1];
        assert!(((low[0] - high[0]) / decade - 4.0).abs() < 0.05, "{low:?} {high:?}");
    }

    #[test]
    fn spread_goes_from_the_lowest_to_the_highest_round() {
        let picture = picture(&[&[Some([10.0, 5.0, 20.0]), None]]);
        let xml = roxmltree::Document::parse(&picture).unwrap();
        let is_spread =
            |node: &roxmltree::Node<'_, '_>| node.attribute("class") == Some("spread s0");
        let spread = xml.descendants().find(is_spread).unwrap().attribute("d").unwrap();
        let (low, high) = spread.split_once('V').unwrap();
        let low: f64 = low.rsplit(' ').next().unwrap().parse().unwrap();
        let high: f64 = high.parse().unwrap();
        assert!(((BOTTOM - high) / (BOTTOM - low) - 4.0).abs() < 0.05, "{spread}");
    }
}
