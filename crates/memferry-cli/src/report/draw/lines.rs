//! A line for each series.

use super::super::figure::{Figure, Point, Scale};
use super::axes::{labels_below, left_of, mark, values, vertical};
use super::marks::{line_class, point, series_class};
use super::scale::Mapping;
use super::{WIDTH, distinct, is_rule, series};
use crate::canvas::{Anchor, Block, Path, SMALL, fitted, text_width};

const PLOT_HEIGHT: i64 = 200;
const TICKS_MAX: usize = 8;
/// Distance of the names of vertical rules, which are below each other.
const LABEL_LINE: i64 = 14;
/// Height for the label above the vertical axis and half the label of its last tick.
const TOP: i64 = 24;
/// Height for the ticks and the label of the horizontal axis.
const BOTTOM: i64 = 38;
/// Factor by which the axis is longer than the value of a rule.
const HEADROOM: f64 = 1.12;
/// Width for half the label of the last tick.
const RIGHT: i64 = 18;

/// The plot of a panel. All panels of a figure have the same horizontal axis.
pub(super) fn draw(figure: &Figure, whole: &Figure) -> Block {
    // Room above a rule for its name and for those of vertical rules.
    let above = |point: &Point| point.y.filter(|_| is_rule(point)).map(|value| value * HEADROOM);
    let values = |point: &Point| values(point).chain(above(point));
    // Room above all marks for the names of vertical rules.
    let upright = figure.points.iter().filter(|point| point.y.is_none()).count() as f64;
    let headroom = PLOT_HEIGHT as f64 / (PLOT_HEIGHT as f64 - LABEL_LINE as f64 * upright).max(1.0);
    let highest = figure.points.iter().flat_map(values).reduce(f64::max).filter(|_| upright > 0.0);
    let values = figure.points.iter().flat_map(values).chain(highest.map(|value| value * headroom));
    let (top, bottom) = (TOP as f64, (TOP + PLOT_HEIGHT) as f64);
    let y = Mapping::new(&figure.y, values, false, (bottom, top));
    let left = left_of(&y);
    let right = WIDTH - RIGHT;
    let x_of = |point: &Point| point.x.parse::<f64>().ok();
    let ends = ((left + 6) as f64, (right - 6) as f64);
    let x = Mapping::new(&figure.x, whole.points.iter().filter_map(x_of), true, ends);
    // A few counts become the ticks.
    let counts = distinct(whole.points.iter().filter_map(x_of));
    let ticks_below = match figure.x.scale {
        Scale::Log if counts.len() <= TICKS_MAX => x.ticks_at(&counts),
        _ => x.ticks(),
    };

    let mut plot = Block::new("", WIDTH, TOP + PLOT_HEIGHT + BOTTOM);
    vertical(figure, &mut plot, &y, (left, right));
    let tick = |(at, _): &(f64, String)| Path::line("axis", &[(*at, bottom), (*at, bottom + 4.0)]);
    plot.paths.extend(ticks_below.iter().map(tick));
    labels_below(&mut plot, ticks_below, TOP + PLOT_HEIGHT + 17);
    plot.paths.push(Path::line("axis", &[(left as f64, bottom), (right as f64, bottom)]));
    let label = fitted(&figure.x.label, WIDTH - left, SMALL, false);
    plot.text_at(Anchor::End, right, plot.height - 4, SMALL, "muted", label);
    rules(figure, &mut plot, &x, &y, (left, right));
    for (index, name) in series(figure).into_iter().enumerate() {
        let points = || figure.points.iter().filter(|point| point.series == name && !is_rule(point));
        for how in distinct(points().map(|point| point.how)) {
            let place = |point: &Point| Some((x.at(x_of(point)?), y.at(point.y?)));
            let mut places: Vec<(f64, f64)> = points().filter(|it| it.how == how).filter_map(place).collect();
            places.sort_by(|one, other| one.0.total_cmp(&other.0));
            if let Some(class) = line_class(series_class(index), how) {
                plot.paths.push(Path::line(class, &places));
            }
        }
        for it in points() {
            let (Some(at_x), Some(at_y)) = (x_of(it).map(|value| x.at(value)), it.y.map(|value| y.at(value)))
            else {
                continue;
            };
            let whisker = |(low, high)| Path::line("whisker", &[(at_x, y.at(low)), (at_x, y.at(high))]);
            let mut paths: Vec<Path> = it.range.map(whisker).into_iter().collect();
            paths.push(point(series_class(index), index, it.how, at_x, at_y));
            plot.children.push(mark(figure, it, paths));
        }
    }
    plot
}

/// Draws rules through the whole plot with their names: of a horizontal rule above its right end, of a vertical rule at
/// the top.
fn rules(figure: &Figure, plot: &mut Block, x: &Mapping, y: &Mapping, (left, right): (i64, i64)) {
    let (top, bottom) = (TOP as f64, (TOP + PLOT_HEIGHT) as f64);
    let mut upright = 0;
    for point in figure.points.iter().filter(|point| is_rule(point)) {
        let label = fitted(&point.series, right - left, SMALL, false);
        if let Some(at) = point.y.map(|value| y.at(value)) {
            plot.paths.push(Path::line("rule", &[(left as f64, at), (right as f64, at)]));
            plot.text_at(Anchor::End, right, at as i64 - 7, SMALL, "ink halo", label);
        } else if let Some(at) = point.x.parse().ok().map(|value| x.at(value)) {
            plot.paths.push(Path::line("rule", &[(at, top), (at, bottom)]));
            // Names are below each other, on the side with room.
            let line = TOP + 12 + LABEL_LINE * upright;
            upright += 1;
            match at as i64 + 5 + text_width(&label, SMALL, false) <= right {
                true => plot.text(at as i64 + 5, line, SMALL, "ink halo", label),
                false => plot.text_at(Anchor::End, at as i64 - 5, line, SMALL, "ink halo", label),
            }
        }
    }
}
