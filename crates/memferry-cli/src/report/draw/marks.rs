//! Marks: the form shows the provenance of a number, the colour its series.

use crate::canvas::Path;
use memferry_bench::harness::Provenance;

/// Half the width of a mark on a line.
const HALF: f64 = 3.6;
/// Side of a legend's square.
const SIDE: f64 = 10.0;
/// Length of a legend's line on each side of its mark.
const REACH: f64 = 8.0;

pub(super) fn series_class(index: usize) -> &'static str {
    ["series0", "series1", "series2", "series3", "series4", "series5", "series6"][index % 7]
}

/// A bar.
pub(super) fn bar(class: &str, how: Provenance, x: f64, y: f64, width: f64, height: f64) -> Vec<Path> {
    let form = format!("{class} {how}");
    match how {
        // The stroke lies within the bar.
        Provenance::Modelled | Provenance::Emulated => {
            let (w, h) = ((width - 1.5).max(0.5), (height - 1.5).max(0.5));
            let mut paths = vec![Path::rectangle(form.clone(), x + 0.75, y + 0.75, w, h)];
            if how == Provenance::Emulated {
                paths.push(Path::hatching(form, x + 0.75, y + 0.75, w, h));
            }
            paths
        }
        Provenance::Measured => vec![Path::rectangle(form, x, y, width, height)],
        Provenance::Published => vec![dot(x + width / 2.0, y + height / 2.0)],
    }
}

pub(super) fn dot(x: f64, y: f64) -> Path {
    Path::circle("published", x, y, 4.0)
}

/// The square of a legend.
pub(super) fn swatch(class: &str, how: Provenance, x: f64, y: f64) -> Vec<Path> {
    bar(class, how, x, y, SIDE, SIDE)
}

/// The classes of a series' line; published numbers are not connected.
pub(super) fn line_class(class: &str, how: Provenance) -> Option<String> {
    match how {
        Provenance::Measured => Some(format!("{class} line")),
        Provenance::Emulated => Some(format!("{class} line dashed")),
        Provenance::Modelled => Some(format!("{class} line weak")),
        Provenance::Published => None,
    }
}

/// A mark on a line; each series has its own shape.
pub(super) fn point(class: &str, series: usize, how: Provenance, x: f64, y: f64) -> Path {
    if how == Provenance::Published {
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

/// The line and mark of a legend.
pub(super) fn on_line(class: &str, series: usize, how: Provenance, x: f64, y: f64) -> Vec<Path> {
    let line = line_class(class, how).map(|class| Path::line(class, &[(x - REACH, y), (x + REACH, y)]));
    line.into_iter().chain([point(class, series, how, x, y)]).collect()
}
