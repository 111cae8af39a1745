//! Figures of `bench workload`: speed, and what was found in memory, over the time of the run.

use super::figure::{Axis, Figure, Kind, Point, Scale};
use super::records::{Record, Row};
use memferry_bench::harness::Provenance;

pub(super) fn figures(record: &Record) -> Vec<Figure> {
    vec![speed(record), shares(record)]
}

fn speed(record: &Record) -> Figure {
    let mut figure = Figure::new("workload-speed", Kind::Lines, "Speed of a workload over time");
    figure.about = format!(
        "{}. Speed is the median time of a query by plain DataFusion, over the whole run, divided by the time of a run; medians \
         of sections, in which the ways take turns.",
        about(record)
    );
    figure.x = Axis::new("time in s", Scale::Linear);
    figure.y = Axis::new("speed; above 1 is faster than DataFusion", Scale::Linear);
    for (time, row) in sections(record, "workload_speed_") {
        figure.points.extend(row.value.map(|speed| Point::new("memferry", how(row), &time, speed)));
        let peer = row.peer.as_deref().zip(row.peer_value);
        figure.points.extend(peer.map(|(peer, speed)| Point::new(peer, how(row), &time, speed)));
    }
    figure
}

fn shares(record: &Record) -> Figure {
    let mut figure = Figure::new("workload-shares", Kind::Lines, "What a workload finds in memory over time");
    figure.about = format!(
        "{}. Decoded: row groups whose columns were all kept decoded, of those that scans needed. Near: bytes that decoders asked \
         for and that were not read of a file.",
        about(record)
    );
    figure.x = Axis::new("time in s", Scale::Linear);
    figure.y = Axis::new("share in %", Scale::Linear);
    for (series, prefix) in [("decoded", "workload_decoded_share_"), ("near", "workload_near_share_")] {
        let points = sections(record, prefix)
            .into_iter()
            .filter_map(|(time, row)| Some(Point::new(series, how(row), time, 100.0 * row.value?)));
        figure.points.extend(points);
    }
    figure
}

fn about(record: &Record) -> String {
    let number = |option| record.number(option).unwrap_or_default();
    let budget = record.row("workload_peak_bytes").and_then(|row| row.peer_value).unwrap_or_default();
    format!(
        "`memferry bench workload`, {}: the 22 queries of TPC-H at scale {} in random order by {} sessions, over files; budget \
         {:.0} MiB",
        record.date(),
        number("scale"),
        number("sessions"),
        budget / f64::from(1 << 20)
    )
}

/// The rows of a series, each with the middle of its section in seconds.
fn sections<'a>(record: &'a Record, prefix: &str) -> Vec<(String, &'a Row)> {
    let number = |row: &Row| row.name.strip_prefix(prefix)?.parse::<f64>().ok();
    // A section may have no row of this series, the last of all series has one.
    let of_speed = |row: &Row| row.name.strip_prefix("workload_speed_")?.parse::<f64>().ok();
    let sections_count = record.rows.iter().filter_map(of_speed).fold(1.0, f64::max);
    let section_s = record.number("seconds").unwrap_or(sections_count) / sections_count;
    let rows = record.rows.iter().filter_map(|row| Some((number(row)?, row)));
    rows.map(|(section, row)| (((section - 0.5) * section_s).to_string(), row)).collect()
}

fn how(row: &Row) -> Provenance {
    row.how.unwrap_or(Provenance::Measured)
}
