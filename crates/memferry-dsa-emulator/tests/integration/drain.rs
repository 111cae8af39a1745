//! Drain: the descriptors that it waits for, and readback.

use memferry_dsa::{Address, Descriptor, Status, Submission};
use memferry_dsa_emulator::{DeviceConfig, FaultPlan, GroupConfig, dedicated_queue, shared_queue};

use crate::common::{PASID, complete, plain, record, run};

const DATA: Address = Address(0x10_0000);

/// Submits copies and drains of two submitters to one queue. At each drain's completion it checks that all descriptors
/// that the drain waits for have records. Returns whether some other descriptor was still in flight then.
fn drains(config: &DeviceConfig, seed: u64, drains_others: bool) -> bool {
    let fault_plan =
        FaultPlan { page_faults_per_mille: 0, retries_per_mille: 0, ..FaultPlan::from_seed(seed) };
    let mut run = run(config, fault_plan);
    run.memory.map(DATA, 8 * 4096);
    let is_drain = |number: u32| number % 7 == 6;
    let pasid = |number: u32| PASID + number / 3 % 2;
    for number in 0..21 {
        let work = match is_drain(number) {
            true => Descriptor::drain(),
            false => Descriptor::memmove(DATA, DATA.offset(4096), 1 + number * 300),
        };
        let work = work.with_completion_at(record(number));
        assert_eq!(run.device.submit(0, &work, pasid(number)), Ok(Submission::Accepted));
    }
    let mut others_late = false;
    let mut seen = [false; 21];
    while !seen.iter().all(|seen| *seen) {
        run.step();
        for number in 0..21 {
            let is_complete = run.memory.poll(record(number)).is_some();
            if !is_complete || std::mem::replace(&mut seen[number as usize], true) {
                continue;
            }
            if is_drain(number) {
                let earlier = (0..number).filter(|other| run.memory.poll(record(*other)).is_none());
                let (mine, others): (Vec<_>, Vec<_>) =
                    earlier.partition(|other| drains_others || pasid(*other) == pasid(number));
                assert!(mine.is_empty(), "seed {seed}: drain {number} completed before {mine:?}");
                others_late |= !others.is_empty();
            }
        }
    }
    run.run_until_idle();
    assert_eq!(run.device.counters().in_flight(), 0);
    others_late
}

/// In a shared queue, a drain waits for its submitter's descriptors and for no others.
#[test]
fn a_shared_queue_is_drained_for_one_submitter() {
    let late = (0..200).filter(|seed| drains(&DeviceConfig::four_engines(), *seed, false)).count();
    assert!(late > 20, "in {late} of 200 runs the drain did not wait for the other submitter");
    (0..100).for_each(|seed| {
        drains(&DeviceConfig::one_shared_queue(), seed, false);
    });
}

/// A dedicated queue has one owner: a drain waits for all its descriptors.
#[test]
fn a_dedicated_queue_is_drained_entirely() {
    let queues = vec![dedicated_queue("wq0.0", 64)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 4, queues }]);
    (0..200).for_each(|seed| {
        drains(&config, seed, true);
    });
}

/// A drain does not wait for other queues.
#[test]
fn other_queues_are_not_drained() {
    let queues = vec![shared_queue("wq0.0", 16), shared_queue("wq0.1", 16)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 2, queues }]);
    let mut run = run(&config, FaultPlan { piece_bytes_max: 1, ..FaultPlan::none() });
    run.memory.map(DATA, 8 * 4096);
    let copy = Descriptor::memmove(DATA, DATA.offset(4 * 4096), 10_000).with_completion_at(record(0));
    let drain = Descriptor::drain().with_completion_at(record(1));
    for (queue, work) in [(0, copy), (1, drain)] {
        assert_eq!(run.device.submit(queue, &work, PASID), Ok(Submission::Accepted));
    }
    while run.memory.poll(record(1)).is_none() {
        run.step();
    }
    assert_eq!(run.memory.poll(record(0)), None);
}

/// A drain waits for an earlier batch and its members.
#[test]
fn batches_are_drained() {
    const LIST: Address = Address(0x20_0000);
    for seed in 0..100 {
        let fault_plan =
            FaultPlan { page_faults_per_mille: 0, retries_per_mille: 0, ..FaultPlan::from_seed(seed) };
        let mut run = run(&DeviceConfig::four_engines(), fault_plan);
        run.memory.map(LIST, 4096);
        for number in 0..20u32 {
            let member = Descriptor::noop().with_completion_at(record(number));
            run.memory.store(LIST.offset(u64::from(number) * 64), &member.to_bytes());
        }
        let batch = Descriptor::batch(LIST, 20).with_completion_at(record(20));
        let drain = Descriptor::drain().with_completion_at(record(21));
        for work in [batch, drain] {
            assert_eq!(run.device.submit(0, &work, PASID), Ok(Submission::Accepted));
        }
        while run.memory.poll(record(21)).is_none() {
            run.step();
        }
        assert!((0..21).all(|number| run.memory.poll(record(number)).is_some()), "seed {seed}");
    }
}

/// Readback addresses: the device requests an absent page; an unmapped one gives status 0x1f.
#[test]
fn readback_addresses() {
    let mut run = plain();
    run.memory.map(DATA, 4096);
    run.memory.page_out(DATA);
    let completion = complete(&mut run, Descriptor::drain().with_readback_1(DATA)).unwrap();
    assert_eq!((completion.status, run.device.counters().page_requests), (Status::Success, 1));
    let unmapped = Address(0x5000_0123);
    for drain in [
        Descriptor::drain().with_readback_1(unmapped),
        Descriptor::drain().with_readback_2(unmapped),
        Descriptor::drain().with_readback_1(DATA).with_readback_2(unmapped),
    ] {
        let completion = complete(&mut run, drain).unwrap();
        assert_eq!((completion.status_byte(), completion.fault_address), (0x1f, unmapped.page()));
    }
}
