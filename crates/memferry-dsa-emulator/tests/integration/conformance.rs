//! One suite for everything that executes requests: the CPU, the emulated device with each kind of queue and
//! each way to wait, the same behind the paths of Linux, and many devices that misbehave as far as the specification
//! allows.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memferry_dsa::{
    Backoff, Client, ClientOptions, DevicePortal, OnCpu, Opcode, OpenOptions, Portal, PortalKind,
    SubmitMethod, Wait,
};
use memferry_dsa_emulator::conformance::{self, Report, Thoroughness};
use memferry_dsa_emulator::{
    DeviceConfig, Emulator, FakePlatform, FaultPlan, GroupConfig, dedicated_queue, shared_queue,
};

/// Options that forbid the CPU.
fn strict() -> ClientOptions {
    ClientOptions { may_use_cpu: false, faults_max: 100_000, ..patient() }
}

fn patient() -> ClientOptions {
    ClientOptions {
        backoff: Backoff::new(10_000),
        timeout: Duration::from_secs(60),
        ..ClientOptions::default()
    }
}

fn emulated(config: &DeviceConfig, fault_plan: FaultPlan) -> Vec<Arc<dyn Portal>> {
    let emulator = Emulator::start(config, fault_plan).expect("a valid configuration");
    (0..emulator.queue_count()).map(|queue| emulator.portal(queue)).collect()
}

fn passed(name: &str, report: &Report) {
    println!("{name}: {report}");
    assert!(report.passed(), "{name}: {report}");
}

/// Checks that a device with every operation lacks only 16-byte patterns, which version 1.0 does not have, and
/// the rest of a delta record's room.
fn lacks_only_what_is_newer(name: &str, report: &Report) {
    passed(name, report);
    let is_known = |lacking: &&String| {
        lacking.starts_with("Memory Fill with 16 bytes")
            || lacking.starts_with("Create Delta Record: the room")
    };
    assert_eq!(report.lacking.iter().find(|lacking| !is_known(lacking)), None, "{name}");
}

#[test]
fn the_cpu() {
    let report = conformance::run(&Client::new(Vec::new(), patient()), Thoroughness::Full, 1);
    passed("CPU", &report);
    assert_eq!(report.stats.on_cpu(OnCpu::NoQueue), report.stats.on_cpu_total());
    assert!(report.requests > 1000, "{report}");
}

#[test]
fn a_device_with_each_way_to_wait() {
    for config in [DeviceConfig::one_shared_queue(), DeviceConfig::one_dedicated_queue()] {
        for wait in Wait::ALL {
            let options = ClientOptions { wait, ..strict() };
            let client = Client::new(emulated(&config, FaultPlan::none()), options);
            let report = conformance::run(&client, Thoroughness::Quick, 2);
            let mode = config.queues().next().map(|queue| queue.mode);
            lacks_only_what_is_newer(&format!("{mode:?}, {wait:?}"), &report);
            assert_eq!((report.stats.on_cpu_total(), report.stats.partial), (0, 0), "{report}");
            assert!(report.stats.batches > 10 && report.stats.batches_unrolled <= 12, "{report}");
        }
    }
}

#[test]
fn a_device_thoroughly() {
    let mut config = DeviceConfig::four_engines();
    config.groups[0].queues[0].block_on_fault = true;
    let client = Client::new(emulated(&config, FaultPlan::none()), strict());
    lacks_only_what_is_newer("four engines", &conformance::run(&client, Thoroughness::Full, 3));
}

/// The CPU executes the operations that the parts on the market lack, and these are counted.
#[test]
fn a_device_of_today() {
    let config = DeviceConfig::production();
    let client = Client::new(emulated(&config, FaultPlan::none()), patient());
    let report = conformance::run(&client, Thoroughness::Quick, 4);
    passed("production", &report);
    assert!(report.stats.on_cpu(OnCpu::Operation) > 10, "{report}: who did the deltas?");
    let strict = Client::new(emulated(&config, FaultPlan::none()), strict());
    let report = conformance::run(&strict, Thoroughness::Quick, 4);
    passed("production without the CPU", &report);
    assert!(report.lacking.iter().any(|lacking| lacking.starts_with("Create Delta")), "{report}");
}

