//! Charts as SVG, without a library or a font file: lines, with axes, ticks and a legend. Bars, heat maps and charts of
//! ratios are in `plot/`. The palette and the elements that all pictures share are here, also for `cache/figure.rs`.
//! Pure.

use std::fmt::Write as _;

mod bars;
mod heat_map;
mod ratios;

pub use bars::{Bar, Bars, bars};
pub use heat_map::{HeatMap, heat_map};
pub use ratios::{Point, Ratios, Shape, ratios};

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points, in drawing order.
    pub points: Vec<(f64, f64)>,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Title.
    pub title: String,
    /// Name and unit of the horizontal axis.
    pub x_label: String,
    /// Name and unit of the vertical axis.
    pub y_label: String,
    /// Lines; the same index in two charts has the same colour.
    pub series: Vec<Series>,
}

const WIDTH: f64 = 520.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 52.0;
const HEAD: f64 = 44.0;

/// Attributes of the title of a chart.
const CHART_TITLE: &str = "font-size=\"13\" font-weight=\"bold\"";

/// Widths of the first, the second, and all other lines.
const WIDTHS: [f64; 3] = [4.0, 2.6, 1.8];

/// Colours that people with any colour vision can tell apart (M. Okabe, K. Ito, 2008), each with its own dashes.
pub(crate) const STYLES: [(&str, &str); 10] = [
    ("#9a9a9a", ""),
    ("#d55e00", "7 3"),
    ("#0072b2", ""),
    ("#009e73", "2 3"),
    ("#cc79a7", "9 3 2 3"),
    ("#e69f00", "4 2"),
    ("#000000", ""),
    ("#56b4e9", "7 3"),
    ("#882255", "2 3"),
    ("#44aa99", "9 3 2 3"),
];

/// All `charts` under one title, `columns` of them in a row.
pub fn grid(title: &str, charts: &[Chart], columns: usize) -> String {
    let parts: Vec<String> = charts.iter().map(one).collect();
    sheet(title, &parts, columns, HEIGHT)
}

/// `parts`, each [`WIDTH`] wide and `part_height` high, under one title.
fn sheet(title: &str, parts: &[String], columns: usize, part_height: f64) -> String {
    let columns = columns.clamp(1, parts.len().max(1));
    let rows = parts.len().div_ceil(columns);
    let mut inside = String::new();
    for (place, part) in parts.iter().enumerate() {
        let (x, y) = ((place % columns) as f64 * WIDTH, HEAD + (place / columns) as f64 * part_height);
        let _ = write!(inside, "<g transform=\"translate({x} {y})\">\n{part}</g>\n");
    }
    document(title, WIDTH * columns as f64, HEAD + part_height * rows as f64, &inside)
}

/// A picture with its title; `inside` begins below [`HEAD`].
pub(crate) fn document(title: &str, width: f64, height: f64, inside: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"system-ui, 'DejaVu Sans', Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222222\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{}{inside}</svg>\n",
        text(LEFT, 28.0, "font-size=\"16\" font-weight=\"bold\"", title)
    )
}

/// Words at a place, with attributes such as `text-anchor="middle"`.
pub(crate) fn text(x: f64, y: f64, attributes: &str, words: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{}</text>\n", escaped(words))
}

