//! The measured operations, as descriptors and in software.

use std::hint::black_box;

use memferry_dsa::internals::software::{DELTA_BYTES_MAX, ENTRY_BYTES, dif};
use memferry_dsa::internals::{PAGE_BYTES, software};
use memferry_dsa::software::{CrcMode, Delta};
use memferry_dsa::{
    Address, DIF_BYTES, Descriptor, DifBlock, DifFormat, DifSource, DifSourceFlags, DifTarget,
    DifTargetFlags, Opcode,
};
use serde::{Deserialize, Serialize};

use crate::harness::display_by_serde;

/// An operation on regions of equal bytes, so that comparisons read all of them.
///
/// Operations on data integrity fields use blocks of 512 bytes; their size is that of the data without fields. The delta
/// record for [`ApplyDelta`](LoadOperation::ApplyDelta) changes one word of eight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum LoadOperation {
    Copy,
    Fill,
    Compare,
    ComparePattern,
    CreateDelta,
    ApplyDelta,
    Dualcast,
    Crc,
    CopyCrc,
    DifCheck,
    DifInsert,
    DifStrip,
    DifUpdate,
    CacheFlush,
    /// A descriptor without data, and no work on a core: the remaining time is the cost of measuring.
    #[serde(skip_deserializing)] // no option of a benchmark
    Nothing,
}

/// The byte that fills all regions.
pub(super) const BYTE: u8 = 7;
const PATTERN: u64 = u64::from_ne_bytes([BYTE; 8]);

/// Maximum size of a delta record between equal regions: the least that a descriptor may offer.
const DELTA_ROOM: u32 = 80;

const FORMAT: DifFormat = DifFormat::new(DifBlock::Bytes512);
const BLOCK_BYTES: usize = FORMAT.block.bytes() as usize;

/// The expected fields. Their tags stay the same, so that blocks are equal.
fn expected() -> DifSource {
    DifSource { flags: DifSourceFlags::REFERENCE_STAYS, ..DifSource::default() }
}

/// The new fields, which are the expected ones.
fn made() -> DifTarget {
    DifTarget { flags: DifTargetFlags::REFERENCE_STAYS, ..DifTarget::default() }
}

/// Bytes of a block with its field.
pub(super) const PROTECTED_BYTES: usize = BLOCK_BYTES + DIF_BYTES as usize;

/// Size of data with its fields.
fn with_fields(size_bytes: usize) -> usize {
    size_bytes.saturating_add(size_bytes / BLOCK_BYTES * DIF_BYTES as usize)
}

/// A block with its field.
pub(super) fn protected_block() -> [u8; PROTECTED_BYTES] {
    let mut block = [BYTE; PROTECTED_BYTES];
    dif::insert(FORMAT, &made(), &[BYTE; BLOCK_BYTES], &mut block);
    block
}

/// Size of the delta record that changes one word of eight, at least one.
fn delta_bytes(size_bytes: usize) -> usize {
    size_bytes.div_ceil(64) * ENTRY_BYTES
}

/// An entry of that record: the number of a word, and its new value.
pub(super) fn delta_entry(number: usize) -> [u8; ENTRY_BYTES] {
    let mut entry = [BYTE; ENTRY_BYTES];
    // Records are for 512 KiB at most, which are 2^16 words.
    entry[..2].copy_from_slice(&((8 * number) as u16).to_le_bytes());
    entry
}

/// Addresses of a descriptor's regions, each at the start of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions {
    pub(super) source: Address,
    pub(super) target: Address,
    pub(super) extra: Address,
}

/// Fills a region with the bytes that operations expect, which also touches its pages.
pub fn prepare(region: &mut [u8]) {
    region.fill(BYTE);
}

impl LoadOperation {
    /// All operations with data.
    pub const ALL: [LoadOperation; 14] = [
        LoadOperation::Copy,
        LoadOperation::Fill,
        LoadOperation::Compare,
        LoadOperation::ComparePattern,
        LoadOperation::CreateDelta,
        LoadOperation::ApplyDelta,
        LoadOperation::Dualcast,
        LoadOperation::Crc,
        LoadOperation::CopyCrc,
        LoadOperation::DifCheck,
        LoadOperation::DifInsert,
        LoadOperation::DifStrip,
        LoadOperation::DifUpdate,
        LoadOperation::CacheFlush,
    ];

