//! The checks of a descriptor before the device accesses any memory.
//!
//! The specification leaves the order open. This device checks the operation, the completion record's address, the
//! privilege, the flags, the reserved fields, and then the operands: size, size of a delta record, alignment, overlap.
//! The first failure is the result.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 5.4 and table 5-3.

use memferry_dsa::{Address, Completion, DIF_BYTES, Descriptor, Flags, Opcode, Status, WorkQueueInfo};

use crate::config::Capabilities;
use crate::ops::DELTA_ENTRY_BYTES;

/// Alignment of a batch's list.
const LIST_ALIGNMENT: u64 = 64;
/// Alignment of a completion record.
pub(crate) const RECORD_ALIGNMENT: u64 = 32;
/// Alignment of the regions that Create Delta Record compares word by word.
const DELTA_ALIGNMENT: u64 = 8;
/// Alignment of a CRC's seed in memory.
const SEED_ALIGNMENT: u64 = 4;
/// Largest transfer of the delta operations, because an entry counts words in 16 bits.
const DELTA_TRANSFER_BYTES_MAX: u32 = 0x8_0000;
/// Smallest maximum size of a delta record.
const DELTA_ROOM_BYTES_MIN: u32 = 80;
/// Low address bits in which the two targets of a Dualcast must agree.
const DUALCAST_COMMON_BITS: u64 = 0xfff;

/// Flags that every operation allows.
const COMMON: Flags =
    Flags::COMPLETION_ADDRESS_VALID.union(Flags::REQUEST_COMPLETION).union(Flags::COMPLETION_CLASS);
/// Flags of the operations that write data.
const WRITES: Flags = Flags::BLOCK_ON_FAULT
    .union(Flags::CACHE_CONTROL)
    .union(Flags::STRICT_ORDERING)
    .union(Flags::DESTINATION_READBACK);
const CLASS_1: Flags = Flags::ADDRESS_1_CLASS;
const CLASSES_12: Flags = Flags::ADDRESS_1_CLASS.union(Flags::ADDRESS_2_CLASS);
const CLASSES_123: Flags = CLASSES_12.union(Flags::ADDRESS_3_CLASS);
const CRC_FLAGS: Flags =
    Flags::CRC_SEED_IN_MEMORY.union(Flags::CRC_BYPASS_INVERSION).union(Flags::CRC_BYPASS_DATA_REFLECTION);
const DRAIN_FLAGS: Flags = Flags::DRAIN_READBACK_1
    .union(Flags::DRAIN_READBACK_2)
    .union(Flags::DRAIN_NO_READBACK_A)
    .union(Flags::DRAIN_NO_READBACK_B);

/// Bits 30:20 of word 0, between PASID and privilege.
const SUBMITTER_RESERVED: u64 = 0x7ff0_0000;
/// The upper half of word 4: the interrupt handle, reserved because interrupts are refused, and bytes 38-39.
const HANDLE_AND_RESERVED: u64 = 0xffff_ffff_0000_0000;

/// The rules of one operation.
struct Rule {
    flags: Flags,
    /// Bits of the descriptor's words that must be zero.
    reserved: [u64; 8],
    /// The result is in the completion record, so the record must be requested.
    needs_record: bool,
}

const USED: u64 = 0;
const UNUSED: u64 = u64::MAX;
/// The lower half of a word is used.
const LOW: u64 = !0xffff_ffff;
/// The lowest byte of a word is used.
const BYTE: u64 = !0xff;

/// A rule: the operation's flags, and the reserved bits of its addresses, its size and its own 24 bytes.
const fn rule(flags: Flags, addresses: [u64; 2], size: u64, own: [u64; 3]) -> Rule {
    let [address_1, address_2] = addresses;
    Rule {
        flags: COMMON.union(flags),
        reserved: [
            SUBMITTER_RESERVED,
            0,
            address_1,
            address_2,
            size | HANDLE_AND_RESERVED,
            own[0],
            own[1],
            own[2],
        ],
        needs_record: false,
    }
}

const fn with_record(rule: Rule) -> Rule {
    Rule { needs_record: true, ..rule }
}

const NOTHING: [u64; 3] = [UNUSED; 3];
const BOTH: [u64; 2] = [USED; 2];
const FIRST: [u64; 2] = [USED, UNUSED];
const SECOND: [u64; 2] = [UNUSED, USED];

