//! Marks: their form tells how a number came about, their colour which series it is of.

use crate::canvas::Path;
use crate::how::How;

/// Half the width of a mark on a line.
const HALF: f64 = 3.6;
/// Side of a square in a legend.
const SIDE: f64 = 10.0;
/// How far a line reaches to both sides of its mark in a legend.
const REACH: f64 = 8.0;

pub(super) fn series_class(index: usize) -> &'static str {
    ["series0", "series1", "series2", "series3", "series4", "series5"][index % 6]
}

/// A bar.
pub(super) fn bar(class: &str, how: How, x: f64, y: f64, width: f64, height: f64) -> Vec<Path> {
    let form = format!("{class} {how}");
    match how {
        // The stroke lies within the bar.
        How::Modelled | How::Emulated => {
            let (w, h) = ((width - 1.5).max(0.5), (height - 1.5).max(0.5));
            let mut paths = vec![Path::rectangle(form.clone(), x + 0.75, y + 0.75, w, h)];
            if how == How::Emulated {
                paths.push(Path::hatching(form, x + 0.75, y + 0.75, w, h));
            }
            paths
        }
        How::Measured => vec![Path::rectangle(form, x, y, width, height)],
        How::Published => vec![dot(x + width / 2.0, y + height / 2.0)],
    }
}

pub(super) fn dot(x: f64, y: f64) -> Path {
    Path::circle("published", x, y, 4.0)
}

/// For a legend.
pub(super) fn swatch(class: &str, how: How, x: f64, y: f64) -> Vec<Path> {
    bar(class, how, x, y, SIDE, SIDE)
}

/// The class of a series' line; published numbers are not connected.
pub(super) fn line_class(class: &str, how: How) -> Option<String> {
    match how {
        How::Measured => Some(format!("{class} line")),
        How::Emulated => Some(format!("{class} line dashed")),
        How::Modelled => Some(format!("{class} line weak")),
        How::Published => None,
    }
}

/// A mark on a line; each series has a shape of its own.
pub(super) fn point(class: &str, series: usize, how: How, x: f64, y: f64) -> Path {
    if how == How::Published {
        return dot(x, y);
    }
    let class = format!("{class} {how}");
    let r = HALF;
    match series % 6 {
        0 => Path::circle(class, x, y, r),
        1 => Path::rectangle(class, x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r),
        2 => Path::area(class, &[(x, y - 1.2 * r), (x + 1.2 * r, y + r), (x - 1.2 * r, y + r)]),
        3 => Path::area(class, &[(x, y - 1.3 * r), (x + 1.3 * r, y), (x, y + 1.3 * r), (x - 1.3 * r, y)]),
        4 => Path::area(class, &[(x, y + 1.2 * r), (x + 1.2 * r, y - r), (x - 1.2 * r, y - r)]),
        _ => Path::rectangle(class, x - 0.5 * r, y - 1.3 * r, r, 2.6 * r),
    }
}

/// For a legend.
pub(super) fn on_line(class: &str, series: usize, how: How, x: f64, y: f64) -> Vec<Path> {
    let line = line_class(class, how).map(|class| Path::line(class, &[(x - REACH, y), (x + REACH, y)]));
    line.into_iter().chain([point(class, series, how, x, y)]).collect()
}
