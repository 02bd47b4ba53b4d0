//! Bars from zero, each with its number and the spread of its runs.

use std::fmt::Write as _;

use super::{Axis, CHART_TITLE, STYLES, WIDTH, axes, rule, sheet, text};

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name; a long one is broken at a comma or blank.
    pub name: String,
    /// Height of the bar.
    pub value: f64,
    /// The least and the most of the runs that it stands for.
    pub range: (f64, f64),
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Title.
    pub title: String,
    /// Name and unit of the vertical axis.
    pub y_label: String,
    /// Bars, from left to right; the same index in two charts has the same colour.
    pub bars: Vec<Bar>,
}

const HEIGHT: f64 = 320.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 56.0;

/// Letters of a name that fit beside each other below a bar.
const NAME_LETTERS: usize = 13;

/// All `charts` under one title, `columns` of them in a row.
pub fn bars(title: &str, charts: &[Bars], columns: usize) -> String {
    let parts: Vec<String> = charts.iter().map(one).collect();
    sheet(title, &parts, columns, HEIGHT)
}

fn one(chart: &Bars) -> String {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let tops = chart.bars.iter().flat_map(|bar| [bar.value, bar.range.1]).filter(|value| value.is_finite());
    let axis = Axis::over(tops.chain([0.0]), true);
    let mut svg = text(LEFT, 20.0, CHART_TITLE, &chart.title);
    for tick in axis.ticks() {
        let y = axis.place(tick, bottom, TOP);
        svg += &rule((LEFT, y), (right, y), "stroke=\"#e4e4e4\"");
        svg += &text(LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &axis.label(tick));
    }
    let width = (right - LEFT) / chart.bars.len().max(1) as f64;
    for (nth, (bar, (colour, _))) in chart.bars.iter().zip(STYLES.iter().cycle()).enumerate() {
        draw(&mut svg, bar, colour, LEFT + width * (nth as f64 + 0.5), width, &axis);
    }
    axes(&mut svg, [LEFT, TOP, right, bottom], HEIGHT, ["", &chart.y_label]);
    svg
}

fn draw(svg: &mut String, bar: &Bar, colour: &str, middle: f64, width: f64, axis: &Axis) {
    let bottom = HEIGHT - BOTTOM;
    for (row, line) in in_lines(&bar.name).iter().enumerate() {
        let y = bottom + 18.0 + 14.0 * row as f64;
        *svg += &text(middle, y, "text-anchor=\"middle\"", line);
    }
    if !bar.value.is_finite() {
        return;
    }
    let [top, low, high] = [bar.value, bar.range.0, bar.range.1].map(|value| axis.place(value, bottom, TOP));
    let (half, cap) = (width * 0.32, width * 0.08);
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>\n\
         <path d=\"M{:.1} {low:.1} h{:.1} M{middle:.1} {low:.1} V{high:.1} M{:.1} {high:.1} h{:.1}\" fill=\"none\" \
         stroke=\"#222222\"/>\n\
         <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{}</text>",
        middle - half,
        half * 2.0,
        bottom - top,
        middle - cap,
        cap * 2.0,
        middle - cap,
        cap * 2.0,
        top.min(high) - 5.0,
        number(bar.value)
    );
}

/// Three digits that count.
fn number(value: f64) -> String {
    let digits = if value >= 100.0 { 0 } else { usize::from(value < 10.0) + 1 };
    format!("{value:.digits$}")
}

/// A name in lines of [`NAME_LETTERS`], where its blanks allow it.
fn in_lines(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= NAME_LETTERS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_has_its_height_its_number_and_its_name() {
        let bar = |name: &str, value| Bar { name: name.into(), value, range: (value * 0.9, value * 1.1) };
        let chart = Bars {
            title: "t & u".into(),
            y_label: "thousand a second".into(),
            bars: vec![bar("THP=always, collapsed", 250.0), bar("HPS", 251.5), bar("gone", f64::NAN)],
        };
        let svg = bars("x", &[chart], 2);
        assert_eq!((svg.matches("<rect").count(), svg.matches(" V").count()), (3, 3)); // the sheet and two bars; the axis and two
        assert!(svg.contains("t &amp; u") && svg.contains(">THP=always,<") && svg.contains(">collapsed<"));
        assert!(svg.contains(">250<") && svg.contains(">252<") && svg.contains(">gone<") && !svg.contains("NaN"));
    }

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!([0.123, 1.234, 12.34, 123.4].map(number), ["0.12", "1.23", "12.3", "123"]);
    }

    #[test]
    fn no_bars_are_still_a_chart() {
        let chart = Bars { title: String::new(), y_label: String::new(), bars: Vec::new() };
        assert!(bars("x", &[chart], 1).ends_with("</svg>\n"));
    }
}