static NOOP: Rule = rule(Flags::NONE, [UNUSED; 2], UNUSED, NOTHING);
static BATCH: Rule = rule(CLASS_1, FIRST, USED, NOTHING);
/// `reserved_by_flags` checks the addresses that are not valid.
static DRAIN: Rule = rule(CLASSES_12.union(DRAIN_FLAGS), BOTH, UNUSED, NOTHING);
static MEMMOVE: Rule = rule(WRITES.union(CLASSES_12), BOTH, USED, NOTHING);
static FILL: Rule = rule(WRITES.union(Flags::ADDRESS_2_CLASS), BOTH, USED, NOTHING);
static COMPARE: Rule = with_record(rule(
    Flags::BLOCK_ON_FAULT.union(Flags::CHECK_RESULT).union(CLASSES_12),
    BOTH,
    USED,
    [BYTE, UNUSED, UNUSED],
));
static COMPARE_PATTERN: Rule = with_record(rule(
    Flags::BLOCK_ON_FAULT.union(Flags::CHECK_RESULT).union(CLASS_1),
    BOTH,
    USED,
    [BYTE, UNUSED, UNUSED],
));
static CREATE_DELTA: Rule =
    with_record(rule(WRITES.union(Flags::CHECK_RESULT).union(CLASSES_123), BOTH, USED, [USED, LOW, BYTE]));
static APPLY_DELTA: Rule = rule(WRITES.union(CLASSES_12), BOTH, USED, [LOW, UNUSED, UNUSED]);
static DUALCAST: Rule = rule(WRITES.union(CLASSES_123), BOTH, USED, [USED, UNUSED, UNUSED]);
/// `reserved_by_flags` checks the words of the seed, because only one of them is used.
static CRC: Rule = with_record(rule(
    Flags::BLOCK_ON_FAULT.union(CLASS_1).union(Flags::ADDRESS_3_CLASS).union(CRC_FLAGS),
    FIRST,
    USED,
    [LOW, USED, UNUSED],
));
static COPY_CRC: Rule =
    with_record(rule(WRITES.union(CLASSES_123).union(CRC_FLAGS), BOTH, USED, [LOW, USED, UNUSED]));
/// Byte 40, and bits 3:0 of byte 42.
const DIF_SOURCE_USED: u64 = !0x000f_00ff;
static DIF_CHECK: Rule =
    with_record(rule(Flags::BLOCK_ON_FAULT.union(CLASS_1), FIRST, USED, [DIF_SOURCE_USED, USED, UNUSED]));
/// Bits 7 and 4 of byte 41, since Insert has no field to pass through, and bits 3:0 of byte 42.
static DIF_INSERT: Rule = rule(WRITES.union(CLASSES_12), BOTH, USED, [!0x000f_9000, UNUSED, USED]);
static DIF_STRIP: Rule = rule(WRITES.union(CLASSES_12), BOTH, USED, [DIF_SOURCE_USED, USED, UNUSED]);
/// Byte 40, bits 7:3 of byte 41, bits 3:0 of byte 42.
static DIF_UPDATE: Rule = rule(WRITES.union(CLASSES_12), BOTH, USED, [!0x000f_f8ff, USED, USED]);
static CACHE_FLUSH: Rule = rule(
    Flags::BLOCK_ON_FAULT
        .union(Flags::CACHE_CONTROL)
        .union(Flags::STRICT_ORDERING)
        .union(Flags::ADDRESS_2_CLASS),
    SECOND,
    USED,
    NOTHING,
);

fn rule_of(opcode: Opcode) -> &'static Rule {
    match opcode {
        Opcode::Noop => &NOOP,
        Opcode::Batch => &BATCH,
        Opcode::Drain => &DRAIN,
        Opcode::Memmove => &MEMMOVE,
        Opcode::Fill => &FILL,
        Opcode::Compare => &COMPARE,
        Opcode::ComparePattern => &COMPARE_PATTERN,
        Opcode::CreateDelta => &CREATE_DELTA,
        Opcode::ApplyDelta => &APPLY_DELTA,
        Opcode::Dualcast => &DUALCAST,
        Opcode::CrcGeneration => &CRC,
        Opcode::CopyCrc => &COPY_CRC,
        Opcode::DifCheck => &DIF_CHECK,
        Opcode::DifInsert => &DIF_INSERT,
        Opcode::DifStrip => &DIF_STRIP,
        Opcode::DifUpdate => &DIF_UPDATE,
        Opcode::CacheFlush => &CACHE_FLUSH,
    }
}

