//! Axes of plots, and helpers for the marks on them.

use super::super::figure::{Figure, Point};
use super::scale::Mapping;
use super::{WIDTH, tooltip};
use crate::canvas::{Anchor, Block, Path, SMALL, fitted, text_width};

/// The value of a point and the ends of its interval.
pub(super) fn values(point: &Point) -> impl Iterator<Item = f64> + use<> {
    let (low, high) = point.range.unzip();
    [point.y, low, high].into_iter().flatten()
}

/// Shapes with the tooltip of a point.
pub(super) fn mark(figure: &Figure, point: &Point, paths: Vec<Path>) -> Block {
    Block { paths, ..Block::new("", 0, 0).title(tooltip(figure, point)) }
}

/// The left end of a plot, right of the labels of its vertical axis.
pub(super) fn left_of(y: &Mapping) -> i64 {
    y.ticks().iter().map(|(_, label)| text_width(label, SMALL, false)).max().unwrap_or(0) + 8
}

/// A vertical axis with its grid and its label, which is above it.
pub(super) fn vertical(figure: &Figure, plot: &mut Block, y: &Mapping, (left, right): (i64, i64)) {
    if !figure.y.label.is_empty() {
        plot.text(0, 11, SMALL, "muted", fitted(&figure.y.label, WIDTH, SMALL, false));
    }
    for (at, label) in y.ticks() {
        plot.paths.push(Path::line("grid", &[(left as f64, at), (right as f64, at)]));
        plot.text_at(Anchor::End, left - 6, at as i64 + 4, SMALL, "muted figure", label);
    }
}

/// Labels of a horizontal axis at the base line `y`; a label that would touch its neighbour is left out.
pub(super) fn labels_below(plot: &mut Block, ticks: Vec<(f64, String)>, y: i64) {
    let mut free_from = 0;
    for (at, label) in ticks {
        let (at, half) = (at as i64, text_width(&label, SMALL, false) / 2);
        if at - half >= free_from && at + half <= WIDTH {
            free_from = at + half + 6;
            plot.text_at(Anchor::Middle, at, y, SMALL, "muted figure", label);
        }
    }
}
