//! Data integrity fields (DIF): eight bytes behind each block that detect damaged and misplaced blocks.
//!
//! ```text
//! block | guard: 2 bytes | application tag: 2 bytes | reference tag: 4 bytes      all big-endian
//! ```
//!
//! The guard is a CRC of the block. The application defines the tags; usually the reference tag counts blocks. [`check`] compares the fields of blocks, [`insert`] adds fields, [`strip`] checks and removes them, and
//! [`update`] checks them and writes others.
//!
//! The specification leaves three points open. They are decided as in Intel's DML, where its behaviour is known:
//!
//! - A mask clears bits of the expected application tag, not of the found one. So a found tag with bits under the mask
//!   differs, unless the mask is `0xffff`, which turns the comparison off.
//! - Incrementing application tags also count under their mask.
//! - A block that is skipped because of its ones advances the tags like others, and [`update`] treats it like others.
//!
//! Source: DSA specification 8.3.14 to 8.3.17 and appendix B.

use std::slice::ChunksExact;

use super::guard::Guard;
use crate::dif::{
    DIF_BYTES, DifErrors, DifFormat, DifSource, DifSourceFlags, DifTags, DifTarget, DifTargetFlags,
};

/// Bytes of a data integrity field.
const FIELD_BYTES: usize = DIF_BYTES as usize;

/// The error of a data integrity field that is not as expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the data integrity field of the block at byte {bytes_completed} is wrong ({wrong}): the data is damaged, or it is \
     another block"
)]
pub struct Mismatch {
    /// Bytes of the good blocks before it, with their fields.
    pub bytes_completed: usize,
    /// The mismatching parts.
    pub wrong: DifErrors,
}

/// Checks all blocks of `data`. Returns the expected tags of the next block.
///
/// # Errors
/// [`Mismatch`]: a field is not as expected; the blocks behind it are not checked.
///
/// # Panics
/// If `data` does not consist of whole blocks with their fields.
pub fn check(format: DifFormat, source: &DifSource, data: &[u8]) -> Result<DifTags, Mismatch> {
    check_with(Guard::best(), format, source, data)
}

/// Copies the blocks of `data` to `target` with a field behind each. Returns the tags of the next block.
///
/// The `PASS` flags of `made` have no effect, as for the device's DIF Insert.
///
/// # Panics
/// If `data` does not consist of whole blocks, or `target` does not have the length of as many with fields.
pub fn insert(format: DifFormat, made: &DifTarget, data: &[u8], target: &mut [u8]) -> DifTags {
    insert_with(Guard::best(), format, made, data, target)
}

/// Checks the blocks of `data` and copies them to `target` without their fields. Returns the expected tags of the next
/// block.
///
/// # Errors
/// [`Mismatch`]: a field is not as expected. The blocks before it are copied, the rest of the target is unchanged.
///
/// # Panics
/// If `data` does not consist of whole blocks with their fields, or `target` does not have the length of as many without.
pub fn strip(
    format: DifFormat,
    source: &DifSource,
    data: &[u8],
    target: &mut [u8],
) -> Result<DifTags, Mismatch> {
    strip_with(Guard::best(), format, source, data, target)
}

/// Checks the blocks of `data` and copies them to `target` with new fields. Returns the tags of source and target for
/// the next block.
///
/// # Errors
/// [`Mismatch`]: a field is not as expected. The blocks before it are copied, the rest of the target is unchanged.
///
/// # Panics
/// If `data` does not consist of whole blocks with their fields, or `target` does not have the same length.
pub fn update(
    format: DifFormat,
    source: &DifSource,
    made: &DifTarget,
    data: &[u8],
    target: &mut [u8],
) -> Result<(DifTags, DifTags), Mismatch> {
    update_with(Guard::best(), format, source, made, data, target)
}

#[inline]
pub(super) fn check_with(
    method: Guard,
    format: DifFormat,
    source: &DifSource,
    data: &[u8],
) -> Result<DifTags, Mismatch> {
    let mut checker = Checker::new(method, format, source);
    for block in blocks(data, protected_bytes(format)) {
        checker.check(block)?;
    }
    Ok(checker.expected.tags)
}

