//! Figures of the papers' benchmarks, whose rows are points of a space: who works, on what, how large, how many.
//!
//! What a benchmark varies decides the form: sizes make lines over sizes, other numbers lines over them, nodes and words
//! bars. What else varies tells series apart, and where that would be too many, figures.

use super::figure::{Axis, Figure, How, Kind, Point, Scale};
use super::records::{Record, Row};

/// More lines than this are not told apart.
const SERIES_MAX: usize = 6;

/// A coordinate of a point.
struct Coordinate {
    name: &'static str,
    scale: Option<Scale>,
    of: fn(&Row) -> Option<String>,
}

fn number(value: Option<f64>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// In the order in which they are preferred as the x axis.
const COORDINATES: &[Coordinate] = &[
    Coordinate { name: "size of a descriptor", scale: Some(Scale::Bytes), of: |row| number(row.size_bytes) },
    Coordinate { name: "target", scale: None, of: |row| row.target.as_ref().map(ToString::to_string) },
    Coordinate { name: "threads", scale: Some(Scale::Log), of: |row| number(row.submitters) },
    Coordinate { name: "queues", scale: Some(Scale::Log), of: |row| number(row.queues) },
    Coordinate { name: "entries", scale: Some(Scale::Log), of: |row| number(row.entries) },
    Coordinate { name: "engines", scale: Some(Scale::Log), of: |row| number(row.engines) },
    Coordinate { name: "under way", scale: Some(Scale::Log), of: |row| number(row.depth) },
    Coordinate { name: "batch", scale: Some(Scale::Log), of: |row| number(row.batch) },
    Coordinate { name: "operation", scale: None, of: |row| row.operation.clone() },
    Coordinate { name: "route", scale: None, of: |row| row.route.clone() },
    Coordinate { name: "pages", scale: None, of: |row| row.pages.clone() },
    Coordinate { name: "data", scale: None, of: |row| row.data.clone() },
    Coordinate { name: "source", scale: None, of: |row| row.source.as_ref().map(ToString::to_string) },
    Coordinate { name: "way", scale: None, of: |row| row.way.clone() },
];

/// The figures of a record; none if its rows are no points.
pub(super) fn figures(record: &Record) -> Vec<Figure> {
    let mut whats: Vec<&str> = Vec::new();
    for what in record.rows.iter().filter_map(|row| row.figure.as_deref()) {
        if !whats.contains(&what) {
            whats.push(what);
        }
    }
    whats.into_iter().flat_map(|what| of(record, what)).collect()
}

fn of(record: &Record, what: &str) -> Vec<Figure> {
    let rows: Vec<&Row> = record.rows.iter().filter(|row| row.figure.as_deref() == Some(what)).collect();
    let mut varied: Vec<&Coordinate> =
        COORDINATES.iter().filter(|coordinate| values(coordinate, &rows).len() > 1).collect();
    // What is not varied is still worth a bar.
    let x = if varied.is_empty() { &COORDINATES[COORDINATES.len() - 1] } else { varied.remove(0) };
    divided(record, what, x, varied, rows, String::new())
}

/// One figure, or several, each with few series.
fn divided(
    record: &Record,
    what: &str,
    x: &Coordinate,
    mut varied: Vec<&Coordinate>,
    rows: Vec<&Row>,
    title: String,
) -> Vec<Figure> {
    let mut names: Vec<String> = rows.iter().map(|row| series(&varied, row)).collect();
    names.sort();
    names.dedup();
    // By what has the fewest values, as that makes the fewest figures.
    let fewest = (0..varied.len()).min_by_key(|&at| values(varied[at], &rows).len());
    let Some(fewest) = fewest.filter(|_| names.len() > SERIES_MAX) else {
        return vec![figure(record, what, x, &varied, &rows, &title)];
    };
    let by = varied.remove(fewest);
    let mut figures = Vec::new();
    for value in values(by, &rows) {
        let own = rows.iter().copied().filter(|row| (by.of)(row).as_ref() == Some(&value)).collect();
        let title = format!("{title}, {}", told(by, &value));
        figures.extend(divided(record, what, x, varied.clone(), own, title));
    }
    figures
}

fn figure(
    record: &Record,
    what: &str,
    x: &Coordinate,
    varied: &[&Coordinate],
    rows: &[&Row],
    title: &str,
) -> Figure {
    let (unit, factor) = match rows.iter().find(|row| !row.unit.is_empty()).map(|row| row.unit.as_str()) {
        Some("bytes/s") => ("GB/s", 1e-9),
        Some(unit) => (unit, 1.0),
        None => ("", 1.0),
    };
    let how = rows.iter().find_map(|row| row.how).unwrap_or(How::Measured);
    let name = format!("{}-{what}-{how}{title}", record.bench);
    let name: Vec<&str> =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|it| !it.is_empty()).collect();
    let kind = if x.scale.is_some() { Kind::Lines } else { Kind::Bars };
    let mut figure =
        Figure::new(&name.join("-").to_lowercase(), kind, format!("{}: {what}{title}", record.bench));
    figure.x = Axis::new(x.name, x.scale.unwrap_or(Scale::Linear));
    figure.y = Axis::new(format!("{what} in {unit}"), Scale::Linear);
    let mut missing: Vec<&str> = Vec::new();
    for row in rows {
        let Some(place) = (x.of)(row) else { continue };
        let series = series(varied, row);
        let how = row.how.unwrap_or(How::Measured);
        if let Some(value) = row.value {
            let mut point = Point::new(&series, how, &place, value * factor);
            if let (Some(low), Some(high)) = (row.min, row.max)
                && low < high
            {
                point = point.between(low * factor, high * factor);
            }
            figure.points.push(point);
        } else {
            missing.extend(row.note.as_deref().filter(|note| !missing.contains(note)));
        }
        if row.peer.as_ref().is_some_and(|peer| peer.starts_with("published")) {
            let value = row.peer_value.map(|value| value * factor);
            figure.points.extend(value.map(|value| Point::new(&series, How::Published, &place, value)));
        }
    }
    figure.about =
        format!("`memferry bench {}`, {}.", record.bench, &record.started[..record.started.len().min(10)]);
    if !missing.is_empty() {
        figure.about += &format!(" Not there: {}.", missing.join("; "));
    }
    figure
}

/// What tells the row apart from others with the same x.
fn series(varied: &[&Coordinate], row: &Row) -> String {
    let parts = varied.iter().filter_map(|it| Some(told(it, &(it.of)(row)?)));
    let name = parts.collect::<Vec<_>>().join(", ");
    if name.is_empty() { "all".to_owned() } else { name }
}

fn told(coordinate: &Coordinate, value: &str) -> String {
    match (coordinate.name, coordinate.scale, value.parse::<f64>()) {
        (_, Some(Scale::Bytes), Ok(bytes)) => crate::output::size(bytes as u64),
        ("batch", _, Ok(1.0)) => "no batch".to_owned(),
        (name @ ("source" | "target" | "batch"), ..) => format!("{name} {value}"),
        (name, Some(_), _) => format!("{value} {name}"),
        _ => value.to_owned(),
    }
}

fn values(coordinate: &Coordinate, rows: &[&Row]) -> Vec<String> {
    let mut values = Vec::new();
    for value in rows.iter().filter_map(|row| (coordinate.of)(row)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values
}
