//! The model against what was published, and scenarios.

use std::collections::BTreeMap;

use memferry::model::ModelError;
use memferry::topology::Machine;
use memferry_bench::harness::Row;
use memferry_bench::model::{self, Why};
use memferry_bench::sncdb;

fn xeon_max() -> Machine {
    Machine::from_profile("xeon-max-9468-2s-flat").expect("built in")
}

fn bounds() -> BTreeMap<String, f64> {
    let rows = model::validate().expect("built in").bounds;
    rows.into_iter().map(|row| (row.name, row.value)).collect()
}

/// The required bounds of the model; before each its rounded result.
#[test]
fn the_model_is_as_close_as_it_must_be() {
    let bounds = bounds();
    assert_eq!(bounds["table_6_2_order"], 1.0);
    for (name, reached, demanded) in [
        ("t62_prefetch_error", 3.0, 15.0),
        ("t62_distributed_error", 8.0, 15.0),
        ("t62_hit_error_points", 2.0, 7.0),
        ("peak_error", 2.0, 5.0),
        // Where waiting breaks even was calibrated on one size and is checked with the range over all memories; the two
        // sizes that are printed for a busy device are a power of two apart, and one was calibrated on.
        ("break_even_waited_error", 0.01, 1.0),
        ("break_even_pipelined_error", 1.0, 1.0),
        ("saturation_error", 0.2, 1.0),
        ("figure_10_error", 4.0, 10.0),
    ] {
        assert!(reached <= demanded && bounds[name] <= reached, "{name}: {}", bounds[name]);
    }
    for (name, reached, demanded) in
        [("advise_same_node", 1.0, 1.0), ("advise_distributed", 1.35, 1.23), ("advise_reused", 1.40, 1.38)]
    {
        assert!(reached >= demanded && bounds[name] >= reached, "{name}: {}", bounds[name]);
    }
}

#[test]
fn the_page_lists_every_figure() {
    let coverage = model::validate().expect("built in").coverage;
    let page = include_str!("../../../../docs/benchmarks/coverage.md");
    let command = "cargo run -p memferry-bench --example coverage > docs/benchmarks/coverage.md";
    assert!(model::coverage_page(&coverage) == page, "docs/benchmarks/coverage.md is old: {command}");
}

/// The error includes rows that the model does not explain.
#[test]
fn the_error_of_sub_domains_is_that_of_the_worst_row() {
    let validation = model::validate().expect("built in");
    let error_of = |row: &str| {
        let of = validation.predictions.iter().filter(|it| it.rows.contains(&row));
        of.map(|it| it.error_percent().abs()).fold(0.0, f64::max)
    };
    let snc = bounds()["snc_error"];
    for row in ["G223", "G228", "G231", "G233", "G237", "G239", "G241"] {
        assert!(snc >= error_of(row), "{row}: {} above {snc}", error_of(row));
    }
    assert!(error_of("G233") > 5.0 && snc < 25.0, "{snc}");
}

#[test]
fn every_published_row_is_predicted_or_has_a_reason() {
    let validation = model::validate().expect("built in");
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for prediction in &validation.predictions {
        // Several predictions may be about one row, e.g. one a node.
        prediction.rows.iter().for_each(|row| _ = seen.insert(row, 1));
        assert!(prediction.published.0 <= prediction.published.1, "{}", prediction.name);
        assert!(prediction.predicted.is_finite(), "{}", prediction.name);
    }
    for other in &validation.others {
        *seen.entry(&other.row).or_default() += 1;
    }
    for figure in model::figures() {
        assert_eq!(seen.remove(figure.id.as_str()), Some(1), "{}: {}", figure.id, figure.quantity);
    }
    assert!(seen.is_empty(), "no such rows: {seen:?}");
    assert!(validation.others.iter().any(|other| other.why == Why::Unexplained));
}

/// Large errors have a reason, and fits are close.
#[test]
fn large_errors_have_a_reason() {
    for prediction in model::validate().expect("built in").predictions {
        let error = prediction.error_percent().abs();
        assert!(error <= 8.0 || prediction.unexplained.is_some(), "{}: {error} %", prediction.name);
        assert!(!prediction.is_fit || error < 3.0, "{}: {error} %", prediction.name);
    }
}

