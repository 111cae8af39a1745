//! Data integrity fields (DIF) in descriptors and completion records: formats, checks and tags.
//!
//! A data integrity field follows each block of data in memory. All its parts are big-endian:
//!
//! ```text
//! block (512, 520, 4096 or 4104 bytes) | guard u16 | application tag u16 | reference tag u32 | next block ...
//! ```
//!
//! The guard is the CRC-16 of T10 over the block. The descriptor has the tags of the first block; from block to block, a
//! tag stays or counts up. Note the defaults: reference tags count up, application tags stay.
//!
//! Source: Intel DSA Architecture Specification 3.0, sections 8.3.14-8.3.17 and appendix B; `struct dsa_hw_desc` in
//! Linux' `idxd.h`.

use std::fmt;

use crate::flags::flags;

/// Bytes of one data integrity field.
pub const DIF_BYTES: u32 = 8;

/// The size of the blocks between two data integrity fields.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum DifBlock {
    /// 512 bytes.
    #[default]
    Bytes512 = 0,
    /// 520 bytes.
    Bytes520 = 1,
    /// 4096 bytes.
    Bytes4096 = 2,
    /// 4104 bytes.
    Bytes4104 = 3,
}

impl DifBlock {
    /// Every size, in the order of the codes.
    pub const ALL: [DifBlock; 4] =
        [DifBlock::Bytes512, DifBlock::Bytes520, DifBlock::Bytes4096, DifBlock::Bytes4104];

    /// The data bytes of a block, without its field.
    pub const fn bytes(self) -> u32 {
        match self {
            DifBlock::Bytes512 => 512,
            DifBlock::Bytes520 => 520,
            DifBlock::Bytes4096 => 4096,
            DifBlock::Bytes4104 => 4104,
        }
    }
}

/// The format of blocks and guards: byte 42 of a descriptor.
///
/// ```
/// use memferry_dsa::{Client, ClientOptions, Request};
/// use memferry_dsa::{DIF_BYTES, DifBlock, DifErrors, DifFormat, DifSource, DifTarget};
///
/// let client = Client::new(Vec::new(), ClientOptions::default());
/// let (format, data) = (DifFormat::new(DifBlock::Bytes512), [7u8; 512]);
/// let mut protected = [0u8; 512 + DIF_BYTES as usize];
/// client.run(Request::dif_insert(&data, &mut protected, format, DifTarget::default()))?;
/// assert!(client.run(Request::dif_check(&protected, format, DifSource::default()))?.is_ok());
///
/// protected[9] ^= 1;
/// let mismatch = client.run(Request::dif_check(&protected, format, DifSource::default()))?.unwrap_err();
/// assert_eq!(mismatch.wrong, DifErrors::GUARD);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DifFormat {
    /// The size of the blocks.
    pub block: DifBlock,
    /// The guard's CRC starts from 0xffff instead of 0.
    pub guard_seed_ones: bool,
    /// The guard is the complement of the CRC.
    pub guard_inverted: bool,
}

impl DifFormat {
    /// Blocks of this size with the guard of T10.
    pub const fn new(block: DifBlock) -> DifFormat {
        DifFormat { block, guard_seed_ones: false, guard_inverted: false }
    }

    /// Byte 42 of a descriptor.
    pub const fn to_bits(self) -> u8 {
        self.block as u8 | (self.guard_seed_ones as u8) << 2 | (self.guard_inverted as u8) << 3
    }

    /// The format in this byte; its reserved bits 7:4 are ignored.
    pub const fn from_bits(bits: u8) -> DifFormat {
        DifFormat {
            block: DifBlock::ALL[(bits & 3) as usize],
            guard_seed_ones: bits & 1 << 2 != 0,
            guard_inverted: bits & 1 << 3 != 0,
        }
    }
}

