use std::sync::LazyLock;

use serde_json::json;

use super::figure::{Kind, Point, Scale};
use super::*;

mod backends;
mod kuper;

/// The same for each machine.
pub(super) static PAPERS: LazyLock<Papers> = LazyLock::new(|| Papers::read().unwrap());

fn report_on(machine: &Machine, records: &[Record]) -> (String, Vec<String>) {
    let report = Report::new(machine, records, &PAPERS, Path::new("results")).unwrap();
    (page::html(&report), report.figures().map(|figure| figure.name.clone()).collect())
}

#[test]
fn pages_of_all_machines() {
    for profile in Machine::profiles() {
        let (html, mut names) = report_on(&Machine::from_profile(profile).unwrap(), &[]);
        // Figures of the same name would overwrite each other, and ids must be unique.
        names.sort();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count, "{profile}");
        let ids: Vec<&str> = html.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let mut distinct = ids.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), ids.len(), "{profile}: {ids:?}");
        for link in html.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let file = link.trim_end_matches(".csv").trim_end_matches(".svg");
            let is_known = link == "data:,"
                || link.strip_prefix('#').is_some_and(|id| ids.contains(&id))
                || file == "machine"
                || names.iter().any(|name| name == file);
            assert!(is_known, "{profile}: {link} leads nowhere");
        }
        for outside in ["<script", "https:", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{profile}: {outside}");
        }
        assert!(html.contains("bench query"), "{profile} has no commands for missing records");
    }
}

#[test]
fn settings_follow_from_numbers() {
    let (html, _) = report_on(&Machine::from_profile("xeon-max-9468-2s-flat").unwrap(), &[]);
    for words in [
        "faster than a core from 3.9 KiB on",
        "from node 0 to node 8: push-pull with",
        "both on one node: no. b, 4096 MiB",
        "would cost 20 %",
        "on two nodes: yes. b, 4096 MiB",
    ] {
        assert!(html.contains(words), "{words:?} is missing");
    }
    let (html, _) = report_on(&Machine::from_profile("skylake-8180-snc-on").unwrap(), &[]);
    assert!(html.contains("this machine has no DSA") && html.contains("no memory is known to be faster"));
}

fn record(bench: &str, started: &str, rows: serde_json::Value) -> serde_json::Value {
    json!({ "bench": bench, "version": env!("CARGO_PKG_VERSION"), "commit": "abc", "started": started, "rows": rows,
        "machine": {}, "seed": 1, "options": {} })
}

/// A record of a benchmark with several backends.
fn record_on(on: &str, bench: &str, rows: serde_json::Value) -> serde_json::Value {
    let mut record = record(bench, "2026-01-01T00:00:00Z", rows);
    record["options"]["on"] = json!(on);
    record
}

#[test]
fn the_newest_record_of_each_benchmark_counts() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    let ratio = |ratio: f64| {
        json!([{ "name": "tpch_sf1_auto_geomean", "value": 2.0, "unit": "ms", "how": "measured",
        "samples": 11, "min": 1.0, "max": 3.0, "peer": "datafusion", "peer_value": 3.0, "ratio": ratio,
        "ratio_low": ratio, "ratio_high": ratio }])
    };
    write("2026-01-01-query.json", &record("query", "2026-01-01T00:00:00Z", ratio(3.0)).to_string());
    write("2026-02-01-query.json", &record("query", "2026-02-01T00:00:00Z", ratio(1.5)).to_string());
    write("submit.unfinished.json", "{");
    write("2026-02-01-query.csv", "not read");
    // A record of another version is used, and says so.
    let mut older = record("dsa", "2026-01-01T00:00:00Z", json!([]));
    older["version"] = json!("0.0.1");
    write("2026-01-01-dsa.json", &older.to_string());
    // A newer run without AVX-512 does not replace it.
    write("2026-02-01-dsa-avx2.json", &record("dsa", "2026-02-01T00:00:00Z", json!([])).to_string());
    let records = records::read(directory.path()).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(records[1].started, "2026-02-01T00:00:00Z");
    let (html, names) = report_on(&Machine::from_profile("spr-56c").unwrap(), &records);
    assert!(html.contains("TPC-H is 1.50 (1.50 to 1.50) times as fast"), "{html}");
    assert!(html.contains("dsa, 2026-01-01T00:00:00Z, memferry 0.0.1, commit abc"), "{html}");
    assert!(names.contains(&"queries-auto".to_owned()), "{names:?}");

    let error = |name: &str, text: &str| {
        write(name, text);
        let error = format!("{:#}", records::read(directory.path()).unwrap_err());
        fs::remove_file(directory.path().join(name)).unwrap();
        error
    };
    for broken in ["{", "[]", "{\"bench\": 1}"] {
        let broken = error("2026-03-01-x.json", broken);
        assert!(broken.contains("2026-03-01-x.json is not a record"), "{broken}");
    }
    assert!(records::read(&directory.path().join("nowhere")).unwrap().is_empty());
}

