//! Refused descriptors: their status, and the place of the report (completion record or error register).

use memferry_dsa::{Address, Descriptor, DifBlock, DifFormat, DifSource, DifTarget, Flags, Opcode, Status};
use memferry_dsa_emulator::{Capabilities, Deterministic, DeviceConfig, DeviceCosts, FakeMemory, FaultPlan};

use crate::common;
use crate::common::{PASID, RECORDS, complete, generous, plain, record, run, status, submit};

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

/// A valid descriptor of every operation that may be in a batch, and of the other two.
fn one_of_each() -> Vec<Descriptor> {
    let (source, target, third) = (DATA, DATA.offset(0x1000), DATA.offset(0x2000));
    let format = DifFormat::new(DifBlock::Bytes512);
    let (expected, made) = (DifSource::default(), DifTarget::default());
    vec![
        Descriptor::noop(),
        Descriptor::batch(DATA, 2),
        Descriptor::drain(),
        copy(),
        Descriptor::fill(0x0102_0304_0506_0708, target, 100),
        Descriptor::compare(source, target, 100),
        Descriptor::compare_pattern(0, source, 100),
        Descriptor::create_delta(source, target, 128, third, 80),
        Descriptor::apply_delta(third, 10, target, 128),
        Descriptor::dualcast(source, target, third, 100),
        Descriptor::crc(0, source, 100),
        Descriptor::copy_crc(0, source, target, 100),
        Descriptor::dif_check(source, 520, format, expected),
        Descriptor::dif_insert(source, target, 512, format, made),
        Descriptor::dif_strip(source, target, 520, format, expected),
        Descriptor::dif_update(source, target, 520, format, expected, made),
        Descriptor::cache_flush(target, 100),
    ]
}

/// A device on which each of them succeeds.
fn roomy() -> common::Run {
    let run = run(&generous(DeviceConfig::one_shared_queue()), FaultPlan::none());
    run.memory.map(DATA, 0x4000);
    run
}

/// Whether a status is of a descriptor that has passed all checks.
fn is_executed(status: Status) -> bool {
    matches!(
        status,
        Status::Success
            | Status::PredicateFalse
            | Status::BatchFailed
            | Status::PageFault
            | Status::DifMismatch
    )
}

#[test]
fn every_operation_is_executed() {
    for (descriptor, opcode) in one_of_each().into_iter().zip(Opcode::ALL) {
        assert_eq!(descriptor.opcode(), Ok(opcode));
        let mut run = roomy();
        let status = status(&mut run, descriptor).unwrap();
        assert!(is_executed(status), "{descriptor:?}: {status}");
        assert_eq!(
            run.device.counters().completed_count(),
            1 + run.device.counters().members,
            "{descriptor:?}"
        );
    }
}

/// Table 5-3 of the specification: flags that an operation allows besides those for the record, and destination
/// readback for those that write.
fn allowed_flags(opcode: Opcode) -> u32 {
    const BLOCK: u32 = 0x02;
    const CHECK: u32 = 0x80;
    const CACHE: u32 = 0x100;
    const A1: u32 = 0x200;
    const A2: u32 = 0x400;
    const A3: u32 = 0x800;
    const STRICT: u32 = 0x2000;
    const READBACK: u32 = 0x4000;
    const WRITE: u32 = BLOCK | CACHE | STRICT | READBACK;
    match opcode {
        Opcode::Noop => 0,
        Opcode::Batch => A1,
        Opcode::Drain => A1 | A2 | 0xf_0000,
        Opcode::Memmove | Opcode::ApplyDelta => WRITE | A1 | A2,
        Opcode::Fill => WRITE | A2,
        Opcode::Compare => BLOCK | CHECK | A1 | A2,
        Opcode::ComparePattern => BLOCK | CHECK | A1,
        Opcode::CreateDelta => WRITE | CHECK | A1 | A2 | A3,
        Opcode::Dualcast => WRITE | A1 | A2 | A3,
        Opcode::CrcGeneration => BLOCK | A1 | A3 | 0x7_0000,
        Opcode::CopyCrc => WRITE | A1 | A2 | A3 | 0x7_0000,
        Opcode::DifCheck => BLOCK | A1,
        Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => WRITE | A1 | A2,
        Opcode::CacheFlush => BLOCK | CACHE | STRICT | A2,
    }
}

