//! What the device refuses, with which status, and where it says so: completion record or error register.

mod common;

use common::{PASID, RECORDS, complete, generous, plain, record, run, status, submit};
use memferry_dsa::emulator::{Deterministic, DeviceConfig, FakeMemory, Nasty};
use memferry_dsa::{Address, Descriptor, Flags, Opcode, Status};

const DATA: Address = Address(0x10_0000);

fn copy() -> Descriptor {
    Descriptor::memmove(DATA, DATA.offset(64), 64)
}

/// Descriptors with single bits set that the constructors do not set.
fn with_bits(descriptor: Descriptor, word: usize, bits: u64) -> Descriptor {
    let mut words = descriptor.to_words();
    words[word] |= bits;
    Descriptor::from_words(words)
}

/// The flags that each operation allows, tried one by one.
#[test]
fn flags_one_by_one() {
    let common = Flags::COMPLETION_CLASS.bits()
        | Flags::COMPLETION_ADDRESS_VALID.bits()
        | Flags::REQUEST_COMPLETION.bits();
    let cases = [
        (Descriptor::noop(), common),
        (Descriptor::batch(DATA, 2), common | Flags::ADDRESS_1_CLASS.bits()),
        (copy(), common | 0x02 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000),
    ];
    for (descriptor, allowed) in cases {
        for bit in (0..24).map(|bit| 1 << bit) {
            let mut run = run(&generous(DeviceConfig::one_shared_queue()), Nasty::none());
            run.memory.map(DATA, 4096);
            let completion = complete(&mut run, descriptor.with_flags(Flags::from_bits(bit))).unwrap();
            if allowed & bit != 0 {
                assert!(
                    matches!(completion.status, Status::Success | Status::BatchFailed | Status::PageFault),
                    "{descriptor:?} with {bit:#x}: {completion:?}"
                );
            } else {
                assert_eq!(completion.status, Status::InvalidFlags, "{descriptor:?} with {bit:#x}");
                assert_eq!(completion.invalid_flags().bits(), bit, "{descriptor:?}");
            }
        }
    }
}

#[test]
fn block_on_fault_needs_a_queue_that_allows_it() {
    let completion = complete(&mut plain(), copy().with_flags(Flags::BLOCK_ON_FAULT)).unwrap();
    assert_eq!(completion.status, Status::InvalidFlags);
    assert_eq!(completion.invalid_flags(), Flags::BLOCK_ON_FAULT);
}

/// Every reserved bit of every operation, tried one by one.
#[test]
fn reserved_bits_one_by_one() {
    let mut run = run(&DeviceConfig::one_dedicated_queue(), Nasty::none());
    run.memory.map(DATA, 4096);
    let reserved_of = |descriptor: &Descriptor| match descriptor.opcode() {
        Ok(Opcode::Noop) => [0x7ff0_0000, 0, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX],
        Ok(Opcode::Batch) => [0x7ff0_0000, 0, 0, u64::MAX, !0xffff_ffff, u64::MAX, u64::MAX, u64::MAX],
        _ => [0x7ff0_0000, 0, 0, 0, !0xffff_ffff, u64::MAX, u64::MAX, u64::MAX],
    };
    for descriptor in [Descriptor::noop(), Descriptor::batch(DATA, 2), copy()] {
        for (word, bits) in reserved_of(&descriptor).into_iter().enumerate() {
            for bit in (0..64).map(|bit| 1u64 << bit).filter(|bit| bits & bit != 0) {
                let broken = with_bits(descriptor, word, bit);
                assert_eq!(
                    status(&mut run, broken),
                    Some(Status::ReservedNotZero),
                    "word {word} bit {bit:#x}"
                );
            }
        }
    }
}

#[test]
fn operations_that_the_device_does_not_have() {
    let mut run = plain();
    for code in (0..=255u64).filter(|code| ![0, 1, 3].contains(code)) {
        let descriptor = with_bits(Descriptor::noop(), 0, code << 56);
        assert_eq!(status(&mut run, descriptor), Some(Status::BadOpcode), "operation {code:#x}");
    }
}

