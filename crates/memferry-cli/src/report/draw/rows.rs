//! Horizontal bars with their numbers, and with the error if there is a published or measured number to compare with.

use super::super::figure::{Figure, Point};
use super::axes::{labels_below, mark, values};
use super::marks::{bar, dot, series_class};
use super::scale::{Mapping, fixed, percent};
use super::{WIDTH, distinct, is_rule, series};
use crate::canvas::{Anchor, Block, Path, SMALL, fitted, text_width, wrapped};
use memferry_bench::harness::Provenance;

const LABEL_WIDTH_MAX: i64 = 170;
const BAR_HEIGHT: i64 = 13;
const LABEL_LINE: i64 = 14;
/// Gap between rows.
const GAP: i64 = 7;
/// Height for the ticks and the label of the axis.
const BOTTOM: i64 = 36;

pub(super) fn draw(figure: &Figure) -> Block {
    let names = distinct(figure.points.iter().filter(|it| !is_rule(it)).map(|it| it.x.as_str()));
    let width_of = |text: &str| text_width(text, SMALL, false);
    let left = names.iter().map(|name| width_of(name)).max().unwrap_or(0).min(LABEL_WIDTH_MAX) + 8;
    let slots: Vec<Slot> = names.iter().flat_map(|name| slots(figure, name)).collect();
    let numbers = slots.iter().map(|slot| width_of(&slot.text)).max().unwrap_or(0);
    let right = (WIDTH - numbers - 8).max(left + 80);
    let ends = (left as f64, right as f64);
    let x = Mapping::new(&figure.y, figure.points.iter().flat_map(values), false, ends);

    let mut rows = Block::new("", WIDTH, 0);
    let mut rest = slots.as_slice();
    for name in names {
        let (own, others) = rest.split_at(rest.iter().take_while(|slot| slot.name == name).count());
        rest = others;
        let label = wrapped(name, left - 6, SMALL, false);
        let bars_height = own.len() as i64 * (BAR_HEIGHT + 2);
        let height = bars_height.max(label.len() as i64 * LABEL_LINE);
        let mut row = Block::new("", WIDTH, height);
        let top = (height - label.len() as i64 * LABEL_LINE) / 2;
        for (line, text) in (0..).zip(label) {
            row.text(0, top + 11 + line * LABEL_LINE, SMALL, "ink", text);
        }
        let top = (height - bars_height) / 2;
        for (line, slot) in (0..).zip(own) {
            slot.draw(figure, &mut row, &x, top + line * (BAR_HEIGHT + 2));
        }
        rows.append(row, 0, GAP);
    }
    let bottom = rows.height as f64 + 4.0;
    let mut plot = Block::new("", WIDTH, rows.height + BOTTOM);
    let ticks = x.ticks();
    plot.paths.extend(ticks.iter().map(|(at, _)| Path::line("grid", &[(*at, 0.0), (*at, bottom)])));
    labels_below(&mut plot, ticks, rows.height + 18);
    let base = x.at(x.base());
    plot.paths.push(Path::line("axis", &[(base, 0.0), (base, bottom)]));
    for rule in figure.points.iter().filter(|point| is_rule(point)) {
        let Some(at) = rule.y.map(|value| x.at(value)) else { continue };
        plot.paths.push(Path::line("rule", &[(at, 0.0), (at, bottom)]));
    }
    let label = fitted(&figure.y.label, WIDTH, SMALL, false);
    plot.text_at(Anchor::End, WIDTH, rows.height + 33, SMALL, "muted", label);
    plot.put(rows, 0, 0);
    plot
}

/// The place of a bar, or of the dot of a number without a bar.
struct Slot<'a> {
    name: &'a str,
    series: usize,
    point: &'a Point,
    published: Option<&'a Point>,
    /// The number and the error.
    text: String,
}

fn slots<'a>(figure: &'a Figure, name: &'a str) -> Vec<Slot<'a>> {
    let mut slots = Vec::new();
    for (index, series) in series(figure).into_iter().enumerate() {
        let points = figure.points.iter().filter(|it| it.x == name && it.series == series && !is_rule(it));
        let (dots, bars): (Vec<&Point>, Vec<&Point>) = points.partition(|it| it.how == Provenance::Published);
        let published = dots.first().copied();
        let measured = bars.iter().find(|it| it.how == Provenance::Measured).copied();
        let slot = |point: &'a Point, published: Option<&'a Point>| {
            let is_modelled = point.how == Provenance::Modelled;
            let text = numbers(point, published.or(measured.filter(|_| is_modelled)));
            Slot { name, series: index, point, published, text }
        };
        match bars.is_empty() {
            true => slots.extend(published.map(|point| slot(point, None))),
            false => slots.extend(bars.into_iter().map(|point| slot(point, published))),
        }
    }
    slots
}

/// `156.7 (−1.9 %)`, with the error against the reference.
fn numbers(point: &Point, reference: Option<&Point>) -> String {
    let value = point.y.unwrap_or(0.0);
    let text = fixed(value);
    let Some(reference) = reference.filter(|it| it.y.is_some_and(|value| value != 0.0)) else { return text };
    let at = reference.y.unwrap_or(0.0);
    let (low, high) = reference.range.unwrap_or((at, at));
    let nearest = value.clamp(low, high);
    let error = 100.0 * (value - nearest) / nearest.abs();
    format!("{text} ({})", percent(error))
}

impl Slot<'_> {
    fn draw(&self, figure: &Figure, row: &mut Block, x: &Mapping, y: i64) {
        let Slot { series, point, published, text, .. } = self;
        let (top, middle) = (y as f64, y as f64 + BAR_HEIGHT as f64 / 2.0);
        for it in [Some(*point), *published].into_iter().flatten() {
            let Some(value) = it.y else { continue };
            let (at, base) = (x.at(value), x.at(x.base()));
            let class = series_class(*series);
            let mut paths = match it.how {
                Provenance::Published => vec![dot(at, middle)],
                // A bar is at least one pixel long.
                how => bar(class, how, at.min(base), top, (at - base).abs().max(1.0), BAR_HEIGHT as f64),
            };
            paths.extend(it.range.into_iter().flat_map(|(low, high)| {
                let (low, high) = (x.at(low), x.at(high));
                let end = |at| Path::line("whisker", &[(at, middle - 3.0), (at, middle + 3.0)]);
                [Path::line("whisker", &[(low, middle), (high, middle)]), end(low), end(high)]
            }));
            row.children.push(mark(figure, it, paths));
        }
        row.text_at(Anchor::End, WIDTH, y + 11, SMALL, "ink figure", text.clone());
    }
}
