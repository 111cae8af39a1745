//! Arbitrary descriptors on arbitrary devices: no panic, no access to memory that they do not name, all accounted for,
//! and the same run for the same seed.

use std::collections::BTreeMap;
use std::path::Path;

use memferry_dsa::system::SoftwareError;
use memferry_dsa::{Address, Descriptor, Status, Submission};
use memferry_dsa_emulator::{
    Access, DeviceConfig, DeviceCounters, FaultPlan, GroupConfig, Visit, dedicated_queue, shared_queue,
};
use proptest::prelude::*;

use crate::common::{PASID, RECORDS, run};
use crate::fuzzed;

const DATA: Address = Address(0x10_0000);
const DATA_PAGES: u64 = 6;
/// The lists of batches, with nothing mapped around them, so that no copy overwrites them.
const LIST: Address = Address(0x20_0000);
const LIST_MEMBERS: usize = 20;

fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (0..DATA_PAGES * 4096).prop_map(|offset| DATA.0 + offset),
        3 => (0..128u64).prop_map(|slot| LIST.0 + slot * 32),
        2 => (0..64u64).prop_map(|slot| RECORDS.0 + slot * 32),
        1 => any::<u64>(),
        1 => (u64::MAX - 10_000)..=u64::MAX,
        1 => 0..10_000u64,
    ]
}

/// Addresses of records and copies: not in the list, so that the test knows its members.
fn target() -> impl Strategy<Value = u64> {
    address().prop_filter("would overwrite the list", |address| Address(*address).page() != LIST)
}

fn descriptor() -> impl Strategy<Value = Descriptor> {
    let code = prop_oneof![6 => Just(3u8), 3 => Just(1), 2 => Just(0), 1 => any::<u8>()];
    let flags = prop_oneof![4 => Just(0xcu32), 2 => Just(4), 2 => Just(0xd), 1 => Just(0), 1 => Just(0xe), 2 => any::<u32>()];
    let size = prop_oneof![2 => 0..10u32, 3 => 0..10_000u32, 1 => any::<u32>()];
    let completion =
        prop_oneof![4 => (0..64u64).prop_map(|slot| RECORDS.0 + slot * 32), 1 => Just(0), 1 => target()];
    let noise = prop_oneof![8 => Just([0; 5]), 1 => any::<[u64; 5]>()];
    (code, flags, size, completion, address(), target(), noise).prop_map(
        |(code, flags, size, completion, address_1, address_2, noise)| {
            let head = u64::from(flags & 0x00ff_ffff | u32::from(code) << 24) << 32;
            let size = u64::from(size) | noise[1] << 32;
            let submitter = noise[0] & 0xffff_ffff;
            Descriptor::from_words([
                head | submitter,
                completion,
                address_1,
                address_2,
                size,
                noise[2],
                noise[3],
                noise[4],
            ])
        },
    )
}

/// The results of a run.
#[derive(PartialEq, Debug)]
struct Trace {
    steps: u64,
    visits: Vec<Visit>,
    counters: DeviceCounters,
    error: Option<SoftwareError>,
    memory: Vec<Vec<u8>>,
}

fn device() -> DeviceConfig {
    let mut queues = vec![shared_queue("wq0.0", 16), dedicated_queue("wq0.1", 4)];
    queues[0].block_on_fault = true;
    let other = GroupConfig { engines: 1, queues: vec![shared_queue("wq0.2", 8)] };
    DeviceConfig::new(vec![GroupConfig { engines: 3, queues }, other])
}

