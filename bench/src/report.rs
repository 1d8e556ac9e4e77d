//! What is shown and kept of a benchmark.

use crate::grid::Grid;
use crate::measure::{Row, raw, summary, table};
use crate::plot;

/// What a benchmark found out, as it is shown and kept.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// Tables and sentences, in Markdown.
    pub text: String,
    /// All samples, a line each, with tabs between its fields.
    pub samples: String,
    /// A drawing, in SVG.
    pub plot: Option<String>,
}

impl Report {
    /// Of rows with two sides.
    pub fn of_rows(benchmark: &str, rows: &[Row]) -> Self {
        let mut text = table(rows);
        if let Some(summary) = summary(rows) {
            text += &format!("\n{summary}\n");
        }
        Self { text, samples: raw(benchmark, rows), plot: None }
    }

    /// Of a table with many columns.
    pub fn of_grid(benchmark: &str, grid: &Grid) -> Self {
        let plot = plot::dots(&format!("cargo xtask bench {benchmark}"), grid);
        Self { text: grid.markdown(), samples: grid.raw(benchmark), plot: Some(plot) }
    }

    /// With a further table, which is not drawn.
    pub fn and(mut self, grid: &Grid, benchmark: &str) -> Self {
        self.text += &format!("\n{}", grid.markdown());
        self.samples += &grid.raw(benchmark);
        self
    }
}
