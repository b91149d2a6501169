//! Tables of text: columns aligned, three spaces between them, no colours, no control characters.

/// A table to be printed. Cells are made harmless as they come in.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
    widths: Vec<usize>,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Self {
        let header: Vec<String> = header.iter().map(|text| (*text).to_owned()).collect();
        let widths = header.iter().map(|text| text.chars().count()).collect();
        Table { header, rows: Vec::new(), widths }
    }

    /// Adds a row; empty cells are shown as `-`, so that columns can be counted.
    pub(crate) fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<String> = cells
            .into_iter()
            .map(|cell| match cell.as_ref() {
                "" => "-".to_owned(),
                text => printable(text),
            })
            .collect();
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(cell.chars().count());
        }
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Header and rows, each line after `indent` spaces.
    pub(crate) fn render(&self, indent: usize) -> String {
        let mut out = self.line(&self.header, indent);
        for row in &self.rows {
            out.push_str(&self.line(row, indent));
        }
        out
    }

    /// Takes the rows off as text and keeps the widths, for a table that goes on.
    pub(crate) fn drain(&mut self, with_header: bool) -> String {
        let mut out = if with_header { self.line(&self.header, 0) } else { String::new() };
        for row in std::mem::take(&mut self.rows) {
            out.push_str(&self.line(&row, 0));
        }
        out
    }

    fn line(&self, cells: &[String], indent: usize) -> String {
        let mut line = " ".repeat(indent);
        let last = cells.len().saturating_sub(1);
        for (index, (cell, width)) in cells.iter().zip(&self.widths).enumerate() {
            line.push_str(cell);
            if index < last {
                let gap = width.saturating_sub(cell.chars().count()) + 3;
                line.extend(std::iter::repeat_n(' ', gap));
            }
        }
        line.push('\n');
        line
    }
}

/// Text of a container or of a pod, safe on a terminal: control characters are escaped.
pub(crate) fn printable(text: &str) -> String {
    if !text.chars().any(char::is_control) {
        return text.to_owned();
    }
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_empty_cells_seen() {
        let mut table = Table::new(&["NAME", "AGE", "WHY"]);
        table.row(["a-long-name", "5s", "waits"]);
        table.row(["b", "", "ünder\u{1b}[31mway\n"]);
        assert_eq!(
            table.render(2),
            "  NAME          AGE   WHY\n  a-long-name   5s    waits\n  b             -     ünder\\u{1b}[31mway\\n\n"
        );
    }

    #[test]
    fn a_table_goes_on_with_its_widths() {
        let mut table = Table::new(&["A", "B"]);
        table.row(["long", "1"]);
        assert_eq!(table.drain(true), "A      B\nlong   1\n");
        table.row(["x", "2"]);
        assert_eq!(table.drain(false), "x      2\n");
        assert!(table.is_empty());
    }
}