/// A straight line, with attributes such as `stroke="#888888"`.
pub(crate) fn rule(from: (f64, f64), to: (f64, f64), attributes: &str) -> String {
    format!("<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" {attributes}/>\n", from.0, from.1, to.0, to.1)
}

/// The text of one chart, its upper left corner at the origin.
fn one(chart: &Chart) -> String {
    let all = || chart.series.iter().flat_map(|series| &series.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let x_axis = Axis::over(all().map(|point| point.0), false);
    let y_axis = Axis::over(all().map(|point| point.1), true);
    let mut svg = String::new();
    frame(&mut svg, chart, &x_axis, &y_axis);
    for (nth, (series, (colour, dashes))) in chart.series.iter().zip(STYLES.iter().cycle()).enumerate() {
        // The first line is the widest, so that it shows below later lines along it.
        let style =
            format!("stroke=\"{colour}\" stroke-width=\"{}\" stroke-dasharray=\"{dashes}\"", WIDTHS[nth.min(2)]);
        line(&mut svg, series, &style, &x_axis, &y_axis);
    }
    legend(&mut svg, chart.series.iter().map(|series| series.name.as_str()));
    svg
}

fn frame(svg: &mut String, chart: &Chart, x_axis: &Axis, y_axis: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    *svg += &text(LEFT, 20.0, CHART_TITLE, &chart.title);
    for tick in y_axis.ticks() {
        let y = y_axis.place(tick, bottom, TOP);
        *svg += &rule((LEFT, y), (right, y), "stroke=\"#e4e4e4\"");
        *svg += &text(LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &y_axis.label(tick));
    }
    for tick in x_axis.ticks() {
        let x = x_axis.place(tick, LEFT, right);
        *svg += &rule((x, bottom), (x, bottom + 5.0), "stroke=\"#888888\"");
        *svg += &text(x, bottom + 19.0, "text-anchor=\"middle\"", &x_axis.label(tick));
    }
    axes(svg, [LEFT, TOP, right, bottom], HEIGHT, [&chart.x_label, &chart.y_label]);
}

fn line(svg: &mut String, series: &Series, style: &str, x_axis: &Axis, y_axis: &Axis) {
    let mut path = String::new();
    let mut pen_down = false;
    for &(x, y) in &series.points {
        if !(x.is_finite() && y.is_finite()) {
            pen_down = false; // a gap in the data is a gap in the line
            continue;
        }
        let step = if pen_down { 'L' } else { 'M' };
        let (x, y) = (x_axis.place(x, LEFT, WIDTH - RIGHT), y_axis.place(y, HEIGHT - BOTTOM, TOP));
        let _ = write!(path, "{step}{x:.1} {y:.1} ");
        pen_down = true;
    }
    let _ = writeln!(svg, "<path d=\"{}\" fill=\"none\" {style} stroke-linejoin=\"round\"/>", path.trim_end());
}

/// Names beside a piece of their line, below the title, in as many rows as it takes.
fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    let (mut x, mut y) = (LEFT, 40.0);
    for (name, (colour, dashes)) in names.zip(STYLES.iter().cycle()) {
        // Letters of this size are about 7 wide; a small error only moves the next name.
        let width = 30.0 + 7.0 * name.chars().count() as f64 + 22.0;
        if x > LEFT && x + width > WIDTH + 22.0 {
            (x, y) = (LEFT, y + 13.0);
        }
        let stroke = format!("stroke=\"{colour}\" stroke-width=\"2.4\" stroke-dasharray=\"{dashes}\"");
        *svg += &rule((x, y - 4.0), (x + 24.0, y - 4.0), &stroke);
        *svg += &text(x + 30.0, y, "", name);
        x += width;
    }
}

/// The two axes and their labels.
fn axes(svg: &mut String, [left, top, right, bottom]: [f64; 4], height: f64, [x_label, y_label]: [&str; 2]) {
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {top} V{bottom} H{right}\" fill=\"none\" stroke=\"#888888\"/>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#444444\">{}</text>\n\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\" fill=\"#444444\">{}</text>",
        f64::midpoint(left, right),
        height - 12.0,
        escaped(x_label),
        f64::midpoint(top, bottom),
        escaped(y_label)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A range of values, cut into round steps.
pub(crate) struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// The axis that shows all `values`; from zero when asked to and none is negative.
    pub(crate) fn over(values: impl Iterator<Item = f64>, from_zero: bool) -> Axis {
        let (mut low, mut high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        if from_zero && low > 0.0 {
            low = 0.0;
        }
        if low == high {
            high = low + 1.0;
        }
        let step = round_step((high - low) / 5.0);
        // The vertical axis ends on a tick; the horizontal one ends where the data ends.
        if from_zero {
            (low, high) = ((low / step).floor() * step, (high / step * 1.02).ceil() * step);
        }
        Axis { low, high, step }
    }

    pub(crate) fn ticks(&self) -> Vec<f64> {
        let first = (self.low / self.step - 1e-9).ceil();
        let ticks = (0..20).map(|tick| (first + f64::from(tick)) * self.step);
        ticks.take_while(|tick| *tick <= self.high + self.step * 1e-6).collect()
    }

    /// Position of `value` between the coordinates `from` and `to`.
    pub(crate) fn place(&self, value: f64, from: f64, to: f64) -> f64 {
        from + (value - self.low) / (self.high - self.low) * (to - from)
    }

    pub(crate) fn label(&self, tick: f64) -> String {
        let digits = if self.step >= 1.0 { 0 } else { 2 };
        let plain = format!("{:.digits$}", tick.abs());
        let (whole, part) = plain.split_once('.').map_or((plain.as_str(), ""), |(whole, part)| (whole, part));
        let mut grouped = String::new();
        for (place, digit) in whole.chars().enumerate() {
            if place > 0 && (whole.len() - place).is_multiple_of(3) {
                grouped.push('\u{202f}'); // narrow space between thousands
            }
            grouped.push(digit);
        }
        let sign = if tick < 0.0 { "−" } else { "" };
        if part.is_empty() { format!("{sign}{grouped}") } else { format!("{sign}{grouped}.{part}") }
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|factor| factor * power).find(|step| *step >= least).unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart {
        let series = vec![Series { name: "a < b".into(), points }];
        Chart { title: "t & u".into(), x_label: "round".into(), y_label: "MiB/s".into(), series }
    }

    #[test]
    fn steps_are_round() {
        assert_eq!([0.13, 1.0, 3.0, 70.0].map(round_step), [0.2, 1.0, 5.0, 100.0]);
    }

    #[test]
    fn thousands_are_grouped_and_fractions_kept() {
        let axis = Axis { low: 0.0, high: 10_000.0, step: 2000.0 };
        assert_eq!(axis.label(12_000.0), "12\u{202f}000");
        assert_eq!(Axis { low: 0.0, high: 1.0, step: 0.25 }.label(0.75), "0.75");
    }

    #[test]
    fn text_is_escaped_and_gaps_lift_the_pen() {
        let svg = grid("x", &[chart(vec![(0.0, 1.0), (1.0, f64::NAN), (2.0, 3.0)])], 3);
        assert!(svg.contains("a &lt; b") && svg.contains("t &amp; u"));
        assert_eq!(svg.matches("stroke-linejoin").count(), 1);
        let path = svg.lines().find(|line| line.contains("stroke-linejoin")).unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0));
    }

    #[test]
    fn a_chart_of_nothing_is_still_a_chart() {
        assert!(grid("x", &[chart(Vec::new())], 1).ends_with("</svg>\n"));
        assert!(grid("x", &[], 2).contains("<svg"));
    }

    proptest! {
        #[test]
        fn every_point_lies_inside_the_frame(points in prop::collection::vec((0.0f64..1e9, 0.0f64..1e9), 1..50)) {
            let (x, y) = (Axis::over(points.iter().map(|p| p.0), false), Axis::over(points.iter().map(|p| p.1), true));
            for point in &points {
                let (px, py) = (x.place(point.0, LEFT, WIDTH - RIGHT), y.place(point.1, HEIGHT - BOTTOM, TOP));
                prop_assert!((LEFT - 0.01..=WIDTH - RIGHT + 0.01).contains(&px));
                prop_assert!((TOP - 0.01..=HEIGHT - BOTTOM + 0.01).contains(&py));
            }
            prop_assert!((2..=12).contains(&y.ticks().len()), "{:?}", y.ticks());
        }
    }
}