/// A record of a machine with monitors has a table of windows, others have none.
#[test]
fn counts_of_monitors_are_a_table() {
    let count = |name: &str, value: f64| json!({ "monitor": "memory", "name": name, "place": "socket 0", "unit": "bytes", "value": value });
    let window = |seconds: f64, rows: usize| {
        let mut estimated = count("write", 1000.0);
        estimated["counted_share"] = json!(0.25);
        let mut course = count("llc_occupancy", 2048.0);
        course["min"] = json!(1024.0);
        course["max"] = json!(4096.0);
        course["series"] = json!([[0.0, 1024.0], [1.0, 4096.0]]);
        json!({ "seconds": seconds, "rows_count": rows, "counts": [count("read", 8000.0), estimated, course] })
    };
    let row = |name: &str, telemetry: serde_json::Value| json!({ "name": name, "value": 2.0, "unit": "ns", "how": "measured", "telemetry": telemetry });
    let read = |rows: serde_json::Value| {
        let record = record("cache", "2026-01-01T00:00:00Z", rows).to_string();
        let records = vec![serde_json::from_str(&record).unwrap()];
        report_on(&Machine::from_profile("spr-56c").unwrap(), &records).0
    };
    let rows = json!([row("a", window(2.0, 2)), row("b", window(2.0, 2)), row("c", window(4.0, 1)),
        { "name": "d", "value": 2.0, "unit": "ns", "how": "modelled" }]);
    let html = read(rows);
    assert!(html.contains("counted meanwhile, measured in 2 windows"), "{html}");
    for cells in [
        "<tr><th scope=\"row\">a and 1 more</th><td>2.00</td><td>memory</td><td>read</td><td>socket 0</td>\
         <td>8000</td><td>bytes</td><td>4000</td><td></td></tr>",
        "<tr><th scope=\"row\">c</th><td>4.00</td><td>memory</td><td>write</td><td>socket 0</td><td>1000</td>\
         <td>bytes</td><td>250.00</td><td>estimated: counted in 25 % of the time</td></tr>",
        "<td>2048</td><td>bytes</td><td></td><td>mean of 1024 to 4096</td></tr>",
    ] {
        assert!(html.contains(cells), "{cells} is not in {html}");
    }
    assert!(!read(json!([row("a", serde_json::Value::Null)])).contains("counted meanwhile"));
}

#[test]
fn a_workload_is_drawn_over_time() {
    let row =
        |name: &str, value: f64| json!({ "name": name, "value": value, "unit": "ratio", "how": "measured" });
    let mut rows = vec![row("workload_warming", 1.6), row("workload_decoded_share_02", 0.5)];
    for (section, speed) in [(1, 1.5), (2, 2.5)] {
        let mut speed = row(&format!("workload_speed_{section:02}"), speed);
        speed["peer"] = json!("DataFusion");
        speed["peer_value"] = json!(1.0);
        rows.push(speed);
    }
    let mut text = record("workload", "2026-01-01T00:00:00Z", json!(rows));
    text["options"] = json!({ "seconds": 60, "sessions": 8, "scale": 1.0 });
    let figures = benchmarks::figures(&[serde_json::from_value(text).unwrap()]);
    let points = |name: &str| {
        let figure = figures.iter().find(|figure| figure.name == name).unwrap();
        assert_eq!(Figure::from_csv(&figure.csv()).unwrap().points, figure.points);
        let point = |point: &super::figure::Point| (point.series.clone(), point.x.clone(), point.y.unwrap());
        figure.points.iter().map(point).collect::<Vec<_>>()
    };
    let point = |series: &str, x: &str, y: f64| (series.to_owned(), x.to_owned(), y);
    assert_eq!(
        points("workload-speed"),
        [
            point("memferry", "15", 1.5),
            point("DataFusion", "15", 1.0),
            point("memferry", "45", 2.5),
            point("DataFusion", "45", 1.0)
        ]
    );
    assert_eq!(points("workload-shares"), [point("decoded", "45", 50.0)]);
    assert!(figures[0].about.contains("by 8 sessions"), "{}", figures[0].about);
}

