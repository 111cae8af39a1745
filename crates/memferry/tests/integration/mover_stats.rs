//! Statistics: they are complete, and Prometheus can read them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memferry::internals::{Faults, Faulty};
use memferry::mover::{
    CopyOptions, CpuEngine, CpuOptions, DsaEngine, DsaOptions, Guidelines, Mover, MoverStats, Route,
};
use memferry::topology::Machine;
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// Whatever the size, devices are asked.
fn everything_offloaded() -> Guidelines {
    Guidelines { offload_bytes_min: 0, offload_waited_bytes_min: 0, llc_bytes: 0 }
}

fn machine() -> Arc<Machine> {
    Arc::new(Machine::two_tiers().expect("built in"))
}

/// A mover with two engines with special characters in their names, after some copies.
fn used() -> (Mover, Duration) {
    let device = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).expect("valid");
    let options = DsaOptions { name: "a \"quoted\\\"\nname".to_owned(), ..DsaOptions::default() };
    let dsa = DsaEngine::new(vec![device.portal(0)], options).expect("a thread");
    let cpu = CpuEngine::new(&machine(), CpuOptions::default()).expect("threads");
    let delay_max = Duration::from_millis(2);
    let late = Faulty::new(Arc::new(cpu), Faults { delay_max, ..Faults::default() }, 5).expect("a thread");
    let builder = Mover::builder(machine()).guidelines(everything_offloaded()).route(Route::RoundRobin);
    let mover = builder.engine(Arc::new(dsa)).engine(Arc::new(late)).build().expect("threads");
    let begin = Instant::now();
    for size_bytes in 1..=40 {
        mover.copy(vec![1; size_bytes], vec![0; size_bytes], CopyOptions::default()).wait().expect("copied");
    }
    (mover, begin.elapsed())
}

#[test]
fn each_copy_has_a_latency() {
    let (mover, elapsed) = used();
    let stats = mover.stats();
    for engine in &stats.engines {
        assert_eq!(engine.latencies.count(), engine.accepted, "{engine:?}");
    }
    let sum_ns: u64 = stats.engines.iter().map(|engine| engine.latencies.sum_ns).sum();
    // One after the other: together they take no longer than the whole, and the late ones take most of it.
    assert!(u128::from(sum_ns) <= elapsed.as_nanos(), "{sum_ns} ns in {elapsed:?}");
    let late = &stats.engines[1].latencies;
    assert!(late.quantile_ns(1.0) > Some(1_000_000), "20 delays of up to 2 ms: {late:?}");
}

/// Metrics by name and labels, after a check of the format.
fn parse(text: &str) -> HashMap<String, f64> {
    let mut typed = HashSet::new();
    let mut samples = HashMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let name = rest.split(' ').next().expect("a name").to_owned();
            assert!(typed.insert(name), "typed twice: {line}");
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let name = series.split('{').next().expect("a name");
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line}");
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        assert!(typed.contains(name) || base.is_some_and(|base| typed.contains(base)), "no type: {line}");
        let value = value.parse().unwrap_or_else(|_| panic!("not a number: {line}"));
        assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {line}");
    }
    samples
}

#[test]
fn prometheus_reads_all_of_it() {
    let stats: MoverStats = used().0.stats();
    let samples = parse(&stats.prometheus().to_string());
    let of = |name: &str, labels: &str| {
        let series = format!("memferry_engine_{name}{{{labels}}}");
        *samples.get(&series).unwrap_or_else(|| panic!("no {series} in {samples:?}"))
    };
    let dsa = r#"engine="a \"quoted\\\"\nname",index="0",kind="dsa""#;
    assert_eq!(of("operations_total", dsa), 20.0);
    assert_eq!(of("bytes_total", dsa), stats.engines[0].bytes as f64);
    let late = r#"engine="faulty(cpu)",index="1",kind="cpu""#;
    assert_eq!(of("latency_seconds_count", late), 20.0);
    assert_eq!(of("latency_seconds_bucket", &format!("{late},le=\"+Inf\"")), 20.0);
    assert!((of("latency_seconds_sum", late) - stats.engines[1].latencies.sum_ns as f64 / 1e9).abs() < 1e-9);
    let bounds = ["0.000001024", "0.001048576", "1.073741824"];
    let counts = bounds.map(|le| of("latency_seconds_bucket", &format!("{late},le=\"{le}\"")));
    assert!(counts.is_sorted() && counts[1] < 20.0 && counts[2] == 20.0, "{counts:?}");
    // Every number that the struct has, but for those that are no counters.
    let fields = serde_json_fields(&stats);
    let written: HashSet<&str> =
        samples.keys().map(|series| series.split('{').next().expect("a name")).collect();
    for (prefix, field) in fields {
        let name = format!("memferry_{prefix}_{field}_total");
        assert!(written.contains(name.as_str()), "{name} is missing");
    }
}

/// Names of the counters in the struct, so that none that is added later is forgotten.
fn serde_json_fields(stats: &MoverStats) -> Vec<(&'static str, String)> {
    let json = serde_json::to_value(stats).expect("plain data");
    let numbers = |value: &serde_json::Value| -> Vec<String> {
        let object = value.as_object().expect("a struct");
        object.iter().filter(|(_, value)| value.is_u64()).map(|(name, _)| name.clone()).collect()
    };
    let mover = numbers(&json).into_iter().map(|name| ("mover", name));
    let engine = numbers(&json["engines"][0]).into_iter().map(|name| ("engine", name));
    mover.chain(engine).collect()
}
