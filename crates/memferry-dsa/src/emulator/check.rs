//! What the device checks before it touches any memory.
//!
//! The specification leaves the order open. This device checks the operation, the completion record's address, the
//! privilege, the flags, the reserved fields, and then what belongs to the operation; the first failure is the answer.
//!
//! Source: Intel DSA Architecture Specification 3.0, section 5.4 and table 5-3.

use crate::completion::{Completion, Status};
use crate::descriptor::Descriptor;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::portal::WorkQueueInfo;

/// Alignment of a batch's list.
const LIST_ALIGNMENT: u64 = 64;
/// Alignment of a completion record.
pub(super) const RECORD_ALIGNMENT: u64 = 32;

/// Allowed for every operation, as far as their own rules go.
const COMMON_FLAGS: Flags =
    Flags::COMPLETION_ADDRESS_VALID.union(Flags::REQUEST_COMPLETION).union(Flags::COMPLETION_CLASS);

/// Bits 30:20 of word 0, between PASID and privilege.
const SUBMITTER_RESERVED: u64 = 0x7ff0_0000;
/// The upper half of word 4: the interrupt handle, reserved because interrupts are refused, and bytes 38-39.
const HANDLE_AND_RESERVED: u64 = 0xffff_ffff_0000_0000;

/// What an operation allows besides the common part.
struct Rule {
    flags: Flags,
    /// Bits of the descriptor's words that must be zero.
    reserved: [u64; 8],
}

/// The mask of an operation that leaves these words [`UNUSED`], and the operation-specific ones as well.
const fn reserved(address_1: u64, address_2: u64, size: u64) -> [u64; 8] {
    [SUBMITTER_RESERVED, 0, address_1, address_2, size | HANDLE_AND_RESERVED, u64::MAX, u64::MAX, u64::MAX]
}

const USED: u64 = 0;
const UNUSED: u64 = u64::MAX;

static NOOP: Rule = Rule { flags: COMMON_FLAGS, reserved: reserved(UNUSED, UNUSED, UNUSED) };

static BATCH: Rule =
    Rule { flags: COMMON_FLAGS.union(Flags::ADDRESS_1_CLASS), reserved: reserved(USED, UNUSED, USED) };

/// Destination readback is allowed here because devices of the 1.0 generation say in GENCAP that they have it.
static MEMMOVE: Rule = Rule {
    flags: COMMON_FLAGS
        .union(Flags::BLOCK_ON_FAULT)
        .union(Flags::CACHE_CONTROL)
        .union(Flags::STRICT_ORDERING)
        .union(Flags::ADDRESS_1_CLASS)
        .union(Flags::ADDRESS_2_CLASS)
        .union(Flags::DESTINATION_READBACK),
    reserved: reserved(USED, USED, USED),
};

/// The operation to execute, or the completion that refuses the descriptor.
pub(super) fn check(
    descriptor: &Descriptor,
    queue: &WorkQueueInfo,
    in_batch: bool,
) -> Result<Opcode, Completion> {
    let refuse = |status| Err(Completion::new(status));
    let code = descriptor.operation_code();
    let (opcode, rule) = match Opcode::try_from(code) {
        Ok(Opcode::Noop) => (Opcode::Noop, &NOOP),
        Ok(Opcode::Batch) if !in_batch => (Opcode::Batch, &BATCH),
        Ok(Opcode::Memmove) => (Opcode::Memmove, &MEMMOVE),
        _ => return refuse(Status::BadOpcode),
    };
    if !queue.operations.contains(opcode) {
        return refuse(Status::BadOpcode);
    }
    let flags = descriptor.flags();
    let has_record = flags.contains(Flags::COMPLETION_ADDRESS_VALID);
    if has_record && !descriptor.completion_address().is_aligned_to(RECORD_ALIGNMENT) {
        return refuse(Status::CompletionAlignment);
    }
    // A member has the submitter of its batch; its own field is ignored.
    if descriptor.is_privileged() && !in_batch {
        return refuse(Status::NotPrivileged);
    }
    let invalid = flags.without(allowed_flags(rule, queue, in_batch, has_record));
    if !invalid.is_empty() {
        return Err(Completion {
            operation: [u64::from(invalid.bits()), 0],
            ..Completion::new(Status::InvalidFlags)
        });
    }
    let words = descriptor.to_words();
    let reserved = words.iter().zip(rule.reserved).fold(0, |found, (word, mask)| found | word & mask);
    if reserved != 0 || !has_record && descriptor.completion_address().0 != 0 {
        return refuse(Status::ReservedNotZero);
    }
    match opcode {
        Opcode::Batch if !(2..=queue.batch_max).contains(&descriptor.size()) => refuse(Status::BadCount),
        Opcode::Batch if !descriptor.address_1().is_aligned_to(LIST_ALIGNMENT) => {
            refuse(Status::ListAlignment)
        }
        Opcode::Memmove if !(1..=queue.transfer_bytes_max).contains(&descriptor.size()) => {
            refuse(Status::BadSize)
        }
        _ => Ok(opcode),
    }
}

/// The flags that `rule` allows here.
fn allowed_flags(rule: &Rule, queue: &WorkQueueInfo, in_batch: bool, has_record: bool) -> Flags {
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
    allowed
}