/// Rows as the papers' benchmarks write them.
fn point(way: &str, size: u64, batch: u64, value: Option<f64>) -> serde_json::Value {
    json!({ "name": format!("submit_{way}_{size}_batch{batch}"), "value": value, "unit": "bytes/s", "how": "emulated",
        "samples": 1, "min": value, "max": value, "figure": "throughput", "way": way, "size_bytes": size,
        "batch": batch, "submitters": 1, "note": if value.is_none() { Some("a core has no batches") } else { None } })
}

#[test]
fn points_become_lines_over_a_varied_option() {
    let directory = tempfile::tempdir().unwrap();
    let mut rows = Vec::new();
    for way in ["core", "shared", "dedicated"] {
        for size in [1024, 4096, 16384] {
            for batch in [1, 8, 64] {
                let value = (way != "core" || batch == 1).then_some(1e6 * (size * batch) as f64);
                rows.push(point(way, size, batch, value));
            }
        }
    }
    let text = record_on("emulated", "submit", json!(rows)).to_string();
    fs::write(directory.path().join("2026-01-01-submit-emulated.json"), text).unwrap();
    // A point of the model, which has no ways, is in the same figures.
    let mut modelled = vec![point("any", 1024, 1, Some(2e9))];
    modelled[0]["how"] = json!("modelled");
    let text = record_on("model", "submit", json!(modelled)).to_string();
    fs::write(directory.path().join("2026-01-02-submit-modelled.json"), text).unwrap();
    let records = records::read(directory.path()).unwrap();
    assert_eq!(records.len(), 2);
    let figures = benchmarks::figures(&records);
    let [figure] = &figures[..] else { panic!("{figures:?}") };
    assert_eq!(figure.name, "bench-submit-throughput");
    // Eight series are too many for a panel; there are fewer batches than ways.
    let panels = draw::distinct(figure.points.iter().map(|point| point.panel.as_str()));
    assert_eq!(panels, ["no batch", "batch 8", "batch 64"]);
    assert!(figure.kind == Kind::Lines && figure.x.scale == Scale::Bytes, "{figure:?}");
    assert_eq!(figure.points.len(), 3 * (1 + 3 + 3) + 1);
    let has_most = figure.points.iter().any(|it| it.y == Some(16384.0 * 64.0 * 1e6 * 1e-9));
    assert!(has_most, "in GB/s: {figure:?}");
    let first: Vec<&Point> = figure.points.iter().filter(|point| point.panel == "no batch").collect();
    assert!(first.len() == 10 && first.iter().any(|it| it.how == Provenance::Modelled), "{first:?}");
    assert!(figure.about.contains("a core has no batches"), "{figure:?}");
    assert!(figure.about.contains("Fürst 2024, figure 3.4"), "{figure:?}");
    assert_eq!(Figure::from_csv(&figure.csv()).unwrap().points, figure.points);
}

/// A line for each memory over the number of workers; rows of queries and limits stay in the table.
#[test]
fn predicted_clusters_are_lines_over_workers() {
    let row = |name: &str, value: f64| json!({ "name": format!("cluster_model_{name}"), "value": value, "unit": "x", "how": "modelled" });
    let rows = json!([
        row("speed_up_w01_far", 1.0),
        row("speed_up_w16_far", 9.0),
        row("speed_up_w64_near", 30.0),
        row("near_gain_w16", 1.5),
        row("w16_far_by_network", 20.0),
        row("w16_far_q06", 0.5),
    ]);
    let record: Record =
        serde_json::from_value(record("cluster-model", "2026-01-01T00:00:00Z", rows)).unwrap();
    let figures = benchmarks::figures(&[record]);
    let [figure] = &figures[..] else { panic!("{figures:?}") };
    let points: Vec<_> =
        figure.points.iter().map(|it| (it.series.as_str(), it.x.as_str(), it.y.unwrap())).collect();
    let [far, near] = ["without near memory", "with near memory"];
    assert_eq!(points, [(far, "1", 1.0), (far, "16", 9.0), (near, "64", 30.0)]);
    assert!(figure.points.iter().all(|it| it.how == Provenance::Modelled), "{figure:?}");
    assert_eq!(Figure::from_csv(&figure.csv()).unwrap().points, figure.points);
}

