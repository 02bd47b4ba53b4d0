//! Ratios over named positions, on a logarithmic axis: lines over page sizes, or a bar for each way of a task.
//!
//! A value that is only known to lie beyond some bound is drawn at the bound: a hollow point, a bar that fades out.

use std::fmt::Write as _;

use super::{CHART_TITLE, STYLES, WIDTH, WIDTHS, axes, legend, rule, sheet, text};

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Ratio, or the bound that it lies beyond.
    pub ratio: f64,
    /// True when it is only a bound.
    pub is_beyond: bool,
}

/// Style of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line for each series.
    Lines,
    /// A bar for each value of the first series, with its number.
    Bars,
}

/// One chart.
#[derive(Clone, Debug)]
pub struct Ratios {
    /// Title.
    pub title: String,
    /// Label of the positions.
    pub x_label: String,
    /// Name of the vertical axis.
    pub y_label: String,
    /// Names of the places, from left to right.
    pub places: Vec<String>,
    /// Names, and a value for each place where there is one.
    pub series: Vec<(String, Vec<Option<Point>>)>,
    /// Style of the values.
    pub shape: Shape,
}

const HEIGHT: f64 = 350.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 82.0;
const BOTTOM: f64 = 52.0;

/// All `charts` under one title, `columns` of them in a row.
pub fn ratios(title: &str, charts: &[Ratios], columns: usize) -> String {
    let parts: Vec<String> = charts.iter().map(one).collect();
    sheet(title, &parts, columns, HEIGHT)
}

fn one(chart: &Ratios) -> String {
    let points = chart.series.iter().flat_map(|(_, points)| points.iter().flatten());
    let axis = Axis::over(points.map(|point| point.ratio));
    let mut svg = String::new();
    frame(&mut svg, chart, &axis);
    match chart.shape {
        Shape::Lines => {
            legend(&mut svg, chart.series.iter().map(|(name, _)| name.as_str()));
            for (nth, (_, points)) in chart.series.iter().enumerate() {
                line(&mut svg, chart, points, nth, &axis);
            }
        }
        Shape::Bars => {
            if let Some((_, points)) = chart.series.first() {
                bars(&mut svg, chart, points, &axis);
            }
        }
    }
    svg
}

/// Middle of a place, and its width.
fn column(chart: &Ratios, place: usize) -> (f64, f64) {
    let width = (WIDTH - LEFT - RIGHT) / chart.places.len().max(1) as f64;
    (LEFT + width * (place as f64 + 0.5), width)
}

fn frame(svg: &mut String, chart: &Ratios, axis: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    *svg += &text(LEFT, 20.0, CHART_TITLE, &chart.title);
    for tick in axis.ticks() {
        let y = axis.place(tick);
        let stroke = if (tick - 1.0).abs() < 1e-9 { "#888888" } else { "#e4e4e4" };
        *svg += &rule((LEFT, y), (right, y), &format!("stroke=\"{stroke}\""));
        *svg += &text(LEFT - 8.0, y + 4.0, "text-anchor=\"end\"", &tick.to_string());
    }
    for (place, name) in chart.places.iter().enumerate() {
        let (x, y) = (column(chart, place).0, bottom + 18.0);
        *svg += &text(x, y, "text-anchor=\"middle\"", name);
    }
    axes(svg, [LEFT, TOP, right, bottom], HEIGHT, [&chart.x_label, &chart.y_label]);
}

fn line(svg: &mut String, chart: &Ratios, points: &[Option<Point>], nth: usize, axis: &Axis) {
    let (colour, dashes) = STYLES[nth % STYLES.len()];
    let width = WIDTHS[(nth + 1).min(2)];
    let mut path = String::new();
    let mut marks = String::new();
    let mut pen_down = false;
    for (place, point) in points.iter().enumerate() {
        let Some(point) = point else {
            pen_down = false;
            continue;
        };
        let (x, y) = (column(chart, place).0, axis.place(point.ratio));
        let _ = write!(path, "{}{x:.1} {y:.1} ", if pen_down { 'L' } else { 'M' });
        let fill = if point.is_beyond { "#ffffff" } else { colour };
        let _ = writeln!(
            marks,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.6\"/>"
        );
        pen_down = true;
    }
    let path = path.trim_end();
    let _ = write!(
        svg,
        "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-dasharray=\"{dashes}\" \
         stroke-linejoin=\"round\"/>\n{marks}"
    );
}

