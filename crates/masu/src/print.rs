//! Plain aligned columns.

use std::io::Write;

/// Text in columns: the first cell of a column is its head; numbers stand right, words left.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub fn new(heads: &[&str]) -> Table {
        Table { rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Adds a row.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Adds a row of as many cells as there are columns, however many that is.
    pub fn cells(&mut self, cells: impl Iterator<Item = String>) {
        self.rows.push(cells.collect());
    }

    /// Writes it, each line behind `indent`.
    pub fn write(&self, to: &mut impl Write, indent: &str) -> std::io::Result<()> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let wide = |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
        let widths: Vec<usize> = (0..columns).map(|column| wide(column).unwrap_or(0)).collect();
        let right: Vec<bool> = (0..columns).map(|column| self.is_number_column(column)).collect();
        for row in &self.rows {
            let mut line = String::from(indent);
            for (column, cell) in row.iter().enumerate() {
                let space = " ".repeat(widths[column] - cell.chars().count());
                let (before, after) = if right[column] { (space.as_str(), "") } else { ("", space.as_str()) };
                line.push_str(before);
                line.push_str(cell);
                line.push_str(after);
                line.push_str("   ");
            }
            writeln!(to, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn is_number_column(&self, column: usize) -> bool {
        let starts_as_number = |cell: &String| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '+');
        self.rows.len() > 1 && self.rows[1..].iter().filter_map(|row| row.get(column)).all(starts_as_number)
    }
}

/// A signed change in percent: `+0.31 %`.
pub fn percent(part: f64) -> String {
    format!("{:+.2} %", part * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_numbers_right() {
        let mut table = Table::new(&["window", "pages"]);
        table.row(["a".to_owned(), "7".to_owned()]);
        table.row(["bc".to_owned(), "512".to_owned()]);
        let mut text = Vec::new();
        table.write(&mut text, "  ").unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "  window   pages\n  a            7\n  bc         512\n");
    }
}
