//! Properties of the model for any numbers, and advice for plans.

use memferry::internals::{Fairness, Hardware, Pipeline};
use memferry::model::{Column, Fetch, ModelError, Plan, Stage};
use memferry::mover::Route;
use memferry::topology::{Machine, NodeId};
use proptest::prelude::*;

fn xeon_max() -> Machine {
    Machine::from_profile("xeon-max-9468-2s-flat").expect("built in")
}

#[test]
fn profiles_with_nonsense_for_parameters_are_refused() {
    let text = include_str!("../../machines/made-up-two-tiers.json");
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
    let same = plan(0, 0).advise(&xeon_max()).expect("known");
    assert_eq!((same.chosen, same.fetches().len()), (None, 0));
    assert_eq!(same.predicted_s(), same.baseline_s);
    let words = same.words();
    assert!(!words.is_empty() && words.iter().all(|line| line.ends_with(": no")), "{words:?}");
    assert!(words[0].contains("same node as the running scan, would cost"), "{words:?}");
    // The thesis lost 18 %.
    assert!((0.75..0.90).contains(&same.alternatives[0].speed_up), "{:?}", same.alternatives[0]);

    let distributed = plan(0, 1).advise(&xeon_max()).expect("known");
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
    let by_cpu = plan(0, 1).advise(&xeon_max().with_devices_on(&[])).expect("known");
    assert!(by_cpu.words()[0].contains("by the CPU"), "{:?}", by_cpu.words());
    assert!(by_cpu.predicted_s() > distributed.predicted_s(), "{by_cpu:?}");
    // Elsewhere only if it is settled where: that memory is no faster.
    let slow = Plan { near: Some(NodeId(2)), ..plan(0, 1) };
    assert!(slow.advise(&xeon_max()).expect("known").alternatives.is_empty());
    let far = Plan { near: Some(NodeId(15)), ..plan(0, 1) };
    assert_eq!(far.advise(&xeon_max()).expect("known").fetches()[0].node, NodeId(15));
    assert!(Plan { near: Some(NodeId(77)), ..plan(0, 1) }.advise(&xeon_max()).is_err());

    // Near already: nothing to do.
    assert!(plan(0, 8).advise(&xeon_max()).expect("known").alternatives.is_empty());
    // Worth it if others read it again.
    let again = Plan { reads_to_come: 3, ..plan(0, 0) }.advise(&xeon_max()).expect("known");
    assert!(again.chosen.is_some() && again.predicted_s() > again.baseline_s, "{again:?}");
}

#[test]
fn advice_knows_room_and_says_what_it_does_not_know() {
    // 16 GiB of HBM do not hold 20, and hold half of it.
    let mut large = plan(0, 1);
    large.columns[1].size_bytes = 20 << 30;
    let advice = large.advise(&xeon_max()).expect("known");
    assert!(advice.alternatives.iter().all(|alternative| alternative.copied_bytes <= 10 << 30));
    // What is copied while it is read competes with reading it; what arrives before pays.
    let [fetch] = advice.fetches() else { panic!("{:?}", advice.words()) };
    assert!((3 << 30..5 << 30).contains(&(fetch.chunks_count as u64 * large.chunk_bytes)), "{fetch:?}");
    let two_tiers = Machine::two_tiers().expect("built in");
    let on = Plan { columns: plan(0, 0).columns, ..plan(0, 0) };
    assert!(matches!(on.advise(&two_tiers), Err(ModelError::Unknown { .. })));
    assert!(matches!(plan(0, 77).advise(&xeon_max()), Err(ModelError::Node { .. })));
    // The rates of memories are known, and the copy rate of a core is not.
    let text = include_str!("../../machines/made-up-two-tiers.json");
    let rates = r#""read_mb_per_s": {"source": "made up", "value": [[40000, 200000], [null, null]]}"#;
    let no_copier = text.replacen(r#""read_mb_per_s": null"#, rates, 1);
    let no_copier = Machine::from_profile_text("no copier", &no_copier).expect("consistent");
    let error = plan(0, 0).advise(&no_copier).expect_err("unknown").to_string();
    assert!(error.contains("what a core copies is not known"), "{error}");
    let nothing = Plan { stages: Vec::new(), ..plan(0, 1) };
    assert!(matches!(nothing.advise(&xeon_max()), Err(ModelError::Scenario { .. })));
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
    let text = include_str!("../../machines/made-up-two-tiers.json");
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
        let advice = plan(0, 0).advise(&machine(dram, hbm, core)).expect("known");
        prop_assert!(advice.predicted_s() <= advice.baseline_s);
    }
}
