//! Formats, checks and tags of data integrity fields.
//!
//! The types convert from and to bytes 40 to 42 of a descriptor (`from_flags`, `flags`).
//!
//! Source: DSA specification 8.3.14 to 8.3.17, tables of DIF flags.

use std::fmt;
use std::slice::{ChunksExact, ChunksExactMut};

/// Bytes of a data integrity field.
pub const FIELD_BYTES: usize = 8;

/// The size of a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Block {
    /// 512 bytes.
    Bytes512 = 0,
    /// 520 bytes: 512, and 8 of the application.
    Bytes520 = 1,
    /// 4096 bytes.
    Bytes4096 = 2,
    /// 4104 bytes: 4096, and 8 of the application.
    Bytes4104 = 3,
}

impl Block {
    /// All sizes, in the order of their codes.
    pub const ALL: [Block; 4] = [Block::Bytes512, Block::Bytes520, Block::Bytes4096, Block::Bytes4104];

    /// Bytes without the field.
    pub const fn size_bytes(self) -> usize {
        match self {
            Block::Bytes512 => 512,
            Block::Bytes520 => 520,
            Block::Bytes4096 => 4096,
            Block::Bytes4104 => 4104,
        }
    }

    /// Bytes with the field.
    pub const fn protected_bytes(self) -> usize {
        self.size_bytes() + FIELD_BYTES
    }
}

/// The format of blocks and guards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Format {
    /// The size of a block.
    pub block: Block,
    /// The guard's CRC starts from `0xffff` instead of 0.
    pub guard_seed_ones: bool,
    /// The guard is the complement of the CRC.
    pub invert_guard: bool,
}

impl Format {
    /// Blocks of this size, with guards that start from 0 and are not inverted.
    pub const fn of(block: Block) -> Format {
        Format { block, guard_seed_ones: false, invert_guard: false }
    }

    /// The format with these DIF flags, byte 42 of a descriptor; `None` if a reserved bit is set.
    pub const fn from_flags(flags: u8) -> Option<Format> {
        if flags >> 4 != 0 {
            return None;
        }
        let block = Block::ALL[(flags & 3) as usize];
        Some(Format { block, guard_seed_ones: flags & 1 << 2 != 0, invert_guard: flags & 1 << 3 != 0 })
    }

    /// The DIF flags, byte 42 of a descriptor.
    pub const fn flags(self) -> u8 {
        self.block as u8 | (self.guard_seed_ones as u8) << 2 | (self.invert_guard as u8) << 3
    }

    /// Splits `data` into blocks with fields.
    pub(super) fn protected(self, data: &[u8]) -> ChunksExact<'_, u8> {
        whole(data.chunks_exact(self.block.protected_bytes()))
    }

    /// Splits `data` into blocks without fields.
    pub(super) fn bare(self, data: &[u8]) -> ChunksExact<'_, u8> {
        whole(data.chunks_exact(self.block.size_bytes()))
    }

    /// Splits `target` into room for blocks with fields.
    pub(super) fn protected_mut(self, target: &mut [u8]) -> ChunksExactMut<'_, u8> {
        whole_mut(target, self.block.protected_bytes())
    }

    /// Splits `target` into room for blocks without fields.
    pub(super) fn bare_mut(self, target: &mut [u8]) -> ChunksExactMut<'_, u8> {
        whole_mut(target, self.block.size_bytes())
    }
}

fn whole(blocks: ChunksExact<'_, u8>) -> ChunksExact<'_, u8> {
    assert!(blocks.remainder().is_empty(), "the data must be whole blocks");
    blocks
}

fn whole_mut(target: &mut [u8], size_bytes: usize) -> ChunksExactMut<'_, u8> {
    assert!(target.len().is_multiple_of(size_bytes), "the target must be whole blocks");
    target.chunks_exact_mut(size_bytes)
}

/// The tags of a block, and their change from block to block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Tags {
    /// The reference tag.
    pub reference: u32,
    /// The application tag, before the mask.
    pub application: u16,
    /// Bits of the application tag that are 0 whatever `application` is; `0xffff` in a source turns its check off.
    pub application_mask: u16,
    /// The reference tag is the same for all blocks; otherwise it increments and wraps around.
    pub reference_fixed: bool,
    /// The application tag increments and wraps around; otherwise it is the same for all blocks.
    pub application_increments: bool,
}

impl Tags {
    /// The tags of the next block.
    #[inline]
    pub fn next(self) -> Tags {
        self.after(1)
    }

    /// The tags `blocks` further on.
    #[inline]
    pub fn after(self, blocks: u64) -> Tags {
        let mut tags = self;
        // Both casts drop only bits that would wrap around anyway.
        if !self.reference_fixed {
            tags.reference = self.reference.wrapping_add(blocks as u32);
        }
        if self.application_increments {
            tags.application = self.application.wrapping_add(blocks as u16);
        }
        tags
    }

    /// The application tag as it is in a field: without the bits of the mask.
    #[inline]
    pub fn masked_application(self) -> u16 {
        self.application & !self.application_mask
    }

    fn with_flags(self, flags: u8) -> Tags {
        Tags {
            reference_fixed: flags & TAGS_REFERENCE_FIXED != 0,
            application_increments: flags & TAGS_APPLICATION_INCREMENTS != 0,
            ..self
        }
    }

