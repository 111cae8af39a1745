//! The model against what was published, and what must hold whatever the numbers are.

use std::collections::BTreeMap;

use memferry::model::{self, Column, Fairness, Fetch, Hardware, ModelError, Pipeline, Plan, Stage, Why};
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};
use proptest::prelude::*;

fn xeon_max() -> Machine {
    Machine::from_profile("xeon-max-9468-2s-flat").expect("built in")
}

fn bounds() -> BTreeMap<String, f64> {
    let rows = model::validate().expect("built in").bounds;
    rows.into_iter().map(|row| (row.name, row.value)).collect()
}

/// What is demanded of the model, and before it what it reaches, rounded.
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
        ("snc_error", 4.5, 5.0),
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

/// What is far off is said to be, and what is a fit is close.
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
            "0a" | "0" => NodeId(0),
            "0b" => NodeId(1),
            "1" if name.ends_with("off") => NodeId(1),
            "1a" => NodeId(2),
            "1b" => NodeId(3),
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
        assert!(rows.iter().all(|row| row.value.is_finite() && row.value > 0.0), "{name}: {rows:?}");
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

/// What is compared with publications, and what somebody computes to see the same, are the same.
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
    let off = value("snc-scans", "SNC off");
    let is_alike = |one: f64, other: f64| assert!((one / other - 1.0).abs() < 1e-6, "{one}, {other}");
    is_alike(predicted("G237"), 100.0 * value("snc-scans", "balanced, 3/3, workers on one") / off);
    is_alike(predicted("G233"), 100.0 * value("snc-scans", "balanced, 3/3") / off);
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
    let dram = xeon_max().parameter("dram_mb_per_s").expect("there").value / 1e3;
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
    // What is no TOML is text.
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

/// A key that is read and not used would be worse than none.
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
    ] {
        let own = model::scenario(name).expect("built in");
        let other = own.with(path, value).expect(path).run(None).expect(path);
        let of = |rows: Vec<model::Row>| -> Vec<(String, f64)> {
            rows.into_iter().map(|row| (row.name, row.value)).collect()
        };
        if of(own.run(None).expect(name)) == of(other) {
            unused.push(path);
        }
    }
    assert!(unused.is_empty(), "{unused:?}");
}

