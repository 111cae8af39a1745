//! Queues: answers of full queues, priorities, and aborted devices.

use memferry_dsa::{Descriptor, Status, Submission, SubmitError, WorkQueueInfo};
use memferry_dsa_emulator::{
    Device, DeviceConfig, FaultPlan, GroupConfig, Stepped, dedicated_queue, shared_queue,
};

use crate::common::{PASID, plain, record, run};

fn offer(device: &Device, queue: usize) -> Submission {
    device.submit(queue, &Descriptor::noop(), PASID).unwrap()
}

#[test]
fn a_shared_queue_answers_retry_at_its_threshold() {
    let mut config = DeviceConfig::one_shared_queue();
    for (threshold, room) in [(5, 5), (32, 32), (100, 32)] {
        config.groups[0].queues[0].threshold = threshold;
        let mut run = run(&config, FaultPlan::none());
        for _ in 0..room {
            assert_eq!(offer(&run.device, 0), Submission::Accepted);
        }
        assert_eq!(offer(&run.device, 0), Submission::Retry);
        run.step(); // an engine takes one
        assert_eq!(offer(&run.device, 0), Submission::Accepted);
        assert_eq!(offer(&run.device, 0), Submission::Retry);
        run.run_until_idle();
        let counters = run.device.counters();
        assert_eq!((counters.accepted, counters.retried, counters.dropped), (room + 1, 2, 0));
        assert_eq!((counters.completed[&Status::Success], counters.in_flight()), (room + 1, 0));
    }
}

/// A dedicated queue that overflows is reported in the error register only.
#[test]
fn a_full_dedicated_queue_drops_descriptors() {
    let mut run = run(&DeviceConfig::one_dedicated_queue(), FaultPlan::none());
    for _ in 0..32 {
        assert_eq!(offer(&run.device, 0), Submission::Accepted);
    }
    assert_eq!(run.device.take_error(), None);
    let lost = Descriptor::noop().with_completion_at(record(0));
    assert_eq!(run.device.submit(0, &lost, PASID), Ok(Submission::Accepted));
    let error = run.device.take_error().unwrap();
    assert_eq!((error.status.code(), error.queue, error.operation), (0x53, Some(0), Some(0)));
    run.run_until_idle();
    assert_eq!(run.memory.poll(record(0)), None);
    let counters = run.device.counters();
    assert_eq!((counters.accepted, counters.dropped, counters.completed_count()), (32, 1, 32));
}

#[test]
fn faulty_queues_retry_although_they_have_room() {
    let answers = |seed| {
        let fault_plan = FaultPlan { seed, retries_per_mille: 500, ..FaultPlan::none() };
        let run = run(&DeviceConfig::one_shared_queue(), fault_plan);
        let answers: Vec<_> = (0..40).map(|_| offer(&run.device, 0)).collect();
        let retried = answers.iter().filter(|answer| **answer == Submission::Retry).count() as u64;
        assert!((10..30).contains(&retried), "seed {seed}: {retried} of 40");
        let counters = run.device.counters();
        assert_eq!((counters.accepted, counters.retried), (40 - retried, retried), "seed {seed}");
        answers
    };
    assert_eq!(answers(1), answers(1));
    assert_ne!(answers(1), answers(2));
}

/// The order in which one engine serves full queues of priorities 1, 2 and 5.
#[test]
fn priorities_are_weights() {
    let queue = |name, priority| WorkQueueInfo { priority, ..shared_queue(name, 40) };
    let queues = vec![queue("wq0.0", 1), queue("wq0.1", 2), queue("wq0.2", 5)];
    let config = DeviceConfig::new(vec![GroupConfig { engines: 1, queues }]);
    let mut run = run(&config, FaultPlan::none());
    for number in 0..120 {
        let noop = Descriptor::noop().with_completion_at(record(number));
        assert_eq!(run.device.submit(number as usize % 3, &noop, PASID), Ok(Submission::Accepted));
    }
    run.run_until_idle();
    let visits = run.memory.visits();
    let served = visits.iter().filter(|visit| visit.size_bytes == 1);
    let served: Vec<_> = served.map(|visit| (visit.address.0 - record(0).0) / 32 % 3).collect();
    for round in served[..56].chunks(8) {
        let of = |queue| round.iter().filter(|served| **served == queue).count();
        assert_eq!((of(0), of(1), of(2)), (1, 2, 5), "{served:?}");
    }
    assert_eq!(served[..4], [0, 1, 2, 1], "queues with credits take turns");
    // Queue 2 is empty after 64 entries; the others continue at 1 to 2, and then queue 0 has the engine alone.
    for round in served[66..99].chunks(3) {
        assert_eq!(round.iter().filter(|served| **served == 1).count(), 2, "{served:?}");
    }
    assert_eq!(served[104..], [0; 16], "{served:?}");
}

