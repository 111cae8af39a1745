//! Figures of what was taken on this machine.

use super::figure::{Axis, Figure, How, Kind, Point, Scale};
use super::points;
use super::records::{Record, Row};

/// The figures of all records. Benchmarks that are told as tables only have none.
pub(super) fn figures(records: &[Record]) -> Vec<Figure> {
    // Records of one benchmark stand beside each other.
    let figures = records.chunk_by(|one, other| one.bench == other.bench).flat_map(|records| {
        let first = &records[0];
        match first.bench.as_str() {
            "query" => queries(first),
            "dsa" => vec![operations(first)],
            "cache" => vec![cache(first)],
            _ => points::figures(&records.iter().collect::<Vec<_>>()),
        }
    });
    figures.filter(|figure| !figure.points.is_empty()).collect()
}

/// Ratios to plain DataFusion, for each mode of prefetching.
fn queries(record: &Record) -> Vec<Figure> {
    let modes = [
        ("off", "Queries without prefetching", "what the scan gains by itself"),
        ("auto", "Queries with prefetching where it pays", "what is gained as one would run it"),
        (
            "always",
            "Queries with prefetching forced",
            "what copying costs, where it cannot gain, and gains elsewhere",
        ),
    ];
    let figure = |(mode, title, what): (&str, &str, &str)| {
        let mut figure = Figure::new(&format!("queries-{mode}"), Kind::Rows, title);
        figure.about = format!(
            "TPC-H at scale 1 and the query of the papers against plain DataFusion over the same batches, prefetching \
             {mode}: {what}. Whiskers: 95 % interval."
        );
        figure.y = Axis::new("DataFusion's time divided by memferry's; above 1 is faster", Scale::Log);
        let prefix = format!("tpch_sf1_{mode}_");
        for row in &record.rows {
            let Some(name) = row.name.strip_prefix(&prefix) else { continue };
            let name = match name {
                "geomean" => "all, geometric mean".to_owned(),
                "paper" => "sum(b) where a < x".to_owned(),
                name => name.to_uppercase(),
            };
            figure.points.extend(ratio(row, "ratio", &name));
        }
        figure
    };
    modes.map(figure).into()
}

/// Operations in software beside the best that there is otherwise.
fn operations(record: &Record) -> Figure {
    let mut figure = Figure::new("operations", Kind::Rows, "Operations of a DSA in software");
    figure.about =
        "At 1 MiB (deltas at 512 KiB) against the best that there is otherwise, such as the C library \
         or crc-fast, interleaved in one run. Whiskers: 95 % interval."
            .to_owned();
    figure.y = Axis::new("ratio to the best otherwise; above 1 is faster", Scale::Log);
    let rows = record.rows.iter().filter(|row| row.unit == "bytes/s");
    figure.points = rows.filter_map(|row| ratio(row, "ratio", &row.name.replace('_', " "))).collect();
    figure
}

/// Hits, and the hit ratio, beside others.
fn cache(record: &Record) -> Figure {
    let mut figure = Figure::new("cache", Kind::Rows, "The cache beside others");
    figure.about = "What a hit costs against the caches of others, and hit ratios against LRU.".to_owned();
    figure.y = Axis::new("ratio to the other; above 1 is better", Scale::Log);
    figure.points =
        (record.rows.iter()).filter_map(|row| ratio(row, "ratio", &row.name.replace('_', " "))).collect();
    figure
}

fn ratio(row: &Row, series: &str, x: &str) -> Option<Point> {
    let point = Point::new(series, row.how.unwrap_or(How::Measured), x, row.ratio.filter(|it| *it > 0.0)?);
    Some(match (row.ratio_low, row.ratio_high) {
        (Some(low), Some(high)) if 0.0 < low && low <= high => point.between(low, high),
        _ => point,
    })
}