fn play(fault_plan: FaultPlan, submissions: &[(usize, Descriptor)], list: &[Descriptor]) -> Trace {
    let mut run = run(&device(), fault_plan);
    run.memory.map(DATA, (DATA_PAGES * 4096) as usize);
    run.memory.map(LIST, LIST_MEMBERS * 64);
    for (index, member) in list.iter().enumerate() {
        run.memory.store(LIST.offset(index as u64 * 64), &member.to_bytes());
    }
    run.memory.page_out(DATA.offset(4096));
    run.memory.write_protect(DATA.offset(2 * 4096));
    let (mut steps, mut answered) = (0, 0);
    for (queue, descriptor) in submissions {
        answered += u64::from(run.device.submit(*queue, descriptor, PASID) == Ok(Submission::Accepted));
        run.step();
        steps += 1;
    }
    steps += run.run_until_idle();
    let counters = run.device.counters();
    assert_eq!(answered, counters.accepted + counters.dropped);
    assert_eq!(submissions.len() as u64, answered + counters.retried);
    let memory = [(DATA, DATA_PAGES as usize * 4096), (LIST, LIST_MEMBERS * 64), (RECORDS, 64 * 32)];
    Trace {
        steps,
        visits: run.memory.visits(),
        counters,
        error: run.device.take_error(),
        memory: memory.map(|(address, size)| run.memory.load(address, size)).to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors(
        seed in any::<u64>(),
        lost_records_per_mille in prop_oneof![Just(0u16), Just(200)],
        submissions in prop::collection::vec((0..3usize, descriptor()), 1..30),
        list in prop::collection::vec(descriptor(), LIST_MEMBERS),
    ) {
        let fault_plan = FaultPlan { lost_records_per_mille, ..FaultPlan::from_seed(seed) };
        let trace = play(fault_plan.clone(), &submissions, &list);

        let all = || submissions.iter().map(|(_, descriptor)| descriptor).chain(&list);
        for visit in &trace.visits {
            prop_assert!(all().any(|descriptor| fuzzed::watched::names(descriptor, visit)), "no descriptor names {visit:?}");
        }
        let counters = &trace.counters;
        prop_assert_eq!(counters.in_flight(), 0, "{:?}", counters);
        prop_assert_eq!(counters.dispatched, counters.accepted);
        prop_assert_eq!(counters.accepted + counters.members, counters.completed_count());
        let statuses = trace.visits.iter().filter(|visit| visit.access == Access::Write && visit.size_bytes == 31);
        prop_assert!(counters.records_written <= statuses.count() as u64);
        prop_assert!(counters.records_lost == 0 || trace.error.is_some());

        prop_assert_eq!(trace, play(fault_plan, &submissions, &list), "the same seed, another run");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    /// The fuzz target `descriptor` with random bytes.
    #[test]
    fn any_bytes(
        head in prop::collection::vec(any::<u8>(), 19),
        data in prop::collection::vec(any::<u8>(), 0..67 * 96),
    ) {
        fuzzed::descriptors(&[head, data].concat());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The fuzz target `order`: one of two clients forges words in shared memory.
    #[test]
    fn one_of_two_processes_tampers(data in prop::collection::vec(any::<u8>(), 0..3000)) {
        fuzzed::order::order(&data);
    }
}

/// The seeds of the fuzz target `order`, and its findings.
#[test]
fn seeds_of_tampering() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/order");
    for entry in std::fs::read_dir(&directory).expect("seeds") {
        fuzzed::order::order(&std::fs::read(entry.expect("a seed").path()).expect("a seed"));
    }
}

/// The seeds of the fuzz target `descriptor`: each reaches the statuses that its name says. A change of their format
/// would make them noise.
#[test]
fn seeds_of_the_fuzzer() {
    use Status::*;
    let expected: &[(&str, &[Status])] = &[
        ("addresses-that-wrap", &[PageFault, BatchListFault]),
        ("batch", &[Success]),
        ("batch-that-fails", &[Success, PredicateFalse, BatchFailed]),
        ("copies", &[Success]),
        ("drains", &[ReadbackFault]),
        ("every-operation", &[Success]),
        ("full-queues", &[Success]),
        ("list-in-the-data", &[Success, ReservedNotZero, BatchFailed]),
        ("lost-records", &[]), // by chance
        ("page-faults", &[PageFault, PageFaultRefused]),
        ("refused", &[BadOpcode, InvalidFlags, ReservedNotZero, BadSize, BadCount, BadDeltaSize, Overlap]),
        ("refused", &[DualcastAlignment, ListAlignment, CompletionAlignment, Alignment, NotPrivileged]),
        ("timed", &[Success]),
    ];
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/descriptor");
    for entry in std::fs::read_dir(&directory).expect("seeds") {
        let name = entry.expect("a seed").file_name();
        assert!(expected.iter().any(|(expected, ..)| name == **expected), "what does {name:?} lead to?");
    }
    for (name, statuses) in expected {
        let counters = fuzzed::descriptors(&std::fs::read(directory.join(name)).expect(name));
        let missing: Vec<_> =
            statuses.iter().filter(|status| !counters.completed.contains_key(status)).collect();
        assert!(missing.is_empty(), "{name}: no {missing:?}: {counters:?}");
        // All operations except Batch, all successful.
        assert!(*name != "every-operation" || counters.completed == [(Success, 16)].into(), "{counters:?}");
    }
}

/// Random bytes pass the checks and reach every status of a completion; otherwise fuzzing shows little.
#[test]
fn every_status_is_reached() {
    let mut state = 2u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut ends: BTreeMap<Status, u64> = BTreeMap::new();
    for _ in 0..2500 {
        let mut data: Vec<u8> = (0..800).flat_map(|_| next().to_le_bytes()).collect();
        data[8] = 0; // no lost records
        data[9] = if next() % 10 == 0 { 20 } else { 0 };
        for (status, count) in fuzzed::descriptors(&data).completed {
            *ends.entry(status).or_default() += count;
        }
    }
    for status in [
        Status::Success,
        Status::PredicateFalse,
        Status::PageFault,
        Status::PageFaultRefused,
        Status::BatchFailed,
        Status::BatchListFault,
        Status::DeltaOrder,
        Status::DeltaOffset,
        Status::DifMismatch,
        Status::BadOpcode,
        Status::InvalidFlags,
        Status::ReservedNotZero,
        Status::BadSize,
        Status::BadCount,
        Status::BadDeltaSize,
        Status::Overlap,
        Status::CompletionAlignment,
        Status::Alignment,
        Status::ReadbackFault,
        Status::HardwareRead,
        Status::HardwareWrite,
        Status::Translation,
    ] {
        assert!(ends.get(&status) > Some(&20), "{status}: {ends:?}");
    }
}

/// Another seed gives another run; otherwise a replay would prove nothing.
#[test]
fn another_seed_is_another_run() {
    let submissions: Vec<_> = (0..20)
        .map(|index| {
            (
                0,
                Descriptor::memmove(DATA, DATA.offset(index * 64 + 64), 64)
                    .with_completion_at(RECORDS.offset(index * 32)),
            )
        })
        .collect();
    let play = |seed| play(FaultPlan::from_seed(seed), &submissions, &[]).visits;
    let same = (0..50).filter(|seed| play(*seed) == play(seed + 1)).count();
    assert!(same <= 2, "{same} of 50 pairs of seeds ran alike");
}