#[test]
fn a_check_is_drawn_with_its_errors() {
    let row = |name: &str, value: f64, modelled: f64| {
        json!({ "name": name, "value": value, "unit": "us", "how": "measured", "samples": 1, "min": value,
            "max": value, "peer": "modelled", "peer_value": modelled, "ratio": modelled / value })
    };
    let median = json!({ "name": "own_error_median", "value": 7.5, "unit": "%", "how": "measured" });
    let rows = json!([median, row("copy_8KiB", 0.5, 0.6), row("scan_2x40MB_by_1", 5000.0, 4900.0)]);
    let record: Record = serde_json::from_value(record("calibrate", "2026-01-01T00:00:00Z", rows)).unwrap();
    let figures = benchmarks::figures(&[record]);
    let [errors, times] = &figures[..] else { panic!("{figures:?}") };
    assert!(errors.about.contains("is 7.5 %"), "{errors:?}");
    let values: Vec<f64> = errors.points.iter().filter_map(|it| it.y).collect();
    assert!((values[0] - 20.0).abs() < 1e-9 && (values[1] + 2.0).abs() < 1e-9, "{values:?}");
    let points: Vec<_> = times.points.iter().map(|it| (it.x.as_str(), it.how, it.y)).collect();
    assert_eq!(
        points[..2],
        [("copy 8KiB", Provenance::Measured, Some(500.0)), ("copy 8KiB", Provenance::Modelled, Some(600.0))]
    );
    let picture = draw::document(times);
    assert!(picture.contains("(+20.0 %)") && picture.contains("(−2.0 %)"), "{picture}");
}

#[test]
fn matrices_of_memory_are_heat_maps_and_curves() {
    let row = |figure: &str, memory: u32, pages: &str, value: f64| {
        json!({ "name": format!("{figure}_{memory}_{pages}"), "value": value, "unit": "ns", "how": "measured",
            "samples": 3, "min": value, "max": value + 1.0, "figure": figure, "cpus": 0, "memory": memory,
            "pages": pages, "threads": 2 })
    };
    let with = |mut row: serde_json::Value, columns: serde_json::Value| {
        row.as_object_mut().unwrap().extend(columns.as_object().unwrap().clone());
        row
    };
    let mut rows = vec![with(
        row("compared", 0, "huge", 99.0),
        json!({ "name": "idle_latency", "peer": "a loop", "ratio": 1.01, "ratio_low": 1.0, "ratio_high": 1.02 }),
    )];
    for (memory, factor) in [(0, 1.0), (8, 2.0)] {
        for pages in ["huge", "small"] {
            rows.push(row("latency", memory, pages, 100.0 * factor));
            rows.push(with(row("bandwidth", memory, pages, 5000.0 / factor), json!({ "traffic": "read" })));
            for (delay, load) in [(0, 9000.0), (50, 3000.0)] {
                let columns = json!({ "name": format!("loaded_{memory}_{pages}_{delay}"), "traffic": "mix",
                    "delay": delay, "load_mb_per_s": load });
                rows.push(with(row("loaded_latency", memory, pages, 150.0 * factor), columns));
            }
        }
    }
    let record: Record =
        serde_json::from_value(record("memory", "2026-01-01T00:00:00Z", json!(rows))).unwrap();
    let figures = benchmarks::figures(&[record]);
    let kinds: Vec<(&str, Kind)> = figures.iter().map(|it| (it.name.as_str(), it.kind)).collect();
    assert_eq!(
        kinds,
        [
            ("memory-latency", Kind::HeatLess),
            ("memory-bandwidth", Kind::HeatMore),
            ("memory-loaded-0-to-0", Kind::Lines),
            ("memory-loaded-0-to-8", Kind::Lines),
            ("memory-compared", Kind::Rows),
        ]
    );
    let cells = |index: usize| -> Vec<(&str, &str, &str, Option<f64>)> {
        figures[index].points.iter().map(|it| (&*it.panel, &*it.series, &*it.x, it.y)).collect()
    };
    assert_eq!(cells(0)[3], ("small pages", "0", "8", Some(200.0)));
    assert_eq!(cells(1)[2], ("read, huge pages", "0", "8", Some(2.5)), "in GB/s");
    assert_eq!(cells(3)[2], ("", "mix, small pages", "9", Some(300.0)));
    // The most of a curve may be an interrupted round.
    assert!(figures[2].points.iter().all(|it| it.range.is_none()), "{:?}", figures[2]);
    assert_eq!(figures[4].points[0].range, Some((1.0, 1.02)));
    for figure in &figures {
        assert_eq!(Figure::from_csv(&figure.csv()).unwrap().points, figure.points);
        assert!(draw::document(figure).ends_with("</svg>\n"), "{}", figure.name);
    }
}