/// The profiles hold the tables of the publication.
#[test]
fn profiles_are_the_published_tables() {
    let mut compared = 0;
    for figure in model::figures() {
        let fields: BTreeMap<&str, &str> =
            figure.configuration.split(';').filter_map(|field| field.split_once('=')).collect();
        let name = match (fields.get("cpu_model").copied(), fields.get("mode").copied()) {
            (Some("Broadwell E5-2699v4"), Some("COD off")) => "broadwell-2699v4-cod-off",
            (Some("Broadwell E5-2699v4"), Some("COD on")) => "broadwell-2699v4-cod-on",
            (Some("Skylake 8180"), Some("SNC off")) => "skylake-8180-snc-off",
            (Some("Skylake 8180"), Some("SNC on")) => "skylake-8180-snc-on",
            _ => continue,
        };
        let node = |domain: &str| match domain.trim_start_matches("Domain ") {
            "0a" | "0" => memferry::topology::NodeId(0),
            "0b" => memferry::topology::NodeId(1),
            "1" if name.ends_with("off") => memferry::topology::NodeId(1),
            "1a" => memferry::topology::NodeId(2),
            "1b" => memferry::topology::NodeId(3),
            other => panic!("domain {other}"),
        };
        let link =
            Machine::from_profile(name).expect("built in").link(node(fields["cpu"]), node(fields["mem"]));
        let value = figure.number().expect("a number");
        let ours = match (figure.quantity.as_str(), fields.get("stat").copied()) {
            ("memory latency", Some("avg")) => link.read_latency_ns,
            ("memory bandwidth", _) => link.read_bytes_per_s.map(|rate| rate as f64 / 1e6),
            _ => continue,
        };
        assert_eq!(ours, Some(value), "{}", figure.id);
        compared += 1;
    }
    assert_eq!(compared, 80);
}

#[test]
fn all_scenarios_run_and_the_table_is_the_validated_one() {
    for name in model::scenarios() {
        let scenario = model::scenario(name).expect(name);
        let rows = scenario.run(None).expect(name);
        assert!(!rows.is_empty() && !scenario.about().is_empty());
        // Parts of a run may be 0, such as what was stolen.
        let is_whole =
            |row: &Row| row.value > 0.0 || name.starts_with("snc-figure") && row.name.contains(": ");
        assert!(rows.iter().all(|row| row.value.is_finite() && is_whole(row)), "{name}: {rows:?}");
    }
    let rows = model::scenario("table-6.2").expect("built in").run(None).expect("known");
    let total = |name: &str| rows.iter().find(|row| row.name == name).expect(name).value;
    let validation = model::validate().expect("built in");
    for (row, name) in [
        ("F072", "DDR-SDRAM (Baseline)"),
        ("F073", "HBM (Upper Limit)"),
        ("F082", "Prefetching"),
        ("F085", "Prefetching, Distributed Columns"),
    ] {
        let prediction = validation.predictions.iter().find(|prediction| prediction.rows.contains(&row));
        assert_eq!(prediction.expect(row).predicted, total(name));
    }
}

/// Predictions equal the results of the scenarios.
#[test]
fn scenarios_are_what_is_validated() {
    let predictions = model::validate().expect("built in").predictions;
    let predicted = |row: &str| {
        let found = predictions.iter().find(|prediction| prediction.rows.contains(&row));
        found.expect(row).predicted
    };
    let value = |scenario: &str, row: &str| {
        let rows = model::scenario(scenario).expect(scenario).run(None).expect(scenario);
        rows.iter().find(|it| it.name == row).expect(row).value
    };
    let off = |scenario| value(scenario, "SNC off, 3/3");
    let is_alike = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-6, "{one}, {other}");
    let few = "snc-figure-12";
    is_alike(predicted("G237"), 100.0 * value(few, "sub-domain 0a, 3/3") / off(few));
    let some = "snc-figure-13";
    is_alike(predicted("G233"), 100.0 * value(some, "both sub-domains, 3/3") / off(some));
    is_alike(predicted("G249"), value("snc-packed", "SNC off"));
    let large = |devices| format!("1048576 B, batch 1, 32 under way, {devices} devices");
    is_alike(predicted("K051"), value("kuper-devices", &large(3)));
    is_alike(predicted("K052"), value("kuper-devices", &large(4)));
}

