//! A heat map as SVG: one rectangle for each ratio, coloured by its distance from 1.

use std::fmt::Write as _;

use super::{document, escaped, text};

/// Ratios over two things.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// Title.
    pub title: String,
    /// Name and unit of the columns.
    pub x_label: String,
    /// Names of the columns. Not all are printed where they are many.
    pub columns: Vec<String>,
    /// Rows from top to bottom: a name, and a ratio for each column; `NaN` where there is none.
    pub rows: Vec<(String, Vec<f64>)>,
}

const LEFT: f64 = 150.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 46.0;
const ROW: f64 = 30.0;
const CELL_MIN: f64 = 12.0;
const WIDTH_MIN: f64 = 640.0;
const LEGEND: f64 = 64.0;
/// Width of a column's name.
const NAME: f64 = 34.0;

/// Ratios from `1 / FULL` to `FULL` have colours of their own; beyond, the colour stays.
const FULL: f64 = 4.0;

/// Worse than the baseline, equal, better: orange, white and blue, which people with any colour vision can tell apart.
const COLOURS: [[f64; 3]; 3] = [[213.0, 94.0, 0.0], [255.0, 255.0, 255.0], [0.0, 114.0, 178.0]];

/// The map as one SVG file.
pub fn heat_map(map: &HeatMap) -> String {
    let columns = map.columns.len().max(1) as f64;
    let cell = ((WIDTH_MIN - LEFT - RIGHT) / columns).max(CELL_MIN);
    let (width, bottom) = (LEFT + cell * columns + RIGHT, TOP + ROW * map.rows.len() as f64);
    let height = bottom + LEGEND + 40.0;
    let mut svg = String::new();
    for (nth, (name, ratios)) in map.rows.iter().enumerate() {
        let y = TOP + ROW * nth as f64;
        svg += &text(LEFT - 8.0, y + ROW / 2.0 + 4.0, "text-anchor=\"end\"", name);
        for (column, &ratio) in ratios.iter().enumerate().filter(|(_, ratio)| ratio.is_finite()) {
            let of = map.columns.get(column).map_or("", String::as_str);
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{y}\" width=\"{cell:.1}\" height=\"{}\" fill=\"{}\"><title>{}, {}: {ratio:.2}</title></rect>",
                LEFT + cell * column as f64,
                ROW - 2.0,
                colour(ratio),
                escaped(name),
                escaped(of)
            );
        }
    }
    names(&mut svg, map, cell, bottom);
    legend(&mut svg, bottom + 58.0);
    document(&map.title, width.round(), height.round(), &svg)
}

/// Names of the columns, as many as fit, and their label.
fn names(svg: &mut String, map: &HeatMap, cell: f64, bottom: f64) {
    let mut free_from = 0.0;
    for (column, name) in map.columns.iter().enumerate() {
        let x = LEFT + cell * (column as f64 + 0.5);
        if x >= free_from {
            *svg += &text(x, bottom + 14.0, "text-anchor=\"middle\" font-size=\"11\"", name);
            free_from = x + NAME;
        }
    }
    let middle = LEFT + cell * map.columns.len() as f64 / 2.0;
    *svg += &text(middle, bottom + 34.0, "text-anchor=\"middle\" fill=\"#444444\"", &map.x_label);
}

/// Legend from colours to ratios.
fn legend(svg: &mut String, y: f64) {
    const STEPS: u32 = 16;
    let width = 14.0;
    for step in 0..=STEPS {
        let ratio = FULL.powf(2.0 * f64::from(step) / f64::from(STEPS) - 1.0);
        let x = LEFT + width * f64::from(step);
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"12\" fill=\"{}\"/>", colour(ratio));
        if step % (STEPS / 4) == 0 {
            let (x, y) = (x + width / 2.0, y + 26.0);
            *svg += &text(x, y, "text-anchor=\"middle\" font-size=\"11\"", &ratio.to_string());
        }
    }
    let _ = writeln!(
        svg,
        "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{}\" height=\"12\" fill=\"none\" stroke=\"#bbbbbb\"/>\n\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">ratio</text>",
        width * f64::from(STEPS + 1),
        LEFT - 8.0,
        y + 11.0
    );
}

/// White at 1, and on either side the deeper the further, in steps of the ratio's logarithm.
fn colour(ratio: f64) -> String {
    let [worse, equal, better] = COLOURS;
    let far = (ratio.max(f64::MIN_POSITIVE).ln() / FULL.ln()).clamp(-1.0, 1.0);
    let end = if far < 0.0 { worse } else { better };
    let mixed = [0, 1, 2].map(|nth: usize| (equal[nth] + (end[nth] - equal[nth]) * far.abs()).round());
    format!("rgb({},{},{})", mixed[0], mixed[1], mixed[2])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(columns: usize, rows: Vec<(String, Vec<f64>)>) -> HeatMap {
        let columns = (0..columns).map(|column| column.to_string()).collect();
        HeatMap { title: "t & u".into(), x_label: "dimension".into(), columns, rows }
    }

    #[test]
    fn one_is_white_and_the_ends_are_full() {
        assert_eq!(colour(1.0), "rgb(255,255,255)");
        assert_eq!([0.25, 0.01, 0.0].map(colour), ["rgb(213,94,0)"; 3]);
        assert_eq!([4.0, 100.0].map(colour), ["rgb(0,114,178)"; 2]);
    }

    #[test]
    fn each_ratio_is_a_rectangle_and_a_missing_one_is_a_hole() {
        let svg = heat_map(&map(3, vec![("a < b".into(), vec![1.0, f64::NAN, 2.0]), ("c".into(), vec![0.5; 3])]));
        assert_eq!(svg.matches("<title>").count(), 5);
        assert!(svg.contains("<title>a &lt; b, 2: 2.00</title>") && svg.contains("t &amp; u"));
        assert!(svg.contains(">0.25</text>") && svg.contains(">4</text>"), "{svg}");
    }

    #[test]
    fn a_map_of_nothing_is_still_a_map() {
        assert!(heat_map(&map(0, Vec::new())).ends_with("</svg>\n"));
    }

    proptest! {
        #[test]
        fn a_better_ratio_is_never_less_blue(low in 0.01f64..100.0, factor in 1.0f64..10.0) {
            let red = |ratio| -> f64 {
                let text = colour(ratio);
                text[4..].split(',').next().unwrap().parse().unwrap()
            };
            // From orange over white to blue, red first rises and then falls; beyond 1 it only falls.
            if low >= 1.0 {
                prop_assert!(red(low * factor) <= red(low));
            } else if low * factor <= 1.0 {
                prop_assert!(red(low * factor) >= red(low));
            }
        }

        #[test]
        fn names_do_not_overlap(columns in 1usize..200) {
            let svg = heat_map(&map(columns, vec![("r".into(), vec![1.0; columns])]));
            let lines = svg.lines().filter(|line| line.contains("text-anchor=\"middle\" font-size=\"11\""));
            let all: Vec<f64> = lines.map(|line| line.split('"').nth(1).unwrap().parse().unwrap()).collect();
            let named = &all[..all.len() - 5]; // the last five belong to the colours
            prop_assert!(named.windows(2).all(|pair| pair[1] - pair[0] >= NAME - 0.2));
        }
    }
}