/// Fields that distinguish rows of a benchmark distinguish them in its figures.
#[test]
fn tenants_are_named_by_priorities_and_read_buffers() {
    let row = |priorities: Option<&str>, buffers: Option<&str>, value: f64| {
        let mut row = point("shared", 65536, 1, Some(value));
        (row["figure"], row["priorities"], row["read_buffers"]) =
            (json!("tenant1"), json!(priorities), json!(buffers));
        row
    };
    let rows = json!([
        row(Some("15-1"), None, 2e9),
        row(Some("10-10"), None, 1e9),
        row(None, Some("96-16"), 3e9),
        row(None, Some("92-4"), 4e9)
    ]);
    let record: Record = serde_json::from_value(record("priority", "2026-01-01T00:00:00Z", rows)).unwrap();
    let figures = benchmarks::figures(&[record]);
    let points = figures.iter().flat_map(|it| &it.points);
    let mut names: Vec<String> = points.map(|it| format!("{} {}", it.series, it.x)).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4, "{figures:?}");
}

#[test]
fn many_operations_are_divided() {
    let rows: Vec<_> = (0..18)
        .map(|index| {
            let mut row = point("core", 4096 << (index % 2), 1, Some(1e9));
            row["operation"] = json!(format!("operation {}", index / 2));
            row
        })
        .collect();
    let record: Record =
        serde_json::from_value(record("operations", "2026-01-01T00:00:00Z", json!(rows))).unwrap();
    let figures = benchmarks::figures(&[record]);
    let [figure] = &figures[..] else { panic!("{} figures", figures.len()) };
    assert_eq!(figure.title, "operations: throughput");
    let count = |panel: &str| figure.points.iter().filter(|point| point.panel == panel).count();
    assert_eq!((count("part 1"), count("part 2")), (12, 6));
    let picture = draw::document(figure);
    assert!(picture.contains(">part 1<") && picture.contains(">part 2<"), "titles of the panels: {picture}");
}

#[test]
fn advice_has_the_measured_break_even() {
    let row = |way, size, rate| {
        let mut row = point(way, size, 1, Some(rate));
        row["how"] = json!("measured");
        row
    };
    let rows = |shared: f64| {
        let rows = json!([
            row("core", 4096, 9e9),
            row("core", 65536, 8e9),
            row("core", 1 << 20, 7e9),
            row("shared", 4096, 2e9),
            row("shared", 65536, shared),
            row("shared", 1 << 20, 3e10)
        ]);
        serde_json::from_value::<Record>(record("submit", "2026-01-01T00:00:00Z", rows)).unwrap()
    };
    let machine = Machine::from_profile("spr-56c").unwrap();
    let words = |record| report_on(&machine, &[record]).0;
    assert!(
        words(rows(2e10))
            .contains("waits for each copy: a shared queue is faster than a core from 64 KiB on")
    );
    assert!(
        words(rows(2e9)).contains("waits for each copy: a shared queue is faster than a core from 1 MiB on")
    );
}