pub(super) fn insert_with(
    method: Guard,
    format: DifFormat,
    made: &DifTarget,
    data: &[u8],
    target: &mut [u8],
) -> DifTags {
    let pairs = pairs((data, bare_bytes(format)), (target, protected_bytes(format)));
    let mut made = Counter::of_target(made);
    for (block, target) in pairs {
        Field::new(guard(method, format, block), made.tags).join(block, target);
        made.advance();
    }
    made.tags
}

pub(super) fn strip_with(
    method: Guard,
    format: DifFormat,
    source: &DifSource,
    data: &[u8],
    target: &mut [u8],
) -> Result<DifTags, Mismatch> {
    let pairs = pairs((data, protected_bytes(format)), (target, bare_bytes(format)));
    let mut checker = Checker::new(method, format, source);
    for (block, target) in pairs {
        checker.check(block)?;
        target.copy_from_slice(&block[..target.len()]);
    }
    Ok(checker.expected.tags)
}

pub(super) fn update_with(
    method: Guard,
    format: DifFormat,
    source: &DifSource,
    made: &DifTarget,
    data: &[u8],
    target: &mut [u8],
) -> Result<(DifTags, DifTags), Mismatch> {
    let pairs = pairs((data, protected_bytes(format)), (target, protected_bytes(format)));
    let mut checker = Checker::new(method, format, source);
    let mut passed = 0;
    for (flag, part) in [
        (DifTargetFlags::PASS_GUARD, Field::GUARD),
        (DifTargetFlags::PASS_APPLICATION, Field::APPLICATION),
        (DifTargetFlags::PASS_REFERENCE, Field::REFERENCE),
    ] {
        passed |= if made.flags.contains(flag) { part } else { 0 };
    }
    let mut made = Counter::of_target(made);
    for (block, target) in pairs {
        let (found, known_guard) = checker.check(block)?;
        let data = &block[..block.len() - FIELD_BYTES];
        let new = match known_guard {
            _ if passed & Field::GUARD != 0 => 0,
            Some(guard) => guard,
            None => guard(method, format, data),
        };
        let new = Field::new(new, made.tags);
        Field(new.0 & !passed | found.0 & passed).join(data, target);
        made.advance();
    }
    Ok((checker.expected.tags, made.tags))
}

/// The size of a block with its field.
fn protected_bytes(format: DifFormat) -> usize {
    bare_bytes(format) + FIELD_BYTES
}

/// The size of a block without its field.
fn bare_bytes(format: DifFormat) -> usize {
    format.block.bytes() as usize
}

/// Splits data and target into as many blocks of these sizes.
fn pairs<'b>(
    (data, data_bytes): (&'b [u8], usize),
    (target, target_bytes): (&'b mut [u8], usize),
) -> impl Iterator<Item = (&'b [u8], &'b mut [u8])> {
    assert!(target.len().is_multiple_of(target_bytes), "the target must be whole blocks");
    let (blocks, targets) = (blocks(data, data_bytes), target.chunks_exact_mut(target_bytes));
    assert_eq!(blocks.len(), targets.len(), "the target must have room for each block, and not more");
    blocks.zip(targets)
}

fn blocks(data: &[u8], size_bytes: usize) -> ChunksExact<'_, u8> {
    assert!(data.len().is_multiple_of(size_bytes), "the data must be whole blocks");
    data.chunks_exact(size_bytes)
}

/// The tags of a block, and their steps to the next one.
#[derive(Clone, Copy)]
struct Counter {
    tags: DifTags,
    reference_step: u32,
    application_step: u16,
}

impl Counter {
    fn of_source(source: &DifSource) -> Counter {
        Counter {
            tags: source.tags,
            reference_step: u32::from(!source.flags.contains(DifSourceFlags::REFERENCE_STAYS)),
            application_step: u16::from(source.flags.contains(DifSourceFlags::APPLICATION_COUNTS)),
        }
    }

    fn of_target(target: &DifTarget) -> Counter {
        Counter {
            tags: target.tags,
            reference_step: u32::from(!target.flags.contains(DifTargetFlags::REFERENCE_STAYS)),
            application_step: u16::from(target.flags.contains(DifTargetFlags::APPLICATION_COUNTS)),
        }
    }

    #[inline]
    fn advance(&mut self) {
        self.tags.reference = self.tags.reference.wrapping_add(self.reference_step);
        self.tags.application = self.tags.application.wrapping_add(self.application_step);
    }
}

/// A data integrity field as a number: guard, application tag and reference tag from high to low, as in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Field(u64);

