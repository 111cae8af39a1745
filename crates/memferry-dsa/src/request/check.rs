//! The checks before a submission: the rules of the operations, and the limits of a queue.
//!
//! A request that breaks a rule is wrong on every device ([`Invalid`]). A request beyond the limits of a queue fits another
//! queue, or the CPU ([`OnCpu`]).
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 and table 5-3.

use super::OnCpu;
use crate::address::Address;
use crate::descriptor::Descriptor;
use crate::dif::DIF_BYTES;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::portal::WorkQueueInfo;
use crate::software::{DELTA_BYTES_MAX, ENTRY_BYTES};
use crate::system::Version;

/// The smallest room for a delta record that a device accepts.
///
/// Source: DSA specification 8.3 (Create Delta Record).
pub const DELTA_ROOM_BYTES_MIN: usize = 80;

/// The alignment of a delta record's sources and of their size.
const WORD_BYTES: u64 = 8;
/// The addresses of Dualcast's targets are equal modulo this number.
const DUALCAST_BYTES: u64 = 4096;

/// A request that no device executes. Nothing was submitted or written.
///
/// ```
/// use memferry_dsa::{Invalid, Opcode, Request};
///
/// assert_eq!(Request::fill(0, &mut []).check(), Err(Invalid::Empty(Opcode::Fill)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// No bytes.
    #[error("{}: the request has no bytes; leave it out", .0.name())]
    Empty(Opcode),
    /// More bytes than a descriptor can have.
    #[error("{}: {bytes} bytes are more than {bytes_max}; split the request", .operation.name())]
    TooLong {
        /// The operation.
        operation: Opcode,
        /// The size.
        bytes: usize,
        /// The largest size of the operation.
        bytes_max: usize,
    },
    /// Regions whose lengths do not match.
    #[error("{}: a region has {bytes} bytes and needs {bytes_needed}", .operation.name())]
    Length {
        /// The operation.
        operation: Opcode,
        /// The length.
        bytes: usize,
        /// The length that fits the other region.
        bytes_needed: usize,
    },
    /// Regions with bytes in common.
    #[error("{}: regions overlap{}", .0.name(), if *.0 == Opcode::DifStrip {
        ", for which the device takes the target to be as long as the source; put them further apart"
    } else {
        "; use regions that do not"
    })]
    Overlap(Opcode),
    /// An address or a size.
    #[error("{}: addresses and sizes must be multiples of {bytes}", .operation.name())]
    Alignment {
        /// The operation.
        operation: Opcode,
        /// The required alignment.
        bytes: u64,
    },
    /// The targets of Dualcast.
    #[error("Dualcast: the addresses of the targets must be equal modulo 4096; align both to pages")]
    DualcastAlignment,
    /// Not enough room for a delta record.
    #[error("Create Delta Record: the record needs room for at least {DELTA_ROOM_BYTES_MIN} bytes, not {0}")]
    DeltaRoom(usize),
    /// No delta record has this size.
    #[error(
        "Apply Delta Record: a record has a multiple of {ENTRY_BYTES} bytes, not {0}; pass only what was written"
    )]
    DeltaSize(usize),
    /// Data that is not whole blocks.
    #[error("{}: {bytes} bytes are not whole blocks of {block_bytes}", .operation.name())]
    Blocks {
        /// The operation.
        operation: Opcode,
        /// The size.
        bytes: usize,
        /// Bytes of a block in the source, with its field if it has one.
        block_bytes: usize,
    },
    /// Parts of fields cannot be passed through, or flags are reserved.
    #[error("{}: flags of data integrity fields that the operation does not have", .0.name())]
    DifFlags(Opcode),
    /// An option that the operation does not have.
    #[error("{}: the operation has no {option}", .operation.name())]
    Option {
        /// The operation.
        operation: Opcode,
        /// The option.
        option: &'static str,
    },
    /// A task on memory to which others have access, or that cannot leave its thread.
    #[error("{}: memory that came as cells belongs to one thread; pass slices", .0.name())]
    Cells(Opcode),
    /// A task that concerns a queue and no memory.
    #[error("a drain concerns one queue and cannot be a task; wait for the operations instead")]
    DrainAsTask,
    /// Drain in a batch.
    #[error("a batch cannot wait for earlier submissions; drain before it")]
    DrainInBatch,
}

