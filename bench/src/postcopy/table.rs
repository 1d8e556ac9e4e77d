//! Samples, those of a row together, and what is shown of them.

use std::fmt::Write as _;

use crate::grid::percentile;
use crate::measure::median;

/// A table whose cells are medians of samples.
pub(super) struct Table {
    /// What its samples are kept under.
    name: &'static str,
    /// What tells rows apart.
    keys: &'static [&'static str],
    columns: &'static [&'static str],
    rows: Vec<Row>,
}

pub(super) struct Row {
    pub(super) keys: Vec<String>,
    samples: Vec<Vec<f64>>,
}

impl Row {
    /// The tenth, fiftieth and ninetieth percentile of the sum of some columns.
    pub(super) fn percentiles(&self, columns: &[usize]) -> Option<[f64; 3]> {
        let sum = |values: &Vec<f64>| columns.iter().map(|column| values[*column]).sum();
        let sums: Vec<f64> = self.samples.iter().map(sum).collect();
        Some([percentile(&sums, 10)?, percentile(&sums, 50)?, percentile(&sums, 90)?])
    }

    /// The median of a column; not a number where nobody knows.
    pub(super) fn median(&self, column: usize) -> f64 {
        let samples: Vec<f64> = self.samples.iter().map(|values| values[column]).collect();
        median(&samples).unwrap_or(f64::NAN)
    }
}

impl Table {
    pub(super) fn new(
        name: &'static str,
        keys: &'static [&'static str],
        columns: &'static [&'static str],
    ) -> Self {
        Self { name, keys, columns, rows: Vec::new() }
    }

    pub(super) fn add(&mut self, keys: Vec<String>, values: &[f64]) {
        let row = self.row(keys);
        let row = &mut self.rows[row];
        row.samples.push(values.to_vec());
        // Measuring takes minutes: show that it goes on.
        let medians: Vec<String> =
            (0..self.columns.len()).map(|column| shown(row.median(column))).collect();
        eprintln!("{}: {}", row.keys.join(", "), medians.join(" "));
    }

    /// What was [kept](Self::raw) of this table, all samples of a cell in a line; what is of another one is left out.
    pub(super) fn read(&mut self, kept: &str) {
        for line in kept.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, keys @ .., column, values] = &fields[..] else { continue };
            let column = self.columns.iter().position(|known| known == column);
            let (true, true, Some(column)) =
                (*name == self.name, keys.len() == self.keys.len(), column)
            else {
                continue;
            };
            let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
            let row = self.row(keys);
            let nothing = vec![f64::NAN; self.columns.len()];
            for (number, value) in values.split(' ').enumerate() {
                let Ok(value) = value.parse() else { continue };
                let samples = &mut self.rows[row].samples;
                samples.resize(samples.len().max(number + 1), nothing.clone());
                samples[number][column] = value;
            }
        }
    }

    /// Where the row with these keys is.
    fn row(&mut self, keys: Vec<String>) -> usize {
        let known = self.rows.iter().position(|row| row.keys == keys);
        known.unwrap_or_else(|| {
            self.rows.push(Row { keys, samples: Vec::new() });
            self.rows.len() - 1
        })
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The row with other last keys, if there is one.
    pub(super) fn beside(&self, row: &Row, last: &str) -> Option<&Row> {
        let (_, first) = row.keys.split_last()?;
        let is_it = |other: &&Row| {
            let Some((key, others)) = other.keys.split_last() else { return false };
            key == last && others == first
        };
        self.rows.iter().find(is_it)
    }

    /// In Markdown, with further columns that are computed of a row.
    pub(super) fn markdown(
        &self,
        more: &[&str],
        further: impl Fn(&Self, &Row) -> Vec<f64>,
    ) -> String {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        self.markdown_of(&all, more, further)
    }

    /// The same of some columns.
    pub(super) fn markdown_of(
        &self,
        columns: &[usize],
        more: &[&str],
        further: impl Fn(&Self, &Row) -> Vec<f64>,
    ) -> String {
        let names: Vec<&str> = columns.iter().map(|column| self.columns[*column]).collect();
        let head = [self.keys, &names, more].concat();
        let mut text = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(head.len()));
        for row in &self.rows {
            let medians = columns.iter().map(|column| row.median(*column));
            let cells = medians.chain(further(self, row)).map(shown);
            let cells: Vec<String> = row.keys.iter().cloned().chain(cells).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text
    }

    /// All samples, a line each.
    pub(super) fn raw(&self) -> String {
        let mut text = String::new();
        for row in &self.rows {
            for (index, column) in self.columns.iter().enumerate() {
                let values = row.samples.iter().map(|values| values[index]);
                for (number, value) in values.enumerate().filter(|(_, value)| !value.is_nan()) {
                    let keys = row.keys.join("\t");
                    let _ = writeln!(text, "{}\t{keys}\t{column}\t{number}\t{value}", self.name);
                }
            }
        }
        text
    }
}

/// A number of three digits or so.
fn shown(value: f64) -> String {
    match value {
        value if value.is_nan() => "-".to_owned(),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_of_a_table_is_read_and_what_is_of_another_is_not() {
        let table = || Table::new("a", &["network", "way"], &["init", "toucher"]);
        let mut read = table();
        read.read("a\tfar\tTLS\tinit\t1.5 2.5\na\tfar\tTLS\ttoucher\t7 9\n");
        read.read("b\tfar\tTLS\tinit\t1\na\tTLS\tinit\t1\na\tnear\tTLS\twire\t1\n");
        let mut made = table();
        let keys = || ["far", "TLS"].map(str::to_owned).to_vec();
        made.add(keys(), &[1.5, 7.0]);
        made.add(keys(), &[2.5, 9.0]);
        assert_eq!(read.raw(), made.raw());
        assert_eq!(
            read.markdown_of(&[1], &[], |_, _| vec![]),
            "| network | way | toucher |\n| --- | --- | --- |\n| far | TLS | 9.00 |\n"
        );
    }
}
