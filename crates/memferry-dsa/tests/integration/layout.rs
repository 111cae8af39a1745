//! The layout of descriptors and completion records, byte by byte as in the specification.

use memferry_dsa::{
    Address, Completion, CompletionRecord, DeltaResult, Descriptor, DifBlock, DifErrors, DifFormat,
    DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags, Flags, Opcode, OperationSet, Status,
    UnknownOpcode,
};
use proptest::prelude::*;

/// Memory Move of 4096 bytes with a completion record and cache control.
#[test]
fn a_memory_move_byte_by_byte() {
    let copy = Descriptor::memmove(0x7f00_0001_0000, 0x7f00_0002_0000, 4096)
        .with_completion_at(0x7f00_0000_2000)
        .with_flags(Flags::CACHE_CONTROL);
    let mut expected = [0; 64];
    expected[..8].copy_from_slice(&[0, 0, 0, 0, 0x0c, 0x01, 0x00, 0x03]);
    expected[8..16].copy_from_slice(&[0x00, 0x20, 0x00, 0x00, 0x00, 0x7f, 0x00, 0x00]);
    expected[16..24].copy_from_slice(&[0x00, 0x00, 0x01, 0x00, 0x00, 0x7f, 0x00, 0x00]);
    expected[24..32].copy_from_slice(&[0x00, 0x00, 0x02, 0x00, 0x00, 0x7f, 0x00, 0x00]);
    expected[32..40].copy_from_slice(&[0x00, 0x10, 0, 0, 0, 0, 0, 0]);
    assert_eq!(copy.to_bytes(), expected);
}

/// `to_bytes` is written by hand; the compiler's view of the structure must agree.
#[test]
fn the_structure_in_memory_is_its_bytes() {
    let bytes: [u8; 64] = std::array::from_fn(|index| index as u8 + 1);
    let descriptor = Descriptor::from_bytes(&bytes);
    // SAFETY: a descriptor is 64 bytes without padding.
    let memory = unsafe { std::ptr::from_ref(&descriptor).cast::<[u8; 64]>().read() };
    assert_eq!(memory, bytes);
    assert_eq!(descriptor.to_bytes(), bytes);
}

#[test]
fn the_other_constructors() {
    assert_eq!(Descriptor::noop().to_bytes(), [0; 64]);
    let batch = Descriptor::batch(0x4_0000, 17);
    assert_eq!((batch.opcode(), batch.address_1(), batch.size()), (Ok(Opcode::Batch), Address(0x4_0000), 17));
    let record = CompletionRecord::new();
    let drain = Descriptor::drain().with_completion(&record);
    assert_eq!(drain.opcode(), Ok(Opcode::Drain));
    assert_eq!(drain.completion_address(), Address::from(&raw const record));
    assert_eq!(drain.flags(), Flags::COMPLETION_ADDRESS_VALID | Flags::REQUEST_COMPLETION);
}

/// The bytes of a descriptor that are not zero, as (offset, little-endian bytes).
fn bytes_at(fields: &[(usize, &[u8])]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (at, field) in fields {
        bytes[*at..at + field.len()].copy_from_slice(field);
    }
    bytes
}

