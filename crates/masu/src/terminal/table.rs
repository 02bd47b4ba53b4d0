//! Tables: words to the left, numbers to the right. The benchmarks use them too.

use std::fmt;
use std::io::{self, Write};

use linux::untrusted::visible;

/// Rows under a head. A cell is one line; the middle of a cell longer than `WIDEST` is left out. A column of numbers
/// is set to the right: each cell begins with a digit or a sign, or is empty.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

/// Blanks between two columns.
const GAP: &str = "   ";

/// Most characters of a cell: a path is shorter, unless it was made that long on purpose.
const WIDEST: usize = 256;

impl Table {
    /// A table whose columns have these heads.
    pub fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Table {
        Table { rows: vec![heads.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row below the others. Missing cells at its end are empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| cut(&visible(&cell.into()))).collect());
    }

    /// True when there is nothing below the head.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    /// Writes the table, each line after `indent`.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write(&self, to: &mut impl Write, indent: &str) -> io::Result<()> {
        self.to_string().lines().try_for_each(|line| writeln!(to, "{}", format!("{indent}{line}").trim_end()))
    }

    fn column(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |row| row.get(column).map_or("", String::as_str))
    }

    fn is_of_numbers(&self, column: usize) -> bool {
        let is_number = |cell: &str| {
            let unsigned = cell.trim_start_matches(['-', '+', '−', '>']);
            matches!(cell, "" | "-" | "–") || unsigned.starts_with(|first: char| first.is_ascii_digit())
        };
        self.column(column).skip(1).all(is_number) && self.column(column).skip(1).any(|cell| !cell.is_empty())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| self.column(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let columns: Vec<(usize, bool)> =
            (0..columns).map(|column| (width(column), self.is_of_numbers(column))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, &(width, right)) in columns.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                line += &if right { format!("{cell:>width$}{GAP}") } else { format!("{cell:<width$}{GAP}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn cut(cell: &str) -> String {
    let chars: Vec<char> = cell.chars().collect();
    if chars.len() <= WIDEST {
        return cell.to_owned();
    }
    let (head, tail) = (&chars[..WIDEST / 2], &chars[chars.len() - (WIDEST / 2 - 1)..]);
    head.iter().chain(&['…']).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_table_has_a_line_for_each_row_and_no_control_character(
            cells in prop::collection::vec(["(?s).{0,400}", "(?s).{0,40}"], 0..5)
        ) {
            let mut table = Table::new(["one", "other"]);
            cells.iter().for_each(|row| table.row(row.clone()));
            let mut text = Vec::new();
            table.write(&mut text, "").unwrap();
            let text = String::from_utf8(text).unwrap();
            prop_assert_eq!(text.lines().count(), cells.len() + 1);
            prop_assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()));
            prop_assert!(text.lines().all(|line| line.chars().count() <= 2 * WIDEST + 3));
        }
    }

    #[test]
    fn a_long_cell_keeps_its_ends() {
        assert_eq!(cut(&"x".repeat(WIDEST)), "x".repeat(WIDEST));
        let long = format!("/begin/{}/end (deleted)", "ü".repeat(4000));
        let shown = cut(&long);
        assert_eq!(shown.chars().count(), WIDEST);
        assert!(
            shown.starts_with("/begin/ü") && shown.contains("ü…ü") && shown.ends_with("ü/end (deleted)"),
            "{shown}"
        );
    }

    #[test]
    fn words_stand_left_and_numbers_right_behind_the_indent() {
        let mut table = Table::new(["window", "pages"]);
        table.row(["a", "7"]);
        table.row(["bc", "512"]);
        let mut text = Vec::new();
        table.write(&mut text, "  ").unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "  window   pages\n  a            7\n  bc         512\n");
    }

    #[test]
    fn a_missing_number_leaves_a_column_one_of_numbers() {
        let mut table = Table::new(["", "ratio", "verdict"]);
        table.row(["GET", "1.31", "better"]);
        table.row(["memory", "−0.9", "no difference"]);
        table.row(["faults", "–", ""]);
        let wanted = "         ratio   verdict\n\
                      GET       1.31   better\n\
                      memory    −0.9   no difference\n\
                      faults       –\n";
        assert_eq!(table.to_string(), wanted);
    }

    #[test]
    fn short_rows_and_wide_letters_keep_the_columns_straight() {
        let mut table = Table::new(["µ", "b"]);
        table.row(["枡枡"]);
        table.row(["x", "y"]);
        assert_eq!(table.to_string(), "µ    b\n枡枡\nx    y\n");
        assert!(!table.is_empty() && Table::new(["a"]).is_empty());
    }
}
