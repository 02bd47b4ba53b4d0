//! Report as a picture (SVG): lines over the size of the array if it is varied, else bars of unfairness and of each
//! slowdown.
//!
//! No library and no font file is needed.

use std::fmt::Write as _;

use super::report::{OfCondition, Report};
use crate::plot::{Axis, STYLES, document, rule, text};

const LEFT: f64 = 70.0;
const TOP: f64 = 40.0;
const PLOT_WIDTH: f64 = 620.0;
const PLOT_HEIGHT: f64 = 340.0;
/// Height of a row of the legend, or of bars.
const ROW: f64 = 18.0;

/// Dashes of the programs.
const DASHES: [&str; 4] = ["", "7 7", "2 5", "9 3 2 3"];
/// Offset of the dashes between conditions, so that a line shows in the gaps of another line on the same path.
const DASH_OFFSET: usize = 3;

/// Complete picture.
pub fn svg(report: &Report) -> String {
    if report.points.iter().any(|point| point.array_bytes.is_some()) { sweep(report) } else { bars(report) }
}

/// Access time in cycles over the size of the array (base 2): one line for each condition and program.
fn sweep(report: &Report) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a place in a picture")]
    let size = |bytes: units::Bytes| (bytes.0.max(1) as f64).log2();
    let sizes: Vec<f64> = report.points.iter().filter_map(|point| point.array_bytes).map(size).collect();
    let (low, high) = (sizes.iter().copied().fold(f64::INFINITY, f64::min), sizes.iter().copied().fold(0.0, f64::max));
    let all = || report.points.iter().flat_map(|point| &point.conditions);
    let most = all().flat_map(|of| &of.programs).map(|program| program.access_cycles).fold(1.0, f64::max);
    let cycles = Axis::over([0.0, most].into_iter(), true);
    let across =
        |size: f64| LEFT + if high > low { (size - low) / (high - low) * PLOT_WIDTH } else { PLOT_WIDTH / 2.0 };
    let bottom = TOP + PLOT_HEIGHT;
    let up = |value: f64| cycles.place(value, bottom, TOP);
    let mut inside = String::new();
    for tick in cycles.ticks() {
        inside += &rule((LEFT, up(tick)), (LEFT + PLOT_WIDTH, up(tick)), "stroke=\"#e4e4e4\"");
        inside += &text(LEFT - 8.0, up(tick) + 4.0, "text-anchor=\"end\"", &cycles.label(tick));
    }
    let mut free_from = f64::NEG_INFINITY;
    for bytes in report.points.iter().filter_map(|point| point.array_bytes) {
        let x = across(size(bytes));
        inside += &rule((x, bottom), (x, bottom + 5.0), "stroke=\"#888888\"");
        if x >= free_from {
            inside += &text(
                x,
                bottom + 18.0,
                "text-anchor=\"middle\" font-size=\"10\"",
                &bytes.to_string().replace(".0 ", " "),
            );
            free_from = x + 46.0;
        }
    }
    inside += &text(
        LEFT + PLOT_WIDTH / 2.0,
        bottom + 38.0,
        "text-anchor=\"middle\" fill=\"#444444\"",
        "size of the array (logarithmic)",
    );
    let turned =
        format!("text-anchor=\"middle\" fill=\"#444444\" transform=\"rotate(-90 18 {:.1})\"", TOP + PLOT_HEIGHT / 2.0);
    inside += &text(18.0, TOP + PLOT_HEIGHT / 2.0, &turned, "time of an access, cycles");
    let names: Vec<&str> = report
        .points
        .first()
        .map_or(Vec::new(), |point| point.conditions.iter().map(|condition| condition.name.as_str()).collect());
    let mut y = bottom + 62.0;
    for (nth, (condition, (colour, _))) in names.iter().zip(STYLES.iter().cycle()).enumerate() {
        let mut of: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
        for point in &report.points {
            let Some(bytes) = point.array_bytes else { continue };
            let Some(found) = point.conditions.iter().find(|other| other.name == *condition) else { continue };
            for program in &found.programs {
                let place = (across(size(bytes)), up(program.access_cycles));
                match of.iter_mut().find(|(name, _)| *name == program.name) {
                    Some((_, points)) => points.push(place),
                    None => of.push((&program.name, vec![place])),
                }
            }
        }
        let mut x = LEFT;
        for ((program, points), dashes) in of.iter().zip(DASHES.iter().cycle()) {
            let style = format!(
                "stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\" stroke-dashoffset=\"{}\" fill=\"none\"",
                nth * DASH_OFFSET
            );
            let mut path = String::new();
            for (nth, (x, y)) in points.iter().enumerate() {
                let _ = write!(path, "{}{x:.1} {y:.1} ", if nth == 0 { 'M' } else { 'L' });
            }
            let _ = writeln!(inside, "<path d=\"{}\" {style} stroke-linejoin=\"round\"/>", path.trim_end());
            inside += &rule((x, y - 4.0), (x + 26.0, y - 4.0), &style);
            inside += &text(x + 32.0, y, "text-anchor=\"start\"", &format!("{condition}: {program}"));
            x += 240.0;
        }
        y += ROW;
    }
    document(&report.title, LEFT + PLOT_WIDTH + 30.0, y, &inside)
}