#[test]
fn operations_that_the_queue_does_not_allow() {
    let mut config = DeviceConfig::one_shared_queue();
    config.groups[0].queues[0].operations = memferry_dsa::OperationSet::of(&[Opcode::Memmove]);
    let mut run = run(&config, Nasty::none());
    assert_eq!(status(&mut run, Descriptor::noop()), Some(Status::BadOpcode));
    assert_eq!(status(&mut run, Descriptor::memmove(DATA, DATA, 0)), Some(Status::BadSize));
}

#[test]
fn sizes_of_transfers() {
    let mut run = plain();
    run.memory.map(DATA, 2 << 20);
    let max = run.device.work_queue(0).transfer_bytes_max;
    for (size, expected) in
        [(0, Status::BadSize), (1, Status::Success), (max, Status::Success), (max + 1, Status::BadSize)]
    {
        assert_eq!(status(&mut run, Descriptor::memmove(DATA, DATA, size)), Some(expected), "{size} bytes");
    }
}

/// A descriptor with two faults is refused for the one that is checked first.
#[test]
fn the_order_of_checks() {
    let mut run = run(&DeviceConfig::one_dedicated_queue(), Nasty::none());
    let bad_operation = |descriptor| with_bits(descriptor, 0, 0xff << 56);
    let bad_flags = |descriptor: Descriptor| descriptor.with_flags(Flags::CHECK_RESULT);
    let bad_reserved = |descriptor| with_bits(descriptor, 7, 1);
    let bad_size = Descriptor::memmove(DATA, DATA, 0);
    let cases = [
        (bad_operation(bad_flags(copy())), Status::BadOpcode),
        (bad_flags(bad_reserved(copy())), Status::InvalidFlags),
        (bad_reserved(bad_size), Status::ReservedNotZero),
        (bad_size, Status::BadSize),
        (Descriptor::batch(DATA.offset(1), 1), Status::BadCount),
    ];
    for (descriptor, expected) in cases {
        assert_eq!(status(&mut run, descriptor), Some(expected), "{descriptor:?}");
        assert_eq!(run.device.take_error(), None, "{descriptor:?}");
    }
    // These go to the error register; privilege is checked before flags, the record's alignment before privilege.
    let privileged = with_bits(bad_flags(copy()), 0, 1 << 31);
    let cases = [
        (privileged.with_completion_at(record(0)), Status::NotPrivileged),
        (privileged.with_completion_at(record(0).offset(8)), Status::CompletionAlignment),
        (bad_operation(privileged).with_completion_at(record(0).offset(8)), Status::BadOpcode),
    ];
    common::reset(&run, 0);
    for (descriptor, expected) in cases {
        submit(&mut run, &descriptor);
        run.run_until_idle();
        assert_eq!(run.device.take_error().map(|error| error.status), Some(expected), "{descriptor:?}");
        assert_eq!(run.memory.load(RECORDS, 64), [0; 64], "{descriptor:?}: a record was written");
    }
}

/// Success is told only on request, failure always, and to the error register if there is no record.
#[test]
fn which_ends_are_told_where() {
    let mut run = plain();
    run.memory.map(DATA, 4096);
    let quiet = |descriptor: Descriptor| {
        with_bits(descriptor, 1, record(0).0).with_flags(Flags::COMPLETION_ADDRESS_VALID)
    };
    let bad = Descriptor::memmove(DATA, DATA, 0);
    let list = DATA.offset(1024);
    run.memory.store(list, &bad.to_bytes());
    run.memory.store(list.offset(64), &copy().to_bytes());
    for (descriptor, told_to_record, told_to_register) in [
        (copy(), None, None),
        (quiet(copy()), None, None),
        (bad, None, Some(Status::BadSize)),
        (quiet(bad), Some(Status::BadSize), None),
        (Descriptor::memmove(0x5000_0000, DATA, 1), None, Some(Status::PageFault)),
        (quiet(Descriptor::memmove(0x5000_0000, DATA, 1)), Some(Status::PageFault), None),
        (quiet(Descriptor::batch(list, 2)), None, Some(Status::BadSize)), // its member's end, not its own
        (with_bits(copy(), 1, 64), None, Some(Status::ReservedNotZero)),
        (copy().with_flags(Flags::REQUEST_COMPLETION), None, Some(Status::InvalidFlags)),
        (copy().with_flags(Flags::COMPLETION_CLASS), None, Some(Status::InvalidFlags)),
    ] {
        common::reset(&run, 0);
        submit(&mut run, &descriptor);
        run.run_until_idle();
        let record = run.memory.poll(record(0)).map(|completion| completion.status);
        let register = run.device.take_error();
        assert_eq!(
            (record, register.as_ref().map(|error| error.status)),
            (told_to_record, told_to_register),
            "{descriptor:?}"
        );
        let Some(error) = register else { continue };
        assert_eq!((error.queue, error.pasid, error.overflow), (0, PASID, false));
        if error.status == Status::InvalidFlags {
            assert_eq!(error.invalid_flags, descriptor.flags());
        }
        if error.status == Status::PageFault {
            assert_eq!((error.fault_address, error.write_fault), (Address(0x5000_0000), false));
        }
    }
}