/// Bars from 1 up (or down): a ratio of 1 has no bar.
fn bars(svg: &mut String, chart: &Ratios, points: &[Option<Point>], axis: &Axis) {
    for (place, point) in points.iter().enumerate() {
        let Some(point) = point else { continue };
        let (middle, width) = column(chart, place);
        let (one, at) = (axis.place(1.0), axis.place(point.ratio));
        // Series with a fixed transfer size are grey; the others each have a colour.
        let is_unit =
            chart.places.get(place).is_some_and(|name| name.starts_with(|first: char| first.is_ascii_digit()));
        let colour = if is_unit { STYLES[0].0 } else { STYLES[1 + place % 5].0 };
        let opacity = if point.is_beyond { 0.35 } else { 1.0 };
        let _ = writeln!(
            svg,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\" fill-opacity=\"{opacity}\"/>\n\
             <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"11\">{}</text>",
            middle - width * 0.35,
            at.min(one),
            width * 0.7,
            (one - at).abs(),
            at.min(one) - 4.0,
            number(*point)
        );
    }
}

fn number(point: Point) -> String {
    let Point { ratio, is_beyond } = point;
    let text = if ratio >= 100.0 || is_beyond { format!("{ratio:.0}") } else { format!("{ratio:.2}") };
    if is_beyond { format!("&gt;{text}") } else { text }
}

/// A logarithmic axis that shows 1.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Axis {
        let known = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = known.fold((1.0f64, 2.0f64), |(low, high), value| (low.min(value), high.max(value)));
        // A margin below the lowest value and, for the numbers on the bars, above the highest.
        Axis { low: if low < 1.0 { low * 0.9 } else { 1.0 }, high: high * (high / low).powf(0.08) }
    }

    fn place(&self, value: f64) -> f64 {
        let part = (value.max(self.low) / self.low).ln() / (self.high / self.low).ln();
        let bottom = HEIGHT - BOTTOM;
        bottom - part * (bottom - TOP)
    }

    /// 1, 2 and 5 times powers of ten; over many decades the powers alone.
    fn ticks(&self) -> Vec<f64> {
        let factors: &[f64] = if self.high / self.low > 500.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = (-2..=6).map(|power| 10f64.powi(power));
        let all = powers.flat_map(|power| factors.iter().map(move |factor| ((factor * power) * 100.0).round() / 100.0));
        all.filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chart(shape: Shape, points: Vec<Option<Point>>) -> Ratios {
        Ratios {
            title: "t & u".into(),
            x_label: "page size".into(),
            y_label: "relative run time".into(),
            places: (0..points.len())
                .map(|place| if place == 0 { "4K".into() } else { format!("way {place}") })
                .collect(),
            series: vec![("a < b".into(), points)],
            shape,
        }
    }

    fn at(ratio: f64) -> Option<Point> {
        Some(Point { ratio, is_beyond: false })
    }

    #[test]
    fn a_bound_is_drawn_unlike_a_value() {
        let points = vec![at(2.0), Some(Point { ratio: 60.0, is_beyond: true })];
        let lines = ratios("x", &[chart(Shape::Lines, points.clone())], 2);
        assert_eq!((lines.matches("<circle").count(), lines.matches("fill=\"#ffffff\" stroke").count()), (2, 1));
        let bars = ratios("x", &[chart(Shape::Bars, points)], 2);
        assert!(
            bars.contains(">2.00</text>") && bars.contains(">&gt;60</text>") && bars.contains("fill-opacity=\"0.35\"")
        );
    }

    #[test]
    fn text_is_escaped_and_a_gap_lifts_the_pen() {
        let svg = ratios("x", &[chart(Shape::Lines, vec![at(1.0), None, at(3.0)])], 1);
        assert!(svg.contains("a &lt; b") && svg.contains("t &amp; u"));
        let path = svg.lines().find(|line| line.contains("stroke-linejoin")).unwrap();
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (2, 0));
    }

    #[test]
    fn ticks_are_round_and_one_is_among_them() {
        assert_eq!(Axis { low: 1.0, high: 60.0 }.ticks(), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(Axis { low: 1.0, high: 2000.0 }.ticks(), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Axis { low: 0.5, high: 3.0 }.ticks(), [0.5, 1.0, 2.0]);
    }

    #[test]
    fn a_chart_of_nothing_is_still_a_chart() {
        for shape in [Shape::Lines, Shape::Bars] {
            assert!(ratios("x", &[chart(shape, Vec::new())], 1).ends_with("</svg>\n"));
        }
    }

    proptest! {
        #[test]
        fn every_value_lies_inside_the_frame_and_more_is_never_lower(
            values in prop::collection::vec(0.01f64..1e5, 1..20)
        ) {
            let axis = Axis::over(values.iter().copied());
            for value in &values {
                let y = axis.place(*value);
                prop_assert!((TOP..=HEIGHT - BOTTOM).contains(&y), "{y}");
                prop_assert!(axis.place(value * 1.1) <= y);
            }
        }
    }
}