/// The flags that each operation allows, one by one.
#[test]
fn flags_one_by_one() {
    for descriptor in one_of_each() {
        let allowed = allowed_flags(descriptor.opcode().unwrap())
            | Flags::COMPLETION_CLASS.bits()
            | Flags::COMPLETION_ADDRESS_VALID.bits()
            | Flags::REQUEST_COMPLETION.bits();
        for bit in (0..24).map(|bit| 1 << bit) {
            let mut run = roomy();
            run.memory.store(DATA, &[0; 128]);
            let completion = complete(&mut run, descriptor.with_flags(Flags::from_bits(bit))).unwrap();
            if allowed & bit != 0 {
                assert!(
                    // With the flag, a readback address or a seed at 0 is valid.
                    is_executed(completion.status) || completion.status == Status::ReadbackFault,
                    "{descriptor:?} with {bit:#x}: {completion:?}"
                );
            } else {
                assert_eq!(completion.status, Status::InvalidFlags, "{descriptor:?} with {bit:#x}");
                assert_eq!(completion.invalid_flags().bits(), bit, "{descriptor:?}");
            }
        }
    }
}

/// Flags that a device without the capability refuses.
#[test]
fn flags_that_need_a_capability() {
    let mut config = generous(DeviceConfig::one_shared_queue());
    let cases = [
        (Capabilities::CACHE_CONTROL, copy(), Flags::CACHE_CONTROL),
        (Capabilities::CACHE_CONTROL_OF_FLUSH, Descriptor::cache_flush(DATA, 1), Flags::CACHE_CONTROL),
        (Capabilities::DESTINATION_READBACK, copy(), Flags::DESTINATION_READBACK),
        (Capabilities::DRAIN_READBACK, Descriptor::drain(), Flags::DRAIN_READBACK_1),
        (Capabilities::DRAIN_READBACK, Descriptor::drain(), Flags::DRAIN_READBACK_2),
        (Capabilities::DRAIN_READBACK, Descriptor::drain(), Flags::DRAIN_NO_READBACK_A),
        (Capabilities::DRAIN_READBACK, Descriptor::drain(), Flags::DRAIN_NO_READBACK_B),
    ];
    for (capability, descriptor, flag) in cases {
        config.capabilities = Capabilities::from_bits(Capabilities::ALL.bits() & !capability.bits());
        let mut run = run(&config, FaultPlan::none());
        run.memory.map(DATA, 4096);
        let completion = complete(&mut run, descriptor.with_flags(flag)).unwrap();
        assert_eq!((completion.status, completion.invalid_flags()), (Status::InvalidFlags, flag));
    }
    config.capabilities =
        Capabilities::from_bits(Capabilities::ALL.bits() & !Capabilities::OVERLAPPING_COPY.bits());
    let mut run = run(&config, FaultPlan::none());
    run.memory.map(DATA, 4096);
    assert_eq!(status(&mut run, Descriptor::memmove(DATA, DATA.offset(63), 64)), Some(Status::Overlap));
    assert_eq!(status(&mut run, Descriptor::memmove(DATA, DATA.offset(64), 64)), Some(Status::Success));
}