#[test]
fn profiles_with_nonsense_for_parameters_are_refused() {
    let text = include_str!("../../../machines/made-up-two-tiers.json");
    let with = |parameter: &str| {
        let parameters = format!("\"parameters\": [{parameter}], \"placeholders\"");
        Machine::from_profile_text("x", &text.replacen("\"placeholders\"", &parameters, 1))
    };
    for (parameter, word) in [
        (r#"{"name": "a", "value": -1, "basis": "assumed", "source": "why"}"#, "leave it out"),
        (r#"{"name": "a", "value": 1, "basis": "assumed", "source": " "}"#, "no source"),
        (r#"{"name": "a", "value": 1, "basis": "published", "source": "hearsay"}"#, "references"),
        (r#"{"name": "a", "value": 1, "basis": "calibrated", "source": "made up"}"#, "on which rows"),
        (
            r#"{"name": "a", "value": 1, "basis": "assumed", "rows": ["F001"], "source": "why"}"#,
            "not calibrated",
        ),
        (r#"{"name": "a", "value": 1, "basis": "guessed", "source": "why"}"#, "guessed"),
    ] {
        let error = with(parameter).expect_err(word).to_string();
        assert!(error.contains(word), "{error}");
    }
    let one = r#"{"name": "dram_mb_per_s", "value": 1, "basis": "assumed", "source": "why"}"#;
    assert!(with(&format!("{one}, {one}")).expect_err("twice").to_string().contains("twice"));
    let misspelt = with(&one.replace("dram", "drum")).expect("a model's business");
    for (name, value, word) in
        [("dram_mb_per_s", 0.0, "above 0"), ("device_share", 0.0, "above 0"), ("thread_skew", 1.0, "below 1")]
    {
        let text = format!(r#"{{"name": "{name}", "value": {value}, "basis": "assumed", "source": "why"}}"#);
        let error = Hardware::of(&with(&text).expect("a model's business")).expect_err(name).to_string();
        assert!(error.contains(name) && error.contains(word), "{error}");
    }
    let error = Hardware::of(&misspelt).expect_err("unknown").to_string();
    assert!(error.contains("drum_mb_per_s") && error.contains("thread_skew"), "{error}");
}

/// Two columns, the second one late.
fn plan(a: u32, b: u32) -> Plan {
    let column = |name: &str, node| Column { name: name.into(), size_bytes: 4 << 30, node: NodeId(node) };
    let stage = |name: &str, column| Stage {
        name: name.into(),
        reads: vec![column],
        threads_count: 32,
        thread_rate_max: f64::INFINITY,
    };
    Plan {
        columns: vec![column("a", a), column("b", b)],
        stages: vec![stage("scan", 0), stage("aggregate", 1)],
        cpus: NodeId(0),
        chunk_bytes: 8 << 20,
        near: None,
        reads_to_come: 0,
    }
}

#[test]
fn advice_is_not_to_compete_with_the_scan() {
    let same = model::advise(&xeon_max(), &plan(0, 0)).expect("known");
    assert_eq!((same.chosen, same.fetches().len()), (None, 0));
    assert_eq!(same.predicted_s(), same.baseline_s);
    let words = same.words();
    assert!(!words.is_empty() && words.iter().all(|line| line.ends_with(": no")), "{words:?}");
    assert!(words[0].contains("same node as the running scan, would cost"), "{words:?}");
    // The thesis lost 18 %.
    assert!((0.75..0.90).contains(&same.alternatives[0].speed_up), "{:?}", same.alternatives[0]);

    let distributed = model::advise(&xeon_max(), &plan(0, 1)).expect("known");
    let [fetch] = distributed.fetches() else { panic!("{distributed:?}") };
    assert_eq!((fetch.column, fetch.node, fetch.route), (1, NodeId(8), Some(Route::PushPull)));
    assert!(
        distributed
            .words()
            .iter()
            .any(|line| line.contains("b, 4096 MiB, read after scan, to node 8 by push-pull"))
    );
    assert!(distributed.predicted_s() < distributed.baseline_s / 1.2);

    // By a thread it takes too long to bring all of it.
    let by_cpu = model::advise(&xeon_max().with_devices_on(&[]), &plan(0, 1)).expect("known");
    assert!(by_cpu.words()[0].contains("by the CPU"), "{:?}", by_cpu.words());
    assert!(by_cpu.predicted_s() > distributed.predicted_s(), "{by_cpu:?}");
    // Elsewhere only if it is settled where: that memory is no faster.
    let slow = Plan { near: Some(NodeId(2)), ..plan(0, 1) };
    assert!(model::advise(&xeon_max(), &slow).expect("known").alternatives.is_empty());
    let far = Plan { near: Some(NodeId(15)), ..plan(0, 1) };
    assert_eq!(model::advise(&xeon_max(), &far).expect("known").fetches()[0].node, NodeId(15));
    assert!(model::advise(&xeon_max(), &Plan { near: Some(NodeId(77)), ..plan(0, 1) }).is_err());

    // Near already: nothing to do.
    assert!(model::advise(&xeon_max(), &plan(0, 8)).expect("known").alternatives.is_empty());
    // Worth it if others read it again.
    let again = model::advise(&xeon_max(), &Plan { reads_to_come: 3, ..plan(0, 0) }).expect("known");
    assert!(again.chosen.is_some() && again.predicted_s() > again.baseline_s, "{again:?}");
}

#[test]
fn advice_knows_room_and_says_what_it_does_not_know() {
    // 16 GiB of HBM do not hold 20, and hold half of it.
    let mut large = plan(0, 1);
    large.columns[1].size_bytes = 20 << 30;
    let advice = model::advise(&xeon_max(), &large).expect("known");
    assert!(advice.alternatives.iter().all(|alternative| alternative.copied_bytes <= 10 << 30));
    // What is copied while it is read competes with reading it; what arrives before pays.
    let [fetch] = advice.fetches() else { panic!("{:?}", advice.words()) };
    assert!((3 << 30..5 << 30).contains(&(fetch.chunks_count as u64 * large.chunk_bytes)), "{fetch:?}");
    let two_tiers = Machine::two_tiers().expect("built in");
    let on = Plan { columns: plan(0, 0).columns, ..plan(0, 0) };
    assert!(matches!(model::advise(&two_tiers, &on), Err(ModelError::Unknown { .. })));
    assert!(matches!(model::advise(&xeon_max(), &plan(0, 77)), Err(ModelError::Node { .. })));
    // Memories are known, and nobody knows how fast somebody would copy.
    let text = include_str!("../../../machines/made-up-two-tiers.json");
    let rates = r#""read_mb_per_s": {"source": "made up", "value": [[40000, 200000], [null, null]]}"#;
    let no_copier = text.replacen(r#""read_mb_per_s": null"#, rates, 1);
    let no_copier = Machine::from_profile_text("no copier", &no_copier).expect("consistent");
    let error = model::advise(&no_copier, &plan(0, 0)).expect_err("unknown").to_string();
    assert!(error.contains("what a core copies is not known"), "{error}");
    let nothing = Plan { stages: Vec::new(), ..plan(0, 1) };
    assert!(matches!(model::advise(&xeon_max(), &nothing), Err(ModelError::Scenario { .. })));
}

#[test]
fn waiting_for_copies_hits_always_and_takes_longer() {
    let hardware = Hardware::of(&xeon_max()).expect("known");
    let fetch =
        Fetch { column: 1, chunks_count: usize::MAX, node: NodeId(8), route: Some(Route::RoundRobin) };
    let relaxed = pipeline(0, 1, vec![fetch], 8);
    let strict = Pipeline { is_waiting: true, ..relaxed.clone() };
    let run = |pipeline: &Pipeline| pipeline.run(&xeon_max(), &hardware).expect("known");
    assert_eq!(run(&strict).hit_rate(), Some(1.0));
    assert!(run(&relaxed).hit_rate() < Some(1.0));
    assert!(run(&strict).total_s > 0.0 && run(&strict).copied_s > 0.0);
}

fn pipeline(a: u32, b: u32, fetches: Vec<Fetch>, groups_count: usize) -> Pipeline {
    let Plan { columns, stages, cpus, chunk_bytes, .. } = plan(a, b);
    Pipeline {
        columns,
        stages,
        cpus,
        groups_count,
        chunk_bytes,
        fetches,
        is_waiting: false,
        fairness: Fairness::default(),
    }
}

/// A profile with these rates in GB/s.
fn machine(dram: f64, hbm: f64, core: f64) -> Machine {
    let text = include_str!("../../../machines/made-up-two-tiers.json");
    let parameter = |name: &str, value: f64| {
        format!(r#"{{"name": "{name}", "value": {}, "basis": "assumed", "source": "a test"}}"#, value * 1e3)
    };
    let parameters =
        [parameter("dram_mb_per_s", dram), parameter("hbm_mb_per_s", hbm), parameter("core_mb_per_s", core)];
    let parameters = format!("\"parameters\": [{}], \"placeholders\"", parameters.join(", "));
    Machine::from_profile_text("x", &text.replacen("\"placeholders\"", &parameters, 1)).expect("consistent")
}

fn total_s(machine: &Machine, is_fetched: bool, groups_count: usize) -> f64 {
    let fetch = Fetch { column: 1, chunks_count: usize::MAX, node: NodeId(1), route: Some(Route::Single) };
    let fetches = if is_fetched { vec![fetch] } else { Vec::new() };
    let pipeline = Pipeline { chunk_bytes: 64 << 20, ..pipeline(0, 0, fetches, groups_count) };
    pipeline.run(machine, &Hardware::of(machine).expect("known")).expect("known").total_s
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// No memory gives more than it has: all bytes come from DRAM once, as near ones were copied from there.
    #[test]
    fn a_query_takes_at_least_the_time_for_its_bytes(
        dram in 5.0..200.0, hbm in 5.0..500.0, core in 1.0..50.0, is_fetched: bool, groups in 1..9_usize,
    ) {
        let machine = machine(dram, hbm, core);
        let bytes = (8_u64 << 30) as f64;
        let seconds = total_s(&machine, is_fetched, groups);
        // The copy may still be under way when the last group has read its part from DRAM.
        let own = if is_fetched { bytes / 2.0 } else { bytes };
        prop_assert!(seconds * dram * 1e9 >= own * (1.0 - 1e-6));
        prop_assert!(seconds * 2.0 * core * 1e9 >= bytes * (1.0 - 1e-6), "two cores read {bytes} bytes in {seconds} s");
        if !is_fetched {
            let expected = bytes / (dram.min(2.0 * core) * 1e9);
            prop_assert!((seconds / expected - 1.0).abs() < 1e-6, "{seconds} s, not {expected}");
        }
    }

    #[test]
    fn faster_memory_never_makes_a_query_slower(
        dram in 5.0..200.0, core in 1.0..50.0, more in 1.0..3.0, groups in 1..9_usize,
    ) {
        let slow = total_s(&machine(dram, 100.0, core), false, groups);
        let fast = total_s(&machine(dram * more, 100.0, core), false, groups);
        prop_assert!(fast <= slow * (1.0 + 1e-9));
    }

    /// Advice that is taken pays in the model that gave it.
    #[test]
    fn advice_never_loses(dram in 5.0..200.0, hbm in 5.0..500.0, core in 1.0..50.0) {
        let advice = model::advise(&machine(dram, hbm, core), &plan(0, 0)).expect("known");
        prop_assert!(advice.predicted_s() <= advice.baseline_s);
    }
}
