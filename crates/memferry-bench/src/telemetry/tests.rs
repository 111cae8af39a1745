use std::fs;

use super::*;
use crate::harness::CsvRow as _;

const ENERGY: &str = "sys/class/powercap/intel-rapl:0/energy_uj";

/// A machine with one zone of energy.
fn with_energy() -> (FakeKernel, Telemetry) {
    let kernel = FakeKernel::new();
    kernel.write("sys/class/powercap/intel-rapl:0/name", "package-0\n");
    kernel.write("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "262143328850\n");
    kernel.write(ENERGY, "1000000\n");
    let telemetry = opened(&kernel);
    (kernel, telemetry)
}

fn opened(kernel: &FakeKernel) -> Telemetry {
    let kernel: Arc<dyn Kernel> = Arc::new(kernel.clone());
    Telemetry::open(&kernel)
}

fn row(name: &str, provenance: Provenance) -> Row {
    Row::median(name, "ns", provenance, &[1.0])
}

#[test]
fn a_machine_without_monitors_has_no_counts() {
    let kernel = FakeKernel::new();
    let telemetry = opened(&kernel);
    assert_eq!(telemetry.watch(|| 7), (7, None));
    let rows = telemetry.rows(|| Ok::<_, ()>(vec![row("a", Provenance::Measured)])).unwrap();
    let json = serde_json::to_value(&rows).unwrap();
    assert!(json[0].get("telemetry").is_none(), "{json}");
    assert_eq!(Telemetry::none().watch(|| ()).1, None);
    // Each absence has a reason of one sentence.
    let survey = survey(kernel.files(), None);
    assert_eq!(survey.len(), 4);
    for (kind, found) in survey {
        let reason = found.unwrap_err().to_string();
        assert!(reason.len() > 40 && !reason.ends_with('.'), "{kind}: {reason}");
    }
}

#[test]
fn rows_that_were_taken_here_have_the_counts_of_their_window() {
    let (kernel, telemetry) = with_energy();
    let take = || {
        kernel.write(ENERGY, "3500000\n");
        let all = [Provenance::Measured, Provenance::Emulated, Provenance::Modelled];
        Ok::<_, ()>(all.map(|how| row(&how.to_string(), how)).to_vec())
    };
    let rows = telemetry.rows(take).unwrap();
    assert_eq!(rows[0].telemetry, rows[1].telemetry);
    assert_eq!(rows[2].telemetry, None, "the model does not run on this machine");
    let counts = rows[0].telemetry.clone().unwrap();
    assert_eq!((counts.rows_count, counts.counts.len()), (2, 1));
    assert!(counts.seconds > 0.0 && counts.seconds < 600.0, "{counts:?}");
    assert_eq!((counts.counts[0].name.as_str(), counts.counts[0].value), ("package-0", 2.5));
    // The CSV has no column for it, and the JSON can be read again.
    assert_eq!(rows[0].fields().len(), Row::COLUMNS.len());
    let json = serde_json::to_value(&rows[0]).unwrap();
    assert_eq!(json["telemetry"]["counts"][0]["monitor"], "energy", "{json}");
    assert!(json["telemetry"]["counts"][0].get("series").is_none(), "{json}");
    assert_eq!(serde_json::from_value::<Counts>(json["telemetry"].clone()).unwrap(), counts);

    let failed = telemetry.rows(|| Err("it fails"));
    assert_eq!(failed, Err("it fails"));
    assert_eq!(telemetry.watch(|| ()).1.unwrap().counts[0].value, 0.0, "the next window begins anew");
}

/// The course of an occupancy comes from a thread that samples while the benchmark runs.
#[test]
fn occupancy_is_sampled_during_the_window() {
    let kernel = FakeKernel::new();
    kernel.write("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\n");
    kernel.write("sys/fs/resctrl/mon_data/mon_L3_00/llc_occupancy", "0\n");
    fs::create_dir(kernel.path("sys/fs/resctrl/mon_groups")).unwrap();
    kernel.write("proc/self/task/1/comm", "memferry\n");
    let telemetry = opened(&kernel);
    let groups = || fs::read_dir(kernel.path("sys/fs/resctrl/mon_groups")).unwrap().count();
    assert_eq!(groups(), 1);
    let series = |telemetry: &Telemetry, window: Duration| {
        let (_, counts) = telemetry.watch(|| thread::sleep(window));
        counts.unwrap().counts.remove(0).series
    };
    let samples = series(&telemetry, Duration::from_millis(350));
    assert!(samples.len() >= 3, "begin, end and at least one in between: {samples:?}");
    assert!(samples.windows(2).all(|pair| pair[0].0 < pair[1].0), "{samples:?}");
    // A window whose work panics ends its thread.
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        telemetry.watch(|| -> u32 { std::panic::resume_unwind(Box::new("a benchmark")) })
    }));
    assert!(panic.is_err());
    assert_eq!(Arc::strong_count(&telemetry.monitors), 1, "the sampling thread has ended");
    drop(telemetry);
    assert_eq!(groups(), 0);
}

#[test]
fn a_survey_opens_counters_but_makes_no_group() {
    let (kernel, _) = with_energy();
    kernel.write("sys/fs/resctrl/info/L3_MON/mon_features", "llc_occupancy\nmbm_local_bytes\n");
    kernel.write("sys/fs/resctrl/mon_data/mon_L3_00/llc_occupancy", "0\n");
    fs::create_dir(kernel.path("sys/fs/resctrl/mon_groups")).unwrap();
    for (file, text) in [
        ("type", "30\n"),
        ("cpumask", "0\n"),
        ("format/event_category", "config:0-3\n"),
        ("format/event", "config:4-31\n"),
    ] {
        kernel.write(&format!("sys/bus/event_source/devices/dsa0/{file}"), text);
    }
    let shared: Arc<dyn Kernel> = Arc::new(kernel.clone());
    let texts = |kernel: Option<&Arc<dyn Kernel>>| {
        let survey = survey(shared.files(), kernel);
        survey.into_iter().map(|(_, found)| found.map_err(|error| error.to_string())).collect::<Vec<_>>()
    };
    let from_files = texts(None);
    assert_eq!(
        from_files[0].as_deref(),
        Ok("inbound, outbound, shared_requests, dedicated_requests of dsa0")
    );
    assert_eq!(from_files[1].as_deref(), Ok("llc_occupancy, mbm_local_bytes of mon_L3_00"));
    assert!(from_files[2].is_err());
    assert_eq!(from_files[3].as_deref(), Ok("package-0"));
    // Nobody has made counters of the device.
    let tried = texts(Some(&shared));
    assert!(tried[0].as_ref().unwrap_err().contains("perf_event_open of dsa0/event_category=0x1,event=0x1/"));
    assert_eq!(tried[1..], from_files[1..]);
    assert_eq!(fs::read_dir(kernel.path("sys/fs/resctrl/mon_groups")).unwrap().count(), 0);
}
