//! What is left of an operation that a page fault stopped, or of a request that is larger than a queue takes.
//!
//! | operation | what goes on |
//! |---|---|
//! | Memory Move, Dualcast, Cache Flush | addresses; the size alone if a copy ran from the end |
//! | Fill, Compare Pattern | the pattern, turned by the bytes done modulo its length |
//! | Compare | addresses; the offset counts from where the request began |
//! | Create Delta | sources, the record's end and its room; later entries count from the new start and are corrected |
//! | Apply Delta | the record's start; the next entry must still be above the last one applied |
//! | CRC | the seed is the CRC so far, if any byte was done |
//! | DIF | the tags are those that the record tells, if any block was done |
//!
//! Source: Intel DSA Architecture Specification 3.0, section 8.3, what bytes completed means for each operation.

use super::check::unit_bytes;
use crate::completion::Completion;
use crate::descriptor::Descriptor;
use crate::dif::{DIF_BYTES, DifSource, DifTarget};
use crate::flags::Flags;
use crate::operation::Opcode;
use crate::software::{CrcMode, ENTRY_BYTES};

/// What is left of `descriptor` when the first `done` bytes are, of which `completion` tells the state.
///
/// For Apply Delta `done` counts bytes of the record, for a copy that ran backwards bytes from the end.
pub(super) fn rest(descriptor: &Descriptor, done: u32, completion: &Completion) -> Descriptor {
    let d = descriptor;
    let bytes = u64::from(done);
    let (first, second) = (d.address_1().offset(bytes), d.address_2().offset(bytes));
    let size = d.size().saturating_sub(done);
    let Ok(opcode) = d.opcode() else { return *d };
    let kept = d.flags();
    let rest = match opcode {
        Opcode::Noop | Opcode::Batch | Opcode::Drain => *d,
        Opcode::Memmove if completion.is_backwards() => {
            Descriptor::memmove(d.address_1(), d.address_2(), size)
        }
        Opcode::Memmove => Descriptor::memmove(first, second, size),
        Opcode::Fill if kept.contains(Flags::FILL_PATTERN_16) => {
            Descriptor::fill_16(d.pattern_16().rotate_right(8 * (done % 16)), second, size)
        }
        Opcode::Fill => Descriptor::fill(turned(d.pattern(), done), second, size),
        Opcode::Compare => Descriptor::compare(first, second, size),
        Opcode::ComparePattern => Descriptor::compare_pattern(turned(d.pattern(), done), first, size),
        Opcode::CreateDelta => {
            let written = completion.delta_bytes();
            let delta = d.delta_address().offset(written.into());
            Descriptor::create_delta(first, second, size, delta, d.delta_bytes().saturating_sub(written))
        }
        Opcode::ApplyDelta => {
            let delta = d.delta_address().offset(bytes);
            Descriptor::apply_delta(delta, d.delta_bytes().saturating_sub(done), d.address_2(), d.size())
        }
        Opcode::Dualcast => Descriptor::dualcast(first, second, d.target_2().offset(bytes), size),
        Opcode::CrcGeneration => Descriptor::crc(seed(d, done, completion), first, size),
        Opcode::CopyCrc => Descriptor::copy_crc(seed(d, done, completion), first, second, size),
        Opcode::DifCheck | Opcode::DifInsert | Opcode::DifStrip | Opcode::DifUpdate => {
            dif_rest(opcode, d, done, completion)
        }
        Opcode::CacheFlush => Descriptor::cache_flush(second, size),
    };
    if !kept.contains(Flags::CHECK_RESULT) {
        return rest.with_flags(kept);
    }
    let mut expected = d.expected_result();
    if opcode == Opcode::CreateDelta && completion.delta_bytes() > 0 {
        // Something differs already, so that a rest without differences (result 0) makes a record (result 1) too.
        expected = expected & !1 | expected >> 1 & 1;
    }
    rest.with_expected_result(expected).with_flags(kept)
}

/// The pattern as it goes on after `done` bytes.
fn turned(pattern: u64, done: u32) -> u64 {
    pattern.rotate_right(8 * (done % 8))
}

fn seed(descriptor: &Descriptor, done: u32, completion: &Completion) -> u32 {
    if done == 0 { descriptor.crc_seed() } else { completion.crc() }
}

