//! Devices that fail, are disabled, and are enabled again.

use std::collections::BTreeSet;

use memferry_dsa::{Address, CompletionRecord, Descriptor, Status, Submission, SubmitError};
use memferry_dsa_emulator::{DeviceConfig, Emulator, FaultPlan, StartError};

use crate::common;
use crate::common::{PASID, complete, pattern, plain, record, run};

const DATA: Address = Address(0x10_0000);

/// Hardware errors stop operations at any page, with the progress so far, and no descriptor is lost.
#[test]
fn hardware_errors() {
    let mut statuses = BTreeSet::new();
    for seed in 0..200 {
        let fault_plan = FaultPlan { seed, hardware_errors_per_mille: 100, ..FaultPlan::none() };
        let mut run = run(&DeviceConfig::one_shared_queue(), fault_plan);
        run.memory.map(DATA, 0x1_0000);
        run.memory.store(DATA, &pattern(0x4000, seed));
        let completion = complete(&mut run, Descriptor::memmove(DATA, DATA.offset(0x8000), 0x4000)).unwrap();
        statuses.insert(completion.status);
        let done = match completion.status {
            Status::Success => 0x4000,
            _ => completion.bytes_completed as usize,
        };
        assert_eq!(run.memory.load(DATA.offset(0x8000), done), pattern(0x4000, seed)[..done]);
        assert!(
            run.memory.load(DATA.offset(0x8000 + done as u64), 0x4000 - done).iter().all(|byte| *byte == 0)
        );
        assert_eq!(completion.fault_address, Address(0), "an address belongs to page faults");
        assert_eq!(run.device.counters().in_flight(), 0);
    }
    let expected = [Status::Success, Status::HardwareRead, Status::HardwareWrite, Status::Translation];
    assert_eq!(statuses, BTreeSet::from(expected));
}

/// A hardware error in a list completes the batch with that error.
#[test]
fn hardware_errors_in_lists() {
    let fault_plan = FaultPlan { hardware_errors_per_mille: 1000, ..FaultPlan::none() };
    let mut run = run(&DeviceConfig::one_shared_queue(), fault_plan);
    run.memory.map(DATA, 4096);
    let status = complete(&mut run, Descriptor::batch(DATA, 2)).unwrap().status;
    assert!(matches!(status, Status::HardwareRead | Status::Translation), "{status}");
}

#[test]
fn disabling_completes_accepted_descriptors() {
    let mut run = plain();
    run.memory.map(DATA, 0x2000);
    for number in 0..10 {
        let copy = Descriptor::memmove(DATA, DATA.offset(0x1000), 100).with_completion_at(record(number));
        assert_eq!(run.device.submit(0, &copy, PASID), Ok(Submission::Accepted));
    }
    assert!(!run.device.enable(), "it is enabled");
    run.step();
    run.device.disable();
    assert_eq!(run.device.submit(0, &Descriptor::noop(), PASID), Err(SubmitError::Gone));
    assert!(!run.device.is_gone() && !run.device.enable(), "it has work");
    run.run_until_idle();
    assert!(run.device.is_gone());
    assert!((0..10).all(|number| run.memory.poll(record(number)).is_some()));
    assert_eq!((run.device.counters().completed_count(), run.device.counters().aborted), (10, 0));

    assert!(run.device.enable() && !run.device.is_gone());
    assert_eq!(complete(&mut run, Descriptor::noop()).unwrap().status, Status::Success);
    assert_eq!(run.device.counters().accepted, 1, "counters begin anew");
}

/// An enabled device continues no work from before an abort.
#[test]
fn an_aborted_device_comes_back_empty() {
    for seed in 0..50 {
        let mut run = run(&DeviceConfig::four_engines(), FaultPlan::from_seed(seed));
        run.memory.map(DATA, 0x2000);
        for number in 0..20 {
            let copy =
                Descriptor::memmove(DATA, DATA.offset(0x1000), 4096).with_completion_at(record(number));
            common::submit(&mut run, &copy);
        }
        (0..seed).for_each(|_| {
            run.step();
        });
        run.device.abort();
        let before = run.memory.visits().len();
        assert!(run.device.enable());
        assert_eq!(run.run_until_idle(), 0, "seed {seed}");
        assert_eq!(run.memory.visits().len(), before, "seed {seed}: it goes on");
        common::reset(&run, 0);
        assert!(complete(&mut run, Descriptor::noop()).is_some(), "seed {seed}");
    }
}

/// The same seed gives the same run, also after an abort.
#[test]
fn a_seed_replays_aborts_and_enables() {
    let play = || {
        let mut run = run(&DeviceConfig::four_engines(), FaultPlan::from_seed(9));
        run.memory.map(DATA, 0x8000);
        for life in 0..3 {
            for number in 0..20 {
                let copy =
                    Descriptor::memmove(DATA, DATA.offset(0x4000), 0x3000).with_completion_at(record(number));
                common::submit(&mut run, &copy);
            }
            (0..30 * life).for_each(|_| {
                run.step();
            });
            run.device.abort();
            assert!(run.device.enable());
        }
        run.memory.visits()
    };
    assert_eq!(play(), play());
}

/// A device in a thread: old portals stay gone, new ones work.
#[test]
fn a_threaded_device_comes_back() {
    let emulator = Emulator::start(&DeviceConfig::one_shared_queue(), FaultPlan::none()).unwrap();
    assert!(matches!(emulator.enable(), Err(StartError::IsEnabled)));
    for life in 0..20 {
        let portal = emulator.portal(0);
        let records: Vec<_> = (0..20).map(|_| CompletionRecord::new()).collect();
        for record in &records {
            // SAFETY: a no-op names no memory but its record, which outlives the device's life.
            let answer = unsafe { portal.submit(&Descriptor::noop().with_completion(record)) };
            assert_eq!(answer, Ok(Submission::Accepted));
        }
        if life % 2 == 0 {
            emulator.disable()
        } else {
            emulator.abort()
        }
        assert!(portal.is_gone());
        let completed = records.iter().filter(|record| record.poll().is_some()).count() as u64;
        let counters = emulator.counters();
        assert_eq!(counters.records_written, completed);
        assert_eq!(counters.completed_count() + counters.aborted, 20);
        assert!(life % 2 == 1 || completed == 20, "life {life}: {counters:?}");
        emulator.enable().unwrap();
        assert!(portal.is_gone(), "a portal from before may wait for what is lost");
        // SAFETY: a no-op without a record names no memory.
        assert_eq!(unsafe { portal.submit(&Descriptor::noop()) }, Err(SubmitError::Gone));
    }
}
