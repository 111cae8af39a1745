use super::*;
use crate::telemetry::FakeKernel;
use crate::telemetry::pmu::PMUS;

fn write(kernel: &FakeKernel, pmu: &str, files: &[(&str, &str)]) {
    for (file, text) in files {
        kernel.write(&format!("{PMUS}/{pmu}/{file}"), &format!("{text}\n"));
    }
}

/// As Linux `drivers/dma/idxd/perfmon.c` describes a device.
fn with_dsa(kernel: &FakeKernel, name: &str, kind: u32) {
    write(
        kernel,
        name,
        &[
            ("type", &kind.to_string()),
            ("cpumask", "0"),
            ("format/event_category", "config:0-3"),
            ("format/event", "config:4-31"),
            ("format/filter_wq", "config1:0-31"),
        ],
    );
}

/// As Linux `arch/x86/events/intel/uncore_snbep.c` describes controllers of two sockets.
fn with_imc(kernel: &FakeKernel, name: &str, kind: u32) {
    write(
        kernel,
        name,
        &[
            ("type", &kind.to_string()),
            ("cpumask", "0,28"),
            ("format/event", "config:0-7"),
            ("format/umask", "config:8-15"),
            ("events/clockticks", "event=0x01,umask=0x00"),
            ("events/cas_count_read", "event=0x05,umask=0xcf"),
            ("events/cas_count_read.scale", "6.103515625e-5"),
            ("events/cas_count_read.unit", "MiB"),
            ("events/cas_count_write", "event=0x05,umask=0xf0"),
            ("events/cas_count_write.scale", "6.103515625e-5"),
            ("events/cas_count_write.unit", "MiB"),
        ],
    );
    for (cpu, socket) in [(0, 0), (28, 1)] {
        let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        kernel.write(&file, &format!("{socket}\n"));
    }
}

/// Lets all wanted counters be opened; each reads zero.
fn allow(kernel: &FakeKernel, wanted: &[Wanted]) {
    for it in wanted {
        kernel.set(it.encoding, it.cpu, Reading::default());
    }
}

fn monitor(kernel: &FakeKernel, kind: MonitorKind, wanted: &[Wanted]) -> PerfMonitor {
    allow(kernel, wanted);
    PerfMonitor::open(kernel, kind, wanted.to_vec()).unwrap_or_else(|error| panic!("{error}"))
}

fn values(counts: &[Count]) -> Vec<(&str, &str, f64)> {
    counts.iter().map(|it| (it.name.as_str(), it.place.as_deref().unwrap_or_default(), it.value)).collect()
}

#[test]
fn events_of_dsa_devices_have_category_and_event() {
    let kernel = FakeKernel::new();
    with_dsa(&kernel, "dsa0", 30);
    with_dsa(&kernel, "dsa2", 31);
    let wanted = find_dsa(kernel.files()).unwrap();
    let encodings: Vec<_> = wanted.iter().map(|it| (it.encoding.kind, it.encoding.config[0])).collect();
    let one = [0x11, 0x21, 0x50, 0x100];
    let expected: Vec<_> = [30, 31].into_iter().flat_map(|kind| one.map(|config| (kind, config))).collect();
    assert_eq!(encodings, expected);

    let mut monitor = monitor(&kernel, MonitorKind::Dsa, &wanted);
    monitor.begin();
    let set = |index: usize, value| {
        let Wanted { encoding, cpu, .. } = wanted[index];
        kernel.set(encoding, cpu, Reading { value, enabled_ns: 100, running_ns: 100 });
    };
    set(0, 10);
    set(1, 20);
    set(3, 7);
    set(4, 3);
    let counts = monitor.end(Duration::from_secs(1));
    let expected = [
        ("inbound", "dsa0", 320.0),
        ("outbound", "dsa0", 640.0),
        ("shared_requests", "dsa0", 0.0),
        ("dedicated_requests", "dsa0", 7.0),
        ("inbound", "dsa2", 96.0),
        ("outbound", "dsa2", 0.0),
        ("shared_requests", "dsa2", 0.0),
        ("dedicated_requests", "dsa2", 0.0),
    ];
    assert_eq!(values(&counts), expected);
    let units: Vec<&str> = counts.iter().take(4).map(|it| it.unit.as_str()).collect();
    assert_eq!(units, ["bytes", "bytes", "requests", "requests"]);
}

/// The same event is counted on a CPU of each socket, for each channel; channels of a socket are added.
#[test]
fn channels_are_added_by_socket() {
    let kernel = FakeKernel::new();
    with_imc(&kernel, "uncore_imc_0", 24);
    with_imc(&kernel, "uncore_imc_1", 25);
    // These count the same bytes again.
    with_imc(&kernel, "uncore_imc_free_running_0", 26);
    let wanted = find_memory(kernel.files()).unwrap();
    assert_eq!(wanted.len(), 2 * 2 * 2);
    assert!(wanted.iter().all(|it| it.encoding.config[0] != 1 && it.encoding.kind != 26), "{wanted:?}");
    let mut monitor = monitor(&kernel, MonitorKind::Memory, &wanted);
    monitor.begin();
    for it in &wanted {
        let is_read = it.encoding.config[0] == 0xcf05;
        let value = if is_read { 1000 } else { 10 } * if it.cpu == 28 { 5 } else { 1 };
        kernel.set(it.encoding, it.cpu, Reading { value, enabled_ns: 50, running_ns: 50 });
    }
    let counts = monitor.end(Duration::from_secs(1));
    let mut found = values(&counts);
    found.sort_by(|one, other| one.partial_cmp(other).unwrap());
    let expected = [
        ("read", "socket 0", 2000.0 * 64.0),
        ("read", "socket 1", 10_000.0 * 64.0),
        ("write", "socket 0", 20.0 * 64.0),
        ("write", "socket 1", 100.0 * 64.0),
    ];
    assert_eq!(found, expected);
    assert!(counts.iter().all(|it| it.unit == "bytes" && it.counted_share.is_none()));
}

