//! Plain aligned columns: text to the left, numbers to the right.

use std::fmt;

/// Rows under a head. A column whose cells all begin with a digit is set to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

/// Blanks between two columns.
const GAP: &str = "   ";

impl Table {
    /// A table whose columns are named `head`.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    /// Adds a row below the others. Missing cells at its end are empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// True when there is nothing below the head.
    pub fn is_empty(&self) -> bool {
        self.rows.len() < 2
    }

    fn cells(&self, column: usize) -> impl Iterator<Item = &str> {
        self.rows.iter().map(move |row| row.get(column).map_or("", String::as_str))
    }

    fn is_numeric(&self, column: usize) -> bool {
        let number = |cell: &str| {
            let unsigned = cell.trim_start_matches(['-', '+', '−', '>']);
            cell.is_empty() || cell == "–" || unsigned.starts_with(|first: char| first.is_ascii_digit())
        };
        column > 0 && self.cells(column).skip(1).all(number) && self.cells(column).skip(1).any(|cell| !cell.is_empty())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| self.cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let shape: Vec<(usize, bool)> = (0..columns).map(|c| (width(c), self.is_numeric(c))).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, &(width, right)) in shape.iter().enumerate() {
                let cell = row.get(column).map_or("", String::as_str);
                line += &if right { format!("{cell:>width$}{GAP}") } else { format!("{cell:<width$}{GAP}") };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_right_and_words_left() {
        let mut table = Table::new(["", "4 KiB pages", "ratio", "verdict"]);
        table.row(["GET", "410 k/s", "1.31", "better"]);
        table.row(["resident memory, GiB", "2.04 GiB", "0.9", "no difference"]);
        let wanted = "                       4 KiB pages   ratio   verdict\n\
                      GET                        410 k/s    1.31   better\n\
                      resident memory, GiB      2.04 GiB     0.9   no difference\n";
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