/// Operations whose result is in the record need one.
#[test]
fn records_that_must_be_requested() {
    use Opcode::*;
    let needs = [Drain, Compare, ComparePattern, CreateDelta, CrcGeneration, CopyCrc, DifCheck];
    for descriptor in one_of_each() {
        let needs_record = needs.contains(&descriptor.opcode().unwrap());
        let mut run = roomy();
        common::reset(&run, 0);
        submit(&mut run, &descriptor);
        // One or both flags are missing. The report is in the record if there is an address, else in the error
        // register.
        let address_only = with_bits(descriptor, 1, record(0).0).with_flags(Flags::COMPLETION_ADDRESS_VALID);
        submit(&mut run, &address_only);
        run.run_until_idle();
        let error = run.device.take_error().filter(|error| error.status == Status::InvalidFlags);
        let missing = Flags::COMPLETION_ADDRESS_VALID | Flags::REQUEST_COMPLETION;
        assert_eq!(
            error.and_then(|error| error.invalid_flags),
            needs_record.then_some(missing.bits()),
            "{descriptor:?}"
        );
        let context =
            run.memory.poll(record(0)).filter(|completion| completion.status == Status::InvalidFlags);
        let context = context.map(|completion| completion.invalid_flags());
        assert_eq!(context, needs_record.then_some(Flags::REQUEST_COMPLETION), "{descriptor:?}");
    }
}

#[test]
fn block_on_fault_needs_a_queue_that_allows_it() {
    let mut run = plain();
    for descriptor in one_of_each() {
        let completion = complete(&mut run, descriptor.with_flags(Flags::BLOCK_ON_FAULT)).unwrap();
        assert_eq!(completion.status, Status::InvalidFlags, "{descriptor:?}");
        assert_eq!(completion.invalid_flags(), Flags::BLOCK_ON_FAULT, "{descriptor:?}");
    }
}

/// The bytes of each operation that are used; all others from 16 on are reserved.
fn used_bytes(opcode: Opcode) -> Vec<usize> {
    let ranges: &[std::ops::Range<usize>] = match opcode {
        Opcode::Noop | Opcode::Drain => &[],
        Opcode::Batch => &[16..24, 32..36],
        Opcode::Memmove | Opcode::Fill => &[16..32, 32..36],
        Opcode::Compare | Opcode::ComparePattern => &[16..36, 40..41],
        Opcode::CreateDelta => &[16..36, 40..52, 56..57],
        Opcode::ApplyDelta => &[16..36, 40..44],
        Opcode::Dualcast => &[16..36, 40..48],
        Opcode::CrcGeneration => &[16..24, 32..36, 40..44],
        Opcode::CopyCrc => &[16..36, 40..44],
        Opcode::DifCheck => &[16..24, 32..36, 40..41, 42..43, 48..56],
        Opcode::DifInsert => &[16..36, 41..43, 56..64],
        Opcode::DifStrip => &[16..36, 40..41, 42..43, 48..56],
        Opcode::DifUpdate => &[16..36, 40..43, 48..64],
        Opcode::CacheFlush => &[24..32, 32..36],
    };
    ranges.iter().cloned().flatten().collect()
}

/// Reserved bits within used bytes.
fn reserved_in_byte(opcode: Opcode, byte: usize) -> u8 {
    match (opcode, byte) {
        (Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate, 42) => 0xf0,
        (Opcode::DifUpdate, 41) => 0x07,
        // Insert has no source field to pass through.
        (Opcode::DifInsert, 41) => 0x6f,
        _ => 0,
    }
}