#[test]
fn errors_of_figures_name_the_line() {
    let good = "# memferry figure 1\n# name: a\n# kind: lines\n# title: t\n# about: \n# x: size, bytes\n# y: rate, \
                linear\n\
                panel,series,how,x,y,low,high\n,s,measured,1024,2.5,,\n,\"a, b\",published,2048,3,2,4\n";
    let figure = Figure::from_csv(good).unwrap();
    assert_eq!(figure.points[1].series, "a, b");
    assert_eq!(figure.points[1].range, Some((2.0, 4.0)));
    let cases = [
        ("figure 1", "figure 2", "another version"),
        ("# memferry figure 1", "panel,series", "not a figure of a report"),
        ("# name: a", "# name: ../a", "line 2"),
        ("kind: lines", "kind: pie", "line 3: unknown variant `pie`, expected one of `lines`, `bars`"),
        ("# title: t\n", "", "line 4 is not \"# title: ...\""),
        ("size, bytes", "size", "line 6"),
        ("rate, linear", "rate, round", "line 7: unknown variant `round`"),
        ("panel,series,how", "series,how", "line 8"),
        (",s,measured,1024,2.5,,", ",s,measured,1024", "line 9: it has 4 fields instead of 7"),
        ("measured", "guessed", "line 9: unknown variant `guessed`"),
        ("1024,2.5", "1024,many", "line 9: y is \"many\""),
        ("1024,2.5", "1024,NaN", "line 9: y is \"NaN\""),
        ("1024,2.5", "wide,2.5", "line 9: x is \"wide\""),
        ("1024,2.5", "0,2.5", "line 9: a logarithmic scale"),
        ("1024,2.5", ",", "line 9: it has no y"),
        ("3,2,4", "3,4,2", "line 10: low and high must"),
        ("\"a, b\"", "\"a, b", "line 10: it has 2 fields"),
    ];
    for (from, to, words) in cases {
        assert!(good.contains(from), "{from}");
        let error = Figure::from_csv(&good.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(words), "{words:?} is not in: {error}");
    }
    let rows = good.replacen("kind: lines", "kind: rows", 1).replacen(",s,measured", "p,s,measured", 1);
    assert!(Figure::from_csv(&rows).unwrap_err().contains("line 9: a figure of kind rows has no panels"));
    let empty = good.split_inclusive('\n').take(8).collect::<String>();
    assert!(Figure::from_csv(&empty).unwrap_err().contains("no points"));
    assert!(Figure::from_csv("").is_err());
}

#[test]
fn files_are_written_whole_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("new").join("report");
    let files =
        |second: &str| vec![("a.csv".to_owned(), "1".to_owned()), (second.to_owned(), "2".to_owned())];
    write_all(&out, &files("b.csv")).unwrap();
    assert_eq!(fs::read_to_string(out.join("b.csv")).unwrap(), "2");
    // If the second file cannot be written, the first does not appear.
    let other = directory.path().join("other");
    write_all(&other, &files("missing/b.csv")).unwrap_err();
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
}

/// The bars are those of the scenarios, and their parts are all of the traffic.
#[test]
fn figures_of_the_study_are_its_runs() {
    let figures = PAPERS.study_figures().unwrap();
    let points = |name: &str| {
        &figures.iter().find(|it| it.name == format!("greinsmark-figure-{name}")).unwrap().points
    };
    for number in 12..=14 {
        let rows =
            memferry_bench::model::scenario(&format!("snc-figure-{number}")).unwrap().run(None).unwrap();
        let value = |name: &str| rows.iter().find(|row| row.name == name).unwrap().value;
        for (bar, run) in [
            ("SNC off", "SNC off"),
            ("SNC off, half", "SNC off, half of the cores"),
            ("both", "both sub-domains"),
            ("both, steal", "both sub-domains, stealing"),
            ("half", "half of the cores"),
            ("half, steal", "half of the cores, stealing"),
            ("0a", "sub-domain 0a"),
            ("0b", "sub-domain 0b"),
        ] {
            for first in 0..=6 {
                let skew = format!("{first}/{}", 6 - first);
                let name = format!("{run}, {skew}");
                let of = |kind: &str, panel: &str| -> Vec<f64> {
                    let is = |it: &&Point| it.x == bar && it.series == skew && it.panel.starts_with(panel);
                    points(&format!("{number}-{kind}")).iter().filter(is).filter_map(|it| it.y).collect()
                };
                assert_eq!(of("throughput", ""), [value(&name)], "{number}: {name}");
                for (panel, what) in [("", "memory"), ("remote", "away")] {
                    let (found, wanted): (f64, f64) =
                        (of("memory", panel).iter().sum(), value(&format!("{name}: {what}")));
                    assert!((found - wanted).abs() < 1e-6, "{number}: {name}, {what}: {found} and {wanted}");
                }
            }
        }
    }
    // Sizes beside the printed ones; and the loss if a random access did nothing but wait for memory.
    for column in ["C0, with its index", "each of C1 to C6"] {
        let of = |how: Provenance| {
            points("8").iter().find(|it| it.x == column && it.how == how).and_then(|it| it.y).unwrap()
        };
        let (modelled, published) = (of(Provenance::Modelled), of(Provenance::Published));
        assert!((modelled / published - 1.0).abs() < 0.03, "{column}: {modelled} and {published}");
    }
    let least = points("11").iter().find(|it| it.x == "SNC" && it.how == Provenance::Modelled).unwrap();
    assert!((least.y.unwrap() - 87.07).abs() < 0.05 && least.range.is_some(), "{least:?}");
}
