//! Figures of the benchmarks whose rows are times: the papers' query (`bench qdp`) and shared accesses (`bench atomics`).

use super::draw::distinct;
use super::figure::{Axis, Figure, Kind, Point, Scale};
use super::records::{Record, Row};
use memferry_bench::harness::Provenance;

/// Tasks of the query, by their names in records and in the thesis, and the total.
const TASKS: [(&str, &str); 4] =
    [("scan_a", "SCAN_a"), ("scan_b", "SCAN_b"), ("aggregate", "AGGREGATE"), ("total", "total")];

/// Times of the query's variants and of their tasks, in the form of the thesis. Backends are side by side.
pub(super) fn query(records: &[Record]) -> Vec<Figure> {
    let queries = distinct(records.iter().map(Record::query));
    let of_query = |query| {
        let same: Vec<&Record> = records.iter().filter(|record| record.query() == query).collect();
        [times(&same), parts(&same)]
    };
    queries.into_iter().flat_map(of_query).collect()
}

fn times(records: &[&Record]) -> Figure {
    let title = format!("The query with column b near, far, or on its way, {}", provenances(records));
    let mut figure = Figure::new(&format!("bench-qdp-times-{}", backends(records)), Kind::Rows, title);
    figure.about = format!(
        "`memferry bench qdp`, {}: SELECT sum(b) WHERE a < x. Whiskers: least and most of the runs; published is table \
         6.2 of Fürst 2024. In brackets the distance to what was published, and without that of the model to what was \
         measured.",
        dates(records)
    );
    figure.y = Axis::new("time in ms", Scale::Linear);
    for (row, how) in rows(records, "total") {
        let (Some(variant), Some(ms)) = (variant(row, "total"), row.value.filter(|ms| *ms >= 0.0)) else {
            continue;
        };
        let point = |how, ms| Point::new(series("time", row), how, variant, ms);
        figure.points.push(match (row.min, row.max) {
            (Some(low), Some(high)) if low < high => point(how, ms).between(low, high),
            _ => point(how, ms),
        });
        // Each backend repeats the published number.
        let is_new = |it: &Point| !figure.points.contains(it);
        let published = published(row).map(|ms| point(Provenance::Published, ms)).filter(is_new);
        figure.points.extend(published);
    }
    figure
}

fn parts(records: &[&Record]) -> Figure {
    let title = format!("Where the query's time goes, {}", provenances(records));
    let name = format!("bench-qdp-tasks-{}", backends(records));
    let mut figure = Figure::new(&name, Kind::HalfCircles, title);
    figure.about = format!(
        "`memferry bench qdp`, {}, as figures 6.1 and 6.2 of Fürst 2024: mean time of a group of threads in each task; \
         SCAN_a and SCAN_b run at the same time. The longest fills its half circle.",
        dates(records)
    );
    figure.y = Axis::new("ms", Scale::Linear);
    let panel = |variant: &str, row: &Row, how: Provenance| match records {
        [_] => variant.to_owned(),
        _ => series(&format!("{variant}, {how}"), row),
    };
    let variants = distinct(rows(records, "total").filter_map(|(row, _)| variant(row, "total")));
    // Backends of a variant are side by side.
    for wanted in variants {
        for (task, name) in TASKS {
            for (row, how) in rows(records, task).filter(|(row, _)| variant(row, task) == Some(wanted)) {
                let Some(ms) = row.value.filter(|ms| *ms >= 0.0) else { continue };
                let point =
                    |point_how, ms| Point::new(name, point_how, "", ms).in_panel(panel(wanted, row, how));
                figure.points.push(point(how, ms));
                figure.points.extend(published(row).map(|ms| point(Provenance::Published, ms)));
            }
        }
    }
    figure
}

/// Times of accesses by number of threads and distance. Backends are side by side.
pub(super) fn sharing(records: &[Record]) -> Figure {
    let records: Vec<&Record> = records.iter().collect();
    let name = format!("bench-atomics-{}", backends(&records));
    let title = format!("What sharing costs by distance, {}", provenances(&records));
    let mut figure = Figure::new(&name, Kind::Rows, title);
    figure.about = format!(
        "`memferry bench atomics`, {}: an access and its release, for each thread. A counter that all share is what a \
         cache pays that counts references.",
        dates(&records)
    );
    figure.y = Axis::new("time in ns", Scale::Log);
    for (row, how) in rows(&records, "latency") {
        let (Some(work), Some(threads)) = (row.text("work"), row.number("threads")) else { continue };
        let Some(ns) = row.value.filter(|ns| *ns > 0.0) else { continue };
        let place = match row.text("distance") {
            Some(distance) => format!("{threads} threads, {distance}"),
            None => "alone".to_owned(),
        };
        let work = if row.text("churn").as_deref() == Some("true") { format!("{work}, churn") } else { work };
        let point = Point::new(series(&work, row), how, place, ns);
        figure.points.push(match (row.min, row.max) {
            (Some(low), Some(high)) if 0.0 < low && low < high => point.between(low, high),
            _ => point,
        });
    }
    figure
}

/// The rows of a quantity with their provenance.
fn rows<'a>(records: &[&'a Record], figure: &str) -> impl Iterator<Item = (&'a Row, Provenance)> {
    let rows = records.iter().flat_map(|record| record.rows.iter().map(|row| (row, provenance(record))));
    rows.filter(move |(row, _)| row.figure.as_deref() == Some(figure))
}

/// The name of a series, with the backend if rows have one.
fn series(name: &str, row: &Row) -> String {
    row.backend.as_ref().map_or(name.to_owned(), |backend| format!("{name}, {backend}"))
}

/// The variant in the name of a row.
fn variant<'a>(row: &'a Row, figure: &str) -> Option<&'a str> {
    let name = row.name.strip_prefix("qdp_")?;
    if figure == "total" { Some(name) } else { name.strip_prefix(figure)?.strip_prefix('_') }
}

fn published(row: &Row) -> Option<f64> {
    row.peer_value.filter(|_| row.peer.as_ref().is_some_and(|peer| peer.starts_with("published")))
}

/// The provenance of a record; it is the same for all rows.
fn provenance(record: &Record) -> Provenance {
    record.how().unwrap_or(Provenance::Measured)
}

fn provenances(records: &[&Record]) -> String {
    let provenances = distinct(records.iter().map(|record| provenance(record)));
    provenances.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ")
}

/// The backends of the records, for file names.
fn backends(records: &[&Record]) -> String {
    records.iter().map(|record| record.on().unwrap_or("machine")).collect::<Vec<_>>().join("-")
}

fn dates(records: &[&Record]) -> String {
    distinct(records.iter().map(|record| record.date())).join(", ")
}