    fn flags(self) -> u8 {
        flag(self.reference_fixed, TAGS_REFERENCE_FIXED)
            | flag(self.application_increments, TAGS_APPLICATION_INCREMENTS)
    }
}

// Bits that the flags of sources and targets have in common.
const TAGS_APPLICATION_INCREMENTS: u8 = 1 << 4;
const TAGS_REFERENCE_FIXED: u8 = 1 << 7;

fn flag(is_set: bool, mask: u8) -> u8 {
    if is_set { mask } else { 0 }
}

/// The checks of a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Checks {
    /// Do not compare the guard.
    pub ignore_guard: bool,
    /// Do not compare the reference tag.
    pub ignore_reference: bool,
    /// Do not check a block whose field is all ones.
    pub skip_ones: bool,
    /// With `skip_ones`: a field that is all ones is an error instead. No effect without `skip_ones`.
    pub refuse_ones: bool,
    /// Do not check a block whose application tag is all ones.
    pub skip_application_ones: bool,
    /// Do not check a block whose application tag and reference tag are all ones.
    pub skip_tags_ones: bool,
}

/// The expected fields of a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Source {
    /// The tags of its first block.
    pub tags: Tags,
    /// The checks.
    pub checks: Checks,
}

impl Source {
    /// The source with these source DIF flags, byte 40 of a descriptor; the other fields of `tags` stay as they are.
    pub fn from_flags(flags: u8, tags: Tags) -> Source {
        Source {
            tags: tags.with_flags(flags),
            checks: Checks {
                refuse_ones: flags & 1 << 0 != 0,
                skip_ones: flags & 1 << 1 != 0,
                skip_application_ones: flags & 1 << 2 != 0,
                skip_tags_ones: flags & 1 << 3 != 0,
                ignore_guard: flags & 1 << 5 != 0,
                ignore_reference: flags & 1 << 6 != 0,
            },
        }
    }

    /// The source DIF flags, byte 40 of a descriptor.
    pub fn flags(&self) -> u8 {
        let Checks {
            ignore_guard,
            ignore_reference,
            skip_ones,
            refuse_ones,
            skip_application_ones,
            skip_tags_ones,
        } = self.checks;
        self.tags.flags()
            | flag(refuse_ones, 1 << 0)
            | flag(skip_ones, 1 << 1)
            | flag(skip_application_ones, 1 << 2)
            | flag(skip_tags_ones, 1 << 3)
            | flag(ignore_guard, 1 << 5)
            | flag(ignore_reference, 1 << 6)
    }
}

/// The parts of a field that [`update`](super::update) copies from the source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct PassThrough {
    /// The guard.
    pub guard: bool,
    /// The application tag.
    pub application: bool,
    /// The reference tag.
    pub reference: bool,
}

/// The new fields of the target of [`update`](super::update).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Target {
    /// The tags of its first block, except the copied ones.
    pub tags: Tags,
    /// The parts that are copied from the source.
    pub pass_through: PassThrough,
}

impl Target {
    /// The target with these destination DIF flags, byte 41 of a descriptor, the other fields of `tags` as they are;
    /// `None` if a reserved bit is set.
    pub fn from_flags(flags: u8, tags: Tags) -> Option<Target> {
        let pass_through = PassThrough {
            application: flags & 1 << 3 != 0,
            guard: flags & 1 << 5 != 0,
            reference: flags & 1 << 6 != 0,
        };
        (flags & 0b111 == 0).then(|| Target { tags: tags.with_flags(flags), pass_through })
    }

    /// The destination DIF flags, byte 41 of a descriptor; those of an insert copy nothing.
    pub fn flags(&self) -> u8 {
        let PassThrough { guard, application, reference } = self.pass_through;
        self.tags.flags() | flag(application, 1 << 3) | flag(guard, 1 << 5) | flag(reference, 1 << 6)
    }
}

/// The mismatching parts of a field.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Wrong {
    /// The guard does not match the block.
    pub guard: bool,
    /// The application tag is not the expected one.
    pub application: bool,
    /// The reference tag is not the expected one.
    pub reference: bool,
    /// The field is all ones, and the checks refuse that.
    pub ones: bool,
}

impl Wrong {
    /// The DIF status, byte 1 of a completion record.
    pub fn status(self) -> u8 {
        flag(self.guard, 1) | flag(self.application, 2) | flag(self.reference, 4) | flag(self.ones, 8)
    }

    /// Decodes a DIF status; bits that DSA 1.0 does not define are ignored.
    pub fn from_status(status: u8) -> Wrong {
        Wrong {
            guard: status & 1 != 0,
            application: status & 2 != 0,
            reference: status & 4 != 0,
            ones: status & 8 != 0,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (self.guard, "guard"),
            (self.application, "application tag"),
            (self.reference, "reference tag"),
            (self.ones, "all ones"),
        ];
        let wrong: Vec<&str> =
            names.iter().filter(|(is_wrong, _)| *is_wrong).map(|(_, name)| *name).collect();
        write!(f, "{}", wrong.join(", "))
    }
}

/// The error of a data integrity field that is not as expected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the data integrity field of the block at byte {bytes_completed} is wrong ({wrong}): the data is damaged, or it is \
     another block"
)]
pub struct Mismatch {
    /// Bytes of the good blocks before it. [`Tags::after`] their number gives the tags that it was compared with.
    pub bytes_completed: usize,
    /// The mismatching parts.
    pub wrong: Wrong,
}
