//! The operations that are measured, as descriptors and in software.

use std::fmt;
use std::hint::black_box;

use memferry_dsa::software::dif;
use memferry_dsa::software::{self, CrcMode, DELTA_BYTES_MAX, Delta, ENTRY_BYTES};
use memferry_dsa::{
    Address, DIF_BYTES, Descriptor, DifBlock, DifFormat, DifSource, DifSourceFlags, DifTarget,
    DifTargetFlags, Opcode, PAGE_BYTES,
};

/// An operation on regions of equal bytes, so that whatever compares goes through all of them.
///
/// Those of data integrity fields are on blocks of 512 bytes; their size is that of the data without the fields. A delta
/// record that is applied has one word of eight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Work {
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
    /// A descriptor without data; on a core nothing at all: what remains is the cost of measuring.
    Nothing,
}

/// What all regions are full of.
pub(super) const BYTE: u8 = 7;
const PATTERN: u64 = u64::from_ne_bytes([BYTE; 8]);

/// Bytes of a delta record between equal regions, and more: the least that a descriptor may offer.
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

/// Bytes of so much data with its fields.
fn with_fields(size_bytes: usize) -> usize {
    size_bytes.saturating_add(size_bytes / BLOCK_BYTES * DIF_BYTES as usize)
}

/// A block with its field.
pub(super) fn protected_block() -> [u8; PROTECTED_BYTES] {
    let mut block = [BYTE; PROTECTED_BYTES];
    dif::insert(FORMAT, &made(), &[BYTE; BLOCK_BYTES], &mut block);
    block
}

/// Bytes of the record that changes one word of eight, or the only one.
fn delta_bytes(size_bytes: usize) -> usize {
    size_bytes.div_ceil(64) * ENTRY_BYTES
}

/// An entry of that record: the number of a word, and what it becomes.
pub(super) fn delta_entry(number: usize) -> [u8; ENTRY_BYTES] {
    let mut entry = [BYTE; ENTRY_BYTES];
    // Records are for 512 KiB at most, which are 2^16 words.
    entry[..2].copy_from_slice(&((8 * number) as u16).to_le_bytes());
    entry
}

/// Where the regions of a descriptor begin, each at the start of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Regions {
    pub(super) source: Address,
    pub(super) target: Address,
    pub(super) extra: Address,
}

/// Writes to a region what operations expect there, which also touches it.
pub fn prepare(region: &mut [u8]) {
    region.fill(BYTE);
}

impl Work {
    /// All that have data.
    pub const ALL: [Work; 14] = [
        Work::Copy,
        Work::Fill,
        Work::Compare,
        Work::ComparePattern,
        Work::CreateDelta,
        Work::ApplyDelta,
        Work::Dualcast,
        Work::Crc,
        Work::CopyCrc,
        Work::DifCheck,
        Work::DifInsert,
        Work::DifStrip,
        Work::DifUpdate,
        Work::CacheFlush,
    ];

