//! Figures of the benchmark records of this machine.

use super::figure::{Axis, Figure, Kind, Point, Scale};
use super::memory;
use super::records::{Record, Row};
use super::sweeps;
use super::times;
use super::workload;
use memferry_bench::harness::Provenance;

/// The figures of all records. Some benchmarks have tables only.
pub(super) fn figures(records: &[Record]) -> Vec<Figure> {
    // Records are sorted by benchmark.
    let figures = records.chunk_by(|one, other| one.bench == other.bench).flat_map(|records| {
        let first = &records[0];
        match first.bench.as_str() {
            "query" => queries(first),
            "dsa" => vec![operations(first)],
            "cache" => vec![cache(first)],
            "cases" => vec![cases(first)],
            "processes" => vec![processes(first)],
            "cluster-model" => vec![clusters(first)],
            "calibrate" => check(first),
            "qdp" => times::query(records),
            "memory" => memory::figures(first),
            "workload" => workload::figures(first),
            "atomics" => vec![times::sharing(records)],
            _ => sweeps::figures(&records.iter().collect::<Vec<_>>()),
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
        figure.y = Axis::new("DataFusion's time / memferry's; above 1 is faster", Scale::Log);
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

/// Operations in software compared with the best alternative.
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

/// The cost of hits and the hit ratio, compared with other caches.
fn cache(record: &Record) -> Figure {
    let mut figure = Figure::new("cache", Kind::Rows, "The cache beside others");
    figure.about = "What a hit costs against the caches of others, and hit ratios against LRU.".to_owned();
    figure.y = Axis::new("ratio to the other; above 1 is better", Scale::Log);
    figure.points =
        (record.rows.iter()).filter_map(|row| ratio(row, "ratio", &row.name.replace('_', " "))).collect();
    figure
}

/// What a device gains in programs, and what the publication says that it gains.
fn cases(record: &Record) -> Figure {
    let mut figure = Figure::new("cases", Kind::Rows, "Programs whose movement a device takes over");
    figure.about = "`memferry bench cases`: packets, messages, a cache server, digests and gradients, each against a core                     that moves the bytes itself (Kuper et al. 2024, figures 16, 17, 19, 21). A gain of the core alone:                     the time in which it waits does not count."
        .to_owned();
    figure.y = Axis::new("gain over a core; above 1 is faster", Scale::Log);
    for row in &record.rows {
        let name = row.name.replace("_emulated", "").replace('_', " ");
        let is_published = row.peer.as_deref() == Some("published");
        if row.unit == "x" {
            let published = row.peer_value.filter(|value| is_published && *value > 0.0);
            let published = published.map(|value| Point::new("gain", Provenance::Published, &name, value));
            let own = row.value.filter(|value| *value > 0.0);
            let how = row.how.unwrap_or(Provenance::Measured);
            figure.points.extend(own.map(|value| Point::new("gain", how, &name, value)));
            figure.points.extend(published);
        } else if !is_published {
            let (series, name) = match name.strip_suffix(" busy") {
                Some(name) => ("gain of the core alone", name),
                None => ("gain", &*name),
            };
            figure.points.extend(ratio(row, series, name));
        }
    }
    figure
}

/// What processes that copy at the same time are left.
fn processes(record: &Record) -> Figure {
    let mut figure = Figure::new("processes", Kind::Rows, "Processes that copy at the same time");
    figure.about = "`memferry bench processes`: the rate of a process beside others, divided by its rate alone. Names                     tell its number, executor, and nodes of source and target. Whiskers: 95 % interval."
        .to_owned();
    figure.y = Axis::new("rate beside others divided by the rate alone", Scale::Linear);
    let name = |row: &Row| row.name.split_once('_').map_or(&*row.name, |(_, name)| name).replace('_', " ");
    figure.points = record.rows.iter().filter_map(|row| ratio(row, "rate", &name(row))).collect();
    figure
}

/// The predicted speed-up of TPC-H by workers of this machine.
fn clusters(record: &Record) -> Figure {
    let mut figure = Figure::new("cluster-model", Kind::Lines, "TPC-H on many such machines, on paper");
    figure.about = "`memferry bench cluster --machine`: geometric mean over the 22 queries of the time on one worker \
                    divided by that on many, from work that was measured on small clusters. With near memory, one \
                    worker has it too."
        .to_owned();
    figure.x = Axis::new("workers", Scale::Log);
    figure.y = Axis::new("speed-up against one worker", Scale::Log);
    for row in &record.rows {
        let Some(name) = row.name.strip_prefix("cluster_model_speed_up_w") else { continue };
        let (Some((workers, memory)), Some(value)) = (name.split_once('_'), row.value) else { continue };
        let series = if memory == "near" { "with near memory" } else { "without near memory" };
        let how = row.how.unwrap_or(Provenance::Modelled);
        figure.points.push(Point::new(series, how, workers.trim_start_matches('0'), value));
    }
    figure
}

/// Predictions of a calibration compared with measurements, and the errors.
fn check(record: &Record) -> Vec<Figure> {
    let of = "`memferry calibrate --check`: copies, reads, scans and pipelines of sizes that were not calibrated on";
    let mut times = Figure::new("calibrate-check", Kind::Rows, "What a model of this machine predicts of it");
    times.about = format!("{of}, as the model predicts them and as they run.");
    // In ns, so that the values are above 1 and a longer bar is a longer time.
    times.y = Axis::new("time in ns; in brackets the error of the model", Scale::Log);
    let mut errors = Figure::new("calibrate-errors", Kind::Rows, "How far a model of this machine is off");
    errors.about = format!("{of}; below 0 the model is too fast.");
    if let Some(median) = record.row("own_error_median").and_then(|row| row.value) {
        errors.about += &format!(" The median of the errors, without their signs, is {median:.1} %.");
    }
    errors.y = Axis::new("error in %", Scale::Linear);
    for row in record.rows.iter().filter(|row| row.peer.as_deref() == Some("modelled")) {
        let (Some(measured_us), Some(modelled_us)) = (row.value, row.peer_value) else { continue };
        let name = row.name.replace('_', " ");
        for (how, time_us) in [(Provenance::Measured, measured_us), (Provenance::Modelled, modelled_us)] {
            times.points.push(Point::new("time", how, &name, 1e3 * time_us));
        }
        let error = 100.0 * (modelled_us / measured_us - 1.0);
        errors.points.push(Point::new("error", Provenance::Modelled, &name, error));
    }
    vec![errors, times]
}

pub(super) fn ratio(row: &Row, series: &str, x: &str) -> Option<Point> {
    let point =
        Point::new(series, row.how.unwrap_or(Provenance::Measured), x, row.ratio.filter(|it| *it > 0.0)?);
    Some(match (row.ratio_low, row.ratio_high) {
        (Some(low), Some(high)) if 0.0 < low && low <= high => point.between(low, high),
        _ => point,
    })
}
