//! Figures of `bench memory`: matrices, latency under load, and our loops beside those in C.

use super::benchmarks::ratio;
use super::draw::distinct;
use super::figure::{Axis, Figure, Kind, Point, Scale};
use super::records::{Record, Row};
use memferry_bench::harness::Provenance;

pub(super) fn figures(record: &Record) -> Vec<Figure> {
    let mut figures = vec![latency(record), bandwidth(record)];
    figures.extend(curves(record));
    figures.push(compared(record));
    figures
}

fn rows<'a>(record: &'a Record, figure: &'a str) -> impl Iterator<Item = &'a Row> {
    record.rows.iter().filter(move |row| row.figure.as_deref() == Some(figure))
}

/// Nodes of CPUs and memory, and the kind of pages.
fn place(row: &Row) -> Option<[String; 3]> {
    Some([row.text("cpus")?, row.text("memory")?, format!("{} pages", row.text("pages")?)])
}

fn matrix(name: &str, kind: Kind, title: &str, about: String, unit: &str) -> Figure {
    let mut figure = Figure::new(name, kind, title);
    figure.about = about;
    figure.x = Axis::new("row: CPUs of node, column: memory of node", Scale::Linear);
    figure.y = Axis::new(unit, Scale::Linear);
    figure
}

fn latency(record: &Record) -> Figure {
    let about = format!(
        "`memferry bench memory`, {}: a step of a chain through more memory than the caches hold, while the memory is idle.",
        record.date()
    );
    let mut figure = matrix("memory-latency", Kind::HeatLess, "Latency of idle memory", about, "ns");
    let point = |row: &Row| {
        let [cpus, memory, pages] = place(row)?;
        Some(Point::new(cpus, how(row), memory, row.value?).in_panel(pages))
    };
    figure.points = rows(record, "latency").filter_map(point).collect();
    figure
}

fn bandwidth(record: &Record) -> Figure {
    let about = format!(
        "`memferry bench memory`, {}: bytes read plus bytes written by all threads of a node; the mix reads two lines for each \
         one that it writes.",
        record.date()
    );
    let mut figure = matrix("memory-bandwidth", Kind::HeatMore, "Bandwidth of memory", about, "GB/s");
    let point = |row: &Row| {
        let [cpus, memory, pages] = place(row)?;
        let panel = format!("{}, {pages}", row.text("traffic")?);
        Some(Point::new(cpus, how(row), memory, row.value? / 1e3).in_panel(panel))
    };
    figure.points = rows(record, "bandwidth").filter_map(point).collect();
    figure
}

/// A figure for each memory, with a line for each traffic and kind of pages.
fn curves(record: &Record) -> Vec<Figure> {
    let ends = |row: &Row| place(row).map(|[cpus, memory, _]| [cpus, memory]);
    let all = distinct(rows(record, "loaded_latency").filter_map(ends));
    let figure = |[cpus, memory]: [String; 2]| {
        let name = format!("memory-loaded-{cpus}-to-{memory}");
        let title = format!("Latency under load, CPUs of node {cpus}, memory of node {memory}");
        let mut figure = Figure::new(&name, Kind::Lines, title);
        figure.about = format!(
            "`memferry bench memory`, {}: a step of a chain on one CPU, while the other CPUs read or modify the memory with \
             pauses; medians of the rounds.",
            record.date()
        );
        figure.x = Axis::new("load in GB/s", Scale::Linear);
        figure.y = Axis::new("latency in ns", Scale::Linear);
        let of_ends = rows(record, "loaded_latency")
            .filter(|row| ends(row).is_some_and(|it| it == [&*cpus, &*memory].map(str::to_owned)));
        let point = |row: &Row| {
            let [_, _, pages] = place(row)?;
            let load = row.number("load_mb_per_s")? / 1e3;
            let series = format!("{}, {pages}", row.text("traffic")?);
            // Without the least and the most: one round that another program interrupted would flatten all curves.
            Some(Point::new(series, how(row), load.to_string(), row.value?))
        };
        figure.points = of_ends.filter_map(point).collect();
        figure
    };
    all.into_iter().map(figure).collect()
}

fn compared(record: &Record) -> Figure {
    let mut figure = Figure::new("memory-compared", Kind::Rows, "Loops beside those in C");
    figure.about = format!(
        "`memferry bench memory`, {}: the loops of the matrices beside the same loops in C, in turns on the same memory. \
         Whiskers: 95 % interval.",
        record.date()
    );
    figure.y = Axis::new("ratio to the loop in C; above 1 is faster", Scale::Log);
    let rows = rows(record, "compared");
    figure.points = rows.filter_map(|row| ratio(row, "ratio", &row.name.replace('_', " "))).collect();
    figure
}

fn how(row: &Row) -> Provenance {
    row.how.unwrap_or(Provenance::Measured)
}
