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

mod types;

use super::guard::Guard;

pub use types::{Block, Checks, FIELD_BYTES, Format, Mismatch, PassThrough, Source, Tags, Target, Wrong};

/// Checks all blocks of `data`. Returns the expected tags of the next block.
///
/// # Errors
/// [`Mismatch`]: a field is not as expected; the blocks behind it are not checked.
///
/// # Panics
/// If `data` does not consist of whole blocks with their fields.
pub fn check(format: Format, source: &Source, data: &[u8]) -> Result<Tags, Mismatch> {
    check_with(Guard::best(), format, source, data)
}

/// Copies the blocks of `data` to `target` with a field behind each. Returns the tags of the next block.
///
/// # Panics
/// If `data` does not consist of whole blocks, or `target` does not have the length of as many with fields.
pub fn insert(format: Format, tags: Tags, data: &[u8], target: &mut [u8]) -> Tags {
    insert_with(Guard::best(), format, tags, data, target)
}

/// Checks the blocks of `data` and copies them to `target` without their fields. Returns the expected tags of the next
/// block.
///
/// # Errors
/// [`Mismatch`]: a field is not as expected. The blocks before it are copied, the rest of the target is unchanged.
///
/// # Panics
/// If `data` does not consist of whole blocks with their fields, or `target` does not have the length of as many without.
pub fn strip(format: Format, source: &Source, data: &[u8], target: &mut [u8]) -> Result<Tags, Mismatch> {
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
    format: Format,
    source: &Source,
    rules: &Target,
    data: &[u8],
    target: &mut [u8],
) -> Result<(Tags, Tags), Mismatch> {
    update_with(Guard::best(), format, source, rules, data, target)
}

#[inline]
pub(super) fn check_with(
    method: Guard,
    format: Format,
    source: &Source,
    data: &[u8],
) -> Result<Tags, Mismatch> {
    let mut checker = Checker::new(method, format, source);
    for block in format.protected(data) {
        checker.check(block)?;
    }
    Ok(checker.tags)
}

pub(super) fn insert_with(method: Guard, format: Format, tags: Tags, data: &[u8], target: &mut [u8]) -> Tags {
    let blocks = format.bare(data);
    let targets = format.protected_mut(target);
    assert_eq!(
        blocks.len(),
        targets.len(),
        "the target must have room for each block and its field, and not more"
    );
    let mut tags = tags;
    for (block, target) in blocks.zip(targets) {
        Field::new(guard(method, format, block), tags).join(block, target);
        tags = tags.next();
    }
    tags
}

pub(super) fn strip_with(
    method: Guard,
    format: Format,
    source: &Source,
    data: &[u8],
    target: &mut [u8],
) -> Result<Tags, Mismatch> {
    let blocks = format.protected(data);
    let targets = format.bare_mut(target);
    assert_eq!(blocks.len(), targets.len(), "the target must have room for each block, and not more");
    let mut checker = Checker::new(method, format, source);
    for (block, target) in blocks.zip(targets) {
        checker.check(block)?;
        target.copy_from_slice(&block[..target.len()]);
    }
    Ok(checker.tags)
}

pub(super) fn update_with(
    method: Guard,
    format: Format,
    source: &Source,
    rules: &Target,
    data: &[u8],
    target: &mut [u8],
) -> Result<(Tags, Tags), Mismatch> {
    let blocks = format.protected(data);
    let targets = format.protected_mut(target);
    assert_eq!(
        blocks.len(),
        targets.len(),
        "the target must have room for each block and its field, and not more"
    );
    let mut checker = Checker::new(method, format, source);
    let PassThrough { guard: pass_guard, application: pass_application, reference: pass_reference } =
        rules.pass_through;
    let mut passed = 0;
    for (pass, part) in [
        (pass_guard, Field::GUARD),
        (pass_application, Field::APPLICATION),
        (pass_reference, Field::REFERENCE),
    ] {
        passed |= if pass { part } else { 0 };
    }
    let mut tags = rules.tags;
    for (block, target) in blocks.zip(targets) {
        let (found, known_guard) = checker.check(block)?;
        let data = &block[..block.len() - FIELD_BYTES];
        let new = match known_guard {
            _ if passed & Field::GUARD != 0 => 0,
            Some(guard) => guard,
            None => guard(method, format, data),
        };
        let new = Field::new(new, tags);
        Field(new.0 & !passed | found.0 & passed).join(data, target);
        tags = tags.next();
    }
    Ok((checker.tags, tags))
}

/// A data integrity field as a number: guard, application tag and reference tag from high to low, as in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Field(u64);

impl Field {
    const GUARD: u64 = 0xffff << 48;
    const APPLICATION: u64 = 0xffff << 32;
    const REFERENCE: u64 = 0xffff_ffff;

    fn new(guard: u16, tags: Tags) -> Field {
        Field(u64::from(guard) << 48 | u64::from(tags.masked_application()) << 32 | u64::from(tags.reference))
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
fn guard(method: Guard, format: Format, data: &[u8]) -> u16 {
    let crc = method.crc(if format.guard_seed_ones { u16::MAX } else { 0 }, data);
    if format.invert_guard { !crc } else { crc }
}

/// A check of blocks with their fields, one after another.
struct Checker {
    method: Guard,
    format: Format,
    checks: Checks,
    /// The parts of a field that are compared.
    compared: u64,
    /// The expected tags of the next block.
    tags: Tags,
    bytes_completed: usize,
}

impl Checker {
    fn new(method: Guard, format: Format, source: &Source) -> Checker {
        let Source { tags, checks } = *source;
        let mut compared = 0;
        if !checks.ignore_guard {
            compared |= Field::GUARD;
        }
        if tags.application_mask != u16::MAX {
            compared |= Field::APPLICATION;
        }
        if !checks.ignore_reference {
            compared |= Field::REFERENCE;
        }
        Checker { method, format, checks, compared, tags, bytes_completed: 0 }
    }

    /// Checks a block. Returns its field, and its guard if it was computed.
    #[inline]
    fn check(&mut self, block: &[u8]) -> Result<(Field, Option<u16>), Mismatch> {
        let (data, found) = Field::split(block);
        let mut computed = None;
        if !self.skips(found)? {
            if !self.checks.ignore_guard {
                computed = Some(guard(self.method, self.format, data));
            }
            let expected = Field::new(computed.unwrap_or_default(), self.tags);
            let differs = (found.0 ^ expected.0) & self.compared;
            if differs != 0 {
                return Err(self.mismatch(Wrong {
                    guard: differs & Field::GUARD != 0,
                    application: differs & Field::APPLICATION != 0,
                    reference: differs & Field::REFERENCE != 0,
                    ones: false,
                }));
            }
        }
        self.tags = self.tags.next();
        self.bytes_completed += block.len();
        Ok((found, computed))
    }

    /// Whether a block with this field is skipped; an error if the checks refuse the field.
    #[inline]
    fn skips(&self, found: Field) -> Result<bool, Mismatch> {
        if !found.is_ones(Field::APPLICATION) {
            return Ok(false); // all skipped or refused fields have these ones
        }
        let checks = self.checks;
        let all = found.is_ones(u64::MAX);
        if checks.skip_ones && checks.refuse_ones && all {
            return Err(self.mismatch(Wrong { ones: true, ..Wrong::default() }));
        }
        Ok(checks.skip_application_ones
            || checks.skip_tags_ones && found.is_ones(Field::REFERENCE)
            || checks.skip_ones && all)
    }

    fn mismatch(&self, wrong: Wrong) -> Mismatch {
        Mismatch { bytes_completed: self.bytes_completed, wrong }
    }
}
