//! Drawings of tables.

use std::fmt::Write;

use crate::grid::{Grid, Line, percentile};
use crate::measure::Unit;

/// Widths and heights, in pixels.
const LABELS: f64 = 400.0;
const FIELD: f64 = 520.0;
const LINE: f64 = 22.0;
const TOP: f64 = 34.0;
const LEGEND_LINE: f64 = 18.0;
const LEGEND_COLUMNS: usize = 4;

/// Distinguishable on white, also without seeing red or green. Pagefork's are the
/// first.
const OURS: [&str; 8] =
    ["#0072b2", "#009e73", "#56b4e9", "#004d40", "#3f51b5", "#7e57c2", "#26a69a", "#1a237e"];
const THEIRS: [&str; 4] = ["#d55e00", "#e69f00", "#cc79a7", "#8d6e63"];

/// Draws all times of a table: a line each, a mark for each column's median, a bar
/// from its tenth to its ninetieth percentile. The axis is logarithmic. Marks of
/// Pagefork are round, others square.
pub fn dots(title: &str, grid: &Grid) -> String {
    let lines: Vec<&Line> =
        grid.lines.iter().filter(|line| line.unit == Unit::Nanoseconds).collect();
    let axis = Axis::of(lines.iter().flat_map(|line| line.cells.iter().flatten().copied()));
    let bottom = TOP + LINE * lines.len() as f64;
    let legend = bottom + 48.0;
    let height = legend + LEGEND_LINE * (grid.columns.len().div_ceil(LEGEND_COLUMNS)) as f64;
    let width = LABELS + FIELD + 30.0;
    let mut text = head(title, width, height);
    for (value, label) in axis.ticks() {
        let x = axis.place(value);
        put(
            &mut text,
            format_args!(
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                bottom + 16.0
            ),
        );
    }
    put(
        &mut text,
        format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">time (median, tenth to ninetieth \
         percentile; logarithmic)</text>",
            LABELS + FIELD / 2.0,
            bottom + 34.0
        ),
    );
    for (i, line) in lines.iter().enumerate() {
        let y = TOP + LINE * (i as f64 + 0.5);
        let mut row = format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LABELS - 8.0,
            y + 4.0,
            escape(&line.name)
        );
        for (column, samples) in line.cells.iter().enumerate() {
            mark(&mut row, grid, column, samples, &axis, y);
        }
        // A line of the table is one of the file.
        put(&mut text, format_args!("{}", row.replace('\n', "")));
    }
    for (column, name) in grid.columns.iter().enumerate() {
        let x = 20.0 + (column % LEGEND_COLUMNS) as f64 * (width / LEGEND_COLUMNS as f64);
        let y = legend + LEGEND_LINE * (column / LEGEND_COLUMNS) as f64;
        symbol(&mut text, grid, column, x, y);
        let name = escape(name);
        put(
            &mut text,
            format_args!("<text x=\"{:.1}\" y=\"{:.1}\">{name}</text>", x + 9.0, y + 4.0),
        );
    }
    text + "</svg>\n"
}

/// Times that grow with something: a line of a drawing, with a point for each of its values, from left to
/// right.
pub struct Curve {
    /// What it is called.
    pub name: String,
    /// Whether it is Pagefork.
    pub is_ours: bool,
    /// A value, and the tenth, fiftieth and ninetieth percentile of its times, in nanoseconds.
    pub points: Vec<(f64, [f64; 3])>,
}

/// Draws how times grow with `what`. Both axes are logarithmic. Marks of Pagefork are round, others square.
pub fn curves(title: &str, what: &str, curves: &[Curve]) -> String {
    const HEIGHT: f64 = 300.0;
    const LEFT: f64 = 70.0;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let across = Axis::of(points().map(|(value, _)| *value));
    let up = Axis::of(points().flat_map(|(_, times)| times.iter().copied()));
    let bottom = TOP + HEIGHT;
    let x = |value: f64| across.place(value) - LABELS + LEFT;
    let y = |time: f64| bottom - (up.place(time) - LABELS) / FIELD * HEIGHT;
    let (width, height) = (LEFT + FIELD + 30.0, bottom + 48.0 + LEGEND_LINE * curves.len() as f64);
    let mut text = head(title, width, height);
    for (value, _) in across.ticks() {
        let x = x(value);
        let (below, label) = (bottom + 16.0, value.round());
        let line = format_args!(
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{label}</text>"
        );
        put(&mut text, line);
    }
    for (time, label) in up.ticks() {
        let (y, beside) = (y(time), LEFT - 6.0);
        let line = format_args!(
            "<path d=\"M{LEFT} {y:.1}H{:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{beside:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT + FIELD,
            y + 4.0
        );
        put(&mut text, line);
    }
    let (middle, below) = (LEFT + FIELD / 2.0, bottom + 34.0);
    let what = escape(what);
    let line = format_args!(
        "<text x=\"{middle:.1}\" y=\"{below:.1}\" text-anchor=\"middle\">{what}</text>"
    );
    put(&mut text, line);
    let [mut ours, mut theirs] = [OURS.iter(), THEIRS.iter()];
    for (number, curve) in curves.iter().enumerate() {
        let next = if curve.is_ours { ours.next() } else { theirs.next() };
        let color = next.unwrap_or(&"#000");
        let mut path = String::new();
        for (value, [low, middle, high]) in &curve.points {
            let (x, at) = (x(*value), y(*middle));
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{x:.1} {at:.1}");
            let (low, high) = (y(*low), y(*high));
            let bar = format_args!(
                "<path d=\"M{x:.1} {low:.1}V{high:.1}\" stroke=\"{color}\" stroke-width=\"2\" \
                 stroke-opacity=\".5\"/>"
            );
            put(&mut text, bar);
            shape(&mut text, curve.is_ours, color, x, at);
        }
        let line = format_args!("<path d=\"{path}\" stroke=\"{color}\" fill=\"none\"/>");
        put(&mut text, line);
        let legend = bottom + 54.0 + LEGEND_LINE * number as f64;
        shape(&mut text, curve.is_ours, color, 20.0, legend);
        let name = escape(&curve.name);
        put(&mut text, format_args!("<text x=\"29.0\" y=\"{:.1}\">{name}</text>", legend + 4.0));
    }
    text + "</svg>\n"
}

