//! The case studies: right bytes on every host, and rows.

use std::collections::BTreeMap;

use memferry::topology::Machine;
use memferry_bench::cases::{
    CASES, CaseError, Copies, Core, Gradients, Host, Mix, Mover, PROFILE, StorageTarget, Study, all_reduce,
    forwarded, ping_pong, serve, zeroed,
};
use memferry_bench::harness::{Effort, Provenance, Row, check_equal_work};
use memferry_bench::model::validate;
use memferry_dsa::{Client, ClientOptions};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan};

/// Runs all workloads, small. Each checks its own bytes.
fn run_all(host: &Host) -> Result<(), CaseError> {
    for bytes in [64, 257, 1518] {
        forwarded(host, bytes, 3, 1.0)?;
    }
    for bytes in [1, 32 << 10, (64 << 10) + 1] {
        ping_pong(host, bytes, 3)?;
    }
    for ranks in [2, 3, 8] {
        all_reduce(host, ranks, 24 << 10, 1.0, 2)?;
    }
    serve(host, Mix::Equal(8 << 10), 256 << 10, 40, 1)?;
    serve(host, Mix::Published, 256 << 10, 200, 1)?;
    StorageTarget::new(8, 16 << 10, 1).serve(host, 3, 1.0)?;
    zeroed(host, &mut Gradients::new(256), 3)?;
    Ok(())
}

fn profile() -> Machine {
    Machine::from_profile(PROFILE).expect("built in")
}

#[test]
fn every_host_moves_the_right_bytes() {
    run_all(&Host::real(None)).expect("this core");
    run_all(&Host::virtual_core(&profile()).expect("known")).expect("a core in virtual time");
    for seed in 0..8 {
        let plan = FaultPlan::from_seed(seed);
        let device = Emulator::start(&DeviceConfig::four_engines(), plan.clone()).expect("threads");
        let client = Client::new(vec![device.portal(0)], ClientOptions::default());
        run_all(&Host::real(Some(Box::new(client)))).unwrap_or_else(|error| panic!("{plan}: {error}"));
        let host = Host::virtual_device(&profile(), plan.clone()).expect("known");
        run_all(&host).unwrap_or_else(|error| panic!("in virtual time, {plan}: {error}"));
    }
}

/// Loses the last copy, a bit of the last digest, and the last byte of the last target.
struct Broken;

impl Mover for Broken {
    fn copy(&self, mut copies: Copies<'_>) -> Result<(), CaseError> {
        copies.pop();
        Core.copy(copies)
    }

    fn digest(&self, data: &[&[u8]]) -> Result<Vec<u32>, CaseError> {
        let mut digests = Core.digest(data)?;
        digests[data.len() - 1] ^= 1;
        Ok(digests)
    }

    fn zero(&self, mut targets: Vec<&mut [u8]>) -> Result<(), CaseError> {
        let last = targets.pop().expect("tensors");
        let len = last.len() - 1;
        targets.push(&mut last[..len]);
        Core.zero(targets)
    }
}

#[test]
fn wrong_bytes_are_an_error() {
    let host = || Host::real(Some(Box::new(Broken)));
    let wrong = [
        ("packets", forwarded(&host(), 64, 1, 0.0).err()),
        ("messages", ping_pong(&host(), 64, 1).err()),
        ("messages", all_reduce(&host(), 2, 64, 0.0, 1).err()),
        ("cache", serve(&host(), Mix::Equal(8 << 10), 64 << 10, 1, 1).err()),
        ("digests", StorageTarget::new(2, 512, 1).serve(&host(), 1, 0.0).err()),
        ("gradients", zeroed(&host(), &mut Gradients::new(1024), 1).err()),
    ];
    for (case, error) in wrong {
        let error = error.unwrap_or_else(|| panic!("{case}: wrong bytes were not seen")).to_string();
        assert!(error.contains(&format!("the case {case} has a wrong result")), "{error}");
    }
}

/// In virtual time a device is waited for, and the core's part is its submissions and its other work.
#[test]
fn virtual_time_has_no_noise() {
    let host = |has_device| match has_device {
        true => Host::virtual_device(&profile(), FaultPlan::none()).expect("known"),
        false => Host::virtual_core(&profile()).expect("known"),
    };
    let run = |has_device| ping_pong(&host(has_device), 1 << 20, 3).expect("right bytes");
    let (device, core) = (run(true), run(false));
    assert_eq!(run(true), device);
    // Bytes pass twice in each direction, at 5.6 GB/s by the core and 30 GB/s by the device.
    let ratio = core.elapsed_ns[0] / device.elapsed_ns[0];
    assert!((4.0..5.4).contains(&ratio), "{ratio}");
    assert_eq!(core.elapsed_ns, core.busy_ns);
    // 100 ns for each of 32 descriptors, a submission, and a header.
    let busy_ns = device.busy_ns[0] / 4.0 - 80.0;
    assert!((busy_ns - 3240.0).abs() < 1.0, "{busy_ns}");
}

#[test]
fn every_case_has_rows() {
    let study = Study::new(Effort::Quick, 1).expect("built in");
    let predictions = validate().expect("built in").predictions;
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    for case in CASES {
        for row in study.rows(case, &predictions).unwrap_or_else(|error| panic!("{case}: {error}")) {
            assert!(row.value.is_finite() && row.value > 0.0, "{row:?}");
            check_equal_work(&serde_json::to_value(&row).expect("JSON")).expect("equal work or a label");
            assert!(rows.insert(row.name.clone(), row).is_none(), "two rows of one name");
        }
    }
    let how =
        |name: &str| rows.get(name).unwrap_or_else(|| panic!("no row {name}: {:?}", rows.keys())).provenance;
    for name in
        ["packets_512B", "ping_pong_4KiB", "cache_get_1MiB", "cache_get_p99", "digests_16KiB", "gradients"]
    {
        assert_eq!(how(name), Provenance::Measured);
    }
    for name in ["packets_512B_emulated", "all_reduce_2_ranks_emulated_busy", "cache_get_emulated_p99"] {
        assert_eq!(how(name), Provenance::Emulated);
        assert!(
            rows[name].peer.as_ref().and_then(|peer| peer.ratio).is_some_and(|ratio| ratio > 0.9),
            "{name}"
        );
    }
    // Too few samples.
    assert!(!rows.contains_key("cache_get_p99.999"));
    let published = |name: &str| rows.get(name).and_then(|row| row.peer.as_ref()).and_then(|peer| peer.value);
    assert_eq!(published("digests_16KiB_cores_emulated [K109]"), Some(6.0));
    assert_eq!(published("cores beyond which a cache server gains less [K103]"), Some(8.0));
    assert_eq!(published("packets_gain_most_emulated [K084]"), Some(2.29));
}
