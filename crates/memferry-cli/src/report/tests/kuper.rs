//! The figures of Kuper et al. 2024 have all that its text prints, and what records have.

use std::collections::BTreeSet;

use memferry_bench::model::{Coverage, PublishedFigure, Shown, figures};
use serde_json::json;

use super::super::figure::Point;
use super::super::*;
use super::{PAPERS, record};

const PUBLICATION: &str = "Kuper 2024";

fn drawn(records: &[Record]) -> Vec<Figure> {
    let machine = Machine::from_profile("xeon-max-9468-2s-flat").unwrap();
    let figures = PAPERS.kuper_figures(&machine, records).unwrap();
    for figure in &figures {
        assert_eq!(Figure::from_csv(&figure.csv()).unwrap().points, figure.points, "{}", figure.name);
    }
    figures
}

/// `19` of `kuper-figure-19a`.
fn number(figure: &Figure) -> u32 {
    let number = figure.name.strip_prefix("kuper-figure-").unwrap();
    number.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse().unwrap()
}

fn coverage() -> Vec<Coverage> {
    let all = memferry_bench::model::validate().unwrap().coverage;
    all.into_iter().filter(|it| it.publication == PUBLICATION).collect()
}

#[test]
fn the_figures_are_those_that_coverage_lists() {
    let listed: Vec<u32> = (coverage().iter())
        .filter(|it| it.state != Shown::Missing)
        .map(|it| it.figure.strip_prefix("Figure ").unwrap().parse().unwrap())
        .collect();
    let mut numbers: Vec<u32> = drawn(&[]).iter().map(number).collect();
    numbers.dedup();
    assert_eq!(numbers, listed, "in the order of the publication");
    for missing in coverage().iter().filter(|it| it.state == Shown::Missing) {
        assert!(!missing.remark.is_empty(), "{missing:?}");
    }
}

/// The part of a published point that is the number of its row.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    /// The place of a dot.
    X,
    /// The place of a vertical rule.
    Rule,
    /// The height of a dot or of a horizontal rule.
    Y,
    /// A part of the name of the series.
    Series,
}

