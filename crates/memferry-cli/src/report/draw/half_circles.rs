//! Parts of a time: a half circle for each panel, as in the theses. The longest time fills its half circle.

use super::super::figure::{Figure, Point};
use super::axes::mark;
use super::marks::{series_class, swatch};
use super::scale::fixed;
use super::{WIDTH, distinct};
use crate::canvas::{Anchor, BODY, Block, Path, SMALL, fitted, flow, text_width, wrapped};
use memferry_bench::harness::Provenance;

/// The series that is a number in the middle, not a part.
const TOTAL: &str = "total";
const PANEL_WIDTH: i64 = 192;
const OUTER: f64 = 84.0;
const INNER: f64 = 50.0;
const LABEL_LINE: i64 = 16;

pub(super) fn draw(figure: &Figure) -> Block {
    let panels = distinct(figure.points.iter().map(|point| point.panel.as_str()));
    let parts = distinct(figure.points.iter().map(|it| it.series.as_str()).filter(|name| *name != TOTAL));
    let of = |panel: &str| -> Vec<&Point> { figure.points.iter().filter(|it| it.panel == panel).collect() };
    let sum = |panel: &&str| -> f64 {
        of(panel).iter().filter(|it| it.series != TOTAL).filter_map(|it| it.y).sum()
    };
    let longest = panels.iter().map(sum).fold(f64::MIN_POSITIVE, f64::max);
    // All panels have the same height above the circle.
    let lines = panels.iter().map(|panel| wrapped(panel, PANEL_WIDTH, SMALL, true).len()).max().unwrap_or(0);
    let top = lines as i64 * LABEL_LINE;
    let blocks = panels.iter().map(|panel| draw_panel(figure, panel, top, &of(panel), &parts, longest));
    let mut all = flow(blocks.collect(), WIDTH, WIDTH - 2 * PANEL_WIDTH, 14);
    all.width = WIDTH;
    all
}

fn draw_panel(
    figure: &Figure,
    name: &str,
    top: i64,
    points: &[&Point],
    parts: &[&str],
    longest: f64,
) -> Block {
    let mut panel = Block::new("", PANEL_WIDTH, top);
    let names = wrapped(name, PANEL_WIDTH, SMALL, true);
    for (line, text) in names.iter().rev().enumerate() {
        panel.text(0, top - 4 - line as i64 * LABEL_LINE, SMALL, "ink strong", text.clone());
    }
    let center = (PANEL_WIDTH as f64 / 2.0, panel.height as f64 + OUTER + 4.0);
    panel.paths.push(Path::ring("grid", center, (INNER, OUTER), (0.0, 0.5)));
    let mut from = 0.0;
    for point in points.iter().filter(|it| it.series != TOTAL && it.how != Provenance::Published) {
        let to = from + point.y.unwrap_or(0.0) / longest / 2.0;
        let index = parts.iter().position(|part| *part == point.series).unwrap_or(0);
        let class = format!("{} {}", series_class(index), point.how);
        // A little shorter, so that neighbouring strokes do not touch.
        let share = (from, (to - 0.003).max(from));
        let ring = Path::ring(class, center, (INNER + 1.0, OUTER - 1.0), share);
        panel.children.push(mark(figure, point, vec![ring]));
        from = to;
    }
    let base = center.1 as i64;
    let total = points.iter().find(|it| it.series == TOTAL && it.how != Provenance::Published);
    if let Some(total) = total.and_then(|it| it.y) {
        panel.text_at(Anchor::Middle, PANEL_WIDTH / 2, base - 14, BODY, "ink strong figure", fixed(total));
        let unit = fitted(&figure.y.label, (2.0 * INNER) as i64 - 8, SMALL, false);
        panel.text_at(Anchor::Middle, PANEL_WIDTH / 2, base - 1, SMALL, "muted", unit);
    }
    panel.height = base + 6;
    for point in points.iter().filter(|it| it.series != TOTAL || it.how == Provenance::Published) {
        let index = parts.iter().position(|part| *part == point.series);
        let what = match index {
            Some(_) => point.series.clone(),
            None => format!("{TOTAL}, {}", point.how),
        };
        panel.height += LABEL_LINE;
        let y = panel.height - 4;
        let class = index.map_or("series5", series_class);
        panel.paths.extend(swatch(class, point.how, 2.0, y as f64 - 9.0));
        let value = point.y.map_or(String::new(), fixed);
        let room = PANEL_WIDTH - 30 - text_width(&value, SMALL, false);
        panel.text(18, y, SMALL, "ink", fitted(&what, room, SMALL, false));
        panel.text_at(Anchor::End, PANEL_WIDTH - 4, y, SMALL, "ink figure", value);
    }
    panel
}
