//! Naive implementations of the operations: on byte vectors, bit by bit.

use memferry_dsa::{DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags};

/// CRC-32C as in the specification: a register whose highest bit goes first.
pub(crate) fn crc32c(seed: u32, bytes: &[u8], bypass_inversion: bool, bypass_data_reflection: bool) -> u32 {
    let mut register = if bypass_inversion { seed } else { (!seed).reverse_bits() };
    for byte in bytes {
        for bit in 0..8 {
            let place = if bypass_data_reflection { 7 - bit } else { bit };
            let data = u32::from(byte >> place & 1);
            let out = register >> 31 ^ data;
            register = register << 1 ^ if out == 1 { 0x1edc_6f41 } else { 0 };
        }
    }
    if bypass_inversion { register } else { !register.reverse_bits() }
}

/// The guard of a block.
pub(crate) fn guard(format: DifFormat, block: &[u8]) -> u16 {
    let mut register: u16 = if format.guard_seed_ones { 0xffff } else { 0 };
    for byte in block {
        for bit in (0..8).rev() {
            let out = register >> 15 ^ u16::from(byte >> bit & 1);
            register = register << 1 ^ if out == 1 { 0x8bb7 } else { 0 };
        }
    }
    if format.guard_inverted { !register } else { register }
}

/// The bytes of a data integrity field.
pub(crate) fn field(guard: u16, application: u16, reference: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..2].copy_from_slice(&guard.to_be_bytes());
    bytes[2..4].copy_from_slice(&application.to_be_bytes());
    bytes[4..].copy_from_slice(&reference.to_be_bytes());
    bytes
}

fn tags_of_block(tags: DifTags, block: usize, counts: bool, stays: bool) -> DifTags {
    let mut now = tags;
    for _ in 0..block {
        if counts {
            now.application = now.application.wrapping_add(1);
        }
        if !stays {
            now.reference = now.reference.wrapping_add(1);
        }
    }
    now
}

/// The expected tags of the block with this number.
pub(crate) fn source_tags(source: DifSource, block: usize) -> DifTags {
    let counts = source.flags.contains(DifSourceFlags::APPLICATION_COUNTS);
    tags_of_block(source.tags, block, counts, source.flags.contains(DifSourceFlags::REFERENCE_STAYS))
}

/// The written tags of the block with this number.
pub(crate) fn target_tags(target: DifTarget, block: usize) -> DifTags {
    let counts = target.flags.contains(DifTargetFlags::APPLICATION_COUNTS);
    tags_of_block(target.tags, block, counts, target.flags.contains(DifTargetFlags::REFERENCE_STAYS))
}

/// DIF Insert.
pub(crate) fn dif_insert(format: DifFormat, target: DifTarget, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, block) in data.chunks(format.block.bytes() as usize).enumerate() {
        let tags = target_tags(target, number);
        out.extend(block);
        out.extend(field(guard(format, block), tags.application & !tags.application_mask, tags.reference));
    }
    out
}

/// DIF Strip without its checks.
pub(crate) fn dif_strip(format: DifFormat, data: &[u8]) -> Vec<u8> {
    let block = format.block.bytes() as usize;
    data.chunks(block + 8).flat_map(|chunk| &chunk[..block]).copied().collect()
}

/// The result of DIF Check: the number of good blocks, and the errors of the next one.
pub(crate) fn dif_check(format: DifFormat, source: DifSource, data: &[u8]) -> (usize, u8) {
    let size = format.block.bytes() as usize;
    let has = |flag| source.flags.contains(flag);
    for (number, chunk) in data.chunks(size + 8).enumerate() {
        let (block, stored) = chunk.split_at(size);
        let expected = source_tags(source, number);
        let application = u16::from_be_bytes([stored[2], stored[3]]);
        let reference = u32::from_be_bytes([stored[4], stored[5], stored[6], stored[7]]);
        let mut errors = 0;
        let all_f = stored == [0xff; 8];
        let skipped = all_f && has(DifSourceFlags::DETECT_ALL_F)
            || application == 0xffff && has(DifSourceFlags::DETECT_APPLICATION_F)
            || application == 0xffff && reference == u32::MAX && has(DifSourceFlags::DETECT_TAGS_F);
        if all_f && has(DifSourceFlags::DETECT_ALL_F) && has(DifSourceFlags::ALL_F_IS_ERROR) {
            errors = 8;
        } else if !skipped {
            if !has(DifSourceFlags::NO_GUARD_CHECK) && stored[..2] != guard(format, block).to_be_bytes() {
                errors |= 1;
            }
            let mask = expected.application_mask;
            if mask != 0xffff && application != expected.application & !mask {
                errors |= 2;
            }
            if !has(DifSourceFlags::NO_REFERENCE_CHECK) && reference != expected.reference {
                errors |= 4;
            }
        }
        if errors != 0 {
            return (number, errors);
        }
    }
    (data.len() / (size + 8), 0)
}

/// DIF Update without its checks.
pub(crate) fn dif_update(format: DifFormat, target: DifTarget, data: &[u8]) -> Vec<u8> {
    let size = format.block.bytes() as usize;
    let mut out = Vec::new();
    for (number, chunk) in data.chunks(size + 8).enumerate() {
        let (block, stored) = chunk.split_at(size);
        let tags = target_tags(target, number);
        let mut made = field(guard(format, block), tags.application & !tags.application_mask, tags.reference);
        for (flag, part) in [
            (DifTargetFlags::PASS_GUARD, 0..2),
            (DifTargetFlags::PASS_APPLICATION, 2..4),
            (DifTargetFlags::PASS_REFERENCE, 4..8),
        ] {
            if target.flags.contains(flag) {
                made[part.clone()].copy_from_slice(&stored[part]);
            }
        }
        out.extend(block);
        out.extend(made);
    }
    out
}

/// The delta record of two regions, without a size limit.
pub(crate) fn delta(old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    for (number, (old, new)) in old.chunks(8).zip(new.chunks(8)).enumerate() {
        if old != new {
            record.extend((number as u16).to_le_bytes());
            record.extend(new);
        }
    }
    record
}