/// What a drawing begins with.
fn head(title: &str, width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"18\" font-weight=\"bold\">{}</text>\n",
        escape(title)
    )
}

fn mark(text: &mut String, grid: &Grid, column: usize, samples: &[f64], axis: &Axis, y: f64) {
    let percent = |percent| percentile(samples, percent).map(|value| axis.place(value));
    let (Some(low), Some(middle), Some(high)) = (percent(10), percent(50), percent(90)) else {
        return;
    };
    let color = color(grid, column);
    put(
        text,
        format_args!(
            "<path d=\"M{low:.1} {y:.1}H{high:.1}\" stroke=\"{color}\" stroke-width=\"2\" \
         stroke-opacity=\".5\"/>"
        ),
    );
    symbol(text, grid, column, middle, y);
}

fn symbol(text: &mut String, grid: &Grid, column: usize, x: f64, y: f64) {
    shape(text, column < grid.ours, color(grid, column), x, y);
}

fn shape(text: &mut String, is_ours: bool, color: &str, x: f64, y: f64) {
    if is_ours {
        put(text, format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{color}\"/>"));
    } else {
        let (x, y) = (x - 4.0, y - 4.0);
        put(
            text,
            format_args!(
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"8\" height=\"8\" fill=\"{color}\"/>"
            ),
        );
    }
}

fn color(grid: &Grid, column: usize) -> &'static str {
    match column.checked_sub(grid.ours) {
        None => OURS[column % OURS.len()],
        Some(theirs) => THEIRS[theirs % THEIRS.len()],
    }
}

/// A logarithmic axis of nanoseconds.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    /// Whole decades around all values.
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| *value > 0.0);
        let (low, high) = values.fold((f64::MAX, 1.0), |(low, high): (f64, f64), value| {
            (low.min(value), high.max(value))
        });
        let low = low.min(high).log10().floor();
        Self { low, high: high.log10().ceil().max(low + 1.0) }
    }

    /// Where a value is, from the left.
    fn place(&self, value: f64) -> f64 {
        let share = (value.max(1e-3).log10() - self.low) / (self.high - self.low);
        LABELS + FIELD * share.clamp(0.0, 1.0)
    }

    /// The decades and their names.
    fn ticks(&self) -> impl Iterator<Item = (f64, String)> {
        (self.low as i32..=self.high as i32).map(|power| {
            let (shift, unit) = match power {
                ..3 => (0, "ns"),
                3..6 => (3, "us"),
                6..9 => (6, "ms"),
                _ => (9, "s"),
            };
            (10f64.powi(power), format!("{} {unit}", 10f64.powi(power - shift)))
        })
    }
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes everything");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_its_mark_and_its_name() {
        let mut grid = Grid::new("what", 1, ["ours", "theirs & others"]);
        let samples = vec![("ours", vec![150.0]), ("theirs & others", vec![2e6])];
        grid.add("a < b", Unit::Nanoseconds, samples);
        let svg = dots("title", &grid);
        // One mark and one in the legend.
        assert_eq!((svg.matches("<circle").count(), svg.matches("width=\"8\"").count()), (2, 2));
        assert!(svg.contains("a &lt; b") && svg.contains("theirs &amp; others"), "{svg}");
        assert!(svg.contains(">100 ns<") && svg.contains(">10 ms<"), "{svg}");
    }

    #[test]
    fn each_curve_has_its_points_and_its_name() {
        let points = vec![(1000.0, [1e6, 2e6, 3e6]), (100_000.0, [1e8, 2e8, 3e8])];
        let curve =
            |name: &str, is_ours| Curve { name: name.into(), is_ours, points: points.clone() };
        let svg = curves("title", "pages", &[curve("ours", true), curve("a < b", false)]);
        assert_eq!((svg.matches("<circle").count(), svg.matches("width=\"8\"").count()), (3, 3));
        assert!(
            svg.contains("a &lt; b") && svg.contains(">10000<") && svg.contains(">10 ms<"),
            "{svg}"
        );
        assert!(curves("title", "pages", &[]).ends_with("</svg>\n"));
    }

    #[test]
    fn an_empty_table_can_be_drawn() {
        assert!(dots("title", &Grid::new("what", 1, ["ours"])).ends_with("</svg>\n"));
    }
}