/// A row, its place, and what its number means on the axis.
type Drawn = (&'static str, Part, fn(f64) -> f64);

/// The rows of the figures, the part that they are drawn as, and its value.
const DRAWN: &[Drawn] = &[
    ("K029", Part::X, kb),
    ("K030", Part::X, same),
    ("K031", Part::Rule, kb),
    ("K032", Part::Y, same),
    ("K033", Part::X, kb),
    ("K034", Part::Series, same),
    ("K035", Part::X, kb),
    ("K036", Part::Series, same),
    ("K037", Part::Series, same),
    ("K040", Part::Rule, kb),
    ("K041", Part::Rule, kb),
    ("K047", Part::Rule, kb),
    ("K048", Part::Rule, kb),
    ("K050", Part::Rule, kb),
    ("K051", Part::Y, same),
    ("K052", Part::Y, same),
    ("K055", Part::Rule, kb),
    ("K056", Part::Y, |share| 100.0 * share),
    ("K057", Part::Y, |percent| 1.0 + percent / 100.0),
    ("K069", Part::Rule, same),
    ("K070", Part::Rule, same),
    ("K072", Part::Rule, kb),
    ("K073", Part::Rule, same),
    ("K076", Part::Series, same),
    ("K078", Part::Y, same),
    ("K079", Part::Y, |percent| 1.0 - percent / 100.0),
    ("K083", Part::Y, same),
    ("K084", Part::Y, same),
    ("K086", Part::Y, same),
    ("K087", Part::Y, same),
    ("K088", Part::Y, same),
    ("K089", Part::Y, same),
    ("K090", Part::Y, same),
    ("K103", Part::Rule, same),
    ("K109", Part::X, same),
    ("K110", Part::X, same),
    ("K111", Part::X, same),
    ("K112", Part::X, same),
    ("K113", Part::X, same),
    ("K114", Part::X, same),
];

fn same(number: f64) -> f64 {
    number
}

fn kb(number: f64) -> f64 {
    1024.0 * number
}

/// Whether a published point has this value as this part.
fn has(point: &Point, part: Part, value: f64) -> bool {
    let is_close = |it: f64| (it / value - 1.0).abs() < 1e-9;
    match part {
        Part::X => point.y.is_some() && point.x.parse().is_ok_and(is_close),
        Part::Rule => point.y.is_none() && point.x.parse().is_ok_and(is_close),
        Part::Y => point.y.is_some_and(is_close),
        Part::Series => point.series.rsplit(' ').next().and_then(|it| it.parse().ok()).is_some_and(is_close),
    }
}

#[test]
fn printed_numbers_are_dots_and_rules() {
    let rows: Vec<PublishedFigure> = figures();
    let drawn = drawn(&[]);
    for listed in coverage().iter().filter(|it| it.state != Shown::Missing) {
        let own: Vec<&Figure> =
            drawn.iter().filter(|it| format!("Figure {}", number(it)) == listed.figure).collect();
        let points = || own.iter().flat_map(|figure| &figure.points);
        let published = || points().filter(|point| point.how == Provenance::Published);
        for row in &listed.rows {
            let Some(number) = rows.iter().find(|it| it.id == *row).and_then(PublishedFigure::number) else {
                continue;
            };
            // Which size of messages: a name of a group of bars. Which percentile: only with records.
            match row.as_str() {
                "K085" => {
                    assert!(published().any(|it| it.x == format!("{number} KiB") && it.y == Some(1.0)));
                    continue;
                }
                "K105" => continue,
                _ => (),
            }
            let Some((_, part, value)) = DRAWN.iter().find(|(id, ..)| id == row) else {
                panic!("{}: {row} is not drawn", listed.figure)
            };
            let value = value(number);
            // Rows with the same number have a mark each.
            let is_alike = |id: &&String| {
                let other = rows.iter().find(|it| it.id == **id).and_then(PublishedFigure::number);
                DRAWN.iter().any(|(row, its, of)| row == *id && its == part && other.map(of) == Some(value))
            };
            let (alike, marks) = (
                listed.rows.iter().filter(is_alike).count(),
                published().filter(|it| has(it, *part, value)).count(),
            );
            assert!(marks >= alike, "{}: {row}, {value}: {marks} marks", listed.figure);
        }
        assert_eq!(published().next().is_none(), listed.rows.is_empty(), "{}", listed.figure);
        let is_modelled = points().any(|point| point.how == Provenance::Modelled);
        assert_eq!(is_modelled, listed.figure != "Figure 13", "{}", listed.figure);
    }
}

/// Curves and the predictions of the error figure come from one model.
#[test]
fn curves_go_through_the_predictions() {
    let predictions = memferry_bench::model::validate().unwrap().predictions;
    let predicted = |row: &str, name: &str| {
        let is_meant =
            |it: &&memferry_bench::model::Prediction| it.rows.contains(&row) && it.name.contains(name);
        predictions.iter().find(is_meant).unwrap().predicted
    };
    let drawn = drawn(&[]);
    let modelled = |figure: &str, panel: &str, series: &str, x: &str| {
        let figure = drawn.iter().find(|it| it.name == format!("kuper-figure-{figure}")).unwrap();
        let is_meant = |it: &&Point| {
            (&*it.panel, &*it.series, &*it.x, it.how) == (panel, series, x, Provenance::Modelled)
        };
        let found: Vec<&Point> = figure.points.iter().filter(is_meant).collect();
        let [point] = found[..] else { panic!("{panel}, {series}, {x}: {found:?}") };
        point.y.unwrap()
    };
    let peak = predicted("K032", "rate of a device");
    let most = "at most";
    for (drawn, predicted) in [
        (modelled("3", "Sync", "BS: 1", "262144") / peak * 100.0, predicted("K031", "")),
        (modelled("3", "Sync", "BS: 64", "262144") / peak * 100.0, predicted("K034", "")),
        (modelled("3", "Async", "BS: 4", "4096") / peak * 100.0, predicted("K036", "")),
        (modelled("10", "", "3 DSAs", "1048576"), predicted("K051", "")),
        (modelled("10", "", "4 DSAs", "1048576"), predicted("K052", "")),
        (modelled("11", "", "BS: 1", "4096") / 100.0, predicted("K056", "")),
        (modelled("16", "CPU cycles for copying, %", "CPU", "1024"), predicted("K078", "")),
        (modelled("16", "b: rate of DSA divided by that of CPU", "DSA", "1518"), predicted("K084", "")),
        (modelled("16", "b: rate of DSA divided by that of CPU", "DSA", "512"), predicted("K083", "")),
        ((1.0 - modelled("16", "b: rate, CPU at 256 B = 1", "CPU", "1024")) * 100.0, predicted("K079", "")),
        (modelled("17", "a: libfabric, by message size", "RMA", most), predicted("K087", "")),
        (modelled("17", "b: OSU MPI, above 1 MB", "OSU MPI", "8 ranks"), predicted("K090", "")),
    ] {
        assert!((drawn / predicted - 1.0).abs() < 1e-3, "{drawn} instead of {predicted}");
    }
    // The line of a device in figure 21 bends where the prediction says.
    for (panel, row) in [("16 KB random reads", "K109"), ("128 KB sequential reads", "K112")] {
        assert_eq!(modelled("21", panel, "DSA", &predicted(row, "").to_string()), 100.0);
    }
    // Break-even: 1 between these sizes.
    assert!(modelled("2", "Sync", "Memory Copy", "2048") < 1.0);
    assert!(modelled("2", "Sync", "Memory Copy", "4096") > 0.99);
    assert!((modelled("2", "Async", "Memory Copy", "256") - 1.0).abs() < 0.01);
    // Figure 9, as K047 and K048 are predicted: to which size a shared queue has less than 95 % of a dedicated one.
    let largest = predicted("K048", "") as u32 * 1024;
    let shared = |bytes: u32| {
        let [shared, dedicated] =
            ["SWQ: N", "DWQ: N"].map(|series| modelled("9", "N = 1", series, &bytes.to_string()));
        shared / dedicated
    };
    assert!(
        shared(largest) < 0.95 && shared(2 * largest) > 0.95,
        "{} {}",
        shared(largest),
        shared(2 * largest)
    );
}

/// Rows of records stand beside the model, in the place of the publication.
#[test]
fn records_are_drawn_in_the_form_of_the_publication() {
    let row = |bench: &str, figure: &str, value: f64, columns: serde_json::Value| {
        let mut row = json!({ "name": format!("{bench}_x"), "figure": figure, "value": value, "unit": "",
            "how": "emulated", "min": value, "max": value, "way": "dedicated", "operation": "copy",
            "size_bytes": 4096, "batch": 1, "depth": 1, "submitters": 1, "queues": 1 });
        row.as_object_mut().unwrap().extend(columns.as_object().unwrap().clone());
        row
    };
    let case = |name: &str, value: f64, ratio: Option<f64>| json!({ "name": name, "value": value, "unit": "ns", "how": "emulated", "ratio": ratio });
    let of = [
        (
            "operations",
            vec![
                row("operations", "throughput", 6e9, json!({ "data": "memory" })),
                row("operations", "throughput", 2e9, json!({ "data": "memory", "way": "core" })),
                row(
                    "operations",
                    "throughput",
                    9e9,
                    json!({ "data": "memory", "operation": "crc", "depth": 32 }),
                ),
                row(
                    "operations",
                    "throughput",
                    1e9,
                    json!({ "data": "memory", "operation": "crc", "way": "core" }),
                ),
            ],
        ),
        ("depth", vec![row("depth", "throughput", 21e9, json!({ "depth": 16 }))]),
        (
            "latency",
            vec![
                row("latency", "latency", 900.0, json!({ "way": "core" })),
                row("latency", "allocate", 300.0, json!({ "batch": 8 })),
                row("latency", "wait", 2000.0, json!({ "batch": 8 })),
            ],
        ),
        ("remote", vec![row("remote", "throughput", 4e9, json!({ "source": 0, "target": 4 }))]),
        ("engines", vec![row("engines", "throughput", 18e9, json!({ "engines": 2, "batch": 8 }))]),
        (
            "queues",
            vec![
                row("queues", "throughput", 11e9, json!({ "way": "shared", "submitters": 4 })),
                row("queues", "throughput", 12e9, json!({ "submitters": 4, "queues": 4 })),
                row("queues", "throughput", 13e9, json!({ "batch": 4 })),
            ],
        ),
        ("wait", vec![row("wait", "asleep", 0.75, json!({ "batch": 64 }))]),
        (
            "pollution",
            vec![row("pollution", "slowdown", 1.25, json!({ "way": "core", "working_set_bytes": 1048576 }))],
        ),
        ("target", vec![row("target", "throughput", 4.096e9, json!({ "data": "cached-target" }))]),
        (
            "cases",
            vec![
                case("packets_512B", 500.0, None),
                case("packets_512B_emulated", 500.0, Some(1.125)),
                case("ping_pong_32KiB_emulated", 7808.0, Some(3.0)),
                case("ping_pong_32KiB_emulated_busy", 880.0, Some(27.0)),
                case("ping_pong_gain_most_emulated [K086]", 4.75, None),
                case("all_reduce_4_ranks_emulated", 5.0, Some(2.75)),
                case("cache_get_p99.9", 9.0, None),
                case("cache_get_emulated_p99.9", 9.0, Some(5.25)),
                case("digests_16KiB_cores_emulated [K109]", 6.125, None),
            ],
        ),
    ];
    let records = of.map(|(bench, rows)| {
        serde_json::from_value(record(bench, "2026-01-01T00:00:00Z", json!(rows))).unwrap()
    });
    let drawn = drawn(&records);
    let mut emulated = BTreeSet::new();
    for figure in &drawn {
        for it in figure.points.iter().filter(|it| it.how == Provenance::Emulated) {
            let y = (it.y.unwrap() * 1000.0).round() / 1000.0;
            emulated.insert(format!("{}: {}, {}, {}: {y}", number(figure), it.panel, it.series, it.x));
        }
    }
    let expected = [
        "2: Sync, Memory Copy, 4096: 3",
        "2: Async, CRC Generation, 4096: 9",
        "3: Sync, BS: 1, 4096: 6",
        "4: , WQS: 16, 4096: 21",
        "5: BS: 1, memcpy(), CPU: 0.9",
        "5: BS: 8, memcpy(), CPU: 7.2",
        "5: BS: 64, memcpy(), CPU: 57.6",
        "5: BS: 8, allocate, DSA: 0.3",
        "5: BS: 8, wait, DSA: 2",
        "6: a: throughput in GB/s, DSA: L,R, 4096: 4",
        "6: a: latency in µs, DSA: L,R, 4096: 1.024",
        "7: BS: 8, TS: 4 KiB, 2: 18",
        "9: N = 4, SWQ: N, 4096: 11",
        "9: N = 4, DWQ: N, 4096: 12",
        "9: N = 4, BS: N, 4096: 13",
        "11: , BS: 64, 4096: 75",
        "13: , Software, 1 MiB: 1.25",
        "15: Sync: throughput in GB/s, DSA: D,L, 4096: 4.096",
        "15: Sync: latency in µs, DSA: D,L, 4096: 1",
        "16: b: rate of DSA divided by that of CPU, DSA, 512: 1.125",
        "17: a: libfabric, by message size, Pingpong, 32 KiB: 3",
        "17: a: libfabric, by message size, Pingpong, at most: 4.75",
        "17: b: OSU MPI, above 1 MB, OSU MPI, 4 ranks: 2.75",
        "19: , get, 99.9 %: 5.25",
        "21: 16 KB random reads, DSA, 6.125: 100",
    ];
    let expected: BTreeSet<String> = expected.iter().map(|it| (*it).to_owned()).collect();
    assert_eq!(emulated, expected);
    for figure in &drawn {
        assert!(draw::document(figure).starts_with("<svg"), "{}", figure.name);
    }
}
