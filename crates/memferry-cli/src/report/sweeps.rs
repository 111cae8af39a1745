//! Figures of the papers' benchmarks, whose rows are points in a space of options.
//!
//! The varied options determine the form of a figure: sizes and other numbers become lines over them, nodes and words
//! become bars. Further varied options become series, in several panels if there are too many of them.

use super::draw::distinct;
use super::figure::{Axis, Figure, Kind, Point, Scale};
use super::records::{Record, Row};
use memferry_bench::harness::Provenance;
use memferry_bench::papers::benchmark;

/// Largest number of series of a panel; more are hard to distinguish.
const SERIES_MAX: usize = 6;

/// A coordinate of a point.
struct Coordinate {
    name: &'static str,
    scale: Option<Scale>,
    of: fn(&Row) -> Option<String>,
}

/// All coordinates, in order of preference for the x axis.
const COORDINATES: &[Coordinate] = &[
    Coordinate { name: "size of a descriptor", scale: Some(Scale::Bytes), of: |row| row.text("size_bytes") },
    Coordinate { name: "target", scale: None, of: |row| row.text("target") },
    Coordinate { name: "threads", scale: Some(Scale::Log), of: |row| row.text("submitters") },
    Coordinate { name: "queues", scale: Some(Scale::Log), of: |row| row.text("queues") },
    Coordinate { name: "entries", scale: Some(Scale::Log), of: |row| row.text("entries") },
    Coordinate { name: "engines", scale: Some(Scale::Log), of: |row| row.text("engines") },
    Coordinate { name: "under way", scale: Some(Scale::Log), of: |row| row.text("depth") },
    Coordinate { name: "batch", scale: Some(Scale::Log), of: |row| row.text("batch") },
    Coordinate { name: "operation", scale: None, of: |row| row.text("operation") },
    Coordinate { name: "route", scale: None, of: |row| row.text("route") },
    Coordinate { name: "pages", scale: None, of: |row| row.text("pages") },
    Coordinate { name: "data", scale: None, of: |row| row.text("data") },
    Coordinate { name: "tenants", scale: None, of: tenants },
    Coordinate { name: "source", scale: None, of: |row| row.text("source") },
    Coordinate { name: "way", scale: None, of: |row| row.text("way") },
    Coordinate { name: "backend", scale: None, of: |row| row.backend.clone() },
];

/// The setting that divides a device between two tenants.
fn tenants(row: &Row) -> Option<String> {
    let priorities = row.text("priorities").map(|it| format!("priorities {it}"));
    priorities.or_else(|| row.text("read_buffers").map(|it| format!("read buffers {it}")))
}

/// The figures of a benchmark from the records of all its backends; empty if their rows are not points.
pub(super) fn figures(records: &[&Record]) -> Vec<Figure> {
    let rows = || records.iter().flat_map(|record| &record.rows);
    let whats = distinct(rows().filter_map(|row| row.figure.as_deref()));
    let bench = records.first().map_or("", |record| record.bench.as_str());
    let dates = distinct(records.iter().map(|record| record.date()));
    let figures = whats.into_iter().map(|what| {
        let (there, missing) =
            rows().filter(|row| row.figure.as_deref() == Some(what)).partition(|row| row.value.is_some());
        let source = Source { bench, what, dates: dates.join(", "), missing: reasons(missing) };
        source.figure(&there)
    });
    figures.collect()
}

/// The reasons of missing points, in short; the table of rows has the full text.
fn reasons(missing: Vec<&Row>) -> String {
    let notes = missing.iter().filter_map(|row| row.note.as_deref());
    distinct(notes.map(|note| note.split([':', '(']).next().unwrap_or(note).trim_end())).join("; ")
}

/// One quantity of a benchmark.
struct Source<'a> {
    bench: &'a str,
    what: &'a str,
    dates: String,
    missing: String,
}

impl Source<'_> {
    fn figure(&self, rows: &[&Row]) -> Figure {
        let is_varied = |coordinate: &&Coordinate| values(coordinate, rows).len() > 1;
        let mut varied: Vec<&Coordinate> = COORDINATES.iter().filter(is_varied).collect();
        // A single point becomes a bar.
        let x = if varied.is_empty() { &COORDINATES[COORDINATES.len() - 2] } else { varied.remove(0) };
        let Source { bench, what, dates, missing } = self;
        let (unit, factor) = match rows.first().map_or("", |row| row.unit.as_str()) {
            "bytes/s" => (" in GB/s", 1e-9),
            "" | "1" => ("", 1.0),
            unit => (&*format!(" in {unit}"), 1.0),
        };
        let name = format!("bench {bench} {what}").to_lowercase();
        let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let kind = if x.scale.is_some() { Kind::Lines } else { Kind::Bars };
        let name = words.collect::<Vec<_>>().join("-");
        let mut figure = Figure::new(&name, kind, format!("{bench}: {what}"));
        figure.x = Axis::new(x.name, x.scale.unwrap_or(Scale::Linear));
        figure.y = Axis::new(format!("{what}{unit}"), Scale::Linear);
        for Panel { title, varied, rows } in panels(varied, rows.to_vec(), "") {
            let points = rows.into_iter().flat_map(|row| points(row, x, &varied, factor));
            figure.points.extend(points.map(|point| point.in_panel(&title)));
        }
        figure.about = format!("`memferry bench {bench}`, {dates}");
        if let Some(benchmark) = benchmark(bench) {
            figure.about += &format!(": {}", benchmark.about);
        }
        figure.about += ".";
        if !missing.is_empty() {
            figure.about += &format!(" Not there: {missing}.");
        }
        figure
    }
}