/// Every reserved bit of every operation, one by one.
#[test]
fn reserved_bits_one_by_one() {
    let mut run = run(&DeviceConfig::one_dedicated_queue(), FaultPlan::none());
    run.memory.map(DATA, 0x4000);
    for descriptor in one_of_each() {
        let opcode = descriptor.opcode().unwrap();
        let used = used_bytes(opcode);
        for byte in [2, 3].into_iter().chain(16..64) {
            let reserved = match byte {
                2 => 0xf0,
                3 => 0x7f, // the highest bit is the privilege
                _ if used.contains(&byte) => reserved_in_byte(opcode, byte),
                _ => 0xff,
            };
            for bit in (0..8).map(|bit| 1u8 << bit).filter(|bit| reserved & bit != 0) {
                let mut bytes = descriptor.to_bytes();
                bytes[byte] |= bit;
                let broken = Descriptor::from_bytes(&bytes);
                let status = status(&mut run, broken);
                assert_eq!(status, Some(Status::ReservedNotZero), "{opcode:?}: byte {byte} bit {bit:#x}");
            }
        }
    }
    // Bits that are not reserved are refused for other reasons, if at all.
    for descriptor in one_of_each() {
        for byte in used_bytes(descriptor.opcode().unwrap()) {
            let mut bytes = descriptor.to_bytes();
            bytes[byte] |= 0x80 & !reserved_in_byte(descriptor.opcode().unwrap(), byte);
            let status = status(&mut run, Descriptor::from_bytes(&bytes));
            assert_ne!(status, Some(Status::ReservedNotZero), "{descriptor:?} with byte {byte}");
        }
    }
}

/// Fields that are reserved unless a flag makes them valid.
#[test]
fn fields_that_depend_on_flags() {
    let mut run = roomy();
    let crc = Descriptor::crc(0, DATA, 8);
    let seed_at = |bits| with_bits(crc, 6, bits);
    for (descriptor, expected) in [
        (with_bits(crc, 5, 7), Status::Success),
        (seed_at(DATA.0), Status::ReservedNotZero),
        (seed_at(DATA.0).with_flags(Flags::CRC_SEED_IN_MEMORY), Status::Success),
        (with_bits(seed_at(DATA.0), 5, 7).with_flags(Flags::CRC_SEED_IN_MEMORY), Status::ReservedNotZero),
        (with_bits(Descriptor::drain(), 2, DATA.0), Status::ReservedNotZero),
        (with_bits(Descriptor::drain(), 3, DATA.0), Status::ReservedNotZero),
        (Descriptor::drain().with_readback_1(DATA).with_readback_2(DATA), Status::Success),
        (with_bits(Descriptor::drain().with_readback_1(DATA), 3, DATA.0), Status::ReservedNotZero),
    ] {
        assert_eq!(status(&mut run, descriptor), Some(expected), "{descriptor:?}");
    }
}

#[test]
fn operations_that_the_device_lacks() {
    let known = |code: u8| Opcode::try_from(code).is_ok();
    let mut run = plain();
    for code in (0..=255u8).filter(|code| !known(*code)) {
        let descriptor = with_bits(Descriptor::noop(), 0, u64::from(code) << 56);
        assert_eq!(status(&mut run, descriptor), Some(Status::BadOpcode), "operation {code:#x}");
    }
    let mut run = common::run(&DeviceConfig::production(), FaultPlan::none());
    run.memory.map(DATA, 0x4000);
    for descriptor in one_of_each() {
        let is_delta = matches!(descriptor.opcode(), Ok(Opcode::CreateDelta | Opcode::ApplyDelta));
        let refused = status(&mut run, descriptor) == Some(Status::BadOpcode);
        assert_eq!(refused, is_delta, "{descriptor:?}");
    }
    let mut run = common::run(&DeviceConfig::production().without(&[Opcode::Batch]), FaultPlan::none());
    assert_eq!(status(&mut run, Descriptor::batch(DATA, 2)), Some(Status::BadOpcode));
}

/// The operations that Linux shows for the parts on the market, and those that they have.
#[test]
fn production_parts() {
    let config = DeviceConfig::production();
    assert_eq!(config.operations.to_words(), [0x0000_0001_003f_027f, 0, 0, 0]);
    assert_eq!(config.operations_shown().to_words(), [0x0000_0001_003f_027d, 0, 0, 0]);
    assert_eq!(config.queues().next().unwrap().operations, config.operations);
    assert_eq!(config.capabilities.bits(), 0x40_915f_0107);
    assert_eq!((config.capabilities.transfer_bytes_max(), config.capabilities.batch_max()), (1 << 31, 1024));
    assert_eq!(DeviceConfig::four_engines().operations.to_words(), [0x0000_0001_003f_03ff, 0, 0, 0]);
}