/// Checks a descriptor; returns the operation to execute, or the completion that refuses it.
pub(crate) fn check(
    descriptor: &Descriptor,
    queue: &WorkQueueInfo,
    capabilities: Capabilities,
    in_batch: bool,
) -> Result<Opcode, Completion> {
    let refuse = |status| Err(Completion::new(status));
    let Ok(opcode) = descriptor.opcode() else { return refuse(Status::BadOpcode) };
    if !queue.operations.contains(opcode) || in_batch && matches!(opcode, Opcode::Batch | Opcode::Drain) {
        return refuse(Status::BadOpcode);
    }
    let rule = rule_of(opcode);
    let flags = descriptor.flags();
    let has_record = flags.contains(Flags::COMPLETION_ADDRESS_VALID);
    if has_record && !descriptor.completion_address().is_aligned_to(RECORD_ALIGNMENT) {
        return refuse(Status::CompletionAlignment);
    }
    // A member has the submitter of its batch; the device ignores its own field.
    if descriptor.is_privileged() && !in_batch {
        return refuse(Status::NotPrivileged);
    }
    let refused = flags.without(allowed_flags(opcode, rule, queue, capabilities, in_batch, has_record));
    let missing = required_flags(opcode, rule).without(flags);
    if !(refused | missing).is_empty() {
        return Err(Completion {
            operation: [u64::from((refused | missing).bits()), 0],
            ..Completion::new(Status::InvalidFlags)
        });
    }
    let words = descriptor.to_words();
    let reserved = words.iter().zip(rule.reserved).fold(0, |found, (word, mask)| found | word & mask);
    let record_reserved = if has_record { 0 } else { descriptor.completion_address().0 };
    if reserved | record_reserved | reserved_by_flags(opcode, flags, &words) != 0 {
        return refuse(Status::ReservedNotZero);
    }
    match operands(opcode, descriptor, queue, capabilities) {
        Ok(()) => Ok(opcode),
        Err(status) => refuse(status),
    }
}

/// The flags that operation, queue and device allow.
fn allowed_flags(
    opcode: Opcode,
    rule: &Rule,
    queue: &WorkQueueInfo,
    capabilities: Capabilities,
    in_batch: bool,
    has_record: bool,
) -> Flags {
    let mut allowed = rule.flags;
    if in_batch {
        allowed |= Flags::FENCE;
    }
    if !queue.block_on_fault {
        allowed = allowed.without(Flags::BLOCK_ON_FAULT);
    }
    if !has_record {
        allowed = allowed.without(Flags::REQUEST_COMPLETION | Flags::COMPLETION_CLASS);
    }
    let cache_control = match opcode {
        Opcode::CacheFlush => Capabilities::CACHE_CONTROL_OF_FLUSH,
        _ => Capabilities::CACHE_CONTROL,
    };
    for (capability, flags) in [
        (cache_control, Flags::CACHE_CONTROL),
        (Capabilities::DESTINATION_READBACK, Flags::DESTINATION_READBACK),
    ] {
        if !capabilities.contains(capability) {
            allowed = allowed.without(flags);
        }
    }
    if opcode == Opcode::Drain && !capabilities.contains(Capabilities::DRAIN_READBACK) {
        allowed = allowed.without(DRAIN_FLAGS);
    }
    allowed
}

/// The flags without which the operation would have no effect. For Drain an interrupt would suffice, but this device
/// has no interrupts.
fn required_flags(opcode: Opcode, rule: &Rule) -> Flags {
    if rule.needs_record || opcode == Opcode::Drain {
        Flags::COMPLETION_ADDRESS_VALID | Flags::REQUEST_COMPLETION
    } else {
        Flags::NONE
    }
}

/// The set bits in fields that are reserved unless a flag makes them valid.
fn reserved_by_flags(opcode: Opcode, flags: Flags, words: &[u64; 8]) -> u64 {
    let unless = |flag, word: usize| if flags.contains(flag) { 0 } else { words[word] };
    match opcode {
        Opcode::Drain => unless(Flags::DRAIN_READBACK_1, 2) | unless(Flags::DRAIN_READBACK_2, 3),
        Opcode::CrcGeneration | Opcode::CopyCrc if flags.contains(Flags::CRC_SEED_IN_MEMORY) => words[5],
        Opcode::CrcGeneration | Opcode::CopyCrc => words[6],
        _ => 0,
    }
}