    /// The operation of the device.
    pub fn opcode(self) -> Opcode {
        match self {
            LoadOperation::Copy => Opcode::Memmove,
            LoadOperation::Fill => Opcode::Fill,
            LoadOperation::Compare => Opcode::Compare,
            LoadOperation::ComparePattern => Opcode::ComparePattern,
            LoadOperation::CreateDelta => Opcode::CreateDelta,
            LoadOperation::ApplyDelta => Opcode::ApplyDelta,
            LoadOperation::Dualcast => Opcode::Dualcast,
            LoadOperation::Crc => Opcode::CrcGeneration,
            LoadOperation::CopyCrc => Opcode::CopyCrc,
            LoadOperation::DifCheck => Opcode::DifCheck,
            LoadOperation::DifInsert => Opcode::DifInsert,
            LoadOperation::DifStrip => Opcode::DifStrip,
            LoadOperation::DifUpdate => Opcode::DifUpdate,
            LoadOperation::CacheFlush => Opcode::CacheFlush,
            LoadOperation::Nothing => Opcode::Noop,
        }
    }

    /// Size of source and of target, each.
    pub fn region_bytes(self, size_bytes: usize) -> usize {
        if self.has_fields() { with_fields(size_bytes) } else { size_bytes }
    }

    /// Size of the third region: the second target or the delta record.
    pub fn extra_bytes(self, size_bytes: usize) -> usize {
        match self {
            LoadOperation::Dualcast => size_bytes,
            LoadOperation::CreateDelta => PAGE_BYTES as usize,
            LoadOperation::ApplyDelta => delta_bytes(size_bytes),
            _ => 0,
        }
    }

    /// Whether it reads or writes data integrity fields.
    fn has_fields(self) -> bool {
        matches!(
            self,
            LoadOperation::DifCheck
                | LoadOperation::DifInsert
                | LoadOperation::DifStrip
                | LoadOperation::DifUpdate
        )
    }

    /// Whether its source has fields.
    pub(super) fn reads_fields(self) -> bool {
        self.has_fields() && self != LoadOperation::DifInsert
    }

    /// Bytes of source and target that the operation accesses.
    fn used_bytes(self, size_bytes: usize) -> (usize, usize) {
        let protected = with_fields(size_bytes);
        match self {
            LoadOperation::DifInsert => (size_bytes, protected),
            LoadOperation::DifStrip => (protected, size_bytes),
            LoadOperation::DifCheck | LoadOperation::DifUpdate => (protected, protected),
            _ => (size_bytes, size_bytes),
        }
    }

    /// Whether its result is in a record, so that each member of a batch needs one.
    pub(super) fn has_result(self) -> bool {
        self.has_fields()
            || matches!(
                self,
                LoadOperation::Compare
                    | LoadOperation::ComparePattern
                    | LoadOperation::CreateDelta
                    | LoadOperation::Crc
                    | LoadOperation::CopyCrc
            )
    }

    /// # Errors
    /// A sentence, if the operation does not exist for that size.
    pub(super) fn check(self, size_bytes: u32) -> Result<(), String> {
        let is_for_deltas = size_bytes.is_multiple_of(8) && size_bytes as usize <= DELTA_BYTES_MAX;
        match self {
            LoadOperation::CreateDelta | LoadOperation::ApplyDelta if !is_for_deltas => {
                Err(format!("{self} is for multiples of 8 bytes up to 512 KiB"))
            }
            _ if self.has_fields() && (!size_bytes.is_multiple_of(512) || size_bytes > 1 << 30) => {
                Err(format!("{self} is for multiples of 512 bytes up to 1 GiB here"))
            }
            _ => Ok(()),
        }
    }

    /// Writes the fields of the source and the delta record of the third region.
    pub(super) fn arrange(self, source: &mut [u8], extra: &mut [u8]) {
        if self.reads_fields() {
            let block = protected_block();
            source.chunks_exact_mut(block.len()).for_each(|place| place.copy_from_slice(&block));
        }
        if self == LoadOperation::ApplyDelta {
            for (number, entry) in extra.chunks_exact_mut(ENTRY_BYTES).enumerate() {
                entry.copy_from_slice(&delta_entry(number));
            }
        }
    }