#[test]
fn operations_that_the_queue_does_not_allow() {
    let mut config = DeviceConfig::one_shared_queue();
    config.groups[0].queues[0].operations = memferry_dsa::OperationSet::of(&[Opcode::Memmove]);
    let mut run = run(&config, FaultPlan::none());
    assert_eq!(status(&mut run, Descriptor::noop()), Some(Status::BadOpcode));
    assert_eq!(status(&mut run, Descriptor::memmove(DATA, DATA, 0)), Some(Status::BadSize));
}

#[test]
fn sizes_of_transfers() {
    let mut run = plain();
    run.memory.map(DATA, 8 << 20);
    let max = run.device.work_queue(0).transfer_bytes_max;
    let far = DATA.offset(u64::from(max) + 4096);
    let cases: [fn(Address, u32) -> Descriptor; 7] = [
        |far, size| Descriptor::memmove(DATA, far, size),
        |far, size| Descriptor::fill(7, far, size),
        |far, size| Descriptor::compare(DATA.offset(1 << 22), far, size),
        |_, size| Descriptor::compare_pattern(0, DATA.offset(1 << 22), size),
        |_, size| Descriptor::crc(0, DATA, size),
        |far, size| Descriptor::copy_crc(0, DATA, far, size),
        |far, size| Descriptor::cache_flush(far, size),
    ];
    for (number, case) in cases.into_iter().enumerate() {
        for (size, expected) in
            [(0, Status::BadSize), (1, Status::Success), (max, Status::Success), (max + 1, Status::BadSize)]
        {
            let status = status(&mut run, case(far, size));
            assert_eq!(status, Some(expected), "{size} bytes, case {number}");
        }
    }
}