/// Every constructor, byte by byte as in the table of the specification.
#[test]
fn the_fields_of_each_operation() {
    let (a, b, c) = (0x1111_2222_3333_4000u64, 0x5555_6666_7777_8000u64, 0x0000_7fff_9999_a000u64);
    let (at_16, at_24, at_40, at_48) =
        (&a.to_le_bytes(), &b.to_le_bytes(), &c.to_le_bytes(), &c.to_le_bytes());
    let (size, at_32) = (0x0102_0304u32, &[4, 3, 2, 1]);
    let format = DifFormat { block: DifBlock::Bytes4096, guard_seed_ones: true, guard_inverted: true };
    let tags =
        |salt: u32| DifTags { reference: 0x0403_0201 + salt, application_mask: 0x0605, application: 0x0807 };
    let source = DifSource { flags: DifSourceFlags::from_bits(0xa5), tags: tags(0) };
    let target = DifTarget { flags: DifTargetFlags::from_bits(0xc8), tags: tags(0x10) };
    let (source_tags, target_tags) = (&[1, 2, 3, 4, 5, 6, 7, 8], &[0x11, 2, 3, 4, 5, 6, 7, 8]);
    type Fields<'a> = &'a [(usize, &'a [u8])];
    let cases: &[(Descriptor, Fields<'_>)] = &[
        (Descriptor::drain(), &[(7, &[0x02])]),
        (
            Descriptor::drain().with_readback_1(a).with_readback_2(b),
            &[(6, &[3, 2]), (16, at_16), (24, at_24)],
        ),
        (Descriptor::fill(a, b, size), &[(7, &[0x04]), (16, at_16), (24, at_24), (32, at_32)]),
        (Descriptor::compare(a, b, size), &[(7, &[0x05]), (16, at_16), (24, at_24), (32, at_32)]),
        (
            Descriptor::compare(a, b, size).with_expected_result(1),
            &[(4, &[0x80, 0, 0, 0x05]), (16, at_16), (24, at_24), (32, at_32), (40, &[1])],
        ),
        (Descriptor::compare_pattern(b, a, size), &[(7, &[0x06]), (16, at_16), (24, at_24), (32, at_32)]),
        (
            Descriptor::create_delta(a, b, size, c, 0x0a0b_0c0d).with_expected_result(0x7f),
            &[
                (4, &[0x80, 0, 0, 0x07]),
                (16, at_16),
                (24, at_24),
                (32, at_32),
                (40, at_40),
                (48, &[0xd, 0xc, 0xb, 0xa]),
                (56, &[0x7f]),
            ],
        ),
        (
            Descriptor::apply_delta(a, 0x0a0b_0c0d, b, size),
            &[(7, &[0x08]), (16, at_16), (24, at_24), (32, at_32), (40, &[0xd, 0xc, 0xb, 0xa])],
        ),
        (
            Descriptor::dualcast(a, b, c, size),
            &[(7, &[0x09]), (16, at_16), (24, at_24), (32, at_32), (40, at_40)],
        ),
        (
            Descriptor::crc(0x0a0b_0c0d, a, size),
            &[(7, &[0x10]), (16, at_16), (32, at_32), (40, &[0xd, 0xc, 0xb, 0xa])],
        ),
        (
            Descriptor::crc(5, a, size).with_crc_seed_at(c),
            &[(6, &[1, 0x10]), (16, at_16), (32, at_32), (48, at_48)],
        ),
        (
            Descriptor::copy_crc(0x0a0b_0c0d, a, b, size),
            &[(7, &[0x11]), (16, at_16), (24, at_24), (32, at_32), (40, &[0xd, 0xc, 0xb, 0xa])],
        ),
        (
            Descriptor::dif_check(a, size, format, source),
            &[(7, &[0x12]), (16, at_16), (32, at_32), (40, &[0xa5, 0, 0x0e]), (48, source_tags)],
        ),
        (
            Descriptor::dif_insert(a, b, size, format, target),
            &[(7, &[0x13]), (16, at_16), (24, at_24), (32, at_32), (41, &[0xc8, 0x0e]), (56, target_tags)],
        ),
        (
            Descriptor::dif_strip(a, b, size, format, source),
            &[(7, &[0x14]), (16, at_16), (24, at_24), (32, at_32), (40, &[0xa5, 0, 0x0e]), (48, source_tags)],
        ),
        (
            Descriptor::dif_update(a, b, size, format, source, target),
            &[
                (7, &[0x15]),
                (16, at_16),
                (24, at_24),
                (32, at_32),
                (40, &[0xa5, 0xc8, 0x0e]),
                (48, source_tags),
                (56, target_tags),
            ],
        ),
        (Descriptor::cache_flush(b, size), &[(7, &[0x20]), (24, at_24), (32, at_32)]),
    ];
    for (descriptor, fields) in cases {
        assert_eq!(descriptor.to_bytes(), bytes_at(fields), "{descriptor:?}");
    }
}

/// The accessors return the arguments of the constructors.
#[test]
fn the_fields_come_back() {
    let delta = Descriptor::create_delta(1, 2, 3, 4, 5).with_expected_result(6);
    assert_eq!((delta.delta_address(), delta.delta_bytes(), delta.expected_result()), (Address(4), 5, 6));
    let delta = Descriptor::apply_delta(1, 2, 3, 4);
    assert_eq!((delta.delta_address(), delta.delta_bytes(), delta.address_2()), (Address(1), 2, Address(3)));
    assert_eq!(Descriptor::fill(7, 8, 9).pattern(), 7);
    assert_eq!(Descriptor::compare_pattern(7, 8, 9).pattern(), 7);
    assert_eq!(Descriptor::compare(7, 8, 9).with_expected_result(1).expected_result(), 1);
    assert_eq!(Descriptor::dualcast(1, 2, 3, 4).target_2(), Address(3));
    let crc = Descriptor::crc(u32::MAX, 2, 3);
    assert_eq!((crc.crc_seed(), crc.with_crc_seed_at(4).crc_seed_address()), (u32::MAX, Address(4)));
    for bits in 0..16 {
        let format = DifFormat::from_bits(bits);
        let tags = DifTags { reference: 1, application_mask: 2, application: 3 };
        let source = DifSource { flags: DifSourceFlags::from_bits(0xff), tags };
        let target =
            DifTarget { flags: DifTargetFlags::from_bits(bits), tags: DifTags { reference: 4, ..tags } };
        let update = Descriptor::dif_update(1, 2, 3, format, source, target);
        assert_eq!(
            (update.dif_format().to_bits(), update.dif_source(), update.dif_target()),
            (bits, source, target)
        );
        assert_eq!(format.block.bytes(), [512, 520, 4096, 4104][usize::from(bits) & 3]);
    }
}

#[test]
fn the_fields_of_completions() {
    let completion = Completion {
        result: 2,
        operation: [0x0807_0605_0403_0201, 0x1817_1615_1413_1211],
        ..Completion::new(Status::Success)
    };
    assert_eq!((completion.crc(), completion.delta_bytes()), (0x0403_0201, 0x0403_0201));
    assert_eq!((completion.delta_result(), completion.differs()), (DeltaResult::Overflow, false));
    assert_eq!(completion.dif_errors(), DifErrors::APPLICATION);
    let tags = DifTags { reference: 0x0403_0201, application_mask: 0x0605, application: 0x0807 };
    assert_eq!(completion.dif_source_tags(), tags);
    assert_eq!(DifTags::from_word(tags.to_word()), tags);
    assert_eq!(completion.dif_target_tags().application, 0x1817);
}

#[test]
fn the_operations_of_version_1_0() {
    assert_eq!(OperationSet::of(&Opcode::ALL), OperationSet::from_words([0x0000_0001_003f_03ff, 0, 0, 0]));
    for code in 0..=u8::MAX {
        match Opcode::try_from(code) {
            Ok(opcode) => assert_eq!(opcode as u8, code),
            Err(unknown) => assert_eq!(unknown, UnknownOpcode(code)),
        }
    }
}

#[test]
fn statuses_have_their_codes() {
    for code in 0..=u8::MAX {
        assert_eq!(Status::from_code(code).code(), code);
    }
    assert_eq!(Status::from_code(0x03), Status::PageFault);
    assert_eq!(Status::from_code(0x1f), Status::ReadbackFault);
    assert_eq!(Status::from_code(0x3e), Status::Unknown(0x3e));
}

/// The atomics of a record read the bytes that a device writes.
#[test]
fn a_record_in_memory_is_its_bytes() {
    let completion = Completion {
        status: Status::PageFault,
        write_fault: true,
        result: 1,
        bytes_completed: 0x1234_5678,
        fault_address: Address(0x7f11_2233_4000),
        operation: [0x0102_0304_0506_0708, 0x1112_1314_1516_1718],
    };
    let record = CompletionRecord::new();
    assert_eq!(record.poll(), None);
    record.publish(&completion);
    // SAFETY: a record is 32 bytes without padding, and no other thread has it.
    let memory = unsafe { std::ptr::from_ref(&record).cast::<[u8; 32]>().read() };
    assert_eq!(memory, completion.to_bytes());
    assert_eq!(memory[0], 0x83);
    assert_eq!(record.poll(), Some(completion));
    assert_eq!(Completion::from_bytes(&memory), Some(completion));
    record.reset();
    assert_eq!(record.poll(), None);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_64_bytes_are_a_descriptor(bytes in any::<[u64; 8]>()) {
        let descriptor = Descriptor::from_words(bytes);
        prop_assert_eq!(descriptor.to_words(), bytes);
        prop_assert_eq!(Descriptor::from_bytes(&descriptor.to_bytes()), descriptor);
        let _ = (format!("{descriptor:?}"), descriptor.opcode(), descriptor.flags());
    }
}