    pub(super) fn descriptor(self, at: Regions, size_bytes: u32) -> Descriptor {
        let Regions { source, target, extra } = at;
        let (format, expected, made) = (FORMAT, expected(), made());
        let protected_bytes = with_fields(size_bytes as usize) as u32;
        match self {
            LoadOperation::Copy => Descriptor::memmove(source, target, size_bytes),
            LoadOperation::Fill => Descriptor::fill(PATTERN, target, size_bytes),
            LoadOperation::Compare => Descriptor::compare(source, target, size_bytes),
            LoadOperation::ComparePattern => Descriptor::compare_pattern(PATTERN, source, size_bytes),
            LoadOperation::CreateDelta => {
                Descriptor::create_delta(source, target, size_bytes, extra, DELTA_ROOM)
            }
            LoadOperation::ApplyDelta => {
                let delta_bytes = delta_bytes(size_bytes as usize) as u32;
                Descriptor::apply_delta(extra, delta_bytes, target, size_bytes)
            }
            LoadOperation::Dualcast => Descriptor::dualcast(source, target, extra, size_bytes),
            LoadOperation::Crc => Descriptor::crc(0, source, size_bytes),
            LoadOperation::CopyCrc => Descriptor::copy_crc(0, source, target, size_bytes),
            LoadOperation::DifCheck => Descriptor::dif_check(source, protected_bytes, format, expected),
            LoadOperation::DifInsert => Descriptor::dif_insert(source, target, size_bytes, format, made),
            LoadOperation::DifStrip => {
                Descriptor::dif_strip(source, target, protected_bytes, format, expected)
            }
            LoadOperation::DifUpdate => {
                Descriptor::dif_update(source, target, protected_bytes, format, expected, made)
            }
            LoadOperation::CacheFlush => Descriptor::cache_flush(target, size_bytes),
            LoadOperation::Nothing => Descriptor::noop(),
        }
    }

    /// Runs the operation on this core, on data of `size_bytes`. The regions have [`region_bytes`](Self::region_bytes), the
    /// third one [`extra_bytes`](Self::extra_bytes), with the content of [`arrange`](Self::arrange).
    pub(super) fn on_this_core(self, size_bytes: usize, source: &[u8], target: &mut [u8], extra: &mut [u8]) {
        let (source_bytes, target_bytes) = self.used_bytes(size_bytes);
        let (source, target) = (&source[..source_bytes], &mut target[..target_bytes]);
        match self {
            LoadOperation::Copy => software::copy(source, target),
            LoadOperation::Fill => software::fill(PATTERN, target),
            LoadOperation::Compare => {
                assert!(black_box(software::compare(source, target)).is_none(), "equal bytes differ")
            }
            LoadOperation::ComparePattern => {
                assert!(
                    black_box(software::compare_pattern(PATTERN, source)).is_none(),
                    "equal bytes differ"
                );
            }
            LoadOperation::CreateDelta => {
                let delta = black_box(software::create_delta(source, target, extra));
                assert!(matches!(delta, Delta::Equal), "equal bytes differ");
            }
            LoadOperation::ApplyDelta => {
                let applied = black_box(software::apply_delta(extra, target));
                assert!(applied.is_ok(), "a delta record is refused");
            }
            LoadOperation::Dualcast => software::dualcast(source, target, extra),
            LoadOperation::Crc => {
                black_box(software::crc32c(0, source, CrcMode::default()));
            }
            LoadOperation::CopyCrc => {
                black_box(software::copy_crc(source, target, 0, CrcMode::default()));
            }
            LoadOperation::DifCheck => {
                let checked = black_box(dif::check(FORMAT, &expected(), source));
                assert!(checked.is_ok(), "fields are wrong");
            }
            LoadOperation::DifInsert => {
                black_box(dif::insert(FORMAT, &made(), source, target));
            }
            LoadOperation::DifStrip => {
                let checked = black_box(dif::strip(FORMAT, &expected(), source, target));
                assert!(checked.is_ok(), "fields are wrong");
            }
            LoadOperation::DifUpdate => {
                let checked = black_box(dif::update(FORMAT, &expected(), &made(), source, target));
                assert!(checked.is_ok(), "fields are wrong");
            }
            LoadOperation::CacheFlush => software::flush(target, software::Flush::Invalidate),
            LoadOperation::Nothing => {}
        }
        black_box(target);
    }
}

display_by_serde!(LoadOperation);