/// Further rules of the operations for sizes, alignment and overlap.
#[test]
fn invalid_operands_are_refused() {
    let mut config = generous(DeviceConfig::one_shared_queue());
    config.groups[0].queues[0].transfer_bytes_max = 1 << 20;
    let mut run = run(&config, FaultPlan::none());
    run.memory.map(DATA, 8 << 20);
    let at = |offset: u64| DATA.offset(offset);
    let (far, farther) = (at(1 << 21), at(1 << 22));
    let delta = |old, new, size, room| Descriptor::create_delta(old, new, size, farther, room);
    let apply = |bytes, target, size| Descriptor::apply_delta(farther, bytes, target, size);
    let crc_at = |seed| Descriptor::crc(0, DATA, 8).with_crc_seed_at(seed);
    let format = |block| DifFormat::new(block);
    let check = |size, block| Descriptor::dif_check(DATA, size, format(block), DifSource::default());
    let insert = |target, size| {
        Descriptor::dif_insert(DATA, target, size, format(DifBlock::Bytes512), DifTarget::default())
    };
    let strip = |target, size| {
        Descriptor::dif_strip(DATA, target, size, format(DifBlock::Bytes512), DifSource::default())
    };
    let update = |target, size| {
        let (source, made) = (DifSource::default(), DifTarget::default());
        Descriptor::dif_update(DATA, target, size, format(DifBlock::Bytes520), source, made)
    };
    let ok = Status::Success;
    let cases = [
        (delta(DATA, far, 8, 80), ok),
        (delta(DATA, far, 0x8_0000, 80), ok),
        (delta(DATA, far, 0x8_0008, 80), Status::BadSize),
        (delta(DATA, far, 0, 80), Status::BadSize),
        (delta(DATA, far, 8, 79), Status::BadDeltaSize),
        (delta(DATA, far, 8, 1 << 20), ok),
        (delta(DATA, far, 8, (1 << 20) + 1), Status::BadDeltaSize),
        (delta(at(4), far, 8, 80), Status::Alignment),
        (delta(DATA, far.offset(1), 8, 80), Status::Alignment),
        (delta(DATA, far, 12, 80), Status::Alignment),
        (delta(farther, far, 8, 80), Status::Overlap),
        (delta(DATA, farther.offset(72), 8, 80), Status::Overlap),
        (delta(DATA, farther.offset(80), 8, 80), ok),
        (apply(0, DATA, 8), Status::BadDeltaSize),
        (apply(10, DATA, 8), ok),
        (apply(15, DATA, 8), Status::BadDeltaSize),
        (apply((1 << 20) + 4, DATA, 8), Status::BadDeltaSize),
        (apply(10, DATA, 0x8_0008), Status::BadSize),
        (apply(10, at(1), 8), Status::Alignment),
        (apply(10, DATA, 9), Status::Alignment),
        (apply(10, farther.offset(8), 8), Status::Overlap),
        (apply(10, farther.offset(16), 8), ok),
        (Descriptor::dualcast(DATA, far, farther, 4096), ok),
        (Descriptor::dualcast(DATA, far.offset(8), farther, 8), Status::DualcastAlignment),
        (Descriptor::dualcast(DATA, at(0x1000), far, 0x1001), Status::Overlap),
        (Descriptor::dualcast(DATA, far, at(0x1000), 0x1001), Status::Overlap),
        (Descriptor::dualcast(DATA, far, far.offset(0x1000), 0x1001), Status::Overlap),
        (Descriptor::dualcast(DATA, far, far.offset(0x1000), 0x1000), ok),
        (crc_at(far), ok),
        (crc_at(far.offset(4)), ok),
        (crc_at(far.offset(2)), Status::Alignment),
        (Descriptor::copy_crc(0, DATA, at(99), 100), Status::Overlap),
        (Descriptor::copy_crc(0, DATA, at(100), 100), ok),
        (Descriptor::copy_crc(0, at(100), at(1), 100), Status::Overlap),
        (check(519, DifBlock::Bytes512), Status::BadSize),
        (check(512, DifBlock::Bytes512), Status::BadSize),
        (check(520 * 2, DifBlock::Bytes520), Status::BadSize),
        (check(528 * 3, DifBlock::Bytes520), ok),
        (check(4104, DifBlock::Bytes4104), Status::BadSize),
        (insert(far, 512), ok),
        (insert(far, 520), Status::BadSize),
        (insert(at(1024), 1024), ok),
        (insert(at(1023), 1024), Status::Overlap),
        (strip(at(1040), 1040), ok),
        (strip(at(1039), 1040), Status::Overlap),
        (strip(at(1040), 1024), Status::BadSize),
        (update(at(528), 528), ok),
        (update(at(527), 528), Status::Overlap),
        (update(far, 520), Status::BadSize),
    ];
    for (descriptor, expected) in cases {
        // Each case starts with zeroed memory; fields of zeros match constant tags of zeros.
        run.memory.store(DATA, &[0; 0x2000]);
        run.memory.store(farther, &[0; 128]);
        let descriptor = match descriptor.opcode() {
            Ok(Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate) => with_bits(descriptor, 5, 0x80),
            _ => descriptor,
        };
        assert_eq!(status(&mut run, descriptor), Some(expected), "{descriptor:?}");
    }
    // Insert's target is longer than its source: 1024 bytes from 16 below it would not overlap, 1040 do.
    let below = at(0x1000);
    let into = |target| {
        Descriptor::dif_insert(below, target, 1024, format(DifBlock::Bytes512), DifTarget::default())
    };
    assert_eq!(status(&mut run, into(at(0x1000 - 1040))), Some(ok));
    assert_eq!(status(&mut run, into(at(0x1000 - 1039))), Some(Status::Overlap));
}