impl Field {
    const GUARD: u64 = 0xffff << 48;
    const APPLICATION: u64 = 0xffff << 32;
    const REFERENCE: u64 = 0xffff_ffff;

    fn new(guard: u16, tags: DifTags) -> Field {
        let application = tags.application & !tags.application_mask;
        Field(u64::from(guard) << 48 | u64::from(application) << 32 | u64::from(tags.reference))
    }

    /// Data and field of a block.
    fn split(block: &[u8]) -> (&[u8], Field) {
        let (data, field) = block.split_last_chunk().expect("blocks are longer than their fields");
        (data, Field(u64::from_be_bytes(*field)))
    }

    /// Writes a block.
    fn join(self, data: &[u8], target: &mut [u8]) {
        let (copy, field) = target.split_at_mut(data.len());
        copy.copy_from_slice(data);
        field.copy_from_slice(&self.0.to_be_bytes());
    }

    fn is_ones(self, part: u64) -> bool {
        self.0 & part == part
    }
}

/// The guard of a block.
#[inline]
fn guard(method: Guard, format: DifFormat, data: &[u8]) -> u16 {
    let crc = method.crc(if format.guard_seed_ones { u16::MAX } else { 0 }, data);
    if format.guard_inverted { !crc } else { crc }
}

/// A check of blocks with their fields, one after another.
struct Checker {
    method: Guard,
    format: DifFormat,
    flags: DifSourceFlags,
    /// The parts of a field that are compared.
    compared: u64,
    /// The expected tags of the next block.
    expected: Counter,
    bytes_completed: usize,
}

impl Checker {
    fn new(method: Guard, format: DifFormat, source: &DifSource) -> Checker {
        let flags = source.flags;
        let mut compared = 0;
        if !flags.contains(DifSourceFlags::NO_GUARD_CHECK) {
            compared |= Field::GUARD;
        }
        if source.tags.application_mask != u16::MAX {
            compared |= Field::APPLICATION;
        }
        if !flags.contains(DifSourceFlags::NO_REFERENCE_CHECK) {
            compared |= Field::REFERENCE;
        }
        Checker { method, format, flags, compared, expected: Counter::of_source(source), bytes_completed: 0 }
    }

    /// Checks a block. Returns its field, and its guard if it was computed.
    #[inline]
    fn check(&mut self, block: &[u8]) -> Result<(Field, Option<u16>), Mismatch> {
        let (data, found) = Field::split(block);
        let mut computed = None;
        if !self.skips(found)? {
            if self.compared & Field::GUARD != 0 {
                computed = Some(guard(self.method, self.format, data));
            }
            let expected = Field::new(computed.unwrap_or_default(), self.expected.tags);
            let differs = (found.0 ^ expected.0) & self.compared;
            if differs != 0 {
                let mut wrong = DifErrors::NONE;
                for (part, error) in [
                    (Field::GUARD, DifErrors::GUARD),
                    (Field::APPLICATION, DifErrors::APPLICATION),
                    (Field::REFERENCE, DifErrors::REFERENCE),
                ] {
                    if differs & part != 0 {
                        wrong |= error;
                    }
                }
                return Err(self.mismatch(wrong));
            }
        }
        self.expected.advance();
        self.bytes_completed += block.len();
        Ok((found, computed))
    }

    /// Whether a block with this field is skipped; an error if the checks refuse the field.
    #[inline]
    fn skips(&self, found: Field) -> Result<bool, Mismatch> {
        if !found.is_ones(Field::APPLICATION) {
            return Ok(false); // all skipped or refused fields have these ones
        }
        let flags = self.flags;
        let is_all_ones = found.is_ones(u64::MAX);
        if flags.contains(DifSourceFlags::DETECT_ALL_F | DifSourceFlags::ALL_F_IS_ERROR) && is_all_ones {
            return Err(self.mismatch(DifErrors::ALL_F));
        }
        Ok(flags.contains(DifSourceFlags::DETECT_APPLICATION_F)
            || flags.contains(DifSourceFlags::DETECT_TAGS_F) && found.is_ones(Field::REFERENCE)
            || flags.contains(DifSourceFlags::DETECT_ALL_F) && is_all_ones)
    }

    fn mismatch(&self, wrong: DifErrors) -> Mismatch {
        Mismatch { bytes_completed: self.bytes_completed, wrong }
    }
}