/// Checks the rules that all devices check.
pub(super) fn check(descriptor: &Descriptor) -> Result<(), Invalid> {
    let Ok(operation) = descriptor.opcode() else { return Ok(()) };
    let (first, second, size) = (descriptor.address_1(), descriptor.address_2(), descriptor.size());
    check_options(operation, descriptor.flags())?;
    if matches!(operation, Opcode::Noop | Opcode::Drain) {
        return Ok(());
    }
    let require = |holds: bool, otherwise: Invalid| if holds { Ok(()) } else { Err(otherwise) };
    require(size > 0, Invalid::Empty(operation))?;
    let apart = |one: (Address, u64), other: (Address, u64)| {
        require(!overlap(one, other), Invalid::Overlap(operation))
    };
    let bytes = u64::from(size);
    let delta = (descriptor.delta_address(), u64::from(descriptor.delta_bytes()));
    match operation {
        Opcode::CreateDelta | Opcode::ApplyDelta => {
            let too_long = Invalid::TooLong { operation, bytes: size as usize, bytes_max: DELTA_BYTES_MAX };
            require(size as usize <= DELTA_BYTES_MAX, too_long)?;
            let words = if operation == Opcode::CreateDelta { first.0 | second.0 } else { second.0 } | bytes;
            require(words.is_multiple_of(WORD_BYTES), Invalid::Alignment { operation, bytes: WORD_BYTES })?;
            if operation == Opcode::CreateDelta {
                require(delta.1 >= DELTA_ROOM_BYTES_MIN as u64, Invalid::DeltaRoom(delta.1 as usize))?;
                apart(delta, (first, bytes))?;
            } else {
                let is_record = delta.1 > 0 && delta.1.is_multiple_of(ENTRY_BYTES as u64);
                require(is_record, Invalid::DeltaSize(delta.1 as usize))?;
            }
            apart(delta, (second, bytes))
        }
        Opcode::Dualcast => {
            let target_2 = descriptor.target_2();
            require((second.0 ^ target_2.0).is_multiple_of(DUALCAST_BYTES), Invalid::DualcastAlignment)?;
            apart((first, bytes), (second, bytes))?;
            apart((first, bytes), (target_2, bytes))?;
            apart((second, bytes), (target_2, bytes))
        }
        Opcode::CopyCrc => apart((first, bytes), (second, bytes)),
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
            let block_bytes = unit_bytes(descriptor);
            let blocks =
                Invalid::Blocks { operation, bytes: size as usize, block_bytes: block_bytes as usize };
            require(size.is_multiple_of(block_bytes), blocks)?;
            require(has_valid_dif_flags(operation, descriptor), Invalid::DifFlags(operation))?;
            match operation {
                Opcode::DifCheck => Ok(()),
                Opcode::DifInsert => {
                    let fields = u64::from(size / block_bytes * DIF_BYTES);
                    apart((first, bytes), (second, bytes + fields))
                }
                // A byte more: devices were seen to refuse a source right behind the target that they believe in.
                // Source: the check of the same in Intel's DML.
                Opcode::DifStrip => apart((first, bytes), (second, bytes + 1)),
                _ => apart((first, bytes), (second, bytes)),
            }
        }
        _ => Ok(()),
    }
}

fn has_valid_dif_flags(operation: Opcode, descriptor: &Descriptor) -> bool {
    let target = descriptor.dif_target().flags.bits();
    match operation {
        Opcode::DifInsert => target & 0b0110_1111 == 0,
        _ => target & 0b111 == 0,
    }
}

fn check_options(operation: Opcode, flags: Flags) -> Result<(), Invalid> {
    let options = [
        (Flags::CACHE_CONTROL, "target to put into the cache"),
        (Flags::BLOCK_ON_FAULT, "data that could fault"),
    ];
    match options.into_iter().find(|(flag, _)| flags.contains(*flag) && !has_option(operation, *flag)) {
        Some((_, option)) => Err(Invalid::Option { operation, option }),
        None => Ok(()),
    }
}

/// Whether an operation has this hint: [`Flags::CACHE_CONTROL`] if it writes data, [`Flags::BLOCK_ON_FAULT`] if it has
/// data.
pub(super) fn has_option(operation: Opcode, hint: Flags) -> bool {
    if hint == Flags::CACHE_CONTROL {
        return matches!(
            operation,
            Opcode::Memmove
                | Opcode::Fill
                | Opcode::CreateDelta
                | Opcode::ApplyDelta
                | Opcode::Dualcast
                | Opcode::CopyCrc
                | Opcode::DifInsert
                | Opcode::DifStrip
                | Opcode::DifUpdate
        );
    }
    !matches!(operation, Opcode::Noop | Opcode::Drain | Opcode::Batch)
}

/// Whether the descriptor, or pieces of it if `may_cut`, are within the limits of a queue.
pub(crate) fn fits(
    descriptor: &Descriptor,
    queue: &WorkQueueInfo,
    version: Version,
    may_cut: bool,
) -> Result<(), OnCpu> {
    if !queue.operations.contains_code(descriptor.operation_code()) {
        return Err(OnCpu::Operation);
    }
    let (opcode, bytes_max) = (descriptor.opcode(), queue.transfer_bytes_max);
    match opcode {
        Ok(Opcode::Fill)
            if descriptor.flags().contains(Flags::FILL_PATTERN_16) && version.0 < Version::V2_0.0 =>
        {
            return Err(OnCpu::Version);
        }
        Ok(Opcode::CreateDelta) if (descriptor.delta_bytes() as usize) < DELTA_ROOM_BYTES_MIN => {
            return Err(OnCpu::DeltaRoom);
        }
        Ok(Opcode::CreateDelta | Opcode::ApplyDelta) if descriptor.delta_bytes() > bytes_max => {
            return Err(OnCpu::Size);
        }
        _ => {}
    }
    // The region of a delta record cannot be cut without reading the record.
    let may_cut = may_cut && opcode != Ok(Opcode::ApplyDelta);
    let least = if may_cut { unit_bytes(descriptor).min(descriptor.size()) } else { descriptor.size() };
    if least > bytes_max { Err(OnCpu::Size) } else { Ok(()) }
}

/// The unit of an operation: sizes of pieces, and the bytes completed before a page fault, are multiples of it.
pub(super) fn unit_bytes(descriptor: &Descriptor) -> u32 {
    match descriptor.opcode() {
        Ok(Opcode::CreateDelta) => WORD_BYTES as u32,
        Ok(Opcode::DifInsert) => descriptor.dif_format().block.bytes(),
        Ok(Opcode::DifCheck | Opcode::DifStrip | Opcode::DifUpdate) => {
            descriptor.dif_format().block.bytes() + DIF_BYTES
        }
        _ => 1,
    }
}

/// Whether two regions have a byte in common.
pub(super) fn overlap((one, one_bytes): (Address, u64), (other, other_bytes): (Address, u64)) -> bool {
    one.0 < other.0.saturating_add(other_bytes) && other.0 < one.0.saturating_add(one_bytes)
}
