//! Draws figures as SVG.
//!
//! All figures have the same width, which fits a phone without scrolling. Marks have tooltips with their numbers.
//!
//! The drawing is our own: no plotting crate (plotters 0.3, poloto 19, kuva 0.6, charts-rs 2.3 were examined) marks the
//! provenance by form, follows the reader's light or dark scheme and shows tooltips in SVG without JavaScript. The
//! pictures of `topology` share the canvas.

mod axes;
mod bars;
mod half_circles;
mod heat;
mod lines;
mod marks;
mod rows;
pub(super) mod scale;

use self::marks::{series_class, swatch};
use super::figure::{Figure, Kind, Point};
use crate::canvas::{self, BODY, Block, LINE, SMALL, fitted, flow, paragraphs, text_width};
use memferry_bench::harness::Provenance;

/// Width within the margins.
const WIDTH: i64 = 400;
const MARGIN: i64 = 12;

/// The figure as an SVG file.
pub(super) fn document(figure: &Figure) -> String {
    canvas::document(&picture(figure), &figure.title, &figure.about)
}

/// The figure as parts of the page: one, or one for each panel, which the page arranges.
pub(super) fn parts(figure: &Figure) -> Vec<String> {
    let panels = panels(figure);
    if panels.len() == 1 {
        return vec![canvas::part(&picture(figure), &figure.name, &figure.title, &figure.about)];
    }
    let part = |(number, panel): (usize, &Figure)| {
        let mut body = Block::new("", WIDTH, 0);
        body.append(plot(panel, figure), 0, 0);
        body.append(key(panel), 0, 8);
        let name = format!("{}-{number}", figure.name);
        canvas::part(&on_paper(body), &name, &format!("{}: {}", figure.title, panel_name(panel)), "")
    };
    (1..).zip(&panels).map(part).collect()
}

fn picture(figure: &Figure) -> Block {
    let content = match figure.kind {
        Kind::Lines | Kind::Bars | Kind::Stacks | Kind::Rows => {
            let mut all = Block::new("", WIDTH, 0);
            for panel in &panels(figure) {
                let gap = if all.height == 0 { 0 } else { 12 };
                all.append(plot(panel, figure), 0, gap);
            }
            all
        }
        Kind::HalfCircles => half_circles::draw(figure),
        Kind::HeatLess | Kind::HeatMore => heat::draw(figure),
    };
    let width = content.width.max(WIDTH);
    let mut body = Block::new("", width, 0);
    body.append(paragraphs(std::slice::from_ref(&figure.title), WIDTH, BODY, "ink strong"), 0, 0);
    body.append(content, 0, 8);
    body.append(key(figure), 0, 8);
    on_paper(body)
}

fn on_paper(body: Block) -> Block {
    let mut paper = Block::new("paper", body.width + 2 * MARGIN, body.height + 2 * MARGIN);
    paper.put(body, MARGIN, MARGIN);
    paper
}

/// The panels of a figure of plots, each as a figure; other figures draw their panels themselves.
fn panels(figure: &Figure) -> Vec<Figure> {
    if !figure.kind.is_plot() {
        return vec![figure.clone()];
    }
    let panel = |name: &String| {
        let points = figure.points.iter().filter(|point| point.panel == *name).cloned().collect();
        Figure { points, ..figure.clone() }
    };
    distinct(figure.points.iter().map(|point| &point.panel)).into_iter().map(panel).collect()
}

fn panel_name(panel: &Figure) -> &str {
    panel.points.first().map_or("", |point| &point.panel)
}

/// A panel with its name and its legend.
fn plot(panel: &Figure, whole: &Figure) -> Block {
    let mut all = Block::new("", WIDTH, 0);
    let name = panel_name(panel);
    if !name.is_empty() {
        all.append(paragraphs(&[name.to_owned()], WIDTH, SMALL, "ink strong"), 0, 0);
    }
    if series(panel).len() > 1 {
        all.append(legend(panel), 0, 4);
    }
    let plot = match panel.kind {
        Kind::Lines => lines::draw(panel, whole),
        Kind::Bars | Kind::Stacks => bars::draw(panel),
        _ => rows::draw(panel),
    };
    all.append(plot, 0, 8);
    all
}

