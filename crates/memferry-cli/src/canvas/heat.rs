//! Heat maps.

use super::{Anchor, Block, TINY, text_width};

/// A matrix of values. A stronger colour is better.
pub(crate) struct HeatMap<'a> {
    /// Description of rows and columns; may be empty.
    pub(crate) axes: &'a str,
    pub(crate) rows: Vec<String>,
    pub(crate) columns: Vec<String>,
    /// Whether a gap precedes the row.
    pub(crate) row_gaps: Vec<bool>,
    pub(crate) column_gaps: Vec<bool>,
    /// `values[row][column]`.
    pub(crate) values: Vec<Vec<Option<f64>>>,
    pub(crate) text: &'a dyn Fn(f64) -> String,
    pub(crate) more_is_better: bool,
}

const CELL_HEIGHT: i64 = 22;
const GAP: i64 = 5;

impl HeatMap<'_> {
    pub(crate) fn draw(&self) -> Block {
        let known: Vec<f64> = self.values.iter().flatten().flatten().copied().collect();
        let text = |value: Option<f64>| value.map_or("?".to_owned(), self.text);
        let width_of = |label: &String| text_width(label, TINY, false);
        let cell_width = (self.values.iter().flatten().map(|value| width_of(&text(*value))))
            .chain(self.columns.iter().map(width_of))
            .fold(18, i64::max)
            + 8;
        let left = self.rows.iter().map(width_of).max().unwrap_or(0) + 8;
        let (columns, rows) = (places(&self.column_gaps, cell_width), places(&self.row_gaps, CELL_HEIGHT));
        let width = left + columns.last().map_or(0, |last| last + cell_width);
        let mut content = Block::new("", width.max(text_width(self.axes, TINY, false)), 0);
        if !self.axes.is_empty() {
            content.height = 18;
            content.text(0, 10, TINY, "muted", self.axes);
        }
        let mut heads = Block::new("", width, 18);
        for (label, x) in self.columns.iter().zip(&columns) {
            let middle = left + x + cell_width / 2;
            heads.text_at(Anchor::Middle, middle, 13, TINY, "muted figure", label.clone());
        }
        content.append(heads, 0, 0);
        let mut grid = Block::new("", width, rows.last().map_or(0, |last| last + CELL_HEIGHT));
        for ((label, row), y) in self.rows.iter().zip(&self.values).zip(&rows) {
            grid.text_at(Anchor::End, left - 8, y + 15, TINY, "muted figure", label.clone());
            for (value, x) in row.iter().zip(&columns) {
                let heat = value.map(|value| heat(value, &known, self.more_is_better));
                let class = heat.map_or("heat-none".to_owned(), |heat| format!("heat{heat}"));
                let ink = match heat {
                    None => "muted figure",
                    Some(0..=2) => "heat-ink-weak figure",
                    Some(_) => "heat-ink-strong figure",
                };
                // A pixel of paper between cells.
                let mut cell = Block::new(class, cell_width - 1, CELL_HEIGHT - 1).radius(2);
                cell.text_at(Anchor::Middle, (cell_width - 1) / 2, 15, TINY, ink, text(*value));
                grid.put(cell, left + x, *y);
            }
        }
        content.append(grid, 0, 0);
        content
    }
}

/// The start of each row or column.
fn places(gaps: &[bool], step: i64) -> Vec<i64> {
    let mut at = 0;
    let mut place = |&gap: &bool| {
        at += if gap { GAP + step } else { step };
        at - step
    };
    gaps.iter().map(&mut place).collect()
}

/// The class from 0, the worst, to 4, on a logarithmic scale.
fn heat(value: f64, known: &[f64], more_is_better: bool) -> u8 {
    let log = |value: f64| value.max(f64::MIN_POSITIVE).ln();
    let (min, max) =
        known.iter().fold((f64::MAX, f64::MIN), |(min, max), &v| (min.min(log(v)), max.max(log(v))));
    // Nearly equal values get the same colour.
    if max - min < 0.01 {
        return 2;
    }
    let share = (log(value) - min) / (max - min);
    let share = if more_is_better { share } else { 1.0 - share };
    ((share * 5.0) as u8).min(4)
}