    /// One word for records and command lines.
    pub fn name(self) -> &'static str {
        match self {
            Work::Copy => "copy",
            Work::Fill => "fill",
            Work::Compare => "compare",
            Work::ComparePattern => "compare-pattern",
            Work::CreateDelta => "create-delta",
            Work::ApplyDelta => "apply-delta",
            Work::Dualcast => "dualcast",
            Work::Crc => "crc",
            Work::CopyCrc => "copy-crc",
            Work::DifCheck => "dif-check",
            Work::DifInsert => "dif-insert",
            Work::DifStrip => "dif-strip",
            Work::DifUpdate => "dif-update",
            Work::CacheFlush => "cache-flush",
            Work::Nothing => "nothing",
        }
    }

    /// The operation of the device.
    pub fn opcode(self) -> Opcode {
        match self {
            Work::Copy => Opcode::Memmove,
            Work::Fill => Opcode::Fill,
            Work::Compare => Opcode::Compare,
            Work::ComparePattern => Opcode::ComparePattern,
            Work::CreateDelta => Opcode::CreateDelta,
            Work::ApplyDelta => Opcode::ApplyDelta,
            Work::Dualcast => Opcode::Dualcast,
            Work::Crc => Opcode::CrcGeneration,
            Work::CopyCrc => Opcode::CopyCrc,
            Work::DifCheck => Opcode::DifCheck,
            Work::DifInsert => Opcode::DifInsert,
            Work::DifStrip => Opcode::DifStrip,
            Work::DifUpdate => Opcode::DifUpdate,
            Work::CacheFlush => Opcode::CacheFlush,
            Work::Nothing => Opcode::Noop,
        }
    }

    /// Bytes that source and target of a descriptor need, each.
    pub fn region_bytes(self, size_bytes: usize) -> usize {
        if self.has_fields() { with_fields(size_bytes) } else { size_bytes }
    }

    /// Bytes that its third region needs, the second target or the delta record.
    pub fn extra_bytes(self, size_bytes: usize) -> usize {
        match self {
            Work::Dualcast => size_bytes,
            Work::CreateDelta => PAGE_BYTES as usize,
            Work::ApplyDelta => delta_bytes(size_bytes),
            _ => 0,
        }
    }

    /// Whether it knows data integrity fields.
    fn has_fields(self) -> bool {
        matches!(self, Work::DifCheck | Work::DifInsert | Work::DifStrip | Work::DifUpdate)
    }

    /// Whether its source has fields.
    pub(super) fn reads_fields(self) -> bool {
        self.has_fields() && self != Work::DifInsert
    }

    /// Bytes of a descriptor's source and target as they are used.
    fn used_bytes(self, size_bytes: usize) -> (usize, usize) {
        let protected = with_fields(size_bytes);
        match self {
            Work::DifInsert => (size_bytes, protected),
            Work::DifStrip => (protected, size_bytes),
            Work::DifCheck | Work::DifUpdate => (protected, protected),
            _ => (size_bytes, size_bytes),
        }
    }

    /// Whether its result is in a record, so that each member of a batch needs one.
    pub(super) fn has_result(self) -> bool {
        self.has_fields()
            || matches!(
                self,
                Work::Compare | Work::ComparePattern | Work::CreateDelta | Work::Crc | Work::CopyCrc
            )
    }

    /// # Errors
    /// A sentence, if the operation does not exist for that size.
    pub(super) fn check(self, size_bytes: u32) -> Result<(), String> {
        let is_for_deltas = size_bytes.is_multiple_of(8) && size_bytes as usize <= DELTA_BYTES_MAX;
        match self {
            Work::CreateDelta | Work::ApplyDelta if !is_for_deltas => {
                Err(format!("{self} is for multiples of 8 bytes up to 512 KiB"))
            }
            _ if self.has_fields() && (!size_bytes.is_multiple_of(512) || size_bytes > 1 << 30) => {
                Err(format!("{self} is for multiples of 512 bytes up to 1 GiB here"))
            }
            _ => Ok(()),
        }
    }

    /// Writes to a descriptor's source and third region what must not be equal bytes.
    pub(super) fn arrange(self, source: &mut [u8], extra: &mut [u8]) {
        if self.reads_fields() {
            let block = protected_block();
            source.chunks_exact_mut(block.len()).for_each(|place| place.copy_from_slice(&block));
        }
        if self == Work::ApplyDelta {
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
            Work::Copy => Descriptor::memmove(source, target, size_bytes),
            Work::Fill => Descriptor::fill(PATTERN, target, size_bytes),
            Work::Compare => Descriptor::compare(source, target, size_bytes),
            Work::ComparePattern => Descriptor::compare_pattern(PATTERN, source, size_bytes),
            Work::CreateDelta => Descriptor::create_delta(source, target, size_bytes, extra, DELTA_ROOM),
            Work::ApplyDelta => {
                let delta_bytes = delta_bytes(size_bytes as usize) as u32;
                Descriptor::apply_delta(extra, delta_bytes, target, size_bytes)
            }
            Work::Dualcast => Descriptor::dualcast(source, target, extra, size_bytes),
            Work::Crc => Descriptor::crc(0, source, size_bytes),
            Work::CopyCrc => Descriptor::copy_crc(0, source, target, size_bytes),
            Work::DifCheck => Descriptor::dif_check(source, protected_bytes, format, expected),
            Work::DifInsert => Descriptor::dif_insert(source, target, size_bytes, format, made),
            Work::DifStrip => Descriptor::dif_strip(source, target, protected_bytes, format, expected),
            Work::DifUpdate => {
                Descriptor::dif_update(source, target, protected_bytes, format, expected, made)
            }
            Work::CacheFlush => Descriptor::cache_flush(target, size_bytes),
            Work::Nothing => Descriptor::noop(),
        }
    }

    /// The same on this core, on data of so many bytes. The regions have [`region_bytes`](Work::region_bytes), the third
    /// one [`extra_bytes`](Work::extra_bytes), and what [`arrange`](Work::arrange) wrote.
    pub(super) fn on_this_core(self, size_bytes: usize, source: &[u8], target: &mut [u8], extra: &mut [u8]) {
        let (source_bytes, target_bytes) = self.used_bytes(size_bytes);
        let (source, target) = (&source[..source_bytes], &mut target[..target_bytes]);
        match self {
            Work::Copy => software::copy(source, target),
            Work::Fill => software::fill(PATTERN, target),
            Work::Compare => {
                assert!(black_box(software::compare(source, target)).is_none(), "equal bytes differ")
            }
            Work::ComparePattern => {
                assert!(
                    black_box(software::compare_pattern(PATTERN, source)).is_none(),
                    "equal bytes differ"
                );
            }
            Work::CreateDelta => {
                let delta = black_box(software::create_delta(source, target, extra));
                assert!(matches!(delta, Delta::Equal), "equal bytes differ");
            }
            Work::ApplyDelta => {
                let applied = black_box(software::apply_delta(extra, target));
                assert!(applied.is_ok(), "a delta record is refused");
            }
            Work::Dualcast => software::dualcast(source, target, extra),
            Work::Crc => {
                black_box(software::crc32c(0, source, CrcMode::default()));
            }
            Work::CopyCrc => {
                black_box(software::copy_crc(source, target, 0, CrcMode::default()));
            }
            Work::DifCheck => {
                let checked = black_box(dif::check(FORMAT, &expected(), source));
                assert!(checked.is_ok(), "fields are wrong");
            }
            Work::DifInsert => {
                black_box(dif::insert(FORMAT, &made(), source, target));
            }
            Work::DifStrip => {
                let checked = black_box(dif::strip(FORMAT, &expected(), source, target));
                assert!(checked.is_ok(), "fields are wrong");
            }
            Work::DifUpdate => {
                let checked = black_box(dif::update(FORMAT, &expected(), &made(), source, target));
                assert!(checked.is_ok(), "fields are wrong");
            }
            Work::CacheFlush => software::flush(target, software::Flush::Invalidate),
            Work::Nothing => {}
        }
        black_box(target);
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