/// Whether a point is a rule, a line through the whole plot.
fn is_rule(point: &Point) -> bool {
    point.x.is_empty() || point.y.is_none()
}

/// The series that have marks, in order.
fn series(figure: &Figure) -> Vec<&str> {
    distinct(figure.points.iter().filter(|point| !is_rule(point)).map(|point| point.series.as_str()))
}

/// The distinct values in the order of their first occurrence.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut seen, value| {
        if !seen.contains(&value) {
            seen.push(value);
        }
        seen
    })
}

/// The legend of the series.
fn legend(figure: &Figure) -> Block {
    let is_lines = figure.kind == Kind::Lines;
    let items = series(figure).into_iter().enumerate().map(|(index, name)| {
        let hows = figure.points.iter().filter(|point| point.series == name && !is_rule(point));
        // A series of published numbers only has no colour.
        let how = hows.map(|point| point.how).min().unwrap_or(Provenance::Published);
        let name = fitted(name, WIDTH - 24, SMALL, false);
        let mut item = Block::new("", 22 + text_width(&name, SMALL, false), LINE);
        let mark = match is_lines {
            true => marks::on_line(series_class(index), index, how, 8.0, 9.0),
            false => swatch(series_class(index), how, 2.0, 4.0),
        };
        item.paths.extend(mark);
        item.text(18, 13, SMALL, "ink", name);
        item
    });
    flow(items.collect(), WIDTH, 14, 0)
}

/// The legend of all forms, as a part of the page.
pub(super) fn forms() -> String {
    let hows = [Provenance::Measured, Provenance::Emulated, Provenance::Modelled, Provenance::Published];
    let items = hows.map(|how| {
        let words = how.to_string();
        let mut item = Block::new("", 18 + text_width(&words, SMALL, false), LINE);
        item.paths = swatch("series0", how, 2.0, 4.0);
        item.text(18, 13, SMALL, "ink", words);
        item
    });
    canvas::part(
        &flow(items.into(), WIDTH, 14, 0),
        "forms",
        "Forms",
        "What the form of a mark tells of its number.",
    )
}

/// The legend of the forms in a figure.
fn key(figure: &Figure) -> Block {
    let has_rules = figure.kind.is_plot() && figure.points.iter().any(is_rule);
    let mut hows = distinct(figure.points.iter().map(|point| point.how));
    hows.sort();
    let items = hows.into_iter().map(|how| {
        let words = match (how, figure.kind) {
            (Provenance::Measured, _) => "measured on this machine",
            (Provenance::Emulated, _) => "emulated: says nothing about hardware",
            (Provenance::Modelled, _) => "modelled",
            (Provenance::Published, _) if has_rules => "published (dots, dotted lines)",
            (Provenance::Published, _) => "published",
        };
        let mut item = Block::new("", 18 + text_width(words, SMALL, false), 16);
        // Cells of heat maps have no form.
        let is_plain = matches!(figure.kind, Kind::HeatLess | Kind::HeatMore);
        if !is_plain {
            item.paths.extend(swatch("series5", how, 2.0, 3.0));
        }
        item.text(if is_plain { 0 } else { 16 }, 12, SMALL, "muted", words);
        item
    });
    flow(items.collect(), WIDTH, 12, 0)
}

/// The tooltip of a mark.
fn tooltip(figure: &Figure, point: &Point) -> String {
    let number = |value| scale::short(value);
    let mut text = String::new();
    for part in [&point.panel, &point.series] {
        if !part.is_empty() {
            text += &format!("{part}, ");
        }
    }
    let x = match (figure.kind, point.x.parse()) {
        (Kind::Lines, Ok(x)) => scale::label(figure.x.scale, x),
        _ => point.x.clone(),
    };
    text += &format!("{x}: {}", point.y.map_or("?".to_owned(), number));
    if let Some((low, high)) = point.range {
        text += &format!(" ({} to {})", number(low), number(high));
    }
    let unit = if figure.y.label.is_empty() { String::new() } else { format!("; {}", figure.y.label) };
    format!("{text}, {}{unit}", point.how)
}

#[cfg(test)]
mod tests;