/// Checks sizes, alignment and overlap of the operands.
fn operands(
    opcode: Opcode,
    descriptor: &Descriptor,
    queue: &WorkQueueInfo,
    capabilities: Capabilities,
) -> Result<(), Status> {
    let (first, second, size) = (descriptor.address_1(), descriptor.address_2(), descriptor.size());
    let require = |holds: bool, otherwise| if holds { Ok(()) } else { Err(otherwise) };
    match opcode {
        Opcode::Noop | Opcode::Drain => return Ok(()),
        Opcode::Batch => {
            require((2..=queue.batch_max).contains(&size), Status::BadCount)?;
            return require(first.is_aligned_to(LIST_ALIGNMENT), Status::ListAlignment);
        }
        _ => require((1..=queue.transfer_bytes_max).contains(&size), Status::BadSize)?,
    }
    let apart = |one: (Address, u32), other: (Address, u32)| require(!overlap(one, other), Status::Overlap);
    let block = descriptor.dif_format().block.bytes();
    let delta = (descriptor.delta_address(), descriptor.delta_bytes());
    let is_delta_aligned = |address: Address| address.is_aligned_to(DELTA_ALIGNMENT);
    match opcode {
        Opcode::Memmove if !capabilities.contains(Capabilities::OVERLAPPING_COPY) => {
            apart((first, size), (second, size))
        }
        Opcode::CreateDelta => {
            require(size <= DELTA_TRANSFER_BYTES_MAX, Status::BadSize)?;
            let room = DELTA_ROOM_BYTES_MIN..=queue.transfer_bytes_max;
            require(room.contains(&delta.1), Status::BadDeltaSize)?;
            let aligned = [first, second, Address(size.into())].into_iter().all(is_delta_aligned);
            require(aligned, Status::Alignment)?;
            apart(delta, (first, size))?;
            apart(delta, (second, size))
        }
        Opcode::ApplyDelta => {
            require(size <= DELTA_TRANSFER_BYTES_MAX, Status::BadSize)?;
            let sizes = DELTA_ENTRY_BYTES..=queue.transfer_bytes_max;
            let is_record = sizes.contains(&delta.1) && delta.1.is_multiple_of(DELTA_ENTRY_BYTES);
            require(is_record, Status::BadDeltaSize)?;
            let aligned = [second, Address(size.into())].into_iter().all(is_delta_aligned);
            require(aligned, Status::Alignment)?;
            apart(delta, (second, size))
        }
        Opcode::Dualcast => {
            let target_2 = descriptor.target_2();
            let differ = (second.0 ^ target_2.0) & DUALCAST_COMMON_BITS;
            require(differ == 0, Status::DualcastAlignment)?;
            apart((first, size), (second, size))?;
            apart((first, size), (target_2, size))?;
            apart((second, size), (target_2, size))
        }
        Opcode::CrcGeneration | Opcode::CopyCrc => {
            // Zero without the flag.
            require(descriptor.crc_seed_address().is_aligned_to(SEED_ALIGNMENT), Status::Alignment)?;
            if opcode == Opcode::CopyCrc { apart((first, size), (second, size)) } else { Ok(()) }
        }
        Opcode::DifCheck => require(size.is_multiple_of(block + DIF_BYTES), Status::BadSize),
        Opcode::DifInsert => {
            require(size.is_multiple_of(block), Status::BadSize)?;
            apart((first, size), (second, size.saturating_add(size / block * DIF_BYTES)))
        }
        // The target of Strip is shorter, but the device counts the larger size for both.
        Opcode::DifStrip | Opcode::DifUpdate => {
            require(size.is_multiple_of(block + DIF_BYTES), Status::BadSize)?;
            apart((first, size), (second, size))
        }
        _ => Ok(()),
    }
}

/// Whether two regions have a byte in common. Regions that wrap end with the address space.
fn overlap((one, one_bytes): (Address, u32), (other, other_bytes): (Address, u32)) -> bool {
    let end = |start: Address, bytes: u32| u128::from(start.0) + u128::from(bytes);
    u128::from(one.0) < end(other, other_bytes) && u128::from(other.0) < end(one, one_bytes)
}
