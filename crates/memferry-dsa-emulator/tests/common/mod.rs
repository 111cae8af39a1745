//! Helpers for the tests of the emulated device.
#![allow(dead_code)] // each test program uses a part

use memferry_dsa::{Address, Completion, Descriptor, Status, Submission};
use memferry_dsa_emulator::{Deterministic, DeviceConfig, FakeMemory, FaultPlan};

/// The address of the tests' completion records.
pub(crate) const RECORDS: Address = Address(0x7000_0000);
/// The PASID of the tests' descriptors.
pub(crate) const PASID: u32 = 77;

pub(crate) type Run = Deterministic<FakeMemory>;

/// A device over a fake memory with room for records.
pub(crate) fn run(config: &DeviceConfig, fault_plan: FaultPlan) -> Run {
    let memory = FakeMemory::new();
    memory.map(RECORDS, 64 << 10);
    Deterministic::new(config, fault_plan, memory).expect("a valid configuration")
}

pub(crate) fn plain() -> Run {
    run(&DeviceConfig::one_shared_queue(), FaultPlan::none())
}

/// The address of the record with this number.
pub(crate) fn record(number: u32) -> Address {
    RECORDS.offset(u64::from(number) * 32)
}

/// Zeroes a record.
pub(crate) fn reset(run: &Run, number: u32) {
    run.memory.store(record(number), &[0; 32]);
}

/// Submits until the queue accepts.
pub(crate) fn submit(run: &mut Run, descriptor: &Descriptor) {
    while run.device.submit(0, descriptor, PASID) == Ok(Submission::Retry) {
        run.step();
    }
}

/// Submits, runs until idle, and returns the completion in record 0.
pub(crate) fn complete(run: &mut Run, descriptor: Descriptor) -> Option<Completion> {
    reset(run, 0);
    submit(run, &descriptor.with_completion_at(record(0)));
    run.run_until_idle();
    run.memory.poll(record(0))
}

/// Runs [`complete`] and returns the status.
pub(crate) fn status(run: &mut Run, descriptor: Descriptor) -> Option<Status> {
    complete(run, descriptor).map(|completion| completion.status)
}

/// Copies like software that expects page faults: touch and resume until success. Returns the number of faults.
pub(crate) fn copy_with_resume(run: &mut Run, mut copy: Descriptor, context: &str) -> u32 {
    for faults in 0..10_000 {
        let completion = complete(run, copy).unwrap_or_else(|| panic!("{context}: no completion"));
        if completion.status == Status::Success {
            return faults;
        }
        assert_eq!(completion.status, Status::PageFault, "{context}: {completion:?}");
        assert!(completion.bytes_completed < copy.size(), "{context}: {completion:?}");
        let hit = if completion.write_fault { copy.address_2() } else { copy.address_1() };
        let region = hit.page()..hit.offset(u64::from(copy.size()));
        assert!(
            region.contains(&completion.fault_address),
            "{context}: {completion:?} is not about {copy:?}"
        );
        run.memory.touch(completion.fault_address);
        copy =
            copy.resumed(&completion).unwrap_or_else(|| panic!("{context}: {completion:?} is not resumable"));
    }
    panic!("{context}: the copy does not end");
}

/// Bytes that differ from their neighbours and from those of another salt.
pub(crate) fn pattern(size_bytes: usize, salt: u64) -> Vec<u8> {
    (0..size_bytes as u64)
        .map(|index| (index.wrapping_mul(0x9e37_79b9).wrapping_add(salt * 77) >> 7) as u8)
        .collect()
}

/// The configuration with the largest limits of its queues, for tests that are not about limits.
pub(crate) fn generous(mut config: DeviceConfig) -> DeviceConfig {
    for queue in config.groups.iter_mut().flat_map(|group| &mut group.queues) {
        queue.block_on_fault = true;
        queue.batch_max = 1024;
    }
    config
}