/// The paths of Linux: ENQCMD, MOVDIR64B, and write(2), which refuses batches for devices of version 1.0.
#[test]
fn the_ways_into_a_queue() {
    for (mode, kind, way) in [
        (shared_queue("wq0.0", 16), PortalKind::Enqcmd, SubmitMethod::Mapped),
        (dedicated_queue("wq0.0", 16), PortalKind::Movdir64b, SubmitMethod::Mapped),
        (shared_queue("wq0.0", 16), PortalKind::Write, SubmitMethod::Write),
        (dedicated_queue("wq0.0", 16), PortalKind::Write, SubmitMethod::Write),
    ] {
        let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues: vec![mode] }]);
        let device = Emulator::start(&config, FaultPlan::none()).expect("a valid configuration");
        let mut info = config.queues().next().expect("a queue").clone();
        // As Linux shows them.
        info.operations = config.operations_shown();
        let features = memferry_dsa::internals::instructions::CpuFeatures::ALL;
        let platform = FakePlatform::with(device.uncounted_portal(0), features, true, false);
        let options = OpenOptions { method: way, ..OpenOptions::default() };
        let portal = DevicePortal::open_on(platform.clone(), Path::new("/dev/dsa/wq0.0"), info, options);
        let portal = portal.expect("the platform lets it");
        assert_eq!(portal.kind(), kind);
        let client = Client::new(vec![portal], strict());
        let report = conformance::run(&client, Thoroughness::Quick, 5);
        lacks_only_what_is_newer(&format!("{kind:?}"), &report);
        assert_eq!((platform.violations(), platform.lost()), (0, 0), "{kind:?}");
        assert_eq!(report.stats.batches == 0, kind == PortalKind::Write, "{kind:?}: {report}");
    }
}

/// Many devices with faults, retries, reordering, small pieces and small limits.
/// `MEMFERRY_CONFORMANCE_SEEDS` sets their number.
#[test]
fn faulty_devices() {
    let seeds = std::env::var("MEMFERRY_CONFORMANCE_SEEDS").ok();
    let count: u64 = seeds.map_or(128, |text| text.parse().expect("a number of seeds"));
    let mut batches = 0;
    let mut partial = 0;
    for seed in 0..count {
        let mut config = match seed % 3 {
            0 => DeviceConfig::four_engines(),
            1 => DeviceConfig::one_dedicated_queue(),
            _ => DeviceConfig::new(vec![
                GroupConfig {
                    engines: 1,
                    queues: vec![shared_queue("wq0.0", 2), dedicated_queue("wq0.1", 3)],
                },
                GroupConfig { engines: 2, queues: vec![shared_queue("wq0.2", 4)] },
            ]),
        };
        for queue in config.groups.iter_mut().flat_map(|group| &mut group.queues) {
            queue.block_on_fault = seed % 2 == 1;
            // Small enough that requests are cut.
            queue.transfer_bytes_max = 1 << (12 + seed % 10);
            queue.batch_max = 2 << (seed % 5);
        }
        if seed % 7 == 0 {
            config = config.without(&[Opcode::Batch]);
        }
        // Few that block, which adds up to a millisecond to each request.
        let wait = if seed % 16 == 7 { Wait::Block } else { Wait::ALL[seed as usize % 4] };
        let faults_max = [0, 1, 5, 1000][seed as usize / 3 % 4];
        let fault_plan = FaultPlan::from_seed(seed);
        let name = format!("{fault_plan}");
        let client =
            Client::new(emulated(&config, fault_plan), ClientOptions { wait, faults_max, ..patient() });
        let report = conformance::run(&client, Thoroughness::Quick, seed);
        assert!(report.passed(), "device of {name}: {report}");
        batches += report.stats.batches;
        partial += report.stats.partial;
    }
    println!("{count} devices: {batches} batches, {partial} descriptors stopped by page faults");
    assert!(batches > count && partial > 50 * count, "not much of a test: {batches}, {partial}");
}