/// More devices than a machine has copy nothing, and several share a memory whose rate is known.
#[test]
fn several_devices() {
    let devices = model::scenario("kuper-devices").expect("built in");
    let five = devices.with("submit.devices", "[5]").expect("there").run(None).unwrap_err().to_string();
    assert!(five.contains("5 devices") && five.contains("spr-56c has 4"), "{five}");
    let none = devices.with("submit.devices", "[0]").expect("there").run(None).unwrap_err().to_string();
    assert!(none.contains("begin at 1"), "{none}");
    let rows = devices.run(Some(&xeon_max())).expect("known");
    let most = rows.iter().filter(|row| row.name.ends_with("4 devices")).map(|row| row.value);
    let dram = xeon_max().parameter("dram_mb_per_s").expect("there") / 1e3;
    // Within one memory each byte passes twice.
    assert!((most.reduce(f64::max).expect("rows") / (dram / 2.0) - 1.0).abs() < 1e-9, "{rows:?}");
}

#[test]
fn scenarios_take_other_values_and_refuse_nonsense() {
    let table = model::scenario("table-6.2").expect("built in");
    let total = |scenario: &model::Scenario| scenario.run(None).expect("known")[0].value;
    let half = table.with("query.runs.0.columns.1.size", "\"2 GiB\"").expect("there");
    assert!(total(&half) < 0.8 * total(&table));
    assert!((total(&table.with("query.groups", "4").expect("there")) / total(&table) - 1.0).abs() < 0.05);
    // A value that is not TOML is text.
    let routed = table.with("query.runs.2.prefetch.0.route", "push-pull").expect("there");
    let prefetched = |scenario: &model::Scenario| scenario.run(None).expect("known")[6].value;
    assert_ne!(prefetched(&routed), prefetched(&table));

    let refuses = |result: Result<model::Scenario, ModelError>, word: &str| {
        let error = result.expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    refuses(table.with("query.grups", "4"), "grups");
    refuses(table.with("query.runs.9.name", "x"), "no 9");
    refuses(table.with("query.runs.0.columns.0.size", "large"), "no size");
    refuses(model::scenario("table-7"), "table-6.2");
    refuses(model::scenario("/nowhere/at.toml"), "/nowhere/at.toml");
    refuses(model::Scenario::parse("x", "about = ''\nmachine = ''"), "one of the tables");

    let fails = |scenario: Result<model::Scenario, ModelError>, word: &str| {
        let error = scenario.expect("it parses").run(None).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    fails(table.with("query.groups", "0"), "a group");
    fails(table.with("query.chunk", "1"), "make them larger");
    fails(table.with("query.groups", "1000000000000"), "the groups fewer");
    fails(table.with("query.cpus", "8"), "no CPUs");
    fails(table.with("query.cpus", "99"), "no node 99");
    fails(table.with("query.runs.0.stages.0.reads", "[\"c\"]"), "column c");
    fails(table.with("query.runs.0.stages.0.threads", "0"), "no thread");
    // Rows are compared by their names.
    fails(table.with("query.runs.1.name", "DDR-SDRAM (Baseline)"), "two rows would be called");
    fails(table.with("query.runs.0.columns.1.name", "a"), "two columns a");
    fails(table.with("query.runs", "[]"), "nothing to compute");
    fails(table.with("machine", "made-up-two-tiers"), "node");
    let scans = model::scenario("snc-scans").expect("built in");
    fails(scans.with("clients.count", "1000000000"), "at most");
    fails(scans.with("clients.count", "0"), "read nothing");
    let tables = model::scenario("snc-figure-12").expect("built in");
    fails(tables.with("tables.on_first", "[7]"), "7 predicates");
    fails(tables.with("tables.range_pred", "0"), "below 0");
    fails(tables.with("tables.tasks_per_column", "0"), "begin at 1");
    fails(tables.with("tables.tasks_per_column", "1000000000"), "at most");
    fails(tables.with("tables.runs.0.stealing", "true"), "two domains");
    fails(tables.with("tables.on_first", "[]"), "nothing to compute");
    refuses(tables.with("tables.runs.0.workers", "\"none\""), "none");
    let submit = model::scenario("kuper-submit").expect("built in");
    fails(submit.with("submit.sizes.0", "0"), "begin at 1");
    fails(submit.with("submit.under_way.0", "0"), "begin at 1");
    let routes = model::scenario("thesis-routes").expect("built in");
    fails(routes.with("copy.size", "0"), "begin at 1");
    // A machine whose memories nobody has measured.
    let two_tiers = Machine::two_tiers().expect("built in");
    let nearest = table.with(
        "query.runs",
        r#"[{ name = "x", columns = [{ name = "a", size = 1, node = 0 }],
        stages = [{ name = "s", reads = ["a"], threads = 1 }] }]"#,
    );
    let error = nearest.expect("it parses").run(Some(&two_tiers)).expect_err("unknown").to_string();
    assert!(error.contains("the rate of the memory of node 0 is not known"), "{error}");
}

