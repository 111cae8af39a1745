//! Descriptors and completion records are what the specification says, byte by byte.

use memferry_dsa::{
    Address, Completion, CompletionRecord, Descriptor, Flags, Opcode, OperationSet, Status, UnknownOpcode,
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

/// A record that the device writes as bytes reads the same through the atomics.
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