/// A descriptor with two errors is refused for the one that is checked first.
#[test]
fn the_order_of_checks() {
    let mut run = run(&DeviceConfig::one_dedicated_queue(), FaultPlan::none());
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

/// Success is reported only on request, failure always, and in the error register if there is no record.
#[test]
fn where_each_status_is_reported() {
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
        assert_eq!((error.queue, error.pasid, error.overflow), (Some(0), Some(PASID), false));
        if error.status == Status::InvalidFlags {
            assert_eq!(error.invalid_flags, Some(descriptor.flags().bits()));
        }
        if error.status == Status::PageFault {
            assert_eq!((error.fault_address, error.write), (0x5000_0000, false));
        }
    }
}

/// The register keeps the first error and sets its overflow bit for others.
#[test]
fn the_error_register_keeps_the_first() {
    let mut run = plain();
    for descriptor in [Descriptor::memmove(DATA, DATA, 0), with_bits(Descriptor::noop(), 7, 1)] {
        submit(&mut run, &descriptor);
        run.run_until_idle();
    }
    let error = run.device.take_error().unwrap();
    assert_eq!((error.status, error.operation, error.overflow), (Status::BadSize, Some(3), true));
    assert_eq!(run.device.take_error(), None);
}

/// A record on an unmapped page is lost; a record on an absent page is not.
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
        (Status::CompletionFault, 0x5000_0000, false)
    );
    let counters = run.device.counters();
    assert_eq!((counters.records_written, counters.records_lost, counters.in_flight()), (1, 1, 0));
}

/// The device writes the status byte of a record last.
#[test]
fn the_status_byte_comes_last() {
    let mut run = plain();
    complete(&mut run, Descriptor::noop()).unwrap();
    let visits = run.memory.visits();
    let writes: Vec<_> = visits.iter().map(|visit| (visit.address, visit.size_bytes)).collect();
    assert_eq!(writes, [(record(0).offset(1), 31), (record(0), 1)]);
}

#[test]
fn invalid_configurations_are_refused() {
    let change = |change: fn(&mut DeviceConfig)| {
        let mut config = DeviceConfig::one_shared_queue();
        change(&mut config);
        let device = Deterministic::new(&config, FaultPlan::none(), FakeMemory::new());
        device.err().expect("refused").to_string()
    };
    type Change = fn(&mut DeviceConfig);
    let cases: [(Change, &str); 13] = [
        (|config| config.groups[0].queues[0].size = 129, "129 entries"),
        (|config| config.groups[0].queues[0].size = 0, "a size"),
        (|config| config.groups[0].queues[0].priority = 0, "priority"),
        (|config| config.groups[0].queues[0].threshold = 0, "threshold"),
        (|config| config.groups[0].queues[0].batch_max = 2048, "batch"),
        (|config| config.groups[0].queues[0].transfer_bytes_max = 3000, "transfer"),
        (|config| config.operations = memferry_dsa::OperationSet::of(&[Opcode::Noop]), "operations"),
        (
            |config| config.operations = memferry_dsa::OperationSet::from_words([1 << 63, 0, 0, 0]),
            "operations",
        ),
        (
            |config| {
                config.capabilities = Capabilities::from_bits(Capabilities::ALL.bits() & !1);
                config.groups[0].queues[0].block_on_fault = true;
            },
            "block_on_fault",
        ),
        (|config| config.capabilities = Capabilities::from_bits(0x0001_0107), "batch"),
        (
            |config| {
                let timing = DeviceCosts { bytes_per_second: 0, ..DeviceCosts::sapphire_rapids() };
                config.timing = Some(timing);
            },
            "bandwidth",
        ),
        (|config| config.groups[0].engines = 0, "no engine"),
        (|config| config.groups[0].engines = 5, "5 engines"),
    ];
    for (case, expected) in cases {
        let text = change(case);
        assert!(text.contains(expected), "{text:?} does not mention {expected:?}");
    }
}