/// A part of a figure, with its rows and the coordinates of its series.
struct Panel<'a> {
    title: String,
    varied: Vec<&'static Coordinate>,
    rows: Vec<&'a Row>,
}

/// One panel, or several with at most [`SERIES_MAX`] series each.
fn panels<'a>(varied: Vec<&'static Coordinate>, rows: Vec<&'a Row>, title: &str) -> Vec<Panel<'a>> {
    let names = distinct(rows.iter().map(|row| series(&varied, row)));
    if names.len() <= SERIES_MAX {
        return vec![Panel { title: title.to_owned(), varied, rows }];
    }
    let titled = |more: String| if title.is_empty() { more } else { format!("{title}, {more}") };
    if varied.len() == 1 {
        let part = |(index, part): (usize, &[String])| {
            let is_own = |row: &&Row| part.contains(&series(&varied, row));
            let rows = rows.iter().copied().filter(is_own).collect();
            Panel { title: titled(format!("part {}", index + 1)), varied: varied.clone(), rows }
        };
        return names.chunks(SERIES_MAX).enumerate().map(part).collect();
    }
    // The coordinate with the fewest values gives the fewest panels.
    let fewest = (0..varied.len()).min_by_key(|&at| values(varied[at], &rows).len()).unwrap_or(0);
    let mut others = varied;
    let by = others.remove(fewest);
    // Either all rows of a benchmark have a coordinate, or none.
    let divide = |value: Option<String>| {
        let own = rows.iter().copied().filter(|row| (by.of)(row) == value).collect();
        let title = value.map_or(title.to_owned(), |value| titled(value_label(by, &value)));
        panels(others.clone(), own, &title)
    };
    distinct(rows.iter().map(|row| (by.of)(row))).into_iter().flat_map(divide).collect()
}

/// The point of a row, and the published number beside it.
fn points(row: &Row, x: &Coordinate, varied: &[&Coordinate], factor: f64) -> Vec<Point> {
    let Some(place) = (x.of)(row) else { return Vec::new() };
    let series = series(varied, row);
    let Some(point) = taken(row, &series, &place, factor) else { return Vec::new() };
    let is_published = row.peer.as_ref().is_some_and(|peer| peer.starts_with("published"));
    let published = row.peer_value.filter(|_| is_published).map(|value| value * factor);
    let published = published.map(|value| Point::new(&series, Provenance::Published, &place, value));
    [Some(point), published].into_iter().flatten().collect()
}

/// The point of a row with its interval; none if the row has no value. `factor` leads from the row's unit to that of the axis.
pub(super) fn taken(row: &Row, series: &str, x: &str, factor: f64) -> Option<Point> {
    let point = Point::new(series, row.how.unwrap_or(Provenance::Measured), x, row.value? * factor);
    Some(match (row.min, row.max) {
        (Some(low), Some(high)) if low < high => point.between(low * factor, high * factor),
        _ => point,
    })
}

/// The name of the series of a row: its varied coordinates.
fn series(varied: &[&Coordinate], row: &Row) -> String {
    let parts = varied.iter().filter_map(|it| Some(value_label(it, &(it.of)(row)?)));
    let name = parts.collect::<Vec<_>>().join(", ");
    if name.is_empty() { "plain".to_owned() } else { name }
}

fn value_label(coordinate: &Coordinate, value: &str) -> String {
    match (coordinate.name, coordinate.scale, value.parse::<f64>()) {
        (_, Some(Scale::Bytes), Ok(bytes)) => crate::output::size(bytes as u64),
        ("batch", _, Ok(1.0)) => "no batch".to_owned(),
        (name @ ("source" | "target" | "batch"), ..) => format!("{name} {value}"),
        ("entries", _, Ok(1.0)) => "1 entry".to_owned(),
        (name, Some(_), Ok(1.0)) => format!("1 {}", name.trim_end_matches('s')),
        (name, Some(_), _) => format!("{value} {name}"),
        _ => value.to_owned(),
    }
}

fn values(coordinate: &Coordinate, rows: &[&Row]) -> Vec<String> {
    distinct(rows.iter().filter_map(|row| (coordinate.of)(row)))
}