fn dif_rest(opcode: Opcode, d: &Descriptor, done: u32, completion: &Completion) -> Descriptor {
    let (mut source, mut target) = (d.dif_source(), d.dif_target());
    if done > 0 {
        source = DifSource { tags: completion.dif_source_tags(), ..source };
        target = DifTarget { tags: completion.dif_target_tags(), ..target };
    }
    let format = d.dif_format();
    let blocks = u64::from(done / unit_bytes(d));
    let (block, field) = (u64::from(format.block.bytes()), u64::from(DIF_BYTES));
    let from = d.address_1().offset(done.into());
    let size = d.size().saturating_sub(done);
    let to = |block_bytes| d.address_2().offset(blocks * block_bytes);
    match opcode {
        Opcode::DifInsert => Descriptor::dif_insert(from, to(block + field), size, format, target),
        Opcode::DifStrip => Descriptor::dif_strip(from, to(block), size, format, source),
        Opcode::DifUpdate => Descriptor::dif_update(from, to(block + field), size, format, source, target),
        _ => Descriptor::dif_check(from, size, format, source),
    }
}

/// The first `size_bytes` of a request; of a copy onto a target above an overlapping source, the last.
pub(super) fn piece(whole: &Descriptor, size_bytes: u32, is_last: bool) -> Descriptor {
    let d = whole;
    let kept = d.flags();
    let skipped = if is_last { u64::from(d.size() - size_bytes) } else { 0 };
    let (first, second) = (d.address_1().offset(skipped), d.address_2().offset(skipped));
    let piece = match d.opcode() {
        Ok(Opcode::Memmove) => Descriptor::memmove(first, second, size_bytes),
        Ok(Opcode::Fill) if kept.contains(Flags::FILL_PATTERN_16) => {
            Descriptor::fill_16(d.pattern_16(), second, size_bytes)
        }
        Ok(Opcode::Fill) => Descriptor::fill(d.pattern(), second, size_bytes),
        Ok(Opcode::Compare) => Descriptor::compare(first, second, size_bytes),
        Ok(Opcode::ComparePattern) => Descriptor::compare_pattern(d.pattern(), first, size_bytes),
        Ok(Opcode::CreateDelta) => {
            Descriptor::create_delta(first, second, size_bytes, d.delta_address(), d.delta_bytes())
        }
        Ok(Opcode::Dualcast) => Descriptor::dualcast(first, second, d.target_2(), size_bytes),
        Ok(Opcode::CrcGeneration) => Descriptor::crc(d.crc_seed(), first, size_bytes),
        Ok(Opcode::CopyCrc) => Descriptor::copy_crc(d.crc_seed(), first, second, size_bytes),
        Ok(Opcode::DifCheck) => Descriptor::dif_check(first, size_bytes, d.dif_format(), d.dif_source()),
        Ok(Opcode::DifInsert) => {
            Descriptor::dif_insert(first, second, size_bytes, d.dif_format(), d.dif_target())
        }
        Ok(Opcode::DifStrip) => {
            Descriptor::dif_strip(first, second, size_bytes, d.dif_format(), d.dif_source())
        }
        Ok(Opcode::DifUpdate) => {
            Descriptor::dif_update(first, second, size_bytes, d.dif_format(), d.dif_source(), d.dif_target())
        }
        Ok(Opcode::CacheFlush) => Descriptor::cache_flush(second, size_bytes),
        _ => return *d,
    };
    piece.with_flags(kept)
}

/// Whether what a partial completion tells can be: memory that is still to be written is computed from it.
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

/// Whether the delta record that was written is one.
pub(super) fn has_room_for(descriptor: &Descriptor, completion: &Completion) -> bool {
    let written = completion.delta_bytes();
    written <= descriptor.delta_bytes() && written.is_multiple_of(ENTRY_BYTES as u32)
}

/// How the flags of a descriptor turn seed, data and result.
pub(super) fn crc_mode(flags: Flags) -> CrcMode {
    CrcMode {
        bypass_inversion: flags.contains(Flags::CRC_BYPASS_INVERSION),
        bypass_data_reflection: flags.contains(Flags::CRC_BYPASS_DATA_REFLECTION),
    }
}