/// With more events than counters, each counts for a part of the time. One that never counted makes its sum unknown.
#[test]
fn multiplexed_counters_are_extrapolated_and_marked() {
    let kernel = FakeKernel::new();
    with_imc(&kernel, "uncore_imc_0", 24);
    with_imc(&kernel, "uncore_imc_1", 25);
    let wanted = find_memory(kernel.files()).unwrap();
    let mut monitor = monitor(&kernel, MonitorKind::Memory, &wanted);
    monitor.begin();
    for it in &wanted {
        let running_ns = match (it.encoding.kind, it.name) {
            (25, "write") => 0,
            (25, _) => 25,
            _ => 100,
        };
        kernel.set(it.encoding, it.cpu, Reading { value: 1000, enabled_ns: 100, running_ns });
    }
    let counts = monitor.end(Duration::from_secs(1));
    let expected = [("read", "socket 0", 5000.0 * 64.0), ("read", "socket 1", 5000.0 * 64.0)];
    assert_eq!(values(&counts), expected);
    assert!(counts.iter().all(|it| it.counted_share == Some(0.25)), "{counts:?}");
}

#[test]
fn controllers_without_events_in_the_kernel() {
    // AMD since Zen 4: a PMU for each controller, bound to its socket.
    let kernel = FakeKernel::new();
    for (name, cpu) in [("amd_umc_0", "0"), ("amd_umc_12", "96")] {
        let files = [
            ("type", "40"),
            ("cpumask", cpu),
            ("format/event", "config:0-7"),
            ("format/rdwrmask", "config:8-9"),
        ];
        write(&kernel, name, &files);
    }
    let wanted = find_memory(kernel.files()).unwrap();
    let found: Vec<_> = wanted.iter().map(|it| (it.name, it.place.as_str(), it.encoding.config[0])).collect();
    let expected = [
        ("read", "cpu 0", 0x10a),
        ("read", "cpu 96", 0x10a),
        ("write", "cpu 0", 0x20a),
        ("write", "cpu 96", 0x20a),
    ];
    assert_eq!(found, expected, "sockets are not known here");

    // HBM of a Xeon Max, beside its DDR.
    let kernel = FakeKernel::new();
    with_imc(&kernel, "uncore_imc_0", 24);
    let hbm =
        [("type", "50"), ("cpumask", "0"), ("format/event", "config:0-7"), ("format/umask", "config:8-15")];
    write(&kernel, "uncore_hbm_3", &hbm);
    let wanted = find_memory(kernel.files()).unwrap();
    assert_eq!(distinct(wanted.iter().map(|it| it.name)), ["read", "write", "hbm_read", "hbm_write"]);
    let hbm = wanted.iter().find(|it| it.name == "hbm_read").unwrap();
    assert_eq!((hbm.encoding.config[0], hbm.unit.as_str()), (0xcf05, "commands"));
}

/// The number of an event of the data fabric is split over three ranges of bits.
#[test]
fn the_data_fabric_of_older_amd_cpus() {
    let kernel = FakeKernel::new();
    let fabric = |format| {
        [("type", "12"), ("cpumask", "0"), ("format/event", format), ("format/umask", "config:8-15")]
    };
    write(&kernel, "amd_df", &fabric("config:0-7,32-35,59-60"));
    let wanted = find_memory(kernel.files()).unwrap();
    assert_eq!(wanted.len(), 8);
    assert_eq!(wanted[7].encoding, Encoding { kind: 12, config: [0x1_0000_38c7, 0, 0] });
    assert_eq!(distinct(wanted.iter().map(|it| it.name)), ["read_and_write"]);
    // Later fabrics have other events under the same name.
    write(&kernel, "amd_df", &fabric("config:0-7,32-37"));
    let error = find_memory(kernel.files()).unwrap_err().to_string();
    assert!(error.contains("no PMU of a memory controller with known events"), "{error}");
}

#[test]
fn refused_counters_say_why() {
    let kernel = FakeKernel::new();
    with_imc(&kernel, "uncore_imc_0", 24);
    kernel.write("proc/sys/kernel/perf_event_paranoid", "2\n");
    let wanted = find_memory(kernel.files()).unwrap();
    allow(&kernel, &wanted);
    let error = |errno| {
        kernel.refuse_counters(errno);
        let opened = PerfMonitor::open(&kernel, MonitorKind::Memory, wanted.clone());
        opened.err().expect("counters are refused").to_string()
    };
    let denied = error(libc::EACCES);
    assert!(denied.contains("kernel.perf_event_paranoid is 2); run as root"), "{denied}");
    let other = error(libc::ENODEV);
    assert!(
        other.starts_with("perf_event_open of uncore_imc_0/event=0x05,umask=0xcf/ on CPU 0 failed"),
        "{other}"
    );
    let nothing = FakeKernel::new();
    let error = find_dsa(nothing.files()).unwrap_err().to_string();
    assert!(error.contains("no PMU dsa*"), "{error}");
}

#[test]
fn a_counter_that_cannot_be_read_leaves_its_quantity_out() {
    let kernel = FakeKernel::new();
    with_dsa(&kernel, "dsa0", 30);
    let wanted = find_dsa(kernel.files()).unwrap();
    let mut monitor = monitor(&kernel, MonitorKind::Dsa, &wanted);
    monitor.begin();
    kernel.refuse_counters(libc::EIO);
    assert_eq!(monitor.end(Duration::from_secs(1)), []);
}
