//! The rest of an operation after a page fault, and pieces of a request above the limit of a queue.
//!
//! | operation | changes in the rest |
//! |---|---|
//! | Memory Move, Dualcast, Cache Flush | addresses; the size alone if a copy ran from the end |
//! | Fill, Compare Pattern | addresses; the pattern, rotated by the completed bytes |
//! | Compare | addresses; the offset counts from the start of the request |
//! | Create Delta | sources, the record's end and its room; later entries count from the new start and are corrected |
//! | Apply Delta | the record's start; the next entry must not be below the last one applied |
//! | CRC | addresses; the seed is the CRC so far, if a byte was completed |
//! | DIF | addresses; the tags are those of the record, if a block was completed |
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3 (bytes completed of each operation).

use super::check::unit_bytes;
use crate::address::Address;
use crate::completion::Completion;
use crate::descriptor::Descriptor;
use crate::dif::DIF_BYTES;
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::software::{CrcMode, ENTRY_BYTES};

/// The rest of `d` after its first `done` bytes, whose state is in `completion`.
///
/// For Apply Delta `done` counts bytes of the record, for a backward copy bytes from the end.
pub(super) fn rest(d: &Descriptor, done: u32, completion: &Completion) -> Descriptor {
    let Ok(opcode) = d.opcode() else { return *d };
    let bytes = u64::from(done);
    let (address_1, address_2) = (d.address_1.offset(bytes), d.address_2.offset(bytes));
    let size = d.size.saturating_sub(done);
    match opcode {
        Opcode::Noop | Opcode::Batch | Opcode::Drain => *d,
        Opcode::Memmove if completion.is_backwards() => Descriptor { size, ..*d },
        Opcode::Memmove | Opcode::Compare => Descriptor { address_1, address_2, size, ..*d },
        Opcode::CacheFlush => Descriptor { address_2, size, ..*d },
        Opcode::Fill if d.flags().contains(Flags::FILL_PATTERN_16) => {
            let pattern = d.pattern_16().rotate_right(8 * (done % 16));
            Descriptor::fill_16(pattern, address_2, size).with_flags(d.flags())
        }
        Opcode::Fill => Descriptor { address_1: Address(turned(d.pattern(), done)), address_2, size, ..*d },
        Opcode::ComparePattern => {
            Descriptor { address_1, address_2: Address(turned(d.pattern(), done)), size, ..*d }
        }
        Opcode::CreateDelta => {
            let written = u64::from(completion.delta_bytes());
            let [delta, room, mut expected] = d.operation;
            if written > 0 {
                // Something differs already, so that a rest without differences (result 0) makes a record (result 1) too.
                expected = expected & !1 | expected >> 1 & 1;
            }
            let operation = [delta.wrapping_add(written), room.saturating_sub(written), expected];
            Descriptor { address_1, address_2, size, operation, ..*d }
        }
        Opcode::ApplyDelta => {
            let [record_bytes, ..] = d.operation;
            Descriptor { address_1, operation: [record_bytes.saturating_sub(bytes), 0, 0], ..*d }
        }
        Opcode::Dualcast => {
            let operation = [d.target_2().offset(bytes).0, 0, 0];
            Descriptor { address_1, address_2, size, operation, ..*d }
        }
        Opcode::CrcGeneration | Opcode::CopyCrc => {
            let seed = if done == 0 { d.crc_seed() } else { completion.crc() };
            let address_2 = if opcode == Opcode::CopyCrc { address_2 } else { d.address_2 };
            Descriptor { address_1, address_2, size, operation: [seed.into(), 0, 0], ..*d }
        }
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
            let (block, field) = (d.dif_format().block.bytes(), DIF_BYTES);
            let target_block = match opcode {
                Opcode::DifCheck => 0,
                Opcode::DifStrip => block,
                _ => block + field,
            };
            let [format, mut source, mut target] = d.operation;
            if done > 0 && opcode != Opcode::DifInsert {
                source = completion.dif_source_tags().to_word();
            }
            if done > 0 && matches!(opcode, Opcode::DifInsert | Opcode::DifUpdate) {
                target = completion.dif_target_tags().to_word();
            }
            let address_2 = d.address_2.offset(u64::from(done / unit_bytes(d)) * u64::from(target_block));
            Descriptor { address_1, address_2, size, operation: [format, source, target], ..*d }
        }
    }
}

/// The pattern for the bytes after the first `done`.
fn turned(pattern: u64, done: u32) -> u64 {
    pattern.rotate_right(8 * (done % 8))
}

/// The first `size` bytes of a request; of a copy onto a target above an overlapping source, the last.
pub(super) fn piece(whole: &Descriptor, size: u32, is_last: bool) -> Descriptor {
    let skipped = if is_last { u64::from(whole.size - size) } else { 0 };
    let (address_1, address_2) = (whole.address_1.offset(skipped), whole.address_2.offset(skipped));
    Descriptor { address_1, address_2, size, ..*whole }
}

/// Whether a partial completion is possible: addresses of later writes are computed from it.
pub(super) fn is_partial(descriptor: &Descriptor, completion: &Completion) -> bool {
    let done = completion.bytes_completed;
    match descriptor.opcode() {
        Ok(Opcode::ApplyDelta) => done < descriptor.delta_bytes() && done.is_multiple_of(ENTRY_BYTES as u32),
        Ok(Opcode::CreateDelta) => {
            done < descriptor.size() && done.is_multiple_of(8) && has_room_for(descriptor, completion)
        }
        Ok(Opcode::Noop | Opcode::Batch | Opcode::Drain) | Err(_) => false,
        Ok(_) => done < descriptor.size() && done.is_multiple_of(unit_bytes(descriptor)),
    }
}

/// Whether the size of the written delta record is possible.
pub(super) fn has_room_for(descriptor: &Descriptor, completion: &Completion) -> bool {
    let written = completion.delta_bytes();
    written <= descriptor.delta_bytes() && written.is_multiple_of(ENTRY_BYTES as u32)
}

/// The mode in the flags of a descriptor.
pub(super) fn crc_mode(flags: Flags) -> CrcMode {
    CrcMode {
        bypass_inversion: flags.contains(Flags::CRC_BYPASS_INVERSION),
        bypass_data_reflection: flags.contains(Flags::CRC_BYPASS_DATA_REFLECTION),
    }
}
