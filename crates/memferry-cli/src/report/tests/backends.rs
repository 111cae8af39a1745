//! Benchmarks that run on several backends: their records, and their figures side by side.

use serde_json::json;

use super::super::figure::Kind;
use super::super::*;
use super::{point, record_on};

fn qdp_row(name: &str, figure: &str, value: Option<f64>, how: &str) -> serde_json::Value {
    json!({ "name": name, "figure": figure, "value": value, "unit": "ms", "how": how, "min": value, "max": value,
        "note": "why" })
}

/// The figures of these records, which are read from files.
fn figures_of(records: &[serde_json::Value]) -> Vec<Figure> {
    let directory = tempfile::tempdir().unwrap();
    for (index, record) in records.iter().enumerate() {
        fs::write(directory.path().join(format!("2026-01-01-{index}.json")), record.to_string()).unwrap();
    }
    let read = records::read(directory.path()).unwrap();
    assert_eq!(read.len(), records.len(), "one has replaced another");
    let figures = benchmarks::figures(&read);
    for figure in &figures {
        assert_eq!(Figure::from_csv(&figure.csv()).unwrap().points, figure.points);
        assert!(draw::document(figure).starts_with("<svg"), "{}", figure.name);
    }
    figures
}

#[test]
fn the_query_is_divided_into_tasks() {
    let mut rows = Vec::new();
    for (variant, total, scan) in [("baseline", 131.0, 65.0), ("prefetching_groups4", 156.0, 100.0)] {
        rows.push(qdp_row(&format!("qdp_{variant}"), "total", Some(total), "modelled"));
        rows.push(qdp_row(&format!("qdp_scan_a_{variant}"), "scan_a", Some(scan), "modelled"));
        rows.push(qdp_row(&format!("qdp_aggregate_{variant}"), "aggregate", Some(50.0), "modelled"));
        rows.push(qdp_row(&format!("qdp_hit_rate_{variant}"), "hit_rate", Some(0.9), "modelled"));
    }
    rows[0]["peer"] = json!("published (Fürst 2024, F072)");
    rows[0]["peer_value"] = json!(131.18);
    rows.push(qdp_row("qdp_cache-mode", "total", None, "modelled"));
    let figures = figures_of(&[record_on("model", "qdp", json!(rows))]);
    let [times, parts] = &figures[..] else { panic!("{figures:?}") };
    let of = |panel: &str, series: &str, how: Provenance| {
        let found = parts.points.iter().find(|it| it.panel == panel && it.series == series && it.how == how);
        found.and_then(|it| it.y)
    };
    assert_eq!((times.name.as_str(), parts.kind), ("bench-qdp-times-model", Kind::HalfCircles));
    assert_eq!(of("baseline", "SCAN_a", Provenance::Modelled), Some(65.0));
    assert_eq!(of("baseline", "total", Provenance::Published), Some(131.18));
    assert_eq!(of("prefetching_groups4", "AGGREGATE", Provenance::Modelled), Some(50.0));
    assert_eq!(parts.points.len(), 7, "no hit rates, and nothing that has no value: {parts:?}");
    assert_eq!(times.points.len(), 3);
}

/// Measured, emulated, modelled and published in one figure, with errors; another query is another figure. Under
/// `memferry emulate` the machine's numbers are emulated, as those of `--on emulated` are: both are there.
#[test]
fn backends_stand_side_by_side() {
    let qdp = |on: &str, how: &str, ms: f64, size: u64| {
        let mut row = qdp_row("qdp_baseline", "total", Some(ms), how);
        row["peer"] = json!("published (Fürst 2024, F072)");
        row["peer_value"] = json!(131.18);
        if size != 4096 {
            row["peer"] = json!(null);
        }
        let mut record = record_on(on, "qdp", json!([row]));
        record["options"]["sizes"] = json!([size]);
        record
    };
    let alike = [
        qdp("machine", "measured", 140.0, 4096),
        qdp("emulated", "emulated", 150.0, 4096),
        qdp("model", "modelled", 131.0, 4096),
    ];
    let figures = figures_of(&alike);
    let times = &figures[0];
    assert_eq!((figures.len(), times.name.as_str()), (2, "bench-qdp-times-machine-emulated-model"));
    let hows: Vec<Provenance> = times.points.iter().map(|it| it.how).collect();
    assert_eq!(
        hows,
        [Provenance::Measured, Provenance::Published, Provenance::Emulated, Provenance::Modelled]
    );
    let picture = draw::document(times);
    assert!(picture.contains("140.0 (+6.7 %)") && picture.contains("131.0 (−0.1 %)"), "{picture}");
    let panels: Vec<&str> = figures[1].points.iter().map(|it| it.panel.as_str()).collect();
    assert!(panels.contains(&"baseline, measured") && panels.contains(&"baseline, modelled"), "{panels:?}");

    let other = figures_of(&[qdp("machine", "measured", 9.0, 512), qdp("model", "modelled", 131.0, 4096)]);
    let names: Vec<&str> = other.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "bench-qdp-times-machine",
            "bench-qdp-tasks-machine",
            "bench-qdp-times-model",
            "bench-qdp-tasks-model"
        ]
    );

    let same =
        figures_of(&[qdp("machine", "emulated", 140.0, 4096), qdp("emulated", "emulated", 150.0, 4096)]);
    let bars = same[0].points.iter().filter(|it| it.how == Provenance::Emulated);
    assert_eq!(
        bars.map(|it| it.series.as_str()).collect::<Vec<_>>(),
        ["time, on emulated", "time, on machine"]
    );
    let submit = figures_of(&[
        record_on("machine", "submit", json!([point("shared", 1024, 1, Some(1e9))])),
        record_on("emulated", "submit", json!([point("shared", 1024, 1, Some(2e9))])),
    ]);
    let mut ends: Vec<String> = submit[0].points.iter().map(|it| format!("{} {}", it.series, it.x)).collect();
    ends.dedup();
    assert_eq!(ends.len(), 2, "{submit:?}");
}

#[test]
fn sharing_is_grouped_by_distance() {
    let shared = |on: &str, how: &str| {
        let rows = json!([
            { "name": "atomics_hit_threads1", "figure": "latency", "value": 12.0, "unit": "ns", "how": how,
              "work": "hit", "threads": 1, "distance": null, "churn": false },
            { "name": "atomics_hit_threads2_node_churn", "figure": "latency", "value": 40.0, "unit": "ns",
              "how": how, "work": "hit", "threads": 2, "distance": "node", "churn": true },
        ]);
        record_on(on, "atomics", rows)
    };
    let figures = figures_of(&[shared("machine", "measured"), shared("model", "modelled")]);
    assert_eq!(
        figures.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
        ["bench-atomics-machine-model"]
    );
    let sharing: Vec<_> = figures[0].points.iter().map(|it| (&*it.x, &*it.series, it.how)).collect();
    assert_eq!(
        sharing[..2],
        [("alone", "hit", Provenance::Measured), ("2 threads, node", "hit, churn", Provenance::Measured)]
    );
    assert_eq!((sharing.len(), sharing[2].2), (4, Provenance::Modelled));
}