/// Bar of unfairness for each condition, with a mark for the slowdown of each program.
fn bars(report: &Report) -> String {
    const NAMES: f64 = 150.0;
    let conditions: Vec<&OfCondition> = report.points.iter().flat_map(|point| &point.conditions).collect();
    let unfairness = |of: &OfCondition| of.metrics.map_or(1.0, |metrics| metrics.unfairness);
    let slowdowns = |of: &OfCondition| of.programs.iter().map(|program| program.slowdown).collect::<Vec<_>>();
    let most = conditions.iter().flat_map(|of| slowdowns(of).into_iter().chain([unfairness(of)])).fold(1.0, f64::max);
    let axis = Axis::over([0.0, most].into_iter(), true);
    let across = |value: f64| axis.place(value, NAMES, NAMES + PLOT_WIDTH);
    #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
    let bottom = TOP + ROW * 1.5 * conditions.len() as f64 + 4.0;
    let mut inside = String::new();
    for tick in axis.ticks() {
        inside += &rule((across(tick), TOP), (across(tick), bottom), "stroke=\"#e4e4e4\"");
        inside += &text(across(tick), bottom + 16.0, "text-anchor=\"middle\"", &axis.label(tick));
    }
    let mut y = TOP + 6.0;
    for (of, (colour, _)) in conditions.iter().zip(STYLES.iter().cycle()) {
        let wide = across(unfairness(of)) - NAMES;
        let _ = writeln!(
            inside,
            "<rect x=\"{NAMES}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{ROW}\" fill=\"{colour}\" fill-opacity=\"0.55\"/>"
        );
        for slowdown in slowdowns(of) {
            let x = across(slowdown);
            inside += &rule((x, y - 2.0), (x, y + ROW + 2.0), "stroke=\"#222222\" stroke-width=\"1.5\"");
        }
        inside += &text(NAMES - 8.0, y + 13.0, "text-anchor=\"end\"", &of.name);
        inside += &text(
            across(unfairness(of)) + 6.0,
            y + 13.0,
            "text-anchor=\"start\" font-size=\"10\"",
            &format!("{:.3}", unfairness(of)),
        );
        y += ROW * 1.5;
    }
    let words = "bar: unfairness (greatest over least slowdown); marks: the slowdown of each program";
    inside += &text(NAMES, bottom + 36.0, "text-anchor=\"start\" fill=\"#444444\"", words);
    document(&report.title, NAMES + PLOT_WIDTH + 60.0, bottom + 50.0, &inside)
}

#[cfg(test)]
mod tests {
    use units::{Bytes, WayMask};

    use super::*;
    use crate::cache::report::{MODEL, OfProgram, Point};
    use llc::policy::metrics::Metrics;

    fn of(name: &str, slowdowns: [f64; 2]) -> OfCondition {
        let program = |nth: usize| OfProgram {
            name: format!("p{nth}"),
            mask: WayMask(1),
            slowdown: slowdowns[nth],
            access_cycles: slowdowns[nth] * 40.0,
            accesses: 1,
            miss_fraction: 0.0,
            mpki: 0.0,
            free_ride_fraction: 0.0,
            region_hit_fraction: 0.0,
            stalled_fraction: 0.0,
            occupancy_bytes: Bytes(0),
            unmerged_pages: 0,
        };
        OfCondition {
            name: name.to_owned(),
            metrics: Metrics::of(&slowdowns),
            access_time_ratio: 1.0,
            programs: vec![program(0), program(1)],
            regions: Vec::new(),
            plan_changes: 0,
            passes_until_even: Some(0),
        }
    }

    fn report(arrays: &[Option<Bytes>]) -> Report {
        let conditions = vec![of("a < b", [1.0, 2.0]), of("c", [1.0, 5.0])];
        let points = arrays.iter().map(|array| Point { array_bytes: *array, conditions: conditions.clone() });
        Report {
            title: "t & u".into(),
            model: MODEL.to_owned(),
            seed: 1,
            cache_bytes: Bytes::mib(1),
            cache_ways: 4,
            complete: true,
            points: points.collect(),
        }
    }

    /// Checks that every element is closed, in order, and that `<` and `&` are escaped.
    fn assert_well_formed(svg: &str) {
        let mut open: Vec<&str> = Vec::new();
        for piece in svg.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').unwrap();
            let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
            if tag.starts_with('/') {
                assert_eq!(open.pop(), Some(name), "{tag}");
            } else if !tag.ends_with('/') {
                open.push(name);
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            assert!(!text.contains('>'), "{text}");
            let entities = ["&amp;", "&lt;", "&gt;"].iter().map(|entity| text.matches(entity).count()).sum::<usize>();
            assert_eq!(text.matches('&').count(), entities, "{text}");
        }
        assert_eq!(open, [""; 0]);
    }

    #[test]
    fn a_sweep_has_a_line_for_each_condition_and_program() {
        let svg = svg(&report(&[Some(Bytes::kib(16)), Some(Bytes::mib(4))]));
        assert_eq!(svg.matches("<path").count(), 4);
        assert_well_formed(&svg);
        assert!(svg.contains("t &amp; u") && svg.contains("a &lt; b: p0") && svg.contains("16 KiB"));
        assert_eq!(svg.matches("<path d=\"M70.0 ").count(), 4, "each begins at the smallest array");
    }

    #[test]
    fn a_mix_has_a_bar_for_each_condition_and_a_mark_for_each_program() {
        let svg = svg(&report(&[None]));
        assert_eq!((svg.matches("fill-opacity").count(), svg.matches("stroke-width=\"1.5\"").count()), (2, 4));
        assert_well_formed(&svg);
        assert!(svg.contains(">5.000<"));
    }

    #[test]
    fn a_report_of_nothing_is_still_a_picture() {
        for arrays in [&[][..], &[None], &[Some(Bytes(0))]] {
            let mut report = report(arrays);
            report.points.iter_mut().for_each(|point| point.conditions.clear());
            assert_well_formed(&svg(&report));
        }
    }
}