flags! {
    /// The checks of the source's fields: byte 40 of a descriptor.
    ///
    /// A field that one of the `DETECT` flags recognises is not checked.
    DifSourceFlags: u8 & 0xff {
        /// With `DETECT_ALL_F`: a field of ones is an error ([`DifErrors::ALL_F`]) instead of unchecked.
        ALL_F_IS_ERROR = 1 << 0;
        /// Recognise fields whose eight bytes are all 0xff.
        DETECT_ALL_F = 1 << 1;
        /// Recognise fields whose application tag is 0xffff.
        DETECT_APPLICATION_F = 1 << 2;
        /// Recognise fields whose tags are 0xffff and 0xffff_ffff.
        DETECT_TAGS_F = 1 << 3;
        /// The application tag counts up from block to block.
        APPLICATION_COUNTS = 1 << 4;
        /// Do not check guards.
        NO_GUARD_CHECK = 1 << 5;
        /// Do not check reference tags.
        NO_REFERENCE_CHECK = 1 << 6;
        /// The reference tag stays the same for all blocks.
        REFERENCE_STAYS = 1 << 7;
    }
}

flags! {
    /// The rules for the target's fields: byte 41 of a descriptor. Bits 2:0 are reserved.
    ///
    /// The `PASS` flags copy that part from the source's field; only DIF Update has one.
    DifTargetFlags: u8 & 0xff {
        /// Copy the application tag from the source.
        PASS_APPLICATION = 1 << 3;
        /// The application tag counts up from block to block.
        APPLICATION_COUNTS = 1 << 4;
        /// Copy the guard from the source.
        PASS_GUARD = 1 << 5;
        /// Copy the reference tag from the source.
        PASS_REFERENCE = 1 << 6;
        /// The reference tag stays the same for all blocks.
        REFERENCE_STAYS = 1 << 7;
    }
}

flags! {
    /// The mismatching parts of a field: byte 1 of a completion record with [`Status::DifMismatch`](crate::Status::DifMismatch).
    DifErrors: u8 & 0xff {
        /// The guard is not the CRC of the block.
        GUARD = 1 << 0;
        /// The application tag is not the expected one.
        APPLICATION = 1 << 1;
        /// The reference tag is not the expected one.
        REFERENCE = 1 << 2;
        /// The field is all ones, and the checks treat that as an error.
        ALL_F = 1 << 3;
    }
}

impl fmt::Display for DifErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (DifErrors::GUARD, "guard"),
            (DifErrors::APPLICATION, "application tag"),
            (DifErrors::REFERENCE, "reference tag"),
            (DifErrors::ALL_F, "all ones"),
        ];
        let wrong = names.iter().filter(|(error, _)| self.contains(*error)).map(|(_, name)| *name);
        f.write_str(&wrong.collect::<Vec<_>>().join(", "))
    }
}

/// The tags of a block: in a descriptor of the first one, in a completion record of the one after the last processed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DifTags {
    /// The reference tag.
    pub reference: u32,
    /// Bits of the application tag that are zero whatever `application` is. 0xffff in a source: do not check the tag.
    pub application_mask: u16,
    /// The application tag.
    pub application: u16,
}

impl DifTags {
    /// The tags as eight bytes of a descriptor or completion record.
    pub const fn to_word(self) -> u64 {
        self.reference as u64 | (self.application_mask as u64) << 32 | (self.application as u64) << 48
    }

    /// The tags in these eight bytes.
    pub const fn from_word(word: u64) -> DifTags {
        DifTags {
            reference: word as u32,
            application_mask: (word >> 32) as u16,
            application: (word >> 48) as u16,
        }
    }
}

/// The expected fields of a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DifSource {
    /// The checks.
    pub flags: DifSourceFlags,
    /// The tags of the first block.
    pub tags: DifTags,
}

/// The new fields of a target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DifTarget {
    /// The rules.
    pub flags: DifTargetFlags,
    /// The tags of the first block.
    pub tags: DifTags,
}