/// The register keeps the first error and says that there were others.
#[test]
fn the_error_register_keeps_the_first() {
    let mut run = plain();
    for descriptor in [Descriptor::memmove(DATA, DATA, 0), with_bits(Descriptor::noop(), 7, 1)] {
        submit(&mut run, &descriptor);
        run.run_until_idle();
    }
    let error = run.device.take_error().unwrap();
    assert_eq!((error.status, error.operation, error.overflow), (Status::BadSize, 3, true));
    assert_eq!(run.device.take_error(), None);
}

/// A record on a page that is not there is lost; on an absent one it is not.
#[test]
fn records_on_bad_pages() {
    let mut run = plain();
    run.memory.map(DATA, 4096);
    run.memory.page_out(DATA);
    for address in [DATA, Address(0x5000_0000)] {
        submit(&mut run, &Descriptor::noop().with_completion_at(address));
        run.run_until_idle();
    }
    assert_eq!(run.memory.poll(DATA).unwrap().status, Status::Success);
    let error = run.device.take_error().unwrap();
    assert_eq!(
        (error.status, error.fault_address, error.overflow),
        (Status::CompletionFault, Address(0x5000_0000), false)
    );
    let counters = run.device.counters();
    assert_eq!((counters.records_written, counters.records_lost, counters.in_flight()), (1, 1, 0));
}

/// Of the record, the status byte is written last.
#[test]
fn the_status_byte_comes_last() {
    let mut run = plain();
    complete(&mut run, Descriptor::noop()).unwrap();
    let visits = run.memory.visits();
    let writes: Vec<_> = visits.iter().map(|visit| (visit.address, visit.size_bytes)).collect();
    assert_eq!(writes, [(record(0).offset(1), 31), (record(0), 1)]);
}

#[test]
fn configurations_that_no_device_accepts() {
    let change = |change: fn(&mut DeviceConfig)| {
        let mut config = DeviceConfig::one_shared_queue();
        change(&mut config);
        let device = Deterministic::new(&config, Nasty::none(), FakeMemory::new());
        device.err().expect("refused").to_string()
    };
    type Change = fn(&mut DeviceConfig);
    let cases: [(Change, &str); 9] = [
        (|config| config.groups[0].queues[0].size = 129, "129 entries"),
        (|config| config.groups[0].queues[0].size = 0, "a size"),
        (|config| config.groups[0].queues[0].priority = 0, "priority"),
        (|config| config.groups[0].queues[0].threshold = 0, "threshold"),
        (|config| config.groups[0].queues[0].batch_max = 2048, "batch"),
        (|config| config.groups[0].queues[0].transfer_bytes_max = 3000, "transfer"),
        (
            |config| config.groups[0].queues[0].operations = memferry_dsa::OperationSet::of(&[Opcode::Drain]),
            "operations",
        ),
        (|config| config.groups[0].engines = 0, "no engine"),
        (|config| config.groups[0].engines = 5, "5 engines"),
    ];
    for (case, expected) in cases {
        let text = change(case);
        assert!(text.contains(expected), "{text:?} does not speak of {expected:?}");
    }
}