/// Every key has an effect.
#[test]
fn every_key_of_a_scenario_counts() {
    let mut unused = Vec::new();
    for (name, path, value) in [
        ("table-6.2", "query.groups", "3"),
        ("table-6.2", "query.chunk", "64 MiB"),
        ("table-6.2", "query.wait", "true"),
        ("table-6.2", "query.runs.0.columns.0.size", "1 GiB"),
        ("table-6.2", "query.runs.0.columns.0.node", "8"),
        ("table-6.2", "query.runs.0.stages.0.reads", "[\"a\", \"b\"]"),
        ("table-6.2", "query.runs.0.stages.0.threads", "2"),
        ("table-6.2", "query.runs.0.stages.0.thread_mb_per_s", "100.0"),
        ("table-6.2", "query.runs.2.prefetch.0.column", "a"),
        ("table-6.2", "query.runs.2.prefetch.0.node", "2"),
        ("table-6.2", "query.runs.2.prefetch.0.route", "single"),
        ("table-6.2", "query.runs.2.prefetch.0.chunks", "1"),
        ("thesis-routes", "copy.source", "4"),
        ("thesis-routes", "copy.targets", "[9]"),
        ("thesis-routes", "copy.size", "1 MiB"),
        ("thesis-routes", "copy.routes", "[\"single\"]"),
        ("kuper-submit", "submit.sizes", "[512]"),
        ("kuper-submit", "submit.batches", "[3]"),
        ("kuper-submit", "submit.under_way", "[3]"),
        ("kuper-devices", "submit.devices", "[3]"),
        ("snc-scans", "clients.count", "1"),
        ("snc-scans", "clients.column", "100 MB"),
        ("snc-scans", "clients.runs.0.machine", "skylake-8180-snc-on"),
        ("snc-scans", "clients.runs.1.reads.0.cpus", "1"),
        ("snc-scans", "clients.runs.1.reads.0.node", "2"),
        ("snc-scans", "clients.runs.1.reads.0.columns", "3"),
        ("snc-figure-12", "tables.range_pred", "20000"),
        ("snc-figure-12", "tables.on_first", "[3]"),
        ("snc-figure-12", "tables.tasks_per_column", "7"),
        ("snc-figure-12", "tables.task_spread", "0.1"),
        ("snc-figure-12", "tables.runs.0.machine", "skylake-8180-snc-on"),
        ("snc-figure-12", "tables.runs.2.workers", "first"),
        ("snc-figure-12", "tables.runs.2.stealing", "true"),
    ] {
        let own = model::scenario(name).expect("built in");
        // A part of its runs: all of them take a second.
        let own = match name {
            "snc-figure-12" => own.with("tables.on_first", "[3, 2]").expect("there"),
            _ => own,
        };
        let other = own.with(path, value).expect(path).run(None).expect(path);
        let of = |rows: Vec<Row>| -> Vec<(String, f64)> {
            rows.into_iter().map(|row| (row.name, row.value)).collect()
        };
        if of(own.run(None).expect(name)) == of(other) {
            unused.push(path);
        }
    }
    assert!(unused.is_empty(), "{unused:?}");
}