/// A group's engines serve its own queues and no others.
#[test]
fn groups_are_separate() {
    let group = |name: &str| GroupConfig {
        engines: 1,
        queues: vec![shared_queue(name, 10), dedicated_queue(name, 10)],
    };
    let config = DeviceConfig::new(vec![group("a"), group("b")]);
    let mut run = run(&config, FaultPlan::none());
    for queue in 0..4 {
        assert_eq!(offer(&run.device, queue), Submission::Accepted);
    }
    assert_eq!(run.device.work_queue(3).name, "b");
    run.step(); // both engines take one each
    assert_eq!(run.device.counters().dispatched, 2);
    run.run_until_idle();
    assert_eq!(run.device.counters().completed[&Status::Success], 4);
}

/// Work of several engines is interleaved; work of one engine keeps its order.
#[test]
fn order_between_engines_is_free() {
    let order = |config: &DeviceConfig, seed| {
        let mut run = run(
            config,
            FaultPlan { page_faults_per_mille: 0, retries_per_mille: 0, ..FaultPlan::from_seed(seed) },
        );
        run.memory.map(0x10_0000.into(), 4096);
        for number in 0..8u64 {
            let copy = Descriptor::memmove(0x10_0000, 0x10_0100 + number, 1);
            assert_eq!(run.device.submit(0, &copy, PASID), Ok(Submission::Accepted));
        }
        run.run_until_idle();
        let visits = run.memory.visits();
        let writes = visits.iter().map(|visit| visit.address.0).filter(|address| *address != 0x10_0000);
        writes.collect::<Vec<_>>()
    };
    let in_order: Vec<_> = (0..8).map(|number| 0x10_0100 + number).collect();
    let mixed = (0..50).filter(|seed| order(&DeviceConfig::four_engines(), *seed) != in_order).count();
    assert!(mixed > 40, "only {mixed} of 50 runs mixed");
    for seed in 0..50 {
        assert_eq!(order(&DeviceConfig::one_shared_queue(), seed), in_order, "seed {seed}");
    }
}

/// A device without a seed completes equal descriptors in their order, with any number of steps between them. Its
/// engines once took turns, and the first idle engine got the next descriptor: the second of two copies completed
/// first.
#[test]
fn equal_descriptors_complete_in_order() {
    for gaps in 0..4u32.pow(6) {
        let mut run = run(&DeviceConfig::four_engines(), FaultPlan::none());
        run.memory.map(0x10_0000.into(), 0x2000);
        for number in 0..8u64 {
            let copy = Descriptor::memmove(0x10_0000, 0x10_1000 + number, 1);
            assert_eq!(run.device.submit(0, &copy, PASID), Ok(Submission::Accepted));
            for _ in 0..gaps >> (2 * number) & 3 {
                run.step();
            }
        }
        run.run_until_idle();
        let visits = run.memory.visits();
        let writes: Vec<_> =
            visits.iter().map(|visit| visit.address.0).filter(|at| *at >= 0x10_1000).collect();
        assert!(writes.len() == 8 && writes.is_sorted(), "gaps {gaps:b}: {writes:x?}");
    }
}

#[test]
fn an_aborted_device_is_silent() {
    let mut run = plain();
    for number in 0..5 {
        let noop = Descriptor::noop().with_completion_at(record(number));
        assert_eq!(run.device.submit(0, &noop, PASID), Ok(Submission::Accepted));
    }
    run.step();
    run.device.abort();
    assert_eq!(run.device.submit(0, &Descriptor::noop(), PASID), Err(SubmitError::Gone));
    let counters = run.device.counters();
    assert_eq!((counters.accepted, counters.completed_count(), counters.aborted), (5, 1, 4));
    assert_eq!(counters.in_flight(), 0);
    run.device.abort();
    assert_eq!(run.device.counters().aborted, 4, "aborting twice counts once");
    assert_eq!(run.run_until_idle(), 0);
    assert_eq!(run.step(), Stepped::Idle);
    assert_eq!(run.memory.poll(record(1)), None);
}
