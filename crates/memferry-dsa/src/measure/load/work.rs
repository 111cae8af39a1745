//! The operations that are measured, as descriptors and in software.

use std::fmt;
use std::hint::black_box;

use crate::address::{Address, PAGE_BYTES};
use crate::software::{self, CrcMode, DELTA_BYTES_MAX, Delta};
use crate::{Descriptor, Opcode};

/// An operation on regions of equal bytes, so that whatever compares goes through all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)]
pub enum Work {
    Copy,
    Fill,
    Compare,
    ComparePattern,
    CreateDelta,
    Dualcast,
    Crc,
    CopyCrc,
    CacheFlush,
    /// A descriptor without data; on a core nothing at all: what remains is the cost of measuring.
    Nothing,
}

/// What all regions are full of.
pub(super) const BYTE: u8 = 7;
const PATTERN: u64 = u64::from_ne_bytes([BYTE; 8]);

/// Bytes of a delta record between equal regions, and more: the least that a descriptor may offer.
const DELTA_ROOM: u32 = 80;

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
    pub const ALL: [Work; 9] = [
        Work::Copy,
        Work::Fill,
        Work::Compare,
        Work::ComparePattern,
        Work::CreateDelta,
        Work::Dualcast,
        Work::Crc,
        Work::CopyCrc,
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
            Work::Dualcast => "dualcast",
            Work::Crc => "crc",
            Work::CopyCrc => "copy-crc",
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
            Work::Dualcast => Opcode::Dualcast,
            Work::Crc => Opcode::CrcGeneration,
            Work::CopyCrc => Opcode::CopyCrc,
            Work::CacheFlush => Opcode::CacheFlush,
            Work::Nothing => Opcode::Noop,
        }
    }

    /// Bytes that its third region needs, the second target or the delta record.
    pub fn extra_bytes(self, size_bytes: usize) -> usize {
        match self {
            Work::Dualcast => size_bytes,
            Work::CreateDelta => PAGE_BYTES as usize,
            _ => 0,
        }
    }

    /// Whether its result is in a record, so that each member of a batch needs one.
    pub(super) fn has_result(self) -> bool {
        matches!(self, Work::Compare | Work::ComparePattern | Work::CreateDelta | Work::Crc | Work::CopyCrc)
    }

    /// # Errors
    /// A sentence, if the operation does not exist for that size.
    pub(super) fn check(self, size_bytes: u32) -> Result<(), String> {
        match self {
            Work::CreateDelta if !size_bytes.is_multiple_of(8) || size_bytes as usize > DELTA_BYTES_MAX => {
                Err("create-delta is for multiples of 8 bytes up to 512 KiB".to_owned())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn descriptor(self, at: Regions, size_bytes: u32) -> Descriptor {
        let Regions { source, target, extra } = at;
        match self {
            Work::Copy => Descriptor::memmove(source, target, size_bytes),
            Work::Fill => Descriptor::fill(PATTERN, target, size_bytes),
            Work::Compare => Descriptor::compare(source, target, size_bytes),
            Work::ComparePattern => Descriptor::compare_pattern(PATTERN, source, size_bytes),
            Work::CreateDelta => Descriptor::create_delta(source, target, size_bytes, extra, DELTA_ROOM),
            Work::Dualcast => Descriptor::dualcast(source, target, extra, size_bytes),
            Work::Crc => Descriptor::crc(0, source, size_bytes),
            Work::CopyCrc => Descriptor::copy_crc(0, source, target, size_bytes),
            Work::CacheFlush => Descriptor::cache_flush(target, size_bytes),
            Work::Nothing => Descriptor::noop(),
        }
    }

    /// The same on this core. The regions are `size_bytes` long, the third one [`extra_bytes`](Work::extra_bytes).
    pub(super) fn on_this_core(self, source: &[u8], target: &mut [u8], extra: &mut [u8]) {
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
            Work::Dualcast => software::dualcast(source, target, extra),
            Work::Crc => {
                black_box(software::crc32c(0, source, CrcMode::default()));
            }
            Work::CopyCrc => {
                black_box(software::copy_crc(source, target, 0, CrcMode::default()));
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