/// Queries per second of each bar, from six columns on the first table to none. After an intended change of the model, write
/// the new ones here and in docs/decisions/sub-numa-study.md.
#[test]
fn bars_of_figures_12_to_14() {
    let runs = [
        ("SNC off", ""),
        ("SNC off, half of the cores", ""),
        ("both sub-domains", "all"),
        ("both sub-domains, stealing", "all_stealing"),
        ("half of the cores", "half"),
        ("half of the cores, stealing", "half_stealing"),
        ("sub-domain 0a", "first"),
        ("sub-domain 0b", "second"),
    ];
    const FIGURE_12: [[f64; 7]; 8] = [
        [115.56, 115.56, 115.56, 115.56, 115.56, 115.56, 115.56],
        [115.56, 115.56, 115.56, 115.56, 115.56, 115.56, 115.56],
        [60.42, 72.59, 90.79, 120.54, 90.47, 72.45, 60.35],
        [61.24, 73.46, 91.67, 120.54, 91.55, 73.43, 61.22],
        [60.43, 72.54, 90.66, 120.27, 90.52, 72.44, 60.35],
        [61.24, 73.45, 91.40, 120.27, 91.37, 73.37, 61.22],
        [60.42, 65.06, 70.47, 70.51, 70.83, 71.30, 62.00],
        [62.02, 71.31, 70.82, 70.45, 70.41, 64.98, 60.35],
    ];
    const FIGURE_13: [[f64; 7]; 8] = [
        [111.01, 111.00, 111.00, 111.00, 111.00, 111.00, 111.01],
        [111.01, 111.00, 111.00, 111.00, 111.00, 111.00, 111.01],
        [58.05, 69.73, 87.07, 115.79, 86.93, 69.59, 57.97],
        [60.00, 71.95, 89.42, 115.79, 89.32, 71.88, 59.97],
        [58.05, 69.68, 87.10, 115.53, 86.98, 69.55, 57.98],
        [60.00, 71.88, 89.04, 115.53, 88.94, 71.80, 59.98],
        [58.05, 62.61, 67.97, 68.56, 69.45, 70.49, 62.00],
        [62.02, 70.49, 69.44, 68.50, 67.91, 62.54, 57.97],
    ];
    const FIGURE_14: [[f64; 7]; 8] = [
        [80.78, 80.37, 80.12, 80.04, 80.12, 80.37, 80.78],
        [80.78, 80.37, 80.12, 80.04, 80.12, 80.37, 80.78],
        [42.24, 50.59, 63.04, 83.50, 62.91, 50.49, 42.19],
        [50.28, 59.64, 71.25, 83.50, 71.29, 59.61, 50.26],
        [42.24, 50.53, 63.12, 83.31, 62.94, 50.49, 42.19],
        [50.28, 59.00, 69.92, 83.31, 69.86, 58.95, 50.26],
        [42.24, 45.88, 50.34, 53.70, 57.68, 62.40, 62.00],
        [62.02, 62.38, 57.65, 53.66, 50.29, 45.82, 42.19],
    ];
    let of_machine =
        sncdb::rows(&Machine::from_profile("skylake-8180-snc-on").expect("built in")).expect("known");
    for (figure, range_pred, wanted) in
        [(12, 10_000, FIGURE_12), (13, 100_000, FIGURE_13), (14, 1_000_000, FIGURE_14)]
    {
        let rows =
            model::scenario(&format!("snc-figure-{figure}")).expect("built in").run(None).expect("known");
        let value = |rows: &[Row], name: &str| rows.iter().find(|row| row.name == name).expect(name).value;
        for ((run, setting), wanted) in runs.into_iter().zip(wanted) {
            for (second, wanted) in wanted.into_iter().enumerate() {
                let first = 6 - second;
                let found = value(&rows, &format!("{run}, {first}/{second}"));
                assert!(
                    (found / wanted - 1.0).abs() < 1e-3,
                    "figure {figure}, {run}, {first}/{second}: {found}"
                );
                if !setting.is_empty() {
                    let same = value(&of_machine, &format!("scan_{range_pred}_{setting}_{first}_{second}"));
                    assert_eq!(same, found, "figure {figure}, {run}, {first}/{second}");
                }
            }
        }
    }
}
