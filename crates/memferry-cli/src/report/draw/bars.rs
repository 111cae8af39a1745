//! Vertical bars, in groups or on each other.

use super::super::figure::{Figure, Kind, Point};
use super::axes::{left_of, mark, values, vertical};
use super::marks::{bar, dot, series_class};
use super::scale::{Mapping, short};
use super::{WIDTH, distinct, is_rule, series};
use crate::canvas::{Anchor, Block, LINE, Path, SMALL, fitted, wrapped};
use memferry_bench::harness::Provenance;

const PLOT_HEIGHT: i64 = 190;
const TOP: i64 = 24;
/// Gap between groups.
const GAP: f64 = 14.0;
/// Largest width of a bar.
const BAR_MAX: f64 = 44.0;

pub(super) fn draw(figure: &Figure) -> Block {
    // Room for the name above a rule.
    let above = |point: &Point| point.y.filter(|_| is_rule(point)).map(|value| value * 1.1);
    let values = |point: &Point| values(point).chain(above(point));
    let stacks = figure.points.iter().filter(|_| figure.kind == Kind::Stacks).map(|it| height(figure, it));
    let (top, bottom) = (TOP as f64, (TOP + PLOT_HEIGHT) as f64);
    let y =
        Mapping::new(&figure.y, figure.points.iter().flat_map(values).chain(stacks), false, (bottom, top));
    let left = left_of(&y);
    let mut plot = Block::new("", WIDTH, TOP + PLOT_HEIGHT);
    vertical(figure, &mut plot, &y, (left, WIDTH));
    let groups = distinct(figure.points.iter().filter(|it| !is_rule(it)).map(|it| it.x.as_str()));
    let group_width = (WIDTH - left) as f64 / groups.len().max(1) as f64;
    let mut labels_height = 0;
    for (index, group) in groups.into_iter().enumerate() {
        let start = left as f64 + index as f64 * group_width;
        let draw = if figure.kind == Kind::Stacks { draw_stacks } else { draw_group };
        draw(figure, group, &mut plot, &y, (start + GAP / 2.0, group_width - GAP));
        for (line, text) in (1..).zip(wrapped(group, group_width as i64 - 4, SMALL, false)) {
            let middle = (start + group_width / 2.0) as i64;
            plot.text_at(Anchor::Middle, middle, TOP + PLOT_HEIGHT + 16 * line, SMALL, "muted", text);
            labels_height = labels_height.max(16 * line + 6);
        }
    }
    plot.height += labels_height;
    plot.paths.push(Path::line("axis", &[(left as f64, bottom), (WIDTH as f64, bottom)]));
    for rule in figure.points.iter().filter(|point| is_rule(point)) {
        let Some(at) = rule.y.map(|value| y.at(value)) else { continue };
        plot.paths.push(Path::line("rule", &[(left as f64, at), (WIDTH as f64, at)]));
        let label = fitted(&rule.series, WIDTH - left, SMALL, false);
        plot.text_at(Anchor::End, WIDTH, at as i64 - 4, SMALL, "ink halo", label);
    }
    if !figure.x.label.is_empty() {
        plot.height += LINE;
        let label = fitted(&figure.x.label, WIDTH - left, SMALL, false);
        plot.text_at(Anchor::End, WIDTH, plot.height - 5, SMALL, "muted", label);
    }
    plot
}

/// Draws the bars of all series for one name, and published dots on them.
fn draw_group(figure: &Figure, group: &str, plot: &mut Block, y: &Mapping, (x, width): (f64, f64)) {
    let all = series(figure);
    let slot = width / all.len().max(1) as f64;
    for (index, name) in all.iter().enumerate() {
        let points = figure.points.iter().filter(|it| it.x == group && it.series == *name && !is_rule(it));
        let (dots, bars): (Vec<&Point>, Vec<&Point>) = points.partition(|it| it.how == Provenance::Published);
        let bar_width = (slot / bars.len().max(1) as f64).min(BAR_MAX);
        // Center the bars in the slot.
        let mut at = x + index as f64 * slot + (slot - bar_width * bars.len() as f64) / 2.0;
        let middle = x + (index as f64 + 0.5) * slot;
        for it in bars {
            let Some(value) = it.y else { continue };
            let (upper, lower) = (y.at(value), y.at(y.base()));
            let mut paths = bar(series_class(index), it.how, at + 0.5, upper, bar_width - 1.0, lower - upper);
            paths.extend(it.range.map(|(low, high)| {
                let center = at + bar_width / 2.0;
                Path::line("whisker", &[(center, y.at(low)), (center, y.at(high))])
            }));
            plot.children.push(mark(figure, it, paths));
            if bar_width >= 30.0 {
                let center = (at + bar_width / 2.0) as i64;
                // A whisker would cross a number above the bar.
                let foot = if it.range.is_some() { lower - 6.0 } else { upper - 4.0 };
                plot.text_at(Anchor::Middle, center, foot as i64, SMALL, "ink figure", short(value));
            }
            at += bar_width;
        }
        for it in dots {
            let Some(value) = it.y else { continue };
            plot.children.push(mark(figure, it, vec![dot(middle, y.at(value))]));
        }
    }
}

/// The height of the stack that a bar is in.
fn height(figure: &Figure, of: &Point) -> f64 {
    let is_in = |it: &&Point| (&it.x, it.how) == (&of.x, of.how) && !is_rule(it);
    figure.points.iter().filter(is_in).filter_map(|it| it.y).sum()
}

/// Draws the bars of all series for one name on each other, beside each other by their provenance.
fn draw_stacks(figure: &Figure, group: &str, plot: &mut Block, y: &Mapping, (x, width): (f64, f64)) {
    let own = || figure.points.iter().filter(|it| it.x == group && !is_rule(it));
    let hows = distinct(own().map(|it| it.how));
    let bar_width = (width / hows.len().max(1) as f64).min(BAR_MAX);
    let start = x + (width - bar_width * hows.len() as f64) / 2.0;
    for (place, how) in hows.into_iter().enumerate() {
        let at = start + place as f64 * bar_width;
        let mut below = 0.0;
        for (index, name) in series(figure).into_iter().enumerate() {
            for it in own().filter(|it| it.how == how && it.series == name) {
                let Some(value) = it.y else { continue };
                let ends = [below, below + value].map(|end: f64| y.at(end.max(y.base())));
                let paths =
                    bar(series_class(index), how, at + 0.5, ends[1], bar_width - 1.0, ends[0] - ends[1]);
                plot.children.push(mark(figure, it, paths));
                below += value;
            }
        }
    }
}
